"""Hands what nobody has taken to the site's Alertmanager, by whose routes people are paged.

An alert of ours holds for some minutes and is renewed each minute, as Prometheus does with its own:
once somebody has acknowledged the incident, or Kintsugi is gone, it ends by itself.
https://prometheus.io/docs/alerting/latest/alerts_api/
"""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from datetime import datetime, timedelta
from http.client import HTTPException
from typing import Any

from incidents.notify.story import get_console_url
from runbooks import services as runbooks
from runbooks.services import UnansweredQuestion

_log = logging.getLogger(__name__)
TASK = "page"
EVERY = timedelta(minutes=1)
# Prometheus's own: four times the period in which an alert is sent again (rules/manager.go).
_HOLDS = 4 * EVERY
_TIMEOUT_S = 10.0
ALERT_NAME = "KintsugiUnanswered"


def page(url: str, now: datetime) -> None:
    """Sends all questions that nobody has taken, and writes into their incidents that it did, or
    that Alertmanager did not take them."""
    questions = runbooks.list_unanswered(now)
    if not questions:
        return
    failure = send(url, [make_alert(question, now) for question in questions])
    if failure:
        _log.warning("%s", failure)
    runbooks.record_pages(questions, failure, now)


def make_alert(question: UnansweredQuestion, now: datetime) -> dict[str, Any]:
    """As Alertmanager takes it. The labels stay the same while it stands: they are its identity."""
    incident = question.incident
    labels = {
        "alertname": ALERT_NAME,
        "severity": "critical",
        "incident": str(incident.pk),
    }
    if incident.node is not None:
        labels["node"] = incident.node.name
    began_at = question.first_at or incident.opened_at
    annotations = {"summary": incident.title, "description": incident.needs_human}
    return {
        "labels": labels,
        "annotations": annotations,
        "startsAt": began_at.isoformat(),
        "endsAt": (now + _HOLDS).isoformat(),
        "generatorURL": get_console_url(incident.pk),
    }


def send(url: str, alerts: list[dict[str, Any]]) -> str:
    """Why they were not taken; empty when they were."""
    request = urllib.request.Request(  # noqa: S310 - http and https alone (configuration.config)
        f"{url.rstrip('/')}/api/v2/alerts",
        data=json.dumps(alerts).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "kintsugi"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310 - as above
            return ""
    except urllib.error.HTTPError as error:
        reason = f"answers {error.code}"
    except (OSError, HTTPException, ValueError) as error:
        reason = f"does not answer ({_describe(error)})"
    return (
        f"Nobody was paged: the Alertmanager of KINTSUGI_ALERTMANAGER_URL {reason}. It is tried"
        " again each minute."
    )


def _describe(error: Exception) -> str:
    """The system's words alone: those of urllib may quote the address, and a password in it."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    words = cause.strerror if isinstance(cause, OSError) else None
    return words or "nothing that is HTTP"
