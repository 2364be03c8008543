"""Which site this command speaks to: its settings, its database, and the line that says so."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import django
import typer
from django.conf import settings
from django.core.management.base import CommandError

from kintsugi.cli import output
from kintsugi.cli.grammar import Needs, Verb
from kintsugi.configuration import settings_file
from kintsugi.configuration.schema import store_name
from kintsugi.management.store import require_tables

_NOWHERE = (
    "There is no Kintsugi here: neither KINTSUGI_DATA_DIR nor DATABASE_URL is set, and"
    f" {settings_file.DEFAULT_PATH} does not exist. Name the site's settings with --config FILE, or"
    " begin a new site in this folder: kintsugi migrate"
)


_SHOWN_SETTINGS = {
    "site": "KINTSUGI_CLUSTER_NAME",
    "console": "KINTSUGI_BASE_URL",
    "slurm": "KINTSUGI_SLURM",
    "acts": "KINTSUGI_ACTS",
}


class NoSite(Exception):
    """The site's database is not there, has no tables or does not answer: says which and where."""


def set_up(verb: Verb) -> None:
    """Django with the site's settings. Raises ImproperlyConfigured for settings that are wrong."""
    if verb.needs is Needs.DATABASE and not _is_anywhere():
        raise NoSite(_NOWHERE)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")
    if verb.words[0] == "simulator" and importlib.util.find_spec("fixtures") is not None:
        os.environ.setdefault("KINTSUGI_SIMULATOR", "yes")
    django.setup()


def begin(verb: Verb, require: Callable[[], None] = require_tables) -> None:
    """Looks whether the site is there, by `require`, and says which it is before a verb that
    changes it."""
    if verb.needs is Needs.DATABASE:
        try:
            require()
        except CommandError as error:
            raise NoSite(str(error)) from error
    if verb.is_change:
        output.complain(describe())


def require_site(verb: Verb, function: Callable[..., None]) -> Callable[..., None]:
    """The function of a verb, once the site is known to be there."""

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> None:
        if verb.needs is not Needs.NOTHING:
            begin(verb)
        function(*args, **options)

    return checked


def describe() -> str:
    path = os.environ.get(settings_file.VARIABLE) or "the environment"
    return f"Site {get_site_name()}, {store_name()}, settings from {path}."


def get_site_name() -> str:
    return settings.KINTSUGI["KINTSUGI_CLUSTER_NAME"] or "without a name (KINTSUGI_CLUSTER_NAME)"


def show_site(
    as_json: Annotated[bool, typer.Option("--json", help=output.JSON_HELP)] = False,
) -> None:
    facts = {key: settings.KINTSUGI[setting] for key, setting in _SHOWN_SETTINGS.items()}
    facts["database"] = store_name()
    facts["data_dir"] = str(settings.DATA_DIR)
    facts["settings_file"] = os.environ.get(settings_file.VARIABLE) or None
    output.print_facts(facts, as_json=as_json)


def _is_anywhere() -> bool:
    """Settings name a site, or a data directory stands where the default one would."""
    names = ("KINTSUGI_DATA_DIR", "DATABASE_URL", "DATABASE_URL_FILE", settings_file.VARIABLE)
    return any(os.environ.get(name) for name in names) or Path("var").is_dir()
