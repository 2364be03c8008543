"""`manage.py check`: what Django's looks at, and whether database and parts of the site are alive.

What starts asks for none of the latter: a site whose parts are just starting has silent ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core import checks
from django.core.management.commands import check
from django.db import DatabaseError

from incidents.checks import part_statuses
from kintsugi import clock
from kintsugi.configuration import schema
from kintsugi.health import database_away

_PARTS = "parts"
_DATABASE_ID, _TABLES_ID, _PART_ID = "kintsugi.W005", "kintsugi.W006", "kintsugi.W007"
_RECEIVERS = "Receivers keep what comes in on their disks meanwhile; nothing else goes on."


class Command(check.Command):
    def handle(self, *app_labels: Any, **options: Any) -> None:
        registered = checks.register(_check_site, _PARTS)
        try:
            super().handle(*app_labels, **options)
        finally:
            checks.registry.registry.registered_checks.discard(registered)


def _check_site(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:
    """Warnings: none of it keeps a process from starting."""
    try:
        problem = schema.find_problem()
        if problem:
            return [checks.Warning(problem, id=_TABLES_ID)]
        found = part_statuses.list_part_troubles(clock.now())
    except DatabaseError as error:
        reason = database_away.describe_reason(error)
        text = f"{schema.store_name()} does not answer: {reason}."
        hint = f"{database_away.describe_todo()} {_RECEIVERS}"
        return [checks.Warning(text, hint=hint, id=_DATABASE_ID)]
    return [checks.Warning(text, id=_PART_ID) for text in found]
