"""What nobody knows, what nobody may touch and what is no runbook: each refused with a clear error,
nothing touched."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from detectors.faults import Action
from incidents.models import Incident, Node
from incidents.reserve import decommissions
from runbooks import services
from runbooks.library import library
from runbooks.models import Mode, Run
from runbooks.outcomes import ControlRefused
from runbooks.people import manual_runs
from runbooks.people.simulate import CannotSimulate, simulate
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
HEAD = "name: mine\nversion: 1\ntitle: t\nmeaning: m\nfor: [{actions: reboot}]\n"
LAUGHS = "a: &a [ha, ha]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\nd: [*c, *c, *c]\n"


def refusal(text: str, folder: Path) -> str:
    path = folder / "mine.yaml"
    path.write_text(text)
    with pytest.raises(library.LibraryError) as refused:
        library.read(path)
    return str(refused.value)


@pytest.mark.parametrize(
    ("runbook", "node", "fault_type", "why"),
    [
        ("pray", "gn001", "gpu.xid.79", "There is no runbook pray; there are "),
        ("drain_and_ask", "gn999", "gpu.xid.79", "gn999 is not in the inventory"),
        ("drain_and_ask", "gn002", "gpu.xid.79", "gn002 is not in the inventory"),
        ("drain_and_ask", "gn003", "gpu.xid.79", "Slurm knows no node gn003"),
        ("drain_and_ask", "gn001", "gpu.sad", "There is no fault type gpu.sad"),
    ],
    ids=["runbook", "node", "provisional node", "node that Slurm has not", "fault type"],
)
def test_what_is_not_known_is_named(runbook: str, node: str, fault_type: str, why: str) -> None:
    site = Site(nodes=2)
    Node.objects.filter(name="gn002").update(is_provisional=True)
    Node.objects.create(name="gn003")
    with pytest.raises(CannotSimulate, match=why):
        simulate(runbook, node, fault_type=fault_type, now=site.now, world=site.world)
    outcome = services.set_mode("pray", Mode.ARMED, actor="alice", now=site.now, world=site.world)
    assert isinstance(outcome, ControlRefused)
    assert site.slurm.journal == []


def test_fault_on_a_provisional_node_is_recorded_and_starts_nothing() -> None:
    site = Site(nodes=3)
    Node.objects.filter(name="gn001").update(is_provisional=True)
    incident = site.lose_gpu()
    assert site.start() == []
    outcome = manual_runs.start_manual_run(
        "drain_and_ask", incident.pk, actor="alice", note="", now=site.now
    )
    assert isinstance(outcome, ControlRefused)
    assert (
        outcome.reason
        == "gn001 is not in the inventory, and what is not in the inventory is never acted upon."
    )
    leave = services.may_stop_job("gn001", ["gpu.xid.79"], now=site.now, world=site.world)
    assert not leave.is_granted
    assert (Run.objects.count(), site.slurm.journal) == (0, [])


def test_fault_on_a_node_that_nobody_knew_starts_nothing() -> None:
    site = Site(nodes=3)
    incident = site.raise_fault(
        "gn999", resource="node/gn999", fault_type="gpu.xid.79", action=Action.REBOOT
    )
    site.start()
    site.now += timedelta(hours=1)
    site.start()
    assert Node.objects.get(name="gn999").is_provisional
    assert (Incident.objects.get().pk, Run.objects.count()) == (incident.pk, 0)
    assert site.slurm.journal == []


def test_run_for_a_node_that_is_taken_away_says_who_set_it_and_when() -> None:
    site = Site(nodes=3)
    incident = site.lose_gpu()
    decommissions.begin("gn001", actor="alice", why="sold", now=site.now)
    outcome = manual_runs.start_manual_run(
        "drain_and_ask", incident.pk, actor="bob", note="", now=site.now
    )
    assert isinstance(outcome, ControlRefused)
    assert "gn001 is being decommissioned (alice, 2025-01-15 03:00 UTC: sold)" in outcome.reason
    assert (site.start(), site.slurm.journal) == ([], [])


def test_anchors_that_would_explode_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    told = refusal(LAUGHS + HEAD + "steps: [drain]\n", tmp_path).splitlines()
    assert told[0] == (
        "mine.yaml:1: an anchor or alias of YAML (& or *); expected the value itself, or the text in quotes"
    )
    assert {line.split(":")[1] for line in told} == {"1", "2", "3", "4"}


@pytest.mark.parametrize(
    "text",
    [
        "{node.__class__}",
        "{0}",
        "{node[0]}",
        "{settings}",
        "{node!r}",
        "{node:>9999999}",
        "{node",
        "}",
        "{{{node}}.x}",
    ],
)
def test_template_that_reaches_outside_its_variables_is_refused_with_its_line(
    tmp_path: Path, text: str
) -> None:
    told = refusal(HEAD + f"steps:\n  - drain\n  - notify: {{text: '{text}'}}\n", tmp_path)
    assert told.startswith("mine.yaml:8: notify: text is ")
    assert "with {node}, {fault_type} and {incident} as its only places" in told


def test_step_that_is_not_known_is_refused_with_those_that_are(tmp_path: Path) -> None:
    told = refusal(HEAD + "steps:\n  - drain\n  - format_disk\n", tmp_path)
    assert told.startswith("mine.yaml:8: no step format_disk; expected one of adopt_drain, ")
