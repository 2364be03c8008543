"""`manage.py approve [RUN [--seen MARK]]`: what waits for a person's leave, with the state it is
about; or gives it."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from kintsugi.management.store import StoreCommand
from runbooks.models import Approval, Run, RunState


class Command(StoreCommand):
    help = "Shows what waits for a person's leave, or gives it for the state that was shown."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "run", nargs="?", type=int, help="its number; without it, all that wait are listed"
        )
        parser.add_argument(
            "--seen", default="", help="the mark that was printed with the state: leave is for that"
        )
        parser.add_argument("--note", default="", help="a word for the timeline")
        parser.add_argument(
            "--actor", default=getpass.getuser(), help="who approves, for the record"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["seen"]:
            self.stdout.write(
                "\n\n".join(_waiting(options["run"])) or "Nothing waits for approval."
            )
            return
        if options["run"] is None:
            raise CommandError("Say which run: kintsugi approval give RUN --seen MARK")
        self.require_serving()
        from runbooks import services  # noqa: PLC0415  (what acts: a list of nothing needs none)

        words = {"actor": options["actor"], "seen": options["seen"], "note": options["note"]}
        outcome = services.approve(options["run"], **words, now=timezone.now())
        if isinstance(outcome, services.ControlRefused):
            raise CommandError(outcome.reason)
        self.stdout.write(outcome.text)


def _waiting(number: int | None) -> list[str]:
    """What each run that waits is about; of one run alone where its number is given."""
    rows = Run.objects.filter(state=RunState.AWAITING_APPROVAL)
    if number is not None:
        rows = rows.filter(pk=number)
    runs = list(rows.select_related("node", "incident").order_by("pk"))
    if not runs:
        return []
    from runbooks.engine import approvals  # noqa: PLC0415  (the steps: a list of nothing needs none)

    asked = [(run, approvals.get_open_approval(run)) for run in runs]
    return [_told(run, approval) for run, approval in asked if approval is not None]


def _told(run: Run, asked: Approval) -> str:
    from runbooks import services  # noqa: PLC0415  (the steps, whose words are shown)
    from runbooks.engine import approvals  # noqa: PLC0415  (the steps, whose words are shown)

    shown = asked.shown
    plan, fingerprint = services.format_plan(run), approvals.get_fingerprint(run)
    lines = (
        f"Run {run.pk} on {run.place}, for incident #{run.incident_id}: {plan}.",
        f"{asked.why}. As of {asked.asked_at:%Y-%m-%d %H:%M:%S %Z}:",
        f"  {shown['node']}: {shown['service']} {shown['reason']}".rstrip(),
        f"  jobs on it: {', '.join(shown['jobs']) or 'none'}",
        f"  faults that stand: {', '.join(shown['faults']) or 'none that calls for a repair'}",
        *((f"  power: {shown['power']}",) if shown["power"] else ()),
        f"  out of service beside it: {shown['nodes_out']}",
        f"To approve just this: kintsugi approval give {run.pk} --seen {fingerprint}",
    )
    return "\n".join(lines)
