"""What stands where and what is cabled to what: nodes, GPUs, switches, ports, cables. Pure: no
file, no database.

Both ends of a cable are resource paths. A topology may be partial: correlation loads the cables it
asks about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from detectors import resources

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_SPAN = re.compile(r"(\d+)(?:-(\d+))?")
# A typing error such as [1-1000000000] must not fill the memory; Slurm's own MAX_HOSTS limit is 64
# K.
MOST_HOSTS = 65536


@dataclass(frozen=True)
class GpuPlace:
    """One GPU of a node. `pci` is canonical (`0000:19:00.0`); uuid and serial are empty until
    known."""

    index: int
    pci: str
    uuid: str = ""
    serial: str = ""


@dataclass(frozen=True)
class NvSwitchPlace:
    pci: str
    uuid: str = ""
    serial: str = ""


@dataclass(frozen=True)
class NicPlace:
    """One NIC. An empty `role` and a `rail` of None follow from its cable; `also` is what it serves
    beside its role."""

    device: str
    pci: str = ""
    netdev: str = ""
    role: str = ""
    also: str = ""
    rail: int | None = None
    speed_gbps: int | None = None
    mtu: int | None = None
    address: str = ""
    mac: str = ""
    serial: str = ""
    firmware: str = ""


@dataclass(frozen=True)
class NodePlace:
    name: str
    address: str = ""
    ssh_port: int = 22
    role: str = "compute"
    pod: str = ""
    rack: str = ""
    partitions: tuple[str, ...] = ()
    serial: str = ""
    gpu_count: int | None = None
    """Where their places are not known yet; else `gpus` counts."""
    gpus: tuple[GpuPlace, ...] = ()
    nvswitches: tuple[NvSwitchPlace, ...] = ()
    nics: tuple[NicPlace, ...] = ()
    given: frozenset[str] | None = None
    """The fields that the inventory gave, None for all: the rest stays as it is known."""
    is_observed: bool = False
    """The machine itself told it: what its NICs are for stays as it was declared."""
    bmc_address: str = ""


@dataclass(frozen=True)
class SwitchPlace:
    """`role` is leaf, spine, storage or management; `rail` is None for what serves no single
    rail."""

    name: str
    role: str
    address: str = ""
    pod: str = ""
    rail: int | None = None
    rack: str = ""
    ssh_port: int = 22
    snmp_port: int = 161
    snmp_engine_id: str = ""
    serial: str = ""


@dataclass(frozen=True)
class ModulePlace:
    """A transceiver in a switch and the ports that it holds, in order; each has the same share of
    its lanes."""

    switch: str
    name: str
    ports: tuple[str, ...]
    kind: str = ""
    lanes: int = 8
    serial: str = ""


@dataclass(frozen=True)
class PortPlace:
    """What is declared of a port. None and empty: nothing is."""

    switch: str
    name: str
    speed_gbps: int | None = None
    mtu: int | None = None
    fec: str = ""
    is_autonegotiated: bool | None = None
    is_admin_up: bool | None = None


@dataclass(frozen=True)
class CablePlace:
    a: str
    b: str
    speed_gbps: int | None = None


@dataclass(frozen=True)
class RackPlace:
    name: str
    pod: str = ""
    feeds: tuple[str, ...] = ()
    management_switch: str = ""


@dataclass(frozen=True)
class FeedPlace:
    name: str
    source: str = ""


@dataclass(frozen=True)
class StoragePlace:
    """How machines of these roles reach one file system: by which NICs, over which switches, to
    which servers."""

    mount: str
    source: str = ""
    servers: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    roles: tuple[str, ...] = ("compute",)


@dataclass(frozen=True)
class RolePlace:
    """What is declared for every machine of one role. `kind` is node, switch or site."""

    kind: str
    role: str
    settings: Mapping[str, str] = field(default_factory=dict)
    urls: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    services: tuple[str, ...] = ()


@dataclass(frozen=True)
class Site:
    name: str = ""
    cluster_name: str = ""
    time_zone: str = "UTC"


@dataclass(frozen=True)
class Topology:
    """An inventory as values. `aliases` maps another name to a resource path."""

    site: Site = Site()
    nodes: tuple[NodePlace, ...] = ()
    switches: tuple[SwitchPlace, ...] = ()
    cables: tuple[CablePlace, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[ModulePlace, ...] = ()
    ports: tuple[PortPlace, ...] = ()
    racks: tuple[RackPlace, ...] = ()
    feeds: tuple[FeedPlace, ...] = ()
    storage: tuple[StoragePlace, ...] = ()
    roles: tuple[RolePlace, ...] = ()

    @cached_property
    def _far_ends(self) -> dict[str, str]:
        ends = {cable.a: cable.b for cable in self.cables}
        ends.update({cable.b: cable.a for cable in self.cables})
        return ends

    def find_peer(self, resource: str) -> str | None:
        """The resource at the other end of this one's cable; None when no cable is known."""
        return self._far_ends.get(resource)

    def find_speed(self, resource: str) -> int | None:
        """Gb/s of this resource's cable; None when no cable, or no speed, is known."""
        return self._speeds.get(resource)

    @cached_property
    def _speeds(self) -> dict[str, int | None]:
        speeds = {}
        for cable in self.cables:
            speeds[cable.a] = cable.speed_gbps
            speeds[cable.b] = cable.speed_gbps
        return speeds

    def ends(self, resource: str) -> set[str]:
        """The machines at both ends of this resource's cable; only its own where no cable is
        known."""
        machines = {resources.owner(resource)}
        far = self.find_peer(resource)
        if far is not None:
            machines.add(resources.owner(far))
        return machines

    def get_neighbours(self, machine: str) -> frozenset[str]:
        """The machines that are cabled to this one."""
        return self._around.get(machine, frozenset())

    @cached_property
    def _around(self) -> dict[str, frozenset[str]]:
        around: dict[str, set[str]] = {}
        for near, far in self._far_ends.items():
            around.setdefault(resources.owner(near), set()).add(resources.owner(far))
        return {machine: frozenset(others) for machine, others in around.items()}

    def find_node(self, name: str) -> NodePlace | None:
        return self._nodes.get(name)

    @cached_property
    def _nodes(self) -> dict[str, NodePlace]:
        return {node.name: node for node in self.nodes}


def expand(hostlist: str) -> list[str]:
    """Slurm's host list as names, in order: `gn[001-003,007],mt001` gives gn001, gn002, gn003,
    gn007, mt001.

    Leading zeros are kept. Raises ValueError saying what is wrong with which part.
    """
    names: list[str] = []
    for part in _split(hostlist):
        names.extend(_expand_part(part))
        _check_count(len(names), hostlist)
    if not names:
        raise ValueError("an empty host list")
    return names


def expand_typed(text: str) -> list[str]:
    """As `expand`, of what a person types: spaces part names too, and a name counts once. Raises
    ValueError with a sentence."""
    words = [word.strip(",") for word in text.split()]
    try:
        names = expand(",".join(word for word in words if word))
    except ValueError as error:
        raise ValueError(f"{error}.") from error
    return list(dict.fromkeys(names))


def _split(hostlist: str) -> Iterable[str]:
    """Splits at commas outside of brackets."""
    part, depth = "", 0
    for sign in hostlist:
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if depth not in (0, 1):
            raise ValueError(f"{hostlist}: brackets do not match")
        if sign == "," and depth == 0:
            yield _expand_whole(part, hostlist)
            part = ""
        else:
            part += sign
    if depth:
        raise ValueError(f"{hostlist}: brackets do not match")
    yield _expand_whole(part, hostlist)


def _expand_whole(part: str, hostlist: str) -> str:
    if not part.strip():
        raise ValueError(f"{hostlist!r}: an empty name")
    return part.strip()


def _expand_part(part: str) -> list[str]:
    found = _BRACKETS.search(part)
    if found is None:
        return [part]
    before = part[: found.start()]
    after = part[found.end() :]
    middles: list[str] = []
    for span in found[1].split(","):
        middles += _expand_numbers(span.strip(), part)
        _check_count(len(middles), part)
    endings = _expand_part(after) if after else [""]
    _check_count(len(middles) * len(endings), part)
    return [f"{before}{middle}{ending}" for middle in middles for ending in endings]


def _check_count(count: int, hostlist: str) -> None:
    """Raises ValueError before there are too many."""
    if count > MOST_HOSTS:
        raise ValueError(f"{hostlist}: more than {MOST_HOSTS} names")


def _expand_numbers(span: str, part: str) -> list[str]:
    found = _SPAN.fullmatch(span)
    if found is None:
        raise ValueError(f"{part}: {span!r} is no number and no range such as 001-050")
    first = found[1]
    last = found[2] or found[1]
    if int(last) < int(first):
        raise ValueError(f"{part}: the range {span} runs backwards")
    _check_count(int(last) - int(first) + 1, part)
    width = len(first)
    numbers = range(int(first), int(last) + 1)
    return [str(number).zfill(width) for number in numbers]
