"""Whether the database has the tables of this version. Reads the names of migrations, never their
modules: every command asks."""

from __future__ import annotations

from pathlib import Path

from django.apps import apps
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

_APPS = ("incidents", "runbooks")


def store_name() -> str:
    """Which database this is, for people: never its password."""
    values = connection.settings_dict
    if connection.vendor == "sqlite":
        return str(values["NAME"])
    where = f"{values['HOST'] or 'local'}{':' + values['PORT'] if values['PORT'] else ''}"
    return f"PostgreSQL database {values['NAME']} on {where}"


def find_problem(*, is_any_version: bool = False) -> str:
    """Why this version cannot work with the database, or nothing. Creates nothing. Raises
    DatabaseError when it does not answer.

    `is_any_version`: tables of an earlier version will do.
    """
    begin = "to begin a new one here: `kintsugi migrate`."
    name = str(connection.settings_dict["NAME"])
    is_file = connection.vendor == "sqlite" and not name.startswith(("file:", ":memory:"))
    if is_file and not Path(name).exists():
        return (
            f"There is no Kintsugi here: DATABASE_URL is unset and {store_name()} does not exist."
            f" Read the site's settings first (docs/deploy.md, Commands), or {begin}"
        )
    applied = set(MigrationRecorder(connection).applied_migrations())
    if not any(app == "runbooks" for app, _ in applied):
        return (
            f"There is no Kintsugi in {store_name()}: it has none of the tables. Read the site's"
            f" settings first (docs/deploy.md, Commands), or {begin}"
        )
    if is_any_version:
        return ""
    missing = [f"{app}.{name}" for app, name in list_shipped() if (app, name) not in applied]
    if missing:
        return (
            f"{store_name()} has the tables of an earlier version, without {', '.join(missing)}."
            " Bring it up to this one: `kintsugi migrate`."
        )
    return ""


def list_shipped() -> list[tuple[str, str]]:
    """The migrations of our apps by name."""
    folders = [(app, Path(apps.get_app_config(app).path) / "migrations") for app in _APPS]
    return [
        (app, path.stem) for app, folder in folders for path in sorted(folder.glob("[0-9]*.py"))
    ]
