"""What a node prints of its interfaces, neighbours and drivers: `ip`, `ethtool -i`, `lldpctl`.
Pure.

Python 3.9, standard library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

_LINK = re.compile(
    r"^\d+: (?P<name>[^\s:@]{1,32})(?:@[^\s:]{1,32})?: <[^>]{0,200}>(?: mtu (?P<mtu>\d{1,6}))?",
    re.MULTILINE,
)
_ADDRESS = re.compile(
    r"^\s+inet6? (?P<address>[0-9a-fA-F.:]{2,45})(?:/\d{1,3})?(?P<flags>[^\n]{0,200})", re.MULTILINE
)
# A neighbour that did not answer has no hardware address, or a remembered one.
_GONE = frozenset({"FAILED", "INCOMPLETE", "NONE"})
_BOARD = re.compile(r"\((?P<board>[\w.-]{3,24})\)\s*$")


@dataclass(frozen=True)
class ConfiguredInterface:
    """`refused`: addresses that the kernel's own duplicate detection turned down."""

    name: str
    mtu: Optional[int]
    addresses: tuple[str, ...]
    refused: tuple[str, ...] = ()


class LldpNeighbour(NamedTuple):
    address: str
    netdev: str
    mac: str


@dataclass(frozen=True)
class Driver:
    """Of one interface; `board` is the PSID that mlx5 prints behind its firmware version."""

    name: str
    version: str
    firmware: str
    board: str = ""


@dataclass(frozen=True)
class FarEnd:
    """Who announces itself over LLDP on one interface."""

    name: str
    port: str = ""
    description: str = ""


def _parse_json(stdout: bytes) -> Any:
    """The first array or object in an output, whatever a shell printed before it; None where there
    is none."""
    text = stdout.decode("utf-8", "replace")
    starts = [at for at in (text.find("["), text.find("{")) if at >= 0]
    try:
        return json.JSONDecoder().raw_decode(text, min(starts))[0] if starts else None
    except (ValueError, RecursionError):
        return None


def parse_interfaces(stdout: bytes) -> dict[str, ConfiguredInterface]:
    """`ip -j addr`, or the text of `ip addr` and `ip link`."""
    rows = _parse_json(stdout)
    if not isinstance(rows, list) or not any(isinstance(row, dict) for row in rows):
        return _parse_text(stdout.decode("utf-8", "replace"))
    found = {}
    for row in rows:
        name = row.get("ifname") if isinstance(row, dict) else None
        if not isinstance(name, str):
            continue
        held = [item for item in _list(row.get("addr_info")) if isinstance(item, dict)]
        texts = [
            (str(item["local"]), bool(item.get("dadfailed"))) for item in held if item.get("local")
        ]
        mtu = row.get("mtu")
        found[name] = _make_interface(name, mtu if isinstance(mtu, int) else None, texts)
    return found


def _make_interface(
    name: str, mtu: Optional[int], texts: list[tuple[str, bool]]
) -> ConfiguredInterface:
    """`texts`: each address, and whether it was refused as a duplicate."""
    usable = tuple(address for address, is_refused in texts if not is_refused)
    refused = tuple(address for address, is_refused in texts if is_refused)
    return ConfiguredInterface(name, mtu, usable, refused)


def _parse_text(text: str) -> dict[str, ConfiguredInterface]:
    links = list(_LINK.finditer(text))
    found = {}
    for number, link in enumerate(links):
        end = links[number + 1].start() if number + 1 < len(links) else len(text)
        texts = [
            (address["address"], "dadfailed" in address["flags"])
            for address in _ADDRESS.finditer(text, link.end(), end)
        ]
        mtu = int(link["mtu"]) if link["mtu"] else None
        found[link["name"]] = _make_interface(link["name"], mtu, texts)
    return found


def parse_neighbours(stdout: bytes) -> list[LldpNeighbour]:
    """`ip -j neigh`: those that have answered."""
    found = []
    for row in _list(_parse_json(stdout)):
        if not isinstance(row, dict) or set(map(str, _list(row.get("state")))) & _GONE:
            continue
        address, mac = row.get("dst"), row.get("lladdr")
        if isinstance(address, str) and isinstance(mac, str):
            found.append(LldpNeighbour(address, str(row.get("dev", "")), mac.lower()))
    return found


def parse_driver(stdout: bytes) -> Optional[Driver]:
    """`ethtool -i`; None for anything else."""
    lines = (line.partition(": ") for line in stdout.decode("utf-8", "replace").splitlines())
    values = {name.strip(): value.strip() for name, colon, value in lines if colon}
    name, version = values.get("driver", ""), values.get("version", "")
    if not name:
        return None
    firmware = values.get("firmware-version", "")
    board = _BOARD.search(firmware)
    if board is not None:
        return Driver(name, version, firmware[: board.start()].strip(), board["board"])
    return Driver(name, version, "" if firmware == "N/A" else firmware, "")


_ACTIVE_FEC = re.compile(rb"^Active FEC encodings?:[ \t]*(\w{1,20})", re.MULTILINE)
_AUTONEG = re.compile(rb"^[ \t]*Auto-negotiation:[ \t]*(on|off)", re.MULTILINE)
_IS_UP = re.compile(rb"^[ \t]*Link detected:[ \t]*yes", re.MULTILINE)


def parse_active_fec(stdout: bytes) -> str:
    """`ethtool --show-fec`: what the link runs with, in lower case; empty where it does not say."""
    found = _ACTIVE_FEC.search(stdout)
    return found[1].decode().lower() if found is not None else ""


def parse_autonegotiation(stdout: bytes) -> str:
    """`ethtool`: on or off, of a link that is up; a link that is down says nothing of its
    setting."""
    found = _AUTONEG.search(stdout)
    return found[1].decode() if found is not None and _IS_UP.search(stdout) else ""


def parse_far_ends(stdout: bytes) -> dict[str, FarEnd]:
    """`lldpctl -f json`: by interface. A single interface is an object, several are a list of
    objects."""
    whole = _parse_json(stdout)
    held = (
        whole.get("lldp", {}).get("interface")
        if isinstance(whole, dict) and _is_table(whole.get("lldp"))
        else None
    )
    found: dict[str, FarEnd] = {}
    for part in _list(held) or [held]:
        if not isinstance(part, dict):
            continue
        for netdev, row in part.items():
            end = _parse_far_end(row) if isinstance(row, dict) else None
            if end is not None:
                found[str(netdev)] = end
    return found


def _parse_far_end(row: Mapping[str, Any]) -> Optional[FarEnd]:
    """`chassis` holds the system's name as its key; without one it is the chassis itself, told by
    an id alone."""
    chassis, port = row.get("chassis"), row.get("port")
    if not isinstance(chassis, dict) or "id" in chassis:
        return None
    name = next((str(key) for key in chassis), "")
    values = port if isinstance(port, dict) else {}
    id_ = values.get("id")
    is_named = isinstance(id_, dict) and id_.get("type") in ("ifname", "local", "ifalias")
    text = str(id_.get("value", "")) if is_named and isinstance(id_, dict) else ""
    return FarEnd(name, text, str(values.get("descr", "")))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)
