"""A Redis that may lose queues is refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from detectors.catalog import site_catalog
from kintsugi.checks import (
    check_catalogue,
    check_correlation,
    check_node_access,
    check_redis_eviction,
    check_refused_certificates,
    check_runbooks,
)
from tests.services.ports import free_port
from tests.services.redis import Redis

needs_redis = pytest.mark.needs("redis-server")


@pytest.fixture
def evicting() -> Iterator[Redis]:
    server = Redis("--maxmemory-policy", "allkeys-lru", "--save", "").start()
    yield server
    server.remove()


def _ids(settings: Any, url: str | None) -> list[str | None]:
    settings.KINTSUGI = {**settings.KINTSUGI, "REDIS_URL": url}
    return [message.id for message in check_redis_eviction(None)]


@needs_redis
def test_a_redis_that_may_evict_stops_the_start(settings: Any, evicting: Redis) -> None:
    assert _ids(settings, evicting.url) == ["kintsugi.E001"]


@needs_redis
def test_a_redis_that_evicts_nothing_is_accepted(settings: Any, redis_url: str) -> None:
    assert _ids(settings, redis_url) == []


def test_a_redis_that_does_not_answer_is_a_warning_because_the_spool_keeps_everything(
    settings: Any,
) -> None:
    assert _ids(settings, f"redis://127.0.0.1:{free_port()}/0") == ["kintsugi.W001"]


def test_the_embedded_default_needs_no_redis(settings: Any) -> None:
    assert _ids(settings, None) == []


def test_a_key_that_cannot_be_read_stops_the_start(settings: Any, tmp_path: Path) -> None:
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_SSH_KEY": str(tmp_path / "none")}
    assert [message.id for message in check_node_access(None)] == ["kintsugi.E002"]


def test_no_key_is_no_error_because_a_site_may_start_without_node_access(settings: Any) -> None:
    assert list(check_node_access(None)) == []


def test_host_keys_that_are_not_pinned_yet_are_a_warning(settings: Any, tmp_path: Path) -> None:
    key = paramiko.ECDSAKey.generate()
    key.write_private_key_file(str(tmp_path / "key"))
    access = {
        "KINTSUGI_SSH_KEY": str(tmp_path / "key"),
        "KINTSUGI_SSH_KNOWN_HOSTS": str(tmp_path / "none"),
    }
    settings.KINTSUGI = {**settings.KINTSUGI, **access}
    assert [message.id for message in check_node_access(None)] == ["kintsugi.W003"]


def test_a_list_of_refused_certificates_that_cannot_be_read_is_a_warning(
    settings: Any, tmp_path: Path
) -> None:
    path = tmp_path / "refused"
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_TLS_REFUSED": str(path)}
    (absent,) = check_refused_certificates(None)
    path.write_text("\ngn042.pem\n")
    (wrong,) = check_refused_certificates(None)
    path.write_text("sha256 Fingerprint=" + ":".join(["AB"] * 32))
    assert list(check_refused_certificates(None)) == []
    assert (absent.id, wrong.id) == ("kintsugi.W004", "kintsugi.W004")
    assert f"{path}:2: 'gn042.pem' is no SHA-256 fingerprint" in wrong.msg


@pytest.mark.parametrize(("table", "missing"), [("rule", "cause"), ("gather", "fewest")])
def test_rules_of_the_site_that_cannot_be_read_stop_the_start(
    settings: Any, tmp_path: Path, table: str, missing: str
) -> None:
    (tmp_path / "site.toml").write_text(f'[[{table}]]\nname = "mine"\n')
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_CORRELATION": tmp_path}
    (message,) = check_correlation(None)
    assert message.id == "kintsugi.E003"
    assert f"site.toml:1: mine: {missing}: missing" in message.msg


def test_rows_of_the_site_that_cannot_be_read_stop_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(site_catalog, "_directory", tmp_path)
    (tmp_path / "site.toml").write_text('[[harmless]]\npattern = "quux"\n')
    (message,) = check_catalogue(None)
    assert message.id == "kintsugi.E006"
    assert "site.toml:1: row: missing program" in message.msg


def test_the_shipped_rules_of_correlation_can_be_read(settings: Any) -> None:
    assert check_correlation(None) == []


def test_a_runbook_of_the_site_that_cannot_be_read_stops_the_start(
    settings: Any, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_RUNBOOKS": tmp_path}
    (message,) = check_runbooks(None)
    assert message.id == "kintsugi.E004"
    assert "mine.yaml:1: the runbook has no version" in message.msg


def test_the_shipped_runbooks_can_be_read(settings: Any) -> None:
    assert check_runbooks(None) == []
