"""A Redis that does not take what parts hand to each other: which trouble it is, what to do, and
one line in the log for each outage."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import OutOfMemoryError

from kintsugi.health import broker, redis_probe
from tests.services.ports import free_port
from tests.services.redis import Redis

pytestmark = pytest.mark.needs("redis-server")
PASSWORD = "s3cret"


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    made = Redis()
    made.start()
    yield made
    made.remove()


@pytest.fixture
def admin(server: Redis) -> Iterator[Any]:
    """Who may change the server's configuration, and puts it back."""
    client = redis.Redis(port=server.port)
    yield client
    for name, text in (("requirepass", ""), ("maxmemory", "0"), ("maxmemory-policy", "noeviction")):
        client.config_set(name, text)
    client.replicaof("NO", "ONE")
    client.close()


@pytest.fixture(autouse=True)
def own_client(settings: Any, server: Redis) -> Iterator[None]:
    settings.KINTSUGI = settings.KINTSUGI | {"REDIS_URL": server.url}
    yield
    broker.OUTAGE.end()


def test_a_redis_that_takes_what_it_is_given_is_no_trouble(admin: Any) -> None:
    assert broker.find_trouble() == ""
    assert broker.OUTAGE.since is None
    (key,) = admin.keys("kintsugi.*")
    assert 0 < admin.ttl(key) <= redis_probe.KEPT_FOR_S


def test_without_a_redis_there_is_none(settings: Any) -> None:
    settings.KINTSUGI = settings.KINTSUGI | {"REDIS_URL": None}
    assert broker.find_trouble() == ""


def test_one_that_is_not_there_is_named_without_its_password(settings: Any) -> None:
    port = free_port()
    url = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
    settings.KINTSUGI = settings.KINTSUGI | {"REDIS_URL": url}
    trouble = broker.find_trouble()
    assert trouble.startswith(f"Redis at 127.0.0.1:{port} takes nothing: ")
    assert "Connection refused" in trouble
    assert "systemctl status redis-server" in trouble
    assert PASSWORD not in trouble


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requirepass": PASSWORD}, ("refuses the user or the password", "password in REDIS_URL")),
        ({"maxmemory": "1"}, ("used memory > 'maxmemory'", "more memory")),
        ({"maxmemory-policy": "allkeys-lru"}, ("may evict queues", "maxmemory-policy noeviction")),
    ],
    ids=["password", "memory", "eviction"],
)
def test_one_that_answers_and_does_not_keep_what_it_is_given_says_why(
    admin: Any, change: dict[str, str], words: tuple[str, ...]
) -> None:
    for name, text in change.items():
        admin.config_set(name, text)
    trouble = broker.find_trouble()
    assert [each for each in words if each in trouble] == list(words)


def test_a_replica_is_told_as_that(admin: Any) -> None:
    admin.replicaof("127.0.0.1", free_port())
    assert "name the primary in REDIS_URL" in broker.find_trouble()


def test_who_may_not_write_our_own_key_is_not_called_ill(
    admin: Any, server: Redis, settings: Any
) -> None:
    admin.acl_setuser(
        "worker", enabled=True, passwords=["+pw"], commands=["+@all"], keys=["ingest"]
    )
    url = f"redis://worker:pw@127.0.0.1:{server.port}/0"
    settings.KINTSUGI = settings.KINTSUGI | {"REDIS_URL": url}
    assert broker.find_trouble() == ""


def test_an_outage_has_one_line_when_it_begins_and_one_when_it_ends(
    admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    admin.config_set("maxmemory", "1")
    assert broker.find_trouble()
    assert broker.find_trouble()
    admin.config_set("maxmemory", "0")
    assert broker.find_trouble() == ""
    assert broker.find_trouble() == ""
    begun, ended = caplog.messages
    assert "takes nothing since" in begun
    assert "takes what it is given again, after" in ended


@pytest.mark.parametrize("name", broker.LOUD_LOGGERS)
def test_celery_writes_no_line_of_its_own_for_each_attempt(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    logger = logging.getLogger(name)
    refusal, mistake = OutOfMemoryError("no memory"), LookupError("a mistake of its own")
    follows = AttributeError("no connection")
    follows.__context__ = refusal
    broker.keep_to_one_line()
    try:
        logger.error("cannot connect to %s: %s. Trying again", "redis://", refusal)
        logger.error("Error in timer: %r", 12, exc_info=refusal)
        logger.error("Error on restarting Gossip", exc_info=follows)
        logger.error("Error in timer: %r", mistake, exc_info=mistake)
    finally:
        for loud in broker.LOUD_LOGGERS:
            logging.getLogger(loud).removeFilter(broker.drop_refusals)
    own, other = caplog.messages
    assert "takes nothing since" in own
    assert "a mistake of its own" in other
