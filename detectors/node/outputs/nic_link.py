"""Whether the link of a port works, and if it does not, whether it ever should have: uncabled,
switched off, or failed.

Pure; the severities are the catalogue's. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from detectors.evaluation.cable_ends import LinkState
from detectors.node.outputs.nic_outputs import Settings
from detectors.node.outputs.nic_ports import RESERVED, NicPort

# What the driver itself says of a link that is down, where that cannot be a port without a cable.
# https://docs.kernel.org/networking/ethtool-netlink.html, ETHTOOL_LINK_EXT_STATE
_TROUBLES = (
    "Bad signal integrity",
    "Cable issue",
    "EEPROM issue",
    "Power budget exceeded",
    "Overheat",
    "Module",
)


@dataclass(frozen=True)
class Link:
    """One port's link, with the sentence that explains it."""

    state: LinkState
    text: str


def link(
    port: NicPort,
    settings: Optional[Settings],
    peers: Sequence[NicPort],
    *,
    was_up: Optional[bool] = None,
) -> Link:
    """`peers` are the other ports of its role. `was_up`: it has been up before, None where the
    kernel's counts decide.

    A port that was up has failed, whatever its peers do. One that never was is judged by them:
    while one of its role is up it has failed; with all of them down, or without a role, nobody has
    cabled it.
    """
    is_up = is_link_up(port, settings)
    if is_up is None:
        return Link(LinkState.UNKNOWN, "nothing tells whether its link is up")
    if is_up:
        return Link(LinkState.UP, "link is up")
    if port.role == RESERVED:
        return Link(LinkState.RESERVED, "link is down, as may be on a reserved port")
    reason = f" ({settings.reason})" if settings is not None and settings.reason else ""
    if _is_switched_off(port):
        if not port.role or not _is_any_up(peers):
            return Link(LinkState.DISABLED, f"link is switched off on the node{reason}")
        return Link(
            LinkState.FAILED,
            f"link is switched off on the node{reason}, while other {port.role} ports are up",
        )
    if was_up or (was_up is None and _was_up(port)):
        return Link(LinkState.FAILED, f"link is down{reason}; it was up before")
    if settings is not None and settings.reason.startswith(_TROUBLES):
        return Link(LinkState.FAILED, f"link is down: {settings.reason}")
    if port.role and _is_any_up(peers):
        return Link(LinkState.FAILED, f"link is down{reason}, while other {port.role} ports are up")
    return Link(
        LinkState.UNCABLED,
        f"link is down{reason} and never was up: without a cable, as far as we know",
    )


def is_link_up(port: NicPort, settings: Optional[Settings] = None) -> Optional[bool]:
    """RDMA's own word for InfiniBand; for Ethernet the interface's, whose RDMA device may lag
    behind it."""
    rdma = port.rdma.is_active if port.rdma is not None else None
    if port.is_infiniband and rdma is not None:
        return rdma
    if port.interface is not None:
        return port.interface.is_up
    carrier = port.files.get("carrier", "")
    if carrier in ("0", "1"):
        return carrier == "1"
    if settings is not None and settings.has_link is not None:
        return settings.has_link
    if rdma is not None:
        return rdma
    return None if "operstate" not in port.files else port.files["operstate"] == "up"


def _was_up(port: NicPort) -> bool:
    """The kernel counts how often the carrier came since the interface was made."""
    count = port.files.get("carrier_up_count", "")
    return count.isdecimal() and int(count[:12]) > 0


def _is_switched_off(port: NicPort) -> bool:
    if port.interface is not None:
        return not port.interface.is_admin_up
    return port.is_infiniband and port.rdma is not None and port.rdma.physical == "DISABLED"


def _is_any_up(peers: Sequence[NicPort]) -> bool:
    return any(is_link_up(peer) for peer in peers)
