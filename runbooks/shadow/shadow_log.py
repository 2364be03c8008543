"""What people did to nodes, as Slurm shows it: written down beside what dry runs would have done.
The only writer of `SeenNode` and `SeenAct`; touches no node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet

from incidents.models import Node
from runbooks.models import UNFINISHED, Run, SeenAct, SeenNode
from runbooks.shadow import external_changes
from runbooks.slurm import ownership
from runbooks.slurm.ownership import SLURM_USER, Owner, Written
from runbooks.slurm.protocol import NodeState

# An act of ours is seen a look later.
_JUST_ENDED = timedelta(minutes=5)
_LONGEST = 255


@transaction.atomic
def record_external_acts(
    nodes: Mapping[str, NodeState], now: datetime, *, slurm_user: str = SLURM_USER
) -> int:
    """Of these nodes, as Slurm shows them: what people did since the last look at each is written
    down. How many acts were new."""
    seen_before = SeenNode.objects.filter(node__name__in=list(nodes)).select_related("node")
    known = {row.node.name: row for row in seen_before.select_for_update(of=("self",))}
    ours = _get_own_nodes(now)
    of_people = _find_words_of_people(nodes, now)
    changed, acts = [], []
    for name, state in nodes.items():
        row = known.get(name)
        if row is None:
            continue
        before = external_changes.NodeSnapshot(
            row.is_out, _get_owner(row), row.reason, row.boot_time
        )
        after = external_changes.observe_node(state, slurm_user)
        persons_reason = _get_persons_reason(
            row.persons_reason, after, is_persons=name in of_people
        )
        seen = (row.is_out, row.is_ours, row.reason, row.boot_time)
        if _as_row(after) == seen and persons_reason == row.persons_reason:
            continue
        if name not in ours:
            found = external_changes.find_acts(before, state, now, slurm_user)
            acts += [_build_row(row.node, act) for act in found]
        row.is_out, row.is_ours, row.reason, row.boot_time = _as_row(after)
        row.persons_reason, row.seen_at = persons_reason, now
        changed.append(row)
    columns = ["is_out", "is_ours", "reason", "persons_reason", "boot_time", "seen_at"]
    SeenNode.objects.bulk_update(changed, columns, batch_size=500)
    _create_seen_nodes(nodes.keys() - known.keys(), nodes, of_people, now, slurm_user)
    SeenAct.objects.bulk_create(acts)
    return len(acts)


def _as_row(node: external_changes.NodeSnapshot) -> tuple[bool, bool, str, datetime | None]:
    is_ours = node.owner is Owner.OTHER_INCIDENT
    return node.is_out, is_ours, node.reason[:_LONGEST], node.boot_time


def _get_persons_reason(
    known: str, node: external_changes.NodeSnapshot, *, is_persons: bool
) -> str:
    """What Slurm or a check writes over a person's reason takes the node from nobody: from 23.02 on
    Slurm does so where a drained node registers with fewer GPUs (src/slurmctld/node_mgr.c)."""
    if node.owner is Owner.PERSON or is_persons:
        return node.reason[:_LONGEST]
    return known if node.owner in (Owner.SLURM, Owner.CHECK) else ""


def _find_words_of_people(nodes: Mapping[str, NodeState], now: datetime) -> set[str]:
    """Nodes whose reason begins as ours do, and no run has written it so: a person has, or has
    added to ours. What a run of that incident may be writing now is kept with the run a moment
    later."""
    named: dict[str, int] = {}
    for name, state in nodes.items():
        incident = ownership.parse_incident(state.reason)
        if state.is_draining and incident is not None:
            named[name] = incident
    if not named:
        return set()
    acting = set(_get_runs_since(now - _JUST_ENDED).values_list("node__name", "incident"))
    written: dict[str, list[Written]] = {name: [] for name in named}
    runs = Run.objects.filter(node__name__in=list(named))
    for name, facts in runs.values_list("node__name", "facts"):
        written[name] += ownership.load_written(facts)
    found = set()
    for name, incident in named.items():
        state = nodes[name]
        is_ours = any(row.stands_in(state) for row in written[name])
        is_added_to = any(state.reason.startswith(row.reason) for row in written[name])
        is_being_written = (name, incident) in acting and not is_added_to
        if not is_ours and not is_being_written:
            found.add(name)
    return found


def find_persons_reason(node: str) -> str:
    """Why a person took this node out, where the looks at Slurm have seen that and not since seen
    it in service; else empty."""
    row = SeenNode.objects.filter(node__name=node).only("persons_reason").first()
    return row.persons_reason if row is not None else ""


def _get_owner(row: SeenNode) -> Owner:
    """Enough of it for the next look: a person's or Slurm's reason, or ours."""
    if not row.is_out:
        return Owner.NOBODY
    if row.is_ours:
        return Owner.OTHER_INCIDENT
    return Owner.PERSON if row.persons_reason else Owner.SLURM


def _get_runs_since(ended: datetime) -> QuerySet[Run]:
    lately = Q(state__in=UNFINISHED) | Q(finished_at__gte=ended)
    return Run.objects.filter(lately, claimed_at__isnull=False)


def _get_own_nodes(now: datetime) -> set[str]:
    """Nodes on which a run of ours acts or acted a moment ago: what is seen there is its own
    doing."""
    return set(_get_runs_since(now - _JUST_ENDED).values_list("node__name", flat=True))


def _create_seen_nodes(
    names: Collection[str],
    nodes: Mapping[str, NodeState],
    of_people: Collection[str],
    now: datetime,
    slurm_user: str,
) -> None:
    """Nodes seen for the first time: what stands there already is nobody's act of today."""
    if not names:
        return
    rows = []
    for node in Node.objects.filter(name__in=list(names)):
        seen = external_changes.observe_node(nodes[node.name], slurm_user)
        is_out, is_ours, reason, boot_time = _as_row(seen)
        persons_reason = _get_persons_reason("", seen, is_persons=node.name in of_people)
        rows.append(
            SeenNode(
                node=node,
                is_out=is_out,
                is_ours=is_ours,
                reason=reason,
                persons_reason=persons_reason,
                boot_time=boot_time,
                seen_at=now,
            )
        )
    SeenNode.objects.bulk_create(rows, ignore_conflicts=True)


def _build_row(node: Node, act: external_changes.ExternalAct) -> SeenAct:
    return SeenAct(
        node=node, kind=act.kind.value, at=act.at, by=act.by[:64], text=act.text[:_LONGEST]
    )
