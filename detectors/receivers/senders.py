"""Who may send, and whose lines they are when a line names no host."""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from detectors.provenance import Forger, Provenance, Transport
from detectors.resources import short_host

_log = logging.getLogger(__name__)
# As `openssl x509 -fingerprint -sha256` prints it, or its 64 hex digits alone.
_FINGERPRINT = re.compile(r"(?:sha256 fingerprint=)?([0-9a-f]{64})", re.IGNORECASE)
LOOPBACK = ("127.0.0.0/8", "::1/128")
_CACHED = 20_000


@dataclass
class Senders:
    """Accepted networks, and the host name of each known address (itself accepted unless the
    networks are a list that somebody wrote). Everybody else is refused.

    `relays` are the networks of those that speak for other machines. None: nobody has said; then
    those are taken for relays that are no machine of the inventory. `names`: all machines that the
    inventory knows; None: not known. `datagram_hosts`: the addresses that alone may send over
    UDP; None: all that may send.
    """

    networks: Iterable[str] = LOOPBACK
    hosts: Mapping[str, str] = field(default_factory=dict)
    accepts_hosts: bool = True
    relays: Iterable[str] | None = None
    names: frozenset[str] | None = None
    datagram_hosts: frozenset[str] | None = None
    _verdicts: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._parsed = _parse_networks(self.networks)
        # A local rsyslog or a simulation sends from here.
        self._relays = _parse_networks(LOOPBACK if self.relays is None else self.relays)

    def accepts(self, address: str) -> bool:
        verdict = self._verdicts.get(address)
        if verdict is None:
            verdict = self._judge(address)
            if len(self._verdicts) >= _CACHED:
                self._verdicts.clear()
            self._verdicts[address] = verdict
        return verdict

    def get_host(self, address: str) -> str:
        """The inventory's name of an address; the address itself where it has none (ingest knows it
        as an alias)."""
        plain = _get_plain_address(address)
        return self.hosts.get(plain, plain)

    def is_relay(self, address: str) -> bool:
        """Whether the host that its lines name is believed."""
        plain = _get_plain_address(address)
        is_stranger = self.relays is None and plain not in self.hosts
        return is_stranger or _is_within(plain, self._relays)

    def is_listed_relay(self, address: str) -> bool:
        return self.relays is not None and _is_within(_get_plain_address(address), self._relays)

    def build_provenance(self, address: str, transport: Transport) -> Provenance:
        """Of what comes from this address, which nothing proves."""
        return Provenance(_get_plain_address(address), transport, is_relay=self.is_relay(address))

    def build_proved_provenance(self, address: str, name: str) -> Provenance:
        """Of what comes over TLS, by the name that the sender's certificate proves. A machine that
        speaks for itself is believed as far as its users are; a relay as far as who sends to it."""
        is_known = self.names is not None and short_host(name) in self.names
        is_relay = self.is_listed_relay(address) or (self.is_relay(address) and not is_known)
        forger = Forger.ANYONE if is_relay else Forger.USER
        proof = f"the certificate of {name}"
        return Provenance(
            _get_plain_address(address), Transport.TLS, proof, is_relay, forger=forger
        )

    def accepts_datagrams(self, address: str) -> bool:
        """Over UDP anybody can write any address as the sender's."""
        if not self.accepts(address):
            return False
        plain = _get_plain_address(address)
        return self.datagram_hosts is None or plain in self.datagram_hosts

    def _judge(self, address: str) -> bool:
        plain = _get_plain_address(address)
        if self.accepts_hosts and plain in self.hosts:
            return True
        return _is_within(plain, self._parsed)


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _parse_networks(texts: Iterable[str]) -> list[_Network]:
    return [ipaddress.ip_network(text, strict=False) for text in texts]


def _is_within(plain: str, networks: Iterable[_Network]) -> bool:
    try:
        parsed = ipaddress.ip_address(plain)
    except ValueError:
        return False
    return any(parsed.version == network.version and parsed in network for network in networks)


def _get_plain_address(address: str) -> str:
    """Without zone index, and IPv4 as IPv4 where the socket is dual."""
    bare = address.partition("%")[0]
    return bare.removeprefix("::ffff:") if "." in bare else bare


class RefusedCertificates:
    """Certificates that the site trusts no longer, whoever signed them: a text file with a
    fingerprint (SHA-256) a line, and comments behind `#`.

    `has` knows the file as `read_changes` last found it. Raises OSError and ValueError, which says
    the file and the line, where it cannot be read at first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = self._get_stamp()
        self._fingerprints = _read_fingerprints(path)

    def has(self, fingerprint: str) -> bool:
        return fingerprint in self._fingerprints

    def read_changes(self) -> bool:
        """Whether the file has changed. A file that cannot be read any more leaves the list as it
        was, and says so."""
        try:
            stamp = self._get_stamp()
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            self._fingerprints = _read_fingerprints(self.path)
        except (OSError, ValueError) as error:
            if self._stamp is not None:
                _log.error("the list of refused certificates of before stays: %s", error)
            self._stamp = None
            return False
        return True

    def _get_stamp(self) -> tuple[int, int, int] | None:
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino


def make_fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in DER, as hex digits."""
    return hashlib.sha256(certificate).hexdigest()


def _read_fingerprints(path: Path) -> frozenset[str]:
    found = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.partition("#")[0].replace(":", "").strip()
        if not text:
            continue
        fingerprint = _FINGERPRINT.fullmatch(text)
        if fingerprint is None:
            raise ValueError(
                f"{path}:{number}: {text[:80]!r} is no SHA-256 fingerprint of a certificate:"
                " `openssl x509 -in CERTIFICATE -noout -fingerprint -sha256` prints it"
            )
        found.add(fingerprint[1].lower())
    return frozenset(found)
