"""Power by Redfish (DSP0266): the one system that is the node, its PowerState, and the kinds of
reset that it has.

Reads the service anew each time: a controller may be exchanged, or be another machine's after work
in the rack.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from detectors.detector import Target
from runbooks.power.access import LIMIT, BmcAccess
from runbooks.power.http import BmcHttp, HttpResponse
from runbooks.power.protocol import PowerError, PowerRefusal, PowerState, get_controller

_ROOT = "/redfish/v1/"
# A chassis of blades has some dozen systems behind one service; a list that is longer is no list of
# one node's.
_MOST_SYSTEMS = 64
_MOST_PAGES = 8
_STATES = {
    "On": PowerState.ON,
    "Off": PowerState.OFF,
    "PoweringOn": PowerState.CHANGING,
    "PoweringOff": PowerState.CHANGING,
}
# ResetType of ComputerSystem. PowerCycle is none of them: its pause is the board's, and many have
# it not (501).
_OFF = ("ForceOff",)
_ON = ("On", "ForceOn")
# The answer of a service that has not this reset, or takes no such parameter: asking again changes
# nothing.
_UNSUPPORTED = frozenset({400, 404, 405, 410, 422, 501})


class RedfishPower:
    """runbooks.power.protocol.Power by one group's access."""

    def __init__(self, access: BmcAccess) -> None:
        self._access = access

    def read_state(self, node: Target) -> PowerState:
        service = self._build_service(node)
        return _parse_state(service, _find_system(service, node, self._access))

    def turn_off(self, node: Target) -> None:
        self._switch(node, _OFF, already="Off")

    def turn_on(self, node: Target) -> None:
        self._switch(node, _ON, already="On")

    def _build_service(self, node: Target) -> BmcHttp:
        deadline = time.monotonic() + LIMIT.total_seconds()
        return BmcHttp(node.name, get_controller(node), self._access, deadline=deadline)

    def _switch(self, node: Target, kinds: tuple[str, ...], *, already: str) -> None:
        service = self._build_service(node)
        system = _find_system(service, node, self._access)
        if system.get("PowerState") in (already, f"Powering{already}"):
            return
        action = _get_path(_get_reset(system), "target")
        if not action:
            raise PowerRefusal(
                f"{service.who} shows no action ComputerSystem.Reset: power is not switched by it."
            )
        kind = _choose_reset(service, system, kinds)
        answer = service.post(action, {"ResetType": kind})
        if not answer.is_well:
            _raise_error(service, f"ComputerSystem.Reset {kind}", answer)


def _find_system(service: BmcHttp, node: Target, access: BmcAccess) -> Mapping[str, Any]:
    """The one that is the node. Raises PowerRefusal where that cannot be told, or where it is
    another machine."""
    wanted = access.system.replace("{name}", node.name)
    serial = node.expected.serial
    systems = list(_read_systems(service))
    found = [system for system in systems if not wanted or wanted in _get_names(system)]
    if len(found) > 1 and serial:
        found = [system for system in found if serial in _get_serials(system)] or found
    if len(found) != 1:
        _raise_ambiguous(service, wanted or serial, systems, found)
    shown = _get_serials(found[0])
    if serial and shown and serial not in shown:
        raise PowerRefusal(
            f"{service.who} is another machine's: it shows the serial {' or '.join(shown)}, and the"
            f" inventory says {serial} of {node.name}. Correct the address of the controller or the"
            " serial."
        )
    return found[0]


def _read_systems(service: BmcHttp) -> Iterator[Mapping[str, Any]]:
    root = service.get(_ROOT)
    page = _get_path(_to_mapping(root.document.get("Systems")))
    if root.status == 404 or (root.is_well and not page):
        raise PowerRefusal(
            f"{service.who} shows no systems by Redfish ({root.words}): give its group another"
            " kind."
        )
    if not root.is_well:
        _raise_error(service, f"GET {_ROOT}", root)
    count = 0
    for _ in range(_MOST_PAGES):
        listed = _read(service, page)
        members = listed.get("Members")
        for member in members if isinstance(members, list) else ():
            count += 1
            if count > _MOST_SYSTEMS:
                raise PowerRefusal(
                    f"{service.who} lists more than {_MOST_SYSTEMS} systems: that is no node's own."
                )
            path = _get_path(_to_mapping(member))
            if path:
                yield _read(service, path)
        page = _get_path(listed, "Members@odata.nextLink")
        if not page:
            return


def _read(service: BmcHttp, path: str) -> Mapping[str, Any]:
    answer = service.get(path)
    if not answer.is_well or not answer.document:
        _raise_error(service, f"GET {path}", answer)
    return answer.document


def _parse_state(service: BmcHttp, system: Mapping[str, Any]) -> PowerState:
    shown = system.get("PowerState")
    state = _STATES.get(shown) if isinstance(shown, str) else None
    if state is None:
        raise PowerError(
            f"{service.who} does not say whether power is on: its PowerState is {shown!r}."
        )
    return state


def _choose_reset(service: BmcHttp, system: Mapping[str, Any], kinds: tuple[str, ...]) -> str:
    """The first of the kinds that the board has; the usual one where it does not say what it
    has."""
    allowed = _list_allowed(service, _get_reset(system))
    found = next((kind for kind in kinds if not allowed or kind in allowed), None)
    if found is None:
        wanted, has = " or ".join(kinds), ", ".join(allowed)
        raise PowerRefusal(
            f"{service.who} has no reset of kind {wanted}; it has {has}. Its power has to be"
            " switched by hand."
        )
    return found


def _get_reset(system: Mapping[str, Any]) -> Mapping[str, Any]:
    """The action that switches the power, as the board shows it."""
    actions = _to_mapping(system.get("Actions"))
    return _to_mapping(actions.get("#ComputerSystem.Reset"))


def _list_allowed(service: BmcHttp, action: Mapping[str, Any]) -> tuple[str, ...]:
    """Beside the action, or in the ActionInfo that it names."""
    values = action.get("ResetType@Redfish.AllowableValues")
    more = action.get("@Redfish.ActionInfo")
    if not isinstance(values, list) and isinstance(more, str) and _get_path({"": more}, ""):
        rows = service.get(more).document.get("Parameters")
        named = (_to_mapping(row) for row in (rows if isinstance(rows, list) else ()))
        values = next(
            (row.get("AllowableValues") for row in named if row.get("Name") == "ResetType"), None
        )
    return tuple(str(value) for value in values) if isinstance(values, list) else ()


def _raise_error(service: BmcHttp, what: str, answer: HttpResponse) -> NoReturn:
    if answer.status in _UNSUPPORTED:
        raise PowerRefusal(f"{service.who} does not take {what}: {answer.words}.")
    if 300 <= answer.status < 400:
        raise PowerRefusal(
            f"{service.who} answers {what} with a redirect, which is not followed: give its own"
            " address."
        )
    raise PowerError(f"{service.who} answers {what} with {answer.words}.")


def _raise_ambiguous(
    service: BmcHttp, wanted: str, systems: list[Mapping[str, Any]], found: list[Mapping[str, Any]]
) -> NoReturn:
    names = ", ".join(str(system.get("Id", "?")) for system in systems) or "none"
    why = "which of them is the node is not told"
    if wanted:
        why = f"{len(found)} of them fit {wanted}"
    raise PowerRefusal(
        f"{service.who} shows {len(systems)} systems ({names[:200]}), and {why}: give `system` in"
        " [group.bmc], or the node's serial in the inventory."
    )


def _get_names(system: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(system[key]) for key in ("Id", "UUID", "Name") if system.get(key))


def _get_serials(system: Mapping[str, Any]) -> tuple[str, ...]:
    """Dell shows the board's serial there, and the service tag, which the chassis bears, as its
    SKU."""
    values = (str(system.get(key) or "").strip() for key in ("SerialNumber", "SKU"))
    return tuple(value for value in values if value)


def _to_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _get_path(link: Mapping[str, Any], key: str = "@odata.id") -> str:
    """A path on the same service, else nothing: the password goes nowhere else."""
    path = link.get(key)
    is_own = isinstance(path, str) and path.startswith("/") and not path.startswith("//")
    return (
        path
        if is_own
        and isinstance(path, str)
        and path.isascii()
        and path.isprintable()
        and " " not in path
        else ""
    )
