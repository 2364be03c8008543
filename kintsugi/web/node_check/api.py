"""What nodes' own checks send and ask, authorised by a token that speaks for one node alone. No
session, no cookie."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import wraps

from django.db import InterfaceError, OperationalError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from detectors.faults import Observation
from detectors.transports import error_text
from incidents.people.drain_requests import DrainRequestMalformed, DrainRequestRefused
from incidents.services import ChangeKind
from kintsugi import clock, tasks
from kintsugi.health.database_away import RETRY_AFTER_S
from kintsugi.web.node_check import messages
from kintsugi.web.node_check.messages import NodeMessage, RequestRefused
from runbooks import services as runbooks

_log = logging.getLogger(__name__)


def _takes_post(view: Callable[[HttpRequest], HttpResponse]) -> Callable[..., HttpResponse]:
    """Whatever is wrong is answered with a status and `{"error": sentence}`."""

    @csrf_exempt
    @wraps(view)
    def answer(request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            allowed = {"Allow": "POST"}
            return JsonResponse({"error": "POST was expected"}, status=405, headers=allowed)
        try:
            return view(request)
        except RequestRefused as refusal:
            return JsonResponse({"error": refusal.reason}, status=refusal.status)
        except (OperationalError, InterfaceError) as error:
            connection.close()
            _log.warning("%s: the database does not answer: %s", *_describe(request, error))
            away = "the database does not answer: send it again in a minute, nothing counts twice"
            again = {"Retry-After": str(RETRY_AFTER_S)}
            return JsonResponse({"error": away}, status=503, headers=again)

    return answer


def _describe(request: HttpRequest, error: Exception) -> tuple[str, str]:
    return request.path_info, error_text.format_reason(error)


@_takes_post
def readings(request: HttpRequest) -> HttpResponse:
    """What one check saw; it goes the way of a poll. 202 with `{"accepted": observations}`, and
    `"not_believed"`, a list of sentences, where some of it was left out."""
    now = clock.now()
    message = messages.parse_message(request, now)
    taken_at = messages.parse_time(message.body, now)
    observations = messages.parse_observations(message, taken_at)
    not_believed = _ingest(message, observations)
    accepted = sum(len(of_detector) for of_detector in observations.values())
    left_out = {"not_believed": not_believed} if not_believed else {}
    return JsonResponse({"accepted": accepted, **left_out}, status=202)


@_takes_post
def leases(request: HttpRequest) -> HttpResponse:
    """Whether a check may stop a job's start: `{"is_granted": bool, "reason": text}`."""
    message = messages.parse_message(request, clock.now())
    fault_types = messages.parse_fault_types(message.body)
    node = message.node
    world = tasks.pipeline().world
    leave = runbooks.may_stop_job(node, fault_types, now=clock.now(), world=world)
    outcome = (leave.is_granted, leave.reason)
    _log.info("leave to stop a job on %s for %s: %s, %s", node, fault_types, *outcome)
    return JsonResponse({"is_granted": leave.is_granted, "reason": leave.reason})


@_takes_post
def drain_requests(request: HttpRequest) -> HttpResponse:
    """A node's own check asks for this node to be drained, or no longer: `{"version": 1, "node",
    "check", "because", "end": false}`. 202 with `{"incident": number, "doing": text}`, null where
    it has none; `doing` says what is in the way of the drain, or what is done."""
    now = clock.now()
    message = messages.parse_message(request, now)
    asked = messages.parse_drain_request(message)
    try:
        incident_id = tasks.pipeline().request_drain(asked, message.provenance)
    except DrainRequestMalformed as refusal:
        return JsonResponse({"error": str(refusal)}, status=400)
    except DrainRequestRefused as refusal:
        return JsonResponse({"error": str(refusal)}, status=409)
    _log.info("drain request of %s on %s: incident %s", asked.check, asked.node, incident_id)
    doing = "" if asked.is_end else tasks.pipeline().format_prospect(incident_id)
    return JsonResponse({"incident": incident_id, "doing": doing}, status=202)


def _ingest(message: NodeMessage, observations: Mapping[str, Sequence[Observation]]) -> list[str]:
    """What of it was not believed, in sentences."""
    try:
        changes = tasks.pipeline().ingest_report(message.node, observations, message.provenance)
    except (TypeError, ValueError) as error:  # nothing of it was stored: it is one transaction
        _log.warning("readings of %s are not what its detectors give: %r", message.node, error)
        raise RequestRefused(
            400, f"readings that no detector of this version gives: {error}"
        ) from error
    return [change.text for change in changes if change.kind is ChangeKind.NOT_BELIEVED]
