"""Why an incident is as it is, told from what is written: on its page, in a terminal, as JSON."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from incidents import services
from incidents.models import Decision, Evidence, Fault, Incident, IncidentFault, Silence
from incidents.people import edit, explain
from incidents.text import account
from incidents.text.account import Account
from tests.builders import GPU, NOW, a_cable, a_fault, a_node, a_switch, an_event
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db

LEAF = "switch/leaf-05"
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
KEYS = {
    *(
        "incident",
        "title",
        "state",
        "severity",
        "onset_at",
        "opened_at",
        "faults",
        "root",
        "seen",
        "reported",
    ),
    *("changes", "joined", "held_until", "held_reason", "judged", "silence", "people", "others"),
}


def storm(nodes: int) -> Incident:
    a_switch("leaf-05", pod="pod-a", rail=4)
    for number in range(1, nodes + 1):
        a_node(f"gn{number:03}")
        a_cable(f"node/gn{number:03}/nic/mlx5_5", f"{LEAF}/port/Ethernet{4 * number}")
    services.ingest([an_event("switch.rebooted", LEAF)], now=NOW)
    links = [
        an_event("nic.link.down", f"node/gn{n:03}/nic/mlx5_5", at=NOW + n * SECOND, source="poll")
        for n in range(1, nodes + 1)
    ]
    services.ingest(links, now=NOW + MINUTE)
    return Incident.objects.get()


def told(incident: Incident) -> Account:
    found = explain.build_account(incident.pk)
    assert found is not None
    return found


def why(*words: str) -> str:
    out = StringIO()
    call_command("why", *words, stdout=out)
    return out.getvalue()


def test_the_cause_is_told_with_its_source_its_clock_and_its_evidence() -> None:
    incident = storm(3)
    root = told(incident).root
    assert root is not None
    assert (root.title, root.place, root.sources, root.clock) == (
        "Switch rebooted",
        "leaf-05",
        ("syslog",),
        "device",
    )
    text = why(f"#{incident.pk}")
    assert (
        "Switch rebooted (switch.rebooted) on leaf-05, 2025-01-15 03:00:00 UTC by the device's clock"
        in text
    )
    assert f"  | kernel: switch.rebooted on {LEAF}" in text


def test_many_symptoms_of_one_rule_are_one_sentence() -> None:
    account_of = told(storm(40))
    seen = next(seen for seen in account_of.seen if seen.fault_type == "nic.link.down")
    assert (seen.faults, seen.active, seen.sources, len(seen.places)) == (40, 40, ("poll",), 5)
    joined = account_of.joined
    assert sum(group.faults for group in joined) == 40
    assert len(joined) <= 2
    text = account.format_text(account_of)
    assert "40 x NIC link is down (nic.link.down) on gn001 NIC mlx5_5, gn002 NIC mlx5_5" in text
    assert "and 35 more" in text


def test_an_account_needs_as_many_queries_for_forty_faults_as_for_one() -> None:
    incident = storm(1)
    with CaptureQueriesContext(connection) as few:
        told(incident)
    for number in range(40):
        fault = a_fault("gpu.xid.45", f"node/gn001/gpu/0000:{number:02x}:00.0")
        Evidence.objects.create(
            fault=fault, position="first", slot=0, source="s", occurred_at=NOW, excerpt="x"
        )
        IncidentFault.objects.create(
            incident=incident,
            fault=fault,
            role="symptom",
            rule="same_node",
            reason="same node",
            joined_at=NOW,
        )
    with CaptureQueriesContext(connection) as many:
        told(incident)
    assert len(many) <= len(few) + 1  # the GPUs' indexes are read once there is a GPU


def test_what_people_changed_is_told_as_theirs() -> None:
    incident = storm(3)
    link = Fault.objects.filter(fault_type="nic.link.down").order_by("pk")[1]
    fresh = edit.split(
        incident.pk, [link.pk], actor="yuki", note="A bent fibre.", now=NOW + 2 * MINUTE
    )
    assert isinstance(fresh, edit.Rearranged)
    assert told(incident).people[0].actor == "yuki"
    assert "yuki, split: yuki split off" in why(str(incident.pk))
    there = told(Incident.objects.get(pk=fresh.incident)).root
    assert there is not None
    assert (there.by, there.rule) == ("yuki", "by_person")
    assert "yuki chose it: moved out of incident" in why(str(fresh.incident))


def test_merged_incidents_are_part_of_the_story_on_both_sides() -> None:
    incident = storm(1)
    a_node("gn900")
    services.ingest([an_event("gpu.xid.79", "node/gn900/gpu/0000:19:00.0")], now=NOW)
    other = Incident.objects.exclude(pk=incident.pk).get()
    edit.merge(other.pk, incident.pk, actor="yuki", now=NOW + MINUTE)
    assert f"#{other.pk} was merged into this one: {other.title}." in why(str(incident.pk))
    assert f"#{incident.pk} has its faults now: {incident.title}." in why(str(other.pk))
    assert "yuki put one fault here (gpu.xid.79 on gn900 GPU 0)" in why(str(incident.pk))


def test_what_was_held_what_nearly_matched_and_who_was_not_told_is_said() -> None:
    incident = storm(2)
    silence = Silence.objects.create(
        kind="maintenance", fault_type="nic.*", reason="Recabling of pod-a", author="omar", starts_at=NOW,
        ends_at=NOW + timedelta(hours=2), recorded_at=NOW,
    )  # fmt: skip
    Incident.objects.filter(pk=incident.pk).update(
        silence=silence, held_until=NOW + MINUTE, held_reason="three ports of leaf-05 within 60 s"
    )
    for link in incident.members.all():
        Decision.objects.create(
            fault=link.fault, incident=incident, kind="nearly", rule="behind_spine", recorded_at=NOW,
            text=f"{link.fault.pk} s late: its window had passed",
        )  # fmt: skip
    text = why(str(incident.pk))
    assert (
        "No repair starts before 2025-01-15 03:01:00 UTC: three ports of leaf-05 within 60 s."
        in text
    )
    assert "behind_spine: " in text
    assert "its window had passed. (3 times)" in text
    assert "Maintenance by omar until 2025-01-15 05:00:00 UTC: Recabling of pod-a." in text


def test_what_a_person_reported_is_told_in_their_words() -> None:
    a_node()
    services.ingest([an_event("gpu.xid.79", GPU)], now=NOW)
    services.report(
        author="sato",
        text="My job hangs.",
        resource="node/gn042",
        occurred_at=NOW,
        now=NOW + MINUTE,
    )
    assert "sato reported gn042 at 2025-01-15 03:00:00 UTC: My job hangs." in why(
        str(Incident.objects.get().pk)
    )


def test_the_json_has_the_keys_of_its_contract() -> None:
    incident = storm(3)
    found = json.loads(why(str(incident.pk), "--json"))
    assert set(found) == KEYS
    assert found["root"]["at"] == "2025-01-15T03:00:00+00:00"
    assert {
        "rule",
        "because",
        "by",
        "faults",
        "fault_types",
        "places",
        "first_at",
        "last_at",
    } == set(found["joined"][0])


def test_an_unknown_incident_ends_with_one_and_what_is_no_number_with_two() -> None:
    for word, code in (("999", 1), ("leaf-05", 2)):
        with pytest.raises(CommandError) as ended:
            why(word)
        assert ended.value.returncode == code


def test_the_page_tells_the_same(people: People) -> None:
    incident = storm(3)
    page = people.viewer.get(f"/incidents/incident/{incident.pk}/change/").content.decode()
    assert "Why it is as it is" in page
    assert "3 x NIC link is down (nic.link.down)" in page
