"""The command that needs Kintsugi's tables: it says in a sentence when they are not there, and
makes no database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import DatabaseError

from detectors.resources import printable
from kintsugi import startup
from kintsugi.configuration import schema

Tags = list[str] | tuple[str, ...] | Literal["__all__"]


def require_tables(*, is_any_version: bool = False) -> None:
    """Raises CommandError, before anything is created, where `migrate` of this version has not
    run; with `is_any_version` where none has."""
    try:
        _require_tables(is_any_version)
    except DatabaseError as error:
        raise CommandError(_describe_absence(error)) from error


def _require_tables(is_any_version: bool) -> None:
    problem = schema.find_problem(is_any_version=is_any_version)
    if problem:
        raise CommandError(problem)


def _describe_absence(error: Exception) -> str:
    return f"{schema.store_name()} does not answer: {str(error).strip()}"


class PrintableOutput(OutputWrapper):
    """Writes lines of which nothing is for the terminal to obey: rows hold what others wrote."""

    def write(  # type: ignore[override]  # as Django writes it, the stubs do not
        self,
        msg: str = "",
        style_func: Callable[[str], str] | None = None,
        ending: str | None = None,
    ) -> None:
        lines = msg.split("\n")
        super().write("\n".join(map(printable, lines)), style_func, ending)


class PrintableCommand(BaseCommand):
    """Every command of ours: whatever it reads, of files or rows, others wrote."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Django sets both outputs anew for each call."""
        if name in ("stdout", "stderr") and not isinstance(value, PrintableOutput):
            value = PrintableOutput(value._out, ending=value.ending)
        super().__setattr__(name, value)


class StoreCommand(PrintableCommand):
    """A command that reads or writes rows.

    One that only reads asks for the settings' files alone, and what acts is loaded where it acts,
    behind `require_serving`: a look costs little more than Django with the models.
    """

    requires_system_checks: Tags = (startup.CONFIGURATION,)
    works_with_earlier_tables = False
    _skips_checks = False

    def needs_store(self, options: Mapping[str, Any]) -> bool:
        """Whether these options need the tables at all."""
        return True

    def explain_absence(self, error: Exception) -> str:
        """What is said where the database does not answer."""
        return _describe_absence(error)

    def require_store(self, options: Mapping[str, Any]) -> None:
        """Raises CommandError where what these options need is not there."""
        if not self.needs_store(options):
            return
        try:
            _require_tables(self.works_with_earlier_tables)
        except DatabaseError as error:
            raise CommandError(self.explain_absence(error)) from error

    def execute(self, *args: Any, **options: Any) -> str | None:
        self.require_store(options)
        self._skips_checks = bool(options.get("skip_checks"))
        return super().execute(*args, **options)

    def require_serving(self) -> None:
        """Raises SystemCheckError when catalogue, rules or runbooks cannot be used."""
        if not self._skips_checks:
            self.check(tags=[startup.SERVING])
