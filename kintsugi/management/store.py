"""The command that needs Kintsugi's tables: it says in a sentence when they are not there, and
makes no database."""

from __future__ import annotations

from typing import Any, Literal

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from kintsugi import startup
from kintsugi.configuration import schema

Tags = list[str] | tuple[str, ...] | Literal["__all__"]


def require_tables(*, is_any_version: bool = False) -> None:
    """Raises CommandError, before anything is created, where `migrate` of this version has not
    run; with `is_any_version` where none has."""
    try:
        problem = schema.find_problem(is_any_version=is_any_version)
    except DatabaseError as error:
        name = schema.store_name()
        raise CommandError(f"{name} does not answer: {str(error).strip()}") from error
    if problem:
        raise CommandError(problem)


class StoreCommand(BaseCommand):
    """A command that reads or writes rows.

    One that only reads asks for the settings' files alone, and what acts is loaded where it acts,
    behind `require_serving`: a look costs little more than Django with the models.
    """

    requires_system_checks: Tags = (startup.CONFIGURATION,)
    works_with_earlier_tables = False
    _skips_checks = False

    def execute(self, *args: Any, **options: Any) -> str | None:
        require_tables(is_any_version=self.works_with_earlier_tables)
        self._skips_checks = bool(options.get("skip_checks"))
        return super().execute(*args, **options)

    def require_serving(self) -> None:
        """Raises SystemCheckError when catalogue, rules or runbooks cannot be used."""
        if not self._skips_checks:
            self.check(tags=[startup.SERVING])
