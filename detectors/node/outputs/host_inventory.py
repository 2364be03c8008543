"""Snapshots of a node that other tools took, as JSON: a map of sysfs files, or interfaces beside
their configuration.

No detector collects them; people hand them in. Facts go under the names that the detectors of
network cards and of PCI Express give them. Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from detectors import resources
from detectors.detector import Output, Reading
from detectors.faults import Observation
from detectors.node.outputs.host_storage import parse_document

_PART = re.compile(
    r"^/sys/bus/pci/devices/(?P<pci>[0-9a-f:.]+)"
    r"/(?P<kind>net|infiniband|nvme)/(?P<name>[^/]+)/(?P<rest>.+)$"
)
_LINK = re.compile(
    r"^/sys/class/pci_bus/[0-9a-f:]+/device/(?P<pci>[0-9a-f:.]+)/current_link_speed$"
)
_RATE = re.compile(r"^(\d+(?:\.\d+)?) Gb/sec")
_GT = re.compile(r"^(\d+(?:\.\d+)?) GT/s")


def is_one(text: bytes) -> bool:
    head = text[:200_000]
    return head.lstrip().startswith(b"{") and any(
        word in head
        for word in (b'"intf_status"', b'"/sys/bus/pci/', b'"/sys/class/pci_bus/', b'"zone_geom"')
    )


def read(reading: Reading, output: Output) -> Iterator[Observation]:
    document = parse_document(output.stdout) or {}
    if isinstance(document.get("intf_status"), list):
        yield from _observe_interfaces(reading, document)
        return
    files = {
        path: text.strip()
        for path, text in document.items()
        if isinstance(text, str) and path.startswith("/sys/")
    }
    if files:
        yield from _observe_sysfs(reading, files)
    elif "zone_geom" in document:  # a table of what should be there: nothing is said of what is
        for name, rows in sorted(document.items()):
            yield reading.saw(
                "snapshot.declared", len(rows) if isinstance(rows, dict) else 0, qualifier=name[:40]
            )


def _observe_interfaces(reading: Reading, document: Mapping[str, Any]) -> Iterator[Observation]:
    """Each interface that is configured, as the kernel has it."""
    there = {
        str(row.get("ifname")): row for row in document["intf_status"] if isinstance(row, dict)
    }
    configured, macs = (
        _get_table(document.get("intf_ifcfg")),
        _get_table(document.get("phys_macaddr")),
    )
    for name in sorted(configured):
        settings = _get_table(configured[name])
        resource = resources.nic(reading.target.name, name[:80])
        row = there.get(name)
        sentence = f"{name} is configured and {'there' if row else 'not there'}"
        yield reading.saw("nic.present", row is not None, resource, text=sentence)
        if row is None:
            continue
        state = str(row.get("operstate", ""))
        if state:
            yield reading.saw(
                "nic.link.working", state == "UP", resource, text=f"{name} is {state}"
            )
        if settings.get("MTU") and isinstance(row.get("mtu"), int):
            sentence = f"{name} has MTU {row['mtu']}, its configuration says {settings['MTU']}"
            yield reading.saw(
                "config.nic_mtu",
                str(row["mtu"]),
                resource,
                expected=str(settings["MTU"]),
                text=sentence,
            )
        burnt, wanted = str(macs.get(name) or "").lower(), str(settings.get("HWADDR") or "").lower()
        if burnt and wanted:
            sentence = f"{name} has the hardware address {burnt}, its configuration says {wanted}"
            yield reading.saw(
                "config.address_is_set", burnt == wanted, qualifier=name[:80], text=sentence
            )


def _get_table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _observe_sysfs(reading: Reading, files: Mapping[str, str]) -> Iterator[Observation]:
    parts: dict[str, dict[str, str]] = {}
    kinds: dict[str, str] = {}
    for path, text in files.items():
        found = _PART.match(path)
        if found is None:
            continue
        part = parts.setdefault(found["pci"], {})
        kinds[found["pci"]] = (
            "infiniband"
            if "infiniband" in (kinds.get(found["pci"]), found["kind"])
            else found["kind"]
        )
        part[f"{found['kind']}.name"] = found["name"]
        part[found["rest"]] = text
    for pci, part in sorted(parts.items()):
        if kinds[pci] == "infiniband":
            yield from _observe_port(reading, part)
    yield from _observe_links(reading, files, kinds)


def _observe_port(reading: Reading, part: Mapping[str, str]) -> Iterator[Observation]:
    """A port of InfiniBand is cabled where it is there at all; of an Ethernet port alone that
    cannot be told."""
    device, netdev = part.get("infiniband.name", ""), part.get("net.name", "")
    resource = resources.nic(reading.target.name, (device or netdev)[:80])
    state, operstate = part.get("ports/1/state", ""), part.get("operstate", "")
    if state or operstate:
        is_up = (not state or "ACTIVE" in state) and operstate in ("", "up", "unknown")
        sentence = (
            f"{device} ({netdev or 'no interface'}): port {state or 'unknown'}, interface"
            f" {operstate or 'unknown'}"
        )
        yield reading.saw("nic.ib.link.working", is_up, resource, text=sentence)
    rate = _RATE.match(part.get("ports/1/rate", ""))
    if rate:
        yield reading.saw("nic.speed_gbps", float(rate[1]), resource, text=f"{device}: {rate[0]}")
    if part.get("fw_ver"):
        yield reading.saw("nic.firmware", part["fw_ver"][:80], resource)


def _observe_links(
    reading: Reading, files: Mapping[str, str], kinds: Mapping[str, str]
) -> Iterator[Observation]:
    """A card whose link is slower than most of the node's cards: the snapshot does not say what
    each could do.

    Not of disks: those that a node boots from are often of an older kind.
    """
    speeds: dict[str, float] = {}
    for path, text in files.items():
        found, speed = _LINK.match(path), _GT.match(text)
        if found and speed and kinds.get(found["pci"]) == "infiniband":
            speeds[found["pci"]] = float(speed[1])
    usual, count = Counter(speeds.values()).most_common(1)[0] if speeds else (0.0, 0)
    if 2 * count <= len(speeds):
        return
    for pci, speed_gt in sorted(speeds.items()):
        sentence = f"{speed_gt:g} GT/s, where most of the node's cards have {usual:g} GT/s"
        resource = resources.pci_device(reading.target.name, pci)
        yield reading.saw("pcie.full_link", speed_gt >= usual, resource, text=sentence)
