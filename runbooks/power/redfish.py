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
from runbooks.power.protocol import PowerError, PowerRefusal, PowerState, controller_of

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

    def state(self, node: Target) -> PowerState:
        service = self._service(node)
        return _state(service, _system(service, node, self._access))

    def off(self, node: Target) -> None:
        self._bring(node, _OFF, already="Off")

    def on(self, node: Target) -> None:
        self._bring(node, _ON, already="On")

    def _service(self, node: Target) -> BmcHttp:
        deadline = time.monotonic() + LIMIT.total_seconds()
        return BmcHttp(node.name, controller_of(node), self._access, deadline=deadline)

    def _bring(self, node: Target, kinds: tuple[str, ...], *, already: str) -> None:
        service = self._service(node)
        system = _system(service, node, self._access)
        if system.get("PowerState") in (already, f"Powering{already}"):
            return
        action = _path(
            _mapping(_mapping(system.get("Actions")).get("#ComputerSystem.Reset")), "target"
        )
        if not action:
            raise PowerRefusal(
                f"{service.who} shows no action ComputerSystem.Reset: power is not switched by it."
            )
        kind = _chosen(service, system, kinds)
        answer = service.post(action, {"ResetType": kind})
        if not answer.is_well:
            _complain(service, f"ComputerSystem.Reset {kind}", answer)


def _system(service: BmcHttp, node: Target, access: BmcAccess) -> Mapping[str, Any]:
    """The one that is the node. Raises PowerRefusal where that cannot be told, or where it is
    another machine."""
    wanted = access.system.replace("{name}", node.name)
    serial = node.expected.serial
    systems = list(_systems(service))
    found = [system for system in systems if not wanted or wanted in _names(system)]
    if len(found) > 1 and serial:
        found = [system for system in found if serial in _serials(system)] or found
    if len(found) != 1:
        _cannot_tell(service, wanted or serial, systems, found)
    shown = _serials(found[0])
    if serial and shown and serial not in shown:
        raise PowerRefusal(
            f"{service.who} is another machine's: it shows the serial {' or '.join(shown)}, and the"
            f" inventory says {serial} of {node.name}. Correct the address of the controller or the"
            " serial."
        )
    return found[0]


def _systems(service: BmcHttp) -> Iterator[Mapping[str, Any]]:
    root = service.get(_ROOT)
    page = _path(_mapping(root.document.get("Systems")))
    if root.status == 404 or (root.is_well and not page):
        raise PowerRefusal(
            f"{service.who} shows no systems by Redfish ({root.words}): give its group another"
            " kind."
        )
    if not root.is_well:
        _complain(service, f"GET {_ROOT}", root)
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
            path = _path(_mapping(member))
            if path:
                yield _read(service, path)
        page = _path(listed, "Members@odata.nextLink")
        if not page:
            return


def _read(service: BmcHttp, path: str) -> Mapping[str, Any]:
    answer = service.get(path)
    if not answer.is_well or not answer.document:
        _complain(service, f"GET {path}", answer)
    return answer.document


def _state(service: BmcHttp, system: Mapping[str, Any]) -> PowerState:
    shown = system.get("PowerState")
    state = _STATES.get(shown) if isinstance(shown, str) else None
    if state is None:
        raise PowerError(
            f"{service.who} does not say whether power is on: its PowerState is {shown!r}."
        )
    return state


def _chosen(service: BmcHttp, system: Mapping[str, Any], kinds: tuple[str, ...]) -> str:
    """The first of the kinds that the board has; the usual one where it does not say what it
    has."""
    allowed = _allowed(
        service, _mapping(_mapping(system.get("Actions")).get("#ComputerSystem.Reset"))
    )
    found = next((kind for kind in kinds if not allowed or kind in allowed), None)
    if found is None:
        raise PowerRefusal(
            f"{service.who} has no reset of kind {' or '.join(kinds)}; it has {', '.join(allowed)}."
            " Its power has to be switched by hand."
        )
    return found


def _allowed(service: BmcHttp, action: Mapping[str, Any]) -> tuple[str, ...]:
    """Beside the action, or in the ActionInfo that it names."""
    values = action.get("ResetType@Redfish.AllowableValues")
    more = action.get("@Redfish.ActionInfo")
    if not isinstance(values, list) and isinstance(more, str) and _path({"": more}, ""):
        rows = service.get(more).document.get("Parameters")
        named = (_mapping(row) for row in (rows if isinstance(rows, list) else ()))
        values = next(
            (row.get("AllowableValues") for row in named if row.get("Name") == "ResetType"), None
        )
    return tuple(str(value) for value in values) if isinstance(values, list) else ()


def _complain(service: BmcHttp, what: str, answer: HttpResponse) -> NoReturn:
    if answer.status in _UNSUPPORTED:
        raise PowerRefusal(f"{service.who} does not take {what}: {answer.words}.")
    if 300 <= answer.status < 400:
        raise PowerRefusal(
            f"{service.who} answers {what} with a redirect, which is not followed: give its own"
            " address."
        )
    raise PowerError(f"{service.who} answers {what} with {answer.words}.")


def _cannot_tell(
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


def _names(system: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(system[key]) for key in ("Id", "UUID", "Name") if system.get(key))


def _serials(system: Mapping[str, Any]) -> tuple[str, ...]:
    """Dell shows the board's serial there, and the service tag, which the chassis bears, as its
    SKU."""
    return tuple(
        str(system[key]).strip()
        for key in ("SerialNumber", "SKU")
        if str(system.get(key) or "").strip()
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _path(link: Mapping[str, Any], key: str = "@odata.id") -> str:
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
