"""`manage.py runbook lint|show|simulate|start`: what runbooks are, what one would do, and a run
that people ask for."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from detectors.detector import DetectorError
from runbooks import services
from runbooks.library import library
from runbooks.people.simulate import CannotSimulate, Simulation, simulate
from runbooks.plan import describe

WRONG = 1


class Command(BaseCommand):
    help = (
        "Checks and shows runbooks, tells what one would do on a node now, or starts one for an"
        " incident."
    )
    # `lint` is for files that the system checks refuse.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(
            dest="do", required=True, metavar="lint|show|simulate|start"
        )
        lint = commands.add_parser(
            "lint", help="checks files, or the whole library, and names every problem"
        )
        lint.add_argument("files", nargs="*", type=Path)
        show = commands.add_parser("show", help="lists the runbooks, or tells all of one")
        show.add_argument("name", nargs="?")
        would = commands.add_parser(
            "simulate", help="what it would do on a node now; nothing is touched"
        )
        would.add_argument("name")
        would.add_argument("node")
        would.add_argument(
            "--fault", default="", metavar="TYPE", help="a fault type, such as gpu.xid.79"
        )
        would.add_argument("--json", action="store_true", help="print one JSON object")
        start = commands.add_parser(
            "start", help="starts it for an incident, as if it had called for it"
        )
        start.add_argument("name")
        start.add_argument("incident", type=int)
        start.add_argument("--note", default="", help="why, for the timeline")
        start.add_argument(
            "--actor", default=getpass.getuser(), help="who starts it, for the record"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        {"lint": self._lint, "show": self._show, "simulate": self._simulate, "start": self._start}[
            options["do"]
        ](options)

    def _lint(self, options: dict[str, Any]) -> None:
        problems: list[str] = []
        for path in options["files"]:
            try:
                book = library.read(path)
                self.stdout.write(
                    f"{path}: {book.name}, version {book.version}: {len(book.steps)} steps, no"
                    " problem."
                )
            except library.LibraryError as error:
                problems.append(str(error))
        if not options["files"]:
            try:
                self.stdout.write(f"{len(library.load())} runbooks, no problem.")
            except library.LibraryError as error:
                problems.append(str(error))
        if problems:
            raise CommandError("\n".join(problems), returncode=WRONG)

    def _show(self, options: dict[str, Any]) -> None:
        books = _books()
        if options["name"] is None:
            for name, book in books.items():
                self.stdout.write(
                    f"{name}: {services.get_mode(name)} ({book.title}, version {book.version})"
                )
            return
        if options["name"] not in books:
            known = ", ".join(books)
            raise CommandError(
                f"There is no runbook {options['name']}; there are {known}.", returncode=WRONG
            )
        self.stdout.write(
            describe.format_runbook(books[options["name"]], str(services.get_mode(options["name"])))
        )

    def _simulate(self, options: dict[str, Any]) -> None:
        _books()
        from kintsugi.clients import wiring  # noqa: PLC0415  (Slurm and node access: simulate looks there)

        try:
            told = simulate(
                options["name"],
                options["node"],
                fault_type=options["fault"],
                now=timezone.now(),
                world=wiring.world(),
            )
        except (CannotSimulate, DetectorError) as error:
            raise CommandError(str(error), returncode=WRONG) from error
        self.stdout.write(json.dumps(told.as_json(), indent=1) if options["json"] else _told(told))

    def _start(self, options: dict[str, Any]) -> None:
        _books()
        outcome = services.start_manual_run(
            options["name"],
            options["incident"],
            actor=options["actor"],
            note=options["note"],
            now=timezone.now(),
        )
        if isinstance(outcome, services.ControlRefused):
            raise CommandError(outcome.reason, returncode=WRONG)
        self.stdout.write(outcome.text)


def _books() -> dict[str, library.Runbook]:
    try:
        return library.load()
    except library.LibraryError as error:
        raise CommandError(str(error), returncode=WRONG) from error


def _told(told: Simulation) -> str:
    lines = [
        (
            f"{told.runbook}, version {told.version}, on {told.node}: mode {told.mode}. Nothing is"
            " touched by this look."
        ),
        f"{told.node} is {told.state}; jobs: {', '.join(told.jobs) or 'none'}.",
        f"Faults that stand: {'; '.join(told.faults) or 'none'}.",
    ]
    if told.in_the_way:
        lines.append(told.in_the_way)
    if told.fault_type:
        lines.append(f"{told.runbook} is {'' if told.is_for else 'not '}for {told.fault_type}.")
        chosen = (
            f"{told.chosen}, because {told.because}" if told.chosen else f"none: {told.because}"
        )
        lines.append(f"For {told.fault_type} Kintsugi would choose {chosen}.")
    lines.append("Kintsugi would:")
    for number, step in enumerate(told.steps, 1):
        approval = " A person approves it each time." if step.needs_approval else ""
        lines.append(f"{number:3}. {step.step}: {step.would}.{approval}")
        refused = [one for one in step.guards if not one.allows]
        if step.guards and not refused:
            lines.append("     The guards allow it now.")
        for one in refused:
            again = f" Asked again at {one.ask_again_at}." if one.ask_again_at else ""
            lines.append(f"     {one.guard} refuses it now: {one.reason}.{again}")
    return "\n".join(lines)
