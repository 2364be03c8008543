"""What load balancers and Prometheus ask: whether this process answers, whether the site serves,
its numbers.

They come before all other middleware: whoever asks knows no host name of the console and has no
session.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from django.conf import settings
from django.db import Error, connection
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST

from detectors.transports import error_text
from incidents.checks.heartbeats import SILENT_AFTER, is_fresh, list_latest
from incidents.models import Heartbeat
from incidents.text.wording import format_moment
from kintsugi import clock
from kintsugi.configuration import schema
from kintsugi.health.database_away import OUTAGE, RETRY_AFTER_S
from kintsugi.health.metrics import format_metrics

_log = logging.getLogger(__name__)
# Without these no fault becomes an incident that people hear of. A site may do without the others.
_NEEDED_QUEUES = ("ingest", "notify", "sweep")
_DATABASE_AWAY = "the database does not answer"


class HealthPages:
    """Middleware that answers three addresses, without login and for GET and HEAD alone."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response
        self._pages = {"/healthz": show_health, "/readyz": show_readiness, "/metrics": show_metrics}

    def __call__(self, request: HttpRequest) -> HttpResponse:
        # With a slash as without: a probe follows no redirect and reads no HTML.
        page = self._pages.get(request.path_info.removesuffix("/"))
        if page is None:
            return self._get_response(request)
        if request.method not in ("GET", "HEAD"):
            refusal = _answer(405, "GET or HEAD was expected")
            refusal.headers["Allow"] = "GET, HEAD"
            return refusal
        try:
            response = page(request)
        except Error as error:
            connection.close()
            _log.warning("%s: %s", _DATABASE_AWAY, error_text.format_reason(error))
            response = _answer(503, _DATABASE_AWAY)
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        response.headers["Cache-Control"] = "no-store"
        return response


def show_health(request: HttpRequest) -> HttpResponse:
    """200: this process answers, and its database does."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    OUTAGE.end()
    return _answer(200, "ok")


def show_readiness(request: HttpRequest) -> HttpResponse:
    """200: the tables are this version's, and a beat and workers have been seen lately. 503 says
    what is missing."""
    missing = _list_missing(clock.now())
    return _answer(503, "\n".join(missing)) if missing else _answer(200, "ok")


def show_metrics(request: HttpRequest) -> HttpResponse:
    """For those whom KINTSUGI_METRICS_NETWORKS names."""
    address = request.META.get("REMOTE_ADDR", "")
    if not _may_read_metrics(address):
        named = address or "a Unix socket"
        return _answer(403, f"KINTSUGI_METRICS_NETWORKS does not name your address, {named}")
    return HttpResponse(format_metrics(clock.now()), content_type=CONTENT_TYPE_LATEST)


def _list_missing(now: datetime) -> list[str]:
    if schema.find_problem():
        return ["the tables are not those of this version: kintsugi migrate"]
    fresh = [row for row in list_latest() if is_fresh(row, now)]
    beats = [row for row in fresh if row.part == "beat"]
    missing = _describe_missing("beat", beats)
    for queue in _NEEDED_QUEUES:
        workers = [row for row in fresh if queue in row.queues]
        missing += _describe_missing(f"worker of {queue}", workers)
    return missing


def _describe_missing(what: str, rows: Sequence[Heartbeat]) -> list[str]:
    """Nothing while one of the processes that do it gets on."""
    if not rows:
        return [f"no {what} has been seen for {SILENT_AFTER.seconds} s"]
    if any(not row.trouble for row in rows):
        return []
    row = rows[0]
    since = f" since {format_moment(row.trouble_since)}" if row.trouble_since is not None else ""
    return [f"no {what} gets on{since}: {row.trouble}"]


def _may_read_metrics(address: str) -> bool:
    try:
        asking = ipaddress.ip_address(address)
    except ValueError:  # a Unix socket has no address
        return False
    if isinstance(asking, ipaddress.IPv6Address) and asking.ipv4_mapped is not None:
        asking = asking.ipv4_mapped
    networks = settings.KINTSUGI["KINTSUGI_METRICS_NETWORKS"]
    return any(asking in ipaddress.ip_network(network) for network in networks)


def _answer(status: int, text: str) -> HttpResponse:
    return HttpResponse(f"{text}\n", status=status, content_type="text/plain; charset=utf-8")
