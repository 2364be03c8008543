"""`manage.py migrate`: Django's own, which begins anew where a process at work was in its way."""

from __future__ import annotations

from typing import Any

from django.core.management.commands import migrate
from django.db import OperationalError

# A migration that changes several tables locks one after the other, and so does ingest, in another
# order: PostgreSQL ends one of the two (40P01 after `deadlock_timeout`, 1 s by default). Each
# migration is one transaction, so what was done is kept and what was not is begun again.
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_DEADLOCK = "40P01"
# Our choice: each meeting costs a second, and a busy site is met a few times.
_TRIES = 20


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                super().handle(*args, **options)
            except OperationalError as error:
                if not tries_left or not _is_deadlock(error):
                    raise
                self.stderr.write(
                    "A process at work held what a migration needs: it is begun again."
                )
            else:
                return


def _is_deadlock(error: OperationalError) -> bool:
    return getattr(error.__cause__, "sqlstate", None) == _DEADLOCK
