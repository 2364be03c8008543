"""What SNMP notifications mean: from OIDs and values, or snmptrapd's text, to observations. Pure,
total on any input.

A notification is a hint that comes over UDP: what it raises never asks for more than a look
(catalog/trap.toml), and polls and logs say what is so. OIDs are those of the MIBs named beside
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from detectors import resources
from detectors.detector import Reading
from detectors.faults import Observation

# SNMPv2-MIB, IF-MIB, BGP4-MIB, ENTITY-MIB, ENTITY-STATE-MIB, LLDP-MIB, CISCO-ENTITY-SENSOR-MIB,
# JUNIPER-MIB.
NOTIFICATIONS = {
    "1.3.6.1.6.3.1.1.5.1": "coldStart",
    "1.3.6.1.6.3.1.1.5.2": "warmStart",
    "1.3.6.1.6.3.1.1.5.3": "linkDown",
    "1.3.6.1.6.3.1.1.5.4": "linkUp",
    "1.3.6.1.6.3.1.1.5.5": "authenticationFailure",
    "1.3.6.1.2.1.15.0.1": "bgpEstablishedNotification",
    "1.3.6.1.2.1.15.0.2": "bgpBackwardTransNotification",
    "1.3.6.1.2.1.15.7.1": "bgpEstablished",
    "1.3.6.1.2.1.15.7.2": "bgpBackwardTransition",
    "1.3.6.1.2.1.15.7.0.1": "bgpEstablished",  # a v1 trap as RFC 3584 (3.1) makes a v2 one of it
    "1.3.6.1.2.1.15.7.0.2": "bgpBackwardTransition",
    "1.3.6.1.2.1.47.2.0.1": "entConfigChange",
    "1.3.6.1.2.1.131.0.1": "entStateOperEnabled",
    "1.3.6.1.2.1.131.0.2": "entStateOperDisabled",
    "1.0.8802.1.1.2.0.0.1": "lldpRemTablesChange",
    "1.3.6.1.4.1.9.9.91.2.0.1": "entSensorThresholdNotification",
    "1.3.6.1.4.1.2636.4.1.1": "jnxPowerSupplyFailure",
    "1.3.6.1.4.1.2636.4.2.1": "jnxPowerSupplyOK",
}
VARIABLES = {
    "1.3.6.1.2.1.2.2.1.1": "ifIndex",
    "1.3.6.1.2.1.2.2.1.2": "ifDescr",
    "1.3.6.1.2.1.2.2.1.7": "ifAdminStatus",
    "1.3.6.1.2.1.2.2.1.8": "ifOperStatus",
    "1.3.6.1.2.1.31.1.1.1.1": "ifName",
    "1.3.6.1.2.1.15.3.1.2": "bgpPeerState",
    "1.3.6.1.2.1.15.3.1.7": "bgpPeerRemoteAddr",
    "1.3.6.1.2.1.47.1.1.1.1.2": "entPhysicalDescr",
    "1.3.6.1.2.1.47.1.1.1.1.7": "entPhysicalName",
    "1.3.6.1.2.1.99.1.1.1.4": "entPhySensorValue",
    "1.3.6.1.2.1.99.1.1.1.5": "entPhySensorOperStatus",
    "1.3.6.1.4.1.2636.3.1.13.1.5": "jnxOperatingDescr",
}
TRAP_OID = "1.3.6.1.6.3.1.1.4.1.0"
# INTEGER words of the MIBs, as text from snmptrapd gives them.
_DOWN = frozenset({"2", "down", "down(2)"})
_NOT_WORKING = frozenset({"3", "nonoperational", "nonoperational(3)"})
_WORKING = frozenset({"1", "ok", "ok(1)"})
_MOST_VALUES = 64
_LONGEST = 120

PortName = Callable[[str], str]
"""A port's name by its ifIndex; empty where it is not known."""


@dataclass(frozen=True)
class Bound:
    """One variable of a notification: its name (or OID), the index behind it, its value as text."""

    name: str
    index: str
    value: str


@dataclass(frozen=True)
class TrapNotification:
    """One trap or inform. `name` as its MIB calls it, or the OID."""

    name: str
    bound: tuple[Bound, ...] = ()

    def get_value(self, *names: str) -> str:
        """The value of the first of these variables that it holds; empty where it holds none."""
        for name in names:
            for bound in self.bound:
                if bound.name == name and bound.value:
                    return bound.value
        return ""

    def get_index(self, *names: str) -> str:
        for name in names:
            for bound in self.bound:
                if bound.name == name and bound.index:
                    return bound.index
        return ""

    @property
    def summary(self) -> str:
        """For people, on one line."""
        shown = [bound for bound in self.bound[:8] if bound.value]
        if not shown:
            return self.name
        values = ", ".join(f"{bound.name.rpartition('::')[2]} {bound.value}" for bound in shown)
        return f"{self.name}: {values}"[:400]


def parse_oids(pairs: Sequence[tuple[str, object]]) -> Optional[TrapNotification]:
    """Of a decoded v2 notification (dotted OIDs); None where it does not say which it is."""
    name = ""
    bound: list[Bound] = []
    for oid, value in pairs[:_MOST_VALUES]:
        if oid == TRAP_OID:
            name = NOTIFICATIONS.get(str(value), str(value))
        else:
            bound.append(_parse_value(oid, _get_text(value)))
    return TrapNotification(name, tuple(bound)) if name else None


def _parse_value(oid: str, value: str) -> Bound:
    parts = oid.split(".")
    for length in range(len(parts) - 1, 6, -1):
        name = VARIABLES.get(".".join(parts[:length]))
        if name is not None:
            return Bound(name, ".".join(parts[length:]), value)
    return Bound(oid, "", value)


def _get_text(value: object) -> str:
    if isinstance(value, bytes):
        shown = value.decode("utf-8", "replace")
        text = shown if shown.isprintable() else value.hex(":")
    else:
        text = str(value)
    return text[:_LONGEST]


_TRAP_LINE = re.compile(
    r"^(?:\S{0,60}snmpTrapOID(?:\.0)?|\.?1\.3\.6\.1\.6\.3\.1\.1\.4\.1\.0)\s*(?:=\s*)?(?:OID:"
    r" )?(?P<value>\S{1,200})"
)
_VALUE_LINE = re.compile(
    r"^(?P<oid>[\w.:$>-]{1,200})\s*(?:=\s*(?:[\w-]{1,20}: )?|\s)(?P<value>[^\r\n]{0,400})$"
)


def parse_text(text: str) -> Iterator[TrapNotification]:
    """What snmptrapd hands to a program or writes to its log: names or OIDs with their values, a
    line each."""
    name = ""
    bound: list[Bound] = []
    for line in text.splitlines():
        start = _TRAP_LINE.match(line.strip())
        if start is not None:
            if name:
                yield TrapNotification(name, tuple(bound[:_MOST_VALUES]))
            oid = start["value"].lstrip(".")
            name, bound = NOTIFICATIONS.get(oid, oid.rpartition("::")[2]), []
            continue
        found = _VALUE_LINE.match(line.strip()) if name and len(bound) < _MOST_VALUES else None
        if found is not None and ("::" in found["oid"] or found["oid"].lstrip(".")[:1].isdecimal()):
            bound.append(
                _parse_text_value(
                    found["oid"].lstrip("."), found["value"].strip().strip('"').strip()[:_LONGEST]
                )
            )
    if name:
        yield TrapNotification(name, tuple(bound))


def _parse_text_value(oid: str, value: str) -> Bound:
    if "::" not in oid:
        return _parse_value(oid, value)
    name, _, index = oid.rpartition("::")[2].partition(".")
    return Bound(name, index, value)


def find_no_port_name(index: str) -> str:
    return ""


@dataclass(frozen=True)
class _Seen:
    """What one notification says: metric, value, port (empty: the whole switch), qualifier."""

    metric: str
    value: bool
    text: str
    port: str = ""
    qualifier: str = ""


def observe_trap(
    reading: Reading, trap: TrapNotification, port_name: PortName = find_no_port_name
) -> Iterator[Observation]:
    """Facts of the rules' metrics; nothing for a notification that is not known."""
    read = _READERS.get(trap.name, _read_sensor)
    seen = read(trap, port_name)
    if seen is None:
        return
    host = reading.target.name
    resource = resources.port(host, seen.port) if seen.port else resources.switch(host)
    attributes = {"qualifier": seen.qualifier} if seen.qualifier else {}
    text = f"a notification says: {seen.text}"
    yield reading.saw(seen.metric, seen.value, resource, trap=trap.name, text=text, **attributes)


def is_known(trap: TrapNotification) -> bool:
    return trap.name in _READERS or bool(trap.get_value("entPhySensorOperStatus"))


def _get_port(trap: TrapNotification, port_name: PortName) -> str:
    """By name where the notification brings it, else by what the inventory makes of its index."""
    name = trap.get_value("ifName", "ifDescr")
    if name:
        return name
    index = trap.get_value("ifIndex") or trap.get_index(
        "ifIndex", "ifAdminStatus", "ifOperStatus", "ifDescr", "ifName"
    )
    return port_name(index) or (f"ifindex:{index}" if index else "")


def _link(trap: TrapNotification, port_name: PortName) -> Optional[_Seen]:
    """A port that is shut on purpose is no fault."""
    port = _get_port(trap, port_name)
    is_up = trap.name == "linkUp"
    if not port or (not is_up and trap.get_value("ifAdminStatus") in _DOWN):
        return None
    text = f"port {port} is {'up' if is_up else 'down'}"
    return _Seen("trap.port_up", is_up, text, port=port)


def _start(trap: TrapNotification, port_name: PortName) -> Optional[_Seen]:
    """The agent's start: of a container of its own on SONiC, so that it says nothing of the
    switch."""
    how = "anew" if trap.name == "coldStart" else "anew with its settings kept"
    return _Seen("trap.agent_started", True, f"the SNMP agent started {how}")


def _read_credentials(trap: TrapNotification, port_name: PortName) -> Optional[_Seen]:
    return _Seen("trap.credentials_right", False, "somebody asked the agent with wrong credentials")


def _read_bgp(trap: TrapNotification, port_name: PortName) -> Optional[_Seen]:
    """The neighbour stands in the index of every variable; a state other than established is a
    session lost."""
    peer = trap.get_value("bgpPeerRemoteAddr") or trap.get_index(
        "bgpPeerState",
        "bgpPeerLastError",
        "bgpPeerRemoteAddr",
        "jnxBgpM2PeerState",
        "1.3.6.1.2.1.15.3.1.14",
    )
    is_up = trap.name.endswith(("Established", "EstablishedNotification"))
    state = "established" if is_up else "lost"
    text = f"session with {peer or 'a neighbour'} is {state}"
    return _Seen("trap.bgp_established", is_up, text, qualifier=peer)


def _read_neighbours(trap: TrapNotification, port_name: PortName) -> Optional[_Seen]:
    return _Seen("trap.neighbours_changed", True, "its table of LLDP neighbours changed")


def _read_parts(trap: TrapNotification, port_name: PortName) -> Optional[_Seen]:
    return _Seen("trap.parts_changed", True, "its table of parts changed")


def _get_part_name(trap: TrapNotification) -> str:
    name = trap.get_value("entPhysicalName", "entPhysicalDescr")
    index = trap.get_index("entPhySensorOperStatus", "entPhySensorValue")
    first_index = trap.bound[0].index if trap.bound else ""
    return name or index or first_index


def _read_state(trap: TrapNotification, port_name: PortName) -> Optional[_Seen]:
    part = _get_part_name(trap)
    is_well = trap.name == "entStateOperEnabled"
    text = f"part {part or 'unknown'} is {'working' if is_well else 'not working'}"
    return _Seen("trap.part_working", is_well, text, qualifier=part)


def _read_threshold(trap: TrapNotification, port_name: PortName) -> Optional[_Seen]:
    part = _get_part_name(trap)
    text = f"sensor {part or 'unknown'} passed a threshold"
    return _Seen("trap.part_working", False, text, qualifier=part)


def _read_sensor(trap: TrapNotification, port_name: PortName) -> Optional[_Seen]:
    """Any vendor's notification that brings a sensor's state (ENTITY-SENSOR-MIB has none of its
    own)."""
    state, part = trap.get_value("entPhySensorOperStatus"), _get_part_name(trap)
    if state not in _NOT_WORKING | _WORKING:
        return None
    is_well = state in _WORKING
    text = f"sensor {part or 'unknown'} is {'working' if is_well else 'not working'}"
    return _Seen("trap.part_working", is_well, text, qualifier=part)


def _read_supply(trap: TrapNotification, port_name: PortName) -> Optional[_Seen]:
    unit = trap.get_value("jnxOperatingDescr")
    is_well = trap.name == "jnxPowerSupplyOK"
    text = f"power supply {unit or 'unknown'} {'works' if is_well else 'fails'}"
    return _Seen("trap.supply_working", is_well, text, qualifier=unit)


def _read_optics(trap: TrapNotification, port_name: PortName) -> Optional[_Seen]:
    names = [bound.name for bound in trap.bound]
    port = _get_port(trap, port_name) or trap.get_index(*names)
    is_well = trap.name.endswith("Cleared")
    lane = trap.get_value("jnxDomLaneIndex")
    state = "are well again" if is_well else "raise an alarm"
    text = f"optics of port {port or 'unknown'} {state}"
    if lane:
        text += f", lane {lane}"
    return _Seen("trap.optics_well", is_well, text, port=port)


def _read_disabled(trap: TrapNotification, port_name: PortName) -> Optional[_Seen]:
    index = trap.get_index("cErrDisableIfStatusCause").partition(".")[0]
    unnamed = f"ifindex:{index}" if index.isdecimal() else ""
    port = _get_port(trap, port_name) or port_name(index) or unnamed
    cause = trap.get_value("cErrDisableIfStatusCause")
    text = f"the switch shut port {port or 'unknown'} because of {cause}"
    return _Seen("trap.port_in_service", False, text, port=port)


_READERS: Mapping[str, Callable[[TrapNotification, PortName], Optional[_Seen]]] = {
    "linkDown": _link,
    "linkUp": _link,
    "coldStart": _start,
    "warmStart": _start,
    "authenticationFailure": _read_credentials,
    "bgpEstablished": _read_bgp,
    "bgpEstablishedNotification": _read_bgp,
    "bgpBackwardTransition": _read_bgp,
    "bgpBackwardTransNotification": _read_bgp,
    "jnxBgpM2Established": _read_bgp,
    "jnxBgpM2BackwardTransition": _read_bgp,
    "lldpRemTablesChange": _read_neighbours,
    "entConfigChange": _read_parts,
    "entStateOperEnabled": _read_state,
    "entStateOperDisabled": _read_state,
    "entSensorThresholdNotification": _read_threshold,
    "jnxPowerSupplyFailure": _read_supply,
    "jnxPowerSupplyOK": _read_supply,
    "jnxDomAlarmSet": _read_optics,
    "jnxDomAlarmCleared": _read_optics,
    "jnxDomLaneAlarmSet": _read_optics,
    "jnxDomLaneAlarmCleared": _read_optics,
    "cErrDisableInterfaceEventRev1": _read_disabled,
}
