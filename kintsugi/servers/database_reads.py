"""Questions to the database from threads that live long: on a healthy connection or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.db import Error, close_old_connections, connection

from detectors.transports import error_text

_T = TypeVar("_T")


class DatabaseAway(Exception):
    """The database does not answer: says why."""


def ask(question: Callable[[], _T]) -> _T:
    """Asks on a healthy connection of this thread. Raises DatabaseAway with the database's
    words."""
    close_old_connections()
    try:
        return question()
    except Error as error:
        connection.close()
        raise DatabaseAway(error_text.format_reason(error)) from error
