"""What Kintsugi itself knows of a vendor case, as pieces of its evidence. Reads only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from django.db.models import Q

from incidents.inventory import graphs
from incidents.models import Evidence, Gpu, Incident, InService, Nic, Node, Switch, VendorCase
from incidents.people import explain
from incidents.people.edit import filter_members
from incidents.text import account as accounts
from incidents.text.archive import Piece
from incidents.text.wording import format_moment

_OURS = "Kintsugi"
_EARLIER = 100


def list_pieces(case: VendorCase) -> list[Piece]:
    """The case, its incident with timeline and excerpts, the part's history, and where it is
    wired."""
    account = explain.build_account(case.incident_id)
    account_text = accounts.format_text(account) if account is not None else ""
    account_json = account.as_json() if account is not None else None
    evidence = [
        _make_text("case.txt", _describe_case(case)),
        _make_text("incident.txt", account_text.splitlines()),
        _make_text("incident.json", [json.dumps(account_json, indent=1)]),
    ]
    evidence += [
        _make_text("timeline.txt", _describe_timeline(case.incident)),
        _make_text("log-excerpts.txt", _list_excerpts(case.incident)),
    ]
    evidence += [
        _make_text("part-history.txt", _describe_history(case)),
        _make_text("topology.txt", _describe_topology(case)),
    ]
    return evidence


def format_lines(rows: Iterable[tuple[datetime | None, str]]) -> list[str]:
    """A line for each, with its time first; those without one have none."""
    return [_format_line(at, text) for at, text in rows]


def _format_line(at: datetime | None, text: str) -> str:
    time = format_moment(at) if at is not None else "-"
    return f"{time:24} {text}"


def _make_text(name: str, lines: Iterable[str]) -> Piece:
    return Piece(name, _OURS, ("\n".join(lines) + "\n").encode())


def _describe_case(case: VendorCase) -> list[str]:
    facts = {
        "case of Kintsugi": case.pk,
        "case of the vendor": case.number or "not known",
        "vendor": case.vendor or "not known",
        "part": case.part,
        "slot": case.resource,
    }
    facts["serial of the broken part"] = case.old_serial or "not known"
    facts["serial of the new part"] = case.new_serial or "none yet"
    facts["state"] = case.state
    facts["advance replacement"] = "yes" if case.is_advance else "no"
    facts["dead on arrival"] = case.dead_on_arrival
    facts["incident"] = f"#{case.incident_id} {case.incident.title}"
    lines = [f"{name:26} {value}" for name, value in facts.items()]
    lines.append("")
    for row in case.moves.order_by("pk"):
        text = f"{row.move}: {row.to_state} {row.serial} {row.note}"
        lines.append(_format_line(row.at, text.rstrip()))
    return lines


def _describe_timeline(incident: Incident) -> list[str]:
    entries = incident.timeline.order_by("pk")
    return format_lines((entry.occurred_at, f"{entry.kind}: {entry.text}") for entry in entries)


def _list_excerpts(incident: Incident) -> list[str]:
    """What each fault was judged by: lines of kernel logs and of detectors, as they were kept."""
    members = list(filter_members(incident.pk))
    kept: dict[int, list[Evidence]] = {link.fault_id: [] for link in members}
    for row in Evidence.objects.filter(fault_id__in=kept).order_by("occurred_at", "pk"):
        kept[row.fault_id].append(row)
    lines: list[str] = []
    for link in members:
        fault = link.fault
        place = f"{fault.fault_type} on {fault.resource}"
        lines.append(f"{place}, {link.role}, seen {fault.count} times")
        for row in kept[link.fault_id]:
            lines.append(_format_line(row.occurred_at, f"{row.source}: {row.excerpt}"))
        lines.append("")
    return lines


def _describe_history(case: VendorCase) -> list[str]:
    serials = [serial for serial in (case.old_serial, case.new_serial) if serial]
    is_slot_or_part = Q(slot=case.resource) | Q(serial__in=serials)
    stays = InService.objects.filter(is_slot_or_part, part=case.part).order_by("from_at", "pk")
    lines = ["Where the part was, and what was in its slot:"]
    lines += format_lines((stay.from_at, _format_stay(stay)) for stay in stays)

    is_of_slot = Q(root_resource=case.resource) | Q(members__fault__resource=case.resource)
    incidents = Incident.objects.filter(is_of_slot).exclude(pk=case.incident_id).distinct()
    lines += ["", "Earlier incidents of this slot:"]
    for incident in incidents.order_by("-onset_at")[:_EARLIER]:
        text = f"{incident} ({incident.state}; recovery: {incident.recovery})"
        lines.append(_format_line(incident.onset_at, text))

    others = VendorCase.objects.filter(resource=case.resource, part=case.part).exclude(pk=case.pk)
    lines += ["", "Earlier vendor cases of this slot:"]
    for other in others.order_by("opened_at"):
        text = f"{other}: {other.old_serial} {other.number} {other.state}"
        lines.append(_format_line(other.opened_at, text))
    return lines


def _format_stay(row: InService) -> str:
    until = format_moment(row.to_at) if row.to_at is not None else "now"
    place = f"{row.part} {row.serial} in {row.slot} until {until}."
    return f"{place} {row.came} {row.went}".rstrip()


def _describe_topology(case: VendorCase) -> list[str]:
    kind, _, name = case.incident.owner.partition("/")
    if kind == "switch":
        switch = Switch.objects.filter(name=name).first()
        if switch is None:
            return []
        return [f"{name}: {switch.role} switch, pod {switch.pod}, rack {switch.rack}"]
    node = Node.objects.filter(name=name).first()
    if node is None:
        return []
    wired = graphs.get_current()
    lines = [f"{name}: serial {node.serial or 'not known'}, pod {node.pod}, rack {node.rack}"]
    for gpu in Gpu.objects.filter(node=node):
        serial = gpu.serial or "not known"
        lines.append(f"GPU {gpu.index}: {gpu.pci_address}, serial {serial}, {gpu.uuid}")
    for nic in Nic.objects.filter(node=node).select_related("node"):
        serial = nic.serial or "not known"
        peer = wired.find_peer(nic.resource) or "no cable known"
        lines.append(f"NIC {nic.device}: {nic.pci_address}, serial {serial}, to {peer}")
    return lines
