"""What a SONiC switch is set to for RoCE, from its configuration database, by the names under which
a site declares it.

Pure. Python 3.9, standard library alone. Tables and fields are those of SONiC's YANG models:
https://github.com/sonic-net/sonic-buildimage/blob/master/src/sonic-yang-models/doc/Configuration.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional

from detectors.switch.sonic_outputs import Database, get_field

NONE = "none"
"""What is declared is not set at all."""

_LOSSLESS_DEFAULT = "3"
_MOST_SHOWN = 8
_EXPONENT = re.compile(r"-?[0-9]{1,3}")


def get_observed(name: str, database: Database, declared: Mapping[str, str]) -> Optional[str]:
    """The switch's value of a declared setting, as text that equals the declared one; None for an
    unknown name.

    Where profiles in use differ, all of their values stand there, joined by commas.
    """
    read = _READERS.get(name)
    return None if read is None else read(database, declared)


def get_wanted(name: str, declared: str) -> str:
    """The declared value in the form in which `get_observed` gives it."""
    if name == "dscp_map":
        return _format_pairs(_parse_map(declared))
    if name in ("pfc_priority", "vxlan_vnis"):
        return _join_sorted(declared.replace(" ", "").split(","))
    if name == "evpn":
        return "yes" if declared.strip().lower() in ("yes", "true", "1") else "no"
    return _format_number(declared.strip())


def _format_number(text: str) -> str:
    """`10000000.0` and `10_000_000` as `10000000`."""
    try:
        number = float(text)
    except ValueError:
        return text.lower()
    return str(int(number)) if number.is_integer() else str(number)


def _join_sorted(values: Iterable[str]) -> str:
    return (
        ",".join(
            sorted({value for value in values if value}, key=lambda value: (len(value), value))
        )
        or NONE
    )


def _join(values: Iterable[str]) -> str:
    found = sorted({_format_number(value) for value in values if value})
    return ",".join(found[:_MOST_SHOWN]) or NONE


def _get_priorities(declared: Mapping[str, str]) -> set[int]:
    """The lossless priorities as declared; SONiC's own examples use 3 and 4."""
    return _parse_span(declared.get("pfc_priority", _LOSSLESS_DEFAULT))


def _parse_span(text: str) -> set[int]:
    """`3-4` or `3,4` as numbers; priorities go to 7, queues of a few chips to 19."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        low, _, high = part.partition("-")
        if low.isdecimal() and (high or low).isdecimal():
            found.update(range(min(int(low), 64), min(int(high or low), 64) + 1))
    return found


def _find_profiles_in_use(
    database: Database, table: str, member: str, priorities: set[int]
) -> set[str]:
    """Names of the profiles that a table gives to any of the priorities on any port."""
    used = set()
    for key, row in database.get(table, {}).items():
        if _parse_span(key.rpartition("|")[2]) & priorities and get_field(row, member):
            used.add(get_field(row, member))
    return used - {"NULL", "null"}


def _make_wred_reader(member: str) -> Callable[[Database, Mapping[str, str]], str]:
    def read(database: Database, declared: Mapping[str, str]) -> str:
        profiles = database.get("WRED_PROFILE", {})
        used = _find_profiles_in_use(database, "QUEUE", "wred_profile", _get_priorities(declared))
        rows = (
            [row for name, row in profiles.items() if name in used]
            if used
            else list(profiles.values())
        )
        marking = [row for row in rows if get_field(row, "ecn") not in ("", "ecn_none")]
        return _join(get_field(row, member) for row in marking)

    return read


def _find_lossless_profiles(
    database: Database, declared: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """Buffer profiles of the lossless priority groups: those in use, else those that have room for
    pausing."""
    profiles = database.get("BUFFER_PROFILE", {})
    used = _find_profiles_in_use(database, "BUFFER_PG", "profile", _get_priorities(declared))
    rows = [row for name, row in profiles.items() if name in used]
    return rows or [row for row in profiles.values() if get_field(row, "xoff")]


def _make_profile_reader(member: str) -> Callable[[Database, Mapping[str, str]], str]:
    return lambda database, declared: _join(
        get_field(row, member) for row in _find_lossless_profiles(database, declared)
    )


def _read_alpha(database: Database, declared: Mapping[str, str]) -> str:
    """A dynamic threshold n lets a group take 2^n times what is free
    (SAI_BUFFER_PROFILE_ATTR_SHARED_DYNAMIC_TH)."""
    exponents = [
        get_field(row, "dynamic_th") for row in _find_lossless_profiles(database, declared)
    ]
    numbers = [int(text) for text in exponents if _EXPONENT.fullmatch(text)]
    whole = [number for number in numbers if abs(number) <= 16]
    return _join(str(2.0**exponent) for exponent in whole)


def _read_headroom(database: Database, declared: Mapping[str, str]) -> str:
    """The shared headroom of the pool that lossless traffic uses (BUFFER_POOL, xoff)."""
    pools = database.get("BUFFER_POOL", {})
    used = {get_field(row, "pool") for row in _find_lossless_profiles(database, declared)}
    return _join(get_field(row, "xoff") for name, row in pools.items() if not used or name in used)


def _read_pfc_priority(database: Database, declared: Mapping[str, str]) -> str:
    ports = {
        name: row for name, row in database.get("PORT_QOS_MAP", {}).items() if name != "global"
    }
    enabled = {get_field(row, "pfc_enable") for row in ports.values()} - {""}
    shown = {_join_sorted(priorities.split(",")) for priorities in enabled}
    return "/".join(sorted(shown)[:_MOST_SHOWN]) or NONE


def _parse_map(declared: str) -> dict[str, str]:
    """`26:3, 48:6` or `24-31:3`: DSCP to traffic class."""
    pairs: dict[str, str] = {}
    for part in declared.replace(" ", "").split(","):
        codes, _, queue = part.partition(":")
        pairs.update({str(code): queue for code in sorted(_parse_span(codes)) if queue})
    return pairs


def _format_pairs(mapping: Mapping[str, str]) -> str:
    codes = sorted(mapping, key=int)
    return ",".join(f"{code}:{mapping[code]}" for code in codes) or NONE


def _read_dscp_map(database: Database, declared: Mapping[str, str]) -> str:
    """The declared code points alone; where two maps are in use, each that differs."""
    asked = _parse_map(declared.get("dscp_map", ""))
    maps = database.get("DSCP_TO_TC_MAP", {})
    ports = database.get("PORT_QOS_MAP", {}).values()
    used = {get_field(row, "dscp_to_tc_map") for row in ports}.intersection(maps)
    shown: set[str] = set()
    for name in used or maps:
        queues = {code: get_field(maps[name], code) or NONE for code in asked}
        shown.add(_format_pairs(queues))
    return "/".join(sorted(shown)[:_MOST_SHOWN]) or NONE


def _load_balancing(database: Database, declared: Mapping[str, str]) -> str:
    """How adaptive routing assigns flows to paths (ARS_OBJECT, `assign_mode`): flowlet, packet or
    fixed; else ecmp.

    Releases write per_flowlet_quality, flowlet-random and so on; the unit that moves is what
    counts.
    """
    modes: set[str] = set()
    for table, rows in database.items():
        if table.startswith(("ARS_", "DLB")):
            modes.update(map(_get_assign_mode, rows.values()))
    return _join_sorted(modes) if modes - {""} else "ecmp"


def _get_assign_mode(row: Mapping[str, Any]) -> str:
    mode = (get_field(row, "assign_mode") or get_field(row, "mode")).lower()
    return next((word for word in ("flowlet", "packet", "fixed") if word in mode), mode)


def _read_evpn(database: Database, declared: Mapping[str, str]) -> str:
    """A network virtualisation overlay whose source is a tunnel that exists and has an address."""
    tunnels = database.get("VXLAN_TUNNEL", {})
    sources = [get_field(row, "source_vtep") for row in database.get("VXLAN_EVPN_NVO", {}).values()]
    return "yes" if any(get_field(tunnels.get(name, {}), "src_ip") for name in sources) else "no"


def _read_vnis(database: Database, declared: Mapping[str, str]) -> str:
    return _join_sorted(
        get_field(row, "vni") for row in database.get("VXLAN_TUNNEL_MAP", {}).values()
    )


_Reader = Callable[[Database, Mapping[str, str]], str]
_READERS: dict[str, _Reader] = {
    "ecn_min_bytes": _make_wred_reader("green_min_threshold"),
    "ecn_max_bytes": _make_wred_reader("green_max_threshold"),
    "ecn_max_probability": _make_wred_reader("green_drop_probability"),
    "ecn_max_probability_percent": _make_wred_reader("green_drop_probability"),
    "pfc_priority": _read_pfc_priority,
    "pfc_xoff_bytes": _make_profile_reader("xoff"),
    "pfc_xon_offset_bytes": _make_profile_reader("xon_offset"),
    "pfc_headroom_bytes": _read_headroom,
    "buffer_alpha": _read_alpha,
    "dscp_map": _read_dscp_map,
    "load_balancing": _load_balancing,
    "evpn": _read_evpn,
    "vxlan_vnis": _read_vnis,
}
NAMES = frozenset(_READERS)
