"""`manage.py inventory ...`: brings the inventory up to what files, Slurm and the machines say, and checks it."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from detectors import resources
from detectors.detector import Target, TargetKind
from detectors.expected import to_json
from detectors.slurm_output import NodeState
from incidents import inventory, inventory_check
from incidents.inventory_check import Heard
from incidents.topology import expand
from kintsugi import clock, host_keys, inventory_discover, inventory_slurm, sudoers, wiring
from kintsugi.host_keys import Seen, Standing
from kintsugi.inventory_discover import Discovered
from runbooks import root_rights
from runbooks.slurm import SlurmError
from runbooks.slurm_client import controller

_SHOWN = 20
_ALIKE = 3


class Command(BaseCommand):
    help = "What should be there: from files, from Slurm, from the machines themselves; and what is wrong with it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        do = parser.add_subparsers(dest="do", required=True, metavar="DO")
        files = do.add_parser("import", help="bring the inventory up to what TOML files say (docs/inventory.md)")
        files.add_argument("files", nargs="+", type=Path, metavar="FILE.toml", help="read one after the other")
        files.set_defaults(handler=self._import)

        slurm = do.add_parser("from-slurm", help="nodes, partitions and numbers of GPUs as Slurm has them")
        slurm.add_argument("--toml", metavar="FILE", help="write an inventory file instead; - for the screen")
        slurm.set_defaults(handler=self._from_slurm)

        discover = do.add_parser("discover", help="serials, names, addresses and cables as the machines tell them")
        _takes_machines(discover)
        discover.set_defaults(handler=self._discover)

        check = do.add_parser("check", help="what is wrong with the inventory: exit 1 with each finding")
        _takes_machines(check)
        check.add_argument("--offline", action="store_true", help="ask neither Slurm nor any machine")
        check.set_defaults(handler=self._check)

        allowed = do.add_parser("sudoers", help="the lines that let detectors read what root alone may read")
        _takes_machines(allowed, default="the first of each role")
        allowed.add_argument("--offline", action="store_true", help="ask no machine where its programs and disks are")
        allowed.add_argument("--acts", action="store_true", help="the lines for resets of GPUs instead: a file apart")
        allowed.set_defaults(handler=self._sudoers)

        keys = do.add_parser("host-keys", help="SSH host keys: show them, and pin them in KINTSUGI_SSH_KNOWN_HOSTS")
        _takes_machines(keys)
        keys.add_argument("--accept", action="store_true", help="pin the new ones; a changed key is never pinned")
        keys.set_defaults(handler=self._host_keys)
        expected = do.add_parser(
            "expected", help="what should be found on a node, as JSON for kintsugi-check --expected"
        )
        expected.add_argument("node")
        expected.set_defaults(handler=self._expected)
        for made in (files, slurm, discover):
            made.add_argument("--dry-run", action="store_true", help="tell what would change, and change nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        options.pop("handler")(**options)

    # Taking in ---------------------------------------------------------------------------------------------------

    def _import(self, *, files: Sequence[Path], dry_run: bool, **options: Any) -> None:
        try:
            topology = inventory.load(*files)
        except inventory.InventoryError as error:
            raise CommandError(f"Nothing was imported.\n{error}") from error
        difference = inventory.apply(topology, clock.now(), is_dry_run=dry_run)
        self._tell(difference, "the files say", is_dry_run=dry_run)

    def _from_slurm(self, *, dry_run: bool, toml: str | None, **options: Any) -> None:
        try:
            slurm = wiring.slurm(wiring.node_shell())
            states, cluster = slurm.nodes(), slurm.config().get("ClusterName", "")
        except SlurmError as error:
            raise CommandError(f"Slurm was not read: {error}") from error
        if toml is not None:
            self._write(inventory_slurm.as_toml(states, cluster_name=cluster), toml)
            return
        difference = inventory.apply(inventory_slurm.topology(states), clock.now(), is_dry_run=dry_run)
        difference.gone = [f"node {name}" for name in inventory_slurm.unknown_to_slurm(states)]
        self._tell(difference, f"Slurm ({cluster}) says", is_dry_run=dry_run, gone="in the inventory but not in Slurm")

    def _write(self, text: str, where: str) -> None:
        if where == "-":
            self.stdout.write(text, ending="")
            return
        try:
            with Path(where).open("x") as file:
                file.write(text)
        except OSError as error:
            raise CommandError(f"{where} was not written: {error.strerror}.") from error
        self.stdout.write(f"Wrote {where}. Add what Slurm does not know, then `manage.py inventory import {where}`.")

    def _discover(self, *, dry_run: bool, node: str | None, switch: str | None, **options: Any) -> None:
        found, switches = self._look(node, switch)
        topology, doubts = inventory_discover.topology(found, inventory.targets(TargetKind.NODE), switches)
        difference = inventory.apply(topology, clock.now(), is_dry_run=dry_run)
        self._tell(difference, "the machines say", is_dry_run=dry_run, gone="in the inventory but not found, kept")
        for line in (*_folded(found.failed), *doubts):
            self.stdout.write(f"not known: {line}")
        if not (found.nodes or found.switches):
            raise CommandError("No machine answered.")

    def _look(self, node: str | None, switch: str | None) -> tuple[Discovered, list[Target]]:
        """Asks the chosen machines (all by default); also gives every switch, for the names of its ports."""
        switches = inventory.targets(TargetKind.SWITCH)
        asked_nodes = _chosen(TargetKind.NODE, node if node is not None or switch is None else "")
        asked = [target for target in switches if target.name in _names(switch)] if switch is not None else switches
        asked = [] if node is not None and switch is None else asked
        via = wiring.transports(wiring.node_shell())
        return inventory_discover.look(asked_nodes, asked, via, told=self._progress), switches

    def _progress(self, line: str) -> None:
        self.stderr.write(line, self.style.NOTICE)

    def _tell(
        self,
        difference: inventory.Difference,
        source: str,
        *,
        is_dry_run: bool,
        gone: str = "in the database but not in the files, kept",
    ) -> None:
        for title, lines in (
            ("would be added" if is_dry_run else "added", difference.added),
            ("would be changed" if is_dry_run else "changed", difference.changed),
            (gone, difference.gone),
        ):
            if lines:
                self.stdout.write(f"{title}: {_counted(lines)}")
            for line in lines if is_dry_run or len(lines) <= _SHOWN else ():
                self.stdout.write(f"  {line}")
        if difference.is_empty:
            self.stdout.write(f"The inventory is as {source}.")

    # Checking ----------------------------------------------------------------------------------------------------

    def _check(self, *, offline: bool, node: str | None, switch: str | None, **options: Any) -> None:
        gpus = None if offline else self._gpus_by_slurm()
        heard = None if offline else self._heard(node, switch)
        found = inventory_check.findings(gpus_by_slurm=gpus, heard=heard)
        for finding in found:
            self.stdout.write(str(finding))
        if found:
            count = len(found)
            raise CommandError(f"{count} {'finding' if count == 1 else 'findings'}.")
        nodes, switches = len(inventory.pollable()), len(inventory.targets(TargetKind.SWITCH))
        self.stdout.write(f"Nothing is wrong with the inventory: {nodes} nodes, {switches} switches.")

    def _gpus_by_slurm(self) -> Mapping[str, int] | None:
        if settings.KINTSUGI["KINTSUGI_SLURM"] == "off":
            self.stderr.write("Slurm is not asked: KINTSUGI_SLURM is off.")
            return None
        try:
            states: Mapping[str, NodeState] = wiring.slurm(wiring.node_shell()).nodes()
        except SlurmError as error:
            self.stderr.write(f"Slurm is not asked: {error}")
            return None
        return {resources.short_host(name): state.gpus for name, state in states.items()}

    def _heard(self, node: str | None, switch: str | None) -> list[Heard] | None:
        if not wiring.has_node_access():
            self.stderr.write("Cables are not compared with LLDP: KINTSUGI_SSH_KEY is unset.")
            return None
        found, switches = self._look(node, switch)
        for line in _folded(found.failed):
            self.stderr.write(f"not known: {line}")
        return inventory_discover.heard(found, inventory.targets(TargetKind.NODE), switches)

    # Access ------------------------------------------------------------------------------------------------------

    def _sudoers(self, *, offline: bool, acts: bool, node: str | None, switch: str | None, **options: Any) -> None:
        targets = _chosen(TargetKind.NODE, node) if node else _one_of_each_role(inventory.targets(TargetKind.NODE))
        shell = wiring.node_shell() if wiring.has_node_access() and not offline else None
        if acts:
            asked, head = sudoers.acts(targets, shell, root_rights.units()), sudoers.ACTS
        else:
            asked, head = sudoers.ask(wiring.detectors(), targets, shell, now=clock.now()), sudoers.LOOKS
        for line in sudoers.lines(asked, settings.KINTSUGI["KINTSUGI_SSH_USER"], head=head):
            self.stdout.write(line)
        for line in asked.failed:
            self.stderr.write(f"not known: {line}")
        if not targets:
            self.stderr.write(
                "The inventory has no node: import it first, else only what is asked of every node shows."
            )
        if shell is None:
            self.stderr.write("No node was asked: what is read of each disk or port may be missing.")

    def _expected(self, *, node: str, **options: Any) -> None:
        target = inventory.target(node)
        if target is None:
            raise CommandError(f"{node} is not in the inventory. `manage.py inventory import` takes it in.")
        self.stdout.write(json.dumps(to_json(target.expected), indent=2))

    def _host_keys(self, *, accept: bool, node: str | None, switch: str | None, **options: Any) -> None:
        known_hosts = Path(settings.KINTSUGI["KINTSUGI_SSH_KNOWN_HOSTS"] or Path.home() / ".ssh" / "known_hosts")
        targets = _chosen(TargetKind.NODE, node if node is not None or switch is None else "")
        targets += _chosen(TargetKind.SWITCH, switch or "")
        slurm = settings.KINTSUGI["KINTSUGI_SLURM"]
        if slurm.startswith("ssh:") and node is None and switch is None:
            targets.append(controller(slurm))
        try:
            seen = host_keys.look(targets, known_hosts)
            pinned = host_keys.pin(seen, known_hosts) if accept else 0
        except OSError as error:
            raise CommandError(f"{known_hosts}: {error.strerror or error}.") from error
        for each in seen:
            self.stdout.write(_key_line(each))
        self._conclude(seen, pinned, known_hosts, is_accepted=accept)

    def _conclude(self, seen: Sequence[Seen], pinned: int, known_hosts: Path, *, is_accepted: bool) -> None:
        count = Counter(each.standing for each in seen)
        if is_accepted:
            self.stdout.write(f"Pinned {pinned} new keys in {known_hosts}.")
        elif count[Standing.NEW]:
            words = (
                f"{count[Standing.NEW]} are new. Compare a few with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`"
            )
            self.stdout.write(f"{words} on the machine, then say --accept.")
        if count[Standing.CHANGED]:
            raise CommandError(
                f"{count[Standing.CHANGED]} changed and were refused. A reinstalled machine has new keys: when you know"
                f" why, `ssh-keygen -R HOST -f {known_hosts}`, then again. Else somebody may be in between."
            )
        if count[Standing.SILENT]:
            raise CommandError(f"{count[Standing.SILENT]} did not answer.")


def _takes_machines(parser: ArgumentParser, default: str = "all") -> None:
    parser.add_argument("--node", metavar="NAMES", help=f"a host list such as gn[001-003]; default: {default}")
    parser.add_argument("--switch", metavar="NAMES", help="switches, in the same way")


def _names(text: str) -> set[str]:
    try:
        return set(expand(text)) if text else set()
    except ValueError as error:
        raise CommandError(str(error)) from error


def _chosen(kind: TargetKind, text: str | None) -> list[Target]:
    """All where `text` is None. Raises CommandError for a name that the inventory does not hold."""
    if text is None:
        return inventory.targets(kind)
    wanted = _names(text)
    found = inventory.targets(kind, sorted(wanted)) if wanted else []
    unknown = sorted(wanted - {target.name for target in found})
    if unknown:
        raise CommandError(f"No {kind} {', '.join(unknown)} in the inventory. `manage.py inventory import` adds them.")
    return found


def _one_of_each_role(targets: Iterable[Target]) -> list[Target]:
    first: dict[str, Target] = {}
    for target in targets:
        first.setdefault(target.expected.role, target)
    return list(first.values())


def _folded(lines: Iterable[str]) -> list[str]:
    """A reason that many machines share is told for a few, then counted."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        name, _, reason = line.partition(": ")
        by_reason[reason.replace(name, "...")].append(line)
    told = []
    for alike in by_reason.values():
        told += alike[:_ALIKE]
        if len(alike) > _ALIKE:
            told.append(f"and {len(alike) - _ALIKE} machines more, for the same reason")
    return told


def _key_line(seen: Seen) -> str:
    kind = seen.key.get_name() if seen.key is not None else ""
    return " ".join(
        filter(None, (f"{seen.standing:8}", seen.target.name, seen.host, kind, seen.fingerprint, seen.text))
    )


def _counted(lines: list[str]) -> str:
    """`101 nodes, 800 GPUs`: how many lines there are of each kind."""
    parts = ("GPU", "NVSwitch", "NIC", "module")
    kinds = Counter(next((part for part in parts if f" {part} " in line), line.split(" ", 1)[0]) for line in lines)
    plurals = {"switch": "switches", "alias": "aliases", "NVSwitch": "NVSwitches"}
    return ", ".join(
        f"{count} {kind if count == 1 else plurals.get(kind, kind + 's')}" for kind, count in kinds.items()
    )
