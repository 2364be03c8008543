"""`manage.py stop --reason WHY`: nothing disruptive is done anywhere until `manage.py stop
--release`. With `--file` by the stop file of this machine, which needs no database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from kintsugi.configuration import stop_file
from kintsugi.configuration.schema import store_name
from kintsugi.management.person import add_actor
from kintsugi.management.store import StoreCommand
from runbooks import services
from runbooks.fleet.fleet import GIVE_NOTHING_BACK


class Command(StoreCommand):
    help = (
        "Engages the stop switch, or releases it: while it is engaged no node is drained or"
        " rebooted."
    )
    # What is wrong with a setting elsewhere must not keep anybody from stopping.
    requires_system_checks = ()
    # Nor must tables that wait for their migration, in the middle of an upgrade.
    works_with_earlier_tables = True

    def needs_store(self, options: Mapping[str, Any]) -> bool:
        return not options["file"]

    def explain_absence(self, error: Exception) -> str:
        return f"{super().explain_absence(error)}\n{stop_file.describe_stop()}"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--release", action="store_true", help="let runs go on")
        parser.add_argument(
            "--give-nothing-back",
            action="store_true",
            help="also end the runs under way: their nodes stay drained, for a person",
        )
        parser.add_argument(
            "--file",
            action="store_true",
            help="by the stop file of this machine, KINTSUGI_STOP_FILE: needs no database",
        )
        parser.add_argument(
            "--reason", default="", help="why; everyone who sees the switch will ask"
        )
        add_actor(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["release"] and options["give_nothing_back"]:
            raise CommandError("--release lets nodes be given back again: name one of the two.")
        if options["file"]:
            self.stdout.write(_remove_file() if options["release"] else _write_file(options))
            return
        now, actor, reason = timezone.now(), options["actor"], options["reason"]
        try:
            if options["release"]:
                outcome = services.release(actor=actor, note=reason, now=now)
            else:
                gives_back = not options["give_nothing_back"]
                outcome = services.stop(reason, actor=actor, now=now, gives_back=gives_back)
        except DatabaseError as error:
            raise CommandError(self.explain_absence(error)) from error
        left = _describe_standing_file() if options["release"] else ""
        if isinstance(outcome, services.ControlRefused):
            raise CommandError(f"{outcome.reason} {left}".rstrip())
        self.stdout.write(f"{outcome.text} {left}".rstrip() + f" ({store_name()})")


def _write_file(options: dict[str, Any]) -> str:
    """Raises CommandError."""
    reason, path = " ".join(options["reason"].split()), stop_file.get_path()
    gives_back = not options["give_nothing_back"]
    if not reason:
        raise CommandError("The stop file needs a reason: everyone who sees it will ask.")
    if gives_back and GIVE_NOTHING_BACK in reason.split():
        raise CommandError(
            f"The word {GIVE_NOTHING_BACK} in the stop file holds resumes as well: leave it out of"
            f" the reason, or add --{GIVE_NOTHING_BACK}."
        )
    first = "" if gives_back else f"{GIVE_NOTHING_BACK}\n"
    at = f"{timezone.now():%Y-%m-%d %H:%M:%S} UTC"
    try:
        stop_file.write(f"{first}{options['actor']} at {at}: {reason}")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error
    held = "" if gives_back else ", and no node is given back"
    return (
        f"The stop file {path} is written: nothing disruptive is done from this machine{held},"
        " while it exists. Do the same on each other machine with a runbook worker. `kintsugi stop"
        " --file --release` removes it."
    )


def _remove_file() -> str:
    """Raises CommandError."""
    path = stop_file.get_path()
    try:
        was_there = stop_file.remove()
    except OSError as error:
        raise CommandError(f"{path} cannot be removed: {error.strerror}") from error
    if not was_there:
        raise CommandError(f"There is no stop file {path}.")
    return (
        f"The stop file {path} is removed. Runs that waited for it go on within a minute, unless"
        " the stop switch is engaged."
    )


def _describe_standing_file() -> str:
    path = stop_file.get_path()
    if not path.exists():
        return ""
    return (
        f"The stop file {path} still stops what acts from this machine: `kintsugi stop --file"
        " --release` removes it."
    )
