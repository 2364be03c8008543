"""A small site as wired, and what happens there: four rails of twelve nodes, two spines, two
storage switches."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from detectors.faults import EventKind, FaultEvent
from detectors.provenance import UNKNOWN, Provenance
from incidents.inventory import services
from incidents.models import Incident
from incidents.topology.topology import (
    CablePlace,
    FeedPlace,
    ModulePlace,
    NicPlace,
    NodePlace,
    RackPlace,
    StoragePlace,
    SwitchPlace,
    Topology,
)
from incidents.triage.ingest import ingest
from incidents.vocabulary.changes import Change
from tests.builders import NOW, an_event

NODES = tuple(f"gn{number:03}" for number in range(1, 13))
RAILS = tuple(f"mlx5_{rail}" for rail in range(4))
LEAFS = tuple(f"leaf-{rail + 1:02}" for rail in range(4))
SPINES = ("spine-01", "spine-02")

# A counting rule of a site's own, to be named.
TWO_OF_A_RACK = """
[[gather]]
name = "{name}"
effect = "node.power_supply.failed"
relation = "rack"
at = "rack"
counts = "machines"
fewest = 2
window = "10m"
concludes = "facility.power.degraded"
because = "two supplies of one rack are enough for us"
source = "a test"
"""


def a_site(now: datetime = NOW) -> None:
    """Three racks of four nodes on two feeds; each leaf module feeds two nodes."""
    services.apply(
        Topology(
            nodes=tuple(
                NodePlace(
                    name,
                    pod="pod-a",
                    rack=f"r{index // 4 + 1:02}",
                    partitions=("gpu",),
                    nics=(
                        *(NicPlace(device) for device in RAILS),
                        NicPlace("mlx5_8"),
                        NicPlace("mlx5_9"),
                    ),
                )
                for index, name in enumerate(NODES)
            ),
            switches=(
                *(
                    SwitchPlace(leaf, "leaf", pod="pod-a", rail=rail)
                    for rail, leaf in enumerate(LEAFS)
                ),
                *(SwitchPlace(spine, "spine") for spine in SPINES),
                *(SwitchPlace(name, "storage") for name in ("sto-01", "sto-02")),
            ),
            cables=tuple(_cables()),
            modules=tuple(
                ModulePlace(leaf, str(m + 1), (f"Ethernet{8 * m}", f"Ethernet{8 * m + 4}"))
                for leaf in LEAFS
                for m in range(len(NODES) // 2)
            ),
            racks=tuple(
                RackPlace(f"r{n:02}", pod="pod-a", feeds=("feed-1", "feed-2")) for n in (1, 2, 3)
            ),
            feeds=(FeedPlace("feed-1"), FeedPlace("feed-2")),
            storage=(StoragePlace("/lustre", servers=("oss-1",), switches=("sto-01", "sto-02")),),
        ),
        now,
    )


def _cables() -> Iterable[CablePlace]:
    for index, name in enumerate(NODES):
        for device, leaf in zip(RAILS, LEAFS, strict=True):
            yield CablePlace(
                f"node/{name}/nic/{device}", f"switch/{leaf}/port/Ethernet{4 * index}", 400
            )
        for device, switch in (("mlx5_8", "sto-01"), ("mlx5_9", "sto-02")):
            yield CablePlace(
                f"node/{name}/nic/{device}", f"switch/{switch}/port/Ethernet{4 * index}", 400
            )
    for number, leaf in enumerate(LEAFS):
        for up, spine in enumerate(SPINES):
            yield CablePlace(
                f"switch/{leaf}/port/Ethernet{256 + 8 * up}",
                f"switch/{spine}/port/Ethernet{8 * number}",
            )


def nics(rail: int, nodes: Iterable[str] = NODES) -> list[str]:
    return [f"node/{name}/nic/{RAILS[rail]}" for name in nodes]


def happen(
    fault_type: str,
    resources: Iterable[str],
    *,
    at: datetime = NOW,
    kind: EventKind = EventKind.RAISED,
    told_by: Provenance = UNKNOWN,
) -> list[Change]:
    """One batch, seen as it happens."""
    seen_at = at + timedelta(seconds=1)
    events: list[FaultEvent] = [
        an_event(fault_type, resource, at=at, kind=kind, observed_at=seen_at, provenance=told_by)
        for resource in resources
    ]
    return ingest(events, now=at + timedelta(seconds=2))


def open_incidents() -> list[tuple[str, str]]:
    """Fault type and resource of the roots."""
    rows = Incident.objects.exclude(
        state__in=("resolved", "duplicate", "false_positive", "monitoring")
    ).order_by("pk")
    return list(rows.values_list("fault_type", "root_resource"))
