"""Modules in a node's network ports: light, current, temperature, their own alarms, and the bit
errors of their links.

Every value is told as `optics.*`, by the names that switches use too; what is judged has a name of
its own, since a port that is not in use has values that mean nothing. Python 3.9, standard library
alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, Optional

from detectors.detector import (
    Command,
    NothingToCompare,
    Output,
    Reading,
    Samples,
    Target,
    TargetKind,
    Transports,
)
from detectors.evaluation import cable_ends
from detectors.evaluation.cable_ends import LinkState
from detectors.faults import Observation
from detectors.node.outputs import nic_outputs, optics
from detectors.node.outputs.nic_link import link
from detectors.node.outputs.nic_outputs import NAME
from detectors.node.outputs.nic_ports import (
    NicPort,
    build_net_command,
    build_pci_command,
    find_peers,
    is_all_known,
    list_interfaces,
    list_ports,
)
from detectors.node.outputs.optics import LANES, OpticalModule, OpticsLimits

# A module's two-wire bus is slow: a CMIS page takes some 100 ms, and busy firmware makes others
# wait.
_LIMIT = timedelta(seconds=20)
_QUICK = timedelta(seconds=10)
_UNNAMED = "-"
_MODULE, _MLXLINK = "ethtool-m.", "mlxlink."
# Asked without root: sudo asks for a password where a program is not there, which says nothing
# then.
_HAS_MLXLINK = Command("mlxlink-version", ("mlxlink", "--version"), _QUICK)
# ethtool's words for an empty cage, a virtual port, or one whose driver has no modules.
_NO_MODULE = (
    b"Input/output error",
    b"Invalid argument",
    b"No such device",
    b"not supported",
    b"No such file",
    b"I/O",
)
_NOT_IN_USE = (LinkState.RESERVED, LinkState.DISABLED, LinkState.UNCABLED)
_LEVELS = ("rx_power_dbm", "tx_power_dbm", "bias_ma", "temperature_celsius", "voltage_v")
# A flag of one of these says no more than the value beside its threshold does.
_EVALUATED_BY_VALUE = {"rx_power_dbm": "low", "tx_power_dbm": "low", "temperature_celsius": "high"}
# A lane is suspect only where it gets this much less light too: docs/reference/detectors/nic.md.
_LESS_LIGHT_DB = 2.0
_LANE_ERRORS = tuple(f"optics.raw_errors.lane{lane}" for lane in range(1, LANES + 1))


class TransceiverDetector(NothingToCompare):
    """Observes `optics.*`, `module.*` and `nic.module.*` of every port that may hold a module."""

    name: ClassVar[str] = "transceiver"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(minutes=5)
    families: ClassVar[frozenset[str]] = frozenset({"module", "nic", "optics"})
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "module.part",
            "module.revision",
            "module.serial",
            "module.vendor",
            "nic.phy.recommendation",
            "nic.phy.state",
            "optics.bias_ma",
            "optics.rx_power_dbm",
            "optics.temperature_celsius",
            "optics.tx_power_dbm",
            "optics.voltage_v",
        }
    )
    keeps: ClassVar[frozenset[str]] = frozenset({cable_ends.LIGHT, *_LANE_ERRORS})

    def wants(self, target: Target) -> bool:
        return True

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """One round where the inventory names every interface, otherwise a second for those that
        the first lists."""
        first = [
            Command("ip", ("ip", "-j", "link"), _QUICK),
            build_net_command(),
            build_pci_command(),
            _HAS_MLXLINK,
        ]
        if is_all_known(target):
            nics = [nic.device for nic in target.expected.nics]
            first += _list_ethtool_commands(list_interfaces({}, target), nics)
            outputs = via.shell.run_all(target, self.name, first)
            return Reading(self.name, target, now, outputs)
        outputs = via.shell.run_all(target, self.name, first)
        listed = Reading(self.name, target, now, outputs)
        devices: list[str] = []
        if not outputs[_HAS_MLXLINK.name].is_missing:
            devices = [port.rdma.device for port in list_ports(listed) if port.rdma is not None]
        second = _list_ethtool_commands(list_interfaces(outputs, target), devices)
        more = via.shell.run_all(target, self.name, second) if second else {}
        return Reading(self.name, target, now, {**outputs, **more})

    def sniff(self, text: bytes) -> str:
        is_mlxlink = (
            b"Operational Info" in text or b"Raw Physical BER" in text or b"Module Info" in text
        )
        return (_MLXLINK if is_mlxlink else _MODULE) + _UNNAMED

    def parse(self, reading: Reading) -> Iterator[Observation]:
        found = _list_ports(reading)
        for port in found:
            module = _parse_module(reading, port)
            if module is None:
                continue
            yield from _observe_facts(reading, port, module)
            is_used = link(port, None, find_peers(port, found)).state not in _NOT_IN_USE
            if is_used and not module.is_low_power:
                yield from _evaluate_port(reading, port, module)
        complaints = list(dict.fromkeys(_list_complaints(reading)))
        if complaints:
            yield reading.silent("; ".join(complaints)[:500])
        else:
            yield reading.answered()

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        """The least light of each port, and which lane has more new errors than the others and less
        light too."""
        yield from cable_ends.observe_light(now)
        light: dict[str, dict[str, float]] = {}
        errors: dict[str, dict[str, int]] = {}
        for seen in now:
            lane = seen.attributes.get("lane", "")
            last = before.get((seen.resource, seen.metric))
            if seen.metric == "nic.module.rx_power_dbm":
                light.setdefault(seen.resource, {})[lane] = seen.value
            elif seen.metric in _LANE_ERRORS and last is not None and seen.value >= last.value:
                errors.setdefault(seen.resource, {})[lane] = seen.value - last.value
        if not errors:
            return
        at = max(seen.observed_at for seen in now)
        for resource, grown in errors.items():
            for lane, ratio, text in _compute_ratios(grown, light.get(resource, {})):
                attributes = {"lane": lane, "qualifier": f"lane {lane}", "text": text}
                yield Observation(resource, "nic.module.lane_error_ratio", ratio, at, attributes)


def _list_ethtool_commands(netdevs: Sequence[str], devices: Sequence[str]) -> list[Command]:
    modules = [
        Command(_MODULE + name, ("ethtool", "-m", name), _LIMIT, as_root=True) for name in netdevs
    ]
    links = [_get_mlxlink_command(name) for name in dict.fromkeys(devices) if _is_for_mlxlink(name)]
    return [*modules, *links]


def _get_mlxlink_command(device: str) -> Command:
    argv = ("mlxlink", "-d", device, "-m", "-c", "--json")
    return Command(_MLXLINK + device, argv, _LIMIT, as_root=True)


def _is_for_mlxlink(device: str) -> bool:
    return bool(device.startswith("mlx") and "bond" not in device and NAME.fullmatch(device))


def _list_ports(reading: Reading) -> list[NicPort]:
    """Those that the node lists, or those of single outputs handed in."""
    if "ip" in reading.outputs:
        return list_ports(reading)
    named = [name.partition(".")[2] for name in reading.outputs]
    return list_ports(reading, extra=[name for name in named if name])


def _parse_module(reading: Reading, port: NicPort) -> Optional[OpticalModule]:
    rdma = port.rdma.device if port.rdma is not None else ""
    outputs = reading.outputs
    ethtool = outputs.get(_MODULE + port.netdev)
    mlxlink = outputs.get(_MLXLINK + rdma) or outputs.get(_MLXLINK + port.device)
    by_ethtool = optics.parse_ethtool_module(ethtool.stdout) if ethtool is not None else None
    by_mlxlink = optics.parse_mlxlink(mlxlink.stdout) if mlxlink is not None else None
    return optics.merge(by_ethtool, by_mlxlink)


def _observe_facts(reading: Reading, port: NicPort, module: OpticalModule) -> Iterator[Observation]:
    """Facts, whatever they mean: values by lane, and who the module is."""
    resource = port.get_resource(reading.target)
    for name in ("serial", "vendor", "part", "revision"):
        if module.facts.get(name):
            yield reading.saw(f"module.{name}", module.facts[name], resource)
    for name, words in module.link.items():  # what mlxlink says of the link, its advice included
        yield reading.saw(f"nic.phy.{name}", words, resource)
    if not module.has_optics:
        return
    for what in _LEVELS:
        for lane, value in sorted(module.values.get(what, {}).items()):
            attributes = _get_lane_attributes(lane)
            yield reading.saw(f"optics.{what}", round(value, 4), resource, **attributes)


def _get_lane_attributes(lane: int) -> dict[str, str]:
    return {"lane": str(lane), "qualifier": f"lane {lane}"} if lane else {}


def _evaluate_port(reading: Reading, port: NicPort, module: OpticalModule) -> Iterator[Observation]:
    resource = port.get_resource(reading.target)
    if module.has_optics:
        yield from _evaluate_light(reading, resource, module, "rx_power_dbm", "receives")
        yield from _evaluate_light(reading, resource, module, "tx_power_dbm", "sends")
        limits = _get_bounds(module, "temperature_celsius", "high")
        for degrees in module.values.get("temperature_celsius", {}).values():
            text = f"{degrees:.0f} degrees Celsius{_format_limits(limits)}"
            attributes = {"text": text, **limits}
            yield reading.saw("nic.module.temperature_celsius", degrees, resource, **attributes)
        yield from _observe_flags(reading, resource, module)
    ber, uncorrectable = module.raw_ber, module.uncorrectable
    if ber is not None:
        text = f"{ber:.1e} before correction"
        yield reading.saw("nic.module.raw_ber", ber, resource, text=text)
    if uncorrectable is not None:
        text = f"{uncorrectable} errors after correction"
        attributes = {"qualifier": "uncorrectable", "text": text}
        yield reading.saw("nic.module.uncorrectable", uncorrectable, resource, **attributes)
    for lane, count in module.lane_errors.items():
        yield reading.saw(f"optics.raw_errors.lane{lane}", count, resource, lane=str(lane))


def _evaluate_light(
    reading: Reading, resource: str, module: OpticalModule, what: str, verb: str
) -> Iterator[Observation]:
    """Of each lane in use, against the module's own thresholds."""
    if what not in module.values:
        return
    limits = _get_bounds(module, what, "low")
    for lane in module.lit_lanes:
        dbm = module.values[what].get(lane, optics.DARK_DBM)
        text = f"lane {lane} {verb} {dbm:.2f} dBm{_format_limits(limits)}"
        attributes = {"text": text, **_get_lane_attributes(lane), **limits}
        yield reading.saw(f"nic.module.{what}", round(dbm, 2), resource, **attributes)


def _get_bounds(module: OpticalModule, what: str, way: str) -> dict[str, str]:
    """The module's own thresholds, where they are in order: raised at its alarm, cleared at its
    warning."""
    limits = module.limits.get(what, OpticsLimits())
    alarm, warning = getattr(limits, f"{way}_alarm"), getattr(limits, f"{way}_warning")
    if alarm is None or not limits.is_sane:
        return {}
    return {"raise_at": f"{alarm:g}", "clear_at": f"{alarm if warning is None else warning:g}"}


def _format_limits(limits: Mapping[str, str]) -> str:
    return f", its own alarm is at {limits['raise_at']}" if limits else ""


def _observe_flags(reading: Reading, resource: str, module: OpticalModule) -> Iterator[Observation]:
    for grade in ("alarm", "warning"):
        if grade not in module.flags:
            continue
        flags = module.list_active_flags(grade)
        if grade == "alarm":
            flags = [flag for flag in flags if not _is_evaluated_by_value(module, flag)]
        text = "; ".join(_format_flag(flag) for flag in flags) or "none is on"
        yield reading.saw(f"nic.module.{grade}", bool(flags), resource, text=text[:300])


def _is_evaluated_by_value(module: OpticalModule, flag: str) -> bool:
    what, way, _ = flag.split("/")
    return _EVALUATED_BY_VALUE.get(what) == way and bool(_get_bounds(module, what, way))


def _format_flag(flag: str) -> str:
    what, way, lane = flag.split("/")
    quantity = what.rpartition("_")[0].replace("_", " ")
    where = f" on lane {lane}" if lane != "0" else ""
    return f"{quantity} {way}{where}"


def _compute_ratios(
    grown: Mapping[str, int], light: Mapping[str, float]
) -> Iterator[tuple[str, float, str]]:
    """Each lane's new errors against the middle one of the others; 1 for a lane that gets as much
    light as the best."""
    best = max(light.values(), default=None)
    for lane, count in grown.items():
        others = [errors for other, errors in grown.items() if other != lane]
        if not others or best is None or lane not in light:
            continue
        ratio = count / max(statistics.median(others), 1)
        gap = best - light[lane]
        text = (
            f"lane {lane} has {ratio:.0f} times the errors of the others and receives {gap:.1f} dB"
            " less than the best"
        )
        is_suspect = gap > _LESS_LIGHT_DB
        yield lane, round(ratio, 2) if is_suspect else 1.0, text


def _list_complaints(reading: Reading) -> Iterator[str]:
    """ethtool as root is needed; mlxlink is NVIDIA's and may be missing, but not refuse."""
    is_read = False
    for name, output in reading.outputs.items():
        program = name.partition(".")[0]
        if program == "ip":
            is_read = output.status == 0 and nic_outputs.parse_interfaces(output.stdout) is not None
            if not is_read:
                yield f"ip: {output.complaint}"
        elif program == "ethtool-m" and optics.parse_ethtool_module(output.stdout) is None:
            if not any(words in output.stderr for words in _NO_MODULE):
                reason = "it is not installed" if output.is_missing else output.complaint
                yield f"ethtool -m: {reason}"
        elif program == "mlxlink" and _is_refused(output) and not _is_without_mlxlink(reading):
            yield f"mlxlink: {output.complaint}"
        is_read = is_read or (program in ("ethtool-m", "mlxlink") and _has_output(output))
    if not is_read:
        yield "nothing that speaks of modules"


def _is_without_mlxlink(reading: Reading) -> bool:
    version = reading.outputs.get(_HAS_MLXLINK.name)
    return version is not None and version.is_missing


def _is_refused(output: Output) -> bool:
    if output.is_missing or optics.parse_mlxlink(output.stdout) is not None:
        return False
    return output.status is None or b"sudo" in output.stderr


def _has_output(output: Output) -> bool:
    return (
        optics.parse_ethtool_module(output.stdout) is not None
        or optics.parse_mlxlink(output.stdout) is not None
    )
