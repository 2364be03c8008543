"""What a switch knows of the way: learned hardware addresses, BGP sessions, LLDP neighbours.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from detectors import resources
from detectors.detector import Reading, Sample, Samples
from detectors.expected import Expected
from detectors.faults import Observation
from detectors.switch import ports
from detectors.switch import tables as switch_tables
from detectors.switch.tables import Tables

_BGP_STATES = {
    1: "idle",
    2: "connect",
    3: "active",
    4: "openSent",
    5: "openConfirm",
    6: "established",
}
_ESTABLISHED, _STOPPED = 6, 1
# A host that sends at least this much is no idle one: LLDP, LACP and a few ARP requests stay below
# it. The switch may forget the addresses of silent hosts alone (IEEE 802.1Q, 8.8.3: ageing of
# dynamic entries).
SENDING_BYTES_PER_SECOND = 10_000
_LEARNS_FOR_S = 86_400.0


def count_learned(tables: Tables) -> dict[str, int]:
    """Hardware addresses learned on each ifIndex. SONiC gives the ifIndex itself, others a bridge
    port to look up."""
    column = tables.get_column(switch_tables.FDB_PORT)
    column = column or tables.get_column(switch_tables.FDB_PORT_OLD)
    bridge_ports = tables.get_column(switch_tables.BRIDGE_PORT)
    learned = [value for value in column.values() if isinstance(value, int) and value > 0]
    found: Counter[str] = Counter()
    for port, count in Counter(learned).items():
        index = bridge_ports.get(str(port), port)
        found[str(index)] += count
    return dict(found)


def observe_fdb_size(reading: Reading, by_port: Mapping[str, int]) -> Iterator[Observation]:
    yield reading.saw("fdb.entries", sum(by_port.values()))


def observe_forgetting(
    now: Sequence[Observation], before: Samples, *, is_booting: bool
) -> Iterator[Observation]:
    """Hosts that send but are not learned: the share of their ports now, and how often the table
    has collapsed.

    A port where no address was learned for a day is none of hosts any more.
    """
    sending, unlearned = [], []
    rates = {seen.resource: seen.value for seen in now if seen.metric == "port.in_bytes_per_second"}
    up = {seen.resource for seen in now if seen.metric == "port.oper" and seen.value == "up"}
    for seen in now:
        if seen.metric != "port.counters":
            continue
        has_entries = bool(seen.value[-1])
        at = seen.observed_at.timestamp()
        last = at if has_entries else _parse_number(before.get((seen.resource, "port.learned_at")))
        if at - last < _LEARNS_FOR_S:
            yield Observation(seen.resource, "port.learned_at", last, seen.observed_at)
            if seen.resource in up and rates.get(seen.resource, 0) >= SENDING_BYTES_PER_SECOND:
                sending.append(seen.resource)
                if not has_entries:
                    unlearned.append(seen.resource)
    entries = next((seen for seen in now if seen.metric == "fdb.entries"), None)
    if entries is None:
        return
    if sending and not is_booting:
        share = round(100 * len(unlearned) / len(sending), 1)
        text = f"{len(unlearned)} of {len(sending)} ports whose hosts send have no address learned"
        yield Observation(
            entries.resource, "fdb.unlearned_percent", share, entries.observed_at, {"text": text}
        )
    yield _observe_collapses(entries, before, bool(unlearned) and not is_booting)


def _parse_number(sample: Sample | None) -> float:
    """Zero for what is no number."""
    if sample is None or not isinstance(sample.value, (int, float)):
        return 0.0
    return float(sample.value)


def _observe_collapses(entries: Observation, before: Samples, is_forgetful: bool) -> Observation:
    last = before.get((entries.resource, "fdb.entries"))
    counted = before.get((entries.resource, "fdb.collapses"))
    count = 0
    if counted is not None and isinstance(counted.value, int):
        count = counted.value
    had = last.value if last is not None else "unknown"
    if is_forgetful and isinstance(had, int) and entries.value * 2 < had:
        count += 1
    attributes = {
        "text": f"{entries.value} learned addresses after {had}, while the hosts go on sending"
    }
    return Observation(entries.resource, "fdb.collapses", count, entries.observed_at, attributes)


def observe_bgp_sessions(reading: Reading, tables: Tables) -> Iterator[Observation]:
    """Sessions by neighbour address. A session that is shut down on purpose is no fault.

    CISCO-BGP4-MIB, which SONiC serves, does not tell a session shut on purpose (idle) from one that
    fails; such a one is watched from the first time on that it was seen established (`sessions`).
    """
    for row, state in tables.get_column(switch_tables.BGP_STATE).items():
        admin = tables.get_number(switch_tables.BGP_ADMIN, row)
        is_well = state == _ESTABLISHED or admin == _STOPPED
        if tables.is_booting and not is_well:
            continue
        note = "stopped" if admin == _STOPPED else ""
        yield reading.saw(
            "bgp.established", is_well, **_make_peer(row, note or _get_bgp_state(state))
        )
    standard = tables.get_column(switch_tables.BGP_STATE)
    for row, state in tables.get_column(switch_tables.BGP_STATE_CISCO).items():
        peer = _parse_address(row)
        if peer and peer not in standard:
            word = _get_bgp_state(state)
            yield reading.saw("bgp.session", word, **_make_peer(peer, word))


def compare_bgp_sessions(
    now: Sequence[Observation], before: Samples, *, is_booting: bool
) -> Iterator[Observation]:
    """Judgement of the sessions of which the agent does not say whether they are wanted."""
    seen_now = [seen for seen in now if seen.metric == "bgp.session"]
    if not seen_now:
        return
    first = seen_now[0]
    last = before.get((now[0].resource, "bgp.known"))
    known: set[str] = set()
    if last is not None and isinstance(last.value, list):
        known.update(last.value)
    for seen in seen_now:
        peer = seen.attributes["qualifier"]
        is_well = seen.value == "established"
        if is_well:
            known.add(peer)
        elif is_booting or (seen.value == "idle" and peer not in known):
            continue
        attributes = dict(seen.attributes)
        yield Observation(seen.resource, "bgp.established", is_well, seen.observed_at, attributes)
    yield Observation(first.resource, "bgp.known", sorted(known), first.observed_at)


def _make_peer(address: str, state: str) -> dict[str, str]:
    return {"qualifier": address, "text": f"the session to {address} is {state}"}


def _get_bgp_state(value: object) -> str:
    return _BGP_STATES.get(value, "unknown") if isinstance(value, int) else "unknown"


def _parse_address(row: str) -> str:
    """`1.4.10.0.0.1` (InetAddressType, length, octets) as `10.0.0.1`; IPv6 in full; empty for
    anything else."""
    parts = row.split(".")
    if not all(part.isdecimal() and int(part) < 256 for part in parts):
        return ""
    if parts[:2] == ["1", "4"] and len(parts) == 6:
        return ".".join(parts[2:])
    if parts[:2] == ["2", "16"] and len(parts) == 18:
        octets = [int(part) for part in parts[2:]]
        return ":".join(f"{octets[n] * 256 + octets[n + 1]:x}" for n in range(0, 16, 2))
    return ""


def observe_neighbours(reading: Reading, tables: Tables) -> Iterator[Observation]:
    """`lldp.neighbour`: the machine (and a switch's port) at the far end, with what the inventory
    expects there.

    A host's port is told by the host's own name for it or its hardware address, so of hosts the
    machine alone counts.
    """
    named = ports.list_port_names(tables, reading.target.expected)
    by_name: dict[str, str] = {}
    for column in switch_tables.NAMES[:2]:
        by_name.update((tables.get_text(column, index), index) for index in named)
    for row, value in tables.get_column(switch_tables.LLDP_REMOTE_NAME).items():
        parts = row.split(".")
        name = switch_tables.format_value(value)
        if len(parts) != 3 or not name:
            continue
        local = tables.get_text(switch_tables.LLDP_LOCAL_PORT, parts[1])
        index = by_name.get(local) or (parts[1] if parts[1] in named else "")
        if not index:
            continue
        port = tables.get_text(switch_tables.LLDP_REMOTE_PORT, row)
        description = tables.get_text(switch_tables.LLDP_REMOTE_PORT_DESCR, row)
        expected = _get_expected_peer(reading.target.expected, named[index])
        found = _get_far_end(name, port, description, expected)
        attributes = {"expected": expected} if expected else {}
        text = f"its neighbour is {name}, port {port or description or 'unknown'}"
        resource = resources.port(reading.target.name, named[index])
        yield reading.saw("lldp.neighbour", found, resource, text=text, **attributes)


def _get_expected_peer(expected: Expected, port: str) -> str:
    known = expected.port(port)
    return known.peer if known is not None else ""


def _get_far_end(name: str, port: str, description: str, expected: str) -> str:
    """The neighbour as a resource path; exactly `expected` where it is as far as it can be told."""
    host = resources.short_host(name)
    kind, _, rest = expected.partition("/")
    wanted_host = rest.partition("/")[0]
    if not expected or host != wanted_host:
        return f"{kind or 'node'}/{host}"
    wanted_port = expected.rpartition("/port/")[2] if "/port/" in expected else ""
    is_unnamed = not port and not description
    if not wanted_port or is_unnamed or wanted_port in (port, description):
        return expected
    if description.startswith("Ethernet"):
        return resources.port(name, description)
    return resources.port(name, port or description)
