"""Whether Redis takes what the parts of Kintsugi hand to each other, and what is in the way.

It is asked by a write of our own: a Redis that is full, that may not write its snapshot or that is
a replica answers each PING.
"""

from __future__ import annotations

import logging
import os
import socket
from functools import lru_cache

import redis
from django.conf import settings
from kombu.exceptions import OperationalError
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)

from detectors.transports import error_text
from kintsugi.health.outages import Outage

# Our choice: within the ten seconds of a heartbeat, with room for a busy machine.
_TIMEOUT_S = 2.0
# It outlives some heartbeats, and then nothing of it is left.
_KEPT_FOR_S = 60
_LOUD_LOGGERS = (
    "celery.beat",
    "celery.bootsteps",
    "celery.worker.consumer.consumer",
    "kombu.asynchronous.hub",
)
REFUSALS = (RedisError, OperationalError, ConnectionError, TimeoutError)
"""As redis, kombu and the system raise them where Redis does not take something."""
_SAFE_POLICY = "noeviction"
_SNAPSHOT = "MISCONF"
# The first that fits.
_TODO: tuple[tuple[type[RedisError], str], ...] = (
    (AuthenticationError, "Correct the user and the password in REDIS_URL."),
    (BusyLoadingError, "It reads its data after a start: wait."),
    (
        OutOfMemoryError,
        "Give it more memory (`maxmemory` in redis.conf), and see what fills it (`--bigkeys`).",
    ),
    (ReadOnlyError, "It is a replica: name the primary in REDIS_URL."),
)
_SNAPSHOT_TODO = "It cannot write its snapshot: see its log and its disk (`df -h`)."
_START = "Start it (`systemctl status redis-server` on its machine), or correct REDIS_URL."
_POLICY_TODO = f"Set `maxmemory-policy {_SAFE_POLICY}` in redis.conf."


def get_address() -> str:
    """Of REDIS_URL, without its password."""
    if settings.KINTSUGI["REDIS_URL"] is None:
        return "the broker in this process"
    kwargs = _get_client().connection_pool.connection_kwargs
    place = kwargs.get("path") or f"{kwargs.get('host')}:{kwargs.get('port')}"
    return f"Redis at {place}"


OUTAGE = Outage(
    get_address,
    "What is due stands in the database: it is late, not lost, and goes on when Redis does.",
    verb="takes nothing",
    ends="takes what it is given again",
)


def find_trouble() -> str:
    """What keeps Redis from taking work of this process, and what to do; empty where nothing does,
    or where there is no Redis. Takes up to some seconds."""
    if settings.KINTSUGI["REDIS_URL"] is None:
        return ""
    client = _get_client()
    try:
        client.set(f"kintsugi.alive.{socket.gethostname()}.{os.getpid()}", "", ex=_KEPT_FOR_S)
    except NoPermissionError:  # who may not write this key may write the queues all the same
        return ""
    except RedisError as error:
        reason = _get_reason(error)
        OUTAGE.begin(reason)
        return f"{get_address()} takes nothing: {reason}. {_get_todo(error, reason)}"
    OUTAGE.end()
    return _find_eviction(client)


def _find_eviction(client: redis.Redis) -> str:
    """It drops whole queues in silence once its memory is short."""
    try:
        policy = str(client.info("memory").get("maxmemory_policy", _SAFE_POLICY))
    except RedisError:
        return ""
    if policy == _SAFE_POLICY:
        return ""
    return f"{get_address()} may evict queues: maxmemory-policy is {policy}. {_POLICY_TODO}"


def _get_reason(error: BaseException) -> str:
    """In its own words, but where they speak of its protocol alone."""
    if isinstance(error, AuthenticationError):
        return "it refuses the user or the password"
    return error_text.reason(error).rstrip(".")


def _get_todo(error: RedisError, reason: str) -> str:
    if reason.startswith(_SNAPSHOT):
        return _SNAPSHOT_TODO
    return next((todo for kind, todo in _TODO if isinstance(error, kind)), _START)


@lru_cache(maxsize=1)
def _get_client() -> redis.Redis:
    url = settings.KINTSUGI["REDIS_URL"]
    return redis.Redis.from_url(url, socket_connect_timeout=_TIMEOUT_S, socket_timeout=_TIMEOUT_S)


def keep_to_one_line() -> None:
    """In a worker or beat: Celery and kombu write a line or a traceback for each attempt."""
    for name in _LOUD_LOGGERS:
        logging.getLogger(name).addFilter(_drop_refusals)


def _drop_refusals(record: logging.LogRecord) -> bool:
    """False for what an outage of Redis has made: the outage has its own line."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    raised = record.exc_info[1] if record.exc_info else None
    for error in (raised, *arguments):
        cause = _find_refusal(error)
        if cause is not None:
            OUTAGE.begin(_get_reason(cause))
            return False
    return True


def _find_refusal(error: object) -> BaseException | None:
    """The error of Redis that it is, or that it was raised from."""
    seen = error if isinstance(error, BaseException) else None
    while seen is not None and not isinstance(seen, REFUSALS):
        seen = seen.__cause__ or seen.__context__
    return seen
