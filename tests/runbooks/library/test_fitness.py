"""Every grave fault that calls for an act finds a runbook, and every node that no job can use is
drained."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from detectors import resources
from detectors.catalog import catalog
from detectors.catalog.catalog import MAY_BE_UNFIT, FaultType
from detectors.faults import Action, Fitness, Severity
from runbooks.library import library
from runbooks.plan.choose import Chosen, FaultPlace, Past, choose
from runbooks.plan.runbook import Runbook, Trouble

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
# Slurm itself has taken such a node from jobs already.
BY_SLURM = "slurm."


def find_runbook(row: FaultType) -> Runbook | None:
    """What comes for it on a node where every runbook is armed and nothing was tried."""
    trouble = Trouble(row.id, row.action, row.component, row.severity, fitness=row.fitness)
    place = FaultPlace(resources.node("gn001"), is_node=True, is_provisional=False)
    books = library.read_folders(None)
    modes = dict.fromkeys(books, "armed")
    chosen = choose(trouble, place, books.values(), modes=modes, past=Past(), now=NOW)
    return chosen.book if isinstance(chosen, Chosen) else None


def test_every_grave_type_whose_action_calls_for_an_act_has_a_runbook_that_takes_it() -> None:
    grave = [row for row in catalog.load() if row.severity.at_least(Severity.MAJOR)]
    calling = [row for row in grave if row.action.at_least(Action.RESET_GPU)]
    assert calling
    assert [row.id for row in calling if find_runbook(row) is None] == []


def test_every_type_that_leaves_a_node_unfit_has_a_runbook_that_drains_it() -> None:
    unfit = [row for row in catalog.load() if row.fitness is Fitness.UNFIT]
    for row in unfit:
        if row.id.startswith(BY_SLURM):
            continue
        book = find_runbook(row)
        assert book is not None, row.id
        assert book.steps[0].step.name == "drain", row.id


@pytest.mark.parametrize(
    ("fault_type", "runbook"),
    [
        ("nic.missing", "drain_reboot_verify"),
        ("nic.firmware.unhealthy", "drain_reboot_verify"),
        ("nic.firmware.command_timeout", "drain_reboot_verify"),
        ("nic.pci.error", "drain_reboot_verify"),
        ("gpu.driver.mismatch", "drain_reboot_verify"),
        ("gpu.driver.unsupported", "drain_and_ask"),
        ("node.service.down", "isolate_node"),
        ("storage.mount.missing", "isolate_node"),
        ("storage.nvme.lost", "isolate_node"),
        ("node.machine_check", "isolate_node"),
        ("node.lockup", "isolate_node"),
        ("storage.raid.failed", "drain_and_ask"),
        ("nic.link.down", "reseat_or_replace_transceiver"),
        ("storage.lustre.connection_lost", "storage_watch"),
    ],
)
def test_what_comes_for_a_fault(fault_type: str, runbook: str) -> None:
    book = find_runbook(catalog.load()[fault_type])
    assert book is not None
    assert book.name == runbook


def test_no_storage_server_or_switch_is_judged_by_it() -> None:
    for row in catalog.load():
        assert row.fitness is not Fitness.UNFIT or row.component in MAY_BE_UNFIT
