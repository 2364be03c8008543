"""Which tests run on SQLite as well: the cheapest that together send every statement that the two
databases do not read alike.

`on_sqlite.txt` names them by the keys of `durations.py`. A run on PostgreSQL with `--record` writes
it from the statements that each test sent: locks, upserts, JSON, arrays, times, and text that is
compared without regard to case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

FILE = Path(__file__).with_name("on_sqlite.txt")
# So many tests for each statement, where there are as many.
TESTS_PER_STATEMENT = 3
_DIFFERS = re.compile(
    r"\bFOR (NO KEY )?UPDATE\b|ON CONFLICT|advisory|->|#>|@>|jsonb|::|\bANY\(|\bUNNEST\b|\bARRAY\b"
    r"|\bLATERAL\b|DISTINCT ON|\bINTERVAL\b|\bEXTRACT\b|_TRUNC\b|\bFILTER \(|\bOVER \(|\bLIKE\b|^WITH ",
    re.IGNORECASE,
)
_SCHEMA = re.compile(r"^(CREATE|ALTER|DROP|COMMENT)\b")
_SPACE = re.compile(r"\s+")
_PARAMETERS = re.compile(r"%s(, %s)+")
_ROWS = re.compile(r"(\([^()]*%s[^()]*\))(, \([^()]*%s[^()]*\))+")
_NUMBER = re.compile(r"\b\d+\b")

Execute = Callable[[str, object, bool, dict[str, Any]], Any]


def get_shape(statement: str) -> str | None:
    """The statement without what varies from call to call; None where all databases agree."""
    text = _SPACE.sub(" ", statement).strip()
    if not _DIFFERS.search(text) or _SCHEMA.match(text):
        return None
    return _NUMBER.sub("0", _ROWS.sub(r"\1", _PARAMETERS.sub("%s", text)))


class StatementRecorder:
    """Keeps the shapes that the current test sent, by any thread of this process."""

    def __init__(self) -> None:
        self.shapes: set[str] = set()
        connection_created.connect(self._watch)

    def _watch(self, connection: BaseDatabaseWrapper, **_: object) -> None:
        if self._execute not in connection.execute_wrappers:
            connection.execute_wrappers.append(self._execute)

    def _execute(
        self, execute: Execute, sql: str, params: object, many: bool, context: dict[str, Any]
    ) -> Any:
        if shape := get_shape(str(sql)):
            self.shapes.add(shape)
        return execute(sql, params, many, context)

    def take_shapes(self) -> set[str]:
        taken, self.shapes = self.shapes, set()
        return taken


def choose_tests(shapes: Mapping[str, set[str]], seconds: Mapping[str, float]) -> set[str]:
    """Again and again the test that sends most of what is still wanted in a second."""
    sent = Counter(shape for of_test in shapes.values() for shape in of_test)
    wanted = Counter({shape: min(times, TESTS_PER_STATEMENT) for shape, times in sent.items()})
    left = {key: set(of_test) for key, of_test in shapes.items()}
    chosen: set[str] = set()
    while left:
        left = {key: still for key, of_test in left.items() if (still := of_test & wanted.keys())}
        if not left:
            break
        best = max(left, key=lambda key: len(left[key]) / (0.1 + seconds.get(key, 0.0)))
        chosen.add(best)
        wanted -= Counter(left.pop(best))
    return chosen


def load_chosen(file: Path = FILE) -> frozenset[str]:
    return frozenset(file.read_text().splitlines()) if file.exists() else frozenset()


def save_chosen(keys: set[str], file: Path = FILE) -> None:
    file.write_text("".join(f"{key}\n" for key in sorted(keys)))
