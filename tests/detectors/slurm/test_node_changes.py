"""Which states of Slurm's nodes are in service, who keeps the others, and what changes between two
looks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.slurm import drain_reasons, node_changes, output
from detectors.slurm.node_changes import SeenState
from detectors.slurm.output import NodeState

AT = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
# slurm.h of 22.05 to 26.05 (enum node_states, NODE_STATE_*) and sinfo(1), NODE STATE CODES: each
# base state, and each flag beside IDLE, as `scontrol show node` prints them. Whether jobs of users
# start there, or work there.
BASES = {
    "UNKNOWN": False,
    "DOWN": False,
    "IDLE": True,
    "ALLOCATED": True,
    "ERROR": False,
    "MIXED": True,
    "FUTURE": False,
}
FLAGS = {
    "BLOCKED": False,
    "CLOUD": True,
    "COMPLETING": True,
    "DRAIN": False,
    "DYNAMIC_FUTURE": True,
    "DYNAMIC_NORM": True,
    "EXTERNAL": True,
    "FAIL": False,
    "INVALID_REG": False,
    "MAINTENANCE": False,
    "NOT_RESPONDING": False,
    # The scheduler keeps it for one larger job: it is about to work.
    "PLANNED": True,
    "POWER_DOWN": False,
    "POWER_DRAIN": True,
    "POWER_UP": False,
    "POWERED_DOWN": False,
    "POWERING_DOWN": False,
    "POWERING_UP": False,
    "REBOOT_CANCELED": True,
    "REBOOT_ISSUED": False,
    # It takes jobs until it is idle; with ASAP it is drained besides.
    "REBOOT_REQUESTED": True,
    # A reservation of users; one in maintenance mode is MAINTENANCE.
    "RESERVED": True,
    "UNDRAIN": True,
}


def a_state(base: str = "IDLE", *flags: str, reason: str = "", by: str = "") -> NodeState:
    return NodeState("gn001", base, frozenset(flags), reason, by, AT if reason else None, AT, ())


@pytest.mark.parametrize(("base", "is_serving"), BASES.items())
def test_each_base_state_is_in_service_or_out(base: str, is_serving: bool) -> None:
    assert a_state(base).is_serving == is_serving


@pytest.mark.parametrize(("flag", "is_serving"), FLAGS.items())
def test_each_flag_is_in_service_or_out(flag: str, is_serving: bool) -> None:
    assert a_state("IDLE", flag).is_serving == is_serving


@given(base=st.sampled_from(sorted(BASES)), flags=st.sets(st.sampled_from(sorted(FLAGS))))
def test_one_word_that_is_out_outweighs_all_that_are_not(base: str, flags: set[str]) -> None:
    words = [BASES[base], *(FLAGS[flag] for flag in flags)]
    state = a_state(base, *flags)
    assert state.is_serving == all(words)
    assert bool(drain_reasons.find_holder(state)) != state.is_serving


@pytest.mark.parametrize(
    ("state", "holder"),
    [
        (a_state(), ""),
        (a_state("IDLE", reason="bob: left behind by a resume", by="bob"), ""),
        (a_state("IDLE", "DRAIN", reason="bob: tray", by="bob"), "bob"),
        (a_state("IDLE", "DRAIN", "MAINTENANCE", reason="bob: tray", by="bob"), "bob"),
        (a_state("DOWN", reason="bob: tray", by=""), "a person"),
        (a_state("IDLE", "FAIL", reason="x", by="eva"), "eva"),
        (a_state("IDLE", "DRAIN", reason="kintsugi:7/a gpu.xid.79: x", by="root"), "Kintsugi"),
        (a_state("IDLE", "DRAIN", reason="NHC: gpu", by="root"), "a health check"),
        (a_state("DOWN", "NOT_RESPONDING", reason="Not responding", by="slurm"), "Slurm itself"),
        (a_state("DOWN", "NOT_RESPONDING"), "Slurm itself"),
        (a_state("IDLE", "INVALID_REG"), "Slurm itself"),
        (a_state("FUTURE"), "Slurm itself"),
        (a_state("IDLE", "MAINTENANCE"), "a maintenance reservation"),
        (a_state("IDLE", "POWERED_DOWN"), "Slurm's power saving"),
        (a_state("IDLE", "REBOOT_ISSUED"), "a reboot"),
        (a_state("IDLE", "BLOCKED"), "a job that has its block of the topology alone"),
    ],
)
def test_who_keeps_a_node_out_is_named(state: NodeState, holder: str) -> None:
    assert drain_reasons.find_holder(state) == holder


def test_an_other_slurm_user_is_slurm_itself() -> None:
    state = a_state("IDLE", "DRAIN", reason="Kill task failed", by="hpc")
    assert drain_reasons.find_holder(state) == "hpc"
    assert drain_reasons.find_holder(state, "hpc") == "Slurm itself"


def test_times_behind_others_of_their_line_are_read() -> None:
    text = (
        "NodeName=gn001 Arch=x86_64\n"
        "   State=IDLE+DRAIN ThreadsPerCore=1\n"
        "   Gres=gpu:h100:8\n"
        "   BootTime=2025-01-15T02:00:00 SlurmdStartTime=2025-01-15T02:01:00\n"
        "   LastBusyTime=2025-01-15T02:01:00 ResumeAfterTime=2025-01-16T08:00:00\n"
        "   Reason=gres/gpu count reported lower than configured (7 < 8)"
        " [slurm@2025-01-15T02:01:00]\n"
    )
    node = output.parse_nodes(text)["gn001"]
    assert node.slurmd_started_at == datetime(2025, 1, 15, 2, 1, tzinfo=UTC)
    assert node.resume_after == datetime(2025, 1, 16, 8, 0, tzinfo=UTC)
    assert (node.gpus, node.gpus_registered) == (8, 7)
    none = output.parse_nodes(text.replace("2025-01-16T08:00:00", "None"))["gn001"]
    assert none.resume_after is None


def test_gpus_count_anew_once_the_node_is_back() -> None:
    reason = "gres/gpu count reported lower than configured (7 < 8)"
    left_behind = replace(a_state("IDLE", reason=reason, by="slurm"), gpus=8)
    assert left_behind.gpus_registered == 8


# What is compared
# ------------------------------------------------------------------------------------------------

NODE_STATES = st.builds(
    NodeState,
    name=st.just(""),
    base=st.sampled_from(sorted(BASES)),
    flags=st.frozensets(st.sampled_from(sorted(FLAGS)), max_size=3),
    reason=st.sampled_from(["", "bob: tray", "Not responding", "x" * 300, "a\0b"]),
    reason_set_by=st.sampled_from(["", "bob", "slurm"]),
    reason_changed_at=st.sampled_from([None, AT, AT + timedelta(seconds=1)]),
    boot_time=st.sampled_from([None, AT, AT + timedelta(hours=1)]),
    partitions=st.just(()),
    gpus=st.integers(0, 8),
)
FLEETS = st.dictionaries(
    st.sampled_from([f"gn{number:03d}" for number in range(8)]), NODE_STATES
).map(lambda states: {name: replace(state, name=name) for name, state in states.items()})


def apply_changes(
    before: dict[str, SeenState], changes: node_changes.Changes
) -> dict[str, SeenState]:
    """What is kept after them, as the rows are."""
    kept = {name: seen for name, seen in before.items() if name not in changes.ended}
    return kept | dict(changes.reworded) | dict(changes.began)


@given(FLEETS, FLEETS)
def test_changes_lead_from_one_look_to_the_next(
    first: dict[str, NodeState], second: dict[str, NodeState]
) -> None:
    before = node_changes.observe_all(first, "slurm")
    after = node_changes.observe_all(second, "slurm")
    changes = node_changes.compare(before, after)
    assert apply_changes(before, changes) == after
    assert not changes.began.keys() & changes.reworded.keys()
    assert changes.ended <= before.keys()
    assert changes.began.keys() & before.keys() <= changes.ended
    unknown = after.keys() - before.keys()
    assert unknown <= changes.began.keys()


@given(FLEETS)
def test_the_same_twice_changes_nothing_and_digests_tell_two_looks_apart(
    nodes: dict[str, NodeState],
) -> None:
    seen = node_changes.observe_all(nodes, "slurm")
    again = node_changes.observe_all(dict(reversed(nodes.items())), "slurm")
    assert node_changes.compare(seen, again) == node_changes.Changes({}, frozenset(), {})
    assert node_changes.make_digest(seen) == node_changes.make_digest(again)


@given(FLEETS, FLEETS)
def test_digests_are_equal_only_where_nothing_has_changed(
    first: dict[str, NodeState], second: dict[str, NodeState]
) -> None:
    before = node_changes.observe_all(first, "slurm")
    after = node_changes.observe_all(second, "slurm")
    is_same = node_changes.make_digest(before) == node_changes.make_digest(after)
    assert is_same == (before == after)


@given(NODE_STATES)
def test_what_is_kept_fits_its_columns_and_gives_its_condition_again(state: NodeState) -> None:
    seen = node_changes.observe(state, "slurm")
    assert len(seen.state) <= 255
    assert len(seen.reason) <= 255
    assert "\0" not in seen.reason
    assert node_changes.get_condition(seen.state, is_serving=seen.is_serving) == seen.condition


@pytest.mark.parametrize(
    ("first", "second", "is_another"),
    [
        (a_state("IDLE"), a_state("ALLOCATED"), False),
        (a_state("IDLE"), a_state("IDLE", "PLANNED"), False),
        (a_state("MIXED", "COMPLETING"), a_state("IDLE"), False),
        (a_state("MIXED", "DRAIN", reason="x"), a_state("ALLOCATED", "DRAIN", reason="x"), False),
        (a_state("MIXED", "DRAIN", reason="x"), a_state("IDLE", "DRAIN", reason="x"), True),
        (a_state("IDLE"), a_state("IDLE", "MAINTENANCE"), True),
        (a_state("IDLE"), a_state("IDLE", "REBOOT_REQUESTED"), True),
        (a_state("IDLE", "DRAIN", reason="x"), a_state("IDLE", "DRAIN", reason="y"), True),
        (a_state("IDLE"), replace(a_state("IDLE"), boot_time=AT + timedelta(hours=1)), True),
    ],
)
def test_jobs_alone_make_no_other_state_of_a_node_in_service(
    first: NodeState, second: NodeState, is_another: bool
) -> None:
    before = {"gn001": node_changes.observe(first, "slurm")}
    after = {"gn001": node_changes.observe(second, "slurm")}
    changes = node_changes.compare(before, after)
    assert bool(changes.began) == is_another
    assert bool(changes.reworded) != is_another


def test_names_that_no_inventory_holds_are_left_out() -> None:
    nodes = {"n" * 65: a_state(), "a\0": a_state(), "gn001": a_state()}
    assert set(node_changes.observe_all(nodes, "slurm")) == {"gn001"}
