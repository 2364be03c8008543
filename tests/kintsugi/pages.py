"""Every page of the console with something on it, for the tests that walk them all."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.logs.unread import UnreadLine
from incidents.checks import unread_lines
from incidents.models import (
    Decommission,
    Evidence,
    Fault,
    Incident,
    NodeToken,
    Notification,
    Quarantine,
    QuarantinedEvent,
    Silence,
    TimelineEntry,
    UnreadTemplate,
    UserReport,
    VendorCase,
)
from runbooks.library import library
from runbooks.models import AuditEntry, Mode, Run, RunState, ShadowAct, StepRun
from tests.builders import NOW, a_node, a_switch, an_incident
from tests.kintsugi.more_pages import in_other_states

RUNBOOK = "drain_reboot_verify"


def a_run(incident: Incident, state: RunState = RunState.RUNNING, **values: object) -> Run:
    assert incident.node is not None
    plan = [planned.as_row() for planned in library.load()[RUNBOOK].steps]
    defaults = {
        "runbook": RUNBOOK,
        "plan": plan,
        "fault_type": incident.fault_type,
        "mode": Mode.ARMED,
        "started_at": NOW,
    }
    return Run.objects.create(
        incident=incident, node=incident.node, state=state, **{**defaults, **values}
    )


@pytest.fixture
def pages(db: None) -> list[str]:
    """Every page of the console, with something on it."""
    a_node()
    leaf = a_switch()
    incident = an_incident()
    run = a_run(incident)
    StepRun.objects.create(
        run=run, index=0, name="drain", outcome="done", text="Drained.", started_at=NOW
    )
    fault = Fault.objects.get()
    Evidence.objects.create(
        fault=fault, position="first", slot=0, source="syslog", occurred_at=NOW, excerpt="Xid 79"
    )
    TimelineEntry.objects.create(
        incident=incident,
        kind="opened",
        actor="kintsugi",
        text="No open incident explains it.",
        occurred_at=NOW,
        recorded_at=NOW,
    )
    UserReport.objects.create(
        incident=incident,
        author="sato",
        text="It hangs.",
        resource="node/gn042",
        reported_at=NOW,
        recorded_at=NOW,
    )
    message = Notification.objects.create(
        incident=incident, channel="console", reason="card", sequence=0, due_at=NOW, recorded_at=NOW
    )
    held = QuarantinedEvent.objects.create(
        event_id="e1", wire={"x": 1}, error="no resource", recorded_at=NOW
    )
    window = Silence.objects.create(
        kind="silence",
        resource="node/gn043",
        reason="tray out",
        author="ada",
        starts_at=NOW,
        ends_at=NOW,
        recorded_at=NOW,
    )
    entry = AuditEntry(
        at=NOW,
        actor="kintsugi",
        act="drain",
        phase="begun",
        node="gn042",
        run=run.pk,
        text="A why.",
    )
    entry.save()
    ShadowAct.objects.create(
        side="kintsugi",
        node=run.node,
        incident=incident,
        runbook=RUNBOOK,
        kind="drain",
        at=NOW,
        settles_at=NOW,
        verdict="differed",
    )
    case = VendorCase.objects.create(
        incident=incident,
        part="gpu",
        resource=fault.resource,
        opened_by="ada",
        opened_at=NOW,
        since_at=NOW,
    )
    aside = Quarantine.objects.create(node=incident.node, reason="three times", began_at=NOW)
    leaves = Decommission.objects.create(
        node=incident.node, reason="sold", set_by="ada", set_at=NOW
    )
    token = NodeToken.objects.create(
        node=incident.node,
        digest="0" * 64,
        created_at=NOW,
        created_by="ada",
        expires_at=NOW + timedelta(days=365),
    )
    line = UnreadLine("gn042", "kernel", "quux failed", 3, NOW, NOW, 2, "quux failed")
    unread_lines.record([line], NOW)
    unread = UnreadTemplate.objects.get()
    return [
        "/",
        "/unread/",
        f"/unread/{unread.key}/",
        "/incidents/nodetoken/",
        f"/incidents/nodetoken/{token.pk}/change/",
        "/incidents/decommission/",
        f"/incidents/decommission/{leaves.pk}/change/",
        "/incidents/vendorcase/",
        f"/incidents/vendorcase/{case.pk}/change/",
        "/incidents/spare/",
        "/incidents/quarantine/",
        f"/incidents/quarantine/{aside.pk}/change/",
        "/shadow/",
        "/runbooks/auditentry/",
        f"/runbooks/auditentry/{entry.pk}/change/",
        "/incidents/silence/",
        f"/incidents/silence/{window.pk}/change/",
        "/incidents/incident/",
        f"/incidents/incident/{incident.pk}/change/",
        "/incidents/fault/",
        f"/incidents/fault/{fault.pk}/change/",
        "/incidents/node/",
        f"/incidents/node/{incident.node_id}/change/",
        "/incidents/switch/",
        f"/incidents/switch/{leaf.pk}/change/",
        "/incidents/notification/",
        f"/incidents/notification/{message.pk}/change/",
        "/incidents/quarantinedevent/",
        f"/incidents/quarantinedevent/{held.pk}/change/",
        "/runbooks/run/",
        f"/runbooks/run/{run.pk}/change/",
        "/catalogue/",
        "/catalogue/gpu.xid.79/",
        "/status/",
        "/stop/",
        "/modes/",
        "/runbook/drain_reboot_verify/",
        *in_other_states(),
    ]
