"""GPUs of a node by `nvidia-smi -q -x`: which are there, and what each says of its memory, clocks,
links and repair.

Python 3.9, standard library alone. Facts only; thresholds and severities are the catalogue's
(polled_gpu.toml).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, Optional

from detectors import resources
from detectors.detector import (
    Command,
    NothingToCompare,
    Output,
    Reading,
    Target,
    TargetKind,
    Transports,
)
from detectors.faults import Observation
from detectors.node.outputs import nvidia_smi, nvidia_smi_errors
from detectors.node.outputs.nvidia_smi import Printed, PrintedGpu, parse_whole_number

# A healthy HGX node answers in 2 to 8 s without the persistence daemon; gpud gives up after 30 s as
# well (https://github.com/leptonai/gpud, components/accelerator/nvidia/query).
_COMMAND = Command("nvidia-smi", ("nvidia-smi", "-q", "-x"), timeout=timedelta(seconds=30))
# Asked only where the inventory declares MIG devices: the XML does not name their profiles.
_LIST = Command("nvidia-smi-list", ("nvidia-smi", "-L"), timeout=timedelta(seconds=20))
MIG_DEVICES = "gpu_mig_devices"
"""The setting that declares them: `3g.20gb:2`, `1g.10gb:4,3g.40gb`, or `none`."""
# What the driver prints in place of a value that it cannot read. A healthy H100 prints `Unknown
# Error` under its addressing mode, so that only fields named below are asked.
_UNREAD = ("gpu is lost", "unknown error", "err!")
_NEEDS_RESET = "gpu requires reset"
_IDENTITY = ("product", "uuid", "serial")
_SENSORS = (
    "fan_speed",
    "temperature",
    "performance_state",
    "power_draw",
    "sm_clock",
    "memory_used",
    "ecc_mode",
)
_FACTS = ("uuid", "serial", "product", "vbios_version")
# What may be declared of the GPUs of a role, by name, with what nvidia-smi calls it and its unit.
SETTINGS: Mapping[str, tuple[str, str]] = {
    "gpu_mig": ("mig", ""),
    "gpu_persistence_mode": ("persistence_mode", ""),
    "gpu_compute_mode": ("compute_mode", ""),
    "gpu_power_limit_w": ("power_limit", " W"),
    "gpu_application_clock_mhz": ("application_clock", " MHz"),
}
_NO_DEVICES = re.compile(r"^No devices were found", re.MULTILINE)
# An idle GPU runs its link slower on purpose: the link is asked only of one that works in a state
# for work.
_AT_WORK = ("P0", "P1", "P2")


class GpuDetector(NothingToCompare):
    """The expected GPUs and their own word on their health.

    Metrics: docs/reference/detectors/gpu.md.
    """

    name: ClassVar[str] = "gpu"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(seconds=60)
    families: ClassVar[frozenset[str]] = frozenset({"pcie"})
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "gpu.driver_version",
            "gpu.ecc.remapped_correctable",
            "gpu.ecc.remapped_uncorrectable",
            "gpu.mig_devices",
            "gpu.product",
            "gpu.serial",
            "gpu.uuid",
            "gpu.vbios_version",
        }
    )

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """nvidia-smi, and what the kernel has on its bus. Raises DetectorError when the node cannot
        be reached."""
        listed = (_LIST,) if MIG_DEVICES in target.expected.settings else ()
        commands = (_COMMAND, nvidia_smi.DEVICES, *listed)
        outputs = via.shell.run_all(target, self.name, commands)
        return Reading(detector=self.name, target=target, taken_at=now, outputs=outputs)

    def sniff(self, text: bytes) -> str:
        return _COMMAND.name

    def parse(self, reading: Reading) -> Iterator[Observation]:
        output = reading.outputs[_COMMAND.name]
        if output.status is None:
            yield nvidia_smi_errors.observe_hang(reading, _COMMAND.timeout.total_seconds())
            return
        yield reading.saw("gpu.responsive", True)
        printed = nvidia_smi.read(output.stdout, output.stderr)
        is_silent = printed.cards is None and not printed.lost
        if is_silent and _NO_DEVICES.search(_format_output(output)):
            printed = Printed([], printed.lost)
        if printed.cards is None:
            yield from nvidia_smi_errors.observe_failure(reading, output, "nvidia-smi")
            return
        yield reading.answered()
        yield reading.saw("gpu.driver_fits", True)
        yield reading.saw("gpu.driver_runs", True)
        if printed.driver_version:
            yield reading.saw("gpu.driver_version", printed.driver_version)
        yield from _observe_inventory(reading, printed)
        corrupted = nvidia_smi.parse_gpus_with_corrupt_inforom(_format_output(output))
        profiles = _read_mig_profiles(reading)
        for card in printed.cards:
            if not _find_words_of_loss(card):
                yield from _observe_condition(reading, card)
                yield from _observe_mig_devices(reading, card, profiles)
                if card.pci:
                    resource = _get_resource(reading, card)
                    yield reading.saw("gpu.inforom_valid", card.pci not in corrupted, resource)


def _format_output(output: Output) -> str:
    return (output.stdout + b"\n" + output.stderr).decode("utf-8", "replace")


def _observe_presence(reading: Reading, resource: str, loss: str) -> Observation:
    """`loss` is empty for a GPU that answers, else the words of its loss."""
    attributes = {"text": loss} if loss else {}
    return reading.saw("gpu.present", not loss, resource, **attributes)


def _get_resource(reading: Reading, card: PrintedGpu) -> str:
    """By address; in the list, which has none, by UUID: indices shift when a GPU is missing."""
    index = card.values.get("index", "")
    address = card.pci or card.get_text("uuid") or f"index:{index}"
    return resources.gpu(reading.target.name, address)


def _observe_inventory(reading: Reading, printed: Printed) -> Iterator[Observation]:
    """Each GPU that nvidia-smi spoke of, well or lost, and each that the inventory knows and it did
    not name."""
    states = {
        _get_resource(reading, card): _find_words_of_loss(card) for card in printed.cards or ()
    }
    for pci, text in printed.lost.items():
        states[resources.gpu(reading.target.name, pci)] = text
    expected = [resources.gpu(reading.target.name, pci) for _, pci in reading.target.expected.gpus]
    present = sum(1 for text in states.values() if not text)
    wanted = len(expected) or len(states)
    count_text = f"{present} of {wanted} GPUs answer"
    yield reading.saw("gpu.count", present, expected=str(wanted), text=count_text)
    are_addressed = all(card.pci for card in printed.cards or ())
    known = expected if are_addressed else []
    for resource in dict.fromkeys([*known, *states]):
        yield _observe_presence(
            reading, resource, states.get(resource, "nvidia-smi does not list it")
        )


def _is_unread(value: str) -> bool:
    return any(word in value.lower() for word in _UNREAD)


def _find_words_of_loss(card: PrintedGpu) -> str:
    """A GPU whose identity cannot be read, or of whose sensors none can."""
    identity = next((value for value in map(card.get_text, _IDENTITY) if _is_unread(value)), "")
    sensors = [value for value in map(card.get_text, _SENSORS) if value]
    is_mute = len(sensors) > 1 and all(map(_is_unread, sensors))
    return identity or (sensors[0] if is_mute else "")


def _observe_condition(reading: Reading, card: PrintedGpu) -> Iterator[Observation]:
    resource = _get_resource(reading, card)
    for name in _FACTS:
        if card.get_text(name):
            yield reading.saw(f"gpu.{name}", card.get_text(name), resource)
    yield from _observe_sensors(reading, card, resource)
    yield from _observe_memory(reading, card, resource)
    yield from _observe_clocks(reading, card, resource)
    yield from _link(reading, card, resource)
    yield from _observe_fabric(reading, card, resource)
    yield from _observe_recovery(reading, card, resource)
    yield from _observe_settings(reading, card, resource)


def _observe_settings(reading: Reading, card: PrintedGpu, resource: str) -> Iterator[Observation]:
    """What the inventory declares of each GPU against what it is set to. Nothing is said of what a
    driver does not print: newer ones have no application clocks."""
    for name, (printed_name, unit) in SETTINGS.items():
        declared = reading.target.expected.settings.get(name, "").strip()
        printed = card.get_text(printed_name)
        if not declared or not printed or _is_unread(printed):
            continue
        found = str(parse_whole_number(printed)) if unit else printed.replace(" ", "_")
        if found == "None":
            continue
        fits = found.lower() == declared.replace(" ", "_").lower()
        text = f"{printed_name.replace('_', ' ')} is {printed}, declared is {declared}{unit}"
        yield reading.saw("gpu.setting_fits", fits, resource, qualifier=name, text=text)


def _read_mig_profiles(reading: Reading) -> Mapping[str, tuple[str, ...]]:
    output = reading.outputs.get(_LIST.name)
    if output is None or output.status != 0:
        return {}
    return nvidia_smi.read_mig_profiles(output.stdout)


def _observe_mig_devices(
    reading: Reading, card: PrintedGpu, profiles: Mapping[str, tuple[str, ...]]
) -> Iterator[Observation]:
    """How many there are, for whoever compares before and after a repair; and whether they are
    those that the inventory declares. A GPU that the list does not name is not judged."""
    resource = _get_resource(reading, card)
    if card.mig_devices:
        count = len(card.mig_devices)
        sizes = ", ".join(sorted(card.mig_devices, key=lambda size: (len(size), size)))
        text = f"{count} of {sizes} multiprocessors"
        yield reading.saw("gpu.mig_devices", text, resource)
    declared = reading.target.expected.settings.get(MIG_DEVICES, "").strip()
    found = profiles.get(card.get_text("uuid"))
    if not declared or found is None:
        return
    fits = Counter(profile.lower() for profile in found) == _count_profiles(declared)
    shown = format_profiles(found)
    details = f"MIG devices are {shown}, declared is {declared}"
    yield reading.saw("gpu.setting_fits", fits, resource, qualifier=MIG_DEVICES, text=details)


def format_profiles(profiles: Sequence[str]) -> str:
    """As they are declared."""
    counts = Counter(profiles)
    return ",".join(f"{name}:{counts[name]}" for name in sorted(counts)) or "none"


def _count_profiles(declared: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for part in declared.lower().replace(" ", ",").split(","):
        name, _, number = part.partition(":")
        if name and name != "none":
            counts[name] += int(number) if number.isascii() and number.isdecimal() else 1
    return counts


def _observe_sensors(reading: Reading, card: PrintedGpu, resource: str) -> Iterator[Observation]:
    printed = {name: card.get_text(name) for name in _SENSORS}
    unread = [
        f"{name.replace('_', ' ')}: {value}" for name, value in printed.items() if _is_unread(value)
    ]
    if unread:
        yield reading.saw("gpu.readable", False, resource, text="; ".join(unread))
    elif any(map(card.get_text, _SENSORS)):
        yield reading.saw("gpu.readable", True, resource)


def _observe_memory(reading: Reading, card: PrintedGpu, resource: str) -> Iterator[Observation]:
    """Errors that ECC could not mend, and the repairs that wait, were refused, or ran out."""
    for part in ("dram", "sram"):
        since_reset = _sum_uncorrected(card, "volatile", part)
        if since_reset is not None:
            text = f"{since_reset} uncorrectable {part.upper()} errors since the last reset"
            metric = f"gpu.ecc.{part}_uncorrected"
            yield reading.saw(metric, since_reset, resource, qualifier=part, text=text)
        ever = _sum_uncorrected(card, "aggregate", part)
        if ever is not None:
            text = f"{ever} uncorrectable {part.upper()} errors in its life"
            metric = f"gpu.ecc.{part}_uncorrected_ever"
            yield reading.saw(metric, ever, resource, qualifier=part, text=text)
    table = nvidia_smi.parse_whole_number(card.values.get("table/ecc", ""))
    if table is not None:
        yield reading.saw(
            "gpu.ecc.uncorrected", table, resource, text=f"{table} uncorrectable errors"
        )
    for flag in _MEMORY_FLAGS:
        value = card.get_flag(flag)
        if value is not None:
            details = (
                {"text": _MEMORY_FLAGS[flag] + _get_replaced_rows(card, flag)} if value else {}
            )
            kind = {"qualifier": _REPAIRED[flag]} if flag in _REPAIRED else {}
            yield reading.saw(f"gpu.ecc.{flag}", value, resource, **kind, **details)
    for name in ("remapped_correctable", "remapped_uncorrectable"):
        rows = card.get_number(name)
        if rows is not None:
            yield reading.saw(f"gpu.ecc.{name}", rows, resource)
    retired = [card.get_number(name) for name in ("retired_single_bit", "retired_double_bit")]
    if retired[0] is not None and retired[1] is not None:
        pages = retired[0] + retired[1]
        yield reading.saw("gpu.ecc.retired_pages", pages, resource, text=f"{pages} retired pages")


# Flags of the driver in the words of a person, and what waits for a repair, to tell two of them
# apart.
_MEMORY_FLAGS: Mapping[str, str] = {
    "sram_threshold": "the driver says that SRAM has had too many uncorrectable errors",
    "remap_pending": "a row of memory is to be replaced at the next reset",
    "remap_failure": "a row of memory could not be replaced",
    "retirement_pending": "pages of memory are to be retired at the next reset",
    "channel_repair_pending": "a memory channel is to be repaired at the next reset",
    "tpc_repair_pending": "a group of processors is to be repaired at the next reset",
    "unrepairable_memory": "the driver says that memory cannot be repaired",
}
_REPAIRED = {
    "retirement_pending": "pages",
    "channel_repair_pending": "channel",
    "tpc_repair_pending": "tpc",
}


def _get_replaced_rows(card: PrintedGpu, flag: str) -> str:
    rows = card.get_number("remapped_uncorrectable") if flag.startswith("remap_") else None
    return f"; {rows} replaced so far for uncorrectable errors" if rows is not None else ""


# Generations of the ECC table: to Volta by unit and bits, then SRAM and DRAM, then SRAM by the kind
# of its check.
_OLD_SRAM = ("register_file", "l1_cache", "l2_cache", "texture_memory", "texture_shm", "cbu")
_ECC_PATHS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "dram": (("dram_uncorrectable",), ("double_bit/device_memory",)),
    "sram": (
        ("sram_uncorrectable_parity", "sram_uncorrectable_secded"),
        ("sram_uncorrectable",),
        tuple(f"double_bit/{unit}" for unit in _OLD_SRAM),
    ),
}
_ECC_CSV: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "dram": (("dram",), ("device_memory",)),
    "sram": (
        ("sram/parity", "sram/secded"),
        ("sram",),
        ("register_file", "l1_cache", "l2_cache", "texture_memory"),
    ),
}


def _sum_uncorrected(card: PrintedGpu, period: str, part: str) -> Optional[int]:
    """The sum over the units of the generation that has values; None without ECC."""
    for prefix, table in (
        (f"ecc_errors/{period}", _ECC_PATHS),
        (f"ecc/errors/uncorrected/{period}", _ECC_CSV),
    ):
        for names in table[part]:
            values = [card.get_raw_value(f"{prefix}/{name}") for name in names]
            counts = [nvidia_smi.parse_whole_number(value) for value in values]
            known = [count for count in counts if count is not None]
            if known:
                return sum(known)
    return None


def _observe_clocks(reading: Reading, card: PrintedGpu, resource: str) -> Iterator[Observation]:
    """Hardware slowdowns by their cause. Held down by software to keep to its power limit is
    normal, and not told."""
    causes = {name: card.is_active(f"hw_{name}_slowdown") for name in ("thermal", "power_brake")}
    hardware = card.is_active("hw_slowdown")
    if hardware is not None:
        causes["unexplained"] = hardware and not any(causes.values())
    printed = [card.get_text(name) for name in ("temperature", "power_draw", "sm_clock")]
    state = [value for value in printed if value]
    for name, is_active in causes.items():
        if is_active is not None:
            text = {"text": f"slowed down at {', '.join(state)}"} if is_active and state else {}
            yield reading.saw(f"gpu.slowdown.{name}", is_active, resource, **text)


def _link(reading: Reading, card: PrintedGpu, resource: str) -> Iterator[Observation]:
    """PCI Express generation and width against the lesser of device's and slot's best, at work
    alone."""
    replays = card.get_number("replays")
    if replays is not None:
        replays_text = f"{replays} replays since the last reset"
        yield reading.saw("pcie.replays", replays, resource, text=replays_text)
    utilization = card.get_number("gpu_utilization") or 0
    is_at_work = card.get_text("performance_state") in _AT_WORK and utilization > 0
    # A guest does not see the slot: clouds give half of a card's lanes on purpose.
    is_guest = card.get_text("virtualization").lower() not in ("", "none")
    if not is_at_work or is_guest:
        return
    generation, best_generation = card.get_number("gen_current"), card.get_number("gen_max")
    width, best_width = card.get_number("width_current"), card.get_number("width_max")
    if generation is None or best_generation is None or width is None or best_width is None:
        return
    short = []
    if 0 < generation < best_generation:
        short.append(f"generation {generation} of {best_generation}")
    if 0 < width < best_width:
        short.append(f"width {width} of {best_width}")
    attributes = {}
    if short:
        utilisation = card.get_text("gpu_utilization")
        attributes["text"] = f"{', '.join(short)} at {utilisation} utilisation"
    yield reading.saw("pcie.full_link", not short, resource, **attributes)


# What a fabric without trouble says, by driver: words, or False to "is it degraded". A word not
# known is looked at.
_FABRIC_HEALTH: Mapping[str, tuple[str, ...]] = {
    "summary": ("healthy",),
    "bandwidth": ("full", "false"),
    "route_unhealthy": ("false",),
    "incorrect_configuration": ("none", "false", "no"),
}


def _observe_fabric(reading: Reading, card: PrintedGpu, resource: str) -> Iterator[Observation]:
    """Whether the GPU has joined its NVLink fabric; a GPU without one says N/A."""
    state, status = card.get_text("fabric_state"), card.get_text("fabric_status")
    if state:
        is_joined = state.lower() == "completed" and status.lower() in ("", "success")
        text = (
            {} if is_joined else {"text": f"fabric state {state}, status {status or 'not given'}"}
        )
        yield reading.saw("gpu.fabric_joined", is_joined, resource, **text)
    words = {name: card.get_text(f"fabric_{name}") for name in _FABRIC_HEALTH}
    if not any(words.values()):
        return
    bad: list[str] = []
    for name, well_words in _FABRIC_HEALTH.items():
        word = words[name]
        if word and word.lower() not in well_words:
            bad.append(f"{name.replace('_', ' ')}: {word}")
    complaint = {"text": ", ".join(bad)} if bad else {}
    yield reading.saw("gpu.fabric_healthy", not bad, resource, **complaint)


# NVML's recovery actions (nvml.h, nvmlDeviceGpuRecoveryAction_t) by how much they ask for.
_RECOVERY: Mapping[str, int] = {
    "none": 0,
    "drain p2p": 1,
    "reset": 2,
    "gpu reset required": 2,
    "drain and reset": 2,
    "reset bus": 2,
    "reboot": 3,
    "node reboot required": 3,
}
_UNKNOWN_RECOVERY = 1


def _observe_recovery(reading: Reading, card: PrintedGpu, resource: str) -> Iterator[Observation]:
    """What the driver itself asks for: 0 nothing, 1 a look, 2 a reset, 3 a reboot; a word not known
    asks for a look."""
    words = card.get_text("recovery_action")
    required = [name for name in ("reset_required", "drain_recommended") if card.get_flag(name)]
    names = (*_IDENTITY, *_SENSORS, "gpu_utilization")
    if any(_NEEDS_RESET in card.get_text(name).lower() for name in names):
        required, words = [*required, "reset_required"], words or "GPU requires reset"
    level = _RECOVERY.get(words.lower(), _UNKNOWN_RECOVERY) if words else 0
    if required:
        level = max(level, _RECOVERY["reset"])
    if words or card.get_flag("reset_required") is not None:
        text = words
        if not words or words.lower() == "none":
            text = ", ".join(required).replace("_", " ") or "none"
        yield reading.saw("gpu.recovery_wanted", level, resource, text=text)
