"""What the programs and files of a Linux node say of itself: boot, clock, services, memory errors,
lost memory.

Reads outputs that `detectors.node.host` collected; runs nothing. Python 3.9, standard library
alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from detectors.detector import Command, Output, Reading
from detectors.faults import Observation
from detectors.transports import files

# Looked for where the inventory names none: what a node needs to run GPU jobs. A unit that is not
# enabled is not due.
USUAL_SERVICES = (
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
    "slurmd.service",
    "munge.service",
)
_SHOWN = "Id,LoadState,ActiveState,SubState,Result,UnitFileState,NRestarts"
_SHORT = timedelta(seconds=5)
_EDAC = "/sys/devices/system/edac/mc"
_CONTROLLER = re.compile(r"/(mc\d+)/(ce_count|ue_count|mc_name|ce_noinfo_count|ue_noinfo_count)$")
_MODULE = re.compile(r"/(mc\d+)/((?:dimm|rank)\d+)/(dimm_label|dimm_ce_count|dimm_ue_count)$")
_MACHINE_CHECKS = re.compile(r"^[ \t]*MCE:((?:\s+\d{1,19})+)(?!\d)", re.MULTILINE)
_KILLS = re.compile(r"^oom_kill\s+(\d{1,19})(?!\d)", re.MULTILINE)
_TRACKED = re.compile(
    r"^System time\s*:\s*(\d{1,12}(?:\.\d+)?(?:e-?\d{1,2})?) seconds (fast|slow) of NTP time",
    re.MULTILINE,
)
_LEAP = re.compile(r"^Leap status\s*:\s*(\S[^\r\n]{0,40})", re.MULTILINE)
# `ntpq -c rv`: leap_none or leap_alarm, offset in milliseconds.
_NTP_OFFSET = re.compile(r"\boffset=(-?\d{1,15}(?:\.\d+)?)")
_NTP_LEAP = re.compile(r"\b(leap_\w+|sync_\w+)")


_DATE_AND_BOOT = (
    Command("date", ("date", "+%s.%N"), _SHORT),
    Command("boot", ("cat", "/proc/sys/kernel/random/boot_id", "/proc/uptime"), _SHORT),
)
_COUNTERS = (
    Command("vmstat", ("grep", "-E", "^oom_kill ", "/proc/vmstat"), _SHORT),
    Command("interrupts", ("grep", "-E", "^ *MCE:", "/proc/interrupts"), _SHORT),
    files.build_read_command(
        "edac",
        _EDAC,
        f"{_EDAC}/mc*/?e_count",
        f"{_EDAC}/mc*/dimm_?e_count",
        f"{_EDAC}/mc*/dimm_label",
        depth=3,
    ),
)
_TIME_SERVICES = (
    Command("chrony", ("chronyc", "-n", "tracking"), _SHORT),
    Command("ntpq", ("ntpq", "-n", "-c", "rv 0 leap,offset,stratum"), _SHORT),
)


def build_commands(services: tuple[str, ...]) -> list[Command]:
    """`date` first: what it says is compared with our own clock before the round began."""
    units = services or USUAL_SERVICES
    show = ("systemctl", "show", "--no-pager", f"--property={_SHOWN}", "--", *units)
    return [*_DATE_AND_BOOT, Command("services", show, _SHORT), *_COUNTERS, *_TIME_SERVICES]


def decode_text(output: Output) -> str:
    return output.stdout.decode("utf-8", "replace")


def observe_date(reading: Reading, output: Output) -> Iterator[Observation]:
    """The node's clock against ours. Connecting takes time, so up to some seconds mean nothing."""
    try:
        theirs = float(output.stdout.strip()[:40])
    except ValueError:
        return
    ahead = theirs - reading.taken_at.timestamp()
    if ahead == ahead and abs(ahead) < 1e10:
        sentence = (
            f"the node's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'}"
            " Kintsugi's"
        )
        yield reading.saw(
            "clock.difference_s", round(abs(ahead), 3), qualifier="kintsugi", text=sentence
        )


def observe_boot(reading: Reading, output: Output) -> Iterator[Observation]:
    """`node.boot_id` and `node.uptime_s`; nothing where either cannot be read."""
    words = decode_text(output).split()
    if (
        len(words) >= 2
        and re.fullmatch(r"[0-9a-f-]{36}", words[0])
        and re.fullmatch(r"\d{1,12}(\.\d+)?", words[1])
    ):
        yield reading.saw("node.boot_id", words[0])
        yield reading.saw("node.uptime_s", float(words[1]))


def observe_services(reading: Reading, output: Output) -> Iterator[Observation]:
    """A unit is due when the inventory names it, else when it is installed and enabled."""
    wanted = set(reading.target.expected.services)
    for unit in _parse_units(decode_text(output)):
        name, state = unit.get("Id", ""), unit.get("ActiveState", "")
        if not name or not state:
            continue
        is_due = unit.get("LoadState") == "loaded" and unit.get("UnitFileState", "").startswith(
            "enabled"
        )
        if not is_due and not wanted & {name, name.rpartition(".")[0]}:
            continue
        short = name[: -len(".service")] if name.endswith(".service") else name
        is_active = state in ("active", "reloading") or (
            state == "activating" and unit.get("SubState") == "start"
        )
        sentence = (
            f"{short} is {state} ({unit.get('SubState', '')}), result {unit.get('Result', '')}"
        )
        if unit.get("LoadState") not in ("loaded", None):
            sentence = f"{short} is not installed ({unit['LoadState']})"
        yield reading.saw("service.active", is_active, qualifier=short, text=sentence)


def _parse_units(shown: str) -> Iterator[dict[str, str]]:
    """The blocks of `systemctl show`, blank lines between them."""
    for block in shown.split("\n\n"):
        pairs = (line.partition("=") for line in block.splitlines())
        found = {key.strip(): value.strip() for key, equals, value in pairs if equals}
        if found:
            yield found


def observe_vmstat(reading: Reading, output: Output) -> Iterator[Observation]:
    """How often the kernel ended a process for want of memory, since boot."""
    found = _KILLS.search(decode_text(output))
    if found:
        sentence = f"{found[1]} processes were ended for want of memory since the boot"
        yield reading.saw("memory.oom_kills", int(found[1]), text=sentence)


def observe_interrupts(reading: Reading, output: Output) -> Iterator[Observation]:
    """Machine check exceptions of all processors since boot: `MCE:` of /proc/interrupts, a column
    for each."""
    found = _MACHINE_CHECKS.search(decode_text(output))
    if found:
        count = sum(int(word) for word in found[1].split())
        yield reading.saw(
            "cpu.machine_checks", count, text=f"{count} machine check exceptions since the boot"
        )


def observe_edac(reading: Reading, output: Output) -> Iterator[Observation]:
    """Errors of main memory since the driver was loaded, all controllers together; the text names
    the modules."""
    counts: dict[str, dict[str, int]] = {}
    modules: dict[tuple[str, str], dict[str, str]] = {}
    for path, value in files.parse_contents(output).items():
        module, controller = _MODULE.search(path), _CONTROLLER.search(path)
        if module:
            modules.setdefault((module[1], module[2]), {})[module[3]] = value.strip()
        elif controller and value.strip().isdecimal():
            counts.setdefault(controller[1], {})[controller[2]] = int(value)
    for kind, metric in (("ce", "memory.corrected"), ("ue", "memory.uncorrected")):
        had = [values[f"{kind}_count"] for values in counts.values() if f"{kind}_count" in values]
        if had:
            yield reading.saw(
                metric, sum(had), text=_format_worn(kind, modules) or ", ".join(sorted(counts))
            )


def _format_worn(kind: str, modules: dict[tuple[str, str], dict[str, str]]) -> str:
    """Modules with errors, by their label on the board where the firmware gives one."""
    worn = []
    for (controller, name), values in sorted(modules.items()):
        count = values.get(f"dimm_{kind}_count", "0")
        if count.strip("0").isdecimal():
            label = values.get("dimm_label") or f"{controller} {name}"
            worn.append(f"{label} has had {count}")
    return f"in its life: {', '.join(worn[:8])}" if worn else ""


def observe_chrony(reading: Reading, output: Output) -> Iterator[Observation]:
    """`chronyc tracking`: the offset that chronyd still has to slew away, and whether it follows
    anyone at all."""
    shown = decode_text(output)
    leap, offset = _LEAP.search(shown), _TRACKED.search(shown)
    if leap is None:
        return
    is_synchronised = not leap[1].lower().startswith("not sync")
    yield reading.saw(
        "clock.synchronised", is_synchronised, text=f"chrony: leap status {leap[1].strip()}"
    )
    if is_synchronised and offset:
        sentence = f"chrony: {float(offset[1]):g} s {offset[2]} of NTP time"
        yield reading.saw("clock.offset_s", float(offset[1]), qualifier="ntp", text=sentence)


def observe_ntpq(reading: Reading, output: Output) -> Iterator[Observation]:
    """`ntpq -c rv`: as `chrony`, of ntpd."""
    shown = decode_text(output)
    leap, offset = _NTP_LEAP.search(shown), _NTP_OFFSET.search(shown)
    if leap is None:
        return
    is_synchronised = leap[1] not in ("leap_alarm", "sync_unspec")
    yield reading.saw("clock.synchronised", is_synchronised, text=f"ntpd: {leap[1]}")
    if is_synchronised and offset:
        seconds = abs(float(offset[1])) / 1000
        yield reading.saw(
            "clock.offset_s", seconds, qualifier="ntp", text=f"ntpd: offset {offset[1]} ms"
        )
