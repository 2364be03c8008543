"""A check that a site runs itself asks for a node to be drained, and later that it need not be: the
node's fault `site.unfit` begins and ends. Whether and when it is drained is decided by the guards,
as for any other fault."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from detectors import resources
from detectors.catalog import catalog
from detectors.faults import EventKind, FaultEvent, event_id
from detectors.provenance import Provenance
from incidents.models import Fault, Node
from incidents.reserve import decommissions
from incidents.text.wording import format_moment

FAULT_TYPE = "site.unfit"
LONGEST_REASON = 500
_CHECK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


class DrainRequestRefused(ValueError):
    """The request is not taken; the text says why, and what would be."""


class DrainRequestMalformed(DrainRequestRefused):
    """Whatever the state of the node, no such request is taken."""


@dataclass(frozen=True)
class DrainRequest:
    """`check` is who asks, such as `nhc`: each check asks and withdraws for itself. `is_end`: the
    node need not be drained any more; then `because` may be empty."""

    node: str
    check: str
    because: str
    is_end: bool = False


def make_event(request: DrainRequest, told_by: Provenance, *, now: datetime) -> FaultEvent:
    """The beginning or the end of the fault that the request is. Raises DrainRequestRefused."""
    reason = " ".join(request.because.split())
    _check_words(request, reason)
    node = _find_node(request.node)
    if request.is_end:
        _check_stands(node, request.check)
    kind = EventKind.CLEARED if request.is_end else EventKind.RAISED
    identity = event_id("drain_request", node.name, request.check, kind, now.isoformat())
    excerpt = f"{request.check}: {reason or 'the node need not be drained any more'}"
    fault_type = catalog.load()[FAULT_TYPE]
    place = resources.node(node.name)
    return fault_type.create_event(
        identity,
        kind,
        place,
        source="poll",
        at=now,
        qualifier=request.check,
        excerpt=excerpt,
        provenance=told_by,
    )


def _check_words(request: DrainRequest, reason: str) -> None:
    if not _CHECK_NAME.fullmatch(request.check):
        raise DrainRequestMalformed(
            "The name of the check (--by) is 1 to 40 letters, digits, dots, - and _, such as nhc;"
            f" got {request.check[:60]!r}."
        )
    if not reason and not request.is_end:
        raise DrainRequestMalformed(
            "Say in a sentence why (--because): people read it on the incident."
        )
    if len(reason) > LONGEST_REASON:
        raise DrainRequestMalformed(
            f"The reason has {len(reason)} characters; {LONGEST_REASON} at most are taken."
        )


def find_incident(node: str, check: str) -> int | None:
    """The incident of this check's latest request; None where it has none."""
    faults = Fault.objects.filter(
        resource=resources.node(resources.short_host(node)),
        fault_type=FAULT_TYPE,
        qualifier=check,
    )
    newest = faults.order_by("-raised_at").values_list("membership__incident", flat=True)
    return newest.first()


def _find_node(name: str) -> Node:
    node = Node.objects.filter(name=resources.short_host(name)).first()
    if node is None or node.is_provisional:
        raise DrainRequestRefused(
            f"{name} is no node of the inventory: Kintsugi acts on nothing else."
            " `kintsugi inventory import` takes it in."
        )
    leaving = decommissions.get_decommissions().get(node.name)
    if leaving:
        raise DrainRequestRefused(f"{leaving} Nothing is done on it any more.")
    return node


def _check_stands(node: Node, check: str) -> None:
    requests = Fault.objects.active().filter(
        resource=resources.node(node.name), fault_type=FAULT_TYPE
    )
    checks = sorted(requests.values_list("qualifier", flat=True))
    if check in checks:
        return
    others = f" Requests of {', '.join(checks)} stand." if checks else " No request stands there."
    own = Fault.objects.filter(
        resource=resources.node(node.name), fault_type=FAULT_TYPE, qualifier=check
    )
    withdrawn_at = own.order_by("-cleared_at").values_list("cleared_at", flat=True).first()
    if withdrawn_at is None:
        raise DrainRequestRefused(f"{check} has not asked for {node.name}.{others}")
    raise DrainRequestRefused(
        f"{check} has not asked for {node.name} since {format_moment(withdrawn_at)}, when its"
        " request"
        f" ended: nothing is left to withdraw.{others}"
    )
