"""SNMP over UDP with pysnmp: v2c by its slim architecture, v3 (SHA and AES) by one engine for each
set of credentials.

One event loop in a thread of its own serves callers of any thread, so many switches are walked at
once. Whole columns come together in each GETBULK, as raw OIDs without a MIB; rows, time and retries
are bounded. No error tells a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent import futures
from typing import Any, TypeVar

from pysnmp.entity.engine import SnmpEngine
from pysnmp.entity.rfc3413 import cmdgen
from pysnmp.error import PySnmpError
from pysnmp.hlapi.v1arch import asyncio as v1arch
from pysnmp.hlapi.v3arch import asyncio as v3arch
from pysnmp.hlapi.v3arch.asyncio.lcd import CommandGeneratorLcdConfigurator
from pysnmp.proto import rfc1902

from detectors.detector import DetectorError, SnmpValue, Target, Unreachable
from detectors.transports import error_text
from detectors.transports.snmp_credentials import (
    AuthProtocol,
    Credentials,
    PrivProtocol,
    SnmpCredentials,
    SnmpLimits,
    SnmpVersion,
    describe_access_check,
    describe_address,
)
from detectors.transports.snmp_walk import (
    Bound,
    Oid,
    Session,
    SnmpRefused,
    SnmpTimeout,
    Walk,
    format_oid,
    parse_oid,
    to_plain,
)

__all__ = [
    "AuthProtocol",
    "PrivProtocol",
    "SnmpCredentials",
    "SnmpLimits",
    "SnmpTransport",
    "SnmpVersion",
]

_log = logging.getLogger(__name__)
_TOO_BIG = 1
T = TypeVar("T")


class SnmpTransport:
    """detectors.detector.Snmp. `credentials` names those of a target, or raises DetectorError where
    it has none."""

    def __init__(self, credentials: Credentials, limits: SnmpLimits | None = None) -> None:
        self._credentials = credentials
        self._limits = limits or SnmpLimits()
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        self._rows: dict[tuple[str, tuple[str, ...]], int] = {}

    def get(self, target: Target, oids: Sequence[str]) -> dict[str, SnmpValue]:
        """None where the agent has no such object. Raises Unreachable and DetectorError."""
        return self._run(target, lambda session: self._get(session, oids))

    def walk(self, target: Target, columns: Sequence[str]) -> dict[str, SnmpValue]:
        """Raises Unreachable when nothing answers at all, DetectorError past a limit or when it
        stops halfway."""
        key = (target.name, tuple(columns))

        async def walk(session: Session) -> dict[str, SnmpValue]:
            whole = Walk(session, columns, self._limits, rows=self._rows.get(key))
            found = await whole.run()
            self._rows[key] = whole.rows
            return found

        return self._run(target, walk)

    def close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    async def _get(self, session: Session, oids: Sequence[str]) -> dict[str, SnmpValue]:
        found: dict[str, SnmpValue] = dict.fromkeys(oids)
        size = self._limits.objects_per_answer
        for start in range(0, len(oids), size):
            for oid, value in await session.get(
                [parse_oid(oid) for oid in oids[start : start + size]]
            ):
                found[format_oid(oid)] = to_plain(value)
        return found

    def _run(self, target: Target, ask: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        credentials = self._credentials(target)
        place = describe_address(target, credentials)

        async def run(loop: _Loop) -> T:
            return await ask(await loop.session(target.address, credentials, self._limits))

        try:
            return self._get_started().call(run, self._limits.walk_s + 5)
        except SnmpTimeout:
            tries = self._limits.retries + 1
            raise Unreachable(
                f"{place}: no answer in {tries} tries of {self._limits.timeout_s:g} s. Check that"
                f" the switch is up, its address and port, {describe_access_check(credentials)}"
            ) from None
        except SnmpRefused as error:
            raise Unreachable(f"{place}: {error}. Check {error.hint}") from None
        except futures.TimeoutError:
            raise DetectorError(f"{place}: not done within {self._limits.walk_s:g} s") from None
        except (PySnmpError, OSError) as error:
            raise Unreachable(
                f"{place}: {error_text.format_reason(error)}; check its address"
            ) from None
        except DetectorError as error:
            raise DetectorError(f"{place}: {error}") from None

    def _get_started(self) -> _Loop:
        """A loop does not outlive a fork: a child starts its own."""
        with self._lock:
            if self._loop is None or self._loop.pid != os.getpid():
                self._loop = _Loop()
            return self._loop


class _Loop:
    """An event loop in a daemon thread, with what must live in it: one dispatcher for v2c, engines
    for v3."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_note)
        self._dispatcher: Any = None
        self._engines: dict[SnmpCredentials, Any] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="snmp", daemon=True)
        self._thread.start()

    def call(self, ask: Callable[[_Loop], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """Raises futures.TimeoutError, and what `ask` raises."""
        waiting = asyncio.run_coroutine_threadsafe(ask(self), self._loop)
        try:
            return waiting.result(timeout_s)
        finally:
            waiting.cancel()

    async def session(
        self, address: str, credentials: SnmpCredentials, limits: SnmpLimits
    ) -> Session:
        if credentials.version is SnmpVersion.V2C:
            if self._dispatcher is None:
                self._dispatcher = v1arch.SnmpDispatcher()
            kind: Any = v1arch.Udp6TransportTarget if ":" in address else v1arch.UdpTransportTarget
            target = await kind.create(
                (address, credentials.port), limits.timeout_s, limits.retries
            )
            community = v1arch.CommunityData(credentials.community, mpModel=1)  # noqa: S508 - what the switch speaks
            return _SlimSession(self._dispatcher, community, target)
        if credentials not in self._engines:
            self._engines[credentials] = SnmpEngine()
        kind = v3arch.Udp6TransportTarget if ":" in address else v3arch.UdpTransportTarget
        target = await kind.create((address, credentials.port), limits.timeout_s, limits.retries)
        return _EngineSession(
            self._engines[credentials], build_user_data(credentials), target, credentials.context
        )

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        with contextlib.suppress(futures.TimeoutError):
            self.call(_Loop._shut, 5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()

    async def _shut(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.close()
        for engine in self._engines.values():
            engine.close_dispatcher()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An answer that is no SNMP breaks its decoder; the request then runs into its time limit, as
    if unanswered."""
    _log.debug("SNMP: %s", type(context.get("exception")).__name__)


_NULL = rfc1902.Null("")


def _make_bindings(oids: Sequence[Oid]) -> list[tuple[Any, Any]]:
    return [(rfc1902.ObjectName(oid), _NULL) for oid in oids]


class _SlimSession:
    """v2c: pysnmp's v1arch, without an engine."""

    def __init__(self, dispatcher: Any, community: Any, target: Any) -> None:
        self._how = (dispatcher, community, target)

    async def get(self, oids: Sequence[Oid]) -> list[Bound]:
        return _bound(await v1arch.get_cmd(*self._how, *_make_bindings(oids), lookupMib=False))

    async def bulk(self, after: Sequence[Oid], repetitions: int) -> list[Bound]:
        return _bound(
            await v1arch.bulk_cmd(
                *self._how, 0, repetitions, *_make_bindings(after), lookupMib=False
            )
        )


_lcd = CommandGeneratorLcdConfigurator()


class _EngineSession:
    """v3: the engine's own command generators, past the layer that would look every OID up in a
    MIB."""

    def __init__(self, engine: Any, user: Any, target: Any, context: str) -> None:
        self._engine, self._context = engine, context.encode()
        self._address, _ = _lcd.configure(engine, user, target, self._context)

    async def get(self, oids: Sequence[Oid]) -> list[Bound]:
        return await self._send(cmdgen.GetCommandGenerator(), (), oids)

    async def bulk(self, after: Sequence[Oid], repetitions: int) -> list[Bound]:
        return await self._send(cmdgen.BulkCommandGenerator(), (0, repetitions), after)

    async def _send(
        self, generator: Any, sizes: tuple[int, ...], oids: Sequence[Oid]
    ) -> list[Bound]:
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(_engine: Any, _handle: Any, *answer: Any) -> None:
            if not waiting.done():
                waiting.set_result(answer[:4])

        generator.send_varbinds(
            self._engine,
            self._address,
            None,
            self._context,
            *sizes,
            _make_bindings(oids),
            answered,
            None,
        )
        return _bound(await waiting)


_AUTH = {
    AuthProtocol.NONE: v3arch.USM_AUTH_NONE,
    AuthProtocol.SHA: v3arch.USM_AUTH_HMAC96_SHA,
    AuthProtocol.SHA224: v3arch.USM_AUTH_HMAC128_SHA224,
    AuthProtocol.SHA256: v3arch.USM_AUTH_HMAC192_SHA256,
    AuthProtocol.SHA384: v3arch.USM_AUTH_HMAC256_SHA384,
    AuthProtocol.SHA512: v3arch.USM_AUTH_HMAC384_SHA512,
}
_PRIV = {
    PrivProtocol.NONE: v3arch.USM_PRIV_NONE,
    PrivProtocol.AES128: v3arch.USM_PRIV_CFB128_AES,
    PrivProtocol.AES192: v3arch.USM_PRIV_CFB192_AES_BLUMENTHAL,
    PrivProtocol.AES256: v3arch.USM_PRIV_CFB256_AES_BLUMENTHAL,
}


def build_user_data(credentials: SnmpCredentials) -> Any:
    """pysnmp's form of a v3 user."""
    has_auth = credentials.auth_protocol is not AuthProtocol.NONE
    has_priv = credentials.priv_protocol is not PrivProtocol.NONE
    auth, priv = _AUTH[credentials.auth_protocol], _PRIV[credentials.priv_protocol]
    return v3arch.UsmUserData(
        credentials.user,
        credentials.auth_key if has_auth else None,
        credentials.priv_key if has_priv else None,
        authProtocol=auth,
        privProtocol=priv,
    )


# pysnmp's error indications by name, and what a person should look at.
_HINTS = {
    "UnknownUserName": "the user's name on the switch",
    "WrongDigest": "the authentication key and protocol of the user",
    "AuthenticationFailure": "the authentication key and protocol of the user",
    "AuthenticationError": "the authentication key and protocol of the user",
    "DecryptionError": "the privacy key and protocol of the user",
    "UnsupportedSecurityLevel": "whether the switch gives this user authentication and privacy",
    "UnsupportedAuthProtocol": "the authentication protocol of the user",
    "UnsupportedPrivProtocol": "the privacy protocol of the user",
    "NotInTimeWindow": "the clock of the switch's SNMP engine (snmpEngineBoots, snmpEngineTime)",
    "UnknownContext": "the context",
}


def _bound(answer: Sequence[Any]) -> list[Bound]:
    """The bindings of an answer. Raises SnmpTimeout or Refused."""
    indication, status, _, bindings = answer
    if indication:
        name = type(indication).__name__
        if name == "RequestTimedOut":
            raise SnmpTimeout
        raise SnmpRefused(
            str(indication),
            _HINTS.get(name, "the version and credentials that the switch is set up for"),
        )
    if int(status) == _TOO_BIG:
        raise SnmpRefused("tooBig", "the largest message that the agent sends")
    if int(status):
        raise SnmpRefused(
            status.prettyPrint(),
            "that the view and the security level of the community or user allow what is asked for",
        )
    return [(oid.asTuple(), value) for oid, value in bindings]
