"""A Prometheus query API that the site already has: how it is asked, and what its answers hold.
Pure but for `ask`.

Total on any bytes. https://prometheus.io/docs/prometheus/latest/querying/api/ . Python 3.9,
standard library alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Optional
from urllib.parse import urlencode

from detectors import resources
from detectors.detector import DetectorError, Output, Target, Transports

URL = "prometheus"
# Its own query.timeout is 2 min; an instant query of a few fields takes well under a second.
_TIMEOUT = timedelta(seconds=20)
_MOST_SERIES = 500_000
# Labels that name the machine, the surest first: dcgm-exporter's own (`hostname` from 4.8.3 on),
# those that sites relabel to, and at last where the exporter was scraped.
_HOST_LABELS = ("Hostname", "hostname", "nodename", "node", "host", "instance")


@dataclass(frozen=True)
class Series:
    """One element of an instant vector. The value may be NaN."""

    labels: Mapping[str, str]
    value: float

    @property
    def name(self) -> str:
        return self.labels.get("__name__", "")


@dataclass(frozen=True)
class QueryResult:
    """The vector, and what is wrong with it, for people: an error (then there is none), or why it
    is not whole."""

    series: tuple[Series, ...] = ()
    complaints: tuple[str, ...] = field(default=())
    is_usable: bool = True


def get_address(target: Target) -> str:
    """Raises DetectorError for a site without one."""
    url = target.expected.urls.get(URL)
    if not url:
        raise DetectorError(f"{target.name}: no address of a Prometheus is configured (urls.{URL})")
    return url.rstrip("/")


def ask(target: Target, via: Transports, queries: Mapping[str, str]) -> dict[str, Output]:
    """Each query by its name. Raises Unreachable, and DetectorError for a site without an
    address."""
    base = get_address(target)
    asked = {
        name: f"{base}/api/v1/query?{urlencode({'query': text})}" for name, text in queries.items()
    }
    return {name: via.http.get(target, url, _TIMEOUT) for name, url in asked.items()}


def answer(output: Output) -> QueryResult:
    """The vector of an instant query. An error of the API comes with an HTTP status and a JSON body
    of its own."""
    whole = _parse_object(output.stdout)
    if whole.get("status") == "error":
        error_text = f"{whole.get('errorType', 'error')}: {whole.get('error', '')}"
        return QueryResult(complaints=(error_text[:200],), is_usable=False)
    if output.status != 0:
        return QueryResult(complaints=(output.complaint,), is_usable=False)
    inside = whole.get("data")
    rows = (
        inside.get("result")
        if isinstance(inside, dict) and inside.get("resultType") == "vector"
        else None
    )
    if whole.get("status") != "success" or not isinstance(rows, list):
        return QueryResult(
            complaints=(f"no answer of a query API: {output.complaint[:120]}",), is_usable=False
        )
    found = [_parse_series(row) for row in rows[:_MOST_SERIES]]
    known = tuple(each for each in found if each is not None)
    complaints = (
        [str(word)[:200] for word in whole.get("warnings") or ()]
        if _is_list(whole, "warnings")
        else []
    )
    if len(known) < len(rows):
        complaints.append(f"{len(rows) - len(known)} of {len(rows)} series cannot be read")
    return QueryResult(known, tuple(complaints))


def get_host(labels: Mapping[str, str], chosen: str = "") -> str:
    """The short host that a series is of: by the site's own label, or by the usual ones; `-` when
    none tells."""
    for label in (chosen, *_HOST_LABELS):
        text = labels.get(label, "")
        if label and text:
            return resources.short_host(_remove_port(text))
    return resources.UNKNOWN_HOST


def _remove_port(text: str) -> str:
    """`gn001:9400`, `[fd00::1]:9100`, `fd00::1`, `gn001`."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    head, colon, port = text.rpartition(":")
    return head if colon and port.isdecimal() and ":" not in head else text


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        whole = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return whole if isinstance(whole, dict) else {}


def _is_list(whole: Mapping[str, Any], name: str) -> bool:
    return isinstance(whole.get(name), list)


def _parse_series(row: Any) -> Optional[Series]:
    """`{"metric": {...}, "value": [seconds, "text"]}`."""
    if not isinstance(row, dict):
        return None
    metric, value = row.get("metric"), row.get("value")
    if not isinstance(metric, dict) or not isinstance(value, list) or len(value) != 2:
        return None
    try:
        return Series({str(key): str(text) for key, text in metric.items()}, float(value[1]))
    except (TypeError, ValueError, OverflowError):
        return None
