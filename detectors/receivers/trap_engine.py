"""SNMP notifications off the wire with pysnmp: v2c by community, v3 by users at known engines;
informs are answered.

One engine in one thread, fed with datagrams; owns no socket. Never raises for what a datagram
holds.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from pyasn1.error import PyAsn1Error
from pysnmp.carrier.asyncio.dgram import udp, udp6
from pysnmp.carrier.base import AbstractTransportDispatcher
from pysnmp.entity import config
from pysnmp.entity.engine import SnmpEngine
from pysnmp.entity.rfc3413 import ntfrcv
from pysnmp.error import PySnmpError
from pysnmp.proto.rfc1902 import OctetString

from detectors.transports.snmp import AuthProtocol, PrivProtocol, SnmpCredentials, SnmpVersion

_log = logging.getLogger(__name__)

_AUTH = {
    AuthProtocol.NONE: config.USM_AUTH_NONE,
    AuthProtocol.SHA: config.USM_AUTH_HMAC96_SHA,
    AuthProtocol.SHA224: config.USM_AUTH_HMAC128_SHA224,
    AuthProtocol.SHA256: config.USM_AUTH_HMAC192_SHA256,
    AuthProtocol.SHA384: config.USM_AUTH_HMAC256_SHA384,
    AuthProtocol.SHA512: config.USM_AUTH_HMAC384_SHA512,
}
_PRIV = {
    PrivProtocol.NONE: config.USM_PRIV_NONE,
    PrivProtocol.AES128: config.USM_PRIV_CFB128_AES,
    PrivProtocol.AES192: config.USM_PRIV_CFB192_AES_BLUMENTHAL,
    PrivProtocol.AES256: config.USM_PRIV_CFB256_AES_BLUMENTHAL,
}
# A sender of informs refuses an engine whose number of boots goes down (RFC 3414, 3.2), so that it
# is kept.
_KEPT = "snmp_engine.json"
# Format 5 (octets) of RFC 3411's SnmpEngineID, under the enterprise number of pysnmp, which speaks
# here.
_ENGINE_PREFIX = "80004fb805"
# What pysnmp counts when it turns a message away for its credentials: RFC 3418 and 3414.
_TURNED_AWAY = (
    ("__SNMPv2-MIB", "snmpInBadCommunityNames"),
    ("__SNMP-USER-BASED-SM-MIB", "usmStatsUnknownUserNames"),
    ("__SNMP-USER-BASED-SM-MIB", "usmStatsWrongDigests"),
    ("__SNMP-USER-BASED-SM-MIB", "usmStatsDecryptionErrors"),
    ("__SNMP-USER-BASED-SM-MIB", "usmStatsUnsupportedSecLevels"),
)
Pairs = Sequence[tuple[str, object]]


class Taken(str, Enum):
    """What became of a datagram."""

    NOTIFICATION = "notification"
    PROTOCOL = (  # the exchange that goes before an inform, or a message that is no notification
        "protocol"
    )
    TURNED_AWAY = "turned_away"
    MALFORMED = "malformed"


@dataclass(frozen=True)
class TrapKeys:
    """Whom to believe. v3 users are believed at these engines alone, as hex digits; informs use our
    own."""

    credentials: tuple[SnmpCredentials, ...] = ()
    engines: tuple[str, ...] = field(default=())

    @property
    def is_empty(self) -> bool:
        return not self.credentials


@dataclass(frozen=True)
class OwnEngine:
    """Our own identity towards those that send informs."""

    id: str
    boots: int

    @classmethod
    def load_from(cls, directory: Path) -> OwnEngine:
        """The same id after each start, one boot more; a new one each time where nothing can be
        written."""
        path = directory / _KEPT
        try:
            last = json.loads(path.read_text())
            own = cls(str(last["id"]), int(last["boots"]) + 1)
        except (OSError, ValueError, KeyError, TypeError):
            own = cls(_ENGINE_PREFIX + secrets.token_hex(8), 1)
        fresh = path.with_suffix(".new")
        try:
            fresh.write_text(json.dumps({"id": own.id, "boots": own.boots}))
            fresh.replace(path)
        except OSError as error:
            _log.error(
                "%s cannot be written (%s): senders of informs must learn a new engine",
                path,
                error.strerror,
            )
        return own


class _Wire(AbstractTransportDispatcher):  # type: ignore[misc]
    """Where the engine's answers go: the socket that the datagram came by."""

    def __init__(self, send: Callable[[bytes, tuple[str, int]], None]) -> None:
        super().__init__()
        self._send = send

    def send_message(
        self, outgoingMessage: bytes, transportDomain: object, transportAddress: Any
    ) -> None:
        self._send(bytes(outgoingMessage), (str(transportAddress[0]), int(transportAddress[1])))


class TrapEngine:
    """`take` one datagram; `send` gets the answers to informs."""

    def __init__(
        self, own: OwnEngine, keys: TrapKeys, send: Callable[[bytes, tuple[str, int]], None]
    ) -> None:
        self._wire = _Wire(send)
        self._engine = SnmpEngine()
        self._set_identity(own)
        self._engine.register_transport_dispatcher(self._wire)
        self._engines = {engine.lower().removeprefix("0x") for engine in keys.engines}
        self._own = own.id
        self._set_believed(keys)
        self._taken: Pairs | None = None
        self._speaker = ""
        self._is_stranger = False
        self._engine.observer.register_observer(self._note_engine, "rfc3414.processIncomingMsg")
        ntfrcv.NotificationReceiver(self._engine, self._take_notification)
        self._stats = [self._get_symbol(*name) for name in _TURNED_AWAY]
        self._unreadable = self._get_symbol("__SNMPv2-MIB", "snmpInASNParseErrs")

    def take(self, datagram: bytes, address: tuple[str, int]) -> tuple[Taken, Pairs]:
        """What it is, and the variables of a notification as (dotted OID, int, bytes or dotted
        OID)."""
        self._taken, self._speaker, self._is_stranger = None, "", False
        turned_away, unreadable = self._count_turned_away(), int(self._unreadable.syntax)
        kind = udp6 if ":" in address[0] else udp
        transport = kind.Udp6TransportAddress if kind is udp6 else kind.UdpTransportAddress
        try:
            self._engine.message_dispatcher.receive_message(
                self._engine, kind.DOMAIN_NAME, transport(address), datagram
            )
        except (
            PySnmpError,
            PyAsn1Error,
            ValueError,
            TypeError,
            IndexError,
            KeyError,
            AttributeError,
        ) as error:
            # Bytes that are nearly a message break its decoder in many ways; they are all the
            # sender's fault.
            _log.debug("a datagram of %s could not be read: %r", address[0], error)
            return Taken.MALFORMED, ()
        if self._taken is not None:
            return Taken.NOTIFICATION, self._taken
        if self._is_stranger or self._count_turned_away() > turned_away:
            return Taken.TURNED_AWAY, ()
        return (
            Taken.MALFORMED if int(self._unreadable.syntax) > unreadable else Taken.PROTOCOL
        ), ()

    def forget_unfinished_exchanges(self) -> None:
        """Forgets exchanges that were not finished. Call it about once a second."""
        self._wire.handle_timer_tick(time.time())

    def close(self) -> None:
        self._engine.close_dispatcher()

    def _set_identity(self, own: OwnEngine) -> None:
        """As the constructor does for an id of its own, which it would keep in the temporary
        directory."""
        engine_id = self._get_symbol("__SNMP-FRAMEWORK-MIB", "snmpEngineID")
        engine_id.syntax = engine_id.syntax.clone(OctetString(hexValue=own.id))
        self._engine.snmpEngineID = engine_id.syntax
        boots = self._get_symbol("__SNMP-FRAMEWORK-MIB", "snmpEngineBoots")
        boots.syntax = boots.syntax.clone(own.boots)

    def _set_believed(self, keys: TrapKeys) -> None:
        for number, known in enumerate(keys.credentials):
            if known.version is SnmpVersion.V2C:
                config.add_v1_system(self._engine, f"community-{number}", known.community)
                continue
            auth, priv = _AUTH[known.auth_protocol], _PRIV[known.priv_protocol]
            for engine in ("", *sorted(self._engines)):
                engine_id = OctetString(hexValue=engine) if engine else None
                config.add_v3_user(
                    self._engine,
                    known.user,
                    auth,
                    known.auth_key or None,
                    priv,
                    known.priv_key or None,
                    securityEngineId=engine_id,
                )

    def _note_engine(self, engine: SnmpEngine, point: str, seen: Any, extra: object) -> None:
        """The engine whose keys a v3 message was proved with: the sender's for a trap, our own for
        an inform."""
        self._speaker = bytes(seen["securityEngineId"]).hex()

    def _take_notification(
        self,
        engine: SnmpEngine,
        reference: object,
        context_engine: Any,
        context: object,
        pairs: Any,
        extra: object,
    ) -> None:
        if self._speaker not in {"", self._own, *self._engines}:
            self._is_stranger = (
                True  # pysnmp takes a user that it knows at one engine for known at all
            )
            return
        self._taken = [(str(oid), _get_plain_value(value)) for oid, value in pairs]

    def _get_symbol(self, module: str, name: str) -> Any:
        (found,) = self._engine.get_mib_builder().import_symbols(module, name)
        return found

    def _count_turned_away(self) -> int:
        return sum(int(each.syntax) for each in self._stats)


def _get_plain_value(value: Any) -> object:
    """An integer, bytes, or dotted text of an OID or address."""
    if isinstance(value, OctetString):
        return bytes(value)
    try:
        return int(value)
    except (TypeError, ValueError, PyAsn1Error):
        return value.prettyPrint()
