"""What modules say of themselves, from `ethtool -m` (SFF-8472, SFF-8636, CMIS) and mlxlink, as one
shape. Pure.

Total on any text, linear in its length. Python 3.9, standard library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

DARK_DBM = -40.0
"""What modules and ethtool give for no light at all: `-40 dBm`, `-inf dBm`, `-infdBm`."""
LANES = 16

_LINE = re.compile(r"\s*(?P<name>[A-Za-z][^:\r\n]{1,79}?)\s*: ?(?P<value>[^\r\n]{0,200})")
_LANE = re.compile(r"\s{0,8}\(Chan(?:nel)? (\d{1,2})\)\s{0,8}$")
_DBM = re.compile(r"(-?\d{1,4}(?:\.\d{1,6})?|-inf)\s?dBm")
_FIRST_NUMBER = re.compile(r"\s*(-?\d{1,6}(?:\.\d{1,6})?)")
_THRESHOLD = re.compile(r"(?P<what>.+) (?P<way>high|low) (?P<grade>alarm|warning) threshold")
_FLAG = re.compile(r"(?P<what>.+) (?P<way>high|low) (?P<grade>alarm|warning)")
_RANGE = re.compile(r"\[\s*(-?\d{1,6}(?:\.\d{1,6})?)\s*\.\.\s*(-?\d{1,6}(?:\.\d{1,6})?)\s*\]")
_BER = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)[Ee]-(\d{1,3})")
# mlxlink prints 15E-255 where there is no rate; no real link is ever known to be better than this.
_BEST_BER_EXPONENT = 40

# The several names of one quantity. Values: metric's last word. Thresholds and flags are named in
# other ways again.
_QUANTITIES = {
    "laser bias current": "bias_ma",
    "laser tx bias current": "bias_ma",
    "laser output power": "tx_power_dbm",
    "transmit avg optical power": "tx_power_dbm",
    "laser tx power": "tx_power_dbm",
    "receiver signal average optical power": "rx_power_dbm",
    "receiver signal oma": "rx_power_dbm",
    "rcvr signal avg optical power": "rx_power_dbm",
    "laser rx power": "rx_power_dbm",
    "module temperature": "temperature_celsius",
    "module voltage": "voltage_v",
}
_MLXLINK = {
    "Bias Current [mA]": "bias_ma",
    "Tx Power Current [dBm]": "tx_power_dbm",
    "Rx Power Current [dBm]": "rx_power_dbm",
    "Temperature [C]": "temperature_celsius",
    "Voltage [mV]": "voltage_v",
}
_WHOLE = ("temperature_celsius", "voltage_v")
_FACTS = {
    "Vendor name": "vendor",
    "Vendor PN": "part",
    "Vendor SN": "serial",
    "Vendor rev": "revision",
    "Identifier": "identifier",
    "Vendor Name": "vendor",
    "Vendor Part Number": "part",
    "Vendor Serial Number": "serial",
}
_LINK = {
    "State": "state",
    "Speed": "speed",
    "Width": "width",
    "FEC": "fec",
    "Recommendation": "recommendation",
}
_COPPER = ("copper", "passive", "base-cr", "backplane", "base-t")
_KINDS = (
    "Transmitter technology",
    "Transceiver type",
    "Connector",
    "Cable Type",
    "Cable Technology",
    "Extended identifier",
)


@dataclass(frozen=True)
class OpticsLimits:
    """A module's own thresholds of one quantity."""

    low_alarm: Optional[float] = None
    low_warning: Optional[float] = None
    high_warning: Optional[float] = None
    high_alarm: Optional[float] = None

    @property
    def is_sane(self) -> bool:
        """Modules with an unwritten memory give thresholds out of order; what they claim then means
        nothing."""
        known = (self.low_alarm, self.low_warning, self.high_warning, self.high_alarm)
        there = [value for value in known if value is not None]
        return len(there) < 2 or (there == sorted(there) and there[0] < there[-1])

    def is_outside(self, value: float, way: str, grade: str) -> Optional[bool]:
        """Whether the value is past that threshold; None where the module has none."""
        limit = getattr(self, f"{way}_{grade}")
        if limit is None:
            return None
        return bool(value >= limit if way == "high" else value <= limit)


@dataclass
class OpticalModule:
    """One module. Lanes count from 1; quantities of the whole module stand under lane 0."""

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    limits: dict[str, OpticsLimits] = field(default_factory=dict)
    flags: dict[str, list[str]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    is_copper: bool = False
    is_low_power: bool = False
    raw_ber: Optional[float] = None
    lane_errors: dict[int, int] = field(default_factory=dict)
    uncorrectable: Optional[int] = None
    link: dict[str, str] = field(default_factory=dict)

    @property
    def lit_lanes(self) -> list[int]:
        """Lanes in use. Those of a half-used module that are not have no light either way: nothing
        is wrong there."""
        rx, tx = self.values.get("rx_power_dbm", {}), self.values.get("tx_power_dbm", {})
        lanes = sorted({*rx, *tx})
        powers = [max(rx.get(lane, DARK_DBM), tx.get(lane, DARK_DBM)) for lane in lanes]
        return [lane for lane, power in zip(lanes, powers) if power > DARK_DBM]

    def list_active_flags(self, grade: str) -> list[str]:
        """Flags of `alarm` or `warning` that hold: one latched by what has passed since says less
        than the value."""
        found = []
        for flag in self.flags.get(grade, ()):
            what, way, lane = flag.split("/")
            limits = self.limits.get(what, OpticsLimits())
            value = self.values.get(what, {}).get(int(lane) or (0 if what in _WHOLE else 1))
            is_passed = value is None or limits.is_outside(value, way, grade) is not False
            if limits.is_sane and is_passed:
                found.append(flag)
        return found

    @property
    def has_optics(self) -> bool:
        """Copper gives zeros and raises flags of lost light."""
        return not self.is_copper and bool(self.values)


def parse_ethtool_module(text: bytes) -> Optional[OpticalModule]:
    """`ethtool -m INTERFACE`, whole or in part. None when nothing in it is of a module."""
    module = OpticalModule()
    bounds: dict[str, dict[str, float]] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        match = _LINE.match(line)
        if match is not None:
            _set_value(module, bounds, match["name"].strip(), match["value"].strip())
    module.limits = {what: OpticsLimits(**named) for what, named in bounds.items()}
    return module if module.values or module.facts.get("identifier") else None


def _set_value(
    module: OpticalModule, bounds: dict[str, dict[str, float]], name: str, value: str
) -> None:
    threshold = _THRESHOLD.fullmatch(name)
    if threshold is not None:
        what, number = _get_quantity(threshold["what"]), _parse_amount(value)
        if what and number is not None:
            bounds.setdefault(what, {})[f"{threshold['way']}_{threshold['grade']}"] = number
        return
    if name in _FACTS:
        module.facts.setdefault(_FACTS[name], value[:60])
    if name in _KINDS and any(word in value.lower() for word in _COPPER):
        module.is_copper = True
    if name == "Module State":
        module.is_low_power = "lowpwr" in value.lower()
    if value in ("On", "Off"):
        _set_flag(module, name, value)
        return
    lane = _LANE.search(name)
    what, number = _get_quantity(_LANE.sub("", name)), _parse_amount(value)
    if what and number is not None:
        is_whole = what in _WHOLE
        module.values.setdefault(what, {})[
            0 if is_whole else min(int(lane[1]), LANES) if lane else 1
        ] = number


def _set_flag(module: OpticalModule, name: str, value: str) -> None:
    lane = _LANE.search(name)
    match = _FLAG.fullmatch(_LANE.sub("", name).strip())
    what = _get_quantity(match["what"]) if match is not None else ""
    if match is not None and what:
        on = module.flags.setdefault(match["grade"], [])
        if value == "On":
            number = lane[1] if lane else "0"
            on.append(f"{what}/{match['way']}/{number}")


def _get_quantity(name: str) -> str:
    return _QUANTITIES.get(" ".join(name.lower().split()), "")


def _parse_amount(text: str) -> Optional[float]:
    """dBm where light is meant, else the first number, whatever its unit."""
    power = _DBM.search(text)
    if power is not None:
        return DARK_DBM if power[1] == "-inf" else max(float(power[1]), DARK_DBM)
    first = _FIRST_NUMBER.match(text)
    return None if first is None else float(first[1])


def parse_mlxlink(text: bytes) -> Optional[OpticalModule]:
    """`mlxlink -m -c`, as JSON or as text. None when it is neither."""
    sections = _parse_sections(text)
    if not sections:
        return None
    module = OpticalModule()
    for name, value in sections.items():
        _set_mlxlink(module, name, value)
    return module


def _parse_sections(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        lines = (_LINE.match(line) for line in text.decode("utf-8", "replace").splitlines())
        found = {
            match["name"].strip(): match["value"].strip() for match in lines if match is not None
        }
        return found if {"State", "Raw Physical BER", "Rx Power Current [dBm]"} & set(found) else {}
    for name in ("result", "output"):
        document = document.get(name, {}) if isinstance(document, dict) else {}
    flat: dict[str, Any] = {}
    for section in document.values() if isinstance(document, dict) else ():
        flat.update(section if isinstance(section, dict) else {})
    return flat


def _set_mlxlink(module: OpticalModule, name: str, value: Any) -> None:
    text = ",".join(_list_words(value))
    if name in _MLXLINK:
        _set_levels(module, _MLXLINK[name], text)
    elif name in _FACTS and text not in ("", "N/A"):
        module.facts.setdefault(_FACTS[name], text[:60])
    elif name in ("Cable Type", "Cable Technology") and "copper" in text.lower():
        module.is_copper = True
    elif name in _LINK and text not in ("", "N/A"):
        module.link[_LINK[name]] = text[:120]
    elif name == "Module State":
        module.is_low_power = "low" in text.lower()
    elif name == "Raw Physical BER":
        module.raw_ber = parse_ber(text)
    elif name == "Raw Physical Errors Per Lane":
        parts = text.split(",")[:LANES]
        module.lane_errors = {
            n: int(part[-20:]) for n, part in enumerate(parts, 1) if part.strip().isdecimal()
        }
    elif name in ("Effective Physical Errors", "FEC Uncorrectable Codewords") and text.isdecimal():
        module.uncorrectable = max(module.uncorrectable or 0, int(text[:20]))


def _list_words(value: Any) -> Iterator[str]:
    """mlxlink's JSON has strings, lists, and {"values": [...]}."""
    if isinstance(value, Mapping):
        value = value.get("values", [])
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, (str, int, float)):
            yield str(each).strip()


def _set_levels(module: OpticalModule, what: str, text: str) -> None:
    """`1.886,1.989 [-10.41..6]`: a value for each lane, then the module's own limits."""
    bounds = _RANGE.search(text)
    scale = 0.001 if what == "voltage_v" else 1.0
    parts = text.partition("[")[0].split(",")[:LANES]
    numbers = [_FIRST_NUMBER.match(part) for part in parts]
    is_whole = what in _WHOLE
    for lane, number in enumerate(numbers, 0 if is_whole else 1):
        if number is not None:
            value = float(number[1]) * scale
            module.values.setdefault(what, {})[lane] = (
                max(value, DARK_DBM) if what.endswith("dbm") else value
            )
        elif "-inf" in parts[lane - (0 if is_whole else 1)]:
            module.values.setdefault(what, {})[lane] = DARK_DBM
    if bounds is not None and float(bounds[1]) < float(bounds[2]):
        module.limits[what] = OpticsLimits(
            low_alarm=float(bounds[1]) * scale, high_alarm=float(bounds[2]) * scale
        )


def parse_ber(text: str) -> Optional[float]:
    """`2E-08`. None for what stands for "not measured"."""
    found = _BER.search(text)
    if found is None or int(found[2]) > _BEST_BER_EXPONENT:
        return None
    return float(f"{found[1]}e-{found[2]}")


def merge(
    first: Optional[OpticalModule], second: Optional[OpticalModule]
) -> Optional[OpticalModule]:
    """One module of two programs: ethtool's thresholds are the finer ones, mlxlink alone knows the
    link's errors."""
    if first is None or second is None:
        return first or second
    first.values = {**second.values, **first.values}
    first.limits = {**second.limits, **first.limits}
    first.facts = {**second.facts, **first.facts}
    first.is_copper = first.is_copper or second.is_copper
    first.is_low_power = first.is_low_power or second.is_low_power
    first.raw_ber, first.lane_errors = second.raw_ber, second.lane_errors
    first.uncorrectable, first.link = second.uncorrectable, second.link
    return first
