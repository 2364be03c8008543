"""Django's engine for SQLite, with two rules of our own.

Writers of this process take turns. SQLite lets one write at a time and has the others sleep and try
again, up to 100 ms apart and in no order: among many threads one may try in vain until it gives up
("database is locked"). So a transaction takes its turn before BEGIN and gives it back after COMMIT
or ROLLBACK, and a write outside of a transaction takes it for its statement. Other processes, such
as commands beside `kintsugi up`, still wait as SQLite has them wait.

The file holds sessions and people's names: it and its directory are its owner's alone.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError
from django.db.backends.sqlite3 import base

from kintsugi.sqlite.turns import Turns

_log = logging.getLogger("kintsugi.database")
# Our choice, and no usual wait: only a writer that hangs makes others wait so long. A batch of a
# large storm takes seconds, and all threads of all workers may stand in line.
LONGEST_WAIT_S = 300.0
_WRITES = ("INSERT", "UPDATE", "DELETE")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_turns = Turns()


def count_waiting() -> int:
    """How many threads of this process wait for their turn to write."""
    return _turns.waiting


@contextmanager
def _hold_turn() -> Iterator[None]:
    _take_turn()
    try:
        yield
    finally:
        _turns.give_back()


def _take_turn() -> None:
    if not _turns.take(within_s=LONGEST_WAIT_S):
        raise OperationalError(
            f"another thread has been writing to the database for {LONGEST_WAIT_S:g} s"
        )


class Cursor(base.SQLiteCursorWrapper):
    """Takes a turn for a write outside of a transaction."""

    def execute(self, query: str, params: Any = None) -> Any:
        return self._run_in_turn(query, lambda: super(Cursor, self).execute(query, params))

    def executemany(self, query: str, param_list: Any) -> Any:
        return self._run_in_turn(query, lambda: super(Cursor, self).executemany(query, param_list))

    def _run_in_turn(self, query: str, run: Callable[[], Any]) -> Any:
        if self.connection.in_transaction or not query.lstrip().upper().startswith(_WRITES):
            return run()
        with _hold_turn():
            return run()


class DatabaseWrapper(base.DatabaseWrapper):
    """One connection. `_has_turn` from before BEGIN until its transaction has ended."""

    _has_turn = False

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        if not self.is_in_memory_db():
            keep_private(Path(conn_params["database"]).resolve())
        return super().get_new_connection(conn_params)

    def create_cursor(self, name: str | None = None) -> Any:
        return self.connection.cursor(factory=Cursor)

    def _start_transaction_under_autocommit(self) -> None:
        _take_turn()
        self._has_turn = True
        try:
            super()._start_transaction_under_autocommit()  # type: ignore[misc]
        except BaseException:
            self._give_turn_back()
            raise

    def _commit(self) -> None:
        super()._commit()  # type: ignore[misc]  # where it fails, Django rolls back
        self._give_turn_back()

    def _rollback(self) -> None:
        super()._rollback()  # type: ignore[misc]  # where it fails, Django closes
        self._give_turn_back()

    def _close(self) -> None:
        try:
            super()._close()  # type: ignore[misc]
        finally:
            self._give_turn_back()

    def _give_turn_back(self) -> None:
        if self._has_turn:
            self._has_turn = False
            _turns.give_back()


def keep_private(path: Path) -> None:
    """Makes the file for its owner alone, or takes from others what they may do with it and its
    directory.

    SQLite gives `-wal` and `-shm` the mode of the file itself. Raises ImproperlyConfigured where it
    is not ours to do.
    """
    _restrict_mode(path.parent, 0o700)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            _restrict_mode(path.with_name(name), 0o600)
    except OSError as error:
        raise ImproperlyConfigured(
            f"The database {path} cannot be made: {error.strerror}."
        ) from error


def _restrict_mode(path: Path, mode: int) -> None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if not found.st_mode & _OTHERS:
        return
    was = stat.filemode(found.st_mode)
    if found.st_mode & stat.S_ISVTX:
        raise ImproperlyConfigured(
            f"{path} ({was}) is everybody's directory, and the database in it holds sessions. "
            "Give Kintsugi a KINTSUGI_DATA_DIR of its own."
        )
    try:
        path.chmod(mode)
    except OSError as error:
        raise ImproperlyConfigured(
            f"{path} ({was}) is open to others, and the database in it holds sessions; Kintsugi may"
            f" not change that ({error.strerror}). As its owner: chmod {mode:o} {path}"
        ) from error
    _log.warning(
        "%s was open to others (%s); it is now its owner's alone, since it holds sessions",
        path,
        was,
    )
