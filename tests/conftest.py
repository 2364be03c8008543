"""Fixtures that every test may use: a fixed clock, real servers, the conformance folder."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.db import connection

from incidents.inventory import graphs
from kintsugi import clock
from tests.services.redis import Redis

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def now() -> datetime:
    """A fixed time: nothing in a rule depends on today's date."""
    return datetime(2025, 1, 15, 3, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _forgotten_inventory() -> None:
    """What one test's inventory was is not another's."""
    graphs.forget()


@pytest.fixture(autouse=True)
def _forgotten_database_time() -> None:
    """Nor is the time that its database told: a test that travels would stay in the present."""
    clock.forget()


@pytest.fixture(autouse=True)
def _no_stop_file_left() -> Iterator[None]:
    """One would stop every later test's acts."""
    path = Path(os.environ["KINTSUGI_DATA_DIR"]) / "stop"
    yield
    assert not path.exists(), f"this test has written {path}: give it a KINTSUGI_STOP_FILE"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    server = Redis().start()
    yield server
    server.remove()


@pytest.fixture
def redis_url(redis_server: Redis) -> str:
    return redis_server.url


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real captures beside the checkout; tests that read it skip where it is
    absent."""
    folder = ROOT.parent / "shared"
    if not (folder / "corpus").is_dir():
        pytest.skip("no folder of real captures at ../shared")
    return folder


@pytest.fixture
def database_on_disk(transactional_db: None, tmp_path: Path) -> Iterator[None]:
    """SQLite as it runs in production, in a file: the one in memory locks whole tables and waits
    for nobody."""
    if connection.vendor != "sqlite":
        yield
        return
    in_memory = connection.settings_dict["NAME"]
    with contextlib.closing(sqlite3.connect(str(in_memory), uri=True)) as keeper:
        keeper.execute("VACUUM INTO ?", [str(tmp_path / "races.sqlite3")])
        connection.settings_dict["NAME"] = tmp_path / "races.sqlite3"
        connection.close()
        connection.ensure_connection()  # switches the file to WAL, which needs it alone
        yield
        connection.close()
        connection.settings_dict["NAME"] = in_memory
        connection.ensure_connection()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write expected.json of every capture anew"
    )
