"""`manage.py approve [RUN [--seen MARK]]`: what waits for a person's leave, with the state it is
about; or gives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from kintsugi.management.person import add_actor
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
        add_actor(parser, "who approves, for the record", may_need_second=True)

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["seen"]:
            texts = _format_waiting(options["run"])
            if not texts and options["run"] is not None:
                raise CommandError(_format_no_question(options["run"]))
            self.stdout.write("\n\n".join(texts) or "Nothing waits for approval.")
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


def _format_waiting(number: int | None) -> list[str]:
    """What each run that waits is about; of one run alone where its number is given."""
    rows = Run.objects.filter(state=RunState.AWAITING_APPROVAL)
    if number is not None:
        rows = rows.filter(pk=number)
    runs = list(rows.select_related("node", "incident").order_by("pk"))
    if not runs:
        return []
    from runbooks.engine import approvals  # noqa: PLC0415  (the steps: a list of nothing needs none)

    texts = []
    for run in runs:
        approval = approvals.get_open_approval(run)
        if approval is not None:
            texts.append(_format_approval(run, approval))
    return texts


def _format_no_question(number: int) -> str:
    run = Run.objects.select_related("node", "incident").filter(pk=number).first()
    if run is None:
        return f"There is no run {number}: kintsugi approval list names those that wait."
    state = run.get_state_display().lower()
    return f"Run {number} on {run.place} is {state} and waits for no approval."


def _format_approval(run: Run, approval: Approval) -> str:
    from runbooks import services  # noqa: PLC0415  (the steps, whose words are shown)
    from runbooks.engine import approvals  # noqa: PLC0415  (the steps, whose words are shown)
    from runbooks.second_person import power_cycles  # noqa: PLC0415  (the steps, whose words are shown)

    plan, mark = services.format_plan(run), approvals.get_fingerprint(run)
    lines = [f"Run {run.pk} on {run.place}, for incident #{run.incident_id}: {plan}."]
    lines.append(f"{approval.why}. As of {approval.asked_at:%Y-%m-%d %H:%M:%S %Z}:")
    first = power_cycles.find_first(run)
    lines += [f"  {power_cycles.describe_first(first)}."] if first is not None else []
    lines += _format_snapshot(approval.shown)
    lines.append(f"To approve just this: kintsugi approval give {run.pk} --seen {mark}")
    return "\n".join(lines)


def _format_snapshot(snapshot: Mapping[str, Any]) -> Iterator[str]:
    """The node and what surrounds it, as they were when the approval was asked for."""
    yield f"  {snapshot['node']}: {snapshot['service']} {snapshot['reason']}".rstrip()
    yield f"  jobs on it: {', '.join(snapshot['jobs']) or 'none'}"
    faults = ", ".join(snapshot["faults"]) or "none that calls for a repair"
    yield f"  faults that stand: {faults}"
    if snapshot["power"]:
        yield f"  power: {snapshot['power']}"
    yield f"  out of service beside it: {snapshot['nodes_out']}"
