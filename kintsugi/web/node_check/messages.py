"""A request of a node's check, taken apart: whose it is, and what it says. Each refusal names what
was expected."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, UnreadablePostError

from detectors import registry, resources
from detectors.detector import Detector, TargetKind
from detectors.faults import Observation
from detectors.provenance import UNKNOWN, Forger, Provenance, Transport
from incidents.inventory import node_tokens as stored
from incidents.people.drain_requests import DrainRequest
from kintsugi.clients import node_tokens

LONGEST_BODY = 2 * 1024 * 1024
_MOST_OBSERVATIONS = 20_000
_MOST_FAULTS = 100
# A line of the kernel's log is at most 8 KiB: `LOG_LINE_MAX` of systemd-journald is 48 KiB, and
# rsyslog's `maxMessageSize` 8 KiB; the check cuts its lines at that.
LONGEST_VALUE = 8192
_MOST_ATTRIBUTES = 40
_LONGEST_ATTRIBUTE = 1000
# A host's name in DNS has 253 characters at most (RFC 1035, 2.3.4, less the dot and the length).
_LONGEST_NAME = 253
# A number of bytes that any machine holds has fewer digits.
_LONGEST_NUMBER = 20
# A counter has 64 bits.
_LARGEST_NUMBER = 2**64
# What a node says of the time is taken within this; beyond it ours is. ntpd steps at 128 ms,
# slurmctld warns at 5 min.
_TOLERANCE = timedelta(minutes=2)
# What every detector says of itself and of its target.
_OF_ALL = frozenset({"detector", "target"})


class RequestRefused(Exception):
    """The request is answered with this status and sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class NodeMessage:
    """What came, and the node that the token vouches for."""

    node: str
    body: Mapping[str, Any]
    provenance: Provenance = UNKNOWN


def parse_message(request: HttpRequest, now: datetime) -> NodeMessage:
    """Without a token that is known the body is not read. Raises RequestRefused."""
    length = request.headers.get("Content-Length") or "0"
    if not length.isdecimal():
        raise RequestRefused(400, '"Content-Length" was expected as a number of bytes')
    if len(length) > _LONGEST_NUMBER or int(length) > LONGEST_BODY:
        raise RequestRefused(413, f"a body of at most {LONGEST_BODY} bytes was expected")
    token = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    row = stored.find(token)
    if row is None and not node_tokens.may_be_of_before(token):
        raise RequestRefused(401, "no node has this token: `kintsugi node token NODE` creates one")
    body = _parse_body(request)
    node = resources.short_host(body["node"])
    row = row or node_tokens.adopt(token, node, now)
    if row is None or row.node.name != node:
        raise RequestRefused(
            401, f"the token is not that of node {node}: `kintsugi node token {node}` creates one"
        )
    problem = stored.find_problem(row, now)
    if problem:
        raise RequestRefused(401, f"{problem}: `kintsugi node token {node}` creates a new one")
    address = request.META.get("REMOTE_ADDR", "")
    stored.record_use(row, address=address, now=now)
    # The token is root's on the node.
    proof = Provenance(address, Transport.NODE_CHECK, str(row), forger=Forger.ROOT)
    return NodeMessage(node, body, proof)


def _parse_body(request: HttpRequest) -> Mapping[str, Any]:
    try:
        text = request.body
    except (RequestDataTooBig, UnreadablePostError) as error:
        raise RequestRefused(413, f"a body of at most {LONGEST_BODY} bytes was expected") from error
    if len(text) > LONGEST_BODY:
        raise RequestRefused(413, f"a body of at most {LONGEST_BODY} bytes was expected")
    try:
        body = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestRefused(400, f"no JSON: {error}") from error
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, "no JSON in UTF-8 with numbers of 64 bits") from error
    refusal = RequestRefused(400, 'an object with "version": 1 and "node" was expected')
    if not isinstance(body, dict) or body.get("version") != 1:
        raise refusal
    node = body.get("node")
    if not isinstance(node, str):
        raise refusal
    if not node.isprintable() or not 0 < len(node.strip()) <= _LONGEST_NAME:
        raise RequestRefused(
            400, f'"node" was expected as a name of at most {_LONGEST_NAME} characters'
        )
    return body


def parse_drain_request(message: NodeMessage) -> DrainRequest:
    """A node asks for itself alone. Raises RequestRefused."""
    check, because = message.body.get("check"), message.body.get("because", "")
    is_end = message.body.get("end", False)
    if not isinstance(check, str) or not isinstance(because, str) or not isinstance(is_end, bool):
        raise RequestRefused(
            400, '"check" and "because" were expected as texts, "end" as true or false'
        )
    return DrainRequest(node=message.node, check=check, because=because, is_end=is_end)


def parse_time(body: Mapping[str, Any], now: datetime) -> datetime:
    """When it was taken; ours where the node's clock is far off. Raises RequestRefused."""
    try:
        taken_at = datetime.fromisoformat(str(body["taken_at"]))
        return min(taken_at, now) if abs(taken_at - now) <= _TOLERANCE else now
    except (KeyError, ValueError, TypeError) as error:
        raise RequestRefused(400, '"taken_at" was expected as ISO 8601 with offset') from error


def parse_observations(message: NodeMessage, taken_at: datetime) -> dict[str, list[Observation]]:
    """By detector. A node speaks of itself alone, and each detector of what it looks at. Raises
    RequestRefused."""
    detectors = {
        detector.name: detector
        for detector in registry.DETECTORS
        if detector.kind is TargetKind.NODE
    }
    observations: dict[str, list[Observation]] = {}
    room = _MOST_OBSERVATIONS
    for reading in _parse_rows(message.body.get("readings"), "readings", len(detectors)):
        name = reading.get("detector")
        if not isinstance(name, str) or name not in detectors:
            names = ", ".join(sorted(detectors))
            raise RequestRefused(
                400, f"no detector {str(name)[:80]!r} runs on nodes; there are {names}"
            )
        rows = _parse_rows(reading.get("observations"), "observations", room)
        room -= len(rows)
        parsed = _Rows(message.node, detectors[name], taken_at)
        observations[name] = [parsed.parse(row) for row in rows]
    return observations


@dataclass(frozen=True)
class _Rows:
    """The observations of one detector on one node."""

    node: str
    detector: Detector
    taken_at: datetime

    def parse(self, row: Mapping[str, Any]) -> Observation:
        resource = row.get("resource")
        if not isinstance(resource, str) or not _is_of_node(resource, self.node):
            raise RequestRefused(403, f"node {self.node} may not speak of {str(resource)[:80]}")
        metric, attributes = row.get("metric"), row.get("attributes", {})
        if not isinstance(metric, str) or not isinstance(attributes, dict):
            raise RequestRefused(400, "an observation has resource, metric, value and attributes")
        self._check_metric(metric)
        value = _parse_value(row.get("value"), metric)
        if len(attributes) > _MOST_ATTRIBUTES:
            raise RequestRefused(413, f"{metric} has more than {_MOST_ATTRIBUTES} attributes")
        texts = dict(_format_attributes(attributes))
        # What no database takes in a name is shown in its place, as of a look of Kintsugi's own.
        path, name = resources.printable(resource)[:160], resources.printable(metric)[:96]
        return Observation(path, name, value, self.taken_at, texts)

    def _check_metric(self, metric: str) -> None:
        """What a detector does not look at it does not say: Slurm's word is Slurm's."""
        family = metric.partition(".")[0]
        name = self.detector.name
        if family not in _OF_ALL | self.detector.families | {name}:
            raise RequestRefused(403, f"detector {name} may not say {metric[:80]!r}")


def _format_attributes(attributes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, attribute in attributes.items():
        text = resources.printable(str(attribute)[:_LONGEST_ATTRIBUTE])
        yield resources.printable(str(name)[:_LONGEST_ATTRIBUTE]), text


def _parse_value(value: object, metric: str) -> object:
    if isinstance(value, dict | list):
        raise RequestRefused(400, "an observation has resource, metric, value and attributes")
    if isinstance(value, str) and len(value) > LONGEST_VALUE:
        raise RequestRefused(
            413, f"a value of {metric[:80]} is longer than {LONGEST_VALUE} characters"
        )
    # NaN is not smaller either.
    if isinstance(value, int | float) and not abs(value) < _LARGEST_NUMBER:
        raise RequestRefused(400, f"a value of {metric[:80]} is no number of 64 bits")
    return resources.printable(value) if isinstance(value, str) else value


def _is_of_node(resource: str, node: str) -> bool:
    own = resources.node(node)
    return resource == own or resource.startswith(f"{own}/")


def parse_fault_types(body: Mapping[str, Any]) -> Sequence[str]:
    """Raises RequestRefused."""
    rows = _parse_rows(body.get("faults"), "faults", _MOST_FAULTS)
    fault_types = [row.get("fault_type") for row in rows]
    texts = [fault_type for fault_type in fault_types if isinstance(fault_type, str)]
    if not texts or len(texts) < len(rows):
        raise RequestRefused(
            400, 'one fault at least was expected, each with its "fault_type" as text'
        )
    return [resources.printable(text)[:96] for text in texts]


def _parse_rows(value: object, name: str, most: int) -> list[Mapping[str, Any]]:
    refusal = RequestRefused(400, f'"{name}" was expected as a list of at most {most} objects')
    if not isinstance(value, list) or len(value) > most:
        raise refusal
    if not all(isinstance(row, dict) for row in value):
        raise refusal
    return value
