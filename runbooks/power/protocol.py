"""The only door to power: the Protocol that steps act through, and the site that has none.

A request is answered before it has taken effect, by 1 to 11 s with sushy-emulator and by more on
real boards: whoever asks looks at `state` until it is so.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn, Protocol

from detectors.detector import Target
from runbooks.errors import WorldError, WorldRefusal

__all__ = [
    "NoController",
    "NoPower",
    "Power",
    "PowerError",
    "PowerRefusal",
    "PowerState",
    "get_controller",
]


class PowerError(WorldError):
    """The management controller did not do, or did not answer, what was asked."""


class PowerRefusal(PowerError, WorldRefusal):
    """It cannot be had by asking again: no address, wrong credentials, a kind of reset that the
    board has not."""


class NoController(PowerRefusal):
    """The site has given Kintsugi no way to this node's controller: nothing is wrong with it."""


class PowerState(StrEnum):
    """The main power, as the management controller shows it. `CHANGING`: on its way on or off."""

    ON = "on"
    OFF = "off"
    CHANGING = "changing"


class Power(Protocol):
    """Main power of nodes by their management controllers. Each method raises PowerError and
    returns within 30 s."""

    def read_state(self, node: Target) -> PowerState: ...

    def turn_off(self, node: Target) -> None:
        """Off at once, without asking the operating system. Off already: nothing."""
        ...

    def turn_on(self, node: Target) -> None:
        """On. On already: nothing."""
        ...


class NoPower:
    """A site that has given Kintsugi no management controllers."""

    def read_state(self, node: Target) -> PowerState:
        self._refuse(node)

    def turn_off(self, node: Target) -> None:
        self._refuse(node)

    def turn_on(self, node: Target) -> None:
        self._refuse(node)

    def _refuse(self, node: Target) -> NoReturn:
        raise NoController(
            f"Kintsugi has no way to {node.name}'s management controller: give its group a"
            " [group.bmc] table in KINTSUGI_CREDENTIALS"
        )


def get_controller(node: Target) -> str:
    """Where the inventory says that the controller answers. Raises NoController where it does not
    say."""
    address = node.expected.bmc or node.expected.urls.get("redfish", "")
    if not address:
        raise NoController(
            f"the inventory does not say where {node.name}'s management controller answers: give"
            " its row the key `bmc`"
        )
    return address
