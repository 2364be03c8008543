"""What nodes' own checks send and ask, authorised by a token that speaks for one node alone. No
session, no cookie."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from detectors.faults import Observation
from incidents.people.drain_requests import DrainRequestRefused
from incidents.services import ChangeKind
from kintsugi import clock, tasks
from kintsugi.web.node_check import messages
from kintsugi.web.node_check.messages import Message, Refused
from runbooks import services as runbooks

_log = logging.getLogger(__name__)


@csrf_exempt
@require_POST
def readings(request: HttpRequest) -> HttpResponse:
    """What one check saw; it goes the way of a poll. 202 with `{"accepted": observations}`, and
    `"not_believed"`, a list of sentences, where some of it was left out."""
    now = clock.now()
    try:
        message = messages.parse_message(request, now)
        taken_at = messages.parse_time(message.body, now)
        observations = messages.parse_observations(message, taken_at)
        not_believed = _ingest(message, observations)
    except Refused as refusal:
        return _answer(refusal)
    accepted = sum(len(of_detector) for of_detector in observations.values())
    left_out = {"not_believed": not_believed} if not_believed else {}
    return JsonResponse({"accepted": accepted, **left_out}, status=202)


@csrf_exempt
@require_POST
def leases(request: HttpRequest) -> HttpResponse:
    """Whether a check may stop a job's start: `{"is_granted": bool, "reason": text}`."""
    try:
        message = messages.parse_message(request, clock.now())
        fault_types = messages.parse_fault_types(message.body)
    except Refused as refusal:
        return _answer(refusal)
    node = message.node
    world = tasks.pipeline().world
    leave = runbooks.may_stop_job(node, fault_types, now=clock.now(), world=world)
    outcome = (leave.is_granted, leave.reason)
    _log.info("leave to stop a job on %s for %s: %s, %s", node, fault_types, *outcome)
    return JsonResponse({"is_granted": leave.is_granted, "reason": leave.reason})


@csrf_exempt
@require_POST
def drain_requests(request: HttpRequest) -> HttpResponse:
    """A node's own check asks for this node to be drained, or no longer: `{"version": 1, "node",
    "check", "because", "end": false}`. 202 with `{"incident": number}`, null where it has none."""
    now = clock.now()
    try:
        message = messages.parse_message(request, now)
        asked = messages.parse_drain_request(message)
        incident_id = tasks.pipeline().request_drain(asked, message.provenance)
    except Refused as refusal:
        return _answer(refusal)
    except DrainRequestRefused as refusal:
        return JsonResponse({"error": str(refusal)}, status=409)
    _log.info("drain request of %s on %s: incident %s", asked.check, asked.node, incident_id)
    return JsonResponse({"incident": incident_id}, status=202)


def _ingest(message: Message, observations: Mapping[str, Sequence[Observation]]) -> list[str]:
    """What of it was not believed, in sentences."""
    try:
        changes = tasks.pipeline().ingest_report(message.node, observations, message.provenance)
    except (TypeError, ValueError) as error:  # nothing of it was stored: it is one transaction
        _log.warning("readings of %s are not what its detectors give: %r", message.node, error)
        raise Refused(400, f"readings that no detector of this version gives: {error}") from error
    return [change.text for change in changes if change.kind is ChangeKind.NOT_BELIEVED]


def _answer(refusal: Refused) -> JsonResponse:
    return JsonResponse({"error": refusal.reason}, status=refusal.status)
