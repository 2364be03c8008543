"""Switches over SNMP: `switch_snmp` looks at ports and protocols often, `switch_sensors` at parts
and neighbours.

`collect` asks for whole columns, and only for those that are read; meaning is in the switch_*.py
modules by MIB table. Thresholds, severities and their sources are in catalog/polled_switch.toml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.detector import (
    NothingToCompare,
    Reading,
    Samples,
    SnmpValue,
    Target,
    TargetKind,
    Transports,
)
from detectors.evaluation import cable_ends
from detectors.faults import Observation
from detectors.provenance import Transport
from detectors.switch import environment, forwarding, ports, walk_text
from detectors.switch import tables as switch_tables
from detectors.switch.tables import Tables

# TimeTicks come round after 497 days.
_TICKS_WRAP_S = 2**32 / switch_tables.TICKS_PER_SECOND
# An uptime this much behind what it should be is a restart; clocks drift by less.
_SLACK_S = 30.0
_WALK = "snmpwalk"
# After a boot all byte counters begin anew; after an agent's restart none does.
_MOST = 0.5


class SwitchSnmpDetector(NothingToCompare):
    """Restarts, ports, counters, learned addresses, BGP sessions, processor and memory."""

    name: ClassVar[str] = "switch_snmp"
    kind: ClassVar[TargetKind] = TargetKind.SWITCH
    transport: ClassVar[Transport] = Transport.SNMP
    every: ClassVar[timedelta] = timedelta(seconds=30)
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "bgp.session",
            "port.in_bytes_per_second",
            "port.in_discards_per_second",
            "port.out_bytes_per_second",
            "port.pfc_sent_per_second",
            "switch.agent_restarted",
            "switch.software",
        }
    )
    keeps: ClassVar[frozenset[str]] = frozenset(
        {
            "switch.uptime",
            "port.counters",
            "port.in_use",
            "port.learned_at",
            "fdb.entries",
            "fdb.collapses",
            "bgp.known",
            *cable_ends.OF_SWITCH_LINK,
        }
    )

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """Raises Unreachable where no agent answers, DetectorError where one stops in the
        middle."""
        values = via.snmp.get(target, switch_tables.SYSTEM)
        values |= via.snmp.walk(target, switch_tables.PORTS)
        values |= via.snmp.walk(target, switch_tables.CONTROL)
        learned = via.snmp.walk(target, switch_tables.FORWARDING)
        values |= learned or via.snmp.walk(target, switch_tables.FORWARDING_OLD)
        return Reading(self.name, target, now, values=values)

    def sniff(self, text: bytes) -> str:
        return _WALK

    def parse(self, reading: Reading) -> Iterator[Observation]:
        tables = Tables(_get_values(reading))
        if not tables.get_column(switch_tables.IF_OPER):
            yield reading.silent(
                f"the agent of {reading.target.name} shows no interfaces (ifOperStatus): check that"
                " the view of the community or user includes 1.3.6.1.2.1.2 and 1.3.6.1.2.1.31"
            )
        else:
            yield reading.answered()
        yield from _observe_system(reading, tables)
        learned = forwarding.count_learned(tables)
        yield from ports.observe(reading, tables, learned)
        if tables.get_column(switch_tables.IF_OPER):
            yield from forwarding.observe_fdb_size(reading, learned)
        yield from forwarding.observe_bgp_sessions(reading, tables)
        yield from environment.load(reading, tables)

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        restarts = list(_observe_restarts(now, before))
        yield from restarts
        is_restarted = any(
            seen.metric == "switch.restarted" and seen.value is True for seen in restarts
        )
        is_booting = any(_is_booting(seen) for seen in now)
        yield from ports.compare_port_states(now, before, is_booting=is_booting)
        rates = list(ports.compute_rates(now, before, is_restarted=is_restarted))
        yield from rates
        yield from forwarding.observe_forgetting([*now, *rates], before, is_booting=is_booting)
        yield from forwarding.compare_bgp_sessions(now, before, is_booting=is_booting)


class SwitchSensorsDetector(NothingToCompare):
    """Optics, temperatures, fans, power supplies, disks, serials, and the neighbours that LLDP
    tells."""

    name: ClassVar[str] = "switch_sensors"
    kind: ClassVar[TargetKind] = TargetKind.SWITCH
    transport: ClassVar[Transport] = Transport.SNMP
    # Reading the optics of a port costs the switch a slow bus access each: never more often than
    # this.
    every: ClassVar[timedelta] = timedelta(minutes=5)
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "module.serial",
            "optics.bias_ma",
            "optics.rx_power_dbm",
            "optics.temperature_celsius",
            "optics.tx_power_dbm",
            "switch.serial",
        }
    )
    keeps: ClassVar[frozenset[str]] = frozenset({cable_ends.LIGHT})

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """Raises Unreachable where no agent answers, DetectorError where one stops in the
        middle."""
        values = via.snmp.get(target, switch_tables.SYSTEM)
        for columns in (
            *(switch_tables.NAMES, switch_tables.ENTITIES, switch_tables.SENSORS),
            *(switch_tables.PARTS, switch_tables.STORAGE, switch_tables.NEIGHBOURS),
        ):
            values |= via.snmp.walk(target, columns)
        if not any(oid.startswith(f"{switch_tables.ENTITY_DESCR}.") for oid in values):
            values |= via.snmp.walk(target, switch_tables.ENTITIES_WITHOUT_DESCR)
        if not any(oid.startswith(f"{switch_tables.SENSOR_VALUE}.") for oid in values):
            values |= via.snmp.walk(
                target, (*switch_tables.CISCO_SENSORS, *switch_tables.CISCO_LIMITS)
            )
        else:
            values |= via.snmp.walk(target, switch_tables.LIMITS)
        return Reading(self.name, target, now, values=values)

    def sniff(self, text: bytes) -> str:
        return _WALK

    def parse(self, reading: Reading) -> Iterator[Observation]:
        tables = Tables(_get_values(reading))
        watched = (
            switch_tables.SENSOR_VALUE,
            *switch_tables.PARTS,
            *switch_tables.ENTITIES,
            switch_tables.STORAGE_USED,
        )
        if not any(tables.get_column(column) for column in watched):
            yield reading.silent(
                f"the agent of {reading.target.name} shows none of its parts (ENTITY-MIB,"
                " ENTITY-SENSOR-MIB): check that the view of the community or user includes"
                " 1.3.6.1.2.1.47 and 1.3.6.1.2.1.99"
            )
        else:
            yield reading.answered()
        yield from environment.observe(reading, tables)
        yield from environment.observe_storage(reading, tables)
        yield from forwarding.observe_neighbours(reading, tables)

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        yield from cable_ends.observe_light(now)


def _get_values(reading: Reading) -> Mapping[str, SnmpValue]:
    """Those of the poll, or of the text of a walk that somebody handed in."""
    walk = reading.outputs.get(_WALK)
    return reading.values if walk is None else walk_text.parse_walk(walk.stdout)


def _observe_system(reading: Reading, tables: Tables) -> Iterator[Observation]:
    described = tables.get_scalar_text(switch_tables.SYS_DESCR)
    if described:
        yield reading.saw("switch.software", described)
    agent = tables.get_scalar(switch_tables.SYS_UPTIME)
    machine = tables.get_scalar(switch_tables.HR_UPTIME)
    if agent is not None or machine is not None:
        uptimes = [
            None if ticks is None else ticks / switch_tables.TICKS_PER_SECOND
            for ticks in (machine, agent)
        ]
        yield reading.saw("switch.uptime", uptimes)


def _is_booting(seen: Observation) -> bool:
    if seen.metric != "switch.uptime" or seen.value[0] is None:
        return False
    return bool(seen.value[0] < switch_tables.BOOT_TAKES_S)


def _observe_restarts(now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
    """The switch's own restart and that of its agent alone, told apart.

    hrSystemUptime counts from the boot of the machine, sysUpTime from the start of the agent, which
    a SONiC switch restarts with its container. Without the first, the byte counters tell: a boot
    sets them to zero.
    """
    for seen in now:
        last = (
            before.get((seen.resource, "switch.uptime")) if seen.metric == "switch.uptime" else None
        )
        if last is None or not isinstance(last.value, list):
            continue
        passed_s = (seen.observed_at - last.at).total_seconds()
        machine = _has_restarted(seen.value[0], last.value[0], passed_s)
        agent = _has_restarted(seen.value[1], last.value[1], passed_s)
        if machine is None:
            machine = bool(agent) and ports.compute_fallen_share(now, before) > _MOST
        up_s = seen.value[0] if seen.value[0] is not None else seen.value[1]
        if machine:
            text = f"the switch started anew {timedelta(seconds=int(up_s or 0))} ago"
            yield Observation(
                seen.resource, "switch.restarted", True, seen.observed_at, {"text": text}
            )
        else:
            yield Observation(seen.resource, "switch.restarted", False, seen.observed_at)
            if agent:
                text = "its SNMP agent was started anew; the switch itself runs on"
                yield Observation(
                    seen.resource, "switch.agent_restarted", True, seen.observed_at, {"text": text}
                )


def _has_restarted(uptime_s: object, last_s: object, passed_s: float) -> bool | None:
    """None where one of the two is not known. An uptime that came round after 497 days is no
    restart."""
    if not isinstance(uptime_s, (int, float)) or not isinstance(last_s, (int, float)):
        return None
    should_be = last_s + passed_s
    slack = _SLACK_S + 0.01 * passed_s
    if should_be >= _TICKS_WRAP_S and abs(should_be - _TICKS_WRAP_S - uptime_s) <= slack:
        return False
    return uptime_s < should_be - slack
