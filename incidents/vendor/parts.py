"""Which part a case is about, and what the ledger knows of it. Reads only."""

from __future__ import annotations

from dataclasses import dataclass

from detectors import resources
from incidents.models import Incident, InService, Node, Port, Switch, VendorCase
from incidents.vocabulary.changes import Refused
from incidents.vocabulary.part_kinds import Part
from incidents.vocabulary.vendor_states import Move

# What a path's third word says of the part. A PCI device or a disk is the machine's: the ledger
# holds none of them.
_KINDS = {
    "gpu": Part.GPU,
    "nvswitch": Part.NVSWITCH,
    "nic": Part.NIC,
    "module": Part.TRANSCEIVER,
    "port": Part.TRANSCEIVER,
}
_MACHINES = {"node": Part.NODE, "switch": Part.SWITCH}


@dataclass(frozen=True)
class Found:
    """The part, the slot that the ledger knows it by, and the serial of what is in it (empty: not
    known)."""

    part: Part
    slot: str
    serial: str


def find_part(
    incident: Incident | None, *, incident_id: int, resource: str, part: Part | None
) -> Found | Refused:
    """Refused for what is closed, not in the inventory, or on another machine than the incident."""
    if incident is None:
        return Refused(f"There is no incident #{incident_id}.")
    if not incident.is_open:
        return Refused(f"Incident #{incident.pk} is closed: a case belongs to an open one.")
    path = resource or incident.root_resource
    machine = resources.owner(path)
    if machine.partition("/")[0] not in _MACHINES:
        return Refused(
            f"{path} is no machine nor a part of one: the vendor replaces nothing there."
        )
    if machine != incident.owner:
        return Refused(
            f"{path} is not of {incident.owner}, which incident #{incident.pk} is about."
        )
    if not _is_known(machine):
        return Refused(f"{machine} is not in the inventory: import it first, then open the case.")
    slot = _get_slot(path)
    kind = part or get_part_kind(slot)
    return Found(kind, slot, find_serial(kind, slot))


def get_part_kind(path: str) -> Part:
    """The kind of part that a path names; a machine where it names no part of its own."""
    words = path.split("/")
    return _KINDS.get(words[2] if len(words) > 3 else "", _MACHINES[words[0]])


def find_serial(part: str, slot: str) -> str:
    """The serial of what is in service there, empty when it is not known."""
    row = InService.objects.filter(part=part, slot=slot, to_at=None).first()
    return row.serial if row is not None else ""


def find_new_serial(case: VendorCase) -> str:
    """The serial of another part that polls saw in the slot since the case began, or since its last
    dead part."""
    dead = case.moves.filter(move=Move.DEAD_ON_ARRIVAL).order_by("-pk").first()
    since = dead.at if dead is not None else case.opened_at
    row = InService.objects.filter(
        part=case.part, slot=case.resource, to_at=None, from_at__gt=since
    ).first()
    return row.serial if row is not None and row.serial != case.old_serial else ""


def find_other_slot(case: VendorCase, serial: str) -> str:
    """The other slot in which a part of that serial is in service; empty for none."""
    rows = InService.objects.filter(part=case.part, serial=serial, to_at=None).exclude(
        slot=case.resource
    )
    return rows.values_list("slot", flat=True).first() or ""


def _get_slot(path: str) -> str:
    """A port's part is the module in its cage; a device that is no part of the ledger is its
    machine's."""
    words = path.split("/")
    if len(words) < 4:
        return resources.owner(path)
    if words[2] == "port":
        name = "/".join(words[3:])
        ports = Port.objects.filter(switch__name=words[1], name=name)
        port = ports.select_related("module__switch").first()
        if port is None or port.module is None:
            return path
        return port.module.resource
    return path if words[2] in _KINDS else resources.owner(path)


def _is_known(machine: str) -> bool:
    kind, _, name = machine.partition("/")
    table: type[Node] | type[Switch] = Node if kind == "node" else Switch
    return table._default_manager.filter(name=name, is_provisional=False).exists()
