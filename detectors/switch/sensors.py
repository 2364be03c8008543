"""Sensors of a switch with their values in plain units, and the limits that the device itself gives
them. Pure.

ENTITY-SENSOR-MIB (RFC 3433) first, CISCO-ENTITY-SENSOR-MIB where an agent has that alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from detectors.switch import tables as switch_tables
from detectors.switch.tables import Tables

VOLTS_DC, AMPERES, WATTS, CELSIUS, RPM, DBM, UNKNOWN = 4, 5, 6, 8, 10, 14, 2
_UNITS = 9
_OPERATIONAL = 1
# CISCO-ENTITY-SENSOR-MIB: severities minor(10) to critical(30), relations greaterThan(3) and
# greaterOrEqual(4).
_MINOR, _MAJOR = 10, 20
_GREATER = frozenset({3, 4})
# Both MIBs: a value that is out of range, such as a limit that is none.
_OUT_OF_RANGE = 1_000_000_000


@dataclass(frozen=True)
class Sensor:
    """One operational sensor: watts, amperes, degrees Celsius, volts, dBm or RPM. `limits` as rules
    take them."""

    row: str
    name: str
    kind: int
    value: float
    limits: dict[str, str] = field(default_factory=dict)


def list_sensors(tables: Tables) -> Iterator[Sensor]:
    """Those that say they work. Status unavailable(2) comes with a value of 0, which means
    nothing."""
    standard = tables.get_column(switch_tables.SENSOR_VALUE)
    yield from _read_columns(tables, switch_tables.SENSORS)
    if not standard:
        yield from _read_columns(tables, switch_tables.CISCO_SENSORS)


def _read_columns(tables: Tables, columns: tuple[str, ...]) -> Iterator[Sensor]:
    types, scales, precisions, values, states = columns
    gives_states = bool(tables.get_column(states))
    for row in tables.get_column(values):
        value, kind = tables.get_number(values, row), tables.get_number(types, row)
        status = tables.get_number(states, row) if gives_states else _OPERATIONAL
        scale = tables.get_number(scales, row) or _UNITS
        precision = tables.get_number(precisions, row) or 0
        if (
            value is not None
            and kind is not None
            and status == _OPERATIONAL
            and abs(precision) <= 9
        ):
            factor = 10.0 ** (3 * (min(max(scale, 1), 17) - _UNITS) - precision)
            yield Sensor(
                row, name(tables, row), kind, value * factor, _get_limits(tables, row, factor)
            )


def name(tables: Tables, row: str) -> str:
    """What the part is called. Some agents leave the description empty, others the name."""
    described = tables.get_text(switch_tables.ENTITY_DESCR, row)
    return described or tables.get_text(switch_tables.ENTITY_NAME, row) or f"part {row}"


def _get_limits(tables: Tables, row: str, factor: float) -> dict[str, str]:
    """Raised at the device's own critical (or major) high limit, cleared at its warning."""
    critical = tables.get_number(switch_tables.ARISTA_HIGH_CRITICAL, row)
    warning = tables.get_number(switch_tables.ARISTA_HIGH_WARNING, row)
    for number in range(1, 7):
        key = f"{row}.{number}"
        value = tables.get_number(switch_tables.CISCO_LIMIT_VALUE, key)
        relation = tables.get_number(switch_tables.CISCO_LIMIT_RELATION, key)
        if value is None or relation not in _GREATER:
            continue
        severity = tables.get_number(switch_tables.CISCO_LIMIT_SEVERITY, key) or 0
        if severity >= _MAJOR:
            critical = value if critical is None else min(critical, value)
        elif severity == _MINOR:
            warning = value
    if critical is None or not 0 < critical < _OUT_OF_RANGE:
        return {}
    back = warning if warning is not None and 0 < warning <= critical else critical
    return {"raise_at": f"{critical * factor:g}", "clear_at": f"{back * factor:g}"}
