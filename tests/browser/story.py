"""A site in the middle of its day, told by the real services: what the documentation's pictures show."""

from __future__ import annotations

from datetime import datetime, timedelta

from detectors.catalog import load
from detectors.faults import EventKind, FaultEvent, event_id
from incidents import services as incidents
from incidents.lifecycle import Trigger
from incidents.models import Incident, Node, Switch
from tests.runbooks.site import Site

LOST = "kernel: NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
STOPPED = "kernel: NVRM: Xid (PCI:{pci}): 45, pid=31877, name=python3, Ch 0000000{number}"


def tell(now: datetime) -> Incident:
    """A hundred nodes and their last three months; returns the incident that is being repaired now."""
    site = Site(nodes=100)
    _furnish(now)
    for days, node in ((71, "gn061"), (33, "gn012")):
        site.now = now - timedelta(days=days)
        site.play(site.begin(site.lose_gpu(node)))
        incidents.sweep(now=site.now + timedelta(hours=2))
    site.now = now - timedelta(days=20)
    _heard(site, "switch.rebooted", "switch/leaf-03", "leaf-03 NOTICE kernel: reboot cause: power loss")
    _resolve(Incident.objects.latest("pk"), "switch_restart", site.now + timedelta(minutes=40))
    site.now = now - timedelta(hours=26)
    _vendor_case(site)
    site.now = now - timedelta(minutes=31)
    _heard(site, "switch.rebooted", "switch/leaf-11", "leaf-11 NOTICE kernel: reboot cause: watchdog")
    site.now = now - timedelta(minutes=14)
    return _repair(site, until=now)


def _furnish(now: datetime) -> None:
    """Two pods, racks and switches, all in service for a hundred days."""
    since = now - timedelta(days=100)
    for number, node in enumerate(Node.objects.order_by("name")):
        node.pod, node.rack = ("pod-a" if number < 50 else "pod-b"), f"r{number // 5 + 1:02d}"
        node.in_service_since = since
        node.save()
    named = [(f"leaf-{n:02d}", "leaf", n) for n in range(1, 17)] + [(f"spine-{n:02d}", "spine", n) for n in range(1, 9)]
    Switch.objects.bulk_create(
        Switch(
            name=name, role=role, pod="" if role == "spine" else "pod-a" if n < 9 else "pod-b", in_service_since=since
        )
        for name, role, n in named
    )


def _heard(site: Site, fault_type: str, resource: str, line: str) -> None:
    row = load()[fault_type]
    event = FaultEvent(
        event_id=event_id(line, site.now),
        fault_type=fault_type,
        event=EventKind.RAISED,
        resource=resource,
        source="syslog",
        occurred_at=site.now,
        observed_at=site.now,
        severity=row.severity,
        action=row.action,
        component=row.component,
        code=row.code,
        excerpt=line,
    )
    incidents.ingest([event], now=site.now)


def _resolve(incident: Incident, recovery: str, at: datetime) -> None:
    incidents.act(incident.pk, Trigger.RESOLVE, actor="mori", note="Back in service.", now=at, recovery=recovery)


def _vendor_case(site: Site) -> None:
    """A GPU that stays lost after the reboot: the node stays drained, and a person calls the vendor."""
    incident = site.lose_gpu("gn017", is_dead=True)
    site.play(site.begin(incident))


def _repair(site: Site, *, until: datetime) -> Incident:
    """A GPU falls off the bus under a job; the node drains, and the run waits for the job's end."""
    site.slurm.add_job("48812", nodes=["gn042"], user="sato", name="llm-pretrain")
    site.nodes.inject("gpu_lost", "gn042/gpu/3")
    where = site.gpu("gn042", 3)
    pci = where.rsplit("/", 1)[1].removesuffix(".0")
    _heard(site, "gpu.xid.79", where, f"gn042 {LOST.format(pci=pci)}")
    for number in (8, 9):
        _heard(site, "gpu.xid.45", where, f"gn042 {STOPPED.format(pci=pci, number=number)}")
    incident = Incident.objects.latest("pk")
    run = site.begin(incident)
    began = site.now
    site.play(run, limit=timedelta(minutes=2))
    incidents.report(
        author="sato",
        text="Job 48812 hangs: NCCL watchdog timeout on rank 27. nvidia-smi on gn042 shows 7 GPUs.",
        resource="node/gn042",
        occurred_at=began + timedelta(minutes=3),
        now=began + timedelta(minutes=4),
    )
    site.play(run, limit=until - site.now)
    incident.refresh_from_db()
    return incident
