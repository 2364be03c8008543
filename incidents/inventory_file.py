"""Reads inventory files: TOML, in which one row may stand for many nodes, switches or cables. No database.

Every problem of every file is told in one go, with file, line and reason. `docs/inventory.md` has the notation.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from detectors import resources
from incidents.topology import CablePlace, GpuPlace, NodePlace, Site, SwitchPlace, Topology, expand

SWITCH_ROLES = ("leaf", "spine", "storage", "management")
_TABLES = ("site", "nodes", "node", "switches", "cables", "aliases")
_PATH = re.compile(r"(node|switch|storage)/[^/\s]+(/[a-z_]+/\S+)?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
_LONGEST_PATH = 160


class InventoryError(Exception):
    """The inventory cannot be used. The message has one line per problem: file, line, reason."""


class _Wrong(ValueError):
    """One row's problems, one per line."""


@dataclass
class _Reader:
    """One pass over all files; collects and never stops at the first problem."""

    site: Site = field(default_factory=Site)
    nodes: dict[str, NodePlace] = field(default_factory=dict)
    switches: dict[str, SwitchPlace] = field(default_factory=dict)
    cables: list[CablePlace] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _ends: dict[str, str] = field(default_factory=dict)

    def read(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8")
            tables = tomllib.loads(text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            self.problems.append(f"{path}: cannot be read: {error}")
            return
        known = ", ".join(_TABLES)
        self.problems += [f"{path}: unknown table {name}; known are {known}" for name in set(tables) - set(_TABLES)]
        if "site" in tables:
            self._take(f"{path}: [site]", tables["site"], self._site)
        takers: dict[str, Callable[[str, _Row], None]] = {
            "nodes": self._nodes,
            "node": self._node,
            "switches": self._switches,
            "cables": self._cables,
            "aliases": self._alias,
        }
        for table, take in takers.items():
            rows = tables.get(table, [])
            if not isinstance(rows, list):
                self.problems.append(f"{path}: {table} is written as rows: [[{table}]]")
                continue
            for line, row in zip(_lines_of(text, table, len(rows)), rows, strict=True):
                self._take(f"{path}:{line}: [[{table}]]", row, take)

    def _take(self, where: str, values: object, take: Callable[[str, _Row], None]) -> None:
        if not isinstance(values, dict):
            self.problems.append(f"{where} is no table")
            return
        try:
            take(where, _Row(values))
        except ValueError as error:
            self.problems += [f"{where}: {reason}" for reason in str(error).splitlines()]

    def _site(self, where: str, row: _Row) -> None:
        zone = row.text("time_zone", "UTC")
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            row.wrong.append(f"time_zone {zone!r} is no IANA time zone such as Asia/Tokyo")
        self.site = Site(row.text("name", ""), row.text("cluster_name", ""), zone)
        row.done()

    def _nodes(self, where: str, row: _Row) -> None:
        names = row.hosts("names")
        racks, addresses = row.spread("racks", names), row.paired("addresses", names)
        node = NodePlace(
            name="",
            ssh_port=row.number("ssh_port", 22),
            role=row.text("role", "compute"),
            pod=row.text("pod", ""),
            partitions=tuple(row.words("partitions")),
            gpus=row.gpus(),
            nics=row.nics(),
        )
        row.done()
        for number, name in enumerate(names):
            if name in self.nodes:
                self.problems.append(f"{where}: {name} stands in an earlier row too")
            self.nodes[name] = replace(node, name=name, rack=racks[number], address=addresses[number])

    def _node(self, where: str, row: _Row) -> None:
        """One node in particular: what the row gives replaces what is known of the node."""
        name = row.name("name")
        given: dict[str, Any] = {}
        for key in ("address", "role", "pod", "rack"):
            if key in row.values:
                given[key] = row.text(key, "")
        if "ssh_port" in row.values:
            given["ssh_port"] = row.number("ssh_port", 22)
        if "partitions" in row.values:
            given["partitions"] = tuple(row.words("partitions"))
        if "gpus" in row.values:
            given["gpus"] = row.gpus()
        if "nics" in row.values:
            given["nics"] = row.nics()
        row.done()
        known = self.nodes.get(name)
        place = known or NodePlace(name=name, given=frozenset())
        fields = None if place.given is None else place.given | frozenset(given)
        self.nodes[name] = replace(place, **given, given=fields)

    def _switches(self, where: str, row: _Row) -> None:
        names = row.hosts("names")
        role = row.text("role", "")
        if role not in SWITCH_ROLES:
            row.wrong.append(f"role {role!r} is none of {', '.join(SWITCH_ROLES)}")
        rails = row.rails(names)
        addresses = row.paired("addresses", names)
        pod = row.text("pod", "")
        row.done()
        for number, name in enumerate(names):
            if name in self.switches:
                self.problems.append(f"{where}: {name} stands in an earlier row too")
            self.switches[name] = SwitchPlace(name, role, addresses[number], pod, rails[number])

    def _cables(self, where: str, row: _Row) -> None:
        speed = row.number("speed_gbps", 0)
        for a, b in _cable_rule(row):
            cable = CablePlace(a, b, speed or None)
            for end in (a, b):
                if not _PATH.fullmatch(end) or len(end) > _LONGEST_PATH:
                    self.problems.append(f"{where}: {end!r} is no resource path such as switch/leaf-01/port/Ethernet0")
                elif end in self._ends:
                    self.problems.append(f"{where}: {end} has a cable already, to {self._ends[end]}")
            self._ends.update({a: b, b: a})
            self.cables.append(cable)

    def _alias(self, where: str, row: _Row) -> None:
        name, resource = row.text("name"), row.text("resource")
        if not _PATH.fullmatch(resource):
            row.wrong.append(f"resource {resource!r} is no resource path such as node/gn001")
        row.done()
        if self.aliases.get(name, resource) != resource:
            self.problems.append(f"{where}: {name} already means {self.aliases[name]}")
        self.aliases[name] = resource

    def check_ends(self) -> None:
        """Cables end at machines and NICs of this inventory; no address belongs to two machines."""
        for end in self._ends:
            kind, _, name = resources.owner(end).partition("/")
            if kind == "switch" and name not in self.switches:
                self.problems.append(f"{end}: no switch {name} in [[switches]]")
            if kind == "node" and name not in self.nodes:
                self.problems.append(f"{end}: no node {name} in [[nodes]]")
            elif kind == "node" and self.nodes[name].nics and not self._has_nic(name, end):
                self.problems.append(f"{end}: {name} has no such NIC in its row")
        seen: dict[tuple[str, int], str] = {}
        places = [(node.name, node.address, node.ssh_port) for node in self.nodes.values()]
        for name, address, port in places + [(switch.name, switch.address, 0) for switch in self.switches.values()]:
            other = seen.setdefault((address, port), name)
            if address and other != name:
                self.problems.append(f"{name}: the address {address} belongs to {other} too")
        both = sorted(set(self.nodes) & set(self.switches))
        self.problems += [f"{name} is a node and a switch" for name in both]

    def _has_nic(self, node: str, end: str) -> bool:
        return any(end == resources.nic(node, device) for device, _ in self.nodes[node].nics)


@dataclass
class _Row:
    """One table of the file; reading a value checks it, `done` raises all that was wrong with the row."""

    values: dict[str, Any]
    wrong: list[str] = field(default_factory=list)
    _read: set[str] = field(default_factory=set)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if value is None or not isinstance(value, str):
            self.wrong.append(f"missing {key}" if value is None else f"{key} is no text")
            return ""
        return str(value)

    def number(self, key: str, default: int) -> int:
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.wrong.append(f"{key} {value!r} is no whole number")
            return default
        return value

    def name(self, key: str) -> str:
        return self._checked(self.text(key))

    def words(self, key: str) -> list[str]:
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            self.wrong.append(f"{key} is a list of texts")
            return []
        return list(value)

    def hosts(self, key: str) -> list[str]:
        """A host list as names; the row cannot be read without it."""
        text = self.text(key)
        if not text:
            raise _Wrong("\n".join(self.wrong or [f"{key} is empty"]))
        try:
            names = expand(text)
        except ValueError as error:
            raise _Wrong("\n".join([*self.wrong, f"{key}: {error}"])) from error
        return [self._checked(name) for name in names]

    def paired(self, key: str, names: Sequence[str]) -> list[str]:
        """A host list with one entry for each name; empty texts when it is left out."""
        if not self.values.get(key):
            self._read.add(key)
            return [""] * len(names)
        values = self.hosts(key)
        if len(values) != len(names):
            self.wrong.append(f"{key} has {len(values)} entries for {len(names)} names")
            return [""] * len(names)
        return values

    def spread(self, key: str, names: Sequence[str]) -> list[str]:
        """A host list whose entries each hold the same number of the names, in order."""
        if not self.values.get(key):
            self._read.add(key)
            return [""] * len(names)
        values = self.hosts(key)
        if len(names) % len(values):
            self.wrong.append(f"{len(names)} names do not fill {len(values)} {key} evenly")
            return [""] * len(names)
        return [value for value in values for _ in range(len(names) // len(values))]

    def rails(self, names: Sequence[str]) -> list[int | None]:
        """`rail` for all of the names, or `rails` with one number for each."""
        one, each = self._get("rail", None), self._get("rails", None)
        if each is None:
            return [one if isinstance(one, int) else None] * len(names)
        if not isinstance(each, list) or len(each) != len(names) or not all(isinstance(n, int) for n in each):
            self.wrong.append(f"rails needs one number for each of {len(names)} switches")
            return [None] * len(names)
        return list(each)

    def gpus(self) -> tuple[GpuPlace, ...]:
        """PCI addresses in index order, or tables with index, pci, uuid, serial."""
        places = []
        for number, value in enumerate(self._get("gpus", [])):
            row = value if isinstance(value, dict) else {"index": number, "pci": value}
            pci = resources.pci_address(str(row.get("pci", "")))
            unknown = set(row) - {"index", "pci", "uuid", "serial"}
            if pci is None or unknown or not isinstance(row.get("index", number), int):
                self.wrong.append(f"gpus: {value!r} is no GPU: give its PCI address, such as 0000:19:00.0")
                continue
            index = row.get("index", number)
            places.append(GpuPlace(index, pci, str(row.get("uuid", "")), str(row.get("serial", ""))))
        for what in ("index", "pci"):
            if len({getattr(place, what) for place in places}) < len(places):
                self.wrong.append(f"gpus: one {what} stands twice")
        return tuple(places)

    def nics(self) -> tuple[tuple[str, str], ...]:
        """Device names, or tables with device and pci."""
        places = []
        for value in self._get("nics", []):
            row = value if isinstance(value, dict) else {"device": value}
            pci = resources.pci_address(str(row["pci"])) if "pci" in row else ""
            if not isinstance(row.get("device"), str) or pci is None:
                self.wrong.append(f"nics: {value!r} is no NIC: give its device name, such as mlx5_0")
                continue
            places.append((row["device"], pci))
        return tuple(places)

    def ports(self, key: str) -> Callable[[int], str]:
        """`{name = "Ethernet{}", first = 0, step = 4}` as the name of the port with a running number."""
        value = self._get(key, None)
        if not isinstance(value, dict) or "{}" not in str(value.get("name", "")):
            raise _Wrong(f'{key} is written as {{name = "Ethernet{{}}", first = 0, step = 4}}')
        first, step = int(value.get("first", 0)), int(value.get("step", 1))
        return lambda number: str(value["name"]).replace("{}", str(first + step * number))

    def done(self) -> None:
        """Raises everything that was wrong, keys that nobody read included."""
        self.wrong += [f"unknown key {key}" for key in sorted(set(self.values) - self._read)]
        if self.wrong:
            raise _Wrong("\n".join(self.wrong))

    def _get(self, key: str, default: Any) -> Any:
        self._read.add(key)
        return self.values.get(key, default)

    def _checked(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            self.wrong.append(f"{name!r} is no short host name: lower-case letters, digits, - . _, 64 at most")
        return name


def _cable_rule(row: _Row) -> Iterable[tuple[str, str]]:
    """The cables of one row: both ends, a rule for nodes, or a rule for two layers of switches."""
    if "a" in row.values:
        ends = [(row.text("a"), row.text("b"))]
    elif "nodes" in row.values:
        ends = list(_node_cables(row))
    else:
        ends = list(_layer_cables(row))
    row.done()
    return ends


def _node_cables(row: _Row) -> Iterable[tuple[str, str]]:
    """NIC number r of node number k goes to switch number r, port number k."""
    nodes, switches, nics, port = row.hosts("nodes"), row.hosts("switches"), row.words("nics"), row.ports("ports")
    if len(nics) != len(switches):
        raise _Wrong(f"{len(nics)} nics for {len(switches)} switches: each NIC goes to one switch")
    for number, node in enumerate(nodes):
        for nic, switch in zip(nics, switches, strict=True):
            yield resources.nic(node, nic), resources.port(switch, port(number))


def _layer_cables(row: _Row) -> Iterable[tuple[str, str]]:
    """Every lower switch has `links` cables to every upper one; ports count on across the other layer."""
    lower, upper, links = row.hosts("lower"), row.hosts("upper"), row.number("links", 1)
    lower_port, upper_port = row.ports("lower_ports"), row.ports("upper_ports")
    for low, below in enumerate(lower):
        for high, above in enumerate(upper):
            for link in range(links):
                yield (
                    resources.port(below, lower_port(high * links + link)),
                    resources.port(above, upper_port(low * links + link)),
                )


def load(*paths: Path) -> Topology:
    """The inventory of these files, read one after the other. Raises InventoryError naming every problem."""
    reader = _Reader()
    for path in paths:
        reader.read(path)
    reader.check_ends()
    if reader.problems:
        raise InventoryError("\n".join(reader.problems))
    return Topology(
        site=reader.site,
        nodes=tuple(reader.nodes.values()),
        switches=tuple(reader.switches.values()),
        cables=tuple(reader.cables),
        aliases={**_nic_aliases(reader.nodes.values()), **reader.aliases},
    )


def _nic_aliases(nodes: Iterable[NodePlace]) -> Mapping[str, str]:
    """mlx5_core speaks of PCI addresses: each is another name of the NIC."""
    return {
        f"node/{node.name}/{kind}/{pci}": resources.nic(node.name, device)
        for node in nodes
        for device, pci in node.nics
        if pci
        for kind in ("nic", "pci")
    }


def _lines_of(text: str, table: str, count: int) -> list[str]:
    """Line numbers (1-based) of `[[table]]`, in order; tomllib keeps none. `?` for rows written in another way."""
    header = re.compile(rf"\s*\[\[\s*{table}\s*\]\]")
    lines = [str(number) for number, line in enumerate(text.splitlines(), 1) if header.match(line)]
    return lines if len(lines) == count else ["?"] * count
