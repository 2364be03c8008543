"""What a site's own tools tell on the command line: a check asks for nodes to be taken out of
service, by Kintsugi's hands and under its guards; a commit hook or a playbook tells of a change; a
runbook is armed on some nodes for a time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from django.core.management.base import CommandError
from django.utils import timezone

from detectors.provenance import Forger, Provenance, Transport
from incidents.maintenance import site_changes
from incidents.maintenance.site_changes import ChangeDraft, ChangeRefused
from incidents.models import SiteChange
from incidents.people.drain_requests import DrainRequest, DrainRequestRefused
from incidents.text.wording import format_moment
from kintsugi import tasks
from kintsugi.cli import exit_codes, hosts, output
from kintsugi.cli.incidents import Json, Limit
from kintsugi.management import typed_times
from kintsugi.management.person import get_person
from runbooks import services
from runbooks.fleet import armings, proposals
from runbooks.models import Mode, SecondPersonRequest
from runbooks.second_person import requests

_AFTER_THE_END = (
    "What Kintsugi drained for it is verified and given back when nothing else stands there."
)
_AFTER_A_REQUEST = "`kintsugi incident show` tells what becomes of it."

_CHANGE_FIELDS = {
    "change": "pk",
    "at": "at",
    "by": "author",
    "what": "summary",
    "reference": "reference",
}

_ARMING_FIELDS = {
    "id": "pk",
    "runbook": "runbook",
    "mode": "mode",
    "scope": "scope",
    "place": "place",
    "nodes": "nodes",
    "until": "until",
    "stepped_back_at": "stepped_back_at",
    "stepped_back_why": "stepped_back_why",
    "runs": "runs",
    "used": "used",
    "by": "set_by",
    "since": "set_at",
    "reason": "reason",
}

_REQUEST_FIELDS = {
    "id": "pk",
    "kind": "kind",
    "runbook": "runbook",
    "run": "run",
    "what": "what",
    "by": "asked_by",
    "since": "asked_at",
    "until": "until",
}


def drain_nodes(
    nodes: Annotated[list[str], typer.Argument(metavar="NODES...", help="host lists")],
    by: Annotated[str, typer.Option(metavar="CHECK", help="which check asks, such as nhc")],
    because: Annotated[str, typer.Option(metavar="W", help="why; the incident says it")] = "",
    end: Annotated[
        bool, typer.Option("--end", help="the node need not be drained any more")
    ] = False,
    as_json: Json = False,
) -> None:
    """Each node for itself: what is refused of one keeps no other. Raises CommandError."""
    actor = get_person()
    told_by = Provenance(by, Transport.PERSON, actor, forger=Forger.NOBODY)
    rows, refusals = [], []
    for name in hosts.parse(nodes):
        request = DrainRequest(node=name, check=by, because=because, is_end=end)
        try:
            incident_id = tasks.pipeline().request_drain(request, told_by)
        except DrainRequestRefused as refusal:
            refusals.append(f"{name}: {refusal}")
            continue
        doing = "" if end else tasks.pipeline().format_prospect(incident_id)
        rows.append({"node": name, "incident": incident_id, "doing": doing})
    columns = ("node", "incident", "doing") if as_json else ("node", "incident")
    output.print_rows(rows, columns, as_json=as_json, empty="Nothing was asked for.")
    if rows and not as_json:
        for row in rows:
            if row["doing"]:
                output.echo(f"\n{row['node']}: {row['doing']}")
        output.echo(f"\n{_AFTER_THE_END if end else _AFTER_A_REQUEST}")
    if refusals:
        raise CommandError("\n".join(refusals), returncode=exit_codes.FAILED)


def add_change(
    summary: Annotated[str, typer.Option(metavar="W", help="what was changed, in a sentence")],
    by: Annotated[str, typer.Option(metavar="WHO", help="default: this user")] = "",
    on: Annotated[
        list[str] | None,
        typer.Option(metavar="HOSTS", help="host lists; default: the whole site"),
    ] = None,
    at: Annotated[str, typer.Option(metavar="T", help="when it took effect; default: now")] = "",
    ref: Annotated[
        str, typer.Option(metavar="R", help="a commit, a ticket; told twice, it counts once")
    ] = "",
) -> None:
    """Raises CommandError."""
    now = timezone.now()
    teller = get_person()
    took_effect_at = typed_times.parse_moment("--at", at) if at else now
    machines = hosts.parse(on or ())
    draft = ChangeDraft(
        summary=summary, author=by or teller, at=took_effect_at, reference=ref, machines=machines
    )
    try:
        change = site_changes.record_change(draft, teller=teller, now=now)
    except ChangeRefused as refusal:
        raise CommandError(str(refusal), returncode=exit_codes.USAGE) from refusal
    output.echo(
        f"Change {change.pk} is recorded: incidents that begin in the 24 hours after it show it."
    )


def list_changes(limit: Limit = output.MOST_ROWS, as_json: Json = False) -> None:
    found = SiteChange.objects.all()
    rows = []
    for change in found[:limit]:
        places = [path.partition("/")[2] for path in change.machines]
        row = output.make_row(change, _CHANGE_FIELDS)
        rows.append(row | {"on": ", ".join(places) or "the whole site"})
    columns = (*_CHANGE_FIELDS, "on")
    output.print_rows(rows, columns, as_json=as_json, empty="No change was told of.")
    output.print_left_out(len(rows), found.count())


def add_arming(
    runbook: Annotated[str, typer.Argument()],
    mode: Annotated[str, typer.Argument(help="off, shadow, approval or armed")],
    length: Annotated[str, typer.Option("--for", metavar="TIME", help="such as 8h or 14d")],
    reason: Annotated[str, typer.Option(metavar="W", help="why, for the record")],
    nodes: Annotated[str, typer.Option(metavar="NODES", help="a host list")] = "",
    rack: Annotated[str, typer.Option(metavar="R", help="as the inventory names it")] = "",
    partition: Annotated[str, typer.Option(metavar="P", help="as the inventory names it")] = "",
    pod: Annotated[str, typer.Option(metavar="P", help="as the inventory names it")] = "",
    everywhere: Annotated[bool, typer.Option("--all", help="every node")] = False,
    runs: Annotated[
        int | None, typer.Option(min=1, help="so many may take a node out by it")
    ] = None,
) -> None:
    """Raises CommandError."""
    from kintsugi.clients import wiring  # noqa: PLC0415  (Slurm and node access: arming looks at them)

    named = {"nodes": nodes, "rack": rack, "partition": partition, "pod": pod}
    places = [(scope, place) for scope, place in named.items() if place]
    places += [("all", "")] if everywhere else []
    if len(places) != 1:
        raise CommandError(
            "Name one of --nodes, --rack, --partition, --pod and --all.",
            returncode=exit_codes.USAGE,
        )
    now = timezone.now()
    ((scope, place),) = places
    until = now + typed_times.parse_length("--for", length)
    draft = services.ArmingDraft(runbook, mode, scope, place, until, reason, runs)
    world = wiring.build_world() if mode == Mode.ARMED else None
    _tell(services.begin_arming(draft, actor=get_person(), now=now, world=world))


def end_arming(
    number: Annotated[int, typer.Argument(metavar="ID", min=1)],
    reason: Annotated[str, typer.Option(metavar="W", help="why, for the record")],
) -> None:
    """Raises CommandError."""
    actor, now = get_person(), timezone.now()
    _tell(services.end_arming(number, reason, actor=actor, now=now))


def list_armings(as_json: Json = False) -> None:
    found = armings.load_in_force(timezone.now())
    rows = [output.make_row(row, _ARMING_FIELDS) for row in found]
    columns = ("id", "runbook", "mode", "scope", "place", "until", "runs", "used", "by", "reason")
    output.print_rows(rows, columns, as_json=as_json, empty="No arming is in force.")


def propose_armings(as_json: Json = False) -> None:
    found = services.list_proposals(timezone.now())
    if as_json:
        output.print_json([asdict(proposal) for proposal in found])
        return
    for proposal in found:
        output.echo(proposals.describe(proposal))
    if not found:
        output.echo("No runbook has a record yet: none was armed, or drained a node in shadow.")


def list_requests(as_json: Json = False) -> None:
    rows = [output.make_row(row, _REQUEST_FIELDS) for row in requests.list_standing(timezone.now())]
    columns = ("id", "kind", "by", "since", "until", "what")
    output.print_rows(rows, columns, as_json=as_json, empty="Nothing waits for a second person.")


def confirm_request(
    number: Annotated[int, typer.Argument(metavar="ID", min=1)],
    seen: Annotated[
        str, typer.Option(metavar="MARK", help="as it was printed with the request")
    ] = "",
) -> None:
    """Raises CommandError."""
    request = SecondPersonRequest.objects.filter(pk=number, ended_at=None).first()
    if not seen and request is not None:
        output.echo(_format_request(request))
        return
    from kintsugi.clients import wiring  # noqa: PLC0415  (Slurm and node access: arming looks at them)

    is_arming = request is not None and request.terms["mode"] == Mode.ARMED
    world = wiring.build_world() if is_arming else None
    words = {"actor": get_person(), "seen": seen}
    _tell(services.confirm_request(number, **words, now=timezone.now(), world=world))


def _format_request(request: SecondPersonRequest) -> str:
    asked = f"Asked for by {request.asked_by} at {format_moment(request.asked_at)}"
    mark = requests.get_seen(request)
    return (
        f"Request {request.pk}: {request.what}\n{asked}; it waits until"
        f" {format_moment(request.until)}.\n"
        f"To confirm just this: kintsugi arming confirm {request.pk} --seen {mark}"
    )


def reject_request(
    number: Annotated[int, typer.Argument(metavar="ID", min=1)],
    reason: Annotated[str, typer.Option(metavar="W", help="why, for the record")],
) -> None:
    """Raises CommandError."""
    _tell(services.reject_request(number, reason, actor=get_person(), now=timezone.now()))


def _tell(outcome: services.Outcome) -> None:
    if isinstance(outcome, services.ControlRefused):
        raise CommandError(outcome.reason, returncode=exit_codes.FAILED)
    output.echo(outcome.text)
