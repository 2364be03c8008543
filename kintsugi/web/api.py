"""What nodes' own checks send and ask, authorised by a token that speaks for one node alone. No
session, no cookie."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from detectors import registry, resources
from detectors.detector import TargetKind
from detectors.faults import Observation
from kintsugi import clock, tasks
from kintsugi.clients.node_tokens import token
from runbooks import services as runbooks

_log = logging.getLogger(__name__)
_LONGEST_BODY = 2 * 1024 * 1024
_MOST_OBSERVATIONS = 20_000
_MOST_FAULTS = 100
# What a node says of the time is taken within this; beyond it ours is. ntpd steps at 128 ms,
# slurmctld warns at 5 min.
_TOLERANCE = timedelta(minutes=2)


class _Refused(Exception):
    """The request is answered with this status and sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@csrf_exempt
@require_POST
def readings(request: HttpRequest) -> HttpResponse:
    """What one check saw; it goes the way of a poll. 202 with `{"accepted": observations}`."""
    try:
        body = _parse_body(request)
        node = _authorise(request, body)
        taken_at = _parse_time(body, clock.now())
        observations = _parse_observations(body, node, taken_at)
        _ingest(node, observations)
    except _Refused as refusal:
        return _answer(refusal)
    accepted = sum(len(of_detector) for of_detector in observations.values())
    return JsonResponse({"accepted": accepted}, status=202)


@csrf_exempt
@require_POST
def leases(request: HttpRequest) -> HttpResponse:
    """Whether a check may stop a job's start: `{"is_granted": bool, "reason": text}`."""
    try:
        body = _parse_body(request)
        node = _authorise(request, body)
        fault_types = _parse_fault_types(body)
    except _Refused as refusal:
        return _answer(refusal)
    world = tasks.pipeline().world
    leave = runbooks.may_stop_job(node, fault_types, now=clock.now(), world=world)
    outcome = (leave.is_granted, leave.reason)
    _log.info("leave to stop a job on %s for %s: %s, %s", node, fault_types, *outcome)
    return JsonResponse({"is_granted": leave.is_granted, "reason": leave.reason})


def _ingest(node: str, observations: Mapping[str, Sequence[Observation]]) -> None:
    try:
        tasks.pipeline().ingest_observations(node, observations)
    except (TypeError, ValueError) as error:  # nothing of it was stored: it is one transaction
        _log.warning("readings of %s are not what its detectors give: %r", node, error)
        raise _Refused(400, f"readings that no detector of this version gives: {error}") from error


def _answer(refusal: _Refused) -> JsonResponse:
    return JsonResponse({"error": refusal.reason}, status=refusal.status)


def _parse_body(request: HttpRequest) -> Mapping[str, Any]:
    if int(request.headers.get("Content-Length") or 0) > _LONGEST_BODY:
        raise _Refused(413, f"a body of at most {_LONGEST_BODY} bytes was expected")
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"no JSON: {error}") from error
    refusal = _Refused(400, 'an object with "version": 1 and "node" was expected')
    if not isinstance(body, dict) or body.get("version") != 1:
        raise refusal
    if not isinstance(body.get("node"), str):
        raise refusal
    return body


def _authorise(request: HttpRequest, body: Mapping[str, Any]) -> str:
    """The node, which the token must be of."""
    node = resources.short_host(body["node"])
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(bearer.encode("utf-8", "replace"), token(node).encode()):
        raise _Refused(
            401, f"the token is not that of node {node}: `kintsugi node token {node}` prints it"
        )
    return node


def _parse_time(body: Mapping[str, Any], now: datetime) -> datetime:
    try:
        taken_at = datetime.fromisoformat(str(body["taken_at"]))
        return min(taken_at, now) if abs(taken_at - now) <= _TOLERANCE else now
    except (KeyError, ValueError, TypeError) as error:
        raise _Refused(400, '"taken_at" was expected as ISO 8601 with offset') from error


def _parse_observations(
    body: Mapping[str, Any], node: str, taken_at: datetime
) -> dict[str, list[Observation]]:
    """By detector. A node speaks of itself alone."""
    detectors = {
        detector.name for detector in registry.DETECTORS if detector.kind is TargetKind.NODE
    }
    observations: dict[str, list[Observation]] = {}
    for reading in _parse_rows(body.get("readings"), "readings", len(detectors)):
        name = reading.get("detector")
        if name not in detectors:
            names = ", ".join(sorted(detectors))
            raise _Refused(400, f"no detector {name!r} runs on nodes; there are {names}")
        rows = _parse_rows(reading.get("observations"), "observations", _MOST_OBSERVATIONS)
        observations[name] = [_parse_observation(row, node, taken_at) for row in rows]
    return observations


def _parse_observation(row: Mapping[str, Any], node: str, taken_at: datetime) -> Observation:
    resource = row.get("resource")
    if not isinstance(resource, str) or not _is_of_node(resource, node):
        raise _Refused(403, f"node {node} may not speak of {str(resource)[:80]}")
    metric, value, attributes = row.get("metric"), row.get("value"), row.get("attributes", {})
    refusal = _Refused(400, "an observation has resource, metric, value and attributes")
    if not isinstance(metric, str) or not isinstance(attributes, dict):
        raise refusal
    if isinstance(value, (dict, list)):
        raise refusal
    texts = {str(name): str(attribute)[:1000] for name, attribute in attributes.items()}
    return Observation(resource[:160], metric[:96], value, taken_at, texts)


def _is_of_node(resource: str, node: str) -> bool:
    own = resources.node(node)
    return resource == own or resource.startswith(f"{own}/")


def _parse_fault_types(body: Mapping[str, Any]) -> Sequence[str]:
    rows = _parse_rows(body.get("faults"), "faults", _MOST_FAULTS)
    return [str(row.get("fault_type", ""))[:96] for row in rows]


def _parse_rows(value: object, name: str, most: int) -> list[Mapping[str, Any]]:
    refusal = _Refused(400, f'"{name}" was expected as a list of at most {most} objects')
    if not isinstance(value, list) or len(value) > most:
        raise refusal
    if not all(isinstance(row, dict) for row in value):
        raise refusal
    return value
