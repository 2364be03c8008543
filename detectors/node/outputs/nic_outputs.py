"""What the programs and files that speak of network cards print, taken apart. Meaning is the
detectors'. Pure.

Total on any text, linear in its length. Python 3.9, standard library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

# Interfaces and devices become names of outputs and parts of resource paths: what else a name may
# hold is not taken.
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,30}")
_NET_FILE = re.compile(r"/sys/class/net/(?P<netdev>[^/]+)/(?P<file>\w+|device/uevent)")
_RDMA_FILE = re.compile(
    r"/sys/class/infiniband/(?P<device>[^/]+)"
    r"/(?:ports/(?P<port>\d+)/(?P<path>[\w/]+)|(?P<file>device/\w+|\w+))"
)
_RDMA_LINE = re.compile(
    r"link (?P<device>[\w.-]+)/(?P<port>\d+) .{0,200}?state (?P<state>\w+)"
    r"(?: physical_state (?P<physical>\w+))?(?: netdev (?P<netdev>[\w.-]+))?"
)
_SPEED = re.compile(r"(\d{1,9})\s*Mb/s")
_RATE = re.compile(r"(\d{1,6}(?:\.\d+)?)(?:\s*Gb/sec)?")
_MODE = re.compile(r"(\d{2,7})base\w*", re.ASCII)
_COUNTER = re.compile(r"\s*(?P<name>[A-Za-z][\w.\[\]-]{0,79}): (?P<value>\d{1,20})\s*")
_SETTING = re.compile(r"\s{0,20}(?P<name>[A-Z][\w .,/()-]{0,60}?)\s*: ?(?P<value>.{0,2000})")
_CA = re.compile(r"CA '(?P<device>[\w.-]+)'")
_STATUS_HEAD = re.compile(r"Infiniband device '(?P<device>[\w.-]+)' port (?P<port>\d+) status:")
_FIELD = re.compile(r"\s*(?P<name>[\w ]{1,40}?):\s{0,40}(?P<value>[^\r\n]{0,200})")


@dataclass(frozen=True)
class Interface:
    """One row of `ip -j link`."""

    name: str
    is_admin_up: bool
    is_up: bool
    mtu: int
    mac: str
    kind: str


@dataclass
class Rdma:
    """One port of an RDMA device, of whichever source named it. `counters` holds hw_counters and
    counters by name."""

    device: str
    port: int = 1
    state: str = ""
    physical: str = ""
    layer: str = ""
    rate_gbps: Optional[float] = None
    netdev: str = ""
    pci: str = ""
    firmware: str = ""
    guid: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def is_active(self) -> Optional[bool]:
        """None where nothing was said of its state. A link without a subnet manager is not active
        either."""
        if not self.state:
            return None
        return self.state == "ACTIVE" and self.physical in ("", "LINKUP")


def parse_interfaces(text: bytes) -> Optional[dict[str, Interface]]:
    """`ip -j link`, statistics or not. None when it is no such JSON."""
    rows = _parse_json(text)
    if not isinstance(rows, list):
        return None
    found = (_parse_interface(row) for row in rows if isinstance(row, dict))
    return {each.name: each for each in found if each is not None}


def _parse_interface(row: Mapping[str, Any]) -> Optional[Interface]:
    name, flags, mtu = row.get("ifname"), row.get("flags"), row.get("mtu")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return None
    words = flags if isinstance(flags, list) else []
    state = str(row.get("operstate", ""))
    is_up = state == "UP" or (state in ("UNKNOWN", "") and "LOWER_UP" in words)
    mac, kind = str(row.get("address", ""))[:60], str(row.get("link_type", ""))[:20]
    return Interface(
        name,
        is_admin_up="UP" in words,
        is_up=is_up,
        mtu=mtu if isinstance(mtu, int) else 0,
        mac=mac,
        kind=kind,
    )


def parse_rdma_links(text: bytes) -> Optional[list[Rdma]]:
    """`rdma -j link`, or its text form. None when it is neither."""
    rows = _parse_json(text)
    if isinstance(rows, list):
        found = [_parse_rdma_row(row) for row in rows if isinstance(row, dict)]
        return [each for each in found if each is not None]
    matches = (_RDMA_LINE.match(line) for line in text.decode("utf-8", "replace").splitlines())
    return [_parse_rdma_line(match) for match in matches if match is not None] or None


def _parse_rdma_line(match: re.Match[str]) -> Rdma:
    state, physical = _parse_word(match["state"]), _parse_word(match["physical"] or "")
    port, netdev = int(match["port"]), match["netdev"] or ""
    return Rdma(match["device"], port, state, physical, netdev=netdev)


def _parse_rdma_row(row: Mapping[str, Any]) -> Optional[Rdma]:
    """Older versions print {"ifname": "mlx5_0/1"}, newer ones the port apart."""
    device, _, number = str(row.get("ifname", "")).partition("/")
    if not NAME.fullmatch(device):
        return None
    port_text = str(row.get("port", number))
    port = int(port_text) if port_text.isdecimal() and len(port_text) < 4 else 1
    netdev = str(row.get("netdev", ""))
    state, physical = str(row.get("state", "")), str(row.get("physical_state", ""))
    known_netdev = netdev if NAME.fullmatch(netdev) else ""
    return Rdma(device, port, _parse_word(state), _parse_word(physical), netdev=known_netdev)


def parse_net_files(contents: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Interface to file name to text, of /sys/class/net. `pci` is added from the device's
    uevent."""
    found: dict[str, dict[str, str]] = {}
    for path, text in contents.items():
        parts = _NET_FILE.fullmatch(path)
        if parts is None or not NAME.fullmatch(parts["netdev"]):
            continue
        files = found.setdefault(parts["netdev"], {})
        files[parts["file"]] = text
        if parts["file"] == "device/uevent":
            files["pci"] = _parse_uevent(text, "PCI_SLOT_NAME")
    return found


def parse_rdma_files(contents: Mapping[str, str]) -> list[Rdma]:
    """Ports of /sys/class/infiniband with their counters."""
    ports: dict[tuple[str, int], Rdma] = {}
    devices: dict[str, dict[str, str]] = {}
    for path, text in contents.items():
        parts = _RDMA_FILE.fullmatch(path)
        if parts is None or not NAME.fullmatch(parts["device"]):
            continue
        if parts["port"] is None:
            devices.setdefault(parts["device"], {})[parts["file"]] = text
        elif len(parts["port"]) < 4:
            number = int(parts["port"])
            _set_field(
                ports.setdefault((parts["device"], number), Rdma(parts["device"], number)),
                parts["path"],
                text,
            )
    for port in ports.values():
        files = devices.get(port.device, {})
        port.files = files
        port.pci = _parse_uevent(files.get("device/uevent", ""), "PCI_SLOT_NAME")
        port.firmware, port.guid = files.get("fw_ver", "")[:40], files.get("node_guid", "")[:40]
    return list(ports.values())


def _set_field(port: Rdma, path: str, text: str) -> None:
    folder, _, name = path.partition("/")
    if folder in ("counters", "hw_counters"):
        if text.isdecimal() and len(text) <= 20:
            port.counters[name] = int(text)
    elif path == "state":
        port.state = _parse_word(text.partition(":")[2])
    elif path == "phys_state":
        port.physical = _parse_word(text.partition(":")[2])
    elif path == "link_layer":
        port.layer = text.strip()
    elif path == "rate":
        port.rate_gbps = _parse_number(_RATE.match(text.strip()))
    elif path == "gid_attrs/ndevs/0" and NAME.fullmatch(text.strip()):
        port.netdev = text.strip()


def parse_ibstat(text: bytes) -> list[Rdma]:
    """`ibstat` and `ibstatus`."""
    found: list[Rdma] = []
    device, firmware = "", ""
    for line in text.decode("utf-8", "replace").splitlines():
        head = _CA.match(line)
        status = _STATUS_HEAD.match(line)
        if head is not None:
            device, firmware = head["device"], ""
            continue
        if status is not None:
            found.append(Rdma(status["device"], int(status["port"][:3])))
            continue
        match = _FIELD.match(line)
        if match is None:
            continue
        name, value = match["name"].strip().lower(), match["value"].strip()
        if name == "firmware version":
            firmware = value[:40]
        elif name.startswith("port ") and name[5:].isdecimal() and not value and device:
            found.append(Rdma(device, int(name[5:][:3]), firmware=firmware))
        elif found:
            _set_status(found[-1], name, value)
    return found


def _set_status(port: Rdma, name: str, value: str) -> None:
    if name == "state":
        port.state = _parse_word(value.rpartition(":")[2])
    elif name in ("physical state", "phys state"):
        port.physical = _parse_word(value.rpartition(":")[2])
    elif name == "rate":
        port.rate_gbps = _parse_number(_RATE.match(value))
    elif name in ("link layer", "link_layer"):
        port.layer = value[:20]
    elif name == "port guid":
        port.guid = value[:40]


@dataclass(frozen=True)
class Settings:
    """`ethtool INTERFACE`. Speeds in Gb/s; `has_link` None where it does not say, `reason` why a
    link is down."""

    netdev: str
    speed_gbps: Optional[float]
    supported_gbps: Optional[float]
    has_link: Optional[bool]
    reason: str
    port: str


def parse_settings(text: bytes) -> Optional[Settings]:
    """None when it is no such text. `Link detected: no (Cable issue, Unsupported cable)` gives its
    reason."""
    values: dict[str, str] = {}
    name = ""
    modes: list[int] = []
    for line in text.decode("utf-8", "replace").splitlines():
        if line.startswith("Settings for "):
            values["netdev"] = line[len("Settings for ") :].strip(" :")[:31]
            continue
        match = _SETTING.match(line)
        if match is not None:
            name = match["name"]
            values[name] = match["value"].strip()
        if name == "Supported link modes":  # goes on over lines without a name
            modes += [int(number) for number in _MODE.findall(line)]
    link = values.get("Link detected", "")
    if not link and "Speed" not in values:
        return None
    netdev, port = values.get("netdev", ""), values.get("Port", "")[:40]
    speed = _parse_number(_SPEED.match(values.get("Speed", "")))
    speed_gbps = None if speed is None else speed / 1000
    supported_gbps = max(modes) / 1000 if modes else None
    has_link = {"y": True, "n": False}.get(link[:1])
    reason = link.partition("(")[2].rstrip(")")[:120]
    return Settings(netdev, speed_gbps, supported_gbps, has_link, reason, port)


def parse_statistics(text: bytes) -> dict[str, int]:
    """`ethtool -S`: counters of the whole card, those of single queues (`[3]: rx_errors`,
    `rx3_bytes`) left out."""
    found: dict[str, int] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        match = _COUNTER.fullmatch(line)
        if match is not None:
            found[match["name"]] = int(match["value"])
    return found


def parse_correction(text: bytes) -> dict[str, int]:
    """`ethtool -I --show-fec`: blocks of forward error correction, of the whole port; rows of lanes
    are left out."""
    names = ("corrected_blocks", "uncorrectable_blocks", "corrected_bits")
    found: dict[str, int] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        counter = _COUNTER.fullmatch(line)
        if counter is not None and counter["name"] in names:
            found.setdefault(f"fec_{counter['name']}", int(counter["value"]))
    return found


def parse_driver(text: bytes) -> dict[str, str]:
    """`ethtool -i`: driver, version, firmware-version, bus-info."""
    pairs = (line.partition(": ") for line in text.decode("utf-8", "replace").splitlines()[:40])
    values = {name.strip(): value.strip()[:80] for name, colon, value in pairs if colon}
    return {name: value for name, value in values.items() if NAME.fullmatch(name)}


def _parse_json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parse_uevent(text: str, name: str) -> str:
    found = (line.partition("=") for line in text.splitlines())
    return next((value.strip()[:20] for key, _, value in found if key == name), "")


def _parse_word(text: str) -> str:
    """States as one word: `4: ACTIVE`, `LINK_UP` and `LinkUp` are written by one source each."""
    return text.strip().upper().replace("_", "")[:20]


def _parse_number(found: Optional[re.Match[str]]) -> Optional[float]:
    return None if found is None else float(found[1])
