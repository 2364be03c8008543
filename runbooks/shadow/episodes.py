"""The fault episodes of dry runs, each judged once: whether its node was well or broken, whether
Kintsugi would have drained it, and what came of it without that. Reads only.

An episode is one incident on one node. What its acts would have been counts no further: a drain,
the reboot and the resume of one fault are one trial.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from django.db.models import Q

from detectors import resources
from incidents.evaluation.windows import WindowKind
from incidents.models import Incident, IncidentJob, NodeInterval, Silence
from incidents.vocabulary.lifecycle import State
from runbooks.models import Run, RunState
from runbooks.shadow import episode_facts, well_nodes
from runbooks.shadow.episode_facts import EpisodeFacts, FaultLook

# By `EpisodeFacts.held_by`.
_HELD = {
    "person": "a person had taken the node out before",
    "check": "a check of the site had taken the node out before",
    "slurm": "Slurm had taken the node out before",
    "maintenance": "people worked on the node",
    "decommissioned": "the node is being taken away",
}


class EpisodeVerdict(StrEnum):
    WELL = "well"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    LEFT_OUT = "left_out"


@dataclass(frozen=True)
class Episode:
    """`why` says by what the node was judged; `closed_at`: its incident was. `drained_at`: when
    Kintsugi would have drained it; None: it would not have. The others are of broken nodes:
    `jobs_died`, those that began on it after that and were lost to the fault; `hours`, how much
    longer it took jobs; `held_hours`, how long `guard` would have kept it in service.
    """

    run: int
    incident: int
    node: str
    runbook: str
    fault_type: str
    began_at: datetime
    verdict: EpisodeVerdict
    why: str
    closed_at: datetime | None = None
    drained_at: datetime | None = None
    jobs_died: int = 0
    hours: float = 0.0
    guard: str = ""
    held_hours: float = 0.0


@dataclass
class _Past:
    """What else is known of these nodes since then, by node."""

    windows: dict[str, list[tuple[datetime, datetime]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    outages: dict[str, list[tuple[datetime, datetime]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    deaths: dict[tuple[int, str], list[datetime]] = field(default_factory=lambda: defaultdict(list))


def load_episodes(since: datetime, now: datetime, *, runbook: str = "") -> list[Episode]:
    """Those that began since then, the oldest first; of one runbook, or of all."""
    runs = Run.objects.filter(
        state=RunState.SHADOWED,
        started_at__gte=since,
        node__isnull=False,
        facts__has_key=episode_facts.FACT,
    )
    if runbook:
        runs = runs.filter(runbook=runbook)
    rows = runs.select_related("node", "incident", "incident__root_fault").order_by("pk")
    firsts: dict[tuple[int, str], Run] = {}
    for run in rows:
        firsts.setdefault((run.incident_id, run.place), run)
    past = _load_past([*firsts.values()], since, now)
    return [_judge(run, past, now) for run in firsts.values()]


def _load_past(runs: Collection[Run], since: datetime, now: datetime) -> _Past:
    past = _Past()
    names = {run.place for run in runs}
    kept = Silence.objects.filter(kind=WindowKind.MAINTENANCE.value, starts_at__lte=now)
    for window in kept.filter(Q(ended_at=None) | Q(ended_at__gte=since)):
        end = min(window.ended_at or now, window.ends_at or now)
        for machine in window.machines:
            past.windows[machine].append((window.starts_at, end))
    out = NodeInterval.objects.filter(node__in=names, is_serving=False)
    out = out.filter(Q(until=None) | Q(until__gte=since)).order_by("since")
    for node, began_at, until in out.values_list("node", "since", "until"):
        past.outages[node].append((began_at, until or now))
    incidents = {run.incident_id for run in runs}
    lost = IncidentJob.objects.filter(
        incident__in=incidents, is_harmed=True, job__ended_at__isnull=False
    )
    columns = ("incident_id", "job__nodes__node", "job__started_at")
    for incident, node, started_at in lost.values_list(*columns):
        past.deaths[incident, node].append(started_at)
    return past


def _judge(run: Run, past: _Past, now: datetime) -> Episode:
    facts = episode_facts.load(run.facts)
    verdict, why = _get_verdict(run, facts, past)
    drained_at = _get_drain_time(facts) if verdict is not EpisodeVerdict.LEFT_OUT else None
    closed_at = run.incident.closed_at
    episode = Episode(
        run.pk,
        run.incident_id,
        run.place,
        run.runbook,
        run.fault_type,
        run.started_at,
        verdict,
        why,
        closed_at,
        drained_at,
    )
    return (
        _add_costs(episode, run, facts, past, now) if verdict is EpisodeVerdict.BROKEN else episode
    )


def _get_verdict(run: Run, facts: EpisodeFacts, past: _Past) -> tuple[EpisodeVerdict, str]:
    left_out = next(_find_reasons_to_leave_out(run, facts, past), "")
    if left_out:
        return EpisodeVerdict.LEFT_OUT, left_out
    state = State(run.incident.state)
    well = well_nodes.find_reason(state, is_refuted=facts.refuted_at is not None)
    if well:
        return EpisodeVerdict.WELL, well
    if facts.look is FaultLook.SEEN:
        return EpisodeVerdict.BROKEN, "seen on the node"
    if run.incident.is_confirmed:
        return EpisodeVerdict.BROKEN, "a person confirmed the incident"
    return EpisodeVerdict.UNKNOWN, "the node has not shown whether the fault is there"


def _find_reasons_to_leave_out(run: Run, facts: EpisodeFacts, past: _Past) -> Iterator[str]:
    if facts.held_by:
        yield _HELD.get(facts.held_by, "another run of Kintsugi had taken the node out before")
    windows = past.windows[resources.node(run.place)]
    if any(begin <= run.started_at <= end for begin, end in windows):
        yield "people worked on the node"
    if State(run.incident.state) is State.DUPLICATE:
        yield "the incident repeats another one"


def _get_drain_time(facts: EpisodeFacts) -> datetime | None:
    """None where the guards did not let it pass before the fault was refuted, or the node would
    have been asked first."""
    if facts.is_spared or facts.allowed_at is None:
        return None
    is_late = facts.refuted_at is not None and facts.refuted_at < facts.allowed_at
    return None if is_late else facts.allowed_at


def _add_costs(
    episode: Episode, run: Run, facts: EpisodeFacts, past: _Past, now: datetime
) -> Episode:
    """With what the broken node cost while it took jobs."""
    end = _get_end(run, past, now)
    jobs_died, hours, held_hours = 0, 0.0, 0.0
    drained_at = episode.drained_at
    if drained_at is not None:
        begun = past.deaths[run.incident_id, run.place]
        jobs_died = sum(drained_at <= started_at <= end for started_at in begun)
        hours = _compute_hours_between(drained_at, end)
    if facts.refused_at is not None and not facts.is_spared:
        held_hours = _compute_hours_between(facts.refused_at, min(facts.allowed_at or end, end))
    return replace(
        episode, jobs_died=jobs_died, hours=hours, guard=facts.refusal, held_hours=held_hours
    )


def _compute_hours_between(begin: datetime, end: datetime) -> float:
    return max(0.0, (end - begin).total_seconds() / 3600)


def _get_end(run: Run, past: _Past, now: datetime) -> datetime:
    """When the node took no more jobs, or was broken no more, whichever came first."""
    spells = (*past.outages[run.place], *past.windows[resources.node(run.place)])
    begun = (max(begin, run.started_at) for begin, end in spells if end > run.started_at)
    return min((now, *_get_cures(run.incident), *begun))


def _get_cures(incident: Incident) -> Iterator[datetime]:
    fault = incident.root_fault
    if fault is not None and fault.cleared_at is not None:
        yield fault.cleared_at
    for at in (incident.restored_at, incident.closed_at):
        if at is not None:
            yield at


def group_by_runbook(episodes: Collection[Episode]) -> Mapping[str, list[Episode]]:
    """In order of name."""
    groups: dict[str, list[Episode]] = defaultdict(list)
    for episode in sorted(episodes, key=lambda episode: (episode.runbook, episode.run)):
        groups[episode.runbook].append(episode)
    return groups
