"""Which runbook an incident calls for: its `for`, the ladder's rung, the modes, what has ended
without a cure."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from detectors.faults import Action, Component, Recovery, Severity
from runbooks.library import library
from runbooks.plan.choose import Chosen, FaultPlace, NoRunbook, Past, choose
from runbooks.plan.escalation import Tried
from runbooks.plan.limits import NO_LIMITS
from runbooks.plan.runbook import Purpose, Runbook, Trouble
from tests.builders import NOW

PART = "node/gn001/gpu/0000:19:00.0"
REPAIRS = frozenset({Action.RESET_GPU, Action.REBOOT, Action.COLD_CYCLE, Action.VENDOR})
HARDWARE = frozenset({Component.GPU, Component.NVLINK, Component.NODE})


def a_book(
    name: str,
    rung: Recovery | None = None,
    *,
    step: str = "drain",
    own: bool = False,
    **purpose: Any,
) -> Runbook:
    purposes = (Purpose(**({"actions": REPAIRS, "components": HARDWARE} | purpose)),)
    steps = (library.plan_step(step, {}),)
    return Runbook(name, "1", name, name, steps, purposes, rung, NO_LIMITS, is_sites_own=own)


BOOKS = (
    a_book("ask"),
    a_book("cold", Recovery.COLD_CYCLE),
    a_book("reboot", Recovery.NODE_RESTART),
    a_book(
        "reset", Recovery.GPU_RESET, actions=frozenset({Action.RESET_GPU}), but_not=("gpu.lost",)
    ),
    a_book("vendor", Recovery.VENDOR_REPLACEMENT),
)


def chosen(
    action: Action = Action.RESET_GPU,
    *,
    books: tuple[Runbook, ...] = BOOKS,
    fault_type: str = "gpu.xid.119",
    component: Component = Component.GPU,
    is_node: bool = True,
    is_provisional: bool = False,
    tried: tuple[Recovery, ...] = (),
    off: tuple[str, ...] = (),
    spent: tuple[str, ...] = (),
) -> str:
    """Its name, or in brackets why there is none."""
    history = [
        Tried(rung, PART, NOW - timedelta(hours=len(tried) - place), False)
        for place, rung in enumerate(tried)
    ]
    found = choose(
        Trouble(fault_type, action, component, Severity.CRITICAL),
        FaultPlace(PART, is_node, is_provisional),
        books,
        modes=dict.fromkeys(off, "off"),
        past=Past(history, frozenset(spent)),
        now=NOW,
    )
    return found.book.name if isinstance(found, Chosen) else f"({found.reason})"


@pytest.mark.parametrize(
    ("action", "name"),
    [
        (Action.RESET_GPU, "reset"),
        (Action.REBOOT, "reboot"),
        (Action.COLD_CYCLE, "cold"),
        (Action.VENDOR, "vendor"),
    ],
)
def test_action_class_chooses_the_rung(action: Action, name: str) -> None:
    assert chosen(action) == name


@pytest.mark.parametrize(
    "action", [Action.NONE, Action.RESTART_APP, Action.WATCH, Action.CHECK_CABLE]
)
def test_what_calls_for_no_repair_gets_none(action: Action) -> None:
    assert "no runbook is for gpu.xid.119" in chosen(action)


@pytest.mark.parametrize("component", [one for one in Component if one not in HARDWARE])
def test_no_node_is_taken_away_for_a_switch_a_cable_or_a_report(component: Component) -> None:
    assert chosen(Action.REBOOT, component=component).startswith("(")


def test_lost_gpu_is_not_reset() -> None:
    assert chosen(Action.RESET_GPU, fault_type="gpu.lost") == "reboot"


def test_each_rung_follows_the_one_that_did_not_cure() -> None:
    rungs = (Recovery.GPU_RESET, Recovery.NODE_RESTART, Recovery.COLD_CYCLE)
    assert [chosen(tried=rungs[:count]) for count in range(4)] == [
        "reset",
        "reboot",
        "cold",
        "vendor",
    ]


def test_rung_that_is_off_is_skipped() -> None:
    assert chosen(off=("reset",)) == "reboot"
    assert chosen(off=("reset", "reboot")) == "cold"


def test_vendor_is_called_over_rungs_that_are_off_only_when_something_was_tried() -> None:
    off = ("reboot", "cold")
    assert chosen(Action.REBOOT, off=off) == "ask"
    assert chosen(Action.REBOOT, off=off, tried=(Recovery.NODE_RESTART,)) == "vendor"


def test_what_stands_beside_the_ladder_comes_when_no_rung_is_left() -> None:
    assert chosen(Action.VENDOR, off=("vendor",)) == "ask"


def test_nothing_is_chosen_when_all_is_off() -> None:
    assert "no mode but off" in chosen(off=tuple(book.name for book in BOOKS))


def test_runbook_that_ended_without_a_cure_does_not_come_again_in_its_incident() -> None:
    assert chosen(Action.COLD_CYCLE, spent=("cold",)) == "ask"
    everything = tuple(book.name for book in BOOKS)
    assert "did not cure it" in chosen(spent=everything)


def test_the_runbook_that_names_the_fault_most_closely_goes_first_on_its_rung() -> None:
    fabric = a_book("fabric", Recovery.GPU_RESET, faults=("gpu.xid.*",))
    closer = a_book("closer", Recovery.GPU_RESET, faults=("gpu.xid.119",))
    assert chosen(books=(*BOOKS, fabric)) == "fabric"
    assert chosen(books=(*BOOKS, fabric, closer)) == "closer"
    assert chosen(books=(*BOOKS, fabric, closer), tried=(Recovery.GPU_RESET,)) == "reboot"


def test_the_sites_own_goes_before_a_shipped_one_that_is_as_close() -> None:
    assert chosen(books=(*BOOKS, a_book("zz", Recovery.GPU_RESET, own=True))) == "zz"


def test_what_names_the_fault_beside_the_ladder_goes_before_a_rung_that_does_not() -> None:
    assert chosen(books=(*BOOKS, a_book("lemon", faults=("gpu.xid.119",)))) == "lemon"


def test_lemon_is_set_aside_instead_of_repaired_again() -> None:
    books = (*BOOKS, a_book("lemon", lemons=True))
    trouble = Trouble("gpu.xid.119", Action.REBOOT, Component.GPU, Severity.CRITICAL, is_lemon=True)
    where = FaultPlace(PART, is_node=True, is_provisional=False)

    def name(modes: dict[str, str]) -> str:
        found = choose(trouble, where, books, modes=modes, past=Past(), now=NOW)
        return found.book.name if isinstance(found, Chosen) else ""

    assert chosen(Action.REBOOT, books=books) == "reboot"
    assert name({"lemon": "armed", "reboot": "armed"}) == "lemon"
    assert name({"lemon": "shadow", "reboot": "shadow"}) == "lemon"
    assert name({"lemon": "shadow", "reboot": "armed"}) == "reboot"


def test_nothing_is_done_to_what_is_not_in_the_inventory() -> None:
    assert "never acted upon" in chosen(is_provisional=True)


def test_runbook_that_needs_a_node_is_not_chosen_for_a_switch() -> None:
    books = (a_book("watch", step="watch", components=frozenset()), *BOOKS)
    assert chosen(is_node=False) == "(it is on no node of the inventory)"
    assert chosen(is_node=False, books=books) == "watch"


def test_why_is_told() -> None:
    found = choose(
        Trouble("gpu.xid.119", Action.REBOOT, Component.GPU, Severity.CRITICAL),
        FaultPlace(PART, is_node=True, is_provisional=False),
        BOOKS,
        modes={},
        past=Past(),
        now=NOW,
    )
    assert not isinstance(found, NoRunbook)
    assert found.reason == "action class reboot calls for a reboot"
