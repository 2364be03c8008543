"""`manage.py inventory ...`: brings the inventory up to what files, Slurm and the machines say, and
checks it."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import CommandError

from detectors import resources
from detectors.detector import Target, TargetKind
from detectors.expected import to_json
from detectors.slurm.output import NodeState
from incidents.inventory import check as inventory_check
from incidents.inventory import services
from incidents.inventory.check import Heard
from incidents.topology.topology import Topology, expand
from kintsugi import clock
from kintsugi.management.person import add_actor
from kintsugi.management.store import StoreCommand
from runbooks.outcomes import ControlRefused
from runbooks.slurm.protocol import SlurmError

if TYPE_CHECKING:
    from kintsugi.inventory.discover import Discovered
    from kintsugi.inventory.host_keys import HostKey

_SHOWN = 20
_ALIKE = 3
_PARTS = ("GPU", "NVSwitch", "NIC", "module")
_PLURALS = {"switch": "switches", "alias": "aliases", "NVSwitch": "NVSwitches"}


class Command(StoreCommand):
    help = (
        "What should be there: from files, from Slurm, from the machines themselves; and what is"
        " wrong with it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        do = parser.add_subparsers(dest="do", required=True, metavar="DO")
        files = do.add_parser(
            "import", help="bring the inventory up to what TOML files say (docs/inventory.md)"
        )
        files.add_argument(
            "files", nargs="+", type=Path, metavar="FILE.toml", help="read one after the other"
        )
        files.set_defaults(handler=self._import)

        slurm = do.add_parser(
            "from-slurm", help="nodes, partitions and numbers of GPUs as Slurm has them"
        )
        slurm.add_argument(
            "--toml", metavar="FILE", help="write an inventory file instead; - for the screen"
        )
        slurm.set_defaults(handler=self._import_from_slurm)

        discover = do.add_parser(
            "discover", help="serials, names, addresses and cables as the machines tell them"
        )
        _takes_machines(discover)
        discover.set_defaults(handler=self._discover)

        rename = do.add_parser(
            "rename",
            help="a node has another name in Slurm: its history, runs and drain go with it",
        )
        rename.add_argument("old")
        rename.add_argument("new")
        rename.add_argument("--reason", required=True, help="why, for the record")
        add_actor(rename, "who says so")
        rename.set_defaults(handler=self._rename)

        check = do.add_parser(
            "check", help="what is wrong with the inventory: exit 1 with each finding"
        )
        _takes_machines(check)
        check.add_argument(
            "--offline", action="store_true", help="ask neither Slurm nor any machine"
        )
        check.set_defaults(handler=self._check)

        allowed = do.add_parser(
            "sudoers", help="the lines that let detectors read what root alone may read"
        )
        _takes_machines(allowed, default="the first of each role")
        allowed.add_argument(
            "--offline", action="store_true", help="ask no machine where its programs and disks are"
        )
        allowed.add_argument(
            "--acts",
            action="store_true",
            help="the lines for resets of GPUs and restarts of services instead: a file apart",
        )
        allowed.set_defaults(handler=self._write_sudoers)

        keys = do.add_parser(
            "host-keys", help="SSH host keys: show them, and pin them in KINTSUGI_SSH_KNOWN_HOSTS"
        )
        _takes_machines(keys)
        keys.add_argument(
            "--accept", action="store_true", help="pin the new ones; a changed key is never pinned"
        )
        keys.set_defaults(handler=self._read_host_keys)
        expected = do.add_parser(
            "expected", help="what should be found on a node, as JSON for kintsugi-check --expected"
        )
        expected.add_argument("node")
        expected.set_defaults(handler=self._write_expected)
        for writer in (files, slurm, discover):
            writer.add_argument(
                "--dry-run", action="store_true", help="tell what would change, and change nothing"
            )

    def handle(self, *args: Any, **options: Any) -> None:
        options.pop("handler")(**options)

    # Taking in
    # ---------------------------------------------------------------------------

    def _rename(self, *, old: str, new: str, reason: str, actor: str, **options: Any) -> None:
        self.require_serving()
        from kintsugi.clients import wiring  # noqa: PLC0415  (it looks at Slurm, and may drain there)
        from runbooks.people import renaming  # noqa: PLC0415  (the steps: other verbs need none)

        outcome = renaming.rename(
            old, new, actor=actor, why=reason, world=wiring.build_world(), now=clock.now()
        )
        if isinstance(outcome, ControlRefused):
            raise CommandError(outcome.reason)
        self.stdout.write(outcome.text)

    def _import(self, *, files: Sequence[Path], dry_run: bool, **options: Any) -> None:
        try:
            topology = services.load(*files)
        except services.InventoryError as error:
            raise CommandError(f"Nothing was imported.\n{error}") from error
        difference = _apply(topology, is_dry_run=dry_run)
        self._tell(difference, "the files say", is_dry_run=dry_run)

    def _import_from_slurm(self, *, dry_run: bool, toml: str | None, **options: Any) -> None:
        from kintsugi.clients import wiring  # noqa: PLC0415  (the ways to Slurm)
        from kintsugi.inventory import from_slurm  # noqa: PLC0415  (the ways to Slurm)

        try:
            slurm = wiring.build_slurm_reader(wiring.build_node_shell())
            states, cluster = slurm.read_nodes(), slurm.read_config().get("ClusterName", "")
        except SlurmError as error:
            raise CommandError(f"Slurm was not read: {error}") from error
        if toml is not None:
            self._write(from_slurm.format_toml(states, cluster_name=cluster), toml)
            return
        difference = _apply(from_slurm.build_topology(states), is_dry_run=dry_run)
        difference.gone = [f"node {name}" for name in from_slurm.list_unknown_to_slurm(states)]
        self._tell(
            difference,
            f"Slurm ({cluster}) says",
            is_dry_run=dry_run,
            gone="in the inventory but not in Slurm",
        )

    def _write(self, text: str, where: str) -> None:
        if where == "-":
            self.stdout.write(text, ending="")
            return
        try:
            with Path(where).open("x") as file:
                file.write(text)
        except OSError as error:
            raise CommandError(f"{where} was not written: {error.strerror}.") from error
        self.stdout.write(
            f"Wrote {where}. Add what Slurm does not know, then `kintsugi inventory import"
            f" {where}`."
        )

    def _discover(
        self, *, dry_run: bool, node: str | None, switch: str | None, **options: Any
    ) -> None:
        from kintsugi.inventory import discover as inventory_discover  # noqa: PLC0415  (detectors: others ask no machine)

        found, switches = self._inspect(node, switch)
        if not (found.nodes or found.switches):
            for line in _fold_reasons(found.failed):
                self.stdout.write(f"not known: {line}")
            raise CommandError("No machine answered: nothing is known, and nothing was changed.")
        nodes = services.list_targets(TargetKind.NODE)
        topology, doubts = inventory_discover.build_topology(found, nodes, switches)
        difference = _apply(topology, is_dry_run=dry_run)
        self._tell(
            difference,
            "the machines say",
            is_dry_run=dry_run,
            gone="in the inventory but not found, kept",
        )
        for line in (*_fold_reasons(found.failed), *doubts):
            self.stdout.write(f"not known: {line}")

    def _inspect(self, node: str | None, switch: str | None) -> tuple[Discovered, list[Target]]:
        """Asks the chosen machines (all by default); also gives every switch, for the names of its
        ports."""
        from kintsugi.clients import wiring  # noqa: PLC0415  (the ways to machines)
        from kintsugi.inventory import discover as inventory_discover  # noqa: PLC0415  (the ways to machines)

        switches = services.list_targets(TargetKind.SWITCH)
        nodes_to_ask = _get_targets(TargetKind.NODE, "" if _is_switch_only(node, switch) else node)
        if switch is not None:
            names = _expand_names(switch)
            switches_to_ask = [target for target in switches if target.name in names]
        else:
            switches_to_ask = switches if node is None else []
        via = wiring.build_transports(wiring.build_node_shell())
        found = inventory_discover.inspect_machines(
            nodes_to_ask, switches_to_ask, via, report=self._write_progress
        )
        return found, switches

    def _write_progress(self, line: str) -> None:
        self.stderr.write(line, self.style.NOTICE)

    def _tell(
        self,
        difference: services.Difference,
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
                self.stdout.write(f"{title}: {_format_counts(lines)}")
            for line in lines if is_dry_run or len(lines) <= _SHOWN else ():
                self.stdout.write(f"  {line}")
        if difference.is_empty:
            self.stdout.write(f"The inventory is as {source}.")

    # Checking
    # ---------------------------------------------------------------------------

    def _check(
        self, *, offline: bool, node: str | None, switch: str | None, **options: Any
    ) -> None:
        unknown: list[str] = []
        gpus = None if offline else self._read_gpu_counts(unknown)
        heard = None if offline else self._ask_neighbours(node, switch, unknown)
        findings = inventory_check.list_findings(gpus_by_slurm=gpus, heard=heard)
        for finding in findings:
            self.stdout.write(str(finding))
        conclusions = list(unknown)
        if findings:
            noun = "finding" if len(findings) == 1 else "findings"
            conclusions.insert(0, f"{len(findings)} {noun}.")
        if conclusions:
            raise CommandError(" ".join(conclusions))
        nodes = len(services.list_pollable())
        switches = len(services.list_targets(TargetKind.SWITCH))
        self.stdout.write(
            f"Nothing is wrong with the inventory: {nodes} nodes, {switches} switches."
        )

    def _read_gpu_counts(self, unknown: list[str]) -> Mapping[str, int] | None:
        """`unknown` gets a sentence when Slurm was asked and did not answer."""
        if settings.KINTSUGI["KINTSUGI_SLURM"] == "off":
            self.stderr.write("Slurm is not asked: KINTSUGI_SLURM is off.")
            return None
        from kintsugi.clients import wiring  # noqa: PLC0415  (the ways to Slurm: --offline takes none)

        try:
            slurm = wiring.build_slurm_reader(wiring.build_node_shell())
            states: Mapping[str, NodeState] = slurm.read_nodes()
        except SlurmError as error:
            self.stderr.write(f"not known: Slurm: {error}")
            unknown.append("Slurm did not answer: nothing is known of its nodes.")
            return None
        return {resources.short_host(name): state.gpus for name, state in states.items()}

    def _ask_neighbours(
        self, node: str | None, switch: str | None, unknown: list[str]
    ) -> list[Heard] | None:
        """`unknown` gets a sentence when machines were asked and did not answer."""
        from kintsugi.clients import wiring  # noqa: PLC0415  (--offline asks nobody)
        from kintsugi.inventory import discover as inventory_discover  # noqa: PLC0415  (--offline asks nobody)

        if not wiring.has_node_access():
            self.stderr.write("Cables are not compared with LLDP: KINTSUGI_SSH_KEY is unset.")
            return None
        found, switches = self._inspect(node, switch)
        for line in _fold_reasons(found.failed):
            self.stderr.write(f"not known: {line}")
        if found.silent:
            silent = len(found.silent)
            machines = silent + len(found.nodes) + len(found.switches)
            unknown.append(
                f"{silent} of {machines} machines did not answer: nothing is known of them."
                " The lines above say why; --offline asks none."
            )
        nodes = services.list_targets(TargetKind.NODE)
        return inventory_discover.list_neighbours(found, nodes, switches)

    # Access
    # ---------------------------------------------------------------------------

    def _write_sudoers(
        self, *, offline: bool, acts: bool, node: str | None, switch: str | None, **options: Any
    ) -> None:
        from kintsugi.clients import wiring  # noqa: PLC0415  (the detectors: others ask no machine)
        from kintsugi.inventory import sudoers  # noqa: PLC0415  (the detectors: others ask no machine)
        from runbooks.people import root_rights  # noqa: PLC0415  (the steps, which say what root runs)

        if node:
            targets = _get_targets(TargetKind.NODE, node)
        else:
            targets = _list_first_of_each_role(services.list_targets(TargetKind.NODE))
        shell = wiring.build_node_shell() if wiring.has_node_access() and not offline else None
        if acts:
            needs = sudoers.find_act_commands(targets, shell, root_rights.list_units())
            head = sudoers.ACTS
        else:
            detectors, now = wiring.list_detectors(), clock.now()
            needs = sudoers.find_detector_commands(detectors, targets, shell, now=now)
            head = sudoers.LOOKS
        user = settings.KINTSUGI["KINTSUGI_SSH_USER"]
        for line in sudoers.format_sudoers(needs, user, head=head):
            self.stdout.write(line)
        for line in needs.failed:
            self.stderr.write(f"not known: {line}")
        if not targets:
            self.stderr.write(
                "The inventory has no node: import it first, else only what is asked of every node"
                " shows."
            )
        if shell is None:
            self.stderr.write(
                "No node was asked: what is read of each disk or port may be missing."
            )

    def _write_expected(self, *, node: str, **options: Any) -> None:
        target = services.get_target(node)
        if target is None:
            raise CommandError(
                f"{node} is not in the inventory. `kintsugi inventory import` takes it in."
            )
        self.stdout.write(json.dumps(to_json(target.expected), indent=2))

    def _read_host_keys(
        self, *, accept: bool, node: str | None, switch: str | None, **options: Any
    ) -> None:
        from kintsugi.inventory import host_keys  # noqa: PLC0415  (paramiko: others read no host keys)
        from runbooks.slurm.client import parse_controller  # noqa: PLC0415  (Slurm's clients, as above)

        default = Path.home() / ".ssh" / "known_hosts"
        known_hosts = Path(settings.KINTSUGI["KINTSUGI_SSH_KNOWN_HOSTS"] or default)
        targets = _get_targets(TargetKind.NODE, "" if _is_switch_only(node, switch) else node)
        targets += _get_targets(TargetKind.SWITCH, switch or "")
        slurm = settings.KINTSUGI["KINTSUGI_SLURM"]
        if slurm.startswith("ssh:") and node is None and switch is None:
            targets.append(parse_controller(slurm))
        try:
            keys = host_keys.scan_host_keys(targets, known_hosts)
            pinned = host_keys.add_known_hosts(keys, known_hosts) if accept else 0
        except OSError as error:
            raise CommandError(f"{known_hosts}: {error.strerror or error}.") from error
        for key in keys:
            self.stdout.write(_format_key(key))
        if accept:
            self.stdout.write(f"Pinned {pinned} new keys in {known_hosts}.")
        self._conclude(keys, known_hosts, is_accepted=accept)

    def _conclude(self, keys: Sequence[HostKey], known_hosts: Path, *, is_accepted: bool) -> None:
        from kintsugi.inventory.host_keys import KeyState  # noqa: PLC0415  (paramiko, as above)

        count = Counter(key.state for key in keys)
        if count[KeyState.NEW] and not is_accepted:
            self.stdout.write(
                f"{count[KeyState.NEW]} are new. Compare a few with `ssh-keygen -lf"
                " /etc/ssh/ssh_host_ed25519_key.pub` on the machine, then say --accept."
            )
        changed = count[KeyState.CHANGED]
        if changed:
            raise CommandError(
                f"{changed} changed and were refused. A reinstalled machine has new"
                f" keys: when you know why, `ssh-keygen -R HOST -f {known_hosts}`, then again. Else"
                " somebody may be in between."
            )
        if count[KeyState.SILENT]:
            raise CommandError(f"{count[KeyState.SILENT]} did not answer.")


def _takes_machines(parser: ArgumentParser, default: str = "all") -> None:
    parser.add_argument(
        "--node", metavar="NAMES", help=f"a host list such as gn[001-003]; default: {default}"
    )
    parser.add_argument("--switch", metavar="NAMES", help="switches, in the same way")


def _is_switch_only(node: str | None, switch: str | None) -> bool:
    return node is None and switch is not None


def _expand_names(text: str) -> set[str]:
    try:
        return set(expand(text)) if text else set()
    except ValueError as error:
        raise CommandError(str(error)) from error


def _get_targets(kind: TargetKind, text: str | None) -> list[Target]:
    """All where `text` is None. Raises CommandError for a name that the inventory does not hold."""
    if text is None:
        return services.list_targets(kind)
    names = _expand_names(text)
    targets = services.list_targets(kind, sorted(names)) if names else []
    unknown = sorted(names - {target.name for target in targets})
    if unknown:
        raise CommandError(
            f"No {kind} {', '.join(unknown)} in the inventory. `kintsugi inventory import` adds"
            " them."
        )
    return targets


def _list_first_of_each_role(targets: Iterable[Target]) -> list[Target]:
    first: dict[str, Target] = {}
    for target in targets:
        first.setdefault(target.expected.role, target)
    return list(first.values())


def _fold_reasons(lines: Iterable[str]) -> list[str]:
    """A reason that many machines share is told for a few, then counted."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        name, _, reason = line.partition(": ")
        by_reason[reason.replace(name, "...")].append(line)
    folded = []
    for alike in by_reason.values():
        folded += alike[:_ALIKE]
        if len(alike) > _ALIKE:
            folded.append(f"and {len(alike) - _ALIKE} machines more, for the same reason")
    return folded


def _format_key(host_key: HostKey) -> str:
    kind = host_key.key.get_name() if host_key.key is not None else ""
    names = (f"{host_key.state:8}", host_key.target.name, host_key.host, kind)
    words = (*names, host_key.fingerprint, host_key.text)
    return " ".join(word for word in words if word)


def _format_counts(lines: list[str]) -> str:
    """`101 nodes, 800 GPUs`: how many lines there are of each kind."""
    counts = Counter(_get_kind(line) for line in lines)
    texts = []
    for kind, count in counts.items():
        noun = kind if count == 1 else _PLURALS.get(kind, f"{kind}s")
        texts.append(f"{count} {noun}")
    return ", ".join(texts)


def _get_kind(line: str) -> str:
    """A part of a node by its own name, all else by the line's first word."""
    for part in _PARTS:
        if f" {part} " in line:
            return part
    return line.split(" ", 1)[0]


def _apply(topology: Topology, *, is_dry_run: bool) -> services.Difference:
    try:
        return services.apply(topology, clock.now(), is_dry_run=is_dry_run)
    except services.InventoryError as error:
        raise CommandError(f"Nothing was imported.\n{error}") from error
