"""What people did to a node, read from two looks at Slurm."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from runbooks.shadow import external_changes
from runbooks.shadow.external_changes import ActKind
from runbooks.slurm.protocol import NodeState

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
BOOT = NOW - timedelta(days=9)
WELL = NodeState("gn001", "IDLE", frozenset(), "", "", None, BOOT, ("gpu",))
DRAINED = replace(
    WELL,
    flags=frozenset({"DRAIN"}),
    reason="fan noise",
    reason_set_by="bob",
    reason_changed_at=NOW - timedelta(minutes=1),
)


def _kinds(before: NodeState, after: NodeState) -> list[ActKind]:
    return [
        act.kind
        for act in external_changes.find_acts(external_changes.observe_node(before), after, NOW)
    ]


def test_a_persons_drain_is_seen_with_who_and_since_when() -> None:
    (act,) = external_changes.find_acts(external_changes.observe_node(WELL), DRAINED, NOW)
    assert (act.kind, act.by, act.at, act.text) == (
        ActKind.DRAIN,
        "bob",
        NOW - timedelta(minutes=1),
        "fan noise",
    )


def test_what_stands_since_the_last_look_is_no_act() -> None:
    assert _kinds(DRAINED, DRAINED) == []
    assert _kinds(WELL, WELL) == []


def test_a_drain_by_slurm_or_by_kintsugi_is_no_persons_act() -> None:
    by_slurm = replace(DRAINED, reason="Kill task failed", reason_set_by="root")
    ours = replace(DRAINED, reason="kintsugi:7 gpu.xid.79: GPU lost", reason_set_by="kintsugi")
    assert _kinds(WELL, by_slurm) == []
    assert _kinds(WELL, ours) == []


def test_a_person_who_takes_over_slurms_drain_has_drained() -> None:
    by_slurm = replace(DRAINED, reason="Kill task failed", reason_set_by="root")
    assert _kinds(by_slurm, DRAINED) == [ActKind.DRAIN]


def test_a_node_that_comes_back_from_a_drain_was_resumed_by_somebody() -> None:
    assert _kinds(DRAINED, WELL) == [ActKind.RESUME]


def test_a_node_that_slurm_set_down_and_takes_back_was_resumed_by_nobody() -> None:
    down = replace(WELL, base="DOWN", reason="Not responding", reason_set_by="slurm")
    assert _kinds(WELL, down) == []
    assert _kinds(down, WELL) == []


def test_a_boot_of_a_drained_node_is_a_reboot_and_one_of_a_working_node_a_crash() -> None:
    assert _kinds(DRAINED, replace(DRAINED, boot_time=NOW)) == [ActKind.REBOOT]
    assert _kinds(WELL, replace(WELL, boot_time=NOW)) == []


def test_a_node_rebooted_and_resumed_between_two_looks_tells_of_both() -> None:
    assert _kinds(DRAINED, replace(WELL, boot_time=NOW)) == [ActKind.REBOOT, ActKind.RESUME]
