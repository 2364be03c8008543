"""Whose a drain is: the reasons as people, Slurm and Kintsugi write them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runbooks.slurm.ownership import (
    Dropped,
    Held,
    Owner,
    TakenOver,
    Written,
    evaluate_hold,
    format_reason,
    format_tag,
    get_owner,
    get_written,
    parse_incident,
)
from runbooks.slurm.protocol import NodeState

OURS = format_reason(7, "gpu.xid.79", "GPU has fallen off the bus")
# As the client of the user kintsugi read it back; OTHERS is what a run of another incident wrote.
KEPT = Written(OURS, by="kintsugi")
OTHERS = Written("kintsugi:70 gpu.xid.79: other", by="kintsugi")
SET_BY_US = "kintsugi"


def a_node(text: str, *flags: str, base: str = "IDLE", by: str = "root") -> NodeState:
    return NodeState("gn001", base, frozenset(flags), text, by, None, None, ("gpu",))


def test_no_two_installations_and_no_restored_database_write_the_same_reason() -> None:
    begun = datetime(2025, 1, 15, 3, tzinfo=UTC)
    tags = {
        format_tag("1a2b3c4d", 1, begun),
        format_tag("5e6f7a8b", 1, begun),
        format_tag("1a2b3c4d", 2, begun),
        format_tag("1a2b3c4d", 1, begun + timedelta(seconds=1)),
    }
    reasons = {format_reason(7, "gpu.xid.79", "x", tag=tag) for tag in tags}
    assert len(reasons) == 4
    assert {parse_incident(reason) for reason in reasons} == {7}
    own, *others = sorted(reasons)
    known = [Written(own)]
    assert get_owner(a_node(own, "DRAIN"), 7, known) is Owner.THIS_INCIDENT
    for other in others:
        assert get_owner(a_node(other, "DRAIN"), 7, known) is Owner.PERSON


def test_reason_on_the_node_says_which_incident_and_why() -> None:
    assert OURS == "kintsugi:7 gpu.xid.79: GPU has fallen off the bus"


@pytest.mark.parametrize(
    "reason",
    [
        "Kill task failed (JobId=12 StepId=0)",
        "Job step not running (JobId=12 StepId=extern)",
        "Prolog/Epilog failure",
        "ResumeTimeout reached",
        "Job env setup error",
        "NO NETWORK ADDRESS FOUND",
        "SlurmdSpoolDir is full",
        "switch_g_job_postfini failed",
        "Bad core count",
        "Low CPUs, CoreSpec differ",
        "Failed to parse dynamic_conf nodeline",
        (
            "Reported active features (a) are not a superset of currently active changeable"
            " features (b)"
        ),
    ],
)
def test_what_slurm_of_any_version_writes_is_slurms_under_whatever_name_it_runs(
    reason: str,
) -> None:
    """src/slurmctld and src/slurmd of 22.05 to 26.05."""
    node = a_node(reason, "DRAIN", by="hpcadmin")
    assert get_owner(node, 7, slurm_user="hpcadmin") is Owner.SLURM
    assert get_owner(node, 7) is Owner.PERSON
    assert get_owner(a_node(reason, "DRAIN"), 7) is Owner.SLURM
    assert get_owner(a_node(f"{reason} - bob", "DRAIN"), 7) is not Owner.NOBODY


@pytest.mark.parametrize(
    ("node", "whose"),
    [
        (a_node("", base="IDLE"), Owner.NOBODY),
        (a_node("left over", base="ALLOCATED"), Owner.NOBODY),
        (a_node(OURS, "DRAIN"), Owner.THIS_INCIDENT),
        (a_node(f"{OURS} : reboot issued : reboot complete", "DRAIN"), Owner.THIS_INCIDENT),
        (
            a_node(f"{OURS} : Not responding", "DRAIN", "NOT_RESPONDING", base="DOWN"),
            Owner.THIS_INCIDENT,
        ),
        (a_node("kintsugi:70 gpu.xid.79: other", "DRAIN"), Owner.OTHER_INCIDENT),
        (a_node("Not responding", "NOT_RESPONDING", base="DOWN", by="slurm"), Owner.SLURM),
        (a_node("Kill task failed", "DRAIN"), Owner.SLURM),
        (
            a_node("gres/gpu count reported lower than configured (7 < 8)", "DRAIN", by="slurm"),
            Owner.SLURM,
        ),
        (a_node("Prolog error : Not responding", "DRAIN"), Owner.SLURM),
        (a_node("Kill task failed", "DRAIN", by="bob"), Owner.PERSON),
        (a_node("Kill task failed, bob swaps the tray", "DRAIN"), Owner.PERSON),
        (a_node("swapping tray | gpu=3", "DRAIN"), Owner.PERSON),
        (a_node("bob: see kintsugi:7 gpu.xid.79", "DRAIN", by="bob"), Owner.PERSON),
    ],
    ids=lambda value: value.reason if isinstance(value, NodeState) else value,
)
def test_owner_is_read_from_reason_and_who_set_it(node: NodeState, whose: Owner) -> None:
    assert get_owner(node, 7) is whose


@pytest.mark.parametrize(
    ("node", "whose"),
    [
        (a_node(OURS, "DRAIN", by=SET_BY_US), Owner.THIS_INCIDENT),
        # What Slurm appends it sets as its own user.
        (
            a_node(f"{OURS} : reboot issued : reboot complete", "DRAIN", by="slurm"),
            Owner.THIS_INCIDENT,
        ),
        (
            a_node(f"{OURS} : Not responding", "DRAIN", "NOT_RESPONDING", base="DOWN", by="slurm"),
            Owner.THIS_INCIDENT,
        ),
        (a_node(f"{OURS} -- bob: RMA ordered, KEEP OUT", "DRAIN", by=SET_BY_US), Owner.PERSON),
        (a_node(f"{OURS} : bob: RMA ordered, KEEP OUT", "DRAIN", by="bob"), Owner.PERSON),
        (a_node(f"{OURS} : reboot issued, see bob", "DRAIN", by="bob"), Owner.PERSON),
        (a_node(OURS, "DRAIN", by="bob"), Owner.PERSON),
        (a_node(OURS[:-4], "DRAIN", by=SET_BY_US), Owner.PERSON),
        (
            a_node(
                "kintsugi:7 gpu.ecc.row_remap_failure: vendor case 4711 open", "DRAIN", by=SET_BY_US
            ),
            Owner.PERSON,
        ),
        (
            a_node("kintsugi:90017 gpu.xid.79: of another installation", "DRAIN", by=SET_BY_US),
            Owner.PERSON,
        ),
        (a_node(OTHERS.reason, "DRAIN", by=SET_BY_US), Owner.OTHER_INCIDENT),
        (a_node(f"{OTHERS.reason} -- ann: do not touch", "DRAIN", by=SET_BY_US), Owner.PERSON),
        (a_node("bob: NIC dying, leave it to me", "FAIL", by="bob"), Owner.PERSON),
        (a_node(OURS, "FAIL", by=SET_BY_US), Owner.PERSON),
        (a_node("bob: NIC dying", base="FAILING", by="bob"), Owner.PERSON),
        (a_node(f"{OURS} -- bob", base="ALLOCATED", by="bob"), Owner.NOBODY),
    ],
    ids=lambda value: (
        f"{value.base} {value.reason} by {value.reason_set_by}"
        if isinstance(value, NodeState)
        else value
    ),
)
def test_a_reason_is_ours_only_as_we_wrote_it_and_as_slurm_goes_on_with_it(
    node: NodeState, whose: Owner
) -> None:
    assert get_owner(node, 7, [KEPT, OTHERS]) is whose


@given(st.text(min_size=1, max_size=60))
def test_whatever_a_person_adds_to_our_reason_makes_the_node_theirs(added: str) -> None:
    slurms = ("Not responding", "Kill task failed", "reboot issued", "reboot complete")
    assume(
        not any(word in added for word in slurms)
        and any(not sign.isspace() and sign != ":" for sign in added)
    )
    assert (
        get_owner(a_node(OURS + added, "DRAIN", by="root"), 7, [Written(OURS, by="root")])
        is Owner.PERSON
    )


def test_what_is_kept_is_what_slurm_shows() -> None:
    at = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
    node = replace(a_node(OURS, "DRAIN", by="kintsugi"), reason_changed_at=at)
    assert get_written(node) == Written(OURS, "kintsugi", at)


def test_what_slurm_has_appended_since_is_not_kept() -> None:
    at = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
    node = a_node(f"{OURS} : reboot issued : reboot complete", "DRAIN", by="slurm")
    assert get_written(replace(node, reason_changed_at=at)) == Written(OURS, "", at)


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (a_node(OURS, "DRAIN"), Held),
        (a_node(f"{OURS} : reboot issued", "DRAIN", "REBOOT_ISSUED", base="DOWN"), Held),
        (a_node(f"{OURS} : reboot timed out", base="DOWN"), Dropped),
        # A person has taken the drain away: State=UNDRAIN.
        (a_node(f"{OURS} : reboot issued", "NOT_RESPONDING", base="DOWN", by="slurm"), TakenOver),
        (a_node(f"{OURS} : reboot issued", "REBOOT_ISSUED", base="DOWN"), TakenOver),
        (a_node(OURS, "REBOOT_REQUESTED", base="DOWN"), TakenOver),
        # A resume has taken our reason away, and the node went down later.
        (a_node("reboot timed out", base="DOWN"), TakenOver),
        (a_node("Not responding", "NOT_RESPONDING", base="DOWN", by="slurm"), TakenOver),
        (a_node("", base="DOWN"), TakenOver),
        (a_node("", base="IDLE"), TakenOver),
        (a_node("", base="ALLOCATED"), TakenOver),
        (a_node("memory test by bob", "DRAIN", by="bob"), TakenOver),
        (a_node("dead, RMA 1234", base="DOWN", by="bob"), TakenOver),
        (a_node("bob: NIC dying", "FAIL", by="bob"), TakenOver),
        (a_node(f"{OURS} -- bob: KEEP OUT", "DRAIN", by="bob"), TakenOver),
        # As slurmctld 23.02 and later write it over ours.
        (
            a_node("gres/gpu count reported lower than configured (7 < 8)", "DRAIN", by="slurm"),
            Held,
        ),
    ],
    ids=lambda value: (
        f"{value.base} {value.reason}" if isinstance(value, NodeState) else value.__name__
    ),
)
def test_hold_is_kept_dropped_by_slurm_or_taken_over_by_a_person(
    node: NodeState, kind: type
) -> None:
    assert isinstance(evaluate_hold(node, get_owner(node, 7, [Written(OURS)])), kind)


def test_a_slurm_that_drops_no_drain_shows_a_node_that_a_person_resumed() -> None:
    """From 23.11 to 25.11 one without accounts keeps the reason of a resumed node, whatever becomes
    of it then: here the person has asked for a reboot."""
    for reason in (f"{OURS} : reboot issued", f"{OURS} : reboot issued : reboot timed out"):
        node = a_node(reason, "REBOOT_ISSUED", base="DOWN", by="slurm")
        whose = get_owner(node, 7, [KEPT])
        assert whose is Owner.THIS_INCIDENT
        found = evaluate_hold(node, whose, drops_drains=False)
        assert isinstance(found, TakenOver)
        assert found.is_resumed


def test_text_names_the_person_and_their_reason_when_they_take_over() -> None:
    node = a_node("memory test", "DRAIN", by="bob")
    taken = evaluate_hold(node, get_owner(node, 7, [KEPT]))
    assert isinstance(taken, TakenOver)
    assert taken.text == 'gn001 now has another reason, by bob: "memory test"'
    assert not taken.is_resumed


def test_a_node_that_a_person_set_to_fail_is_none_that_was_resumed() -> None:
    node = a_node("bob: NIC dying", "FAIL", by="bob")
    taken = evaluate_hold(node, get_owner(node, 7, [KEPT]))
    assert isinstance(taken, TakenOver)
    assert (taken.text, taken.is_resumed) == (
        'gn001 was set to FAIL by bob: "bob: NIC dying"',
        False,
    )


def test_what_a_person_adds_to_slurms_own_text_is_a_persons_whoever_set_it() -> None:
    slurms = "gres/gpu count reported lower than configured (7 < 8)"
    for by in ("root", "slurm"):
        assert get_owner(a_node(slurms, "DRAIN", by=by), 7, []) is Owner.SLURM
        added = a_node(f"{slurms} -- bob: hands inside", "DRAIN", by=by)
        assert get_owner(added, 7, []) is Owner.PERSON
