"""What a node's state means for a repair, for the states and flags of Slurm 22.05 to 24.11."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.slurm import output
from detectors.slurm.output import NodeState
from runbooks.slurm import node_states

AT = datetime(2025, 1, 15, 3, 0, 10, 400_000, tzinfo=UTC)
# sinfo(1) and slurm.h of 22.05, 23.02, 23.11, 24.05 and 24.11: base states, and flags as `scontrol
# show node` has them.
BASES = ("UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE", "INVALID")
FLAGS = (
    *(
        "CLOUD",
        "COMPLETING",
        "DRAIN",
        "DYNAMIC_FUTURE",
        "DYNAMIC_NORM",
        "FAIL",
        "INVALID_REG",
        "MAINTENANCE",
    ),
    *(
        "NOT_RESPONDING",
        "PLANNED",
        "POWER_DOWN",
        "POWER_UP",
        "POWERED_DOWN",
        "POWERING_DOWN",
        "POWERING_UP",
    ),
    *(
        "REBOOT_CANCELED",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
        "RESERVED",
        "UNDRAIN",
        "BLOCKED",
        "EXTERNAL",
    ),
    *("POWER_DRAIN", "PRIVATE_DATA"),
)


@pytest.mark.parametrize(
    ("version", "drops"),
    [("22.05.8", True), ("23.02.7", True), ("23.11.10", False), ("26.05.5", False), ("", True)],
)
def test_a_slurm_from_2311_on_takes_no_node_back_whose_boot_it_awaits_no_longer(
    version: str, drops: bool
) -> None:
    config = {"SLURM_VERSION": version, "ReturnToService": "2", "ResumeTimeout": "60 sec"}
    assert node_states.drops_drains(config) is drops
    now = AT + timedelta(seconds=61)
    assert node_states.takes_back_unasked(config, asked_at=AT, now=now) is drops


def a_node(*flags: str, base: str = "IDLE", boot_time: datetime | None = None) -> NodeState:
    return NodeState("gn001", base, frozenset(flags), "", "", None, boot_time, ("gpu",))


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (a_node("POWER_DOWN"), "switched gn001 off"),
        (a_node("POWERING_DOWN"), "switched gn001 off"),
        (a_node("POWERED_DOWN", "DRAIN"), "switched gn001 off"),
        (a_node("POWERED_DOWN", "POWER_UP"), "switching gn001 on"),
        (a_node("POWERING_UP", "NOT_RESPONDING"), "switching gn001 on"),
        (a_node("DRAIN"), ""),
        (a_node("NOT_RESPONDING", base="DOWN"), ""),
    ],
    ids=lambda value: "+".join(sorted(value.flags)) if isinstance(value, NodeState) else "",
)
def test_power_saving_is_told_in_a_sentence(node: NodeState, words: str) -> None:
    told = node_states.format_power_saving(node)
    assert words in told
    assert bool(words) == bool(told)


@pytest.mark.parametrize(
    ("node", "is_back"),
    [
        (a_node("DRAIN"), True),
        (a_node("DRAIN", base="DOWN"), False),
        (a_node("DRAIN", base="DOWN", boot_time=AT - timedelta(hours=1)), False),
        (a_node("DRAIN", base="DOWN", boot_time=AT.replace(microsecond=0)), True),
        (a_node("DRAIN", "NOT_RESPONDING", base="DOWN", boot_time=AT), False),
        (a_node("DRAIN", "REBOOT_ISSUED", base="DOWN", boot_time=AT), False),
        (a_node("DRAIN", "POWERING_UP", boot_time=AT), False),
    ],
    ids=lambda value: (
        "+".join((value.base, *sorted(value.flags))) if isinstance(value, NodeState) else str(value)
    ),
)
def test_node_is_back_when_its_slurmd_answers_after_a_later_boot(
    node: NodeState, is_back: bool
) -> None:
    assert node_states.is_back(node, AT) == is_back


@pytest.mark.parametrize(
    ("told", "limit"),
    [
        ("60 sec", timedelta(minutes=6)),
        ("180 sec", timedelta(minutes=8)),
        ("", timedelta(minutes=6)),
    ],
)
def test_processes_cannot_be_ended_past_slurms_own_limit_and_an_epilog(
    told: str, limit: timedelta
) -> None:
    assert node_states.get_unkillable_delay({"UnkillableStepTimeout": told}) == limit


@pytest.mark.parametrize(
    ("returns", "after", "is_so"),
    [
        ("2", timedelta(seconds=301), True),
        ("2", timedelta(seconds=300), False),
        ("1", timedelta(hours=9), False),
        ("0", timedelta(hours=9), False),
        ("", timedelta(hours=9), False),
    ],
)
def test_slurm_takes_a_node_back_unasked_past_resume_timeout_with_return_to_service_2(
    returns: str, after: timedelta, is_so: bool
) -> None:
    config = {"ReturnToService": returns, "ResumeTimeout": "300 sec"}
    assert node_states.takes_back_unasked(config, asked_at=AT, now=AT + after) == is_so


@given(
    base=st.sampled_from(BASES),
    flags=st.sets(st.sampled_from(FLAGS)),
    reason=st.text(
        st.characters(codec="utf-8", exclude_characters="\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
    ),
)
def test_state_that_slurm_prints_is_read_with_all_its_flags(
    base: str, flags: set[str], reason: str
) -> None:
    shown = "+".join((base, *sorted(flags)))
    text = f"NodeName=gn001 Arch=x86_64 \n   State={shown} ThreadsPerCore=1 Weight=1\n   Partitions=gpu,debug \n"
    if reason.strip():
        text += f"   Reason={reason.strip()} [root@2025-01-15T03:00:00]\n"
    node = output.parse_nodes(text)["gn001"]
    assert (node.base, node.flags, node.partitions) == (base, frozenset(flags), ("gpu", "debug"))
    assert node.is_draining == ("DRAIN" in flags)
    assert node.is_rebooting == bool({"REBOOT_ISSUED", "REBOOT_REQUESTED"} & flags)
    assert node.is_out or not node.is_drained


@given(flags=st.sets(st.sampled_from(FLAGS)), base=st.sampled_from(BASES))
def test_every_state_has_one_meaning(flags: set[str], base: str) -> None:
    node = a_node(*flags, base=base, boot_time=AT)
    assert not (node_states.is_given_up(node) and node_states.is_back(node, AT))
    assert not (node_states.format_power_saving(node) and node_states.is_back(node, AT))
    assert node_states.is_silent(node) or not node_states.is_given_up(node)


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    block = f"NodeName=gn001\n{text}"
    assert all(node.base for node in output.parse_nodes(block).values())
    assert all(
        isinstance(members, tuple)
        for members in output.parse_partitions(f"PartitionName=gpu\n{text}").values()
    )
