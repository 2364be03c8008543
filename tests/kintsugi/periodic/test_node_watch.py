"""One look at all of Slurm's nodes: kept as intervals, by one process, in shadow as when armed; a
Slurm that does not answer changes nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from fixtures.memory_slurm import MemorySlurm
from incidents.checks import slurm_reach
from incidents.checks.clock_steps import move_times_back
from incidents.faults.fault_views import SILENT_TARGET
from incidents.impact import capacity
from incidents.inventory import node_states
from incidents.models import FleetLook, Job, JobNode, NodeInterval
from incidents.reserve import renames
from kintsugi.history import retention
from kintsugi.periodic import periods
from kintsugi.web import console
from runbooks.models import SeenAct
from runbooks.shadow import shadow_log
from runbooks.slurm.protocol import NodeState
from tests.builders import NOW, a_fault, a_node, an_incident
from tests.kintsugi.beaten import Beaten
from tests.runbooks.site import CLUSTER

pytestmark = pytest.mark.django_db
SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
NODES = ("gn041", "gn042", "gn043")


class Watched:
    """A Slurm in memory, on a clock that the test turns; counts how often all nodes are asked
    for."""

    def __init__(self) -> None:
        self.now = NOW
        self.asked = 0
        self.hidden: set[str] = set()
        self.takes = timedelta(0)
        self.slurm = MemorySlurm(
            {name: ["gpu"] for name in NODES}, cluster_name=CLUSTER, now=lambda: self.now
        )
        self.site = Beaten(self)

    def read_config(self) -> dict[str, str]:
        return dict(self.slurm.read_config())

    def read_nodes(self) -> dict[str, NodeState]:
        self.asked += 1
        return {
            name: state
            for name, state in self.slurm.read_nodes().items()
            if name not in self.hidden
        }

    def look(self, after: timedelta = MINUTE) -> None:
        self.now = self.site.now = self.now + after
        self.site.pipeline.look_at_nodes()


@pytest.fixture
def watched() -> Watched:
    watched = Watched()
    for name in NODES:
        a_node(name, gpus=())
    watched.look()
    return watched


def list_states(node: str) -> list[tuple[str, str]]:
    return [(row.state, row.holder) for row in node_states.get_history(node)]


def test_a_drain_begins_an_interval_and_a_resume_ends_it(watched: Watched) -> None:
    first_look = watched.now
    watched.slurm.human_drain("gn042", "bob: tray")
    watched.look()
    drained_at = watched.now
    watched.look()
    last_seen_at = watched.now
    watched.slurm.resume("gn042")
    watched.look()
    now, drain, before = node_states.get_history("gn042")
    assert (before.since, before.until, before.state) == (first_look, drained_at, "IDLE")
    assert (drain.since, drain.until) == (drained_at, watched.now)
    assert drain.seen_at == last_seen_at
    assert (drain.holder, drain.reason, drain.reason_set_by) == ("bob", "bob: tray", "bob")
    assert not drain.is_serving
    assert (now.since, now.until, now.is_serving) == (watched.now, None, True)
    assert len(list_states("gn041")) == 1


def test_an_unchanged_fleet_costs_one_update_a_look(watched: Watched) -> None:
    nodes = watched.slurm.read_nodes()
    with CaptureQueriesContext(connection) as queries:
        node_states.record_look(nodes, watched.now + SECOND, took=timedelta(0), slurm_user="slurm")
    assert [query["sql"].split()[0] for query in queries] == ["UPDATE"]
    assert node_states.get_freshness().answered_at == watched.now + SECOND


def test_jobs_are_shown_in_place_and_counted_when_a_state_begins(watched: Watched) -> None:
    watched.slurm.add_job("7", nodes=("gn041",))
    watched.look()
    (row,) = node_states.get_history("gn041")
    assert (row.state, row.seen_at, row.jobs) == ("ALLOCATED", watched.now, 0)
    job = Job.objects.create(
        cluster="slurm", job_id="7", state="RUNNING", started_at=NOW, seen_at=NOW
    )
    JobNode.objects.create(job=job, node="gn041")
    watched.slurm.human_drain("gn041", "bob: tray")
    watched.look()
    assert node_states.get_current()["gn041"].jobs == 1


def test_a_slurm_that_does_not_answer_ends_and_begins_nothing(watched: Watched) -> None:
    answered_at = watched.now
    before = set(NodeInterval.objects.values_list())
    watched.slurm.is_answering = False
    watched.look()
    silent_since = watched.now
    for _ in range(3):
        watched.look()
    assert set(NodeInterval.objects.values_list()) == before
    freshness = node_states.get_freshness()
    assert (freshness.answered_at, freshness.silent_since) == (answered_at, silent_since)
    assert freshness.complaint
    assert freshness.is_stale(watched.now)
    watched.slurm.is_answering = True
    watched.look()
    assert node_states.get_freshness().silent_since is None
    assert not node_states.get_freshness().is_stale(watched.now)


def test_an_answer_without_nodes_is_none(watched: Watched) -> None:
    watched.hidden = set(NODES)
    watched.look()
    assert NodeInterval.objects.current().count() == len(NODES)
    assert node_states.get_freshness().silent_since == watched.now


def test_a_node_that_slurm_knows_no_more_ends(watched: Watched) -> None:
    watched.hidden = {"gn043"}
    watched.look()
    assert set(node_states.get_current()) == {"gn041", "gn042"}
    watched.hidden = set()
    watched.look()
    assert len(list_states("gn043")) == 2


def test_an_answer_to_an_older_question_is_dropped(watched: Watched) -> None:
    old = watched.slurm.read_nodes()
    watched.slurm.human_drain("gn042", "bob: tray")
    watched.look()
    changes = node_states.record_look(
        old, watched.now - SECOND, took=timedelta(0), slurm_user="slurm"
    )
    assert not changes.began
    assert not node_states.get_current()["gn042"].is_serving


def test_two_beats_look_once_and_seconds_apart_only_while_something_is_under_way(
    watched: Watched,
) -> None:
    asked = watched.asked
    watched.look(periods.LOOK_AT_NODES)
    watched.site.another().look_at_nodes()
    watched.look(periods.LOOK_AT_NODES_AT_ONCE)
    assert watched.asked == asked + 1
    an_incident(at=watched.now)
    watched.look(periods.LOOK_AT_NODES_AT_ONCE)
    watched.site.another().look_at_nodes()
    assert watched.asked == asked + 2


def test_a_slurm_that_takes_long_is_asked_less_often(watched: Watched) -> None:
    an_incident(at=watched.now)
    FleetLook.objects.update(took_ms=2_000)
    asked = watched.asked
    watched.look(periods.LOOK_AT_NODES_AT_ONCE)
    assert watched.asked == asked
    watched.look(15 * SECOND)
    assert watched.asked == asked + 1


def test_what_a_person_did_is_in_the_ledger_with_the_look_that_saw_it(watched: Watched) -> None:
    """Slurm may write over the reason before the ledger is brought up to date."""
    watched.slurm.human_drain("gn042", "bob: tray")
    watched.look()
    assert shadow_log.find_persons_reason("gn042") == "bob: tray"
    act = SeenAct.objects.get()
    assert (act.kind, act.by) == ("drain", "bob")
    watched.site.pipeline.record_acts()
    assert SeenAct.objects.count() == 1


def test_a_node_that_comes_into_the_inventory_later_is_out_at_once(watched: Watched) -> None:
    watched.slurm.human_drain("gn042", "bob: tray")
    watched.look()
    left = capacity.list_of_partitions()
    assert [(row.name, row.total, row.left) for row in left] == [("gpu", 3, 2)]


def test_console_and_pages_count_the_nodes_that_slurm_shows_to_take_no_jobs(
    watched: Watched,
) -> None:
    """One drained by a person, one switched off, and no incident is about them."""
    watched.slurm.human_drain("gn042", "bob: tray")
    watched.slurm.save_power("gn043", "POWERED_DOWN")
    watched.look()
    (pod,) = console.count_pods()
    assert (pod["out"], pod["serving"]) == (2, 1)
    (left,) = capacity.list_of_partitions()
    assert (left.total, left.left) == (3, 1)
    watched.slurm.human_resume("gn042")
    watched.slurm.save_power("gn043")
    watched.look()
    (left,) = capacity.list_of_partitions()
    assert left.left == 3


def test_a_renamed_node_keeps_its_history(watched: Watched) -> None:
    watched.slurm.human_drain("gn042", "bob: tray")
    watched.look()
    renames.rename("gn042", "gn142", actor="eva", why="moved", now=watched.now)
    assert len(list_states("gn142")) == 2
    assert list_states("gn042") == []
    watched.look()
    assert list_states("gn042")[0] == ("IDLE+DRAIN", "bob")


def test_what_ended_long_ago_leaves_and_what_is_so_stays(watched: Watched, tmp_path: Path) -> None:
    watched.slurm.human_drain("gn042", "bob: tray")
    watched.look()
    removed = retention.prune(tmp_path, watched.now + DAY, now=watched.now + DAY)
    assert removed["node_interval"] == 1
    assert NodeInterval.objects.current().count() == NodeInterval.objects.count() == len(NODES)


def test_which_silent_nodes_slurm_hears_is_asked_only_where_the_last_look_is_old(
    watched: Watched,
) -> None:
    for name in NODES:
        a_fault(SILENT_TARGET, f"node/{name}", at=NOW)
    watched.slurm.switch_off("gn042")
    watched.look()
    asked = watched.asked
    watched.site.pipeline.ask_reach()
    assert slurm_reach.list_heard(NODES, watched.now) == {"gn041", "gn043"}
    assert watched.asked == asked
    watched.now = watched.site.now = watched.now + periods.ASK_REACH
    watched.slurm.switch_off("gn041")
    watched.site.pipeline.ask_reach()
    assert slurm_reach.list_heard(NODES, watched.now) == {"gn043"}
    assert watched.asked == asked + 1


def test_a_clock_that_is_set_back_holds_up_no_look(watched: Watched) -> None:
    step = timedelta(hours=1)
    watched.now -= step
    move_times_back(step, watched.now)
    watched.slurm.human_drain("gn042", "bob: tray")
    watched.look()
    assert not node_states.get_current()["gn042"].is_serving
