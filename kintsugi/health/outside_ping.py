"""Tells an address outside of the site that Kintsugi gets on. When it hears nothing it alarms
people itself, also when this whole machine is down: such as healthchecks.io.
"""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from datetime import timedelta
from http.client import HTTPException

_log = logging.getLogger(__name__)
EVERY = timedelta(minutes=1)
TASK = "outside_ping"
_TIMEOUT_S = 10.0


def send(url: str) -> bool:
    """Whether it was taken. `url` is https (kintsugi.configuration.config) and is never logged: who
    knows it can keep the alarm quiet."""
    request = urllib.request.Request(url, headers={"User-Agent": "kintsugi"})  # noqa: S310 - https alone
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310 - as above
            return True
    except urllib.error.HTTPError as error:
        _log.warning("KINTSUGI_PING_URL answers %s", error.code)
    except (OSError, HTTPException, ValueError) as error:
        _log.warning("KINTSUGI_PING_URL does not answer: %s", type(error).__name__)
    return False
