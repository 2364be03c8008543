"""Drain requests on the command line: a check that a site runs itself asks for nodes to be taken
out of service, by Kintsugi's hands and under its guards."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer
from django.core.management.base import CommandError

from detectors.provenance import Forger, Provenance, Transport
from incidents.people.drain_requests import DrainRequest, DrainRequestRefused
from kintsugi import tasks
from kintsugi.cli import exit_codes, hosts, output
from kintsugi.cli.incidents import Json

_HOW_IT_GOES_ON = {
    False: "`kintsugi incident show` tells what becomes of it: caps, breaker and modes hold.",
    True: "What Kintsugi drained for it is verified and given back when nothing else stands there.",
}


def drain_nodes(
    nodes: Annotated[list[str], typer.Argument(metavar="NODES...", help="host lists")],
    by: Annotated[str, typer.Option(metavar="CHECK", help="which check asks, such as nhc")],
    because: Annotated[str, typer.Option(metavar="W", help="why; people read it in Slurm")] = "",
    end: Annotated[
        bool, typer.Option("--end", help="the node need not be drained any more")
    ] = False,
    as_json: Json = False,
) -> None:
    """Each node for itself: what is refused of one keeps no other. Raises CommandError."""
    actor = getpass.getuser()
    told_by = Provenance(by, Transport.PERSON, actor, forger=Forger.NOBODY)
    rows, refusals = [], []
    for name in hosts.parse(nodes):
        request = DrainRequest(node=name, check=by, because=because, is_end=end)
        try:
            incident_id = tasks.pipeline().request_drain(request, told_by)
        except DrainRequestRefused as refusal:
            refusals.append(f"{name}: {refusal}")
            continue
        rows.append({"node": name, "incident": incident_id})
    output.print_rows(rows, ("node", "incident"), as_json=as_json, empty="Nothing was asked for.")
    if rows and not as_json:
        output.echo(f"\n{_HOW_IT_GOES_ON[end]}")
    if refusals:
        raise CommandError("\n".join(refusals), returncode=exit_codes.FAILED)
