"""A database of a replay's own, migrated and thrown away: the site's is never opened, whatever the
settings say."""

from __future__ import annotations

import copy
import sqlite3
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, connections

_opened: set[Path] = set()
# One, for what is played many times in a row.
_filled: dict[Hashable, sqlite3.Connection] = {}


@contextmanager
def use_temporary_database() -> Iterator[None]:
    """Within it the default connection is a fresh SQLite file in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="kintsugi-replay-") as folder:
        path = Path(folder) / "replay.sqlite3"
        path.write_bytes(_build_migrated_database())
        with _swap_default_connection(path):
            yield


def fill(key: Hashable, write: Callable[[], None]) -> None:
    """What `write` puts into an empty database of `use_temporary_database`: written once per key in
    a row, and copied after."""
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.settings_dict["NAME"] not in _opened or connection.in_atomic_block:
        write()
        return
    connection.ensure_connection()
    if key in _filled:
        _filled[key].backup(connection.connection)
        return
    write()
    for copy_before in _filled.values():
        copy_before.close()
    _filled.clear()
    _filled[key] = sqlite3.connect(":memory:", check_same_thread=False)
    connection.connection.backup(_filled[key])


@lru_cache(maxsize=1)
def _build_migrated_database() -> bytes:
    """The bytes of a migrated, empty database: made once per process, copied for each replay."""
    with tempfile.TemporaryDirectory(prefix="kintsugi-replay-") as folder:
        path = Path(folder) / "migrated.sqlite3"
        with _swap_default_connection(path):
            call_command("migrate", verbosity=0, interactive=False)
        # Write-ahead logging keeps pages beside the file until it is closed.
        sqlite3.connect(path).close()
        return path.read_bytes()


@contextmanager
def _swap_default_connection(path: Path) -> Iterator[None]:
    """Swaps this thread's default connection, and puts the old one back untouched."""
    before = connections[DEFAULT_DB_ALIAS]
    settings_before = connections.settings[DEFAULT_DB_ALIAS]
    settings = copy.deepcopy(settings_before)
    settings.update(
        ENGINE="django.db.backends.sqlite3",
        NAME=path,
        # Nothing here outlives the process, so nothing waits for a disk.
        OPTIONS={
            "transaction_mode": "IMMEDIATE",
            "init_command": (
                "PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF; PRAGMA temp_store=MEMORY;"
            ),
        },
        CONN_MAX_AGE=None,
    )
    connections.settings[DEFAULT_DB_ALIAS] = settings
    connections[DEFAULT_DB_ALIAS] = connections.create_connection(DEFAULT_DB_ALIAS)
    _opened.add(path)
    try:
        yield
    finally:
        _opened.discard(path)
        connections[DEFAULT_DB_ALIAS].close()
        connections.settings[DEFAULT_DB_ALIAS] = settings_before
        connections[DEFAULT_DB_ALIAS] = before
