"""The MIB objects that switches are asked for, and SNMP values sorted into tables and columns.
Pure.

OIDs are those of the standard MIBs (RFC 2863, 4133, 3433, 4268, 2790, 4273, 4363, 4188), of
LLDP-MIB (IEEE 802.1AB), UCD-SNMP-MIB, and of three of Cisco's that SONiC's agent serves as well
(CISCO-PFC-EXT, CISCO-BGP4, CISCO-ENTITY-FRU): https://github.com/sonic-net/sonic-snmpagent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from detectors.detector import SnmpValue

SYS_DESCR = "1.3.6.1.2.1.1.1.0"
SYS_UPTIME = "1.3.6.1.2.1.1.3.0"
SYS_NAME = "1.3.6.1.2.1.1.5.0"
HR_UPTIME = "1.3.6.1.2.1.25.1.1.0"
MEMORY_TOTAL = "1.3.6.1.4.1.2021.4.5.0"
MEMORY_FREE = "1.3.6.1.4.1.2021.4.6.0"
MEMORY_BUFFERS = "1.3.6.1.4.1.2021.4.14.0"
MEMORY_CACHED = "1.3.6.1.4.1.2021.4.15.0"

IF_DESCR = "1.3.6.1.2.1.2.2.1.2"
IF_TYPE = "1.3.6.1.2.1.2.2.1.3"
IF_ADMIN = "1.3.6.1.2.1.2.2.1.7"
IF_OPER = "1.3.6.1.2.1.2.2.1.8"
IF_IN_DISCARDS = "1.3.6.1.2.1.2.2.1.13"
IF_IN_ERRORS = "1.3.6.1.2.1.2.2.1.14"
IF_OUT_DISCARDS = "1.3.6.1.2.1.2.2.1.19"
IF_OUT_ERRORS = "1.3.6.1.2.1.2.2.1.20"
IF_NAME = "1.3.6.1.2.1.31.1.1.1.1"
IF_HC_IN_OCTETS = "1.3.6.1.2.1.31.1.1.1.6"
IF_HC_OUT_OCTETS = "1.3.6.1.2.1.31.1.1.1.10"
IF_HIGH_SPEED = "1.3.6.1.2.1.31.1.1.1.15"

PFC_SENT = "1.3.6.1.4.1.9.9.813.1.1.1.1"
PFC_RECEIVED = "1.3.6.1.4.1.9.9.813.1.1.1.2"

FDB_PORT = "1.3.6.1.2.1.17.7.1.2.2.1.2"
FDB_PORT_OLD = "1.3.6.1.2.1.17.4.3.1.2"
BRIDGE_PORT = "1.3.6.1.2.1.17.1.4.1.2"

BGP_STATE = "1.3.6.1.2.1.15.3.1.2"
BGP_ADMIN = "1.3.6.1.2.1.15.3.1.3"
BGP_STATE_CISCO = "1.3.6.1.4.1.9.9.187.1.2.5.1.3"

PROCESSOR_LOAD = "1.3.6.1.2.1.25.3.3.1.2"
STORAGE_TYPE = "1.3.6.1.2.1.25.2.3.1.2"
STORAGE_NAME = "1.3.6.1.2.1.25.2.3.1.3"
STORAGE_SIZE = "1.3.6.1.2.1.25.2.3.1.5"
STORAGE_USED = "1.3.6.1.2.1.25.2.3.1.6"

ENTITY_DESCR = "1.3.6.1.2.1.47.1.1.1.1.2"
ENTITY_CLASS = "1.3.6.1.2.1.47.1.1.1.1.5"
ENTITY_NAME = "1.3.6.1.2.1.47.1.1.1.1.7"
ENTITY_SERIAL = "1.3.6.1.2.1.47.1.1.1.1.11"
ENTITY_OPER = "1.3.6.1.2.1.131.1.1.1.3"
SENSOR_TYPE = "1.3.6.1.2.1.99.1.1.1.1"
SENSOR_SCALE = "1.3.6.1.2.1.99.1.1.1.2"
SENSOR_PRECISION = "1.3.6.1.2.1.99.1.1.1.3"
SENSOR_VALUE = "1.3.6.1.2.1.99.1.1.1.4"
SENSOR_STATUS = "1.3.6.1.2.1.99.1.1.1.5"
# CISCO-ENTITY-SENSOR-MIB, for NX-OS: type, scale, precision, value and status as above; type 14 is
# dBm.
CISCO_SENSOR = "1.3.6.1.4.1.9.9.91.1.1.1.1"
CISCO_LIMIT_SEVERITY = "1.3.6.1.4.1.9.9.91.1.2.1.1.2"
CISCO_LIMIT_RELATION = "1.3.6.1.4.1.9.9.91.1.2.1.1.3"
CISCO_LIMIT_VALUE = "1.3.6.1.4.1.9.9.91.1.2.1.1.4"
# ARISTA-ENTITY-SENSOR-MIB.
ARISTA_HIGH_WARNING = "1.3.6.1.4.1.30065.3.12.1.1.1.3"
ARISTA_HIGH_CRITICAL = "1.3.6.1.4.1.30065.3.12.1.1.1.4"
FRU_POWER_STATUS = "1.3.6.1.4.1.9.9.117.1.1.2.1.2"
FRU_FAN_STATUS = "1.3.6.1.4.1.9.9.117.1.4.1.1.1"

LLDP_LOCAL_PORT = "1.0.8802.1.1.2.1.3.7.1.3"
LLDP_REMOTE_PORT = "1.0.8802.1.1.2.1.4.1.1.7"
LLDP_REMOTE_PORT_DESCR = "1.0.8802.1.1.2.1.4.1.1.8"
LLDP_REMOTE_NAME = "1.0.8802.1.1.2.1.4.1.1.9"
LLDP_REMOTE_DESCR = "1.0.8802.1.1.2.1.4.1.1.10"

SYSTEM = (
    SYS_DESCR,
    SYS_UPTIME,
    SYS_NAME,
    HR_UPTIME,
    MEMORY_TOTAL,
    MEMORY_FREE,
    MEMORY_BUFFERS,
    MEMORY_CACHED,
)
PORTS = (
    *(
        IF_DESCR,
        IF_TYPE,
        IF_ADMIN,
        IF_OPER,
        IF_IN_DISCARDS,
        IF_IN_ERRORS,
        IF_OUT_DISCARDS,
        IF_OUT_ERRORS,
    ),
    *(IF_NAME, IF_HC_IN_OCTETS, IF_HC_OUT_OCTETS, PFC_SENT, PFC_RECEIVED),
)
CONTROL = (PROCESSOR_LOAD, BGP_STATE, BGP_ADMIN, BGP_STATE_CISCO, BRIDGE_PORT)
FORWARDING = (FDB_PORT,)
FORWARDING_OLD = (FDB_PORT_OLD,)
NAMES = (IF_DESCR, IF_NAME, IF_TYPE, IF_HIGH_SPEED)
ENTITIES = (ENTITY_DESCR, ENTITY_CLASS, ENTITY_SERIAL)
ENTITIES_WITHOUT_DESCR = (ENTITY_NAME,)
SENSORS = (SENSOR_TYPE, SENSOR_SCALE, SENSOR_PRECISION, SENSOR_VALUE, SENSOR_STATUS)
CISCO_SENSORS = tuple(f"{CISCO_SENSOR}.{number}" for number in range(1, 6))
LIMITS = (ARISTA_HIGH_WARNING, ARISTA_HIGH_CRITICAL)
CISCO_LIMITS = (CISCO_LIMIT_SEVERITY, CISCO_LIMIT_RELATION, CISCO_LIMIT_VALUE)
PARTS = (ENTITY_OPER, FRU_POWER_STATUS, FRU_FAN_STATUS)
STORAGE = (STORAGE_TYPE, STORAGE_NAME, STORAGE_SIZE, STORAGE_USED)
NEIGHBOURS = (
    LLDP_LOCAL_PORT,
    LLDP_REMOTE_PORT,
    LLDP_REMOTE_PORT_DESCR,
    LLDP_REMOTE_NAME,
    LLDP_REMOTE_DESCR,
)
COLUMNS = (
    *(*PORTS, *CONTROL, *FORWARDING, *FORWARDING_OLD, *NAMES, *ENTITIES, *ENTITIES_WITHOUT_DESCR),
    *(*SENSORS, *CISCO_SENSORS, *LIMITS, *CISCO_LIMITS, *PARTS, *STORAGE, *NEIGHBOURS),
)
_LONGEST_TEXT = 200
TICKS_PER_SECOND = 100
# From start to forwarding: https://github.com/sonic-net/SONiC,
# doc/system_health_monitoring/system-ready-HLD.md.
BOOT_TAKES_S = 600


class Tables:
    """SNMP values by column and row. The row is the rest of the OID behind its column, such as `1`
    or `100.2.193`."""

    def __init__(self, values: Mapping[str, SnmpValue], columns: Iterable[str] = COLUMNS) -> None:
        self._scalars = values
        self._columns: dict[str, dict[str, SnmpValue]] = {column: {} for column in columns}
        lengths = sorted({column.count(".") + 1 for column in self._columns})
        for oid, value in values.items():
            parts = oid.split(".")
            for length in lengths:
                rows = self._columns.get(".".join(parts[:length])) if len(parts) > length else None
                if rows is not None and value is not None:
                    rows[".".join(parts[length:])] = value

    def get_column(self, oid: str) -> Mapping[str, SnmpValue]:
        return self._columns.get(oid, {})

    def get_number(self, column: str, row: str) -> int | None:
        value = self._columns[column].get(row)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def get_text(self, column: str, row: str) -> str:
        """Empty where there is none."""
        return format_value(self._columns[column].get(row))

    @property
    def is_booting(self) -> bool:
        """Whether the machine, not its agent alone, came up so lately that its ports and sessions
        may not be there."""
        ticks = self.get_scalar(HR_UPTIME)
        return ticks is not None and ticks < BOOT_TAKES_S * TICKS_PER_SECOND

    def get_scalar(self, oid: str) -> int | None:
        value = self._scalars.get(oid)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def get_scalar_text(self, oid: str) -> str:
        return format_value(self._scalars.get(oid))


def format_value(value: SnmpValue) -> str:
    """A value as one line of printable text of bounded length."""
    if value is None:
        return ""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return " ".join("".join(c if c.isprintable() else " " for c in text[:_LONGEST_TEXT]).split())
