"""Which parts of Kintsugi run, what keeps them from their work, and what waits for them."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from detectors.receivers.delivery import Backlog
from incidents.checks.own_health_texts import format_size
from incidents.checks.part_statuses import PartState, PartStatus, list_part_statuses
from incidents.text import wording
from incidents.triage import inbox
from kintsugi import clock
from kintsugi.configuration import schema
from kintsugi.web.pages import render_page


def status(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm("incidents.view_fault"):
        raise PermissionDenied
    now = clock.now()
    parts = list_part_statuses(now)
    context = {
        "parts": parts,
        "summary": describe_parts(parts),
        "inbox": describe_inbox(inbox.read_backlog(now)),
        "database": schema.store_name(),
        "now": now,
    }
    return render_page(request, "kintsugi/status.html", "Status of Kintsugi", context)


def describe_parts(parts: list[PartStatus]) -> str:
    if not parts:
        return "No part of Kintsugi has written within a day."
    troubled = sum(part.state is not PartState.RUNNING for part in parts)
    if troubled:
        return f"{troubled} of {len(parts)} parts do not get on."
    return f"All {len(parts)} parts get on." if len(parts) > 1 else "The one part gets on."


def describe_inbox(backlog: Backlog) -> str:
    if not backlog.batches:
        return "No events wait."
    size, age = format_size(backlog.size), wording.format_duration(backlog.age)
    batches = "batch waits" if backlog.batches == 1 else "batches wait"
    return f"{backlog.batches} {batches} ({size}), the oldest for {age}."
