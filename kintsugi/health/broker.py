"""Whether Redis takes what the parts of Kintsugi hand to each other: what is in the way, and one
line in the log for each outage."""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

from django.conf import settings
from kombu.exceptions import OperationalError

from detectors.transports import error_text
from kintsugi.health.outages import Outage

LOUD_LOGGERS = (
    "celery.beat",
    "celery.bootsteps",
    "celery.worker.consumer.consumer",
    "kombu.asynchronous.hub",
)
# As kombu and the system raise them; those of the client of Redis are told by its package, which
# only a site with a Redis loads.
_REFUSALS = (OperationalError, ConnectionError, TimeoutError)
_CLIENT = "redis"


def get_address() -> str:
    """Of REDIS_URL, without its password."""
    url = settings.KINTSUGI["REDIS_URL"]
    if url is None:
        return "The broker in this process"
    parts = urlsplit(url)
    return f"Redis at {parts.hostname}:{parts.port or 6379}" if parts.hostname else "Redis"


OUTAGE = Outage(
    get_address,
    "What is due stands in the database: it is late, not lost, and goes on when Redis does.",
    verb="takes nothing",
    ends="takes what it is given again",
)


def find_trouble() -> str:
    """What keeps Redis from taking work of this process, and what to do; empty where nothing does,
    or where there is no Redis. Takes up to some seconds."""
    url = settings.KINTSUGI["REDIS_URL"]
    if url is None:
        return ""
    from kintsugi.health import redis_probe  # noqa: PLC0415  (redis: a site without it loads none)

    refusal = redis_probe.find_refusal(url)
    if refusal is None:
        OUTAGE.end()
        return ""
    if refusal.is_outage:
        OUTAGE.begin(refusal.reason)
        return f"{get_address()} takes nothing: {refusal.reason}. {refusal.todo}"
    OUTAGE.end()
    return f"{get_address()} is not safe: {refusal.reason}. {refusal.todo}"


def keep_to_one_line() -> None:
    """In a worker or beat: Celery and kombu write a line or a traceback for each attempt."""
    for name in LOUD_LOGGERS:
        logging.getLogger(name).addFilter(drop_refusals)


def drop_refusals(record: logging.LogRecord) -> bool:
    """False for what an outage of Redis has made: the outage has its own line."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    raised = record.exc_info[1] if record.exc_info else None
    for error in (raised, *arguments):
        cause = _find_refusal(error)
        if cause is not None:
            OUTAGE.begin(error_text.format_reason(cause).rstrip("."))
            return False
    return True


def _find_refusal(error: object) -> BaseException | None:
    """The error of Redis that it is, or that it was raised from."""
    seen = error if isinstance(error, BaseException) else None
    while seen is not None and not _is_refusal(seen):
        seen = seen.__cause__ or seen.__context__
    return seen


def _is_refusal(error: BaseException) -> bool:
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, _REFUSALS) or package == _CLIENT
