"""One play: a site of four nodes, two workers, a beat, people and everything else, one step after
the other in an order that a seed chooses.

`play_once(seed)` plays it in a transaction that is rolled back. The product's code is the real one,
from `Pipeline` to the client that drives Slurm's programs; Slurm, nodes and the clock are in memory.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.test import override_settings

from detectors.catalog import catalog
from detectors.detector import Output
from detectors.slurm.output import NodeState
from fixtures.cluster.slurm_daemons import LAST_THAT_FORGETS
from incidents.db.prepared import Given, Prepared
from incidents.inventory import graphs
from incidents.models import Incident, Node
from incidents.polling.polling import Chunk
from kintsugi.pipeline import Pipeline
from kintsugi.replay.notifier import KeepingNotifier
from runbooks import services
from runbooks.engine import turn
from runbooks.guards.policy import DRAIN_AND_ASK, DRAIN_REBOOT_VERIFY
from runbooks.guards.table import Bounds
from runbooks.lease.lease import LEASE
from runbooks.models import UNFINISHED, Breaker, Mode, Run, RunbookMode, RunState
from runbooks.second_person.changes import Kind
from runbooks.second_person.requests import SETTING
from runbooks.slurm.client import ScontrolWriter, parse_controller
from runbooks.slurm.protocol import format_state
from tests.runbooks import site as sites
from tests.simulation import armings, invariants, people, reserve, site_events
from tests.simulation.between import (
    ActShell,
    Interleaved,
    WatchedPower,
    before_commands_start,
    before_runs_begin,
    between_statements,
    checks_undisturbed,
)
from tests.simulation.record import Act, Broken, Record, TurnView

NODES = 4
# Beside the two that are armed in every play: some are in each second play.
_FURTHER = (
    *("gpu_reset", "cold_cycle", "vendor_replacement", "quarantine_lemon"),
    *("return_to_service", "isolate_node", "drain_on_request", "nvlink_fabric_recover"),
    "reseat_or_replace_transceiver",
)
# Cap of the partition, spares of a pod of two, nodes an hour: in most plays one of them binds alone.
_LIMITS = ((2, 2, 9), (1, 2, 9), (4, 1, 9), (4, 2, 2), (4, 2, 1), (2, 1, 2), (4, 2, 9))
# Most repairs that nobody disturbs take half a minute here; one in five plays lasts long enough for
# what must be told within ten minutes.
LASTS = tuple(timedelta(minutes=minutes) for minutes in (2, 2, 4, 4, 14))
BEAT, BOOT = timedelta(seconds=60), timedelta(seconds=12)
# The middle one is longer than a run waits for a boot, and over before a long play is.
_RESUME_TIMEOUTS = ("3600 sec", "240 sec", "240 sec", "90 sec")
VERSIONS = ("22.05.8", "24.11.5", "26.05.5")
_PHASES = (
    *("", "drain", "reboot", "wait_for_boot", "verify", "verify", "resume", "resume", "end"),
    *("reset_gpu", "cold_cycle"),
)
# How many plays have one moment chosen before they begin, and from what it is chosen: every act
# meets every step so.
_AIMED, _BY_ANOTHER_WORKER = 0.5, 0.1
# In how many of them somebody drains a node within our first call that drains or gives it back.
_RACED_FIRST = 0.2
_AIMED_STEPS = (
    *dict.fromkeys(filter(None, _PHASES)),
    *("restart_units", "swap_hot_spare", "quarantine", "wait_for_neighbours"),
)
_RUNBOOK_OF_STEP = {
    "reset_gpu": "gpu_reset",
    "cold_cycle": "cold_cycle",
    "restart_units": "isolate_node",
    "swap_hot_spare": "vendor_replacement",
    "quarantine": "quarantine_lemon",
    "wait_for_neighbours": "reseat_or_replace_transceiver",
}
_FAULT_OF_STEP = {
    "reset_gpu": "memory",
    "restart_units": "service",
    "wait_for_neighbours": "transceiver",
    "swap_hot_spare": "degrade_many",
}
# Lower rungs of the ladder, which come first where they may act.
_REPAIRS = (DRAIN_REBOOT_VERIFY, "gpu_reset", "cold_cycle", "nvlink_fabric_recover")
_POINTS = (
    *("begin", "leased", "allowed", "attempted", "acted", "stored"),
    *("read_nodes", "drain", "reboot", "resume"),
)
# Steps that act by another way than Slurm's programs, once their attempt is stored.
_PAST_SLURM = ("cold_cycle", "reset_gpu", "restart_units")
# What nobody does before that phase but who falls ill, and jobs.
_AT_ONCE = (
    *("lose", "lose_many", "degrade", "degrade_many", "memory", "link", "job", "end", "wait"),
    *("redeliver", "forge", "poll"),
)
# Of acts there may be nothing to do at the time.
_TRIES = 4
_BEATS = 2
# By which people say what may be done, or that nothing is called for.
_WHAT_IS_ALLOWED = (
    *("stop", "mode", "arm", "disarm", "decommission", "refuse", "maintain", "incident"),
)
# How long the site goes on by itself once people have done what they did: Slurm's patience with a
# boot, and what must have followed it.
_QUIET = (timedelta(0), timedelta(0), timedelta(0), timedelta(minutes=12))
# Between two polls of all nodes then.
_POLL_EVERY = timedelta(minutes=2)
# slurmctld sends a reboot that it was asked for with its next round, and waits for what has come onto
# the node meanwhile.
_REBOOT_SENT_AFTER = (timedelta(seconds=2), timedelta(seconds=2), timedelta(minutes=4))
_OUT_BEFORE = 0.25
# As a site begins: the first repair of all in shadow, and armed on few nodes.
_ARMED_BEFORE = 0.25
_HAS_SPARE, _HAS_LEMON, _CHOOSES_SPARE, _SPARE_IS_BARRED = 0.4, 0.3, 0.5, 0.3
# A play is shorter than the window in which faults of one node are one incident: in some plays they
# join within a second alone, and a service of a node dies while its run is at one of these steps.
_FAULTS_STAY_APART, _SERVICE_DIES = 0.25, 0.15
_SHORT_WINDOW = timedelta(seconds=1)
_STEPS_OF_SECOND_FAULTS = ("wait_for_jobs", "reboot", "wait_for_boot", "verify", "resume")
# How many of all kinds of acts are in a play at all. Most days of a site know few of them, and what
# many of them do together ends most runs before their late steps (swarm testing, Groce et al.,
# ISSTA 2012).
_SHARES = (0.08, 0.2, 0.6)
_LEAVES = 0.05
# When people begin at the latest: some steps are not reached, or not in the plan of any runbook.
_BEGIN_WITHIN = timedelta(minutes=2)
# Between two steps: no two things happen at one time.
_SECOND, _MOMENT = timedelta(seconds=1), timedelta(milliseconds=1)


# What each step of a play asks.
_RUN = Prepared(lambda: Run.objects.filter(pk=Given("run")))
_RUN_WITH_NODE = Prepared(
    lambda: Run.objects.select_related("incident", "node").filter(pk=Given("run"))
)
_CLAIMS = Prepared(
    lambda: Run.objects.filter(state__in=UNFINISHED, claimed_at__isnull=False).values_list(
        "pk", "node__name"
    )
)
_WAKES = Prepared(
    lambda: Run.objects.filter(wake_at__isnull=False).values_list("wake_at", "leased_until")
)
_STEPPED_BACK = Prepared(lambda: RunbookMode.objects.exclude(stepped_back_at=None))
_OPEN_BREAKERS = Prepared(lambda: Breaker.objects.filter(closed_at=None).values_list("pk"))


class Killed(BaseException):
    """The worker is gone."""


@dataclass(frozen=True)
class Aim:
    """What happens once, when a run first comes to that point of that step: `begin`, a point of the
    turn, or the call to Slurm that comes next. Left to chance, the few moments in which it matters
    are met once in thousands of plays."""

    step: str
    point: str
    act: str

    @classmethod
    def draw(cls, luck: random.Random, acts: list[str]) -> Aim | None:
        if luck.random() >= _AIMED:
            return None
        act = "work" if luck.random() < _BY_ANOTHER_WORKER else luck.choice(acts)
        return cls(luck.choice(_AIMED_STEPS), luck.choice(_POINTS), act)

    def get_first_fault(self) -> str:
        """What leads to that step; or to two runs at once, where another worker is to act amid."""
        return "degrade_many" if self.act == "work" else _FAULT_OF_STEP.get(self.step, "lose")


@dataclass(frozen=True)
class Habits:
    """How often things happen in this play. `amidst`: that somebody acts at a point of a turn or
    before a call to Slurm; `raced`: within the call; `death`: that a worker dies at a point; `stall`: that
    that it stands still for longer than its lease; `hang`: that a node whose reboot is asked for
    does not come back; `statement`: that somebody acts before a statement of the product's to the
    database. `quiet`: how long the site goes on once people act no more. `acts`: what people and the
    site do at all, by weight: each play has its own choice, of few kinds or of many. `begins_at`:
    the step of a run at which people begin, so that late steps are reached too; empty: at once.
    `watched`: `amidst` of that step at least: people come when they see it under way."""

    amidst: float
    raced: float
    death: float
    dead: float
    stall: float
    hang: float
    statement: float
    quiet: timedelta
    people: float
    watched: float
    begins_at: str
    acts: dict[str, float]

    @classmethod
    def draw(cls, dice: random.Random, luck: random.Random, names: list[str]) -> Habits:
        share = dice.choice(_SHARES)
        acts = dict.fromkeys(names, 0.0)
        for name in names:
            if dice.random() < share:
                acts[name] = dice.choice((1.0, 1.0, 4.0))
        acts["leave"] = 1.0 if luck.random() < _LEAVES else 0.0  # it ends all else
        acts["lose"] += 0.5
        acts["resume"] += 0.5
        amidst, raced = dice.choice((0.0, 0.05, 0.1, 0.2)), dice.choice((0.0, 0.3))
        death, stall = dice.choice((0.0, 0.0, 0.04, 0.12)), dice.choice((0.0, 0.0, 0.05))
        if raced:  # words are put back by the second turn from there: workers live as long
            death, stall = min(death, 0.04), 0.0
        return cls(
            amidst=amidst,
            raced=raced,
            death=death,
            stall=stall,
            dead=dice.choice((0.0, 0.0, 0.5)),
            hang=luck.choice((0.0, 0.0, 0.0, 0.5)),
            statement=luck.choice((0.0, 0.0, 0.002, 0.01)),
            quiet=luck.choice(_QUIET),
            people=dice.choice((0.2, 0.6, 1.5)),
            watched=dice.choice((0.0, 0.3, 0.6)),
            begins_at=dice.choice(_PHASES),
            acts=acts,
        )


@dataclass
class Calls:
    """The doorbell of a play: what it is told to do soon is done by the next steps."""

    messages: deque[int] = field(default_factory=deque)

    def ingest(self) -> None:
        """Events come by `Pipeline.ingest` here."""

    def advance(self, run_id: int, at: datetime | None = None) -> None:
        """Due runs are found by their rows."""

    def notify(self, notification_id: int, at: datetime | None = None) -> None:
        self.messages.append(notification_id)

    def poll(self, chunk: Chunk) -> None:
        """Nobody polls here."""


class Play:
    """A failing one raises Broken, with `trace` so far."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.trace: list[str] = []
        self.record = Record()
        self.people, self.others = people.People(self), site_events.Site(self)
        self.armers, self.reserve = armings.Armers(self), reserve.Reserve(self)
        acts = self.people.list_acts() | self.armers.list_acts() | self.reserve.list_acts()
        acts |= self.others.list_acts()
        # Nothing is left to chance of these otherwise, or in another way.
        in_aims = {
            "work": self._work_on_another,
            "beat": self._beat_amidst,
            "race": self._race_next,
        }
        self._acts = acts | in_aims
        self._aim = Aim.draw(random.Random(f"{seed} aim"), list(self._acts))
        needed = _RUNBOOK_OF_STEP.get(self._aim.step) if self._aim is not None else None
        further = [name for name in _FURTHER if self.dice.random() < 0.4 or name == needed]
        runbooks = (DRAIN_REBOOT_VERIFY, DRAIN_AND_ASK, *further)
        is_vendor_aimed = needed == "vendor_replacement"
        barred = _REPAIRS if is_vendor_aimed else ()
        self.runbooks = tuple(name for name in runbooks if name not in barred)
        self.last_wire: dict[str, Any] = {}
        version = self.dice.choice(VERSIONS)
        returns = self.dice.choice(("0", "1", "2"))
        settings = {"SLURM_VERSION": version, "ReturnToService": returns}
        settings["ResumeTimeout"] = self.dice.choice(_RESUME_TIMEOUTS)
        self.cap, self.pod_spares, self.per_hour = self.dice.choice(_LIMITS)
        bounds = Bounds(
            cap_nodes=self.cap,
            cap_share=1.0,
            pod_floor=1.0 - self.pod_spares / 2,
            per_hour=self.per_hour,
            breaker_share=self.dice.choice((1.0, 0.5)),
        )
        self.stop_file = folder / "stop"
        stock = random.Random(f"{seed} reserve")
        has_spare = stock.random() < _HAS_SPARE or is_vendor_aimed
        self._barring = random.Random(f"{seed} bar")
        self._second = random.Random(f"{seed} second fault")
        self._has_second_faults = self._second.random() < _FAULTS_STAY_APART
        self.site = sites.Site(
            nodes=NODES + has_spare,
            slurm=settings,
            bounds=bounds,
            boot_takes=BOOT,
            stop_file=self.stop_file,
        )
        self.site.set_mode(Mode.OFF)
        if is_vendor_aimed:
            self.record.own_modes[DRAIN_AND_ASK] = Mode.OFF
        for runbook in self.runbooks:
            self.site.set_mode(self.record.get_mode(runbook), runbook)
        pace = random.Random(f"{seed} rounds")
        self.site.slurm.send_reboots_after(pace.choice(_REBOOT_SENT_AFTER))
        self.wants_two_persons = pace.random() < 0.5
        for name in people.ADMINISTRATORS:
            User.objects.create(username=name, is_superuser=True)
        self.site.slurm.keeps_accounts = self.dice.random() < 0.5
        self.replaces_reasons = tuple(map(int, version.split(".")[:2])) > LAST_THAT_FORGETS
        self.pods = {name: f"pod-{index // 2}" for index, name in enumerate(self.site.names)}
        for name, pod in self.pods.items():
            Node.objects.filter(name=name).update(pod=pod)
        self.others.wire_transceiver()
        graphs.mark_changed()
        if has_spare:
            self.reserve.keep_spare(self.site.names[-1], stock)
        if stock.random() < _HAS_LEMON or needed == "quarantine_lemon":
            self.reserve.let_break_often(self.site.names[0])
        # What comes about by itself, and changes nobody's choices.
        self.luck = random.Random(f"{seed} luck")
        self.habits = Habits.draw(self.dice, self.luck, list(acts))
        self._is_race_due = self._aim is not None and self.luck.random() < _RACED_FIRST
        self._is_quiet, self._is_product, self._is_amid_statements = False, False, False
        self._focus = ""
        self._is_open = not self.habits.begins_at
        self._sweeps = 0
        shell = ActShell(self.site.slurm, self._watch)
        client = ScontrolWriter(shell, parse_controller("local"), cluster_name=sites.CLUSTER)
        world_client: Any = Interleaved(client, self._pause)
        power = WatchedPower(self.site.power, self._watch_power)
        self.site.world = replace(
            self.site.world, slurm=world_client, writer=world_client, power=power
        )
        self.notifier, self.calls = KeepingNotifier(), Calls()
        self.pipeline = Pipeline(
            self.site.world, self.notifier, self.calls, lambda: self.site.now, catalog.load()
        )
        self._ends_at = self.site.now + self.dice.choice(LASTS)
        self._beat_at = self.site.now
        self._views: list[TurnView] = []
        kept = "with" if self.site.slurm.keeps_accounts else "without"
        self.note("site", f"armed: {', '.join(self.runbooks)}")
        self.note("site", f"Slurm {version} {kept} accounts, ReturnToService={returns}")

    # What others ask of the play
    # ---------------------------------------------------------------------------------------------

    def note(self, actor: str, text: str, node: str = "") -> None:
        answer = f" -> {format_state(self.look(node))}" if node else ""
        self.trace.append(f"{self.site.now:%H:%M:%S} {actor:<10} {text}{answer}")

    def look(self, node: str) -> NodeState:
        return self.site.slurm.read_nodes((node,))[node]

    def choose_node(self) -> str:
        """Mostly one of the first two, or that of the turn under way or of the run that begins: so
        that what happens meets."""
        focus = self._focus or (self._views[-1].node if self._views else "")
        spares = self.reserve.list_spares()
        is_swap = bool(self._views) and self._views[-1].step == "swap_hot_spare"
        if spares and is_swap and self.dice.random() < _CHOOSES_SPARE:
            return spares[0]
        if focus in self.site.names and self.dice.random() < 0.7:
            return focus
        return self.dice.choice((*self.site.names[:2], *self.site.names[:2], *self.site.names))

    def get_pod(self, node: str) -> set[str]:
        return {name for name, pod in self.pods.items() if pod == self.pods[node]}

    def is_ill(self, node: str) -> bool:
        return any(not gpu.is_healthy for gpu in self.site.nodes.nodes[node].gpus)

    def get_out(self) -> frozenset[str]:
        states = self.site.slurm.read_nodes()
        return frozenset(name for name, state in states.items() if not state.is_serving)

    def get_claimed(self, run_id: int) -> frozenset[str]:
        """Nodes that other runs have been let take out."""
        claims = _CLAIMS.rows()
        return frozenset(name for owner, name in claims if owner != run_id)

    def get_view(self) -> TurnView:
        """The turn under way."""
        return self._views[-1]

    def has_view(self) -> bool:
        return bool(self._views)

    def get_jobs_on_transceiver(self) -> frozenset[str]:
        jobs = [self.site.slurm.list_jobs(node) for node in self.others.get_on_transceiver()]
        return frozenset(job.job_id for found in jobs for job in found)

    def has_work(self) -> bool:
        """A run is unfinished or looks once more."""
        return Run.objects.filter(Q(wake_at__isnull=False) | Q(state__in=UNFINISHED)).exists()

    def race_next(self) -> None:
        """A person drains the node within the next call that drains or resumes it."""
        self._is_race_due = True

    # Steps
    # ---------------------------------------------------------------------------------------------

    def play(self) -> None:
        orders = frozenset({Kind.COLD_CYCLE} if self.wants_two_persons else ())
        chosen = {**settings.KINTSUGI, SETTING: orders}
        if self._has_second_faults:
            chosen["KINTSUGI_JOIN_WINDOW"] = _SHORT_WINDOW
        with (
            override_settings(KINTSUGI=chosen),
            between_statements(self._pause_at_statement),
            before_runs_begin(self._pause_before_run),
            checks_undisturbed(self._undisturbed),
            before_commands_start(lambda: self._check(invariants.OF_COMMANDS)),
            reserve.around_swaps(self._check_spare_in, self._check_spare_out),
        ):
            self._play()

    def _play(self) -> None:
        if self.luck.random() < _OUT_BEFORE:
            # A person has taken a node out long before, as at most sites on most days.
            self.people.drain(self.luck.choice(self.site.names[:2]))
            self._beat()
        if self.luck.random() < _ARMED_BEFORE:
            self.armers.begin_with_few()
        if self._barring.random() < _SPARE_IS_BARRED:
            for spare in self.reserve.list_spares():
                self.people.bar(spare, self._barring)
        if self._aim is not None and self._aim.step == "wait_for_neighbours":
            self.others.start_job(self.luck.choice(self.others.get_on_transceiver()))
        self._do(self._aim.get_first_fault() if self._aim is not None else "lose")
        if self._aim is not None and self._aim.step == "swap_hot_spare":
            self.people.call_vendor()
        begins_by = self.site.now + _BEGIN_WITHIN
        while self.site.now < self._ends_at:
            self._is_open = self._is_open or self.site.now >= begins_by
            self._step()
            self._check(invariants.AFTER_STEPS)
        self._go_on_quietly()
        self._finish()

    def _go_on_quietly(self) -> None:
        """Workers, beats and polls alone, and none of them dies."""
        self._is_open, self._is_quiet = False, True
        polled_at = self.site.now
        while self.site.now < self._ends_at + self.habits.quiet:
            self.site.now += _MOMENT
            due = services.get_due_runs(self.site.now)
            if due:
                self._work(due)
            elif self.site.now >= self._beat_at:
                self._beat()
            elif self.site.now >= polled_at + _POLL_EVERY:
                polled_at = self.site.now
                self._do("poll")
            else:
                self._pass_time()
            self._check(invariants.AFTER_STEPS)

    def _step(self) -> None:
        self.site.now += _MOMENT
        due = services.get_due_runs(self.site.now)
        is_beat_due = self.site.now >= self._beat_at
        actors: dict[Callable[[], None], float] = {self._pass_time: 3.0}
        if due:
            actors[lambda: self._work(due)] = 6.0
        if is_beat_due:
            actors[self._beat] = 4.0
        actors[self._act_somebody] = self.habits.people
        actor = self.dice.choices(list(actors), list(actors.values()))[0]
        if actor == self._pass_time and (due or is_beat_due):
            self.site.now += _SECOND
            return
        actor()

    def _act_somebody(self) -> None:
        waiting = Run.objects.filter(state=RunState.AWAITING_APPROVAL)
        if self._is_open and self.dice.random() < 0.3 and waiting.exists():
            self._do("approve")
            return
        names = list(self.habits.acts) if self._is_open else list(_AT_ONCE)
        weights = [self.habits.acts[name] for name in names]
        told = len(self.trace)
        for name in self.dice.choices(names, weights, k=_TRIES):
            self._do(name)
            if len(self.trace) > told:
                return

    def _do(self, name: str) -> None:
        self._acts[name]()

    def _pass_time(self) -> None:
        """To what is due next, or a part of the way."""
        later = [at for row in _WAKES.rows() for at in row if at is not None and at > self.site.now]
        times = [*later, self._beat_at]
        due_at = max(min(times), self.site.now + _SECOND)
        whole = (due_at - self.site.now).total_seconds()
        part = 1.0 if self._is_quiet else self.dice.choice((1.0, 1.0, 0.5))
        self.site.now += timedelta(seconds=max(1, round(whole * part)))
        self.site.power.settle()
        self._settle()

    def _settle(self) -> None:
        """Boots that have come, people's words that Slurm itself has dropped, and modes that have
        stepped back: people set them again, so that the play goes on."""
        record = self.record
        for row in _STEPPED_BACK.objects():
            mode = record.get_mode(row.runbook)
            self.site.set_mode(mode, row.runbook)
            self.note("bob", f"sets {row.runbook} to {mode} again")
        if record.armings:
            self.armers.set_again()
        for node, boots in list(record.awaited_boots.items()):
            if self.site.nodes.nodes[node].boots > boots:
                del record.awaited_boots[node]
        for node, word in list(record.words.items()):
            is_due_back = node in record.overwritten_at
            if not is_due_back and not word.stands_in(self.look(node)):
                del record.words[node]

    def _beat(self) -> None:
        """One of the two beats, each of which may sweep amid the other's sweep or a turn."""
        self._beat_at = self.site.now + BEAT
        self._sweeps += 1
        self.note(f"beat {self._sweeps}", "sweeps")
        try:
            with self._others_may_act():
                self.pipeline.sweep()
                self.pipeline.look_at_nodes()
                self.pipeline.record_acts()
        finally:
            self._sweeps -= 1
        if self._sweeps or self._views:
            return
        for node, word in self.record.words.items():
            word.is_seen = word.is_seen or word.stands_in(self.look(node))
        self._send()
        self._check(invariants.AT_BEATS)

    def _send(self) -> None:
        while self.calls.messages:
            self.pipeline.notify(self.calls.messages.popleft())

    def _work(self, due: list[int]) -> None:
        """One turn of a run, by a worker that may die in it."""
        run = _get_run(_RUN_WITH_NODE, self.dice.choice(sorted(due)))
        record = self.record
        self._act_at("begin", _get_step(run), run.place)
        self._let_service_die(_get_step(run), run.place)
        run = _get_run(_RUN, run.pk)
        name = _get_step(run)
        view = TurnView(
            run_id=run.pk,
            runbook=run.runbook,
            fence=run.fence + 1,
            incident_id=run.incident_id,
            node=run.place,
            step=name,
            fault_type=run.fault_type,
            out=self.get_out(),
            claimed=self.get_claimed(run.pk),
            needed=record.needed,
            queued=record.queued,
            ill=frozenset(filter(self.is_ill, self.site.names)),
            changes=record.changes,
            is_breaker_open=bool(_OPEN_BREAKERS.rows()),
            begun_at=self.site.now,
            in_partition=self.reserve.get_in_partition(),
            aside=self.reserve.get_aside(),
            busy=self.get_jobs_on_transceiver(),
        )
        self._views.append(view)
        self._is_open = self._is_open or name == self.habits.begins_at
        self.note(f"worker {len(self._views)}", f"run {run.pk} at {name}")
        try:
            with self._others_may_act():
                turn.advance(run.pk, now=self.site.now, world=self.site.world, at=self._reach)
        except Killed:
            self.note(f"worker {len(self._views)}", "dies")
        finally:
            self._views.pop()
        run = _get_run(_RUN, run.pk)
        for check in invariants.OF_TURNS:
            check(self, view, run)
        with self._others_may_act():
            services.start_after(run.pk, now=self.site.now, world=self.site.world)

    def ingest(self, wires: list[dict[str, Any]]) -> None:
        """By a process of its own."""
        with self._others_may_act():
            self.pipeline.ingest(wires)

    @contextlib.contextmanager
    def by_person(self) -> Iterator[None]:
        """What is done to Slurm in here is of no run's turn, whosever turn is under way."""
        views, self._views = self._views, []
        try:
            yield
        finally:
            self._views = views

    @contextlib.contextmanager
    def _others_may_act(self, *, may: bool = True) -> Iterator[None]:
        """While the product works in here; or not, while somebody acts amid that."""
        before, self._is_product = self._is_product, may
        try:
            yield
        finally:
            self._is_product = before

    def _pause_before_run(self, incident: Incident) -> None:
        """What is allowed changes more often just then."""
        if not (self._is_open and self._is_product) or self._is_amid_statements:
            return
        if self.luck.random() >= self.habits.statement * 20:
            return
        self.site.now += _MOMENT
        self.note("meanwhile", f"a run for #{incident.pk} is about to begin")
        self._is_amid_statements = True
        self._focus = incident.node.name if incident.node is not None else ""
        try:
            self._do(self.luck.choice(_WHAT_IS_ALLOWED))
        finally:
            self._is_amid_statements, self._focus = False, ""

    def _pause_at_statement(self, statement: str) -> None:
        """Others act there, and nobody amid what they do."""
        if not (self._is_open and self._is_product) or self._is_amid_statements:
            return
        if self.luck.random() >= self.habits.statement:
            return
        self.site.now += _MOMENT
        # A savepoint's own name is another each time.
        what = "a transaction" if statement.startswith("SAVEPOINT") else statement[:40]
        self.note("meanwhile", f"before {what}")
        self._is_amid_statements = True
        try:
            self._act_somebody()
        finally:
            self._is_amid_statements = False

    def _reach(self, point: str) -> None:
        """A point of a turn, where the machine may stop and others go on."""
        self._pause(point)
        if point == "attempted":
            self.record.attempted_at[self._views[-1].run_id] = self.site.now
        if self._is_quiet:
            return
        if self.dice.random() < self.habits.death:
            raise Killed
        if len(self._views) == 1 and self.dice.random() < self.habits.stall:
            self._stall()

    def _stall(self) -> None:
        """The worker stands still until its lease is over; another goes on."""
        self.note(f"worker {len(self._views)}", "stands still")
        self.site.now += LEASE + _SECOND
        due = services.get_due_runs(self.site.now)
        if due:
            self._work(due)

    def _act_at(self, point: str, step: str, node: str) -> None:
        """The chosen moment: once, or again while there is nothing to do at it."""
        aim = self._aim
        if aim is None or self._is_quiet or (aim.step, aim.point) != (step, point):
            return
        self._aim, self._focus = None, node
        self.site.now += _MOMENT
        told = len(self.trace)
        with self._others_may_act(may=False):
            self._do(aim.act)
        self._focus = ""
        if len(self.trace) == told:
            self._aim = aim

    def _let_service_die(self, step: str, node: str) -> None:
        """A fault of another incident, on the node of a run that is about to take a turn."""
        if self._is_quiet or not self._has_second_faults or step not in _STEPS_OF_SECOND_FAULTS:
            return
        if self._second.random() < _SERVICE_DIES:
            self.others.stop_service(node)

    def _work_on_another(self) -> None:
        due = services.get_due_runs(self.site.now)
        if due and len(self._views) == 1:
            self._work(due)

    def _beat_amidst(self) -> None:
        if self._sweeps < _BEATS:
            self._beat()

    def _race_next(self) -> None:
        self.race_next()
        self.note("bob", "is about to drain it")

    def _pause(self, where: str) -> None:
        """`where`: a point of a turn, or the call to Slurm that comes next. Before an act, and just
        after a reboot was asked for, somebody speaks more often, mostly of that node."""
        if self._views:
            self._act_at(where, self._views[-1].step, self._views[-1].node)
        if not self._is_open:
            return
        with self._others_may_act(may=False):
            self._pause_before(where)

    def _pause_before(self, where: str) -> None:
        is_at_act = where in ("drain", "resume", "reboot")
        is_at_act = is_at_act or (where == "attempted" and self._views[-1].step in _PAST_SLURM)
        is_at_act = is_at_act or (where == "acted" and self._has_just_asked_for_reboot())
        amidst = self.habits.amidst * (3 if is_at_act else 1)
        if self._views and self._views[-1].step == self.habits.begins_at:
            amidst = max(amidst, self.habits.watched)
        if self.dice.random() >= amidst:
            return
        self.site.now += _MOMENT
        if is_at_act and self.dice.random() < 0.5:
            self._do(self.dice.choice(("drain", "fail", "append", "resume", "undrain", "reboot")))
            return
        if self._sweeps < _BEATS and self.dice.random() < 0.1:
            self._beat()
            return
        if len(self._views) == 1 and self.dice.random() < 0.3:
            due = services.get_due_runs(self.site.now)
            if due:
                self._work(due)
            return
        self._act_somebody()

    def _has_just_asked_for_reboot(self) -> bool:
        asked = self.record.ours_asked.values()
        return any(self.site.now - at < _SECOND for at in asked)

    def _finish(self) -> None:
        self._is_open = False  # people have done what they did
        # Until whoever closed an incident may have given its node back.
        self.site.now += timedelta(minutes=2)
        self.pipeline.look_at_nodes()
        for _ in range(3):
            self._beat_at = self.site.now
            self.pipeline.sweep()
            self._send()
        self._check(invariants.AT_THE_END)

    # Acts of the product
    # ---------------------------------------------------------------------------------------------

    def _undisturbed(self) -> contextlib.AbstractContextManager[None]:
        return self._others_may_act(may=False)

    def _watch(self, act: tuple[str, str, str], run: Callable[[], Output]) -> Output:
        with self._undisturbed():
            return self._watch_act(act, run)

    def _watch_act(self, act: tuple[str, str, str], run: Callable[[], Output]) -> Output:
        verb, node, reason = act
        is_raced = self._may_race(verb, node)
        if is_raced:
            self.site.now += _SECOND
            self.people.drain(node)
            self.site.now += _SECOND
        self._settle()
        before = self.look(node)
        output = run()
        after = self.look(node)
        view = self._views[-1] if self._views else None
        done = Act(self.site.now, verb, node, reason, before, after, view, is_raced)
        self.note("Kintsugi", f"scontrol {verb} {node} {reason!r}", node)
        for check in invariants.OF_ACTS:
            check(self, done)
        self.record.acts.append(done)
        is_put_back = reason.endswith("put back by Kintsugi)")
        if verb == "drain" and reason.startswith("kintsugi:") and not is_put_back:
            self.record.own_reasons.add(after.reason)
        if verb == "reboot":
            self.record.ours_asked[node] = self.site.now
            self.others.may_hang(node)
        return output

    def _watch_power(self, verb: str, node: str) -> None:
        state = self.look(node)
        view = self._views[-1] if self._views else None
        self.note("Kintsugi", f"{verb} {node}", node)
        done = Act(self.site.now, verb, node, "", state, state, view)
        with self._undisturbed():
            for check in invariants.OF_ACTS:
                check(self, done)
        self.record.acts.append(done)

    def _check_spare_in(self, spare: str) -> None:
        self.note("Kintsugi", f"brings the spare {spare} in for {self.get_view().node}")
        for check in invariants.OF_SPARES_IN:
            check(self, spare)

    def _check_spare_out(self, spare: str) -> None:
        if self.has_view():
            self.note("Kintsugi", f"takes the spare {spare} out")
            invariants.no_spare_is_moved_whose_root_refuses(self, spare)
        invariants.a_spare_is_taken_back_by_whom_it_serves(self, spare)

    def _may_race(self, verb: str, node: str) -> bool:
        """A person drains between the client's look and its command, where accounts can tell of it
        afterwards. Nothing can tell of it where none are kept or jobs are on the node, and a reboot
        cannot be taken back: what is documented so is not asked for here."""
        if verb not in ("drain", "resume") or not (self._is_open or self._is_race_due):
            return False
        if not self._is_race_due and self.dice.random() >= self.habits.raced:
            return False
        is_quiet = not self.look(node).is_rebooting and not self.site.slurm.list_jobs(node)
        may_race = is_quiet and self.site.slurm.keeps_accounts
        self._is_race_due = self._is_race_due and not may_race
        return may_race

    def _check(self, checks: tuple[Callable[[Play], None], ...]) -> None:
        for check in checks:
            check(self)


def _get_run(query: Prepared, run_id: int) -> Run:
    (run,) = query.objects(run=run_id)
    assert isinstance(run, Run)
    return run


def _get_step(run: Run) -> str:
    is_over = run.finished_at is not None or run.step >= len(run.plan)
    return "end" if is_over else str(run.plan[run.step]["step"])


def play_once(seed: int) -> Play:
    """Raises Broken, whose text is the seed, what is broken and the trace."""
    with _rolled_back(), tempfile.TemporaryDirectory(prefix="kintsugi-play-") as folder:
        play = Play(seed, Path(folder))
        try:
            play.play()
        except Broken as broken:
            lines = "\n".join(play.trace)
            raise Broken(f"seed {seed:08d}: {broken}\n{lines}") from broken
        return play


@contextlib.contextmanager
def _rolled_back() -> Iterator[None]:
    graphs.forget()
    try:
        with transaction.atomic():
            yield
            transaction.set_rollback(True)
    finally:
        graphs.forget()
