"""Syslog over TLS (RFC 5425): who has no certificate is not read, and who has one speaks for itself."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from detectors.provenance import Forger, Provenance, Transport
from detectors.receivers.connections import TlsError, listen, make_tls
from detectors.receivers.senders import RefusedCertificates, Senders
from detectors.receivers.syslog import TlsDoor
from tests.detectors.receiver_twin import MemoryInbox, RunningReceiver
from tests.services.ports import free_port, listens, wait_until
from tests.services.programs import find
from tests.services.rsyslog import Rsyslog

_LINE = b"<3>1 - %b kernel - - - NVRM: Xid (PCI:0000:19:00): 79, pid=1, name=x, lost"


# As docs/receiver.md tells sites to write it.
FORWARD = """
module(load="imtcp")
input(type="imtcp" address="127.0.0.1" port="{listen}")
global(workDirectory="{{home}}" DefaultNetstreamDriver="ossl"
       DefaultNetstreamDriverCAFile="{authority}"
       DefaultNetstreamDriverCertFile="{certificate}" DefaultNetstreamDriverKeyFile="{key}")
*.* action(type="omfwd" target="127.0.0.1" port="{port}" protocol="tcp" TCP_Framing="{framing}"
           StreamDriver="ossl" StreamDriverMode="1" StreamDriverAuthMode="x509/name"
           StreamDriverPermittedPeers="{peer}" template="RSYSLOG_SyslogProtocol23Format")
"""


class Authority:
    """Signs certificates by openssl, as a site does."""

    def __init__(self, home: Path, name: str) -> None:
        self._home, self._name = home, name
        home.mkdir(exist_ok=True)
        self.certificate = home / f"{name}.pem"
        self._key = home / f"{name}.key"
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.certificate),
        )

    def sign(self, name: str) -> tuple[Path, Path]:
        """(certificate, key) of the machine."""
        key, request = self._home / f"{name}.key", self._home / f"{name}.csr"
        certificate = self._home / f"{name}.pem"
        self._openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"),
            *("-keyout", key, "-out", request),
        )
        self._openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-CAcreateserial", "-copy_extensions", "copy", "-days", "2", "-out", certificate),
        )
        return certificate, key

    @staticmethod
    def _openssl(*words: object) -> None:
        command = [find("openssl") or "openssl", *(str(word) for word in words)]
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("site"), "authority")


@pytest.fixture(scope="module")
def receivers(site: Authority) -> tuple[Path, Path]:
    return site.sign("kintsugi.example")


@pytest.fixture
def running(
    tmp_path: Path, site: Authority, receivers: tuple[Path, Path]
) -> Iterator[tuple[RunningReceiver, int, MemoryInbox]]:
    certificate, key = receivers
    context = make_tls(str(certificate), str(key), str(site.certificate))
    refused_file = tmp_path / "refused"
    refused_file.write_text("# nobody yet\n")
    listener = listen(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    names = frozenset({"gn001", "gn042"})
    inbox = MemoryInbox()
    senders = Senders(names=names, relays=[])
    with RunningReceiver(
        tmp_path,
        inbox=inbox,
        senders=senders,
        tls=TlsDoor(listener, context, RefusedCertificates(refused_file)),
    ) as receiver:
        yield receiver, port, inbox


def connected(port: int, site: Authority, own: tuple[Path, Path] | None) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=str(site.certificate))
    if own is not None:
        context.load_cert_chain(str(own[0]), str(own[1]))
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    return context.wrap_socket(plain, server_hostname="kintsugi.example")


def framed(line: bytes, *, is_counted: bool) -> bytes:
    return b"%d %b" % (len(line), line) if is_counted else line + b"\n"


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("is_counted", [True, False], ids=["octet-counted", "line feeds"])
def test_a_machine_with_a_certificate_speaks_for_itself(
    running: tuple[RunningReceiver, int, MemoryInbox], site: Authority, is_counted: bool
) -> None:
    receiver, port, inbox = running
    with connected(port, site, site.sign("gn001.cluster.example")) as sender:
        sender.sendall(framed(_LINE % b"gn042", is_counted=is_counted))
        receiver.wait_for_occurrences(1)
    assert set(inbox.counts()) == {("node/gn001/gpu/0000:19:00.0", 79)}
    (wire,) = [wire for batch in inbox.batches for wire in batch.wires]
    told = wire["provenance"]
    assert (told["transport"], told["forger"]) == ("tls", "user")
    assert told["authenticated_as"] == "the certificate of gn001.cluster.example"


@pytest.mark.needs("openssl")
def test_nobody_is_read_without_a_certificate_that_the_site_signed(
    running: tuple[RunningReceiver, int, MemoryInbox], site: Authority, tmp_path: Path
) -> None:
    receiver, port, inbox = running
    others = Authority(tmp_path / "others", "others").sign("gn001")
    for own in (None, others):
        with contextlib.suppress(OSError), connected(port, site, own) as sender:
            sender.sendall(framed(_LINE % b"gn001", is_counted=True))
            while sender.recv(64):  # until it is closed, or reset
                pass
    counters = receiver.receiver.counters
    wait_until(lambda: counters.refused_handshakes >= 2, within_s=20, what="two refused handshakes")
    receiver.stop()
    assert not inbox.counts()


def fingerprint(certificate: Path) -> str:
    """As openssl prints it."""
    command = [find("openssl") or "openssl", "x509", "-noout", "-fingerprint", "-sha256"]
    printed = subprocess.run(
        [*command, "-in", str(certificate)], check=True, capture_output=True, text=True
    )
    return printed.stdout


def is_closed(sender: ssl.SSLSocket) -> bool:
    try:
        return sender.recv(64) == b""
    except OSError:
        return True


@pytest.mark.needs("openssl")
def test_a_certificate_that_is_refused_from_now_on_loses_its_connection_and_others_do_not(
    running: tuple[RunningReceiver, int, MemoryInbox], site: Authority, tmp_path: Path
) -> None:
    receiver, port, inbox = running
    stolen, kept = site.sign("gn001.cluster.example"), site.sign("gn042.cluster.example")
    with connected(port, site, stolen) as thief, connected(port, site, kept) as other:
        thief.sendall(framed(_LINE % b"gn001", is_counted=True))
        receiver.wait_for_occurrences(1)
        (tmp_path / "refused").write_text(f"# lost with the laptop\n{fingerprint(stolen[0])}")
        assert is_closed(thief)
        with contextlib.suppress(OSError), connected(port, site, stolen) as again:
            again.sendall(framed(_LINE % b"gn001", is_counted=True))
            assert is_closed(again)
        other.sendall(framed(_LINE % b"gn042", is_counted=True))
        receiver.wait_for_occurrences(2)
    assert receiver.receiver.counters.refused_handshakes == 2
    told = inbox.counts()
    assert {resource.split("/")[1] for resource, _ in told} == {"gn001", "gn042"}
    assert sum(told.values()) == 2


def test_a_list_of_refused_certificates_that_cannot_be_read_leaves_the_one_of_before(
    tmp_path: Path,
) -> None:
    path = tmp_path / "refused"
    path.write_text("AB" * 32 + "\n")
    refused = RefusedCertificates(path)
    assert refused.has("ab" * 32)
    path.write_text("gn042.pem\n")
    assert not refused.read_changes()
    assert refused.has("ab" * 32)
    with pytest.raises(ValueError, match=r"refused:1: 'gn042\.pem' is no SHA-256 fingerprint"):
        RefusedCertificates(path)
    path.write_text("# nobody any more\n")
    assert refused.read_changes()
    assert not refused.has("ab" * 32)


@contextlib.contextmanager
def forwarding(
    port: int, site: Authority, own: tuple[Path, Path], *, framing: str, peer: str
) -> Iterator[int]:
    """A real rsyslogd that sends what it gets on this port over TLS."""
    listen_at = free_port()
    certificate, key = own
    settings = FORWARD.format(
        listen=listen_at,
        port=port,
        authority=site.certificate,
        certificate=certificate,
        key=key,
        framing=framing,
        peer=peer,
    )
    rsyslog = Rsyslog(settings).start()
    try:
        wait_until(lambda: listens(listen_at), within_s=20, what="rsyslogd")
        yield listen_at
    finally:
        rsyslog.remove()


def tell(port: int, *hosts: str) -> None:
    lines = [
        f"<3>Jan 12 03:04:05 {host} kernel: NVRM: Xid (PCI:0000:19:00): 79, pid=1, name=x, lost\n"
        for host in hosts
    ]
    with socket.create_connection(("127.0.0.1", port)) as source:
        source.sendall("".join(lines).encode())


@pytest.mark.needs("openssl", "rsyslogd", "lmnsd_ossl.so")
@pytest.mark.parametrize("framing", ["octet-counted", "traditional"])
def test_a_real_rsyslog_with_a_certificate_speaks_for_its_own_machine(
    running: tuple[RunningReceiver, int, MemoryInbox], site: Authority, framing: str
) -> None:
    receiver, port, inbox = running
    own = site.sign("gn001.cluster.example")
    with forwarding(port, site, own, framing=framing, peer="kintsugi.example") as listen_at:
        tell(listen_at, "gn001", "gn042")
        receiver.wait_for_lines(2)
        receiver.wait_for_occurrences(1)
    assert {resource for resource, _ in inbox.counts()} == {"node/gn001/gpu/0000:19:00.0"}
    proofs = {wire["provenance"]["authenticated_as"] for one in inbox.batches for wire in one.wires}
    assert proofs == {"the certificate of gn001.cluster.example"}


@pytest.mark.needs("openssl", "rsyslogd", "lmnsd_ossl.so")
def test_a_real_rsyslog_with_another_sites_certificate_is_not_read(
    running: tuple[RunningReceiver, int, MemoryInbox], site: Authority, tmp_path: Path
) -> None:
    receiver, port, inbox = running
    others = Authority(tmp_path / "others", "others").sign("gn001")
    peer = "kintsugi.example"
    with forwarding(port, site, others, framing="octet-counted", peer=peer) as listen_at:
        tell(listen_at, "gn001")
        counters = receiver.receiver.counters
        wait_until(lambda: counters.refused_handshakes >= 1, within_s=60, what="a refusal")
    receiver.stop()
    assert not inbox.counts()


@pytest.mark.needs("openssl")
def test_what_is_wrong_with_a_file_is_said_with_its_name(
    site: Authority, receivers: tuple[Path, Path], tmp_path: Path
) -> None:
    certificate, key = (str(path) for path in receivers)
    with pytest.raises(TlsError, match=r"absent\.pem"):
        make_tls(str(tmp_path / "absent.pem"), key, str(site.certificate))
    with pytest.raises(TlsError, match=r"absent\.pem"):
        make_tls(certificate, key, str(tmp_path / "absent.pem"))


def test_a_relay_over_tls_is_believed_as_far_as_who_sends_to_it() -> None:
    senders = Senders(names=frozenset({"gn001"}), relays=["10.0.0.9/32"])
    by_relay = senders.build_proved_provenance("10.0.0.9", "log01.example")
    proof = "the certificate of log01.example"
    assert by_relay == Provenance("10.0.0.9", Transport.TLS, proof, is_relay=True)
    assert senders.build_proved_provenance("10.1.0.1", "gn001").forger is Forger.USER


def test_datagrams_are_of_switches_alone_where_the_site_says_so() -> None:
    hosts = {"10.1.0.1": "gn001", "10.2.0.1": "leaf-01"}
    senders = Senders(hosts=hosts, datagram_hosts=frozenset({"10.2.0.1"}))
    assert senders.accepts_datagrams("10.2.0.1")
    assert not senders.accepts_datagrams("10.1.0.1")
    assert senders.accepts("10.1.0.1")
