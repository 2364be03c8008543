"""`manage.py runbook lint|show|simulate|start`: what runbooks are, what one would do, and a run
that people ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from detectors.detector import DetectorError
from kintsugi.management.person import add_actor
from kintsugi.management.store import PrintableCommand
from runbooks import services
from runbooks.library import library
from runbooks.people.simulate import CannotSimulate, Simulation, StepWould, simulate
from runbooks.plan import describe

WRONG = 1


class Command(PrintableCommand):
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
        add_actor(start, "who starts it, for the record")

    def handle(self, *args: Any, **options: Any) -> None:
        commands = {
            "lint": self._lint,
            "show": self._show,
            "simulate": self._simulate,
            "start": self._start,
        }
        commands[options["do"]](options)

    def _lint(self, options: dict[str, Any]) -> None:
        if not options["files"]:
            self.stdout.write(f"{len(_load_library())} runbooks, no problem.")
            return
        problems: list[str] = []
        for path in options["files"]:
            try:
                book = library.read(path)
            except library.LibraryError as error:
                problems.append(str(error))
                continue
            facts = f"{book.name}, version {book.version}: {len(book.steps)} steps"
            self.stdout.write(f"{path}: {facts}, no problem.")
        if problems:
            raise CommandError("\n".join(problems), returncode=WRONG)

    def _show(self, options: dict[str, Any]) -> None:
        books = _load_library()
        name = options["name"]
        if name is None:
            self._list(books)
            return
        if name not in books:
            names = ", ".join(books)
            raise CommandError(f"There is no runbook {name}; there are {names}.", returncode=WRONG)
        mode = services.get_mode(name)
        self.stdout.write(describe.format_runbook(books[name], str(mode)))

    def _list(self, books: dict[str, library.Runbook]) -> None:
        for name, book in books.items():
            mode = services.get_mode(name)
            self.stdout.write(f"{name}: {mode} ({book.title}, version {book.version})")

    def _simulate(self, options: dict[str, Any]) -> None:
        _load_library()
        from kintsugi.clients import wiring  # noqa: PLC0415  (Slurm and node access: simulate looks there)

        try:
            simulation = simulate(
                options["name"],
                options["node"],
                fault_type=options["fault"],
                now=timezone.now(),
                world=wiring.build_world(),
            )
        except (CannotSimulate, DetectorError) as error:
            raise CommandError(str(error), returncode=WRONG) from error
        if options["json"]:
            self.stdout.write(json.dumps(simulation.as_json(), indent=1))
        else:
            self.stdout.write(_format_simulation(simulation))

    def _start(self, options: dict[str, Any]) -> None:
        _load_library()
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


def _load_library() -> dict[str, library.Runbook]:
    try:
        return library.load()
    except library.LibraryError as error:
        raise CommandError(str(error), returncode=WRONG) from error


def _format_simulation(simulation: Simulation) -> str:
    runbook, node = simulation.runbook, simulation.node
    jobs = ", ".join(simulation.jobs) or "none"
    faults = "; ".join(simulation.faults) or "none"
    what = f"{runbook}, version {simulation.version}, on {node}: mode {simulation.mode}"
    lines = [
        f"{what}. Nothing is touched by this look.",
        f"{node} is {simulation.state}; jobs: {jobs}.",
        f"Faults that stand: {faults}.",
    ]
    if simulation.in_the_way:
        lines.append(simulation.in_the_way)
    if simulation.fault_type:
        lines += _format_choice(simulation)
    lines.append("Kintsugi would:")
    for number, step in enumerate(simulation.steps, 1):
        lines += _format_step(number, step)
    return "\n".join(lines)


def _format_choice(simulation: Simulation) -> Iterator[str]:
    """Whether the runbook is for the fault type, and which one would be chosen for it."""
    fault_type = simulation.fault_type
    is_for = "is for" if simulation.is_for else "is not for"
    yield f"{simulation.runbook} {is_for} {fault_type}."
    if simulation.chosen:
        choice = f"{simulation.chosen}, because {simulation.because}"
    else:
        choice = f"none: {simulation.because}"
    yield f"For {fault_type} Kintsugi would choose {choice}."


def _format_step(number: int, step: StepWould) -> Iterator[str]:
    approval = " A person approves it each time." if step.needs_approval else ""
    yield f"{number:3}. {step.step}: {step.would}.{approval}"
    refusals = [guard for guard in step.guards if not guard.allows]
    if step.guards and not refusals:
        yield "     The guards allow it now."
    for guard in refusals:
        again = f" Asked again at {guard.ask_again_at}." if guard.ask_again_at else ""
        yield f"     {guard.guard} refuses it now: {guard.reason}.{again}"
