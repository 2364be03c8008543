"""What Kintsugi itself knows of a vendor case, as pieces of its evidence. Reads only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db.models import Q

from incidents import account as accounts
from incidents import explaining, graphs
from incidents.models import Evidence, Gpu, Incident, InService, Nic, Node, Switch, VendorCase
from incidents.rearranging import members_of
from incidents.vendor_archive import Piece
from incidents.wording import moment

_OURS = "Kintsugi"
_EARLIER = 100


def pieces(case: VendorCase) -> list[Piece]:
    """The case, its incident with timeline and excerpts, the part's history, and where it is wired."""
    told = explaining.account(case.incident_id)
    return [
        _text("case.txt", _case(case)),
        _text("incident.txt", accounts.text(told).splitlines() if told is not None else []),
        Piece("incident.json", _OURS, (json.dumps(told.as_json() if told else None, indent=1) + "\n").encode()),
        _text("timeline.txt", _timeline(case.incident)),
        _text("log-excerpts.txt", _excerpts(case.incident)),
        _text("part-history.txt", _history(case)),
        _text("topology.txt", _topology(case)),
    ]


def lines_of(rows: Iterable[tuple[datetime | None, str]]) -> list[str]:
    """A line for each, with its time first; those without one have none."""
    return [f"{moment(at) if at is not None else '-':24} {text}" for at, text in rows]


def _text(name: str, lines: Iterable[str]) -> Piece:
    return Piece(name, _OURS, ("\n".join(lines) + "\n").encode())


def _case(case: VendorCase) -> list[str]:
    facts: dict[str, Any] = {
        "case of Kintsugi": case.pk,
        "case of the vendor": case.number or "not known",
        "vendor": case.vendor or "not known",
        "part": case.part,
        "slot": case.resource,
        "serial of the broken part": case.old_serial or "not known",
        "serial of the new part": case.new_serial or "none yet",
        "state": case.state,
        "advance replacement": "yes" if case.is_advance else "no",
        "dead on arrival": case.dead_on_arrival,
        "incident": f"#{case.incident_id} {case.incident.title}",
    }
    rows = case.moves.order_by("pk")
    moves = lines_of((row.at, f"{row.move}: {row.to_state} {row.serial} {row.note}".rstrip()) for row in rows)
    return [*(f"{name:26} {value}" for name, value in facts.items()), "", *moves]


def _timeline(incident: Incident) -> list[str]:
    return lines_of((entry.occurred_at, f"{entry.kind}: {entry.text}") for entry in incident.timeline.order_by("pk"))


def _excerpts(incident: Incident) -> list[str]:
    """What each fault was judged by: lines of kernel logs and of detectors, as they were kept."""
    members = list(members_of(incident.pk))
    kept: dict[int, list[Evidence]] = {link.fault_id: [] for link in members}
    for row in Evidence.objects.filter(fault_id__in=kept).order_by("occurred_at", "pk"):
        kept[row.fault_id].append(row)
    lines: list[str] = []
    for link in members:
        fault = link.fault
        lines += [f"{fault.fault_type} on {fault.resource}, {link.role}, seen {fault.count} times"]
        lines += lines_of((row.occurred_at, f"{row.source}: {row.excerpt}") for row in kept[link.fault_id])
        lines.append("")
    return lines


def _history(case: VendorCase) -> list[str]:
    serials = [serial for serial in (case.old_serial, case.new_serial) if serial]
    about = Q(part=case.part) & (Q(slot=case.resource) | Q(serial__in=serials))
    stays = InService.objects.filter(about).order_by("from_at", "pk")
    lines = ["Where the part was, and what was in its slot:"]
    lines += lines_of((row.from_at, _stay(row)) for row in stays)
    before = Incident.objects.filter(Q(root_resource=case.resource) | Q(members__fault__resource=case.resource))
    rows = before.exclude(pk=case.incident_id).distinct().order_by("-onset_at")[:_EARLIER]
    lines += ["", "Earlier incidents of this slot:"]
    lines += lines_of((row.onset_at, f"{row} ({row.state}; recovery: {row.recovery})") for row in rows)
    others = VendorCase.objects.filter(resource=case.resource, part=case.part).exclude(pk=case.pk).order_by("opened_at")
    lines += ["", "Earlier vendor cases of this slot:"]
    return lines + lines_of((row.opened_at, f"{row}: {row.old_serial} {row.number} {row.state}") for row in others)


def _stay(row: InService) -> str:
    until = moment(row.to_at) if row.to_at is not None else "now"
    return f"{row.part} {row.serial} in {row.slot} until {until}. {row.came} {row.went}".rstrip()


def _topology(case: VendorCase) -> list[str]:
    kind, _, name = case.incident.owner.partition("/")
    if kind == "switch":
        switch = Switch.objects.filter(name=name).first()
        return [f"{name}: {switch.role} switch, pod {switch.pod}, rack {switch.rack}"] if switch is not None else []
    node = Node.objects.filter(name=name).first()
    if node is None:
        return []
    wired = graphs.current()
    lines = [f"{name}: serial {node.serial or 'not known'}, pod {node.pod}, rack {node.rack}"]
    lines += [
        f"GPU {gpu.index}: {gpu.pci_address}, serial {gpu.serial or 'not known'}, {gpu.uuid}"
        for gpu in Gpu.objects.filter(node=node)
    ]
    for nic in Nic.objects.filter(node=node).select_related("node"):
        peer = wired.peer(nic.resource) or "no cable known"
        lines.append(f"NIC {nic.device}: {nic.pci_address}, serial {nic.serial or 'not known'}, to {peer}")
    return lines
