"""What a node has shown is recorded after its drain, and is never lost: a worker may die anywhere.
The guards count it as if it had been recorded before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from detectors.provenance import BELIEVED, Provenance, Transport
from incidents.models import Fault
from runbooks.engine import turn, witness_check
from runbooks.fleet import breaker
from runbooks.lease.lease import LEASE
from runbooks.models import Run, StepRun, StopSwitch
from runbooks.node import witnesses
from runbooks.slurm.protocol import SlurmError
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
NODE = "gn001"
ANYBODY = Provenance("10.66.6.6", Transport.UDP, program="kernel", facility=0)
LATER = LEASE + timedelta(seconds=1)


class Killed(BaseException):
    """The process is gone: nothing catches it."""


def a_run(site: Site) -> Run:
    """For what a text alone has told, and the node shows."""
    site.nodes.inject("gpu_lost", f"{NODE}/gpu/0")
    return site.begin(site.raise_fault(NODE, told_by=ANYBODY))


def is_believed() -> bool:
    return Fault.objects.active().get(fault_type="gpu.xid.79").forger in BELIEVED


def kill_at(site: Site, run: Run, at: str) -> None:
    def reap(point: str) -> None:
        if point == at:
            raise Killed

    with pytest.raises(Killed):
        turn.advance(run.pk, now=site.now, world=site.world, at=reap)
    site.now += LATER


def look_at(point: str, see: Callable[[], None]) -> turn.Point:
    return lambda passed: see() if passed == point else None


def count_attempts() -> int:
    return StepRun.objects.filter(name="drain").count()


def test_the_fault_counts_as_seen_once_the_drain_is_done() -> None:
    site = Site()
    run = a_run(site)
    known: list[bool] = []
    see = look_at("acted", lambda: known.append(is_believed()))
    turn.advance(run.pk, now=site.now, world=site.world, at=see)
    assert known == [False]
    assert is_believed()
    run.refresh_from_db()
    assert witnesses.UNRECORDED not in run.facts


@pytest.mark.parametrize("point", ["attempted", "acted", "stored"])
def test_it_is_recorded_and_the_node_drained_once_where_a_worker_dies(point: str) -> None:
    site = Site()
    run = a_run(site)
    kill_at(site, run, point)
    site.advance(run)
    assert is_believed()
    assert [entry[:2] for entry in site.slurm.journal] == [("drain", NODE)]
    assert witnesses.UNRECORDED not in run.facts


def test_a_worker_that_dies_before_its_claim_leaves_no_word_and_the_node_is_asked_anew() -> None:
    site = Site()
    run = a_run(site)
    kill_at(site, run, "leased")
    assert not is_believed()
    site.advance(run)
    assert is_believed()


def test_nothing_changes_where_a_worker_dies_between_the_record_and_the_result() -> None:
    site = Site()
    run = a_run(site)
    kill_at(site, run, "acted")
    run.refresh_from_db()
    witness_check.record_witness(run, site.now)
    before = Fault.objects.values().get(fault_type="gpu.xid.79")
    site.advance(Run.objects.get(pk=run.pk))
    assert Fault.objects.values().get(fault_type="gpu.xid.79") == before
    assert count_attempts() == 1


def test_it_is_recorded_where_a_guard_refuses_the_drain() -> None:
    site = Site()
    run = a_run(site)
    StopSwitch.objects.create(reason="x", engaged_by="ada", engaged_at=site.now)
    site.advance(run)
    assert site.slurm.journal == []
    assert is_believed()


def test_it_is_recorded_where_slurm_breaks_in_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    run = a_run(site)

    def hang(*_: object, **__: object) -> None:
        raise SlurmError("slurmctld hangs")

    monkeypatch.setattr(site.slurm, "drain", hang)
    monkeypatch.setattr(site.world.writer, "drain", hang)
    site.advance(run)
    assert is_believed()


def test_the_breaker_counts_what_the_node_has_shown_when_the_guards_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    run = a_run(site)
    counted: list[frozenset[str]] = []
    count = breaker.get_nodes_turned_bad

    def keep(*arguments: object, **more: object) -> frozenset[str]:
        counted.append(count(*arguments, **more))  # type: ignore[arg-type]
        return counted[-1]

    monkeypatch.setattr(breaker, "get_nodes_turned_bad", keep)
    site.advance(run)
    assert counted == [{NODE}]
