"""The ledger of the shadow: what Kintsugi would have done beside what people did. Its only writer;
touches no node.

An act that a run in shadow would have taken agrees when a person did the same to the node before it
settles; it differs when nobody did. What people did where no run wanted it stands there too, and
differs. An engineer says of each difference who was right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet

from incidents.models import Node
from incidents.reliability import proportions
from runbooks.models import UNFINISHED, Run, SeenAct, SeenNode, ShadowAct
from runbooks.shadow import external_changes
from runbooks.slurm.ownership import Owner
from runbooks.slurm.protocol import NodeState

# The acts of a plan that Slurm shows, by step. A GPU reset leaves no trace there and is not
# compared.
KIND_OF_STEP = {
    "drain": SeenAct.Kind.DRAIN,
    "reboot": SeenAct.Kind.REBOOT,
    "cold_cycle": SeenAct.Kind.REBOOT,
    "resume": SeenAct.Kind.RESUME,
}
# People see a fault's message before Kintsugi would act: what they did this much earlier is the
# same act (our choice).
_AHEAD = timedelta(hours=1)
# An act of ours is seen a look later.
_JUST_ENDED = timedelta(minutes=5)
_LONGEST = 255


@dataclass(frozen=True)
class Agreement:
    """Of `settled` acts `agreed` were done by both sides; `share` has a Wilson interval.

    `judged_for_us`: differences in which an engineer found Kintsugi right.
    """

    runbook: str
    settled: int
    agreed: int
    open: int
    judged: int
    judged_for_us: int

    @property
    def share(self) -> tuple[float, float, float] | None:
        """Value, low and high; None while nothing has settled."""
        if not self.settled:
            return None
        found = proportions.wilson(self.agreed, self.settled)
        assert found.low is not None  # noqa: S101 - there are trials
        assert found.high is not None  # noqa: S101
        return self.agreed / self.settled, found.low, found.high


def noted(run: Run, steps: Iterable[str], *, window: timedelta, now: datetime) -> None:
    """In the transaction that ends a run in shadow: its acts enter the ledger."""
    kinds = dict.fromkeys(kind for step in steps if (kind := KIND_OF_STEP.get(step)) is not None)
    ShadowAct.objects.bulk_create(
        ShadowAct(
            side=ShadowAct.Side.KINTSUGI,
            node=run.node,
            incident=run.incident,
            run=run,
            runbook=run.runbook,
            kind=kind,
            at=now,
            settles_at=now + window,
        )
        for kind in kinds
        if run.node is not None
    )


@transaction.atomic
def see(nodes: Mapping[str, NodeState], now: datetime) -> int:
    """One look at Slurm's nodes: what people did since the last is written down. How many acts were
    new."""
    known = {
        row.node.name: row
        for row in SeenNode.objects.select_related("node").select_for_update(of=("self",))
    }
    ours = _touched_by_us(now)
    changed, acts = [], []
    for name, state in nodes.items():
        row = known.get(name)
        if row is None:
            continue
        before = external_changes.ShownNode(row.is_out, _owner_of(row), row.reason, row.boot_time)
        after = external_changes.observe_node(state)
        if _as_row(after) == (row.is_out, row.is_ours, row.reason, row.boot_time):
            continue
        if name not in ours:
            acts += [_row(row.node, act) for act in external_changes.acts(before, state, now)]
        row.is_out, row.is_ours, row.reason, row.boot_time = _as_row(after)
        row.seen_at = now
        changed.append(row)
    SeenNode.objects.bulk_update(
        changed, ["is_out", "is_ours", "reason", "boot_time", "seen_at"], batch_size=500
    )
    _meet(nodes.keys() - known.keys(), nodes, now)
    SeenAct.objects.bulk_create(acts)
    return len(acts)


def _as_row(one: external_changes.ShownNode) -> tuple[bool, bool, str, datetime | None]:
    return one.is_out, one.owner is Owner.OTHER_INCIDENT, one.reason[:_LONGEST], one.boot_time


def _owner_of(row: SeenNode) -> Owner:
    """Enough of it for the next look: a person's or Slurm's reason, or ours."""
    if not row.is_out:
        return Owner.NOBODY
    return Owner.OTHER_INCIDENT if row.is_ours else Owner.PERSON if row.reason else Owner.SLURM


def _touched_since(ended: datetime) -> QuerySet[Run]:
    lately = Q(state__in=UNFINISHED) | Q(finished_at__gte=ended)
    return Run.objects.filter(lately, claimed_at__isnull=False)


def _touched_by_us(now: datetime) -> set[str]:
    """Nodes on which a run of ours acts or acted a moment ago: what is seen there is its own
    doing."""
    return set(_touched_since(now - _JUST_ENDED).values_list("node__name", flat=True))


def _meet(names: Collection[str], nodes: Mapping[str, NodeState], now: datetime) -> None:
    """Nodes seen for the first time: what stands there already is nobody's act of today."""
    if not names:
        return
    rows = []
    for node in Node.objects.filter(name__in=list(names)):
        is_out, is_ours, reason, boot_time = _as_row(
            external_changes.observe_node(nodes[node.name])
        )
        rows.append(
            SeenNode(
                node=node,
                is_out=is_out,
                is_ours=is_ours,
                reason=reason,
                boot_time=boot_time,
                seen_at=now,
            )
        )
    SeenNode.objects.bulk_create(rows, ignore_conflicts=True)


def _row(node: Node, act: external_changes.ExternalAct) -> SeenAct:
    return SeenAct(
        node=node, kind=act.kind.value, at=act.at, by=act.by[:64], text=act.text[:_LONGEST]
    )


@transaction.atomic
def settle(now: datetime, *, window: timedelta) -> int:
    """Compares what is due: agreed at once when a person did the same, differed when its time is
    over. How many."""
    settled = 0
    waiting: list[ShadowAct] = []
    open_acts = ShadowAct.objects.filter(verdict=ShadowAct.Verdict.OPEN)
    if open_acts.exists():
        waiting = list(open_acts.select_for_update().order_by("at", "pk"))
    free: dict[tuple[int, str], list[SeenAct]] = {}
    if waiting:
        for seen in SeenAct.objects.filter(
            shadow_act=None, at__gte=waiting[0].at - _AHEAD
        ).order_by("at", "pk"):
            free.setdefault((seen.node_id, seen.kind), []).append(seen)
    for act in waiting:
        same = free.get((act.node_id, act.kind), [])
        match = next((seen for seen in same if act.at - _AHEAD <= seen.at <= act.settles_at), None)
        if match is not None:
            same.remove(match)
            settled += _verdict(act, ShadowAct.Verdict.AGREED, match)
        elif act.settles_at <= now:
            settled += _verdict(act, ShadowAct.Verdict.DIFFERED, None)
    return settled + _without_us(now, window=window)


def _verdict(act: ShadowAct, verdict: ShadowAct.Verdict, seen: SeenAct | None) -> int:
    return ShadowAct.objects.filter(pk=act.pk, verdict=ShadowAct.Verdict.OPEN).update(
        verdict=verdict, seen=seen
    )


def _without_us(now: datetime, *, window: timedelta) -> int:
    """What people did and no run in shadow wanted within the window after it: a difference of the
    other side."""
    alone = SeenAct.objects.filter(
        shadow_act=None, at__lte=now - window, at__gt=now - 2 * window
    ).order_by("pk")
    rows = [
        ShadowAct(
            side=ShadowAct.Side.PEOPLE,
            node_id=seen.node_id,
            kind=seen.kind,
            at=seen.at,
            settles_at=seen.at,
            verdict=ShadowAct.Verdict.DIFFERED,
            seen=seen,
        )
        for seen in alone
    ]
    return len(ShadowAct.objects.bulk_create(rows, ignore_conflicts=True))


def judge(act_id: int, judgement: str, *, actor: str, now: datetime) -> str:
    """An engineer's word on one difference; empty takes it back. What stands against it, or
    nothing."""
    if judgement not in ShadowAct.Judgement.values:
        return (
            f"There is no judgement {judgement!r}; expected kintsugi, people, or nothing to take it"
            " back."
        )
    values = {
        "judged": judgement,
        "judged_by": actor[:150] if judgement else "",
        "judged_at": now if judgement else None,
    }
    rows = ShadowAct.objects.filter(pk=act_id, verdict=ShadowAct.Verdict.DIFFERED)
    return (
        ""
        if rows.update(**values)
        else f"Line {act_id} of the ledger is no difference, or is not there any more."
    )


def agreement(since: datetime | None = None) -> list[Agreement]:
    """By runbook, in order of name; what only people did comes last, under an empty name."""
    rows = ShadowAct.objects.all() if since is None else ShadowAct.objects.filter(at__gte=since)
    by_book: dict[str, list[ShadowAct]] = {}
    for row in rows.only("runbook", "verdict", "judged", "side"):
        by_book.setdefault(row.runbook, []).append(row)
    return [
        _counted(name, by_book[name]) for name in sorted(by_book, key=lambda name: (not name, name))
    ]


def _counted(name: str, rows: list[ShadowAct]) -> Agreement:
    settled = [row for row in rows if row.verdict != ShadowAct.Verdict.OPEN]
    judged = [row for row in settled if row.judged]
    return Agreement(
        runbook=name,
        settled=len(settled),
        agreed=sum(row.verdict == ShadowAct.Verdict.AGREED for row in settled),
        open=len(rows) - len(settled),
        judged=len(judged),
        judged_for_us=sum(row.judged == ShadowAct.Judgement.KINTSUGI for row in judged),
    )
