"""`manage.py restored`: the database was restored from a backup; what has to be done before
anything acts again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from kintsugi.clients import wiring
from kintsugi.configuration.schema import store_name
from kintsugi.management.person import add_actor
from kintsugi.management.store import StoreCommand


class Command(StoreCommand):
    help = (
        "After the database was restored from a backup: engages the stop switch, ends unfinished"
        " runs, moves numbers on, and lists drains in Slurm that no run here knows of. Acts on no"
        " node. Stop all services first, and start them afterwards."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_actor(parser, may_need_second=True)

    def handle(self, *args: Any, **options: Any) -> None:
        actor = options["actor"]
        self.require_serving()
        from runbooks import services  # noqa: PLC0415  (runbooks and steps: a look needs none)

        slurm = wiring.build_world().slurm
        restored = services.follow_restore(slurm, actor=actor, now=timezone.now())
        lines = [
            f"The stop switch is engaged ({store_name()}).",
            _format_runs(restored.withdrawn),
            f"Numbers go on: the next incident is #{restored.next_incident} or later.",
        ]
        if restored.drains is None:
            lines.append(
                f"Slurm does not answer, so its drains are not listed: {restored.slurm_error}"
                " Call this again when it does."
            )
        elif not restored.drains:
            lines.append("No node is drained with a reason of ours that is not known here.")
        else:
            lines.append("Drained with a reason of ours that no run of this database wrote:")
            for drain in restored.drains:
                since = f", since {drain.since:%Y-%m-%d %H:%M %Z}" if drain.since else ""
                by = f", by {drain.by}" if drain.by else ""
                lines.append(f'  {drain.node}: "{drain.reason}"{by}{since}')
            lines.append(
                "Look at each of these nodes and, when it is well: scontrol update NodeName=NODE"
                " State=RESUME"
            )
        lines.append(
            "Compare `kintsugi mode show` with what you remember; then let runs go on: kintsugi"
            " stop --release"
        )
        self.stdout.write("\n".join(lines))


def _format_runs(numbers: tuple[int, ...]) -> str:
    if not numbers:
        return "No run was unfinished."
    runs = ", ".join(str(number) for number in numbers)
    return f"Withdrawn, their nodes left as they are: runs {runs}."
