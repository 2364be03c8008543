"""What the inventory says should be found on one machine, as values that travel to detectors and to
nodes.

Empty means "not known", never "nothing should be there". Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Optional


@dataclass(frozen=True)
class ExpectedNic:
    """One NIC. `role` is fabric, storage, management or reserved; `peer` the resource path of its
    cable's far end."""

    device: str
    netdev: str = ""
    pci: str = ""
    role: str = ""
    rail: Optional[int] = None
    speed_gbps: Optional[int] = None
    mtu: Optional[int] = None
    address: str = ""
    peer: str = ""


@dataclass(frozen=True)
class ExpectedPort:
    """One switch port. `peer` is the resource path of its cable's far end, `module` the transceiver
    that holds it."""

    name: str
    speed_gbps: Optional[int] = None
    mtu: Optional[int] = None
    fec: str = ""
    is_autonegotiated: Optional[bool] = None
    peer: str = ""
    module: str = ""
    is_admin_up: Optional[bool] = None


@dataclass(frozen=True)
class Expected:
    """All that is known of one machine beforehand.

    `gpus` holds (index, PCI address). `settings` are declared values by name, such as
    {"ecn_min_bytes": "2000000"}; `urls` where the machine answers HTTP, such as {"dcgm":
    "http://gn001:9400/metrics"}; `peers` what same-role machines mostly show, such as
    {"driver_version": "550.90.07"}; `role` leaf, spine, storage, compute and so on. `bmc` is where
    its management controller answers, `serial` the machine's own.
    """

    role: str = ""
    gpus: tuple[tuple[str, str], ...] = ()
    nics: tuple[ExpectedNic, ...] = ()
    ports: tuple[ExpectedPort, ...] = ()
    addresses: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    urls: Mapping[str, str] = field(default_factory=dict)
    peers: Mapping[str, str] = field(default_factory=dict)
    bmc: str = ""
    serial: str = ""

    def nic(self, name: str) -> Optional[ExpectedNic]:
        """By RDMA device, interface or PCI address."""
        wanted = (nic for nic in self.nics if name and name in (nic.device, nic.netdev, nic.pci))
        return next(wanted, None)

    def port(self, name: str) -> Optional[ExpectedPort]:
        return next((port for port in self.ports if port.name == name), None)


def to_json(expected: Expected) -> dict[str, Any]:
    """JSON-ready, what is not known left out."""
    return {name: value for name, value in asdict(expected).items() if value}


def from_json(values: Mapping[str, Any]) -> Expected:
    """Inverse of `to_json`. Raises ValueError naming unknown keys; TypeError for rows that are no
    tables."""
    unknown = sorted(set(values) - {item.name for item in fields(Expected)})
    if unknown:
        raise ValueError(f"unknown keys {', '.join(unknown)} in what is expected of a machine")
    taken = dict(values)
    taken["gpus"] = tuple((str(index), str(pci)) for index, pci in values.get("gpus", ()))
    taken["nics"] = tuple(ExpectedNic(**row) for row in values.get("nics", ()))
    taken["ports"] = tuple(ExpectedPort(**row) for row in values.get("ports", ()))
    for name in ("addresses", "mounts", "services"):
        taken[name] = tuple(str(value) for value in values.get(name, ()))
    return Expected(**taken)
