"""What a step may see of its run, its node and its incident, from the rows and from Slurm."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from functools import partial

from detectors import provenance, resources
from detectors.detector import Target
from detectors.faults import Action
from detectors.provenance import BELIEVED, Transport
from incidents.checks import management_network
from incidents.db.prepared import Given, Prepared
from incidents.inventory import services
from incidents.maintenance import active_windows
from incidents.models import Fault, Incident
from runbooks.engine import start
from runbooks.models import Installation, Run
from runbooks.node import witnesses
from runbooks.shadow import shadow_log
from runbooks.slurm import ownership
from runbooks.slurm.ownership import Written
from runbooks.slurm.protocol import NodeState, SlurmRefusal
from runbooks.step import ActiveFault, Context, World


def build_context_without_state(
    run: Run, find_target: Callable[[], Target], *, now: datetime, world: World
) -> Context:
    """For who looks at the node while Slurm has still to say how it is."""
    unknown = NodeState(run.place, "UNKNOWN", frozenset(), "", "", None, None, ())
    context = create_context(run, unknown, find_target=find_target, now=now, world=world)
    context.find_members = partial(_load_members, run)
    return context


def build_context(
    run: Run,
    state: NodeState,
    attempted_at: datetime | None,
    *,
    now: datetime,
    world: World,
    find_target: Callable[[], Target] | None = None,
) -> Context:
    """`find_target` where the turn has one already."""
    if run.node is None or run.node.is_provisional:
        raise SlurmRefusal(f"{run.place} is not in the inventory")
    find_target = find_target or partial(load_target, run.place)
    context = create_context(run, state, find_target=find_target, now=now, world=world)
    context.attempted_at = attempted_at
    context.known_boot_id = run.node.boot_id
    context.may_adopt = partial(_may_adopt, state)
    context.find_following = partial(start.list_following, run, now)
    context.find_active_faults = partial(_load_active, run)
    context.find_members = partial(_load_members, run)
    context.find_maintenance = partial(_find_maintenance, run, now)
    context.find_written = partial(_load_written, run)
    context.find_tag = partial(_find_tag, run)
    context.find_persons_reason = partial(shadow_log.find_persons_reason, run.place)
    context.explain_silence = partial(management_network.explain_silence, run.place)
    context.find_unusable = partial(witnesses.find_unusable_fault, context)
    return context


def create_context(
    run: Run, state: NodeState, *, find_target: Callable[[], Target], now: datetime, world: World
) -> Context:
    """With what every run has, whatever it is about."""
    resource, node = get_resource(run), run.place
    return Context(
        run.pk,
        run.incident_id,
        run.fault_type,
        resource=resource,
        node=node,
        find_target=find_target,
        state=state,
        facts=run.facts,
        world=world,
        now=now,
    )


def get_resource(run: Run) -> str:
    """What the fault is on that the run is about."""
    resource: str = run.facts.get("resource", run.incident.root_resource)
    return resource


def build_active_fault(fault: Fault) -> ActiveFault:
    """The device's clock may be behind: a fault that we first saw after a boot was raised after
    it."""
    last_seen_at = max(fault.last_seen_at, fault.observed_at)
    action = Action(fault.action)
    return ActiveFault(
        fault.fault_type,
        fault.resource,
        last_seen_at,
        action,
        is_believed=fault.forger in BELIEVED,
        reporter=_get_reporter(fault),
        qualifier=fault.qualifier,
    )


def _get_reporter(fault: Fault) -> str:
    told_by = provenance.from_wire(fault.best_provenance)
    return told_by.sender if told_by.transport is Transport.PERSON else ""


_ACTIVE = Prepared(lambda: Fault.objects.active().filter(owner=Given("owner")))
_MEMBERS = Prepared(
    lambda: Fault.objects.active().filter(
        owner=Given("owner"), membership__incident=Given("incident")
    )
)


def _load_active(run: Run) -> list[ActiveFault]:
    active = _ACTIVE.objects(owner=resources.node(run.place))
    return [build_active_fault(fault) for fault in active]


def _load_members(run: Run) -> list[ActiveFault]:
    """The incident's own that stand on the run's node: its root first, then what calls for most,
    the oldest first."""
    members = _MEMBERS.objects(owner=resources.node(run.place), incident=run.incident_id)
    root = run.incident.root_fault_id

    def rank(fault: Fault) -> tuple[bool, int, datetime, int]:
        return fault.pk != root, -Action(fault.action).rank, fault.raised_at, fault.pk

    return [build_active_fault(fault) for fault in sorted(members, key=rank)]


def _find_maintenance(run: Run, now: datetime) -> str:
    return active_windows.get_maintained(now).get(run.place, "")


def load_target(node: str) -> Target:
    found = services.get_target(node)
    if found is None:
        raise SlurmRefusal(f"{node} is not in the inventory")
    return found


_SITE_ID = Prepared(lambda: Installation.objects.filter(name="site").values_list("site_id"))


def _find_tag(run: Run) -> str:
    """The row is made by a migration; here again where a database was emptied."""
    site_id = next(iter(_SITE_ID.values()), None)
    if site_id is None:
        made = {"site_id": secrets.token_hex(4)}
        site_id = Installation.objects.get_or_create(name="site", defaults=made)[0].site_id
    return ownership.format_tag(site_id, run.pk, run.started_at)


def _may_adopt(state: NodeState) -> bool:
    """A drain left by another incident is ours to take over unless that incident still waits for a
    person."""
    number = ownership.parse_incident(state.reason)
    incident = Incident.objects.filter(pk=number).first() if number is not None else None
    return incident is None or not incident.is_open or not start.keeps_node(incident)


def _load_written(run: Run, incident_id: int) -> list[Written]:
    """The reasons that runs of that incident wrote onto nodes."""
    rows = (
        Run.objects.filter(incident=incident_id).exclude(pk=run.pk).values_list("facts", flat=True)
    )
    return [written for facts in rows for written in ownership.load_written(facts)]
