"""Spares in and out: by partition and by reservation, of two runs one, and whatever a killed worker
left."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.models import Spare, VendorCase
from incidents.reserve import lemons, spares
from incidents.vendor import cases
from incidents.vocabulary.changes import Refused
from incidents.vocabulary.vendor_states import Move
from runbooks import spare_swaps
from runbooks.engine import turn
from runbooks.library import library
from runbooks.models import Run, RunState, StopSwitch
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


class Killed(BaseException):
    """The worker died."""


def a_spare(site: Site, name: str = "gn003", *, is_reserved: bool = False) -> Spare:
    """Kept free, for nodes of the partition gpu."""
    spare = spares.add(name, partitions=["gpu"], is_reserved=is_reserved, now=site.now)
    assert isinstance(spare, Spare)
    spare_swaps.keep_free(spare, site.slurm, site.now)
    return spare


def a_run(site: Site, node: str = "gn001", ways: tuple[str, ...] = ("in",)) -> Run:
    incident = site.raise_fault(node)
    site.start()
    run = site.run_of(incident)
    steps = [
        library.plan_step("drain", {}),
        *(library.plan_step("swap_hot_spare", {"way": way}) for way in ways),
    ]
    run.plan = [planned.as_row() for planned in (*steps, library.plan_step("wait_for_jobs", {}))]
    run.save()
    return run


def serves(site: Site, name: str = "gn003") -> bool:
    return name in site.slurm.read_partitions()["gpu"] and not any(
        name in one.nodes for one in site.slurm.list_reservations()
    )


@pytest.mark.parametrize("is_reserved", [False, True])
def test_a_spare_stands_in_and_goes_back(*, is_reserved: bool) -> None:
    site = Site(nodes=3)
    spare = a_spare(site, is_reserved=is_reserved)
    assert not serves(site)
    run = a_run(site, ways=("in", "out"))
    site.play(run, until=lambda run: run.step == 2)
    spare.refresh_from_db()
    assert (serves(site), spare.state, spare.stands_for) == (True, Spare.State.SERVING, run.node)
    site.play(run, limit=HOUR)
    spare.refresh_from_db()
    assert (serves(site), spare.state, spare.stands_for) == (False, Spare.State.READY, None)
    assert run.state == RunState.SUCCEEDED


def of_the_vendor(site: Site) -> Run:
    """The shipped runbook for a part that the vendor replaces, as far as it has to wait for the
    part."""
    incident = site.raise_fault()
    site.start()
    run = site.run_of(incident)
    run.plan = [planned.as_row() for planned in library.load()["vendor_replacement"].steps]
    run.save()
    return site.play(run, until=lambda run: "is opened since" in run.waiting_for)


def test_a_spare_stands_in_for_a_node_that_waits_for_its_vendor_and_goes_back_after_it_serves() -> (
    None
):
    site = Site(nodes=3)
    spare = a_spare(site)
    run = of_the_vendor(site)
    spare.refresh_from_db()
    assert (serves(site), spare.state, spare.stands_for) == (True, Spare.State.SERVING, run.node)
    site.nodes.reboot("gn001")
    cases.move(VendorCase.objects.get().pk, Move.INSTALL, actor="ada", serial="NEW-1", now=site.now)
    site.play(run, until=lambda run: run.plan[run.step]["step"] == "resume", limit=6 * HOUR)
    assert serves(site)
    site.play(run, limit=HOUR)
    spare.refresh_from_db()
    assert (run.state, serves(site), spare.state) == (RunState.SUCCEEDED, False, Spare.State.READY)
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_out


def test_a_node_waits_for_its_vendor_without_a_spare_where_a_site_has_none() -> None:
    site = Site(nodes=3)
    run = of_the_vendor(site)
    assert VendorCase.objects.count() == 1
    assert "No hot spare stands ready for gpu: gn001 is missed until it is back." in site.story(
        run.incident
    )
    site.nodes.reboot("gn001")
    cases.move(VendorCase.objects.get().pk, Move.INSTALL, actor="ada", serial="NEW-1", now=site.now)
    site.play(run, limit=6 * HOUR)
    assert (run.state, run.outcome) == (
        RunState.SUCCEEDED,
        "gn001 serves itself: no spare stands in for it.",
    )


def test_a_run_that_waits_with_its_swap_ends_where_a_person_has_resumed_its_node() -> None:
    site = Site(nodes=3)
    spare = a_spare(site)
    run = site.play(a_run(site), until=lambda run: run.step == 1)
    StopSwitch.objects.create(reason="power works", engaged_by="alice", engaged_at=site.now)
    run = site.advance(run)
    assert "The stop switch is engaged" in run.waiting_for
    site.slurm.human_resume("gn001")
    site.now += timedelta(minutes=1)
    run = site.advance(run)
    assert run.state == RunState.ABORTED
    assert "was resumed by someone else" in run.outcome
    spare.refresh_from_db()
    assert (serves(site), spare.state) == (False, Spare.State.READY)


def test_a_run_goes_on_where_no_spare_stands_ready() -> None:
    site = Site(nodes=60)  # so that two nodes out are within the cap
    a_spare(site)
    site.slurm.human_drain("gn003", "memory test")
    run = a_run(site)
    site.play(run, limit=HOUR)
    assert run.state == RunState.SUCCEEDED
    assert "No hot spare stands ready for gpu: gn001 is missed until it is back." in site.story(
        run.incident
    )


def test_a_spare_stands_in_for_each_partition_of_its_node_or_not_at_all() -> None:
    site = Site(nodes=5, partitions={"gn001": ["gpu", "debug"], "gn002": ["gpu", "debug"]})
    a_spare(site)
    before = site.slurm.read_partitions()
    run = site.play(a_run(site))
    assert site.slurm.read_partitions() == before
    why = "(gn003 is for gpu, and a spare stands in for each partition of a node)"
    said = f"No hot spare stands ready for gpu and debug {why}: gn001 is missed until it is back."
    assert said in site.story(run.incident)
    both = spares.add("gn004", partitions=["gpu", "debug"], is_reserved=False, now=site.now)
    assert [row.pk for row in spares.list_ready(["gpu", "debug"])] == [both.pk]
    assert spares.list_ready([]) == []


def test_a_lemon_stands_in_for_nobody() -> None:
    site = Site(nodes=3)
    a_spare(site)
    lemons.quarantine("gn003", incident_id=None, reason="lemon", now=site.now)
    site.play(a_run(site), limit=HOUR)
    assert not serves(site)


@pytest.mark.parametrize("point", ["attempted", "acted"])
def test_a_killed_worker_leaves_one_spare_in(point: str) -> None:
    site = Site(nodes=4)
    a_spare(site)
    a_spare(site, "gn004")
    run = a_run(site)
    site.play(run, until=lambda run: run.step == 1)

    def die(at: str) -> None:
        if at == point:
            raise Killed

    with pytest.raises(Killed):
        turn.advance(run.pk, now=site.now, world=site.world, at=die)
    site.now += timedelta(minutes=5)
    site.play(run, limit=HOUR)
    assert run.state == RunState.SUCCEEDED
    assert [serves(site, name) for name in ("gn003", "gn004")] == [True, False]
    assert site.slurm.journal.count(("set_partitions", "gn003", "gpu")) == 1


def test_one_spare_stands_in_for_one_node() -> None:
    site = Site(nodes=60)
    spare = a_spare(site)
    for node in ("gn001", "gn002"):
        site.play(a_run(site, node), limit=HOUR)
    spare.refresh_from_db()
    assert spare.stands_for is not None
    assert spare.stands_for.name == "gn001"
    assert not spares.claim(spare, stands_for="gn002", incident_id=0, now=site.now)


def test_a_pool_takes_nodes_of_the_inventory_once() -> None:
    site = Site(nodes=3)
    spare = a_spare(site)
    for node, partitions in (("gn003", ["gpu"]), ("gn9", ["gpu"]), ("gn002", [])):
        assert isinstance(
            spares.add(node, partitions=partitions, is_reserved=False, now=site.now), Refused
        )
    spares.claim(spare, stands_for="gn001", incident_id=0, now=site.now)
    assert isinstance(spares.remove("gn003"), Refused)
    assert spares.remove("gn003") is not None
