"""A Redis that may lose queues is refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kintsugi.checks import redis_keeps_what_it_is_given
from tests.services.ports import free_port
from tests.services.redis import Redis

pytestmark = pytest.mark.needs("redis-server")


@pytest.fixture
def evicting() -> Iterator[Redis]:
    server = Redis("--maxmemory-policy", "allkeys-lru", "--save", "").start()
    yield server
    server.remove()


def _ids(settings: Any, url: str | None) -> list[str | None]:
    settings.KINTSUGI = {**settings.KINTSUGI, "REDIS_URL": url}
    return [message.id for message in redis_keeps_what_it_is_given(None)]


def test_a_redis_that_may_evict_stops_the_start(settings: Any, evicting: Redis) -> None:
    assert _ids(settings, evicting.url) == ["kintsugi.E001"]


def test_a_redis_that_evicts_nothing_is_accepted(settings: Any, redis_url: str) -> None:
    assert _ids(settings, redis_url) == []


def test_a_redis_that_does_not_answer_is_a_warning_because_the_spool_keeps_everything(settings: Any) -> None:
    assert _ids(settings, f"redis://127.0.0.1:{free_port()}/0") == ["kintsugi.W001"]


def test_the_embedded_default_needs_no_redis(settings: Any) -> None:
    assert _ids(settings, None) == []
