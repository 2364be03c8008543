"""Polls that leave a node alone for a while: a look of ours would fail a GPU's reset, and disturb a
test of it.

A pause names its holder and its end. It ends when the holder says so, and by itself: whoever asked
for it may have died, and nothing is blind for ever. What is paused is not looked at, so its silence
is no fault. The only writer of `PollPause`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from detectors.detector import TargetKind
from incidents.models import Poll, PollChunk, PollPause

_NODE = TargetKind.NODE.value


def pause(
    node: str, detectors: Sequence[str], *, holder: str, why: str, until: datetime, now: datetime
) -> None:
    """From now on these detectors leave the node alone, until then at the latest. Told again it
    lasts longer."""
    changes = {"detectors": sorted(detectors), "why": why, "until": until}
    with transaction.atomic():
        PollPause.objects.filter(until__lte=now).delete()
        if PollPause.objects.filter(node=node, holder=holder).update(**changes) == 0:
            PollPause.objects.create(node=node, holder=holder, since=now, **changes)


def is_quiet(node: str, detectors: Collection[str], now: datetime) -> bool:
    """No look of theirs at this node is under way: one that began before the pause may still
    run. In step with its chunk it is looked at in the chunk's rounds, and otherwise in its own."""
    polls = Poll.objects.filter(kind=_NODE, target=node, detector__in=detectors)
    if polls.filter(leased_until__gt=now).exists():
        return False
    apart = polls.filter(next_poll_at__isnull=False).values_list("detector", flat=True)
    in_step = set(detectors).difference(apart)
    chunks = PollChunk.objects.of_target(node, _NODE)
    return not chunks.filter(detector__in=in_step, leased_until__gt=now).exists()


def end(holder: str) -> None:
    """All that this holder has paused is looked at again."""
    PollPause.objects.filter(holder=holder).delete()


def get_paused_nodes(now: datetime) -> Mapping[str, frozenset[str]]:
    """By detector, the nodes that it leaves alone now. One query, of few rows."""
    found: dict[str, set[str]] = defaultdict(set)
    for node, detectors in PollPause.objects.filter(until__gt=now).values_list("node", "detectors"):
        for detector in detectors:
            found[detector].add(node)
    return {detector: frozenset(nodes) for detector, nodes in found.items()}


def get_paused_detectors(node: str, now: datetime) -> frozenset[str]:
    """The detectors that leave this node alone now."""
    return frozenset(detector for row in filter_current(node, now) for detector in row.detectors)


def filter_current(node: str, now: datetime) -> QuerySet[PollPause]:
    """What of this node is left alone now, since when, why and until when, for people."""
    return PollPause.objects.filter(node=node, until__gt=now).order_by("since", "pk")
