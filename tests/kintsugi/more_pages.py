"""Pages in states that one run, one window and one node cannot be in at once, for
`tests.kintsugi.pages`."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from incidents.models import Incident, Node, Silence, Spare
from runbooks import questions
from runbooks.library import library
from runbooks.models import (
    Approval,
    Arming,
    Breaker,
    Mode,
    Run,
    RunbookMode,
    RunState,
    SeenAct,
    StopSwitch,
)
from runbooks.shadow import episode_facts
from runbooks.shadow.episode_facts import EpisodeFacts, FaultLook
from tests.builders import GPU, NOW, an_incident

_PART = "node/{}/gpu/0000:19:00.0"
_ASKS = ("ask_person", {"question": "May {node} go to the vendor?", "answers": ["yes", "no"]})


def in_other_states() -> list[str]:
    """Runs that ask, wait, failed to cure or were written down only; windows of each kind; what was
    stopped before."""
    windows = [
        _window("maintenance", machines=[f"node/gn{number:03d}" for number in range(1, 13)]),
        _window(
            "shelf",
            resource=GPU,
            fault_type="gpu.xid.48",
            ends_at=None,
            review_at=NOW + timedelta(days=400),
        ),
    ]
    runs = [
        _asking(),
        _awaiting(),
        _ended("gn046", RunState.NOT_CURED),
        _ended("gn047", RunState.SHADOWED),
    ]
    runs += [
        _run("gn048", RunState.PAUSED, waiting_for="sato paused it."),
        _ended("gn049", RunState.FAILED),
    ]
    StopSwitch.objects.create(
        reason="row 3",
        engaged_by="ada",
        engaged_at=NOW,
        released_by="omar",
        released_at=NOW + timedelta(hours=1),
    )
    Breaker.objects.create(
        why="14 of 100",
        tripped_at=NOW,
        closed_by="ada",
        closed_at=NOW + timedelta(hours=1),
        closed_why="leaf-03",
    )
    Spare.objects.create(
        node=_node("gn043"), partitions=["gpu"], state=Spare.State.SERVING, since_at=NOW
    )
    _shadow(runs[3])
    Arming.objects.create(
        runbook="drain_reboot_verify",
        mode=Mode.ARMED,
        scope=Arming.Scope.NODES,
        place="gn[046-047]",
        nodes=["gn046", "gn047"],
        until=timezone.now() + timedelta(days=1),
        runs=3,
        reason="pilot",
        set_by="ada",
        set_at=NOW,
        stepped_back_at=NOW + timedelta(hours=2),
        stepped_back_why="run 7 took gn046 out of service, which was well",
    )
    RunbookMode.objects.create(
        runbook="isolate_node",
        mode=Mode.APPROVAL,
        set_by="ada",
        set_at=NOW,
        stepped_back_at=NOW + timedelta(hours=2),
        stepped_back_why="run 8 took gn047 out of service, which was well",
    )
    return [
        *(f"/incidents/silence/{window.pk}/change/" for window in windows),
        *(f"/runbooks/run/{run.pk}/change/" for run in runs),
        "/runbook/reseat_or_replace_transceiver/",
        "/runbook/return_to_service/",
    ]


def forms_and_views() -> list[str]:
    """Pages that only those may see who may act, and lists as a button shows them."""
    case = f"/incidents/vendorcase/open/{Incident.objects.latest('pk').pk}/"
    return [
        "/report/",
        "/incidents/silence/new/",
        case,
        "/incidents/silence/?kind=shelf",
        "/shadow/?view=well",
    ]


def _node(name: str) -> Node:
    return Node.objects.get_or_create(name=name, defaults={"pod": "pod-a", "partitions": ["gpu"]})[
        0
    ]


def _window(kind: str, **covers: object) -> Silence:
    now = timezone.now()
    times = {"starts_at": now, "ends_at": now + timedelta(hours=2), "recorded_at": now}
    return Silence.objects.create(
        **{**times, "kind": kind, "reason": "firmware of row 3", "author": "ada", **covers}
    )


def _shadow(run: Run) -> None:
    """Lately, so that the report shows it: a node that a dry run found well, and what a person took
    out instead."""
    now = timezone.now()
    SeenAct.objects.create(node=_node("gn044"), kind="drain", at=now, by="bob", text="fan tray")
    episode = EpisodeFacts(has_looked=True, look=FaultLook.DENIED, refuted_at=now, allowed_at=now)
    episode_facts.store(run.facts, episode)
    run.started_at = now
    run.save()


def _run(node: str, state: RunState, **values: object) -> Run:
    plan = [planned.as_row() for planned in library.load()["drain_reboot_verify"].steps]
    defaults = {
        "runbook": "drain_reboot_verify",
        "plan": plan,
        "mode": Mode.ARMED,
        "started_at": NOW,
    }
    incident = an_incident(resource=_PART.format(node))
    facts = {
        "resource": incident.root_resource,
        "why": "it is for such faults",
        "drained_at": NOW.isoformat(),
    }
    about = {
        "incident": incident,
        "node": _node(node),
        "fault_type": incident.fault_type,
        "facts": facts,
    }
    return Run.objects.create(state=state, **{**about, **defaults, **values})


def _asking() -> Run:
    run = _run("gn044", RunState.RUNNING, plan=[library.plan_step(*_ASKS).as_row()])
    questions.ask(run.pk, f"{run.pk}-0-ask_person", "May gn044 go to the vendor?", now=NOW)
    return run


def _awaiting() -> Run:
    run = _run(
        "gn045",
        RunState.AWAITING_APPROVAL,
        mode=Mode.APPROVAL,
        waiting_for="The runbook's mode is approval.",
    )
    shown = {
        "node": "gn045",
        "service": "in service",
        "reason": "",
        "jobs": ["48812 of sato"],
        "faults": [f"gpu.xid.79 on {_PART.format('gn045')}"],
        "power": "",
        "nodes_out": 3,
    }
    Approval.objects.create(
        run=run, index=0, asked_at=NOW, why="The runbook's mode is approval", shown=shown
    )
    return run


def _ended(node: str, state: RunState) -> Run:
    part = _PART.format(node)
    return _run(
        node,
        state,
        finished_at=NOW + timedelta(minutes=3),
        outcome=f"gpu.xid.79 on {part} {state.value}.",
    )
