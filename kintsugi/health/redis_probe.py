"""Asks Redis whether it takes work, by a write: one that is full, that cannot write its snapshot or
that is a replica answers each PING. Loaded where REDIS_URL is set alone."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)

from detectors.transports import error_text

# Our choice: within the ten seconds of a heartbeat, with room for a busy machine.
_TIMEOUT_S = 2.0
# It outlives some heartbeats, and then nothing of it is left.
KEPT_FOR_S = 60
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


@dataclass(frozen=True)
class RedisRefusal:
    """What Redis said, and what to do. `is_outage`: it takes nothing."""

    reason: str
    todo: str
    is_outage: bool = True


def find_refusal(url: str) -> RedisRefusal | None:
    """None where it takes work. Takes up to some seconds."""
    client = redis.Redis.from_url(url, socket_connect_timeout=_TIMEOUT_S, socket_timeout=_TIMEOUT_S)
    try:
        client.set(f"kintsugi.alive.{socket.gethostname()}.{os.getpid()}", "", ex=KEPT_FOR_S)
        policy = str(client.info("memory").get("maxmemory_policy", _SAFE_POLICY))
    except NoPermissionError:  # who may not do this may use the queues all the same
        return None
    except RedisError as error:
        reason = get_reason(error)
        return RedisRefusal(reason, _get_todo(error, reason))
    finally:
        client.close()
    if policy == _SAFE_POLICY:
        return None
    # It drops whole queues in silence once its memory is short.
    return RedisRefusal(
        f"it may evict queues, for its maxmemory-policy is {policy}",
        f"Set `maxmemory-policy {_SAFE_POLICY}` in redis.conf.",
        is_outage=False,
    )


def get_reason(error: BaseException) -> str:
    """In its own words, but where they speak of its protocol alone."""
    if isinstance(error, AuthenticationError):
        return "it refuses the user or the password"
    return error_text.format_reason(error).rstrip(".")


def _get_todo(error: RedisError, reason: str) -> str:
    if reason.startswith(_SNAPSHOT):
        return _SNAPSHOT_TODO
    return next((todo for kind, todo in _TODO if isinstance(error, kind)), _START)
