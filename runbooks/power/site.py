"""Power of a whole site: each node by its own group's controllers, Redfish or IPMI."""

from __future__ import annotations

from collections.abc import Callable

from detectors.detector import Target
from runbooks.power.access import BmcAccess, BmcKind
from runbooks.power.ipmi import IpmiPower
from runbooks.power.protocol import NoPower, Power, PowerState
from runbooks.power.redfish import RedfishPower

_SPEAKERS: dict[BmcKind, Callable[[BmcAccess], Power]] = {
    BmcKind.REDFISH: RedfishPower,
    BmcKind.IPMI: IpmiPower,
}


class SitePower:
    """runbooks.power.protocol.Power. `entry` tells how a node's controller is entered; None for one
    that no group names."""

    def __init__(self, entry: Callable[[Target], BmcAccess | None]) -> None:
        self._entry = entry

    def read_state(self, node: Target) -> PowerState:
        return self._get_power(node).read_state(node)

    def turn_off(self, node: Target) -> None:
        self._get_power(node).turn_off(node)

    def turn_on(self, node: Target) -> None:
        self._get_power(node).turn_on(node)

    def _get_power(self, node: Target) -> Power:
        access = self._entry(node)
        return _SPEAKERS[access.kind](access) if access is not None else NoPower()
