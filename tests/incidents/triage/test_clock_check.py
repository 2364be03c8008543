"""A node's clock may be behind: what it says after its boot is heard, what is old is not, what is
neither is told."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from detectors.faults import FaultEvent
from incidents import services
from incidents.models import Fault, Incident
from incidents.triage.clock_check import CLOCK_DOUBTED, Boot, classify_boot
from tests.builders import GPU, NOW, OTHER_GPU, a_clear, a_node, an_event

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
BOOTED = NOW + 10 * MINUTE
BOOT_ID = "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed"


def late(*, seen: timedelta, behind: timedelta, **values: Any) -> FaultEvent:
    """An event that we saw `seen` after the boot, dated `behind` before that."""
    at: datetime = BOOTED + seen
    return an_event(at=at - behind, observed_at=at, **values)


@pytest.mark.parametrize(
    ("seen", "behind", "source_key", "boot"),
    [
        # Not seen before the boot: it cannot be of it.
        (-MINUTE, 5 * MINUTE, "", Boot.EARLIER),
        # The kernel's stamp counts from the boot, whatever the node's clock says.
        (2 * MINUTE, 5 * MINUTE, "gn042||119.5|text", Boot.THIS),
        (2 * MINUTE, 5 * MINUTE, "gn042||777600.25|text", Boot.EARLIER),
        (40 * MINUTE, 45 * MINUTE, "gn042||119.5|text", Boot.UNSURE),
        # The line says its boot.
        (2 * MINUTE, 5 * MINUTE, f"gn042|{BOOT_ID}|777600.25|text", Boot.THIS),
        # Nothing tells.
        (2 * MINUTE, 5 * MINUTE, "", Boot.UNSURE),
        (2 * SECOND, 5 * SECOND, "", Boot.EARLIER),
        (2 * MINUTE, 5 * MINUTE, "no key at all", Boot.UNSURE),
    ],
)
def test_a_boot_is_told_by_what_does_not_depend_on_the_nodes_clock(
    seen: timedelta, behind: timedelta, source_key: str, boot: Boot
) -> None:
    assert (
        classify_boot(late(seen=seen, behind=behind, source_key=source_key), BOOTED, BOOT_ID)
        is boot
    )


def rebooted(*, clock_behind: timedelta = timedelta(0)) -> Incident:
    """Incident, boot and quiet of one GPU's node, whose clock was behind all the time."""
    a_node()
    services.ingest([an_event(at=NOW - clock_behind, observed_at=NOW)], now=NOW)
    services.record_node_restart("gn042", booted_at=BOOTED, boot_id=BOOT_ID, now=BOOTED)
    return Incident.objects.get()


def ingested(event: FaultEvent) -> None:
    services.ingest([event], now=event.observed_at)


@pytest.mark.django_db
def test_a_fault_is_back_when_the_clock_is_as_far_behind_as_before() -> None:
    incident = rebooted(clock_behind=20 * MINUTE)
    ingested(late(seen=2 * MINUTE, behind=20 * MINUTE))
    incident.refresh_from_db()
    assert (incident.state, Incident.objects.count()) == ("open", 1)


@pytest.mark.django_db
def test_a_fault_is_back_when_its_kernel_stamp_is_of_this_boot() -> None:
    incident = rebooted()
    ingested(late(seen=2 * MINUTE, behind=20 * MINUTE, source_key="gn042||120.1|text"))
    incident.refresh_from_db()
    assert incident.state == "open"


@pytest.mark.django_db
def test_an_old_line_reopens_nothing_and_alarms_nobody_when_its_fault_was_known() -> None:
    incident = rebooted()
    ingested(late(seen=2 * MINUTE, behind=12 * MINUTE))
    incident.refresh_from_db()
    assert (incident.state, Incident.objects.count()) == ("monitoring", 1)
    assert not Fault.objects.filter(fault_type=CLOCK_DOUBTED).exists()


@pytest.mark.django_db
def test_one_alarm_per_node_is_raised_when_a_fault_may_be_live_and_is_left_out() -> None:
    rebooted()
    first = late(seen=2 * MINUTE, behind=8 * MINUTE, resource=OTHER_GPU)
    for event in (first, first, late(seen=3 * MINUTE, behind=8 * MINUTE, resource=OTHER_GPU)):
        ingested(event)
    alarm = Fault.objects.get(fault_type=CLOCK_DOUBTED)
    assert (alarm.resource, alarm.count) == ("node/gn042", 2)
    assert "Left out, dated 8 min before it came" in alarm.evidence.first().excerpt  # type: ignore[union-attr]
    assert alarm.membership.incident.is_open
    assert not Fault.objects.filter(resource=OTHER_GPU).exists()


@pytest.mark.django_db
def test_nobody_is_alarmed_by_old_lines_that_would_open_nothing() -> None:
    rebooted()
    ingested(late(seen=2 * MINUTE, behind=12 * MINUTE, fault_type="gpu.xid.13", resource=OTHER_GPU))
    at = BOOTED + 3 * MINUTE
    services.ingest(
        [a_clear("nic.link.down", "node/gn042/nic/mlx5_5", at=NOW, observed_at=at)], now=at
    )
    assert set(Fault.objects.values_list("resource", flat=True)) == {GPU}


@pytest.mark.django_db
def test_a_link_is_up_again_when_the_node_whose_clock_is_known_to_be_behind_says_so_a_minute_after_its_loss() -> (
    None
):
    """What it said of another fault an hour before tells its clock; the loss itself, a minute old,
    could not."""
    a_node()
    link, behind, down = "node/gn042/nic/mlx5_5", 3 * 60 * MINUTE, NOW + 60 * MINUTE
    ingested(an_event("gpu.xid.45", at=NOW - behind, observed_at=NOW))
    ingested(an_event("nic.link.down", link, at=down - behind, observed_at=down))
    ingested(a_clear("nic.link.down", link, at=down + MINUTE - behind, observed_at=down + MINUTE))
    assert not Fault.objects.get(fault_type="nic.link.down").is_active
