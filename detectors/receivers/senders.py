"""Who may send, and whose lines they are when a line names no host."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LOOPBACK = ("127.0.0.0/8", "::1/128")
_CACHED = 20_000


@dataclass
class Senders:
    """Accepted networks, and the host name of each known address (itself accepted unless the
    networks are a list that somebody wrote). Everybody else is refused."""

    networks: Iterable[str] = LOOPBACK
    hosts: Mapping[str, str] = field(default_factory=dict)
    accepts_hosts: bool = True
    _verdicts: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._parsed = [ipaddress.ip_network(network, strict=False) for network in self.networks]

    def accepts(self, address: str) -> bool:
        verdict = self._verdicts.get(address)
        if verdict is None:
            verdict = self._judge(address)
            if len(self._verdicts) >= _CACHED:
                self._verdicts.clear()
            self._verdicts[address] = verdict
        return verdict

    def host(self, address: str) -> str:
        """The inventory's name of an address; the address itself where it has none (ingest knows it
        as an alias)."""
        plain = _plain(address)
        return self.hosts.get(plain, plain)

    def _judge(self, address: str) -> bool:
        plain = _plain(address)
        if self.accepts_hosts and plain in self.hosts:
            return True
        try:
            parsed = ipaddress.ip_address(plain)
        except ValueError:
            return False
        return any(
            parsed.version == network.version and parsed in network for network in self._parsed
        )


def _plain(address: str) -> str:
    """Without zone index, and IPv4 as IPv4 where the socket is dual."""
    bare = address.partition("%")[0]
    return bare.removeprefix("::ffff:") if "." in bare else bare
