"""Whose a drain is: the reasons as people, Slurm and Kintsugi write them."""

from __future__ import annotations

import pytest

from runbooks.ownership import Dropped, Held, Owner, TakenOver, hold, owner, reason
from runbooks.slurm import NodeState

OURS = reason(7, "gpu.xid.79", "GPU has fallen off the bus")


def a_node(text: str, *flags: str, base: str = "IDLE", by: str = "root") -> NodeState:
    return NodeState("gn001", base, frozenset(flags), text, by, None, None, ("gpu",))


def test_reason_on_the_node_says_which_incident_and_why() -> None:
    assert OURS == "kintsugi:7 gpu.xid.79: GPU has fallen off the bus"


@pytest.mark.parametrize(
    ("node", "whose"),
    [
        (a_node("", base="IDLE"), Owner.NOBODY),
        (a_node("left over", base="ALLOCATED"), Owner.NOBODY),
        (a_node(OURS, "DRAIN"), Owner.THIS_INCIDENT),
        (a_node(f"{OURS} : reboot issued : reboot complete", "DRAIN"), Owner.THIS_INCIDENT),
        (a_node(f"{OURS} : Not responding", "DRAIN", "NOT_RESPONDING", base="DOWN"), Owner.THIS_INCIDENT),
        (a_node("kintsugi:70 gpu.xid.79: other", "DRAIN"), Owner.OTHER_INCIDENT),
        (a_node("Not responding", "NOT_RESPONDING", base="DOWN", by="slurm"), Owner.SLURM),
        (a_node("Kill task failed", "DRAIN"), Owner.SLURM),
        (a_node("gres/gpu count reported lower than configured (7 < 8)", "DRAIN", by="slurm"), Owner.SLURM),
        (a_node("Prolog error : Not responding", "DRAIN"), Owner.SLURM),
        (a_node("Kill task failed", "DRAIN", by="bob"), Owner.PERSON),
        (a_node("Kill task failed, bob swaps the tray", "DRAIN"), Owner.PERSON),
        (a_node("swapping tray | gpu=3", "DRAIN"), Owner.PERSON),
        (a_node("bob: see kintsugi:7 gpu.xid.79", "DRAIN", by="bob"), Owner.PERSON),
    ],
    ids=lambda value: value.reason if isinstance(value, NodeState) else value,
)
def test_owner_is_read_from_reason_and_who_set_it(node: NodeState, whose: Owner) -> None:
    assert owner(node, 7) is whose


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (a_node(OURS, "DRAIN"), Held),
        (a_node(f"{OURS} : reboot issued", "DRAIN", "REBOOT_ISSUED", base="DOWN"), Held),
        (a_node(f"{OURS} : reboot timed out", base="DOWN"), Dropped),
        (a_node("reboot timed out", base="DOWN"), Dropped),
        (a_node("", base="DOWN"), Dropped),
        (a_node("", base="IDLE"), TakenOver),
        (a_node("", base="ALLOCATED"), TakenOver),
        (a_node("memory test by bob", "DRAIN", by="bob"), TakenOver),
        (a_node("dead, RMA 1234", base="DOWN", by="bob"), TakenOver),
    ],
    ids=lambda value: f"{value.base} {value.reason}" if isinstance(value, NodeState) else value.__name__,
)
def test_hold_is_kept_dropped_by_slurm_or_taken_over_by_a_person(node: NodeState, kind: type) -> None:
    assert isinstance(hold(node, 7), kind)


def test_text_names_the_person_and_their_reason_when_they_take_over() -> None:
    taken = hold(a_node("memory test", "DRAIN", by="bob"), 7)
    assert isinstance(taken, TakenOver)
    assert taken.text == 'gn001 now has another reason, by bob: "memory test"'
    assert not taken.is_resumed
