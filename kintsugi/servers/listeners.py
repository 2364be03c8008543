"""Where the receiver hears its senders: opens what the settings name, and says which setting cannot
be listened on."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from django.conf import settings

from detectors.receivers import connections
from detectors.receivers.connections import TlsError
from detectors.receivers.passed_sockets import take_passed_sockets
from detectors.receivers.senders import RefusedCertificates
from detectors.receivers.syslog import Door, Listen, TlsDoor


class AddressTaken(Exception):
    """An address of the settings cannot be listened on: names the setting, and says why."""


class Openings(TypedDict):
    """Where a receiver hears its senders, by the names of Receiver's parameters."""

    listen: Listen
    relp: socket.socket | None
    tls: TlsDoor | None
    doors: Sequence[Door]


def open_all(directory: Path) -> Openings:
    """Raises PassedSocketError, AddressTaken, TlsError."""
    listen, relp = _open_listeners()
    tls = _open_tls_door()
    trap_listeners = _open_trap_listeners(directory)
    return {"listen": listen, "relp": relp, "tls": tls, "doors": trap_listeners}


def _open_listeners() -> tuple[Listen, socket.socket | None]:
    """For syslog, and for RELP where the site wants it: by the sockets that systemd keeps where it
    passes some. Raises PassedSocketError, AddressTaken."""
    address: tuple[str, int] = settings.KINTSUGI["KINTSUGI_SYSLOG_LISTEN"]
    relp_address: tuple[str, int] | None = settings.KINTSUGI["KINTSUGI_RELP_LISTEN"]
    passed = take_passed_sockets()
    stream, datagram = (
        passed.require(kind, address, "KINTSUGI_SYSLOG_LISTEN")
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
    )
    listen = Listen(*address, stream=stream, datagram=datagram)
    relp = passed.get(socket.SOCK_STREAM, relp_address) if relp_address is not None else None
    passed.refuse_others()
    if relp is None and relp_address is not None:
        relp = _listen_for_relp(relp_address)
    return listen, relp


def _open_tls_door() -> TlsDoor | None:
    """Syslog over TLS, where the site wants it. Raises TlsError, AddressTaken."""
    address: tuple[str, int] | None = settings.KINTSUGI["KINTSUGI_TLS_LISTEN"]
    if address is None:
        return None
    names = ("KINTSUGI_TLS_CERTIFICATE", "KINTSUGI_TLS_KEY", "KINTSUGI_TLS_AUTHORITIES")
    missing = [name for name in names if not settings.KINTSUGI[name]]
    if missing:
        raise TlsError(f"KINTSUGI_TLS_LISTEN is set, {' and '.join(missing)} not")
    context = connections.make_tls(*(str(settings.KINTSUGI[name]) for name in names))
    refused = _read_refused_certificates()
    try:
        return TlsDoor(connections.listen(address), context, refused)
    except OSError as error:
        raise _build_address_taken("KINTSUGI_TLS_LISTEN", address, error) from error


def _read_refused_certificates() -> RefusedCertificates | None:
    """Raises TlsError."""
    path = settings.KINTSUGI["KINTSUGI_TLS_REFUSED"]
    if not path:
        return None
    try:
        return RefusedCertificates(Path(path))
    except (OSError, ValueError) as error:
        raise TlsError(f"KINTSUGI_TLS_REFUSED: {error}") from error


def _listen_for_relp(address: tuple[str, int]) -> socket.socket:
    try:
        return connections.listen(address)
    except OSError as error:
        raise _build_address_taken("KINTSUGI_RELP_LISTEN", address, error) from error


def _build_address_taken(setting: str, address: tuple[str, int], error: OSError) -> AddressTaken:
    return AddressTaken(
        f"{setting}={address[0]}:{address[1]}: {error.strerror}; choose another, or unset it"
        f" ({describe_search(address[1])})"
    )


def describe_search(port: int) -> str:
    return f"`ss -lntup 'sport = :{port}'` shows who has it"


def _open_trap_listeners(directory: Path) -> tuple[Door, ...]:
    """SNMP notifications, where the site wants them. Raises AddressTaken."""
    address: tuple[str, int] | None = settings.KINTSUGI["KINTSUGI_TRAP_LISTEN"]
    if address is None:
        return ()
    from kintsugi.servers import trap_receiving  # noqa: PLC0415  (pysnmp: only who listens for traps pays)

    try:
        return (trap_receiving.open_listener(address, directory),)
    except OSError as error:
        raise _build_address_taken("KINTSUGI_TRAP_LISTEN", address, error) from error
