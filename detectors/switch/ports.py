"""The ports of a switch from IF-MIB: their names, whether they are up, and what their counters
gained. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detectors import resources
from detectors.detector import Reading, Samples
from detectors.expected import Expected
from detectors.faults import Observation
from detectors.switch import tables as switch_tables
from detectors.switch.tables import Tables

# IANAifType-MIB: ethernetCsmacd, gigabitEthernet (obsolete), infiniband, ieee8023adLag. VLANs and
# loopbacks are none.
_PORT_TYPES = frozenset({6, 117, 199, 161})
_OPER = {
    1: "up",
    2: "down",
    3: "testing",
    4: "unknown",
    5: "dormant",
    6: "notPresent",
    7: "lowerLayerDown",
}
_NAMED = re.compile(r"^[A-Za-z][\w.:/-]{0,64}\d[\w.:/-]{0,64}$|^\d{1,8}(?:[/:]\d{1,8}){1,8}$")

# The order of `port.counters`, one list for each port so that few samples are kept: column, width
# in bits, metric.
COUNTERS = (
    (switch_tables.IF_HC_IN_OCTETS, 64, "port.in_bytes_per_second"),
    (switch_tables.IF_HC_OUT_OCTETS, 64, "port.out_bytes_per_second"),
    (switch_tables.IF_IN_ERRORS, 32, "port.in_errors_per_second"),
    (switch_tables.IF_OUT_ERRORS, 32, "port.out_errors_per_second"),
    (switch_tables.IF_IN_DISCARDS, 32, "port.in_discards_per_second"),
    (switch_tables.IF_OUT_DISCARDS, 32, "port.out_discards_per_second"),
    (switch_tables.PFC_SENT, 64, "port.pfc_sent_per_second"),
    (switch_tables.PFC_RECEIVED, 64, "port.pfc_received_per_second"),
)
IN_BYTES = 0
_WORDS = {
    "port.in_errors_per_second": "broken packets received",
    "port.out_errors_per_second": "packets that could not be sent",
    "port.in_discards_per_second": "packets dropped on arrival",
    "port.out_discards_per_second": "packets dropped before sending",
    "port.pfc_sent_per_second": "pause frames sent",
    "port.pfc_received_per_second": "pause frames received",
}
_WRAP_32 = 2**32


@dataclass(frozen=True)
class SwitchPort:
    """One interface that takes a cable, or a bundle of such. `is_cabled`: the inventory says what
    it leads to."""

    index: str
    name: str
    is_admin_up: bool
    oper: str
    is_cabled: bool


def list_port_names(tables: Tables, expected: Expected) -> dict[str, str]:
    """ifIndex to the name by which the switch itself logs the port; each name once.

    SONiC gives its own name (Ethernet0) in ifDescr and the front panel's (Eth1/1) in ifName; Linux
    gives the vendor of the card in ifDescr. A name that the inventory knows goes first.
    """
    known = {port.name for port in expected.ports}
    found: dict[str, str] = {}
    taken: set[str] = set()
    described = tables.get_column(switch_tables.IF_DESCR)
    for index in {**described, **tables.get_column(switch_tables.IF_NAME)}:
        name = _choose_name(tables, index, known)
        found[index] = f"{name}:{index}" if name in taken else name
        taken.add(found[index])
    return found


def _choose_name(tables: Tables, index: str, known: Collection[str]) -> str:
    description = _join_words(tables.get_text(switch_tables.IF_DESCR, index))
    short = _join_words(tables.get_text(switch_tables.IF_NAME, index))
    for name in (description, short):
        if name in known:
            return name
    for name in (description, short):
        if _NAMED.match(name):
            return name
    return short or description or f"if{index}"


def _join_words(name: str) -> str:
    """`Ethernet 1/1` as `Ethernet1/1`; text of more words stays as it is."""
    return name.replace(" ", "") if name.count(" ") == 1 else name


def list_ports(tables: Tables, expected: Expected) -> list[SwitchPort]:
    """Without VLANs, loopbacks and tunnels. An agent that gives no ifType is taken at its word."""
    named = list_port_names(tables, expected)
    found = []
    for index in tables.get_column(switch_tables.IF_OPER):
        kind = tables.get_number(switch_tables.IF_TYPE, index)
        if index not in named or (kind is not None and kind not in _PORT_TYPES):
            continue
        name = named[index]
        known = expected.port(name)
        is_cabled = known is not None and bool(known.peer)
        oper = _OPER.get(tables.get_number(switch_tables.IF_OPER, index) or 0, "unknown")
        is_admin_up = tables.get_number(switch_tables.IF_ADMIN, index) != 2
        found.append(SwitchPort(index, name, is_admin_up, oper, is_cabled))
    return found


def observe(reading: Reading, tables: Tables, fdb: Mapping[str, int]) -> Iterator[Observation]:
    """State and counters of each port; `fdb` says how many hardware addresses each ifIndex has
    learned."""
    for port in list_ports(tables, reading.target.expected):
        resource = resources.port(reading.target.name, port.name)
        admin = "up" if port.is_admin_up else "down"
        cabled = "yes" if port.is_cabled else "no"
        yield reading.saw("port.oper", port.oper, resource, admin=admin, cabled=cabled)
        if port.is_cabled and not (tables.is_booting and not _is_well(port.oper, admin)):
            is_well = _is_well(port.oper, admin)
            yield reading.saw("port.well", is_well, resource, text=_format_text(port.oper, admin))
        counters = [tables.get_number(column, port.index) for column, _, _ in COUNTERS]
        yield reading.saw("port.counters", [*counters, fdb.get(port.index, 0)], resource)


def compare_port_states(
    now: Sequence[Observation], before: Samples, *, is_booting: bool
) -> Iterator[Observation]:
    """Ports that the inventory does not know are watched from the first time on that they were seen
    up.

    While the switch boots nothing is said of a port that is not up yet.
    """
    for seen in now:
        if seen.metric != "port.oper" or seen.attributes.get("cabled") == "yes":
            continue
        admin = seen.attributes.get("admin", "up")
        if seen.value == "up" or (seen.resource, "port.in_use") in before:
            yield Observation(seen.resource, "port.in_use", True, seen.observed_at)
            is_well, text = _is_well(str(seen.value), admin), _format_text(str(seen.value), admin)
            if is_well or not is_booting:
                yield Observation(
                    seen.resource, "port.well", is_well, seen.observed_at, {"text": text}
                )


def _is_well(oper: str, admin: str) -> bool:
    return admin == "down" or oper == "up"


def _format_text(oper: str, admin: str) -> str:
    if admin == "down":
        return "the port is shut down by its configuration"
    hint = {
        "notPresent": ": no transceiver is found in it",
        "lowerLayerDown": ": a port below it is down",
    }.get(oper, "")
    return f"the port is {oper}{hint}"


def compute_rates(
    now: Sequence[Observation], before: Samples, *, is_restarted: bool
) -> Iterator[Observation]:
    """What each counter gained a second since the round before; nothing for one that began anew."""
    for seen in now:
        last = (
            before.get((seen.resource, "port.counters")) if seen.metric == "port.counters" else None
        )
        if last is None or not isinstance(last.value, list) or is_restarted:
            continue
        passed_s = (seen.observed_at - last.at).total_seconds()
        if passed_s <= 0:
            continue
        for (_, bits, metric), value, old in zip(COUNTERS, seen.value, last.value, strict=False):
            gained = get_increase(value, old, bits)
            if gained is None:
                continue
            rate = round(gained / passed_s, 3)
            attributes: dict[str, str] = {}
            if metric in _WORDS:
                attributes["text"] = f"{gained} {_WORDS[metric]} in {passed_s:.0f} s"
            yield Observation(seen.resource, metric, rate, seen.observed_at, attributes)


def get_increase(value: Any, old: Any, bits: int) -> int | None:
    """By how much a counter grew. One that fell was reset, or wrapped if it has 32 bits and fell by
    most."""
    if not isinstance(value, int) or not isinstance(old, int):
        return None
    if value >= old:
        return value - old
    has_wrapped = bits == 32 and _WRAP_32 // 2 < old - value <= _WRAP_32
    return value - old + _WRAP_32 if has_wrapped else None


def compute_fallen_share(now: Sequence[Observation], before: Samples) -> float:
    """Share of the ports whose byte counters are lower than before: near 1 after a boot, 0 after an
    agent's restart."""
    fallen = known = 0
    for seen in now:
        if seen.metric != "port.counters":
            continue
        last = before.get((seen.resource, "port.counters"))
        if last is None or not isinstance(last.value, list):
            continue
        new, old = seen.value[IN_BYTES], last.value[IN_BYTES]
        if isinstance(new, int) and isinstance(old, int) and old > 0:
            known += 1
            fallen += new < old
    return fallen / known if known else 0.0
