"""Where machines are reached and what should be found on them, for polls: a few queries for any
number. Reads only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from detectors import resources
from detectors.detector import Target, TargetKind
from detectors.expected import Expected, ExpectedNic, ExpectedPort
from incidents.db.prepared import Given, Prepared
from incidents.inventory import graphs, peers
from incidents.models import Expectation, Gpu, Nic, Node, Port, StoragePath, Switch
from incidents.topology.topology import Topology
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
_PATHS = Prepared(lambda: StoragePath.objects.order_by("mount"))
_SWITCHES = Prepared(lambda: Switch.objects.order_by("pk").values_list("name", "role", "rail"))


def _inventoried() -> QuerySet[Node]:
    return Node.objects.inventoried().order_by("name")


def _gpus() -> QuerySet[Gpu, Any]:
    return Gpu.objects.order_by("node", "index").values_list("node_id", "index", "pci_address")


def _nics() -> QuerySet[Nic]:
    return Nic.objects.order_by("node", "id")


_ALL, _SOME = (
    Prepared(_inventoried),
    Prepared(lambda: _inventoried().filter(name__among=Given("names"))),
)
_ALL_GPUS, _SOME_GPUS = (
    Prepared(_gpus),
    Prepared(lambda: _gpus().filter(node__name__among=Given("names"))),
)
_ALL_NICS, _SOME_NICS = (
    Prepared(_nics),
    Prepared(lambda: _nics().filter(node__name__among=Given("names"))),
)


def target(name: str, kind: TargetKind = TargetKind.NODE) -> Target | None:
    """One machine; None for one that the inventory does not hold."""
    return next(iter(targets(kind, [name])), None)


def targets(kind: TargetKind, names: Sequence[str] | None = None) -> list[Target]:
    """Those of the inventory's machines of that kind, all or the named ones, in order of name."""
    makers = {TargetKind.NODE: _nodes, TargetKind.SWITCH: _switches, TargetKind.SITE: _sites}
    return makers[kind](names)


def pollable() -> list[str]:
    """The nodes of the inventory, in order."""
    return list(Node.objects.inventoried().order_by("name").values_list("name", flat=True))


@dataclass(frozen=True)
class _Declared:
    """What is declared of roles, read once for a chunk."""

    rows: dict[tuple[str, str], Expectation]
    mounts: dict[str, tuple[str, ...]]
    peers: dict[str, dict[str, str]]

    def of(self, kind: TargetKind, role: str) -> Expectation:
        """The role's row, else the one without a role, which is for all."""
        return self.rows.get((kind.value, role)) or self.rows.get((kind.value, ""), _NOTHING)

    def expected(
        self, kind: TargetKind, name: str, address: str, *, role: str, **parts: object
    ) -> Expected:
        row = self.of(kind, role)
        mounts = (*row.mounts, *(self.mounts.get(role, ()) if kind is TargetKind.NODE else ()))
        return Expected(
            role=role,
            mounts=tuple(dict.fromkeys(mounts)),
            services=tuple(row.services),
            peers=self.peers.get(role, {}),
            settings=dict(row.settings),
            urls={
                key: url.replace("{name}", name).replace("{address}", address)
                for key, url in row.urls.items()
            },
            **parts,  # type: ignore[arg-type]
        )


def _declared(kind: TargetKind) -> _Declared:
    rows = {(row.kind, row.role): row for row in _EXPECTED.objects(kind=kind.value)}
    mounts: dict[str, tuple[str, ...]] = {}
    for path in _PATHS.objects() if kind is TargetKind.NODE else ():
        for role in path.roles:
            mounts[role] = (*mounts.get(role, ()), path.mount)
    return _Declared(rows, mounts, peers.usual(kind.value))


def _nodes(names: Sequence[str] | None) -> list[Target]:
    if names is None:
        nodes, gpus, nics = _ALL.objects(), _ALL_GPUS.rows(), _ALL_NICS.objects()
    else:
        nodes, gpus, nics = (
            _SOME.objects(names=names),
            _SOME_GPUS.rows(names=names),
            _SOME_NICS.objects(names=names),
        )
    by_node: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for owner, index, pci in gpus:
        by_node[owner].append((str(index), pci))
    nics_of: dict[int, list[Nic]] = defaultdict(list)
    for nic in nics:
        nics_of[nic.node_id].append(nic)
    declared, far = _declared(TargetKind.NODE), _Far.read()
    return [
        Target(
            name=node.name,
            address=node.address or node.name,
            port=node.ssh_port,
            user=settings.KINTSUGI["KINTSUGI_SSH_USER"],
            expected=declared.expected(
                TargetKind.NODE,
                node.name,
                node.address or node.name,
                role=node.role,
                gpus=tuple(by_node[node.pk]),
                nics=tuple(far.nic(node.name, nic) for nic in nics_of[node.pk]),
                addresses=tuple(
                    dict.fromkeys(
                        filter(None, (node.address, *(nic.address for nic in nics_of[node.pk])))
                    )
                ),
                bmc=node.bmc_address,
                serial=node.serial,
            ),
        )
        for node in nodes
    ]


@dataclass(frozen=True)
class _Far:
    """The far ends of cables, and what is known of the switches there."""

    cables: Topology
    switches: dict[str, tuple[str, int | None]]

    @classmethod
    def read(cls) -> _Far:
        return cls(
            graphs.current().topology, {name: (role, rail) for name, role, rail in _SWITCHES.rows()}
        )

    def nic(self, node: str, nic: Nic) -> ExpectedNic:
        """Role, rail and speed are the cable's where the row leaves them out."""
        own = resources.nic(node, nic.device)
        peer = self.cables.peer(own) or ""
        role, rail = (
            self.switches.get(peer.split("/")[1], ("", None))
            if peer.startswith("switch/")
            else ("", None)
        )
        return ExpectedNic(
            device=nic.device,
            netdev=nic.netdev,
            pci=nic.pci_address,
            role=nic.role or str(_ROLE_BY_SWITCH.get(role, "")),
            rail=rail if nic.rail is None else nic.rail,
            speed_gbps=nic.speed_gbps or self.cables.speed(own),
            mtu=nic.mtu,
            address=nic.address,
            peer=peer,
        )

    def port(self, port: Port) -> ExpectedPort:
        return ExpectedPort(
            name=port.name,
            speed_gbps=port.speed_gbps,
            mtu=port.mtu,
            fec=port.fec,
            is_autonegotiated=port.is_autonegotiated,
            peer=self.cables.peer(port.resource) or "",
            module=port.module.resource if port.module is not None else "",
            is_admin_up=port.is_admin_up,
        )


def _switches(names: Sequence[str] | None) -> list[Target]:
    switches = Switch.objects.inventoried().order_by("name")
    ports = Port.objects.order_by("switch", "id").select_related("switch", "module__switch")
    if names is not None:
        switches, ports = switches.filter(name__in=names), ports.filter(switch__name__in=names)
    ports_of: dict[int, list[Port]] = defaultdict(list)
    for port in ports:
        ports_of[port.switch_id].append(port)
    declared, far = _declared(TargetKind.SWITCH), _Far(graphs.current().topology, {})
    return [
        Target(
            name=switch.name,
            address=switch.address or switch.name,
            port=switch.ssh_port,
            kind=TargetKind.SWITCH,
            expected=declared.expected(
                TargetKind.SWITCH,
                switch.name,
                switch.address or switch.name,
                role=switch.role,
                ports=tuple(far.port(port) for port in ports_of[switch.pk]),
                addresses=tuple(filter(None, (switch.address,))),
            ),
            snmp_port=switch.snmp_port,
        )
        for switch in switches
    ]


def _sites(names: Sequence[str] | None) -> list[Target]:
    """What speaks for many machines is declared by its role alone, such as slurm or prometheus."""
    declared = _declared(TargetKind.SITE)
    wanted: Iterable[str] = sorted(role for _, role in declared.rows if role)
    return [
        Target(
            name=role,
            address=role,
            kind=TargetKind.SITE,
            expected=declared.expected(TargetKind.SITE, role, role, role=role),
        )
        for role in wanted
        if names is None or role in names
    ]
