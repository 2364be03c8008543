"""What a node says of its storage: mounts, room, RAID, Lustre's connections, health of its disks.

Reads outputs that `detectors.node.host` and `detectors.node.disks` collected. Nothing here, and no
command here, ever asks a shared file system: a `stat` on Lustre or NFS may never return. Python
3.9, standard library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Optional

from detectors import resources
from detectors.detector import Command, Output, Reading, Samples
from detectors.faults import Observation

_SHORT = timedelta(seconds=5)
_LONG = timedelta(seconds=10)
_MOUNTS = Command("mounts", ("cat", "/proc/mounts"), _SHORT)
_FSTAB = Command("fstab", ("cat", "/etc/fstab"), _SHORT)
_MDSTAT = Command("mdstat", ("cat", "/proc/mdstat"), _SHORT)
# df looks at no file system but these (it drops others by their type before its first stat), and -l
# drops remote ones.
LOCAL_TYPES = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "vfat", "zfs", "tmpfs")
# A tmpfs is memory that programs fill as they like; only these hold what a node needs.
_TMPFS_THAT_MATTER = frozenset({"/", "/run", "/tmp", "/var", "/var/tmp", "/var/log"})  # noqa: S108
_DISK_TYPES = frozenset(LOCAL_TYPES) - {"tmpfs"}
_DF = re.compile(
    r"^(?P<source>\S+)\s+(?P<type>\S+)\s+(?P<used>\d+%|-)\s+(?P<inodes>\d+%|-)\s+(?P<mount>/.*)$"
)
_ARRAY = re.compile(r"^(?P<name>md\S*) : (?P<state>active|inactive)(?P<rest>[^\r\n]*)$")
_MEMBERS = re.compile(r"\[(?P<wanted>\d+)/(?P<present>\d+)\] \[(?P<map>[U_]+)\]")
_PROGRESS = re.compile(r"(?P<what>recovery|resync|check|reshape)\s*=\s*(?P<percent>[\d.]+%)")
_FAULTY = re.compile(r"([^\s\[\]]{1,64})\[\d{1,6}\]\(F\)")
_IMPORT = re.compile(r"^[ \t]+(name|target|state|current_connection):\s*(\S+)", re.MULTILINE)
# IDLE: disconnected for want of use, since Lustre 2.12; NEW: not asked yet. Lustre manual, section
# on imports.
_WELL_IMPORTS = frozenset({"FULL", "IDLE", "NEW", "CLOSED"})
# What smartctl prints of any disk for the inventory.
_DISK_FACTS = (
    ("serial_number", "disk.serial"),
    ("model_name", "disk.model"),
    ("firmware_version", "disk.firmware"),
)
_NVME_LOG = "nvme_smart_health_information_log"
# NVM Express base specification, SMART / Health Information log, byte 0.
_WARNINGS = (
    "available spare is below its threshold",
    "temperature is past a threshold",
    "reliability is degraded by media or internal errors",
    "media is read-only",
    "backup of volatile memory has failed",
    "persistent memory region is read-only or unreliable",
)


def build_commands() -> list[Command]:
    selected = tuple(word for kind in LOCAL_TYPES for word in ("-t", kind))
    df = ("df", "-l", "--output=source,fstype,pcent,ipcent,target", *selected)
    return [_MOUNTS, _FSTAB, Command("df", df, _LONG), _MDSTAT]


def build_lustre_commands(mounted: Output) -> list[Command]:
    """Where Lustre is mounted: what its client knows of its servers. It needs root, so others are
    not asked for it."""
    kinds = {kind for _, kind, _ in _parse_table(mounted.text).values()}
    if "lustre" not in kinds:
        return []
    argv = ("lctl", "get_param", "-n", "osc.*.import", "mdc.*.import")
    return [Command("lustre", argv, _LONG, as_root=True)]


def build_part_path(reading: Reading, device: str) -> str:
    """`node/<host>/storage/<device>`: as log lines name it (detectors/logs/signatures.py)."""
    return f"{resources.node(reading.target.name)}/storage/{device or resources.UNKNOWN_HOST}"


def observe_mounts(
    reading: Reading, output: Output, fstab: Optional[Output] = None
) -> Iterator[Observation]:
    """What is mounted against what should be, and local file systems that fell back to
    read-only."""
    table = _parse_table(output.text)
    if not table:
        return
    for wanted in reading.target.expected.mounts:
        path = wanted.rstrip("/") or "/"
        is_mounted = path in table
        sentence = f"{path} is {'mounted' if is_mounted else 'not mounted'}"
        yield reading.saw("mount.present", is_mounted, qualifier=path, text=sentence)
    writable = _parse_writable_mounts(fstab.text) if fstab is not None else set()
    for path, (source, kind, options) in table.items():
        # What fstab does not name, or wants read-only, may well be so by design: an image,
        # /boot/efi.
        if kind in _DISK_TYPES and source.startswith("/dev/") and path in writable:
            is_writable = "ro" not in options
            mode = "read-write" if is_writable else "read-only"
            sentence = f"{path} ({source}, {kind}) is mounted {mode}"
            resource = build_part_path(reading, source.rpartition("/")[2])
            yield reading.saw("filesystem.writable", is_writable, resource, text=sentence)


def _parse_table(text: str) -> dict[str, tuple[str, str, list[str]]]:
    """Mount point to source, type and options of /proc/mounts; the last one of a point is what
    programs see."""
    found: dict[str, tuple[str, str, list[str]]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4 or not words[1].startswith("/"):
            continue
        source, path, kind, options = words[:4]
        found[_unescape(path)] = (_unescape(source), kind, options.split(","))
    return found


def _unescape(word: str) -> str:
    """Blanks are written as octal in /proc/mounts and fstab (proc(5))."""
    return re.sub(r"\\(0\d\d|1[0-3]\d)", lambda found: chr(int(found[1], 8)), word)


def _parse_writable_mounts(text: str) -> set[str]:
    found: set[str] = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4 or words[0].startswith("#"):
            continue
        if "ro" not in words[3].split(","):
            found.add(_unescape(words[1]))
    return found


def observe_room(reading: Reading, output: Output) -> Iterator[Observation]:
    """`df`: percent of the blocks, and of the inodes, that are in use."""
    for line in output.text.splitlines()[1:]:
        found = _DF.match(line.rstrip())
        if found is None:
            continue
        source, kind, mount = found["source"], found["type"], found["mount"]
        if kind == "tmpfs" and mount not in _TMPFS_THAT_MATTER:
            continue
        device = source.rpartition("/")[2]
        if not source.startswith("/dev/"):
            device = f"{device}:{mount}"
        resource = build_part_path(reading, device)
        prefix = f"{mount} ({source}, {kind}) uses"
        used, inodes = _parse_percent(found["used"]), _parse_percent(found["inodes"])
        if used is not None:
            attributes = {"qualifier": "space", "text": f"{prefix} {used} %"}
            yield reading.saw("filesystem.used_percent", used, resource, **attributes)
        if inodes is not None:
            attributes = {"qualifier": "inodes", "text": f"{prefix} {inodes} % of its inodes"}
            yield reading.saw("filesystem.inodes_used_percent", inodes, resource, **attributes)


def _parse_percent(text: str) -> Optional[int]:
    """`42%`; None for the `-` of a file system that has no such number."""
    return None if text == "-" else int(text[:-1])


def observe_mdstat(reading: Reading, output: Output) -> Iterator[Observation]:
    """Linux software RAID: members missing, arrays that were not started. Arrays without redundancy
    have no map."""
    for first, lines in _list_arrays(output.text):
        name, state = first["name"], first["state"]
        resource = build_part_path(reading, name)
        yield reading.saw("raid.state", state, resource)
        if state == "active":
            yield reading.saw("raid.started", True, resource, text=f"{name} is active")
        members = _MEMBERS.search(lines)
        if members is None:
            continue
        present, wanted, member_map = members["present"], members["wanted"], members["map"]
        failed = _FAULTY.findall(lines)
        progress = _PROGRESS.search(lines)
        sentence = f"{name} has {present} of {wanted} members [{member_map}]"
        if failed:
            sentence += f", failed: {', '.join(failed)}"
        if progress:
            sentence += f", {progress['what']} at {progress['percent']}"
        is_whole = present == wanted and "_" not in member_map and not failed
        yield reading.saw("raid.redundant", is_whole, resource, text=sentence)


def observe_stopped_arrays(now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
    """Arrays that ran and no longer do. One that never ran here is what another machine left on its
    disks."""
    for seen in now:
        if seen.metric != "raid.state" or seen.value == "active":
            continue
        if (seen.resource, "raid.started") in before:
            name = seen.resource.rpartition("/")[2]
            attributes = {"text": f"{name} is {seen.value}, and was active"}
            yield Observation(seen.resource, "raid.started", False, seen.observed_at, attributes)


def _list_arrays(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """The first line of each array, and all of its lines."""
    first: Optional[re.Match[str]] = None
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        found = _ARRAY.match(line)
        if first is not None and (found or not line.strip()):
            yield first, "\n".join(lines)
            first, lines = None, []
        if found:
            first = found
        if first is not None:
            lines.append(line)


def observe_lustre(reading: Reading, output: Output) -> Iterator[Observation]:
    """Each import of the client: FULL is well, IDLE is rest. Reading it asks no server."""
    blocks = re.split(r"^import:", output.text, flags=re.MULTILINE)
    for block in blocks[1:]:
        values = dict(_IMPORT.findall(block))
        target = values.get("target", "")
        state = values.get("state", "").upper()
        if not target or not state:
            continue
        name = target[: -len("_UUID")] if target.endswith("_UUID") else target
        server = values.get("current_connection", "").strip('"') or "its server"
        sentence = f"the connection to {name} at {server} is {state}"
        resource = build_part_path(reading, name)
        is_evicted = state == "EVICTED"
        is_connected = is_evicted or state in _WELL_IMPORTS
        yield reading.saw("lustre.connected", is_connected, resource, text=sentence)
        yield reading.saw("lustre.evicted", is_evicted, resource, text=sentence)


def observe_smart(reading: Reading, output: Output, device: str = "") -> Iterator[Observation]:
    """`nvme smart-log -o json` or `smartctl -j`; nothing for what is neither, or for a disk that
    did not answer."""
    document = parse_document(output.stdout)
    if document is None:
        return
    name = device or _get_device_name(document)
    resource = build_part_path(reading, re.sub(r"^(nvme\d+)n\d+$", r"\1", name))
    for key, metric in _DISK_FACTS:
        if isinstance(document.get(key), str):
            yield reading.saw(metric, document[key], resource)
    status = document.get("smart_status")
    has_passed = status.get("passed") if isinstance(status, dict) else None
    if isinstance(has_passed, bool) and _NVME_LOG not in document:
        sentence = f"{name}: SMART self-assessment {'passed' if has_passed else 'FAILED'}"
        yield reading.saw("disk.passed", has_passed, resource, text=sentence)
    log = document.get(_NVME_LOG, document)
    if isinstance(log, dict):
        yield from _observe_nvme(reading, resource, name, log)


def _get_device_name(document: Mapping[str, Any]) -> str:
    """`sda` of smartctl's `/dev/sda`; empty where the document names no device."""
    device = document.get("device")
    return str(device.get("name", "")).rpartition("/")[2] if isinstance(device, dict) else ""


def _observe_nvme(
    reading: Reading, resource: str, name: str, log: Mapping[str, Any]
) -> Iterator[Observation]:
    """The health log of an NVMe controller, under nvme-cli's names or smartctl's."""
    warning = _parse_int(log.get("critical_warning"))
    if warning is not None:
        sentence = f"{name}: {_format_warning(warning)}"
        yield reading.saw("disk.passed", warning == 0, resource, text=sentence)
    errors = _parse_int(log.get("media_errors"))
    if errors is not None:
        sentence = f"{name}: {errors} media errors in its life"
        yield reading.saw("disk.media_errors", errors, resource, text=sentence)
    spare = _parse_int(log.get("avail_spare", log.get("available_spare")))
    least = _parse_int(log.get("spare_thresh", log.get("available_spare_threshold")))
    if spare is not None and least is not None:
        attributes = {
            "qualifier": "spare",
            "text": f"{name}: {spare} % spare left, its own threshold is {least} %",
            "raise_at": str(least),
            "clear_at": str(least),
        }
        yield reading.saw("disk.spare_percent", spare, resource, **attributes)
    used = _parse_int(log.get("percent_used", log.get("percentage_used")))
    if used is not None:
        sentence = f"{name}: {used} % of its rated writes are used"
        yield reading.saw("disk.used_percent", used, resource, text=sentence)


def _format_warning(warning: int) -> str:
    if warning == 0:
        return "no warning"
    found = [words for bit, words in enumerate(_WARNINGS) if warning >> bit & 1]
    return "; ".join(found) or f"critical warning {warning}"


def parse_document(stdout: bytes) -> Optional[dict[str, Any]]:
    """The JSON object in an output, from its first brace on: banners may stand before it. None when
    there is none."""
    start = stdout.find(b"{")
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(stdout[start:].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _parse_int(value: object) -> Optional[int]:
    """Old nvme-cli prints floats, and critical_warning as an object with `value`."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, float) and value == value and abs(value) < 1e18:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
