"""Incidents and faults on the command line. They are read here, never changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from django.core.management.base import CommandError
from django.db.models import Case, Count, IntegerField, Q, When
from django.utils import timezone

from detectors.faults import Severity
from incidents.models import Fault, Incident
from incidents.notify import story
from incidents.vocabulary.lifecycle import CLOSED, State
from kintsugi.cli import exit_codes, hosts, output
from runbooks.people import progress

Nodes = Annotated[list[str] | None, typer.Argument(metavar="[NODES]...", help=hosts.NODES_HELP)]
Json = Annotated[bool, typer.Option("--json", help=output.JSON_HELP)]
# The most rows of which a database counts (PostgreSQL's `integer`, as of its keys).
_MOST_ROWS = 2**31 - 1
Limit = Annotated[int, typer.Option(min=1, max=_MOST_ROWS, help="print so many at most")]

_RANK = Case(
    *(When(severity=str(severity), then=severity.rank) for severity in Severity),
    output_field=IntegerField(),
)
_INCIDENT_FIELDS = {
    "id": "pk",
    "severity": "severity",
    "state": "state",
    "since": "onset_at",
    "faults": "faults",
    "title": "title",
}
_FURTHER_INCIDENT_FIELDS = {
    "type": "fault_type",
    "resource": "root_resource",
    "opened": "opened_at",
    "asks": "needs_human",
    "nodes_touched": "nodes_touched",
    "jobs_touched": "jobs_touched",
    "duplicate_of": "duplicate_of_id",
}
_FAULT_FIELDS = {
    "id": "pk",
    "severity": "severity",
    "type": "fault_type",
    "where": "resource",
    "since": "raised_at",
    "last_seen": "last_seen_at",
    "active": "is_active",
    "count": "count",
}
_RUN_FIELDS = {"id": "pk", "runbook": "runbook", "state": "state", "where": "place"}
_INCIDENT_COLUMNS = ("id", "severity", "state", "where", "since", "faults", "title")
_FAULT_COLUMNS = ("id", "severity", "type", "where", "since", "last_seen", "count", "incident")


def list_incidents(
    nodes: Nodes = None,
    state: Annotated[State | None, typer.Option(help="only those in this state")] = None,
    severity: Annotated[Severity | None, typer.Option(help="only those as severe as this")] = None,
    closed: Annotated[bool, typer.Option("--closed", help="those that are closed instead")] = False,
    limit: Limit = output.MOST_ROWS,
    as_json: Json = False,
) -> None:
    found = Incident.objects.annotate(faults=Count("members"), rank=_RANK)
    if state is not None:
        found = found.filter(state=state)
    elif closed:
        found = found.filter(state__in=CLOSED)
    else:
        found = found.open()
    if severity is not None:
        found = found.filter(severity=severity)
    if nodes:
        found = found.filter(filter_by_machines(nodes))
    order = ("-pk",) if closed else ("-rank", "onset_at", "pk")
    rows = [build_incident_row(incident) for incident in found.order_by(*order)[:limit]]
    output.print_rows(rows, _INCIDENT_COLUMNS, as_json=as_json, empty="No incident.")
    output.print_left_out(len(rows), found.count())


def show_incident(
    number: Annotated[str, typer.Argument(metavar="NUMBER")], as_json: Json = False
) -> None:
    incident = find(number)
    found_runs = incident.runs.select_related("node", "incident").order_by("pk")
    runs = [output.make_row(run, _RUN_FIELDS) for run in found_runs]
    members = incident.members.select_related("fault__membership")
    faults = [build_fault_row(link.fault) for link in members]
    facts = build_incident_row(incident) | output.make_row(incident, _FURTHER_INCIDENT_FIELDS)
    now = timezone.now()
    does = story.format_doing(incident, progress.format_progress(incident, now), now)
    advice = story.find_advice(incident)
    todo = advice.format(incident.root_resource) if advice is not None else ""
    facts |= {"kintsugi": does, "advice": todo}
    if as_json:
        output.print_json(facts | {"members": faults, "runs": runs})
        return
    output.print_facts(facts, as_json=False)
    columns = ("id", "severity", "type", "where", "since", "last_seen", "active")
    output.echo(f"\n{output.format_table(faults, columns)}")
    if runs:
        output.echo(f"\n{output.format_table(runs, tuple(_RUN_FIELDS))}")
    output.echo(f"\nWhy it is so: kintsugi incident why {incident.pk}")


def list_faults(
    nodes: Nodes = None,
    type_: Annotated[str, typer.Option("--type", help="such as gpu.xid.79")] = "",
    limit: Limit = output.MOST_ROWS,
    as_json: Json = False,
) -> None:
    found = Fault.objects.filter(is_active=True).annotate(rank=_RANK)
    if type_:
        found = found.filter(fault_type=type_)
    if nodes:
        found = found.filter(filter_by_machines(nodes))
    ordered = found.order_by("-rank", "raised_at", "pk")
    rows = [build_fault_row(fault) for fault in ordered.select_related("membership")[:limit]]
    output.print_rows(rows, _FAULT_COLUMNS, as_json=as_json, empty="No fault stands.")
    output.print_left_out(len(rows), found.count())


def find(number: str) -> Incident:
    """Raises CommandError where there is no such incident."""
    text = number.removeprefix("#")
    if not text.isdecimal() or len(text) > 18:
        problem = f"{number} is no incident's number; expected one like 17"
        raise CommandError(problem, returncode=exit_codes.USAGE)
    incident = Incident.objects.annotate(faults=Count("members")).filter(pk=int(text)).first()
    if incident is None:
        raise CommandError(f"There is no incident #{text}.", returncode=exit_codes.FAILED)
    return incident


def filter_by_machines(words: Sequence[str]) -> Q:
    """Nodes, and switches: both are named alike on the command line."""
    names = hosts.parse(words)
    owners = [f"{kind}/{name}" for kind in ("node", "switch") for name in names]
    return Q(owner__in=owners)


def build_incident_row(incident: Any) -> dict[str, Any]:
    machine = incident.owner.partition("/")[2] or incident.owner
    return output.make_row(incident, _INCIDENT_FIELDS) | {"where": machine}


def build_fault_row(fault: Fault) -> dict[str, Any]:
    membership = getattr(fault, "membership", None)
    incident = membership.incident_id if membership is not None else None
    return output.make_row(fault, _FAULT_FIELDS) | {"incident": incident}
