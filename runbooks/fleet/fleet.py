"""What the guards are told: Slurm's nodes, our own claims on them, what was done before, what
stands in the way.

Reads only. What Slurm must be asked comes from the caller, who asks before any lock is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.db.models import DateTimeField, Q, QuerySet, Value

from detectors import resources
from detectors.faults import Action, Severity
from incidents.db.prepared import Given, Prepared
from incidents.inventory import graphs
from incidents.maintenance import active_windows
from incidents.models import Fault, Node
from incidents.people import wider_incidents
from incidents.reserve import decommissions
from incidents.topology.graph import Graph
from runbooks.fleet import armings, believed_severity, breaker
from runbooks.guards import history, table
from runbooks.guards.policy import Policy
from runbooks.guards.table import Act, Fleet, PastReboot, WiderCause
from runbooks.guards.verdicts import ROOM
from runbooks.lease.lease import REFUSED
from runbooks.models import (
    UNFINISHED,
    Arming,
    JobStop,
    Mode,
    ReturnStop,
    Run,
    RunbookMode,
    RunState,
    StepRun,
    StopSwitch,
)
from runbooks.node.witnesses import WITNESS
from runbooks.plan.limits import Limits
from runbooks.slurm import protocol
from runbooks.slurm.demands import Demand
from runbooks.slurm.protocol import NodeState, SlurmError, SlurmReader, SlurmRefusal

SITE = "*"
"""The name under which the site's own mode is kept: no runbook goes further."""
GIVE_NOTHING_BACK = "give-nothing-back"
"""Written into the stop file it holds each resume too."""
_WORD = GIVE_NOTHING_BACK.encode()
_LONGEST_STOP_FILE = 4096
# Slurm was read before the claims: a run that ended in between may have left its node out.
_JUST_ENDED = timedelta(minutes=2)
_REPAIRS = [action.value for action in Action if action.at_least(Action.RESET_GPU)]
_RESTARTS = {"reboot": Act.REBOOT, "cold_cycle": Act.POWER_CYCLE}
_MODES = tuple(Mode)
# The number of no row.
_NONE = 0
_WAIT_FOR_JOBS = ("requeue_dead_jobs", "wait_for_jobs")


@dataclass(frozen=True)
class FleetSnapshot:
    """What Slurm shows, looked at once for one round of guards. `demands`: None where nobody has
    asked what jobs need."""

    nodes: Mapping[str, NodeState]
    demands: tuple[Demand, ...] | None = None


def read_snapshot(
    slurm: SlurmReader,
    beside: Callable[[], None] = protocol.do_nothing,
    *,
    with_demands: bool = True,
) -> FleetSnapshot:
    """All nodes, and what jobs need; `beside` is done while Slurm is asked. Raises SlurmError."""
    if not with_demands:
        return FleetSnapshot(slurm.read_nodes_beside(beside))
    nodes, demands = slurm.read_nodes_and_demands(beside)
    return FleetSnapshot(nodes, tuple(demands))


def load_fleet(
    run: Run,
    snapshot: FleetSnapshot,
    *,
    limits: Limits,
    policy: Policy,
    now: datetime,
    unusable: str = "",
) -> Fleet:
    """The fleet as this run's guards must see it. `limits` are its runbook's; `unusable` names what
    was seen on its node."""
    graph = graphs.get_current()
    facts = _load_site_facts(snapshot, graph, limits=limits, policy=policy, now=now)
    facts |= _load_mode(run.runbook, run.node, now, used=run.facts.get(armings.USED))
    facts |= _load_fault_facts(run.fault_type, run.pk, now)
    facts |= _load_node_facts(run.place, run.fault_type, get_resource(run), graph, now)
    facts |= _load_queue_facts(run)
    claims = _load_claims(now, but_run=run.pk)
    reboots = _get_reboots(run.node_id or _NONE, now, but_run=run.pk)
    incident = run.incident
    is_claimed = run.claimed_at is not None
    return Fleet(
        **facts,
        unusable=unusable,
        held_until=incident.held_until,
        held_reason=incident.held_reason,
        claimed=claims.nodes,
        just_ended=claims.just_ended,
        is_claimed=is_claimed,
        reboots=reboots,
    )


def load_fleet_for_node(
    node: Node,
    runbook: str,
    snapshot: FleetSnapshot,
    *,
    fault_type: str,
    limits: Limits,
    policy: Policy,
    now: datetime,
) -> Fleet:
    """The fleet as the guards must see it for a node on which no run of ours acts. `limits` are the
    runbook's."""
    graph = graphs.get_current()
    facts = _load_site_facts(snapshot, graph, limits=limits, policy=policy, now=now)
    facts |= _load_mode(runbook, node, now)
    facts |= _load_fault_facts(fault_type, _NONE, now)
    facts |= _load_node_facts(node.name, fault_type, resources.node(node.name), graph, now)
    claims = _load_claims(now, but_node=node.pk)
    reboots = _get_reboots(node.pk, now)
    return Fleet(
        **facts,
        claimed=claims.nodes,
        just_ended=claims.just_ended,
        is_claimed=False,
        reboots=reboots,
    )


def get_answering_nodes(names: Sequence[str], slurm: SlurmReader) -> set[str] | None:
    """Which of these nodes answer Slurm; None when Slurm itself cannot be asked."""
    try:
        states = slurm.read_nodes()
    except (SlurmError, SlurmRefusal):
        return None
    return {name for name in names if name in states and _is_answering(states[name])}


def _is_answering(state: NodeState) -> bool:
    return state.base != "DOWN" and "NOT_RESPONDING" not in state.flags


def get_mode(runbook: str) -> Mode:
    """Its own mode (no row: shadow), and no further than the site's, where that is set."""
    return get_modes((runbook,))[runbook]


_MODES_OF = Prepared(
    lambda: RunbookMode.objects.filter(runbook__among=Given("runbooks")).values_list(
        "runbook", "mode"
    )
)


def get_modes(runbooks: Collection[str]) -> dict[str, Mode]:
    """Of each, as `get_mode`."""
    rows = dict(_MODES_OF.rows(runbooks=(*runbooks, SITE)))
    site = Mode(rows.get(SITE, Mode.ARMED))
    return {name: get_lower_mode(Mode(rows.get(name, Mode.SHADOW)), site) for name in runbooks}


@dataclass(frozen=True)
class DecidedMode:
    """How far a runbook may go on a node now. `arming`: by which; None: by the modes alone."""

    mode: Mode
    arming: Arming | None = None


@dataclass(frozen=True)
class ModeTable:
    """The runbooks' own modes and the site's, and the armings in force, as they were read."""

    own: Mapping[str, Mode]
    site: Mode
    armings: Sequence[Arming]

    def decide(self, runbook: str, node: Node | None, *, used: int | None = None) -> DecidedMode:
        """An arming that covers it there stands in the place of the runbook's own mode, unless that
        is off; neither goes further than the site's mode. `used` names the arming by which the run
        that asks took its node out."""
        own = self.own[runbook]
        arming = armings.find_deciding(self.armings, runbook, node, used=used)
        if arming is None or own is Mode.OFF:
            return DecidedMode(get_lower_mode(own, self.site))
        return DecidedMode(get_lower_mode(Mode(arming.mode), self.site), arming)

    @property
    def may_act(self) -> bool:
        """Whether any runbook may act anywhere."""
        lent = (Mode(arming.mode) for arming in self.armings if not armings.is_used_up(arming))
        modes = (*self.own.values(), *lent)
        acting = (Mode.APPROVAL, Mode.ARMED)
        return any(get_lower_mode(mode, self.site) in acting for mode in modes)


def load_modes(runbooks: Collection[str], now: datetime) -> ModeTable:
    """Of these runbooks; without a row a runbook is in shadow, and the site holds nothing back."""
    rows = dict(_MODES_OF.rows(runbooks=(*runbooks, SITE)))
    own = {name: Mode(rows.get(name, Mode.SHADOW)) for name in runbooks}
    return ModeTable(own, Mode(rows.get(SITE, Mode.ARMED)), armings.load_in_force(now))


def decide_mode(
    runbook: str, node: Node | None, now: datetime, *, used: int | None = None
) -> DecidedMode:
    """What the guards ask just before each act."""
    return load_modes((runbook,), now).decide(runbook, node, used=used)


def get_lower_mode(*modes: Mode) -> Mode:
    """The one that lets less happen."""
    return min(modes, key=_MODES.index)


def get_site_mode() -> Mode | None:
    """None where nobody has set one: each runbook's own counts."""
    row = RunbookMode.objects.filter(runbook=SITE).first()
    return Mode(row.mode) if row is not None else None


_ENGAGED = Prepared(lambda: StopSwitch.objects.filter(released_at=None).order_by("engaged_at")[:1])


def get_stop_reason(stop_file: Path) -> str:
    """Who stopped everything, and why; empty when nobody did."""
    row = next(iter(_ENGAGED.objects()), None)
    if row is not None:
        return _format_switch(row)
    return f"the file {stop_file} exists" if stop_file.exists() else ""


def get_return_stop_reason(stop_file: Path) -> str:
    """Who stopped everything and has nothing given back, and why; empty when nobody did."""
    rows = ReturnStop.objects.filter(switch__released_at=None).select_related("switch")
    row = rows.order_by("switch__engaged_at").first()
    return _format_switch(row.switch) if row is not None else read_return_stop(stop_file)


def read_return_stop(stop_file: Path) -> str:
    """Why nothing is given back, as far as the stop file says it; empty where it does not. One that
    cannot be read may say it."""
    try:
        if stop_file.exists() and not stop_file.is_file():
            return f"{stop_file} exists and is no file"
        with stop_file.open("rb") as file:
            words = file.read(_LONGEST_STOP_FILE).split()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"the file {stop_file} exists and cannot be read ({error.strerror})"
    return f"the file {stop_file} says {GIVE_NOTHING_BACK}" if _WORD in words else ""


def _format_switch(row: StopSwitch) -> str:
    return f"{row.engaged_by} at {row.engaged_at:%Y-%m-%d %H:%M %Z}: {row.reason}"


def get_resource(run: Run) -> str:
    """What the fault that the run is for is on."""
    part: str = run.facts.get("resource", run.incident.root_resource)
    return part


def get_held_nodes(run: Run, now: datetime) -> frozenset[str]:
    """Nodes that our other runs have been let take out."""
    return _load_claims(now, but_run=run.pk).nodes


_REPAIRS_OF = Prepared(
    lambda: (
        Fault.objects.active()
        .filter(owner=Given("owner"), action__in=_REPAIRS)
        .values_list("fault_type")
    )
)


def get_active_repairs(node: str) -> frozenset[str]:
    """Types of the faults that stand on the node and call for a repair of it."""
    return frozenset(_REPAIRS_OF.values(owner=resources.node(node)))


def _load_site_facts(
    snapshot: FleetSnapshot, graph: Graph, *, limits: Limits, policy: Policy, now: datetime
) -> dict[str, Any]:
    facts = _load_breaker_facts(snapshot, policy=policy, now=now)
    facts |= {
        "stopped": get_stop_reason(policy.stop_file),
        "bounds": policy.bounds,
        "per_hour": limits.per_hour,
    }
    pods = {place.name: place.pod for place in graph.topology.nodes}
    return facts | {
        "nodes": snapshot.nodes,
        "demands": snapshot.demands or (),
        "maintained": active_windows.get_maintained(now),
        "decommissioned": decommissions.get_decommissions(),
        "pods": pods,
    }


def _load_mode(
    runbook: str, node: Node | None, now: datetime, *, used: int | None = None
) -> dict[str, Any]:
    decision = decide_mode(runbook, node, now, used=used)
    if decision.arming is None:
        return {"mode": decision.mode}
    why = armings.describe(decision.arming)
    return {"mode": decision.mode, "mode_why": why, "arming": decision.arming.pk}


def _load_breaker_facts(
    snapshot: FleetSnapshot, *, policy: Policy, now: datetime
) -> dict[str, Any]:
    """Where it is open, nobody asks what turned bad."""
    record = breaker.read_record()
    if record.open is not None:
        return {"breaker": str(record.open), "turned_bad": frozenset()}
    turned_bad = breaker.get_nodes_turned_bad(snapshot.nodes, record, now, bounds=policy.bounds)
    return {"breaker": "", "turned_bad": turned_bad}


def _prepare_begun() -> QuerySet[Run, Any]:
    of_type, since = Given("fault_type"), Given("since")
    claimed = Run.objects.filter(~Q(pk=Given("run")), fault_type=of_type, claimed_at__gt=since)
    stopped = JobStop.objects.filter(fault_type=of_type, granted_at__gt=since)
    rows = stopped.order_by().values_list("granted_at")
    return claimed.order_by().values_list("claimed_at").union(rows, all=True)


_BEGUN = Prepared(_prepare_begun)


def _load_fault_facts(fault_type: str, run_id: int, now: datetime) -> dict[str, Any]:
    """When other runs and jobs' stops for this fault type began, within the hour."""
    begun = _BEGUN.values(run=run_id, fault_type=fault_type, since=now - history.HOUR)
    return {"begun": tuple(begun)}


def list_graver(severity: Severity) -> list[str]:
    """The severities above it, as they are stored."""
    return [word.value for word in Severity if word.rank > severity.rank]


def list_lesser(severity: Severity) -> list[str]:
    """The severities below it, as they are stored."""
    return [word.value for word in Severity if word.rank < severity.rank]


_REFUSED_FOR_ROOM = Prepared(
    lambda: Run.objects.filter(
        ~Q(pk=Given("run")),
        believed_severity.is_among("graver"),
        facts__has_key=WITNESS,
        state=RunState.RUNNING,
        claimed_at=None,
        node__isnull=False,
        **{f"facts__{REFUSED}__in": [kind.value for kind in ROOM]},
    ).values_list("node__name")
)
_LESSER_CLAIMS = Prepared(
    lambda: Run.objects.filter(
        ~Q(pk=Given("run")),
        state__in=UNFINISHED,
        claimed_at__isnull=False,
        incident__severity__among=Given("lesser"),
    ).values_list("node__name", "plan", "step")
)


def _load_queue_facts(run: Run) -> dict[str, Any]:
    """Who goes first where room is short. What a witness has seen is let go first, and nobody
    yields to a text alone, whatever is seen beside it."""
    severity = believed_severity.get_severity(run)
    ahead = frozenset(_REFUSED_FOR_ROOM.values(run=run.pk, graver=list_graver(severity)))
    if WITNESS not in run.facts:
        return {"ahead": ahead}
    rows = _LESSER_CLAIMS.rows(run=run.pk, lesser=list_lesser(severity))
    yielding = frozenset(name for name, plan, step in rows if _waits_for_jobs(plan, step))
    return {"ahead": ahead, "yielding": yielding}


def _waits_for_jobs(plan: Sequence[Mapping[str, Any]], step: int) -> bool:
    return step < len(plan) and plan[step]["step"] in _WAIT_FOR_JOBS


_BOOT_SEEN = Prepared(
    lambda: Node.objects.filter(name=Given("node")).values_list("boot_seen_at")[:1]
)


def _load_node_facts(
    node: str, fault_type: str, part: str, graph: Graph, now: datetime
) -> dict[str, Any]:
    booted_at = next(iter(_BOOT_SEEN.values(node=node)), None)
    incidents = wider_incidents.list_wider_incidents(node, fault_type, part, graph, now)
    causes = [
        f"incident #{incident.incident_id}, {incident.title}, is open on {incident.resource}"
        for incident in incidents
    ]
    return {
        "causes": tuple(WiderCause(text) for text in causes),
        "active_faults": get_active_repairs(node),
        "booted_at": booted_at,
    }


@dataclass(frozen=True)
class Claims:
    """`just_ended`: of these nodes, those whose run has ended a moment ago."""

    nodes: frozenset[str]
    just_ended: frozenset[str]


def _prepare_claims() -> QuerySet[Run, Any]:
    """Nodes that runs were let take out, each with when its run ended, and those that were given
    leave."""
    is_others = ~Q(pk=Given("run")) & ~Q(node=Given("node"))
    is_recent = Q(finished_at=None) | Q(finished_at__gte=Given("since"))
    taken = Run.objects.filter(is_others, is_recent, claimed_at__isnull=False)
    granted = JobStop.objects.filter(expires_at__gt=Given("now"))
    not_ended = Value(None, output_field=DateTimeField())
    rows = granted.order_by().values_list("node__name", not_ended)
    return taken.order_by().values_list("node__name", "finished_at").union(rows, all=True)


_CLAIMS = Prepared(_prepare_claims)


def _load_claims(now: datetime, *, but_run: int = _NONE, but_node: int = _NONE) -> Claims:
    """With the nodes whose own check was given leave to stop a job: Slurm is about to drain
    them."""
    taken = _CLAIMS.rows(run=but_run, node=but_node, since=now - _JUST_ENDED, now=now)
    ended = {name for name, finished_at in taken if finished_at is not None}
    held = {name for name, finished_at in taken if finished_at is None}
    return Claims(frozenset(held | ended), frozenset(ended - held))


def _prepare_reboots() -> QuerySet[StepRun, Any]:
    done = (StepRun.Outcome.ATTEMPTED, StepRun.Outcome.DONE, StepRun.Outcome.ALREADY_DONE)
    restarts = StepRun.objects.filter(name__in=list(_RESTARTS), outcome__in=done)
    of_others = restarts.filter(~Q(run=Given("run")), run__node=Given("node"))
    recent = of_others.filter(started_at__gte=Given("since"))
    return recent.values_list("run__node__name", "run__fault_type", "started_at", "name")


_REBOOTS = Prepared(_prepare_reboots)


def _get_reboots(node: int, now: datetime, *, but_run: int = _NONE) -> tuple[PastReboot, ...]:
    """Of other runs. Attempts count, whatever their outcome: an act of unknown outcome may have
    been done."""
    rows = _REBOOTS.rows(run=but_run, node=node, since=now - table.SUSPECT_WITHIN)
    return tuple(
        PastReboot(name, fault_type, at, _RESTARTS[step]) for name, fault_type, at, step in rows
    )
