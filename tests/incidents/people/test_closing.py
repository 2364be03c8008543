"""A false positive: what was measured does not fall silent in it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.provenance import UNKNOWN, Forger, Provenance, Transport
from incidents import services
from incidents.models import Decision, Fault, Incident, Node
from incidents.people import edit
from incidents.triage import sweep
from incidents.vocabulary.changes import Acted, Refused
from incidents.vocabulary.lifecycle import State, Trigger
from tests.builders import NOW
from tests.incidents.sites import NODES, a_site, happen, nics

pytestmark = pytest.mark.django_db
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
MEASURED = Provenance("gn001", Transport.SSH, "its SSH host key", forger=Forger.ROOT)
ITSELF = Provenance(
    "leaf-02", Transport.TLS, "the certificate of leaf-02", program="reboot", forger=Forger.USER
)
LEAF = "switch/leaf-02"
GPU = "node/gn009/gpu/0000:19:00.0"
POLLED = Provenance("leaf-02", Transport.SNMP, "its SNMPv3 user", forger=Forger.ROOT)


@pytest.fixture(autouse=True)
def _site(db: None) -> None:
    a_site()


def reboot_and_links(told_by: Provenance, links: int) -> None:
    """A line says that the leaf rebooted, and links over it are measured as down."""
    happen("switch.rebooted", [LEAF], told_by=told_by)
    happen("nic.link.down", nics(1, NODES[:links]), at=NOW + 5 * SECOND, told_by=MEASURED)
    for minute in range(1, 6):
        services.sweep(now=NOW + minute * MINUTE)


def xid_and_lost_gpu(told_by: Provenance) -> None:
    """A line says that a GPU is ill, and one of that node is measured as missing."""
    happen("gpu.xid.79", [GPU], told_by=told_by)
    happen("gpu.count_mismatch", ["node/gn009"], at=NOW + 5 * SECOND, told_by=MEASURED)


def close(incident: Incident, note: str = "nobody rebooted it") -> Acted | Refused:
    at = NOW + 10 * MINUTE
    return services.act(incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="ada", note=note, now=at)


def of_the_reboot() -> Incident:
    return Incident.objects.get(fault_type="switch.rebooted")


def test_what_was_measured_stays_open_when_the_text_that_was_its_cause_is_a_false_positive() -> (
    None
):
    xid_and_lost_gpu(UNKNOWN)
    forged = Incident.objects.open().get(fault_type="gpu.xid.79")
    assert forged.members.count() == 2

    outcome = close(forged)

    assert isinstance(outcome, Acted)
    left = Incident.objects.open().get()
    assert outcome.state is State.FALSE_POSITIVE
    assert f"are incident #{left.pk} now" in outcome.text
    assert left.fault_type == "gpu.count_mismatch"
    entry = forged.timeline.get(kind="split")
    assert f"incident #{left.pk} now" in entry.text
    assert f"Split off from incident #{forged.pk} by ada" in left.timeline.get(kind="opened").text
    assert Decision.objects.filter(kind="split").count() == 2


def test_nothing_is_split_off_when_the_false_positive_is_refused() -> None:
    xid_and_lost_gpu(UNKNOWN)
    forged = Incident.objects.open().get(fault_type="gpu.xid.79")
    before = forged.timeline.count()
    assert isinstance(close(forged, note=" "), Refused)
    assert Incident.objects.open().get() == forged
    assert forged.timeline.count() == before


def test_links_that_were_measured_are_the_cause_of_what_a_text_alone_says_of_their_switch() -> None:
    reboot_and_links(UNKNOWN, 12)
    incident = Incident.objects.open().get()
    assert (incident.fault_type, incident.root_resource) == ("switch.ports_lost", LEAF)
    members = {link.fault.fault_type for link in edit.filter_members(incident.pk)}
    assert members == {"switch.ports_lost", "switch.rebooted", "nic.link.down"}


@pytest.mark.parametrize("links", [2, 12])
def test_a_text_that_a_poll_witnesses_is_the_cause_of_what_it_explains(links: int) -> None:
    reboot_and_links(UNKNOWN, links)
    happen("switch.rebooted", [LEAF], at=NOW + 6 * MINUTE, told_by=POLLED)
    incident = Incident.objects.open().get()
    assert (incident.fault_type, incident.root_resource) == ("switch.rebooted", LEAF)
    active = Fault.objects.active().values_list("fault_type", flat=True)
    assert active.filter(fault_type="nic.link.down").count() == links
    members = edit.filter_members(incident.pk)
    assert sorted(link.fault.fault_type for link in members) == sorted(active)
    assert [link.fault.fault_type for link in members if link.role == "root"] == ["switch.rebooted"]


def test_a_text_that_a_person_witnesses_is_the_cause_of_what_it_explains() -> None:
    reboot_and_links(UNKNOWN, 2)
    assert Incident.objects.open().count() == 2
    at = NOW + 6 * MINUTE
    services.report(
        author="ada",
        text="I rebooted it",
        resource=LEAF,
        fault_type="switch.rebooted",
        occurred_at=at,
        now=at,
    )
    incident = Incident.objects.open().get()
    assert incident.fault_type == "switch.rebooted"
    assert Fault.objects.active().count() == edit.filter_members(incident.pk).count() == 3


def test_a_text_that_a_runs_own_look_witnesses_is_the_cause_of_what_it_explains() -> None:
    card, port = "node/gn003/nic/mlx5_1", "switch/leaf-02/port/Ethernet8"
    happen("nic.firmware.unhealthy", [card], told_by=UNKNOWN)
    happen("switch.port.flapping", [port], at=NOW + 5 * SECOND, told_by=POLLED)
    assert Incident.objects.open().count() == 2
    at = NOW + MINUTE
    sweep.record_witness("nic.firmware.unhealthy", card, told_by=MEASURED, now=at)
    incident = Incident.objects.open().get()
    assert (incident.fault_type, incident.root_resource) == ("nic.firmware.unhealthy", card)
    assert incident.node == Node.objects.get(name="gn003")
    members = {link.fault.fault_type for link in edit.filter_members(incident.pk)}
    assert members == {"nic.firmware.unhealthy", "switch.port.flapping"}


def test_a_root_that_a_person_chose_stays_when_a_text_is_witnessed() -> None:
    reboot_and_links(UNKNOWN, 12)
    incident = Incident.objects.open().get()
    link = next(
        one.fault
        for one in edit.filter_members(incident.pk)
        if one.fault.fault_type == "nic.link.down"
    )
    edit.reroot(incident.pk, link.pk, actor="ada", now=NOW + 6 * MINUTE)
    happen("switch.rebooted", [LEAF], at=NOW + 7 * MINUTE, told_by=POLLED)
    incident.refresh_from_db()
    assert (incident.fault_type, incident.root_fault_id) == ("nic.link.down", link.pk)


def test_what_texts_alone_have_told_ends_with_its_false_positive() -> None:
    happen("switch.rebooted", [LEAF])
    happen("nic.link.down", nics(1, NODES[:2]), at=NOW + 5 * SECOND)
    assert close(of_the_reboot()) == Acted(State.FALSE_POSITIVE)
    assert not Incident.objects.open().exists()


def test_what_was_measured_is_raised_anew_after_a_person_resolved_it() -> None:
    happen("nic.link.down", nics(1, NODES[:2]), told_by=MEASURED)
    for minute in range(1, 6):
        services.sweep(now=NOW + minute * MINUTE)
    first = Incident.objects.open().get()
    at = NOW + 10 * MINUTE
    services.act(first.pk, Trigger.RESOLVE, actor="ada", note="mended", now=at)
    happen("nic.link.down", nics(1, NODES[:2]), at=at + MINUTE, told_by=MEASURED)
    for minute in range(12, 18):
        services.sweep(now=NOW + minute * MINUTE)
    assert Incident.objects.open().exists()


def test_a_text_that_anybody_may_write_is_no_cause_of_links_that_were_measured() -> None:
    reboot_and_links(UNKNOWN, 2)
    links = Incident.objects.open().get(fault_type="nic.link.down")
    members = {link.fault.fault_type for link in edit.filter_members(links.pk)}
    assert members == {"nic.link.down"}
    nearly = Decision.objects.filter(kind="nearly", incident=links)
    assert any("a text alone has told of that cause" in row.text for row in nearly)


@pytest.mark.parametrize("told_by", [ITSELF, MEASURED], ids=["its certificate", "a poll"])
def test_a_switch_that_proved_who_it_is_is_the_cause_of_links_that_were_measured(
    told_by: Provenance,
) -> None:
    reboot_and_links(told_by, 2)
    assert Incident.objects.open().get() == of_the_reboot()
