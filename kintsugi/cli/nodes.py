"""Nodes on the command line, as the inventory, Slurm's last answer and incidents have them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Annotated, Any

import typer
from django.core.management.base import CommandError
from django.db.models import Count
from django.utils import timezone

from detectors.slurm import drain_reasons
from incidents.inventory import node_states
from incidents.models import Incident, Node, NodeInterval
from kintsugi.cli import exit_codes, hosts, incidents, output
from kintsugi.cli.incidents import Json, Nodes
from kintsugi.inventory.host_lists import fold
from runbooks.people import progress
from runbooks.slurm import ownership

_FIELDS = {"name": "name", "role": "role", "pod": "pod", "rack": "rack"}
_FURTHER_FIELDS = {"address": "address", "partitions": "partitions", "serial": "serial"}
_GPU_FIELDS = {"index": "index", "pci_address": "pci_address", "serial": "serial"}
_STATE_FIELDS = {
    "since": "since",
    "until": "until",
    "state": "state",
    "in_service": "is_serving",
    "kept_out_by": "holder",
    "reason": "reason",
    "set_by": "reason_set_by",
    "set_at": "reason_set_at",
    "resume_after": "resume_after",
    "booted_at": "boot_time",
    "gpus": "gpus",
    "jobs": "jobs",
}
_STATE_COLUMNS = ("since", "until", "state", "kept_out_by", "reason")
_STATES_SHOWN = 10
_COLUMNS = ("name", "role", "pod", "rack", "slurm", "incidents")
# sinfo(1), `--list-reasons`, and whose each is.
_OUT_COLUMNS = ("reason", "user", "timestamp", "nodelist", "kept_by", "incident", "kintsugi")
_LONGEST_REASON = 48


def list_nodes(
    nodes: Nodes = None,
    ill: Annotated[bool, typer.Option("--ill", help="only those with an open incident")] = False,
    out: Annotated[bool, typer.Option("--out", help="only those that Slurm has out")] = False,
    as_fold: Annotated[bool, typer.Option("--fold", help="print one host list")] = False,
    as_json: Json = False,
) -> None:
    rows = [row for row in _build_rows(_list_chosen_nodes(nodes)) if row["incidents"] or not ill]
    if out:
        rows = [row for row in rows if row["slurm"] is not None and row["slurm"] != "in service"]
    if as_fold:
        output.echo(fold(row["name"] for row in rows))
        return
    output.print_rows(rows, _COLUMNS, as_json=as_json, empty="No node.")


def show_node(name: Annotated[str, typer.Argument(metavar="NODE")], as_json: Json = False) -> None:
    (node,) = _list_chosen_nodes([name])
    (row,) = _build_rows([node])
    gpus = [output.make_row(gpu, _GPU_FIELDS) for gpu in node.gpus.all()]
    found = Incident.objects.filter(node=node).annotate(faults=Count("members"))
    latest = [incidents.build_incident_row(incident) for incident in found.order_by("-pk")[:10]]
    gpu_count = node.gpu_count if node.gpu_count is not None else len(gpus)
    facts = row | output.make_row(node, _FURTHER_FIELDS) | {"gpus": gpu_count}
    history = node_states.get_history(node.name)
    if as_json:
        states = [output.make_row(interval, _STATE_FIELDS) for interval in history]
        more = {"gpu_parts": gpus, "latest_incidents": latest, "slurm_states": states}
        output.print_json(facts | more)
        return
    output.print_facts(facts, as_json=False)
    states = [output.make_row(interval, _STATE_FIELDS) for interval in history[:_STATES_SHOWN]]
    if states:
        output.echo(f"\n{output.format_table(states, _STATE_COLUMNS)}")
    if latest:
        columns = ("id", "severity", "state", "since", "title")
        output.echo(f"\n{output.format_table(latest, columns)}")


def list_out(nodes: Nodes = None, as_json: Json = False) -> None:
    """As `sinfo --list-reasons`: each reason once, with all nodes that it stands on; whose it is,
    and what Kintsugi does about it. By the last look at Slurm. Raises CommandError."""
    now = timezone.now()
    _complain_of_age(now)
    named = hosts.parse(nodes) if nodes else None
    seen = node_states.get_current(named)
    _complain_of_untold(set(named or ()) - seen.keys(), is_all=not seen)
    groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for name, state in seen.items():
        if not state.is_serving:
            words = (state.reason, state.reason_set_by, state.reason_set_at, state.holder)
            groups[*words, *_get_work(name, state.reason, now)].append(name)
    rows = []
    for (reason, user, at, holder, incident, does), names in groups.items():
        is_ours = reason.startswith(drain_reasons.OURS)
        row = {
            "reason": reason,
            "user": user,
            "timestamp": at,
            "nodelist": fold(names),
            "nodes": sorted(names),
            "kept_by": holder,
            "is_ours": is_ours,
            "incident": incident,
            "kintsugi": does,
        }
        rows.append(row)
    rows.sort(key=_get_order)
    if not as_json:
        rows = [row | {"reason": _shorten(row["reason"])} for row in rows]
    empty = "None of these is out of service." if nodes else "No node is out of service."
    output.print_rows(rows, _OUT_COLUMNS, as_json=as_json, empty=empty)


def _get_order(row: dict[str, Any]) -> tuple[bool, float, str]:
    """What has stood longest comes first; without a time, last."""
    at = row["timestamp"]
    return at is None, at.timestamp() if at is not None else 0, row["nodelist"]


def _shorten(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 3]}..."


def _get_work(name: str, reason: str, now: datetime) -> tuple[int | None, str]:
    """The incident that a reason of ours names, or the latest open one of the node; and what is
    done about it."""
    named = ownership.parse_incident(reason)
    if named is not None:
        incident = Incident.objects.filter(pk=named).first()
        if incident is None:
            return named, f"There is no incident #{named} any more."
        return named, _describe_work(incident, now)
    incident = Incident.objects.open().filter(node__name=name).order_by("-pk").first()
    return (incident.pk, _describe_work(incident, now)) if incident is not None else (None, "")


def _describe_work(incident: Incident, now: datetime) -> str:
    does = progress.format_progress(incident, now)
    if does:
        return does
    if incident.needs_human:
        return f"Asks: {incident.needs_human}"
    return f"Nothing: the incident is {incident.state}."


def _complain_of_age(now: datetime) -> None:
    freshness = node_states.get_freshness()
    if freshness.answered_at is None and freshness.silent_since is None:
        output.complain("Slurm has not been looked at yet.")
    elif freshness.is_stale(now):
        answered = output.format_value(freshness.answered_at)
        output.complain(f"Slurm last answered: {answered}. {freshness.complaint}".strip())


def _complain_of_untold(names: Collection[str], *, is_all: bool) -> None:
    """Of these nothing is known: that is not to be read as in service. Raises CommandError where
    that are all that were asked for."""
    if not names:
        return
    problem = f"Slurm has told Kintsugi of no such node: {fold(names)}."
    if is_all:
        raise CommandError(problem, returncode=exit_codes.FAILED)
    output.complain(problem)


def _list_chosen_nodes(words: list[str] | None) -> list[Node]:
    """All where none is named. Raises CommandError for a name that the inventory does not have."""
    known = Node.objects.order_by("name")
    if not words:
        return list(known)
    names = hosts.parse(words)
    found = list(known.filter(name__in=names))
    missing = set(names) - {node.name for node in found}
    if missing:
        problem = f"not in the inventory: {fold(missing)}"
        raise CommandError(problem, returncode=exit_codes.FAILED)
    return found


def _build_rows(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    seen = node_states.get_current()
    open_incidents: dict[int, list[int]] = defaultdict(list)
    pairs = Incident.objects.open().exclude(node=None).order_by("pk")
    for node_id, incident_id in pairs.values_list("node_id", "pk"):
        if node_id is not None:
            open_incidents[node_id].append(incident_id)
    rows = []
    for node in nodes:
        state = {
            "slurm": _format_slurm_state(seen.get(node.name)),
            "incidents": open_incidents[node.pk],
        }
        rows.append(output.make_row(node, _FIELDS) | state)
    return rows


def _format_slurm_state(seen: NodeInterval | None) -> str | None:
    """None: Slurm has not been looked at."""
    if seen is None:
        return None
    if seen.is_serving:
        return "in service"
    return f"out: {seen.reason or seen.holder}"
