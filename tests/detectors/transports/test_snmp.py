"""The SNMP transport: against agents of ours that misbehave, and against net-snmp's own agent."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyasn1.codec.ber import decoder, encoder
from pysnmp.proto.api import v2c

from detectors.detector import DetectorError, Snmp, SnmpValue, Target, TargetKind, Unreachable
from detectors.transports.snmp import SnmpTransport
from detectors.transports.snmp_credentials import (
    AuthProtocol,
    PrivProtocol,
    SnmpCredentials,
    SnmpLimits,
    SnmpVersion,
)
from detectors.transports.snmp_fast import FastSnmpTransport, choose
from detectors.transports.snmp_walk import Walk, format_oid, parse_oid
from tests.services import snmpd
from tests.services.patience import patient
from tests.services.snmpd import Snmpd

SECRETS = ("s3cret-community", "wrong-auth-key", "wrong-priv-key", snmpd.AUTH_KEY, snmpd.PRIV_KEY)
TARGET = Target("leaf-01", "127.0.0.1", kind=TargetKind.SWITCH)
# Where an answer comes, and however long a busy machine takes for it.
ANSWERED = SnmpLimits(timeout_s=patient(1), retries=1, walk_s=patient(5))
# Where none comes.
QUICK = SnmpLimits(timeout_s=0.3, retries=1, walk_s=5)
NAMES, STATES = "1.3.6.1.2.1.2.2.1.2", "1.3.6.1.2.1.2.2.1.8"
V3 = SnmpCredentials(
    version=SnmpVersion.V3,
    user=snmpd.USER,
    auth_protocol=AuthProtocol.SHA256,
    auth_key=snmpd.AUTH_KEY,
    priv_protocol=PrivProtocol.AES128,
    priv_key=snmpd.PRIV_KEY,
)
TRANSPORTS: dict[str, Callable[..., Any]] = {"pysnmp": SnmpTransport, "fast": FastSnmpTransport}
each_transport = pytest.mark.parametrize("make", TRANSPORTS.values(), ids=TRANSPORTS)

Rows = dict[str, Any]
Answer = Callable[[bytes], list[bytes]]


class Agent:
    """A UDP socket that answers each datagram with what `answer` makes of it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.05)
        self.port = int(self._socket.getsockname()[1])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                datagram, sender = self._socket.recvfrom(65535)
                self.asked += 1
                for reply in self._answer(datagram):
                    self._socket.sendto(reply, sender)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._socket.close()


def holding(table: Rows, *, at_most: int = 10_000) -> Answer:
    """An agent that answers GET and GETBULK from a table, with at most so many objects in one
    answer."""
    order = sorted(parse_oid(oid) for oid in table)

    def after(oid: str) -> str | None:
        place = bisect.bisect_right(order, parse_oid(oid))
        return format_oid(order[place]) if place < len(order) else None

    def answer(datagram: bytes) -> list[bytes]:
        message, _ = decoder.decode(datagram, asn1Spec=v2c.Message())
        request = v2c.apiMessage.get_pdu(message)
        asked = [format_oid(oid.asTuple()) for oid, _ in v2c.apiPDU.get_varbinds(request)]
        found: list[tuple[str, Any]] = []
        if isinstance(request, v2c.GetBulkRequestPDU):
            for _ in range(int(v2c.apiBulkPDU.get_max_repetitions(request))):
                for place, oid in enumerate(asked):
                    following = after(oid)
                    found.append(
                        (following or oid, table[following] if following else v2c.EndOfMibView())
                    )
                    asked[place] = following or oid
        else:
            found = [(oid, table.get(oid, v2c.NoSuchObject())) for oid in asked]
        return [_reply(message, request, found[:at_most])]

    return answer


def _reply(
    message: Any, request: Any, found: Sequence[tuple[str, Any]], *, status: int = 0
) -> bytes:
    response = v2c.GetResponsePDU()
    v2c.apiPDU.set_defaults(response)
    v2c.apiPDU.set_request_id(response, v2c.apiPDU.get_request_id(request))
    v2c.apiPDU.set_error_status(response, status)
    v2c.apiPDU.set_varbinds(response, [(v2c.ObjectIdentifier(oid), value) for oid, value in found])
    v2c.apiMessage.set_pdu(message, response)
    return bytes(encoder.encode(message))


TABLE: Rows = {
    "1.3.6.1.2.1.1.1.0": v2c.OctetString("SONiC"),
    "1.3.6.1.2.1.1.3.0": v2c.TimeTicks(4200),
    **{f"{NAMES}.{row}": v2c.OctetString(f"Ethernet{row}") for row in range(1, 41)},
    **{f"{STATES}.{row}": v2c.Integer32(1) for row in range(1, 31)},
    "1.3.6.1.2.1.31.1.1.1.6.1": v2c.Counter64(2**63 + 5),
    "1.3.6.1.2.1.47.1.1.1.1.13.1": v2c.OctetString(hexValue="00ff80"),
}


@contextlib.contextmanager
def asking(
    make: Callable[..., Any], answer: Answer, limits: SnmpLimits = ANSWERED
) -> Iterator[tuple[Snmp, Agent]]:
    agent = Agent(answer)
    credentials = SnmpCredentials(community="s3cret-community", port=agent.port)
    transport = make(lambda target: credentials, limits)
    try:
        yield transport, agent
    finally:
        transport.close()
        agent.close()


@each_transport
def test_values_come_as_numbers_bytes_and_nothing(make: Callable[..., Any]) -> None:
    asked = [
        "1.3.6.1.2.1.1.3.0",
        "1.3.6.1.2.1.31.1.1.1.6.1",
        "1.3.6.1.2.1.47.1.1.1.1.13.1",
        "1.3.6.1.2.1.1.9.0",
    ]
    with asking(make, holding(TABLE)) as (snmp, _):
        assert list(snmp.get(TARGET, asked).items()) == list(
            zip(asked, [4200, 2**63 + 5, b"\x00\xff\x80", None], strict=True)
        )


@each_transport
@pytest.mark.parametrize(
    "at_most", [10_000, 7, 1], ids=["whole answers", "answers cut in a row", "one by one"]
)
def test_a_walk_brings_each_column_whole_and_nothing_else(
    make: Callable[..., Any], at_most: int
) -> None:
    with asking(make, holding(TABLE, at_most=at_most)) as (snmp, _):
        found = snmp.walk(TARGET, [NAMES, STATES])
    assert set(found) == {oid for oid in TABLE if oid.startswith((f"{NAMES}.", f"{STATES}."))}
    assert found[f"{NAMES}.40"] == b"Ethernet40"
    assert found[f"{STATES}.30"] == 1


@each_transport
def test_a_table_that_is_not_there_is_empty(make: Callable[..., Any]) -> None:
    with asking(make, holding(TABLE)) as (snmp, _):
        assert snmp.walk(TARGET, ["1.3.6.1.2.1.99.1.1.1.4"]) == {}


def test_a_second_walk_of_a_table_asks_for_little_past_its_end() -> None:
    with asking(SnmpTransport, holding(TABLE)) as (snmp, agent):
        snmp.walk(TARGET, [NAMES])
        first = agent.asked
        snmp.walk(TARGET, [NAMES])
        assert agent.asked - first <= first == 1


@each_transport
def test_an_agent_that_never_answers_is_unreachable_with_a_hint_and_without_secrets(
    make: Callable[..., Any],
) -> None:
    with (
        asking(make, lambda datagram: [], QUICK) as (snmp, agent),
        pytest.raises(Unreachable) as caught,
    ):
        snmp.get(TARGET, ["1.3.6.1.2.1.1.3.0"])
    assert agent.asked == 2
    assert "leaf-01" in str(caught.value)
    assert "community" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in SECRETS)


@each_transport
def test_an_agent_that_answers_the_second_try_is_reached(make: Callable[..., Any]) -> None:
    lost = iter([True])

    def answer(datagram: bytes) -> list[bytes]:
        return [] if next(lost, False) else holding(TABLE)(datagram)

    with asking(make, answer, replace(QUICK, retries=30)) as (snmp, _):
        assert snmp.get(TARGET, ["1.3.6.1.2.1.1.3.0"]) == {"1.3.6.1.2.1.1.3.0": 4200}


@each_transport
def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(
    make: Callable[..., Any],
) -> None:
    kept: list[bytes] = []

    def late(datagram: bytes) -> list[bytes]:
        kept.extend(holding(TABLE)(datagram))
        return [kept.pop(0)] if len(kept) > 2 else []

    with asking(make, late, QUICK) as (snmp, _):
        with pytest.raises(Unreachable):
            snmp.get(TARGET, ["1.3.6.1.2.1.1.1.0"])
        with contextlib.suppress(Unreachable, DetectorError):
            assert snmp.get(TARGET, ["1.3.6.1.2.1.1.3.0"])["1.3.6.1.2.1.1.3.0"] in (4200, None)


@each_transport
@pytest.mark.parametrize("cut", [1, 9, 30, 60])
def test_a_truncated_answer_is_as_good_as_none(make: Callable[..., Any], cut: int) -> None:
    def answer(datagram: bytes) -> list[bytes]:
        return [holding(TABLE)(datagram)[0][:cut]]

    with asking(make, answer, QUICK) as (snmp, _), pytest.raises(DetectorError, match="leaf-01"):
        snmp.walk(TARGET, [NAMES])


@each_transport
def test_garbage_is_as_good_as_no_answer(make: Callable[..., Any]) -> None:
    def answer(datagram: bytes) -> list[bytes]:
        return [b"\xff" * 40, b"", b"0"]

    with asking(make, answer, QUICK) as (snmp, _), pytest.raises(DetectorError, match="leaf-01"):
        snmp.get(TARGET, ["1.3.6.1.2.1.1.3.0"])


@each_transport
def test_an_agent_that_stops_halfway_is_an_error_of_the_look(make: Callable[..., Any]) -> None:
    asked = iter(range(100))
    answer = holding(TABLE, at_most=10)

    def stopping(datagram: bytes) -> list[bytes]:
        return answer(datagram) if next(asked) < 2 else []

    with (
        asking(make, stopping, replace(ANSWERED, timeout_s=1.0)) as (snmp, _),
        pytest.raises(DetectorError, match="stopped answering after"),
    ):
        snmp.walk(TARGET, [NAMES])


@each_transport
def test_a_walk_without_end_is_given_up(make: Callable[..., Any]) -> None:
    def endless(datagram: bytes) -> list[bytes]:
        message, _ = decoder.decode(datagram, asn1Spec=v2c.Message())
        request = v2c.apiMessage.get_pdu(message)
        last = v2c.apiPDU.get_varbinds(request)[0][0].asTuple()
        row = last[-1] if len(last) > len(parse_oid(NAMES)) else 0
        found = [(f"{NAMES}.{row + step}", v2c.Integer32(step)) for step in range(1, 51)]
        return [_reply(message, request, found)]

    with asking(make, endless, replace(ANSWERED, objects=500)) as (snmp, agent):
        with pytest.raises(DetectorError, match="more than 500 objects"):
            snmp.walk(TARGET, [NAMES])
        assert agent.asked < 20


@each_transport
def test_an_agent_that_goes_round_in_circles_is_given_up(make: Callable[..., Any]) -> None:
    def circle(datagram: bytes) -> list[bytes]:
        message, _ = decoder.decode(datagram, asn1Spec=v2c.Message())
        request = v2c.apiMessage.get_pdu(message)
        return [
            _reply(message, request, [(f"{NAMES}.{row}", v2c.Integer32(row)) for row in (1, 2, 3)])
        ]

    with asking(make, circle, replace(ANSWERED, objects=500, walk_s=2)) as (snmp, agent):
        with pytest.raises(DetectorError, match=r"went back to|more than|not done"):
            snmp.walk(TARGET, [NAMES])
        assert agent.asked < 1000


def test_an_answer_that_would_be_too_big_is_asked_for_in_smaller_pieces() -> None:
    answer = holding(TABLE)

    def small(datagram: bytes) -> list[bytes]:
        message, _ = decoder.decode(datagram, asn1Spec=v2c.Message())
        request = v2c.apiMessage.get_pdu(message)
        is_big = int(v2c.apiBulkPDU.get_max_repetitions(request)) > 10
        return [_reply(message, request, [], status=1)] if is_big else answer(datagram)

    with asking(SnmpTransport, small) as (snmp, _):
        assert len(snmp.walk(TARGET, [NAMES, STATES])) == 70


class Scripted:
    """A session that plays answers, whatever is asked."""

    def __init__(self, answers: list[list[tuple[tuple[int, ...], Any]]]) -> None:
        self.answers = answers

    async def get(self, oids: Sequence[Any]) -> list[Any]:
        return self.answers.pop(0) if self.answers else []

    async def bulk(self, after: Sequence[Any], repetitions: int) -> list[Any]:
        return await self.get(after)


_oids = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(
    lambda rest: (*parse_oid(NAMES), *rest)
)


@given(
    st.lists(st.lists(st.tuples(_oids, st.just(v2c.Integer32(1))), max_size=6), max_size=8),
    st.integers(1, 3),
)
def test_a_walk_ends_whatever_it_is_answered(
    answers: list[list[tuple[tuple[int, ...], Any]]], columns: int
) -> None:
    walk = Walk(Scripted(answers), [NAMES, STATES, "1.3.6.1.2.1.99"][:columns], QUICK)
    try:
        found = asyncio.run(walk.run())
    except DetectorError:
        return
    assert all(oid.startswith(f"{NAMES}.") for oid in found)


def test_many_switches_are_walked_at_once_by_many_threads() -> None:
    all_asked = threading.Barrier(8, timeout=patient(20))
    agents = [Agent(_after(all_asked, holding(TABLE))) for _ in range(8)]
    ports = {f"leaf-{number:02d}": agent.port for number, agent in enumerate(agents)}
    transport = SnmpTransport(
        lambda target: SnmpCredentials(community="c", port=ports[target.name])
    )

    def walk(name: str) -> dict[str, SnmpValue]:
        return transport.walk(replace(TARGET, name=name), [NAMES])

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(walk, ports))
    assert [len(each) for each in found] == [40] * 8
    transport.close()
    for agent in agents:
        agent.close()


def _after(all_asked: threading.Barrier, answer: Answer) -> Answer:
    """Answers nobody before everybody has been asked."""

    def wait(datagram: bytes) -> list[bytes]:
        if not asked.is_set():
            asked.set()
            all_asked.wait()
        return answer(datagram)

    asked = threading.Event()
    return wait


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"version": SnmpVersion.V2C}, "needs a community"),
        ({"user": ""}, "needs a user"),
        ({"auth_key": "short"}, "authentication key of SNMP user kintsugi has fewer than 8"),
        ({"priv_key": "short"}, "privacy key of SNMP user kintsugi has fewer than 8"),
        ({"auth_protocol": AuthProtocol.NONE}, "privacy without authentication"),
        ({"port": 0}, "port 0"),
    ],
)
def test_credentials_that_cannot_work_are_refused_without_telling_them(
    wrong: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        replace(V3, **wrong)
    assert "short" not in str(caught.value)


def test_credentials_do_not_print_their_secrets() -> None:
    shown = repr(V3) + repr(SnmpCredentials(community="s3cret-community"))
    assert not any(secret in shown for secret in SECRETS)


def test_the_fast_decoder_is_taken_when_it_is_asked_for_and_pysnmp_otherwise() -> None:
    assert isinstance(choose(lambda target: V3, is_fast=True), FastSnmpTransport)
    assert isinstance(choose(lambda target: V3, is_fast=False), SnmpTransport)


@pytest.fixture(scope="module")
def agent() -> Iterator[Snmpd]:
    running = Snmpd()
    try:
        yield running.start()
    finally:
        running.stop()


def _to(
    agent: Snmpd, make: Callable[..., Any], credentials: SnmpCredentials, limits: SnmpLimits
) -> Any:
    known = replace(credentials, port=agent.port)
    return make(lambda target: known, limits)


@pytest.mark.needs("snmpd")
@each_transport
@pytest.mark.parametrize(
    "credentials",
    [
        SnmpCredentials(community=snmpd.COMMUNITY),
        V3,
        replace(
            V3,
            user=snmpd.USER_AES256,
            auth_protocol=AuthProtocol.SHA512,
            priv_protocol=PrivProtocol.AES256,
        ),
    ],
    ids=["v2c", "v3 SHA-256 AES-128", "v3 SHA-512 AES-256"],
)
def test_net_snmp_is_read(
    agent: Snmpd, make: Callable[..., Any], credentials: SnmpCredentials
) -> None:
    snmp = _to(agent, make, credentials, ANSWERED)
    try:
        assert snmp.get(TARGET, ["1.3.6.1.2.1.1.5.0"]) == {"1.3.6.1.2.1.1.5.0": b"leaf-01"}
        found = snmp.walk(TARGET, [NAMES, STATES])
        assert b"lo" in found.values()
        assert len(found) % 2 == 0
    finally:
        snmp.close()


@pytest.mark.needs("snmpd")
@each_transport
@pytest.mark.parametrize(
    ("credentials", "hint"),
    [
        (SnmpCredentials(community="s3cret-community"), "community"),
        (replace(V3, auth_key="wrong-auth-key"), "authentication key"),
        (replace(V3, priv_key="wrong-priv-key"), "privacy key"),
        (replace(V3, user="nobody"), "user"),
    ],
    ids=["community", "authentication key", "privacy key", "user"],
)
def test_wrong_credentials_are_told_by_what_to_check(
    agent: Snmpd, make: Callable[..., Any], credentials: SnmpCredentials, hint: str
) -> None:
    snmp = _to(agent, make, credentials, QUICK)
    try:
        with pytest.raises(Unreachable) as caught:
            snmp.get(TARGET, ["1.3.6.1.2.1.1.5.0"])
    finally:
        snmp.close()
    assert hint in str(caught.value)
    assert not any(secret in str(caught.value) for secret in SECRETS)
