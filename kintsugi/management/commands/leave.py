"""`manage.py leave`: the way out. Lists what it would do; `--yes` does it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from detectors.detector import Target
from incidents.inventory import node_tokens, services
from incidents.models import Incident
from incidents.topology.topology import expand_typed
from kintsugi.clients import wiring
from kintsugi.configuration.schema import store_name
from kintsugi.history import files, retention
from kintsugi.management.person import add_actor
from kintsugi.management.store import StoreCommand
from runbooks.slurm.protocol import SlurmError

if TYPE_CHECKING:
    from runbooks.node.traces import Traces
    from runbooks.people.leaving import HeldDrain


class Command(StoreCommand):
    help = (
        "Leaves the site: engages the stop switch, ends unfinished runs, hands the drains that"
        " Kintsugi holds to people or gives them back, writes the history to files, and removes our"
        " key and crontab lines from nodes. Without --yes it lists that and does nothing. May be"
        " called again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--yes", action="store_true", help="do it")
        parser.add_argument(
            "--give-back",
            default="",
            metavar="NODES",
            help="nodes to give back to Slurm; all others stay drained and are handed to people",
        )
        parser.add_argument(
            "--to",
            type=Path,
            default=None,
            metavar="DIRECTORY",
            help="where the history is written",
        )
        add_actor(parser, may_need_second=True)

    def handle(self, *args: Any, **options: Any) -> None:
        self.require_serving()
        self._world = wiring.build_world()
        self._give_back = _read_hosts(options["give_back"])
        self._directory: Path = options["to"] or settings.DATA_DIR / "left"
        self._actor = options["actor"]
        self._problems: list[str] = []
        if options["yes"]:
            self._leave()
        else:
            self._list()
        if self._problems:
            raise CommandError("\n".join(self._problems))

    def _say(self, *lines: str) -> None:
        self.stdout.write("\n".join(lines))

    def _list(self) -> None:
        from runbooks.node import traces as node_traces  # noqa: PLC0415  (as below)
        from runbooks.people import leaving  # noqa: PLC0415  (runbooks and steps: as `restored`)

        now = timezone.now()
        self._say(f"Nothing is done without --yes ({store_name()}). With it:")
        self._say("* The stop switch is engaged.")
        runs = leaving.list_unfinished()
        for run in runs:
            self._say(f"* Run {run.pk} ({run.runbook} on {run.place}) ends where it is.")
        self._say("* Reservations for minor repairs are taken away.")
        for drain in self._list_drains():
            since = f", since {drain.since:%Y-%m-%d %H:%M %Z}" if drain.since else ""
            becomes = "given back" if drain.gives_back else "handed to people, and stays drained"
            but = f" It is not given back: {drain.objection}." if drain.objection else ""
            self._say(f'* {drain.node} ("{drain.reason}"{since}) is {becomes}.{but}')
        self._say("* Reboots that are not sent yet are cancelled where people have the node back.")
        ended = retention.count_past(now)
        self._say(f"* History of {sum(ended.values())} units is written to {self._directory}.")
        for traces in node_traces.look_after(
            self._world.shell, _list_entries(set()), removes=False
        ):
            self._tell_traces(traces, traces.found)
        tokens = node_tokens.get_valid(now).count()
        self._say(f"* {tokens} tokens of nodes are revoked.")
        self._tell_remaining()

    def _leave(self) -> None:
        from runbooks.node import traces as node_traces  # noqa: PLC0415  (as below)
        from runbooks.people import leaving  # noqa: PLC0415  (runbooks and steps: as `restored`)

        leaving.stop_everything(actor=self._actor, now=timezone.now())
        self._say(f"The stop switch is engaged ({store_name()}).")
        ended = leaving.end_runs(actor=self._actor, now=timezone.now())
        self._say(f"{len(ended.numbers)} unfinished runs ended where they were.")
        if ended.left:
            numbers = ", ".join(map(str, ended.left))
            self._problems.append(f"Workers are at runs {numbers}: stop them, and call this again.")
        if ended.settled_at is not None:
            time.sleep(max(0.0, (ended.settled_at - timezone.now()).total_seconds()))
        self._remove_reservations()
        self._leave_drains()
        self._export()
        entries = _list_entries(leaving.list_left_nodes())
        for traces in node_traces.look_after(self._world.shell, entries, removes=True):
            self._tell_traces(traces, traces.removed)
            if not traces.complaint:
                leaving.record_left_node(
                    traces.node, traces.removed, actor=self._actor, now=timezone.now()
                )
        self._revoke_tokens()
        self._tell_remaining()

    def _list_drains(self) -> Sequence[HeldDrain]:
        from runbooks.people import leaving  # noqa: PLC0415  (runbooks and steps: as `restored`)

        try:
            held = leaving.list_drains(self._world, give_back=self._give_back, now=timezone.now())
        except SlurmError as error:
            self._tell_unread_slurm(error)
            return ()
        self._tell_not_held({drain.node for drain in held})
        return held

    def _leave_drains(self) -> None:
        from runbooks.people import leaving  # noqa: PLC0415  (runbooks and steps: as `restored`)

        shown_nodes = set()
        try:
            for left in leaving.leave_drains(
                self._world, give_back=self._give_back, actor=self._actor, clock=timezone.now
            ):
                shown_nodes.add(left.node)
                self._say(left.text)
                if not left.is_done:
                    self._problems.append(left.text)
        except SlurmError as error:
            self._tell_unread_slurm(error)
            return
        self._tell_not_held(shown_nodes)

    def _tell_unread_slurm(self, error: SlurmError) -> None:
        self._problems.append(
            f"Slurm was not read: {error}. Drains that Kintsugi holds stay as they are: call this"
            " again when Slurm answers."
        )

    def _remove_reservations(self) -> None:
        from kintsugi.periodic import reserving  # noqa: PLC0415  (runbooks: as above)

        try:
            reservations = self._world.slurm.list_reservations()
        except SlurmError as error:
            self._problems.append(f"Reservations could not be looked at: {error}")
            return
        removed = reserving.remove_needless(reservations, timezone.now(), self._world)
        self._say(f"{removed} reservations for minor repairs are taken away.")

    def _tell_not_held(self, held: set[str]) -> None:
        for node in sorted(self._give_back - held):
            self._problems.append(f"{node} is not drained by Kintsugi: it is left as it is.")

    def _export(self) -> None:
        directory = self._directory / f"{timezone.now():%Y%m%dT%H%M%SZ}"
        try:
            counts = retention.export(directory, timezone.now())
        except (files.DirectoryInUse, OSError) as error:
            self._problems.append(f"The history was not written to {directory}: {error}")
            return
        self._say(f"History of {sum(counts.values())} units is written to {directory}.")

    def _tell_traces(self, traces: Traces, own: Iterable[str]) -> None:
        for what in own:
            self._say(f"* {traces.node}: {what}")
        if traces.remains:
            paths = " ".join(traces.remains)
            self._say(f"* {traces.node}: remains, for its root: rm -rf {paths}")
        for what in traces.hidden:
            self._say(f"* {traces.node}: remains: {what}")
        if traces.complaint:
            self._problems.append(
                f"{traces.node} could not be looked at; what is there remains: {traces.complaint}"
            )

    def _revoke_tokens(self) -> None:
        now = timezone.now()
        rows = list(node_tokens.get_valid(now))
        for row in rows:
            node_tokens.revoke(row.pk, actor=self._actor, now=now)
        self._say(f"{len(rows)} tokens of nodes are revoked.")

    def _tell_remaining(self) -> None:
        still_open = Incident.objects.open().count()
        database = f"the database ({store_name()}), with {still_open} open incidents"
        self._say(
            "What remains:",
            f"* {database}, which no file holds;",
            "* Kintsugi's services, which go on looking until they are stopped;",
            "* keys of other users than this process has: `kintsugi leave` once more as each;",
            "* Slurm's settings: RebootProgram, Prolog, HealthCheckProgram, and the AdminLevel of"
            " Kintsugi's account (sacctmgr).",
        )


def _read_hosts(text: str) -> frozenset[str]:
    """Raises CommandError for what is no host list."""
    try:
        return frozenset(expand_typed(text)) if text else frozenset()
    except ValueError as error:
        raise CommandError(f"--give-back: {error}") from error


def _list_entries(done: Collection[str]) -> Iterator[tuple[Target, str]]:
    """The nodes that we enter, but for those that an earlier call has done."""
    if not wiring.has_node_access():
        return
    for node in services.list_pollable():
        target = services.get_target(node)
        if target is not None and node not in done:
            yield target, wiring.get_public_key(target)
