"""Where machines are reached and what should be found on them, for polls: a few queries for any
number. Reads only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from detectors import resources
from detectors.detector import Target, TargetKind
from detectors.expected import Expected, ExpectedNic, ExpectedPort
from incidents.db.prepared import Given, Prepared
from incidents.inventory import graphs, peers
from incidents.models import Expectation, Gpu, Nic, Node, Port, Switch
from incidents.topology.topology import StoragePlace, Topology
from incidents.vocabulary.part_kinds import NicRole

# What a NIC serves when nobody says, by the role of the switch that it is cabled to.
_ROLE_BY_SWITCH = {
    "leaf": NicRole.FABRIC,
    "spine": NicRole.FABRIC,
    "storage": NicRole.STORAGE,
    "management": NicRole.MANAGEMENT,
}
_NOTHING = Expectation()

_EXPECTED = Prepared(lambda: Expectation.objects.filter(kind=Given("kind")).order_by("pk"))


def _get_inventoried_nodes() -> QuerySet[Node]:
    return Node.objects.inventoried().order_by("name")


def _get_gpus() -> QuerySet[Gpu, Any]:
    return Gpu.objects.order_by("node", "index").values_list("node_id", "index", "pci_address")


def _get_nics() -> QuerySet[Nic]:
    return Nic.objects.order_by("node", "id")


_ALL, _SOME = (
    Prepared(_get_inventoried_nodes),
    Prepared(lambda: _get_inventoried_nodes().filter(name__among=Given("names"))),
)
_ALL_GPUS, _SOME_GPUS = (
    Prepared(_get_gpus),
    Prepared(lambda: _get_gpus().filter(node__name__among=Given("names"))),
)
_ALL_NICS, _SOME_NICS = (
    Prepared(_get_nics),
    Prepared(lambda: _get_nics().filter(node__name__among=Given("names"))),
)


def get_target(name: str, kind: TargetKind = TargetKind.NODE) -> Target | None:
    """One machine; None for one that the inventory does not hold."""
    return next(iter(list_targets(kind, [name])), None)


def list_targets(kind: TargetKind, names: Sequence[str] | None = None) -> list[Target]:
    """Those of the inventory's machines of that kind, all or the named ones, in order of name."""
    makers = {
        TargetKind.NODE: _list_nodes,
        TargetKind.SWITCH: _list_switches,
        TargetKind.SITE: _list_sites,
    }
    return makers[kind](names)


def list_pollable() -> list[str]:
    """The nodes of the inventory, in order."""
    return list(Node.objects.inventoried().order_by("name").values_list("name", flat=True))


@dataclass(frozen=True)
class _Declared:
    """What is declared of roles, read once for a chunk."""

    rows: dict[tuple[str, str], Expectation]
    mounts: dict[str, tuple[str, ...]]
    peers: dict[str, dict[str, str]]

    def get_expectation(self, kind: TargetKind, role: str) -> Expectation:
        """The role's row, else the one without a role, which is for all."""
        for_all = self.rows.get((kind.value, ""), _NOTHING)
        return self.rows.get((kind.value, role)) or for_all

    def build_expected(
        self, kind: TargetKind, name: str, address: str, *, role: str, **parts: object
    ) -> Expected:
        row = self.get_expectation(kind, role)
        mounts = list(row.mounts)
        if kind is TargetKind.NODE:
            mounts += self.mounts.get(role, ())
        urls = {}
        for key, template in row.urls.items():
            urls[key] = template.replace("{name}", name).replace("{address}", address)
        services = tuple(row.services)
        peers = self.peers.get(role, {})
        return Expected(
            role=role,
            mounts=tuple(dict.fromkeys(mounts)),
            services=services,
            peers=peers,
            settings=dict(row.settings),
            urls=urls,
            **parts,  # type: ignore[arg-type]
        )


def _get_declared(kind: TargetKind, storage: Iterable[StoragePlace] = ()) -> _Declared:
    """`storage`: the file systems that such machines reach."""
    rows = {(row.kind, row.role): row for row in _EXPECTED.objects(kind=kind.value)}
    mounts: dict[str, tuple[str, ...]] = {}
    for path in storage:
        for role in path.roles:
            mounts[role] = (*mounts.get(role, ()), path.mount)
    return _Declared(rows, mounts, peers.get_usual(kind.value))


def _list_nodes(names: Sequence[str] | None) -> list[Target]:
    if names is None:
        nodes = _ALL.objects()
        gpus = _ALL_GPUS.rows()
        nics = _ALL_NICS.objects()
    else:
        nodes = _SOME.objects(names=names)
        gpus = _SOME_GPUS.rows(names=names)
        nics = _SOME_NICS.objects(names=names)
    gpus_by_node: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for owner, index, pci in gpus:
        gpus_by_node[owner].append((str(index), pci))
    nics_by_node: dict[int, list[Nic]] = defaultdict(list)
    for nic in nics:
        nics_by_node[nic.node_id].append(nic)
    cabling = _Cabling.load()
    declared = _get_declared(TargetKind.NODE, cabling.cables.storage)
    user = settings.KINTSUGI["KINTSUGI_SSH_USER"]
    targets_of_nodes = []
    for node in nodes:
        node_nics = nics_by_node[node.pk]
        address = node.address or node.name
        gpus_of_node = tuple(gpus_by_node[node.pk])
        expected_nics = tuple(cabling.build_expected_nic(node.name, nic) for nic in node_nics)
        addresses = _get_addresses(node, node_nics)
        expected = declared.build_expected(
            TargetKind.NODE,
            node.name,
            address,
            role=node.role,
            gpus=gpus_of_node,
            nics=expected_nics,
            addresses=addresses,
        )
        expected = replace(expected, bmc=node.bmc_address, serial=node.serial)
        target_of_node = Target(
            name=node.name, address=address, port=node.ssh_port, user=user, expected=expected
        )
        targets_of_nodes.append(target_of_node)
    return targets_of_nodes


def _get_addresses(node: Node, nics: Sequence[Nic]) -> tuple[str, ...]:
    """Its own and those of its NICs, each once."""
    addresses = [node.address, *(nic.address for nic in nics)]
    return tuple(dict.fromkeys(address for address in addresses if address))


@dataclass(frozen=True)
class _Cabling:
    """The far ends of cables, and what is known of the switches there."""

    cables: Topology
    switches: dict[str, tuple[str, int | None]]

    @classmethod
    def load(cls) -> _Cabling:
        topology = graphs.get_current().topology
        switches = {place.name: (place.role, place.rail) for place in topology.switches}
        return cls(topology, switches)

    def build_expected_nic(self, node: str, nic: Nic) -> ExpectedNic:
        """Role, rail and speed are the cable's where the row leaves them out."""
        own = resources.nic(node, nic.device)
        peer = self.cables.find_peer(own) or ""
        switch_role, switch_rail = "", None
        if peer.startswith("switch/"):
            switch_role, switch_rail = self.switches.get(peer.split("/")[1], ("", None))
        role = nic.role or str(_ROLE_BY_SWITCH.get(switch_role, ""))
        rail = switch_rail if nic.rail is None else nic.rail
        speed = nic.speed_gbps or self.cables.find_speed(own)
        declared = ExpectedNic(
            device=nic.device,
            netdev=nic.netdev,
            pci=nic.pci_address,
            mtu=nic.mtu,
            address=nic.address,
        )
        return replace(declared, role=role, rail=rail, speed_gbps=speed, peer=peer)

    def build_expected_port(self, port: Port) -> ExpectedPort:
        peer = self.cables.find_peer(port.resource) or ""
        module = port.module.resource if port.module is not None else ""
        return ExpectedPort(
            name=port.name,
            speed_gbps=port.speed_gbps,
            mtu=port.mtu,
            fec=port.fec,
            is_autonegotiated=port.is_autonegotiated,
            peer=peer,
            module=module,
            is_admin_up=port.is_admin_up,
        )


def _list_switches(names: Sequence[str] | None) -> list[Target]:
    switches = Switch.objects.inventoried().order_by("name")
    ports = Port.objects.order_by("switch", "id").select_related("switch", "module__switch")
    if names is not None:
        switches, ports = switches.filter(name__in=names), ports.filter(switch__name__in=names)
    ports_by_switch: dict[int, list[Port]] = defaultdict(list)
    for port in ports:
        ports_by_switch[port.switch_id].append(port)
    declared = _get_declared(TargetKind.SWITCH)
    cabling = _Cabling(graphs.get_current().topology, {})
    targets_of_switches = []
    for switch in switches:
        address = switch.address or switch.name
        addresses = (switch.address,) if switch.address else ()
        ports_of_switch = ports_by_switch[switch.pk]
        expected_ports = tuple(cabling.build_expected_port(port) for port in ports_of_switch)
        expected = declared.build_expected(
            TargetKind.SWITCH,
            switch.name,
            address,
            role=switch.role,
            ports=expected_ports,
            addresses=addresses,
        )
        target_of_switch = Target(
            name=switch.name,
            address=address,
            port=switch.ssh_port,
            kind=TargetKind.SWITCH,
            expected=expected,
            snmp_port=switch.snmp_port,
        )
        targets_of_switches.append(target_of_switch)
    return targets_of_switches


def _list_sites(names: Sequence[str] | None) -> list[Target]:
    """What speaks for many machines is declared by its role alone, such as slurm or prometheus."""
    declared = _get_declared(TargetKind.SITE)
    targets_of_roles = []
    for role in sorted(role for _, role in declared.rows if role):
        if names is None or role in names:
            expected = declared.build_expected(TargetKind.SITE, role, role, role=role)
            target_of_role = Target(
                name=role, address=role, kind=TargetKind.SITE, expected=expected
            )
            targets_of_roles.append(target_of_role)
    return targets_of_roles
