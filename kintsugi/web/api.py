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
        body = _body(request)
        node = _authorised(request, body)
        now = clock.now()
        seen = _observations(body, node, _moment(body, now))
        _take(node, seen)
    except _Refused as refused:
        return _answer(refused)
    return JsonResponse({"accepted": sum(len(some) for some in seen.values())}, status=202)


@csrf_exempt
@require_POST
def leases(request: HttpRequest) -> HttpResponse:
    """Whether a check may stop a job's start: `{"is_granted": bool, "reason": text}`."""
    try:
        body = _body(request)
        node = _authorised(request, body)
        fault_types = _fault_types(body)
    except _Refused as refused:
        return _answer(refused)
    leave = runbooks.may_stop_job(node, fault_types, now=clock.now(), world=tasks.pipeline().world)
    _log.info(
        "leave to stop a job on %s for %s: %s, %s",
        node,
        fault_types,
        leave.is_granted,
        leave.reason,
    )
    return JsonResponse({"is_granted": leave.is_granted, "reason": leave.reason})


def _take(node: str, seen: Mapping[str, Sequence[Observation]]) -> None:
    try:
        tasks.pipeline().take(node, seen)
    except (TypeError, ValueError) as error:  # nothing of it was stored: it is one transaction
        _log.warning("readings of %s are not what its detectors give: %r", node, error)
        raise _Refused(400, f"readings that no detector of this version gives: {error}") from error


def _answer(refused: _Refused) -> JsonResponse:
    return JsonResponse({"error": refused.reason}, status=refused.status)


def _body(request: HttpRequest) -> Mapping[str, Any]:
    if int(request.headers.get("Content-Length") or 0) > _LONGEST_BODY:
        raise _Refused(413, f"a body of at most {_LONGEST_BODY} bytes was expected")
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"no JSON: {error}") from error
    if (
        not isinstance(body, dict)
        or body.get("version") != 1
        or not isinstance(body.get("node"), str)
    ):
        raise _Refused(400, 'an object with "version": 1 and "node" was expected')
    return body


def _authorised(request: HttpRequest, body: Mapping[str, Any]) -> str:
    """The node, which the token must be of."""
    node = resources.short_host(body["node"])
    given = (
        request.headers.get("Authorization", "").removeprefix("Bearer ").encode("utf-8", "replace")
    )
    if not hmac.compare_digest(given, token(node).encode()):
        raise _Refused(
            401, f"the token is not that of node {node}: `manage.py node_token {node}` prints it"
        )
    return node


def _moment(body: Mapping[str, Any], now: datetime) -> datetime:
    try:
        taken_at = datetime.fromisoformat(str(body["taken_at"]))
        return min(taken_at, now) if abs(taken_at - now) <= _TOLERANCE else now
    except (KeyError, ValueError, TypeError) as error:
        raise _Refused(400, '"taken_at" was expected as ISO 8601 with offset') from error


def _observations(body: Mapping[str, Any], node: str, at: datetime) -> dict[str, list[Observation]]:
    """By detector. A node speaks of itself alone."""
    known = {each.name for each in registry.DETECTORS if each.kind is TargetKind.NODE}
    found: dict[str, list[Observation]] = {}
    for reading in _rows(body.get("readings"), "readings", len(known)):
        name = reading.get("detector")
        if name not in known:
            raise _Refused(
                400, f"no detector {name!r} runs on nodes; there are {', '.join(sorted(known))}"
            )
        rows = _rows(reading.get("observations"), "observations", _MOST_OBSERVATIONS)
        found[name] = [_observation(row, node, at) for row in rows]
    return found


def _observation(row: Mapping[str, Any], node: str, at: datetime) -> Observation:
    resource, metric, attributes = row.get("resource"), row.get("metric"), row.get("attributes", {})
    own = resources.node(node)
    if not isinstance(resource, str) or (resource != own and not resource.startswith(f"{own}/")):
        raise _Refused(403, f"node {node} may not speak of {str(resource)[:80]}")
    if (
        not isinstance(metric, str)
        or not isinstance(attributes, dict)
        or isinstance(row.get("value"), (dict, list))
    ):
        raise _Refused(400, "an observation has resource, metric, value and attributes")
    said = {str(name): str(value)[:1000] for name, value in attributes.items()}
    return Observation(resource[:160], metric[:96], row.get("value"), at, said)


def _fault_types(body: Mapping[str, Any]) -> Sequence[str]:
    return [
        str(row.get("fault_type", ""))[:96]
        for row in _rows(body.get("faults"), "faults", _MOST_FAULTS)
    ]


def _rows(value: object, name: str, most: int) -> list[Mapping[str, Any]]:
    if (
        not isinstance(value, list)
        or len(value) > most
        or not all(isinstance(row, dict) for row in value)
    ):
        raise _Refused(400, f'"{name}" was expected as a list of at most {most} objects')
    return value
