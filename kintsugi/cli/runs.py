"""Repairs, and what they wait for, on the command line. They are read here, never changed."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from django.core.management.base import CommandError

from kintsugi.cli import exit_codes, hosts, output
from kintsugi.cli.incidents import Json, Limit, Nodes
from runbooks import answer_words
from runbooks.engine import approvals
from runbooks.models import UNFINISHED, Question, Run, RunState

_FIELDS = {
    "id": "pk",
    "where": "place",
    "runbook": "runbook",
    "mode": "mode",
    "state": "state",
    "since": "started_at",
    "incident": "incident_id",
    "waits_for": "waiting_for",
}
_FURTHER_FIELDS = {"type": "fault_type", "until": "finished_at", "ended": "outcome"}
_STEP_FIELDS = {
    "step": "name",
    "outcome": "outcome",
    "since": "started_at",
    "until": "finished_at",
    "text": "text",
}
_APPROVAL_FIELDS = {"why": "why", "asked": "asked_at", "shown": "shown"}
_QUESTION_FIELDS = {
    "id": "pk",
    "run": "run_id",
    "where": "run.place",
    "asked": "asked_at",
    "question": "text",
}


def list_runs(
    nodes: Nodes = None,
    finished: Annotated[bool, typer.Option("--finished", help="those that ended instead")] = False,
    limit: Limit = output.MOST_ROWS,
    as_json: Json = False,
) -> None:
    found = Run.objects.select_related("node", "incident")
    found = found.exclude(state__in=UNFINISHED) if finished else found.filter(state__in=UNFINISHED)
    if nodes:
        found = found.filter(node__name__in=hosts.parse(nodes))
    rows = [run_row(run) for run in found.order_by("-pk")[:limit]]
    output.print_rows(rows, tuple(_FIELDS), as_json=as_json, empty="No run.")
    output.print_left_out(len(rows), found.count())


def show_run(number: Annotated[int, typer.Argument(min=1)], as_json: Json = False) -> None:
    run = Run.objects.select_related("node", "incident").filter(pk=number).first()
    if run is None:
        raise CommandError(f"There is no run {number}.", returncode=exit_codes.FAILED)
    steps = [output.make_row(row, _STEP_FIELDS) for row in run.steps.order_by("pk")]
    facts = run_row(run) | output.make_row(run, _FURTHER_FIELDS)
    if as_json:
        output.print_json(facts | {"steps": steps})
        return
    output.print_facts(facts, as_json=False)
    if steps:
        output.echo(f"\n{output.format_table(steps, ('step', 'outcome', 'since', 'text'))}")


def list_approvals(as_json: Json = False) -> None:
    waiting = Run.objects.filter(state=RunState.AWAITING_APPROVAL)
    rows = []
    for run in waiting.select_related("node", "incident").order_by("pk"):
        approval = approvals.get_open_approval(run)
        if approval is not None:
            mark = {"run": run.pk, "mark": approvals.get_fingerprint(run)}
            rows.append(run_row(run) | output.make_row(approval, _APPROVAL_FIELDS) | mark)
    columns = ("run", "where", "runbook", "incident", "asked", "why")
    output.print_rows(rows, columns, as_json=as_json, empty="Nothing waits for approval.")


def list_questions(as_json: Json = False) -> None:
    waiting = Question.objects.filter(answered_at=None, run__state__in=UNFINISHED)
    rows = []
    for row in waiting.select_related("run__node", "run__incident").order_by("pk"):
        answers = list(answer_words.get_ways(row))
        rows.append(output.make_row(row, _QUESTION_FIELDS) | {"answers": answers})
    columns = ("id", "run", "where", "asked", "answers", "question")
    output.print_rows(rows, columns, as_json=as_json, empty="No question.")


def run_row(run: Run) -> dict[str, Any]:
    return output.make_row(run, _FIELDS)
