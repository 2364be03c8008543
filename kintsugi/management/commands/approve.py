"""`manage.py approve [RUN [--seen MARK]]`: what waits for a person's leave, with the state it is about; or gives it."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from runbooks import approvals, services
from runbooks.models import Approval, Run, RunState


class Command(BaseCommand):
    help = "Shows what waits for a person's leave, or gives it for the state that was shown."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run", nargs="?", type=int, help="its number; without it, all that wait are listed")
        parser.add_argument("--seen", default="", help="the mark that was printed with the state: leave is for that")
        parser.add_argument("--note", default="", help="a word for the timeline")
        parser.add_argument("--actor", default=getpass.getuser(), help="who approves, for the record")

    def handle(self, *args: Any, **options: Any) -> None:
        waiting = Run.objects.filter(state=RunState.AWAITING_APPROVAL).select_related("node", "incident").order_by("pk")
        if not options["seen"]:
            rows = waiting.filter(pk=options["run"]) if options["run"] is not None else waiting
            told = [_told(run, asked) for run in rows if (asked := approvals.standing(run)) is not None]
            self.stdout.write("\n\n".join(told) or "Nothing waits for approval.")
            return
        if options["run"] is None:
            raise CommandError("Say which run: manage.py approve RUN --seen MARK")
        words = {"actor": options["actor"], "seen": options["seen"], "note": options["note"]}
        outcome = services.approve(options["run"], **words, now=timezone.now())
        if isinstance(outcome, services.ControlRefused):
            raise CommandError(outcome.reason)
        self.stdout.write(outcome.text)


def _told(run: Run, asked: Approval) -> str:
    shown = asked.shown
    lines = (
        f"Run {run.pk} on {run.place}, for incident #{run.incident_id}: {services.plan(run)}.",
        f"{asked.why}. As of {asked.asked_at:%Y-%m-%d %H:%M:%S %Z}:",
        f"  {shown['node']}: {shown['service']} {shown['reason']}".rstrip(),
        f"  jobs on it: {', '.join(shown['jobs']) or 'none'}",
        f"  faults that stand: {', '.join(shown['faults']) or 'none that calls for a repair'}",
        *((f"  power: {shown['power']}",) if shown["power"] else ()),
        f"  out of service beside it: {shown['nodes_out']}",
        f"To approve just this: manage.py approve {run.pk} --seen {approvals.mark_of(run)}",
    )
    return "\n".join(lines)
