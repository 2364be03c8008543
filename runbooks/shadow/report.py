"""The three numbers by which a site arms, each with its exact bounds, and what people took out that
no dry run would have. Reads only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors import resources
from incidents.evaluation.windows import WindowKind
from incidents.models import Silence
from incidents.reliability import proportions
from runbooks.models import SeenAct
from runbooks.shadow.episodes import Episode, EpisodeVerdict

# People see a fault's message before Kintsugi would act: a drain so much earlier is of the same
# episode (our choice).
_AHEAD = timedelta(hours=1)


@dataclass(frozen=True)
class Share:
    """`count` of `of`; `low` and `high` are the limits of the exact 95 % interval, of 1."""

    count: int
    of: int
    low: float
    high: float


@dataclass(frozen=True)
class DryRunReport:
    """Of one runbook, or of several together.

    1. `well`: of the drains whose node showed what was there, those of nodes that were well.
    2. `died`: of the broken nodes that Kintsugi would have drained, those on which jobs that began
       later were lost: `jobs_died` jobs, on nodes that took jobs for `hours` more.
    3. `held`: of the broken nodes, those that a guard would have kept in service: `held_hours`.

    `spared`: nodes that were well and would not have been drained. `unknown` and `left_out` stand
    in none of the three.
    """

    episodes: int
    well: Share
    spared: int
    died: Share
    jobs_died: int
    hours: float
    held: Share
    held_hours: float
    guards: tuple[str, ...]
    unknown: int
    left_out: int


@dataclass(frozen=True)
class ExternalDrains:
    """What one person took out for one reason, however many nodes it was: one gesture, or one
    work."""

    by: str
    reason: str
    nodes: tuple[str, ...]
    first_at: datetime
    last_at: datetime


def compute_report(episodes: Collection[Episode]) -> DryRunReport:
    well = [episode for episode in episodes if episode.verdict is EpisodeVerdict.WELL]
    broken = [episode for episode in episodes if episode.verdict is EpisodeVerdict.BROKEN]
    wrong = sum(episode.drained_at is not None for episode in well)
    right = [episode for episode in broken if episode.drained_at is not None]
    deadly = [episode for episode in right if episode.jobs_died]
    held = [episode for episode in broken if episode.held_hours]
    jobs_died = sum(episode.jobs_died for episode in deadly)
    hours = sum(episode.hours for episode in deadly)
    held_hours = sum(episode.held_hours for episode in held)
    guards = tuple(sorted({episode.guard for episode in held}))
    share_well = compute_share(wrong, wrong + len(right))
    share_died = compute_share(len(deadly), len(right))
    share_held = compute_share(len(held), len(broken))
    verdicts = Counter(episode.verdict for episode in episodes)
    spared = len(well) - wrong
    unknown = verdicts[EpisodeVerdict.UNKNOWN]
    left_out = verdicts[EpisodeVerdict.LEFT_OUT]
    return DryRunReport(
        len(episodes),
        well=share_well,
        spared=spared,
        died=share_died,
        jobs_died=jobs_died,
        hours=hours,
        held=share_held,
        held_hours=held_hours,
        guards=guards,
        unknown=unknown,
        left_out=left_out,
    )


def compute_share(count: int, total: int) -> Share:
    found = proportions.estimate_clopper_pearson(count, total)
    assert found.low is not None  # noqa: S101 - exact limits are always numbers
    assert found.high is not None  # noqa: S101
    return Share(count, total, found.low, found.high)


def list_external_drains(
    since: datetime, now: datetime, episodes: Collection[Episode]
) -> list[ExternalDrains]:
    """Drains by people outside their windows of nodes without an episode, the most nodes first."""
    of_node: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        of_node[episode.node].append(episode)
    windows = list(
        Silence.objects.filter(kind=WindowKind.MAINTENANCE.value, starts_at__lte=now).exclude(
            ended_at__lt=since
        )
    )
    drains = SeenAct.objects.filter(kind=SeenAct.Kind.DRAIN, at__gte=since).select_related("node")
    groups: dict[tuple[str, str], list[SeenAct]] = defaultdict(list)
    for act in drains.order_by("at", "pk"):
        has_episode = any(_is_of(act, episode) for episode in of_node[act.node.name])
        if not has_episode and not any(_is_within(act, window) for window in windows):
            groups[act.by, act.text].append(act)
    found = [_group(by, reason, acts) for (by, reason), acts in groups.items()]
    return sorted(found, key=lambda drains: (-len(drains.nodes), drains.first_at))


def _is_of(act: SeenAct, episode: Episode) -> bool:
    is_closed = episode.closed_at is not None and act.at > episode.closed_at
    return episode.began_at - _AHEAD <= act.at and not is_closed


def _is_within(act: SeenAct, window: Silence) -> bool:
    if resources.node(act.node.name) not in window.machines or act.at < window.starts_at:
        return False
    ends = [at for at in (window.ends_at, window.ended_at) if at is not None]
    return not ends or act.at <= min(ends)


def _group(by: str, reason: str, acts: list[SeenAct]) -> ExternalDrains:
    nodes = tuple(sorted({act.node.name for act in acts}))
    return ExternalDrains(by, reason, nodes, acts[0].at, acts[-1].at)
