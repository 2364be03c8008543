"""Who could have forged an event, and how that travels."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors import faults, provenance
from detectors.faults import Action, Component, EventKind, FaultEvent, Severity
from detectors.provenance import UNKNOWN, Forger, Provenance, Transport, of_line
from detectors.registry import DETECTORS

_AT = datetime(2026, 1, 12, 3, 4, 5, tzinfo=UTC)
_EVENT = FaultEvent(
    event_id="e1",
    fault_type="gpu.xid.79",
    event=EventKind.RAISED,
    resource="node/gn042",
    source="syslog",
    occurred_at=_AT,
    observed_at=_AT,
    severity=Severity.CRITICAL,
    action=Action.REBOOT,
    component=Component.GPU,
)
_OVER_SSH = Provenance("gn042", Transport.SSH, "its SSH host key", forger=Forger.ROOT)
_PROVENANCES = st.builds(
    Provenance,
    sender=st.text(max_size=20),
    transport=st.sampled_from(Transport),
    authenticated_as=st.text(max_size=20),
    is_relay=st.booleans(),
    program=st.text(max_size=20),
    facility=st.none() | st.integers(0, 23),
    severity=st.none() | st.integers(0, 7),
    forger=st.sampled_from(Forger),
)


def test_forgers_are_in_the_order_of_what_it_takes() -> None:
    assert sorted(Forger, key=lambda one: one.rank) == [
        Forger.ANYONE,
        Forger.USER,
        Forger.ROOT,
        Forger.NOBODY,
    ]


@given(_PROVENANCES)
def test_an_event_brings_its_provenance_home(told_by: Provenance) -> None:
    event = replace(_EVENT, provenance=told_by)
    assert faults.from_wire(faults.to_wire(event)) == event


def test_an_event_of_an_earlier_version_is_believed_least() -> None:
    wire = faults.to_wire(_EVENT)
    del wire["provenance"]
    assert faults.from_wire(wire).provenance == UNKNOWN
    assert UNKNOWN.forger is Forger.ANYONE


def test_an_event_with_a_provenance_that_is_none_is_refused() -> None:
    wire = {**faults.to_wire(_EVENT), "provenance": {"forger": "me"}}
    with pytest.raises(ValueError, match="me"):
        faults.from_wire(wire)


@pytest.mark.parametrize(
    ("program", "is_of_driver", "forger"),
    [
        ("kernel", True, Forger.ROOT),
        ("kernel", False, Forger.USER),
        ("sshd", True, Forger.USER),
        ("", True, Forger.USER),
    ],
)
def test_text_is_worth_what_any_user_may_write_unless_the_kernels_driver_begins_it(
    program: str, is_of_driver: bool, forger: Forger
) -> None:
    told = of_line(_OVER_SSH, program=program, is_of_driver=is_of_driver)
    assert told.forger is forger


@given(_PROVENANCES)
def test_a_line_is_never_worth_more_than_its_sender(sender: Provenance) -> None:
    told = of_line(sender, program="kernel", facility=0, is_of_driver=True)
    assert told.forger.rank <= sender.forger.rank


def test_each_detector_says_who_could_deceive_it() -> None:
    deceived = {each.name: each.forger for each in DETECTORS}
    assert deceived["gpu"] is Forger.ROOT
    assert deceived["slurm_nodes"] is Forger.NOBODY
    by_users = {name for name, forger in deceived.items() if forger.rank < Forger.ROOT.rank}
    assert by_users <= {"slurm_jobs", "job_stalled", "snmptrap"}


@given(_PROVENANCES)
def test_a_provenance_is_told_on_one_line(told_by: Provenance) -> None:
    printable = replace(told_by, sender="10.0.0.9", program="sshd", authenticated_as="")
    assert len(provenance.describe(printable).splitlines()) == 1


def test_a_provenance_is_told_in_words() -> None:
    told_by = Provenance("10.0.0.9", Transport.UDP, "", True, "sshd", 10, 6)
    assert provenance.describe(told_by) == (
        "syslog over UDP from 10.0.0.9, a relay, sshd (authpriv):"
        " anyone on the network could have written it"
    )
