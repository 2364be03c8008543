"""Reads inventory files: TOML, in which one row may stand for many nodes, switches or cables. No
database.

Every problem of every file is told in one go, with file, line and reason. `docs/inventory.md` has
the notation.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from detectors import resources, toml_text
from detectors.time_zones import get_zone
from incidents.topology import joints, rules
from incidents.topology.rows import Row, read_given
from incidents.topology.topology import (
    CablePlace,
    FeedPlace,
    ModulePlace,
    NodePlace,
    PortPlace,
    RackPlace,
    RolePlace,
    Site,
    StoragePlace,
    SwitchPlace,
    Topology,
    expand,
)

SWITCH_ROLES = ("leaf", "spine", "storage", "management")
TARGET_KINDS = ("node", "switch", "site")
_PATH = re.compile(r"(node|switch|storage)/[^/\s]+(/[a-z_]+/\S+)?")
_LONGEST_PATH = 160


class InventoryError(Exception):
    """The inventory cannot be used. The message has one line per problem: file, line, reason."""


@dataclass
class _Reader:
    """One pass over all files; collects and never stops at the first problem."""

    site: Site = field(default_factory=Site)
    nodes: dict[str, NodePlace] = field(default_factory=dict)
    switches: dict[str, SwitchPlace] = field(default_factory=dict)
    cables: list[CablePlace] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    modules: dict[tuple[str, str], ModulePlace] = field(default_factory=dict)
    ports: dict[tuple[str, str], PortPlace] = field(default_factory=dict)
    racks: dict[str, RackPlace] = field(default_factory=dict)
    feeds: dict[str, FeedPlace] = field(default_factory=dict)
    storage: dict[str, StoragePlace] = field(default_factory=dict)
    roles: dict[tuple[str, str], RolePlace] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)
    """Where each machine, cable end and module was told: file, line, table."""
    ends: dict[str, str] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    """Names of rows that were wrong: what else they miss is no problem of its own."""

    def read(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8")
            tables = toml_text.parse(text)
        except (OSError, ValueError) as error:
            self.problems.append(f"{path}: cannot be read: {error}")
            return
        takers = self._get_takers_by_table()
        known = ("site", *takers)
        known_text = ", ".join(known)
        for name in tables:
            if name not in known:
                self.problems.append(f"{path}: unknown table {name}; known are {known_text}")
        if "site" in tables:
            self._take(f"{path}: [site]", tables["site"], self._take_site)
        for table, take in takers.items():
            rows = tables.get(table, [])
            if not isinstance(rows, list):
                self.problems.append(f"{path}: {table} is written as rows: [[{table}]]")
                continue
            lines = _list_lines(text, table, len(rows))
            for line, row in zip(lines, rows, strict=True):
                self._take(f"{path}:{line}: [[{table}]]", row, take)

    def _get_takers_by_table(self) -> Mapping[str, Callable[[str, Row], None]]:
        """What takes a row of each table, in the order of taking: machines before their parts."""
        machines_and_parts = {
            "nodes": self._take_nodes,
            "node": self._take_node,
            "switches": self._take_switches,
            "modules": self._take_modules,
            "ports": self._take_ports,
        }
        surroundings = {
            "cables": self._take_cables,
            "racks": self._take_racks,
            "feeds": self._take_feeds,
            "storage": self._take_storage,
            "expect": self._take_expected,
            "aliases": self._take_alias,
        }
        return machines_and_parts | surroundings

    def _take(self, where: str, values: object, take: Callable[[str, Row], None]) -> None:
        if not isinstance(values, dict):
            self.problems.append(f"{where} is no table")
            return
        try:
            take(where, Row(values))
        except ValueError as error:
            self.problems += [f"{where}: {reason}" for reason in str(error).splitlines()]
            names = values.get("names", values.get("name", ""))
            with contextlib.suppress(ValueError):
                self.unread |= set(expand(str(names)))

    def _take_site(self, where: str, row: Row) -> None:
        zone = row.read_text("time_zone", "UTC")
        try:
            get_zone(zone)
        except ValueError:
            row.wrong.append(f"time_zone {zone!r} is no IANA time zone such as Asia/Tokyo")
        self.site = Site(row.read_text("name", ""), row.read_text("cluster_name", ""), zone)
        row.require_all_read()

    def _take_nodes(self, where: str, row: Row) -> None:
        names = row.read_hosts("names")
        racks = row.read_spread("racks", names)
        addresses = row.read_paired("addresses", names)
        bmcs = row.read_paired("bmcs", names)
        nics_by_name = row.read_nics(names)
        ssh_port = row.read_port("ssh_port", 22)
        role = row.read_text("role", "compute")
        pod = row.read_text("pod", "")
        partitions = tuple(row.read_words("partitions"))
        gpu_count = row.read_number_or_none("gpu_count")
        gpus = row.read_gpus()
        nvswitches = row.read_nvswitches()
        row.require_all_read()
        node = NodePlace(
            name="",
            ssh_port=ssh_port,
            role=role,
            pod=pod,
            partitions=partitions,
            gpu_count=gpu_count,
            gpus=gpus,
            nvswitches=nvswitches,
        )
        columns = zip(names, racks, addresses, bmcs, nics_by_name, strict=True)
        for name, rack, address, bmc, nics in columns:
            self._record_place(f"node/{name}", where, name in self.nodes)
            self.nodes[name] = replace(
                node, name=name, rack=rack, address=address, nics=nics, bmc_address=bmc
            )

    def _take_node(self, where: str, row: Row) -> None:
        """One node in particular: what the row gives replaces what is known of the node."""
        name = row.name("name")
        text_keys = ("address", "role", "pod", "rack", "serial")
        readers = {key: _make_reader(row.read_text, key, "") for key in text_keys}
        readers["ssh_port"] = lambda: row.read_port("ssh_port", 22)
        readers["partitions"] = lambda: tuple(row.read_words("partitions"))
        readers["gpu_count"] = lambda: row.read_number_or_none("gpu_count")
        readers["gpus"] = row.read_gpus
        readers["nvswitches"] = row.read_nvswitches
        readers["nics"] = lambda: row.read_nics([name])[0]
        values = read_given(row, readers)
        if "bmc" in row.values:
            values["bmc_address"] = row.read_text("bmc")
        row.require_all_read()
        place = self.nodes.get(name) or NodePlace(name=name, given=frozenset())
        fields = None if place.given is None else place.given | frozenset(values)
        self.nodes[name] = replace(place, **values, given=fields)
        self.where[f"node/{name}"] = where

    def _take_switches(self, where: str, row: Row) -> None:
        names = row.read_hosts("names")
        role = row.read_choice("role", SWITCH_ROLES)
        rails = row.read_rails(names)
        addresses = row.read_paired("addresses", names)
        serials = row.read_paired("serials", names)
        snmp_engine_ids = row.read_paired("snmp_engine_ids", names)
        racks = row.read_spread("racks", names)
        pod = row.read_text("pod", "")
        ssh_port = row.read_port("ssh_port", 22)
        snmp_port = row.read_port("snmp_port", 161)
        row.require_all_read()
        switch = SwitchPlace("", role, pod=pod, ssh_port=ssh_port, snmp_port=snmp_port)
        for number, name in enumerate(names):
            self._record_place(f"switch/{name}", where, name in self.switches)
            placed = replace(switch, name=name, rack=racks[number], rail=rails[number])
            self.switches[name] = replace(
                placed,
                address=addresses[number],
                serial=serials[number],
                snmp_engine_id=snmp_engine_ids[number],
            )

    def _record_place(self, machine: str, where: str, is_known: bool) -> None:
        """Where the machine stands in the files; a second row for it is a problem."""
        if is_known:
            name = machine.partition("/")[2]
            self.problems.append(
                f"{where}: {name} stands in an earlier row too: {self.where.get(machine, '')}"
            )
        self.where[machine] = where

    def _take_modules(self, where: str, row: Row) -> None:
        for module in rules.build_modules(row):
            key = (module.switch, module.name)
            if key in self.modules:
                self.problems.append(
                    f"{where}: module {module.name} of {module.switch} stands in an earlier row too"
                )
            self.modules[key] = module
            self.where[resources.module(*key)] = where

    def _take_ports(self, where: str, row: Row) -> None:
        """A later row says more of a port; it does not take back what an earlier one said."""
        for port in rules.build_ports(row):
            earlier = self.ports.get((port.switch, port.name), port)
            declared = {}
            for key, value in vars(port).items():
                if value not in (None, ""):
                    declared[key] = value
            self.ports[(port.switch, port.name)] = replace(earlier, **declared)
            self.where[resources.port(port.switch, port.name)] = where

    def _take_cables(self, where: str, row: Row) -> None:
        speed = row.read_number("speed_gbps", 0)
        for a, b in rules.build_cables(row):
            for end in (a, b):
                if not _PATH.fullmatch(end) or len(end) > _LONGEST_PATH:
                    self.problems.append(
                        f"{where}: {end!r} is no resource path such as"
                        " switch/leaf-01/port/Ethernet0"
                    )
                elif end in self.ends:
                    self.problems.append(f"{where}: {end} has a cable already, to {self.ends[end]}")
                self.where.setdefault(end, where)
            self.ends.update({a: b, b: a})
            self.cables.append(CablePlace(a, b, speed or None))

    def _take_racks(self, where: str, row: Row) -> None:
        names = row.read_hosts("names")
        pod = row.read_text("pod", "")
        feeds = tuple(row.read_words("feeds"))
        switches = row.read_spread("management_switches", names)
        row.require_all_read()
        for name, switch in zip(names, switches, strict=True):
            self.racks[name] = RackPlace(name, pod, feeds, switch)
            self.where[f"rack/{name}"] = where

    def _take_feeds(self, where: str, row: Row) -> None:
        names, source = row.read_hosts("names"), row.read_text("source", "")
        row.require_all_read()
        self.feeds.update({name: FeedPlace(name, source) for name in names})

    def _take_storage(self, where: str, row: Row) -> None:
        mount = row.read_text("mount")
        source = row.read_text("source", "")
        servers = tuple(row.read_hosts_or_none("servers"))
        switches = tuple(row.read_hosts_or_none("switches"))
        nics = tuple(row.read_words("nics"))
        roles = tuple(row.read_words("roles", ("compute",)))
        row.require_all_read()
        self.storage[mount] = StoragePlace(mount, source, servers, switches, nics, roles)
        self.where[f"mount/{mount}"] = where

    def _take_expected(self, where: str, row: Row) -> None:
        kind = row.read_choice("kind", TARGET_KINDS)
        roles = row.read_words("roles", ("",))
        settings, urls = row.read_texts("settings"), row.read_texts("urls")
        mounts = tuple(row.read_words("mounts"))
        services = tuple(row.read_words("services"))
        row.require_all_read()
        for role in roles:
            if (kind, role) in self.roles:
                self.problems.append(f"{where}: {kind} {role} stands in an earlier row too")
            self.roles[(kind, role)] = RolePlace(kind, role, settings, urls, mounts, services)

    def _take_alias(self, where: str, row: Row) -> None:
        name, resource = row.read_text("name"), row.read_text("resource")
        if not _PATH.fullmatch(resource):
            row.wrong.append(f"resource {resource!r} is no resource path such as node/gn001")
        row.require_all_read()
        if self.aliases.get(name, resource) != resource:
            self.problems.append(f"{where}: {name} already means {self.aliases[name]}")
        self.aliases[name] = resource


def _make_reader(read: Callable[..., Any], *words: Any) -> Callable[[], Any]:
    return lambda: read(*words)


def load(*paths: Path) -> Topology:
    """The inventory of these files, read one after the other. Raises InventoryError naming every
    problem."""
    reader = _Reader()
    for path in paths:
        reader.read(path)
    topology = _make_topology(reader)
    problems = [*reader.problems, *joints.list_problems(topology, reader.where, reader.unread)]
    if problems:
        raise InventoryError("\n".join(problems))
    return topology


def _make_topology(reader: _Reader) -> Topology:
    nodes = tuple(reader.nodes.values())
    switches = tuple(reader.switches.values())
    modules = tuple(reader.modules.values())
    ports = tuple(reader.ports.values())
    racks = tuple(reader.racks.values())
    feeds = tuple(reader.feeds.values())
    storage = tuple(reader.storage.values())
    roles = tuple(reader.roles.values())
    cables = tuple(reader.cables)
    aliases = _get_nic_aliases(nodes) | reader.aliases
    return Topology(
        site=reader.site,
        nodes=nodes,
        switches=switches,
        cables=cables,
        aliases=aliases,
        modules=modules,
        ports=ports,
        racks=racks,
        feeds=feeds,
        storage=storage,
        roles=roles,
    )


def _get_nic_aliases(nodes: Iterable[NodePlace]) -> dict[str, str]:
    """mlx5_core speaks of PCI addresses: each is another name of the NIC, and so is its
    interface."""
    nic_aliases = {}
    for node in nodes:
        for nic in node.nics:
            resource = resources.nic(node.name, nic.device)
            names = (("nic", nic.pci), ("pci", nic.pci), ("nic", nic.netdev))
            for kind, name in names:
                if name and name != nic.device:
                    nic_aliases[f"node/{node.name}/{kind}/{name}"] = resource
    return nic_aliases


def _list_lines(text: str, table: str, count: int) -> list[str]:
    """Line numbers (1-based) of `[[table]]`, in order; tomllib keeps none. `?` for rows written in
    another way."""
    header = re.compile(rf"\s*\[\[\s*{table}\s*\]\]")
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if header.match(line):
            lines.append(str(number))
    return lines if len(lines) == count else ["?"] * count
