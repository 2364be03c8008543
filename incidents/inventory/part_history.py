"""Which part was in which slot from when to when, and why it came and went. The only writer of
`InService`.

A serial that changes in a slot is a replacement, never overwritten; a part seen in another slot was
moved. Each write is a compare-and-swap: of two that see the same change one writes it, and the
constraints refuse a second open row.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import QuerySet

from detectors import resources
from detectors.faults import Observation
from incidents.db import upsert
from incidents.inventory import graphs
from incidents.models import Gpu, InService, Module, Nic, Node, NvSwitch, Port, Switch
from incidents.vocabulary.part_kinds import Part

_log = logging.getLogger(__name__)
# What devices print where they have no serial number: nvidia-smi, SMBIOS, optics without an EEPROM.
_NO_SERIAL = frozenset(
    {
        "",
        "n/a",
        "[n/a]",
        "none",
        "unknown",
        "unknown error",
        "0",
        "default string",
        "to be filled by o.e.m.",
        "err!",
    }
)


# A cable with optics or copper fixed to it shows one serial at both ends.
_FAR_END = " (far end)"


class Happened(StrEnum):
    """What the ledger made of a sighting."""

    FIRST_SEEN = "first_seen"
    REPLACED = "replaced"
    MOVED = "moved"
    NOT_BELIEVED = "not_believed"


@dataclass(frozen=True)
class Sighting:
    """A part as it shows itself in a slot. `uuid` is a GPU's, or a NIC's MAC address: it tells
    parts without serial."""

    part: Part
    slot: str
    serial: str = ""
    uuid: str = ""
    firmware: str = ""

    @property
    def identity(self) -> str:
        return self.serial or self.uuid


@dataclass(frozen=True)
class PartEntry:
    """One line of what was written, or not believed, for people."""

    happened: Happened
    part: Part
    slot: str
    serial: str
    text: str


_FIELDS = (
    ("serial", "serial"),
    ("uuid", "uuid"),
    ("mac", "uuid"),
    ("firmware", "firmware"),
    ("vbios_version", "firmware"),
)
# The word before the dot of a metric: the part's own, or another.
_PREFIXES = {**{part.value: part for part in Part}, "module": Part.TRANSCEIVER}
_METRICS: Mapping[str, tuple[Part, str]] = {
    f"{prefix}.{metric}": (part, name)
    for prefix, part in _PREFIXES.items()
    for metric, name in _FIELDS
}
"""Metric of an observation: which part it is of, and which field of a sighting it is."""


def store_parts(
    observations: Iterable[Observation], now: datetime, *, may_move: bool = True
) -> list[PartEntry]:
    """What polls saw of serials, UUIDs and firmware. One query while nothing has changed, two with
    optics of switches.

    Observations of other metrics are passed over, so a whole round may be given.
    """
    seen: dict[tuple[Part, str], dict[str, str]] = defaultdict(dict)
    for observation in observations:
        part_and_field = _METRICS.get(observation.metric)
        if part_and_field is not None and isinstance(observation.value, str):
            part, name = part_and_field
            seen[(part, observation.resource)][name] = observation.value
    if not seen:
        return []
    sightings = [Sighting(part, slot, **fields) for (part, slot), fields in seen.items()]
    why = "seen by a poll" if may_move else "said by the node's own check"
    return settle(sightings, now, why=why, may_move=may_move)


def is_settled(sightings: Sequence[Sighting], now: datetime) -> bool:
    """Whether all of this is known already: `settle` would write nothing. One query."""
    wanted = _tell_apart(_move_into_modules([_clean(sighting) for sighting in sightings]))
    known = _load_parts_in_service(wanted)
    return not _find_strange(wanted, known, now) and not _find_fuller(wanted, known)


def settle(
    sightings: Sequence[Sighting], now: datetime, *, why: str, may_move: bool = True
) -> list[PartEntry]:
    """Opens and closes rows so that they say what was sighted; returns what was new. Nothing new:
    one query.

    Without `may_move` a part that is in service in another machine stays there: who says so has no
    word on that machine.
    """
    wanted = _tell_apart(_move_into_modules([_clean(sighting) for sighting in sightings]))
    if not wanted:
        return []
    known = _load_parts_in_service(wanted)
    if not _find_strange(wanted, known, now) and not _find_fuller(wanted, known):
        return []
    with transaction.atomic():
        # Of several workers that see one change, one writes it: the others wait here, and then see
        # it written. The lock of placement, since the same transaction may place faults next: rows
        # of nodes locked before it would wait for a transaction that places faults on these nodes.
        upsert.lock_placement()
        held = _load_parts_in_service(wanted)
        strange = _find_strange(wanted, held, now)
        refused = [] if may_move else _find_refused(strange)
        refused_slots = {(entry.part, entry.slot) for entry in refused}
        strange = [one for one in strange if (one.part, one.slot) not in refused_slots]
        fuller = _find_fuller(wanted, held)
        _update_fuller(fuller)
        entries = _replace(strange, held, now, why)
        _fill([*strange, *(sighting for _, sighting in fuller)])
    return [*entries, *refused]


def _load_parts_in_service(wanted: Sequence[Sighting]) -> dict[tuple[str, str], InService]:
    """What is in each slot of these machines, by part and slot."""
    owners = {resources.owner(sighting.slot) for sighting in wanted}
    rows = InService.objects.filter(owner__in=owners, to_at__isnull=True)
    return {(row.part, row.slot): row for row in rows}


def _find_strange(
    wanted: Sequence[Sighting], held: Mapping[tuple[str, str], InService], now: datetime
) -> list[Sighting]:
    """Parts that are not those in their slots; a look older than what is in the slot says
    nothing."""
    strange = []
    for sighting in wanted:
        row = held.get((sighting.part, sighting.slot))
        is_older = row is not None and row.from_at > now
        if not is_older and not _is_same(row, sighting):
            strange.append(sighting)
    return strange


def _find_refused(strange: Sequence[Sighting]) -> list[PartEntry]:
    """Those whose part is in service in another machine, with the sentence that says so."""
    identities = {sighting.identity for sighting in strange}
    rows = InService.objects.filter(serial__in=identities, to_at__isnull=True)
    owners = {(row.part, row.serial): row.owner for row in rows}
    refused = []
    for sighting in strange:
        part, slot, serial = sighting.part, sighting.slot, sighting.identity
        owner = owners.get((part.value, serial), resources.owner(slot))
        if owner == resources.owner(slot):
            continue
        text = (
            f"not believed: {slot} says that {part} {serial} is in it, which is in service in"
            f" {owner}; it moves when a look of Kintsugi's own sees it there"
        )
        _log.warning("%s", text)
        refused.append(PartEntry(Happened.NOT_BELIEVED, part, slot, serial, text))
    return refused


def _find_fuller(
    wanted: Sequence[Sighting], held: Mapping[tuple[str, str], InService]
) -> list[tuple[InService, Sighting]]:
    fuller = []
    for sighting in wanted:
        row = held.get((sighting.part, sighting.slot))
        if row is not None and _is_same(row, sighting) and _get_news(row, sighting):
            fuller.append((row, sighting))
    return fuller


def remove(part: Part, slot: str, now: datetime, *, why: str) -> bool:
    """The part was taken out and nothing is in its place. False: the slot was empty already."""
    rows = InService.objects.filter(part=part, slot=slot, to_at__isnull=True)
    return rows.update(to_at=now, went=why) == 1


def _clean(sighting: Sighting) -> Sighting:
    firmware, _, _ = sighting.firmware.partition(" (")  # ethtool adds the board's id, sysfs not
    return replace(
        sighting,
        serial=_clean_serial(sighting.serial),
        uuid=_clean_serial(sighting.uuid),
        firmware=firmware.strip()[:64],
    )


def _clean_serial(text: str) -> str:
    serial = text.strip()
    return "" if serial.lower() in _NO_SERIAL else serial[:64]


def _move_into_modules(sightings: list[Sighting]) -> list[Sighting]:
    """Optics that a switch tells by port are those of the port's module, which may hold another
    port too."""
    optics = [sighting.slot for sighting in sightings if sighting.part is Part.TRANSCEIVER]
    ports = [slot for slot in optics if "/port/" in slot]
    if not ports:
        return sightings
    switches = {port.split("/")[1] for port in ports}
    modules = _get_modules_by_port(Port.objects.filter(switch__name__in=switches))
    moved = []
    for sighting in sightings:
        if sighting.part is Part.TRANSCEIVER:
            slot = modules.get(sighting.slot, sighting.slot)
            moved.append(replace(sighting, slot=slot))
        else:
            moved.append(sighting)
    return moved


def _get_modules_by_port(ports: QuerySet[Port]) -> dict[str, str]:
    """The module that holds each port, as resources; ports without one are left out."""
    rows = ports.filter(module__isnull=False).select_related("switch", "module__switch")
    return {port.resource: port.module.resource for port in rows if port.module is not None}


def _tell_apart(sightings: list[Sighting]) -> list[Sighting]:
    """One sighting for each slot and part. A serial that several slots show is the board's: then
    the UUIDs tell.

    Two ports of one module show its serial twice: where no module is known, the first port stands
    for both.
    """
    by_slot = {(s.part, s.slot): s for s in sightings if s.identity}
    count = Counter((s.part, s.identity) for s in by_slot.values())
    by_part: dict[tuple[Part, str], Sighting] = {}
    for sighting in sorted(by_slot.values(), key=lambda s: s.slot):
        is_shared = count[(sighting.part, sighting.identity)] > 1
        if is_shared and sighting.uuid:
            sighting = replace(sighting, serial=sighting.uuid)
        by_part.setdefault((sighting.part, sighting.identity), sighting)
    return list(by_part.values())


def _is_same(row: InService | None, sighting: Sighting) -> bool:
    if row is None:
        return False
    if sighting.uuid and row.uuid == sighting.uuid:
        return True
    return row.serial in (sighting.serial, sighting.uuid, f"{sighting.serial}{_FAR_END}")


def _get_news(row: InService, sighting: Sighting) -> dict[str, str]:
    """The fields of the row that the sighting says anew."""
    seen = {"serial": sighting.identity, "uuid": sighting.uuid, "firmware": sighting.firmware}
    if not sighting.serial or row.serial.endswith(_FAR_END):
        seen.pop("serial")  # a look that saw the UUID alone takes no serial back
    news = {}
    for name, value in seen.items():
        if value and getattr(row, name) != value:
            news[name] = value
    return news


def _update_fuller(fuller: Sequence[tuple[InService, Sighting]]) -> None:
    for row, sighting in fuller:
        news = _get_news(row, sighting)
        taken = InService.objects.filter(
            part=row.part, serial=news.get("serial", ""), to_at__isnull=True
        )
        if "serial" in news and taken.exists():
            news.pop("serial")
        if news:
            InService.objects.filter(pk=row.pk, to_at__isnull=True, serial=row.serial).update(
                **news
            )


def _replace(
    strange: Sequence[Sighting], held: Mapping[tuple[str, str], InService], now: datetime, why: str
) -> list[PartEntry]:
    """Closes what was in these slots and where these parts were before, then opens the new rows."""
    if not strange:
        return []
    serials = [s.identity for s in strange]
    rows = InService.objects.filter(serial__in=serials, to_at__isnull=True)
    elsewhere = {(row.part, row.serial): row for row in rows}
    far_ends = _find_far_ends([s for s in strange if s.part is Part.TRANSCEIVER], elsewhere)
    reasons: dict[int, str] = {}
    entries, fresh = [], []
    for sighting in strange:
        if sighting.slot in far_ends:
            sighting = replace(sighting, serial=f"{sighting.serial}{_FAR_END}")
        here = held.get((sighting.part, sighting.slot))
        there = elsewhere.get((sighting.part, sighting.identity))
        if here is not None:
            reasons.setdefault(here.pk, f"{sighting.identity} is in its place: {why}")
        if there is not None:
            reasons[there.pk] = f"moved to {sighting.slot}: {why}"
        entry = _make_entry(sighting, here, there, why)
        entries.append(entry)
        fresh.append(_make_row(sighting, entry, now))
    _close(reasons, now)
    # Another worker may have seen the same.
    InService.objects.bulk_create(fresh, ignore_conflicts=True)
    return entries


def _make_row(sighting: Sighting, entry: PartEntry, now: datetime) -> InService:
    owner = resources.owner(sighting.slot)
    row = InService(slot=sighting.slot, owner=owner, from_at=now, came=entry.text[:255])
    row.part = sighting.part.value
    row.serial = sighting.identity
    row.uuid = sighting.uuid
    row.firmware = sighting.firmware
    return row


def _close(reasons: Mapping[int, str], now: datetime) -> None:
    """Closes rows, by primary key, each with its reason."""
    by_reason: dict[str, list[int]] = defaultdict(list)
    for pk, reason in reasons.items():
        by_reason[reason[:255]].append(pk)
    for reason, pks in by_reason.items():
        InService.objects.filter(pk__in=pks, to_at__isnull=True).update(to_at=now, went=reason)


def _find_far_ends(
    optics: Sequence[Sighting], elsewhere: Mapping[tuple[str, str], InService]
) -> set[str]:
    """Slots whose part is the far end of a cable that is fixed to both: its serial stands at the
    other end already.

    Known by the cable; where none is known, by the part's coming back to a slot of another machine,
    which two ends that are polled in turn do and a module that was moved does not.
    """
    shared: dict[str, InService] = {}
    for sighting in optics:
        row = elsewhere.get((sighting.part, sighting.identity))
        if row is not None:
            shared[sighting.slot] = row
    if not shared:
        return set()
    cables = graphs.get_current().topology.cables
    modules = _get_modules_by_port(Port.objects.all())
    cabled = set()
    for cable in cables:
        ends = (modules.get(cable.a, cable.a), modules.get(cable.b, cable.b))
        cabled.add(frozenset(ends))
    with_cable = frozenset().union(*cabled)
    stays = InService.objects.filter(part=Part.TRANSCEIVER, slot__in=shared)
    before = set(stays.values_list("slot", "serial"))
    far_ends = set()
    for slot, there in shared.items():
        if slot in with_cable:
            is_far_end = frozenset((slot, there.slot)) in cabled
        else:
            came_back = (slot, there.serial) in before
            is_far_end = came_back and there.owner != resources.owner(slot)
        if is_far_end:
            far_ends.add(slot)
    return far_ends


def _make_entry(
    sighting: Sighting, here: InService | None, there: InService | None, why: str
) -> PartEntry:
    part = sighting.part
    slot = sighting.slot
    serial = sighting.identity
    if there is not None:
        text = f"{part} {serial} was moved from {there.slot} to {slot}"
        happened = Happened.MOVED
    elif here is not None:
        text = f"{part} {serial} replaces {here.serial} in {slot}"
        happened = Happened.REPLACED
    else:
        text = f"{part} {serial} is in {slot}"
        happened = Happened.FIRST_SEEN
    return PartEntry(happened, part, slot, serial, f"{text}: {why}")


class _Column(NamedTuple):
    """Where the inventory's own rows keep what is there now: column, and the field of a
    sighting."""

    name: str
    said: str


_SERIAL, _UUID = _Column("serial", "serial"), _Column("uuid", "uuid")
_TABLES: Mapping[Part, tuple[Any, str, tuple[_Column, ...]]] = {
    Part.NODE: (Node, "", (_SERIAL,)),
    Part.SWITCH: (Switch, "", (_SERIAL,)),
    Part.GPU: (Gpu, "node", (_SERIAL, _UUID)),
    Part.NVSWITCH: (NvSwitch, "node", (_SERIAL, _UUID)),
    Part.NIC: (Nic, "node", (_SERIAL, _Column("mac", "uuid"), _Column("firmware", "firmware"))),
    Part.TRANSCEIVER: (Module, "switch", (_SERIAL,)),
}


def _fill(sightings: Sequence[Sighting]) -> None:
    for part in {sighting.part for sighting in sightings}:
        table, machine, columns = _TABLES[part]
        wanted = {sighting.slot: sighting for sighting in sightings if sighting.part is part}
        names = {slot.split("/")[1] for slot in wanted}
        if machine:
            rows = table.objects.filter(**{f"{machine}__name__in": names}).select_related(machine)
        else:
            rows = table.objects.filter(name__in=names)
        changed = []
        for row in rows:
            sighting = wanted.get(row.resource)
            if sighting is not None and _set(row, sighting, columns):
                changed.append(row)
        table.objects.bulk_update(changed, [column.name for column in columns], batch_size=500)


def _set(row: Any, sighting: Sighting, columns: Iterable[_Column]) -> bool:
    """Whether the row changed. A serial that is only the UUID again is left empty."""
    before = [getattr(row, column.name) for column in columns]
    for column in columns:
        value = getattr(sighting, column.said)
        if value and not (column.said == "serial" and value == sighting.uuid):
            setattr(row, column.name, value)
    return before != [getattr(row, column.name) for column in columns]
