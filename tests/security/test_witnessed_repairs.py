"""What it costs to ask for witnesses: of the true faults of the shipped scenarios (the quarter, which takes
minutes, aside) nearly all that are repaired without a person where every text is believed are so where none is; of the same texts
without the faults, none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker

from detectors.catalog import catalog
from detectors.provenance import Forger
from fixtures.replay import reader, replay
from fixtures.replay.scenario import Delivered, Scenario, Step
from kintsugi.replay import database
from kintsugi.replay.intake import ReplayIntake
from runbooks.models import AuditEntry, Mode, Run, RunState
from tests.test_scenarios import SCENARIOS, SMALL

# The share that asking for witnesses may not fall below (our choice).
LEAST_SHARE = 0.95
# Where a node is cured without a person, every runbook of scenarios being armed.
REPAIRED = {
    "fault_back_within_24h",
    "gpu_controller_halt_cascade",
    "gpu_lost_after_its_leaf_is_back",
    "gpu_lost_while_every_switch_is_well",
    "gsp_stops_answering",
    "leaf_reboot_right_after_a_repair",
    "maintenance_ends_with_the_fault_still_there",
    "one_gpu_falls_off_the_bus",
    "pcie_errors_then_the_gpu_is_lost",
    "row_remap_family",
    "stale_event_after_repair",
    "user_report_first_then_platform",
    "xid95_storm",
}


class RecordingIntake(ReplayIntake):
    """Keeps each line with its time."""

    def __init__(self) -> None:
        super().__init__(catalog.load())
        self.taken: list[tuple[datetime, bytes]] = []

    def take(self, line: bytes, now: datetime) -> bool:
        self.taken.append((now, line))
        return super().take(line, now)


class BelievedIntake(ReplayIntake):
    """As if the node's root had said it all: no witness is asked for."""

    def flush(self, now: datetime) -> list[dict[str, Any]]:
        return [
            event | {"provenance": event["provenance"] | {"forger": Forger.ROOT.value}}
            for event in super().flush(now)
        ]


@pytest.fixture(autouse=True)
def own_database(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """A replay brings its own database; the tests' one stays blocked."""
    with django_db_blocker.unblock():
        yield


def play(script: Scenario, intake: ReplayIntake) -> tuple[Counter[str], Counter[str]]:
    """With every runbook of scenarios armed: the repairs that cured without a person, and what was
    done to nodes by Kintsugi, each by what and where."""
    with database.use_temporary_database():
        replay.scenario(replace(script, mode=Mode.ARMED.value), intake=intake)
        cured = Run.objects.filter(state=RunState.SUCCEEDED, node__isnull=False)
        repairs = Counter(f"{run.runbook} {run.place}" for run in cured)
        acts = AuditEntry.objects.filter(phase="done", act__in=("drain", "reboot"))
        done = Counter(f"{entry.act} {entry.node}" for entry in acts)
    return repairs, done


def forge(script: Scenario, lines: list[tuple[datetime, bytes]]) -> Scenario:
    """The same texts at the same times, of machines that nothing happens to; and nobody speaks."""
    place = script.steps[0].place
    steps = tuple(Step(at, Delivered((line,)), place) for at, line in lines)
    return replace(script, steps=steps)


@pytest.mark.parametrize("name", SMALL)
def test_true_faults_are_repaired_as_if_texts_were_believed_and_forged_ones_are_not(
    name: str, *, is_full_length: bool
) -> None:
    if name not in REPAIRED and not is_full_length:
        return  # nothing is repaired there: for the deep tier
    script = reader.read(SCENARIOS / name)
    told = RecordingIntake()
    witnessed, _ = play(script, told)
    believed, _ = play(script, BelievedIntake(catalog.load()))
    assert (witnessed & believed).total() >= LEAST_SHARE * believed.total()
    assert (believed.total() > 0) == (name in REPAIRED)
    repaired, done = play(forge(script, told.taken), ReplayIntake(catalog.load()))
    assert (repaired.total(), done.total()) == (0, 0), done
