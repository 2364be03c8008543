"""What one sender says costs the others nothing: made-up machines, many faults, much text."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from detectors.catalog import catalog
from detectors.faults import EventKind, FaultEvent
from detectors.logs.signatures import Matcher
from detectors.provenance import Provenance, Transport
from detectors.receivers.counters import Counters
from detectors.receivers.datagrams import Datagrams
from detectors.receivers.folding import Folder
from detectors.receivers.intake import Intake, Sender, Zones
from detectors.receivers.refusals import EVENTS, NAMES, Quotas

_AT = datetime(2026, 11, 23, 8, tzinfo=UTC)
_KNOWN = frozenset({"gn001", "gn002"})
_ROW = catalog.load()["gpu.lost"]
_EVENT = FaultEvent(
    event_id="",
    fault_type=_ROW.id,
    event=EventKind.RAISED,
    resource="node/gn001",
    source="syslog",
    occurred_at=_AT,
    observed_at=_AT,
    severity=_ROW.severity,
    action=_ROW.action,
    component=_ROW.component,
)


def told(host: str, sender: str = "10.66.6.6") -> FaultEvent:
    provenance = Provenance(sender, Transport.UDP, is_relay=True)
    return replace(_EVENT, resource=f"node/{host}", provenance=provenance)


def refusals(events: list[FaultEvent], *, now: float = 0.0, is_limited: bool = True) -> list[str]:
    quotas = Quotas()
    return [quotas.find_refusal(event, _KNOWN, is_limited=is_limited, now=now) for event in events]


def test_three_thousand_made_up_hosts_are_twenty_machines() -> None:
    found = refusals([told(f"forged{number}") for number in range(3000)], is_limited=False)
    assert (found.count(""), found.count(NAMES)) == (20, 2980)


def test_all_senders_together_make_up_a_hundred_machines() -> None:
    events = [told(f"forged{n}", f"10.66.0.{n % 200}") for n in range(3000)]
    assert refusals(events, is_limited=False).count("") == 100


def test_machines_of_the_inventory_are_heard_whatever_was_made_up() -> None:
    events = [told(f"forged{number}") for number in range(200)]
    assert refusals([*events, told("gn001"), told("gn002", "10.0.0.9")])[-2:] == ["", ""]


def test_a_name_that_was_taken_is_taken_again() -> None:
    events = [told(f"forged{number}") for number in range(30)]
    found = refusals([*events, told("forged3"), told("forged25")])
    assert found[-2:] == ["", NAMES]


def test_a_flood_of_one_sender_leaves_anothers_faults() -> None:
    flood = [told("gn001") for _ in range(5000)]
    found = refusals([*flood, told("gn002", "10.0.0.2")])
    assert (found.count(EVENTS), found[-1]) == (4000, "")


def test_a_listed_relay_has_no_quota_of_faults() -> None:
    assert set(refusals([told("gn001") for _ in range(5000)], is_limited=False)) == {""}


def test_a_sender_that_was_quiet_is_heard_again() -> None:
    quotas = Quotas()
    for _ in range(1500):
        quotas.find_refusal(told("gn001"), _KNOWN, is_limited=True, now=0.0)
    again = quotas.find_refusal(told("gn001"), _KNOWN, is_limited=True, now=1.0)
    assert again == ""


def test_each_sender_of_datagrams_has_its_turn() -> None:
    taken: list[dict[str, bytes]] = []
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
    receiver.bind(("127.0.0.1", 0))
    receiver.setblocking(False)
    address = receiver.getsockname()
    datagrams = Datagrams(address, Counters(), taken.append, passed=receiver)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as loud,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as quiet,
    ):
        loud.bind(("127.0.0.2", 0))
        quiet.bind(("127.0.0.3", 0))
        for _ in range(20):
            loud.sendto(b"x" * 60_000, address)
        quiet.sendto(b"the one that counts", address)
        datagrams.drain_and_close(is_held_back=False)
    first = taken[0]
    assert first["127.0.0.3"] == b"the one that counts"
    assert len(first["127.0.0.2"]) < 200_000
    assert sum(turn.get("127.0.0.2", b"").count(b"x") for turn in taken) == 20 * 60_000


@pytest.mark.parametrize(
    "words",
    ["grep ", "sudo: ", "a", " ", "NVRM: Xid (PCI:0000:19:00): 79, ", "EDAC MC0: ", "(a(", "[x] "],
)
def test_a_megabyte_of_text_holds_a_receiver_for_less_than_a_tenth_of_a_second(words: str) -> None:
    intake = Intake(Matcher(catalog.load()), zones=Zones(), counters=Counters(), folder=Folder())
    sender = Sender("10.66.6.6", provenance=Provenance("10.66.6.6", Transport.UDP, is_relay=True))
    start = b"<3>1 - gn042 kernel - - - NVRM: Xid (PCI:0000:19:00): 79, "
    line = start + words.encode() * ((65_000 - len(start)) // len(words))
    intake.take(line, sender, observed_at=_AT, now=0.0)
    began = time.thread_time()
    for number in range(15):
        intake.take(b"%b%d" % (line, number), sender, observed_at=_AT, now=1.0)
    assert time.thread_time() - began < 0.1
