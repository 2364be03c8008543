"""Under any stream of faults, in any order, whatever people, jobs, clocks and crashes do: no limit
is ever exceeded.

Each act is judged by what stood right before it, counted here anew and not by the guards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from detectors.catalog.catalog import load
from detectors.faults import Severity
from incidents import services as incidents
from incidents.inventory import graphs
from incidents.models import Fault, Incident, Node
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.engine import turn
from runbooks.guards.table import Bounds
from runbooks.models import UNFINISHED, Breaker, Run, RunState
from runbooks.slurm.protocol import NodeState
from tests.runbooks.site import Site
from tests.runbooks.test_services import at_once

NODES = 12
CAP = 3
POD_SPARES = 2
PER_HOUR = 4
# Three of twelve nodes, two of each pod of six, four an hour for one fault type; more than nine
# trips the breaker.
BOUNDS = Bounds(cap_nodes=CAP, cap_share=0.25, pod_floor=0.6, per_hour=PER_HOUR, breaker_share=0.75)
POINTS = ("", "leased", "allowed", "attempted", "acted", "stored")
# Far below what is seen in a run of this file, so that no luck breaks it.
LEAST_REBOOTS = 3
DAY, HOUR = timedelta(hours=24), timedelta(hours=1)

a_node = st.integers(0, NODES - 1)


class Killed(BaseException):
    """The process is gone: nothing catches it."""


@dataclass(frozen=True)
class Before:
    """What stood before a worker's turn."""

    nodes: Mapping[str, NodeState]
    claimed: frozenset[str]
    is_tripped: bool
    needs: int


class Fleet(RuleBasedStateMachine):
    """Twelve nodes in two pods and one partition; every runbook is armed, with leave given by
    nobody."""

    # Over all examples: a rule that is never tried is not held.
    reboots_seen: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.whole = transaction.atomic()
        self.whole.__enter__()
        graphs.forget()
        self.site = Site(nodes=NODES, bounds=BOUNDS)
        Node.objects.filter(name__in=self.site.names[6:]).update(pod="pod-b")
        graphs.mark_changed()
        self.pods = dict(Node.objects.values_list("name", "pod"))
        self.sick: set[str] = set()
        self.dead: set[str] = set()
        self.taken: list[tuple[str, datetime]] = []
        self.rebooted: list[tuple[str, datetime]] = []
        self.waiting = 0

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.whole.__exit__(None, None, None)

    @initialize()
    def begin(self) -> None:
        self.sweep()

    # What happens
    # ---------------------------------------------------------------------------

    @rule(node=a_node, is_dead=st.booleans())
    def gpu_falls_off(self, node: int, is_dead: bool) -> None:
        name = self.site.names[node]
        if name not in self.sick and not self.site.slurm.read_nodes((name,))[name].is_rebooting:
            self.sick.add(name)
            self.dead |= {name} if is_dead else set()
            with contextlib.suppress(Incident.DoesNotExist):  # known as a false alarm already
                self.site.lose_gpu(name, is_dead=is_dead)

    @rule(node=a_node, fault_type=st.sampled_from(["gpu.xid.79", "gpu.xid.64", "gpu.xid.119"]))
    def line_comes(self, node: int, fault_type: str) -> None:
        """Late, repeated or forged: nothing is wrong with the node for all that anybody knows."""
        with contextlib.suppress(Incident.DoesNotExist):
            self.site.raise_fault(self.site.names[node], fault_type=fault_type)

    @rule(first=a_node, count=st.integers(2, 8))
    def many_lines_come_at_once(self, first: int, count: int) -> None:
        for index in range(count):
            self.line_comes((first + index) % NODES, "gpu.xid.79")

    @rule(node=a_node)
    def person_drains(self, node: int) -> None:
        self.site.slurm.human_drain(self.site.names[node], "bob looks at it")

    @rule(node=a_node)
    def person_resumes(self, node: int) -> None:
        self.site.slurm.human_resume(self.site.names[node])

    @rule(node=a_node)
    def slurm_sets_down(self, node: int) -> None:
        self.site.slurm.set_down(self.site.names[node])

    @rule(nodes=st.integers(0, NODES))
    def job_waits(self, nodes: int) -> None:
        self.waiting = nodes
        self.site.slurm.add_waiting_job("17", nodes=nodes, partitions=["gpu"])

    @rule(how=st.sampled_from([Trigger.MARK_FALSE_POSITIVE, Trigger.RESOLVE, Trigger.ACKNOWLEDGE]))
    def person_handles_an_incident(self, how: Trigger) -> None:
        incident = Incident.objects.exclude(closed_at__isnull=False).order_by("-pk").first()
        if incident is not None:
            incidents.act(incident.pk, how, actor="alice", note="looked at it", now=self.site.now)

    @rule()
    def person_closes_the_breaker(self) -> None:
        services.close_breaker("looked at it", actor="alice", now=self.site.now)

    @rule(minutes=st.integers(1, 30))
    def time_passes(self, minutes: int) -> None:
        self.site.now += timedelta(minutes=minutes)

    @rule(hours=st.sampled_from([-1, 1]))
    def clock_jumps(self, hours: int) -> None:
        self.site.now += timedelta(hours=hours)

    @rule()
    def sweep(self) -> None:
        told = services.evaluate_breaker(self.site.now, bounds=BOUNDS)
        if told:
            incidents.ingest(told, now=self.site.now)
        self.site.start()

    @rule(which=st.integers(0, NODES), at=st.sampled_from(POINTS))
    def worker_takes_a_turn_and_may_be_killed(self, which: int, at: str) -> None:
        self.site.start()
        unfinished = list(Run.objects.filter(state__in=UNFINISHED).order_by("pk"))
        if not unfinished:
            return
        run = unfinished[which % len(unfinished)]
        lease = run.leased_until + timedelta(seconds=1) if run.leased_until else self.site.now
        self.site.now = max(self.site.now, run.wake_at or self.site.now, lease)
        before, done = self.before(run), len(self.site.slurm.journal)

        def reaper(point: str) -> None:
            if point == at:
                raise Killed(point)

        with contextlib.suppress(Killed):
            turn.advance(run.pk, now=self.site.now, world=self.site.world, at=reaper)
        for act in self.site.slurm.journal[done:]:
            self.judge(act, run, before)

    @rule(rounds=st.integers(1, 3))
    def workers_go_on(self, rounds: int) -> None:
        for index in range(rounds * Run.objects.filter(state__in=UNFINISHED).count()):
            self.worker_takes_a_turn_and_may_be_killed(index, "")

    @rule(node=a_node, is_dead=st.booleans(), turns=st.integers(6, 9))
    def repair_goes_far(self, node: int, is_dead: bool, turns: int) -> None:
        """A GPU is lost, and one worker takes the run on and on: past its drain to the reboot,
        where it may."""
        self.gpu_falls_off(node, is_dead)
        self.site.start()
        run = Run.objects.filter(state__in=UNFINISHED, node__name=self.site.names[node]).first()
        for _ in range(turns if run is not None else 0):
            unfinished = list(Run.objects.filter(state__in=UNFINISHED).order_by("pk"))
            if run not in unfinished:
                return
            self.worker_takes_a_turn_and_may_be_killed(unfinished.index(run), "")

    # What must hold
    # ---------------------------------------------------------------------------

    def before(self, run: Run) -> Before:
        others = Run.objects.exclude(pk=run.pk).filter(
            state__in=UNFINISHED, claimed_at__isnull=False
        )
        return Before(
            nodes=self.site.slurm.read_nodes(),
            claimed=frozenset(others.values_list("node__name", flat=True)),
            is_tripped=Breaker.objects.filter(closed_at=None).exists(),
            needs=self.waiting,
        )

    def judge(self, act: tuple[str, ...], run: Run, before: Before) -> None:
        if act[0] == "drain":
            self.judge_drain(act[1], run, before)
        elif act[0] == "reboot":
            self.judge_reboot(act[1], run)

    def judge_drain(self, name: str, run: Run, before: Before) -> None:
        if before.nodes[name].is_out:
            return  # takes nothing away
        assert not before.is_tripped
        self.taken.append((run.fault_type, self.site.now))
        if self.is_critical(name) and name in self.sick:
            return  # of no use to any job, as the node itself shows: no limit on number holds it
        out = {node for node, state in before.nodes.items() if state.is_out} | before.claimed
        assert len(out - {name}) < CAP
        assert sum(self.pods[node] == self.pods[name] for node in out - {name}) < POD_SPARES
        serving = NODES - len(out - {name})
        is_critical = load()[run.fault_type].severity is Severity.CRITICAL
        assert is_critical or not serving - 1 < before.needs <= serving
        within = [
            at
            for fault_type, at in self.taken[:-1]
            if fault_type == run.fault_type and self.site.now - at < HOUR
        ]
        assert len(within) < PER_HOUR

    def is_critical(self, name: str) -> bool:
        """By any fault on the node: a run is about all of them, not about the one it began for."""
        types = Fault.objects.active().of_node(name).values_list("fault_type", flat=True)
        return any(load()[fault_type].severity is Severity.CRITICAL for fault_type in types)

    def judge_reboot(self, name: str, run: Run) -> None:
        assert name in self.sick, "a healthy node was rebooted"
        assert not [at for node, at in self.rebooted if node == name and self.site.now - at < DAY]
        self.rebooted.append((name, self.site.now))
        type(self).reboots_seen += 1
        self.sick -= {name} - self.dead


@pytest.mark.django_db
def test_no_limit_is_exceeded_and_no_healthy_node_is_rebooted() -> None:
    Fleet.reboots_seen = 0
    run_state_machine_as_test(
        Fleet,
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
    assert Fleet.reboots_seen >= LEAST_REBOOTS


@pytest.mark.django_db
def test_the_judge_of_this_file_sees_a_limit_that_is_exceeded() -> None:
    machine = Fleet()
    run = machine.site.begin(machine.site.stall_gpu("gn001"))
    for name in ("gn005", "gn008", "gn009"):
        machine.site.slurm.human_drain(name, "bob")
    with pytest.raises(AssertionError):
        machine.judge(("drain", "gn001"), run, machine.before(run))
    with pytest.raises(AssertionError, match="a healthy node was rebooted"):
        machine.judge(("reboot", "gn002"), run, machine.before(run))
    assert run.state == RunState.RUNNING
    machine.teardown()


@pytest.mark.usefixtures("database_on_disk")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("bounds", "most"),
    [
        (Bounds(cap_nodes=50, cap_share=1.0, pod_floor=0.9, per_hour=4, breaker_share=1), 4),
        (Bounds(cap_nodes=50, cap_share=1.0, pod_floor=0.9, per_hour=50, breaker_share=1), 6),
        (Bounds(cap_nodes=3, cap_share=1.0, pod_floor=0.0, per_hour=50, breaker_share=1), 3),
        (Bounds(cap_nodes=5, cap_share=1.0, pod_floor=0.0, per_hour=50, breaker_share=0.1), 0),
    ],
    ids=["rate", "pod floor", "cap", "breaker"],
)
def test_limit_holds_when_twenty_workers_ask_at_once(bounds: Bounds, most: int) -> None:
    site = Site(nodes=60, bounds=bounds)
    runs = [site.begin(site.stall_gpu(name)) for name in site.names[:20]]
    at_once(20, lambda number: services.advance(runs[number].pk, now=site.now, world=site.world))
    assert sum(node.is_out for node in site.slurm.read_nodes().values()) == most
    assert Run.objects.filter(claimed_at__isnull=False).count() == most
