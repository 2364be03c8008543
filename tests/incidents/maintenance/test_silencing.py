"""What windows mean for incidents: recorded all the same, told to nobody, announced once when they
outlast it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from detectors.faults import Action, EventKind
from incidents import services
from incidents.evaluation.windows import Draft, DraftField, WindowKind
from incidents.maintenance import active_windows, planning
from incidents.maintenance.planning import NotPlanned, PlannedWindow
from incidents.models import Decision, Fault, Incident, Notification, Silence
from incidents.notify import story
from incidents.triage import aggregation
from incidents.vocabulary.changes import Refused
from incidents.vocabulary.lifecycle import State
from tests.builders import GPU, NOW, a_cable, a_clear, a_node, a_switch, an_event
from tests.incidents.sites import NODES, a_site, happen, open_incidents

pytestmark = pytest.mark.django_db
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
PORT, NIC = "switch/leaf-01/port/Ethernet0", "node/gn042/nic/mlx5_0"


@pytest.fixture
def site() -> None:
    a_node("gn042")
    a_node("gn043")
    a_switch("leaf-01")
    a_cable(PORT, NIC)


def planned(**values: Any) -> int:
    now = values.pop("now", NOW)
    defaults: dict[str, Any] = {
        "kind": WindowKind.SILENCE,
        "reason": "tray out",
        "starts_at": now,
        "ends_at": now + HOUR,
    }
    outcome = planning.plan(Draft(**{**defaults, **values}), author="ada", now=now)
    assert isinstance(outcome, PlannedWindow), outcome
    return outcome.silence_id


def raised(
    fault_type: str = "gpu.xid.79", resource: str = GPU, *, after: timedelta = MINUTE
) -> Incident:
    services.ingest([an_event(fault_type, resource, at=NOW + after)], now=NOW + after)
    return Incident.objects.filter(members__fault__resource=resource).latest("pk")


def swept(after: timedelta) -> None:
    services.sweep(now=NOW + after)
    services.end_silences(NOW + after)


def kinds(incident: Incident) -> list[str]:
    return list(incident.timeline.values_list("kind", flat=True))


def owed(incident: Incident) -> list[str]:
    return list(incident.notifications.order_by("sequence").values_list("reason", flat=True))


def decided(incident: Incident) -> list[str]:
    ours = (Decision.Kind.SILENCED, Decision.Kind.ANNOUNCED)
    return list(incident.decisions.filter(kind__in=ours).values_list("kind", flat=True))


@pytest.mark.usefixtures("site")
def test_a_fault_is_recorded_and_told_to_nobody_while_a_window_covers_it() -> None:
    window = planned(resource="node/gn042")
    incident = raised()
    assert Fault.objects.get().is_active
    assert (incident.silence_id, incident.announced_at, incident.state) == (
        window,
        None,
        State.OPEN,
    )
    assert "silenced" in kinds(incident)
    assert owed(incident) == []
    assert decided(incident) == ["silenced"]


@pytest.mark.usefixtures("site")
def test_an_incident_is_told_at_once_where_no_window_covers_it() -> None:
    planned(resource="node/gn043")
    incident = raised()
    assert (incident.silence_id, incident.announced_at) == (None, NOW + MINUTE)
    assert owed(incident) == ["card"]


@pytest.mark.usefixtures("site")
def test_nothing_that_happens_to_a_kept_incident_is_told() -> None:
    planned(resource="node/gn042")
    incident = raised()
    services.record(incident.pk, kind="step_done", text="Drained gn042.", now=NOW + 2 * MINUTE)
    raised("gpu.xid.48", GPU, after=3 * MINUTE)
    assert Notification.objects.count() == 0


@pytest.mark.usefixtures("site")
def test_what_still_stands_when_the_window_ends_is_announced_once_with_since_when_and_under_which() -> (
    None
):
    planned(resource="node/gn042")
    incident = raised()
    swept(HOUR)
    swept(HOUR + MINUTE)
    incident.refresh_from_db()
    assert (incident.silence, incident.announced_at) == (None, NOW + HOUR)
    assert owed(incident) == ["card", "announced"]
    assert decided(incident) == ["silenced", "announced"]
    assert incident.timeline.get(kind="announced").text == (
        "Announced now: it stands since 2025-01-15 03:01:00 UTC and was kept from people by silence of node/gn042"
        " (ada: tray out), and that ended 2025-01-15 04:00:00 UTC."
    )
    assert Silence.objects.get().ended_at == NOW + HOUR


@pytest.mark.usefixtures("site")
def test_what_cleared_inside_a_window_stays_in_the_record_only() -> None:
    planned(resource="node/gn042")
    incident = raised("gpu.lost", "node/gn042")
    services.ingest(
        [a_clear("gpu.lost", "node/gn042", at=NOW + 10 * MINUTE)], now=NOW + 10 * MINUTE
    )
    swept(HOUR)
    swept(2 * HOUR)
    incident.refresh_from_db()
    assert incident.state == State.RESOLVED
    assert owed(incident) == []
    assert decided(incident) == ["silenced"]


@pytest.mark.usefixtures("site")
def test_what_comes_back_after_its_window_is_announced() -> None:
    planned(resource="node/gn042")
    incident = raised("gpu.lost", "node/gn042")
    services.ingest(
        [a_clear("gpu.lost", "node/gn042", at=NOW + 50 * MINUTE)], now=NOW + 50 * MINUTE
    )
    swept(HOUR)
    assert raised("gpu.lost", "node/gn042", after=HOUR + MINUTE) == incident
    incident.refresh_from_db()
    assert incident.silence is None
    assert owed(incident)[:1] == ["card"]
    assert "announced" in owed(incident)


@pytest.mark.usefixtures("site")
def test_a_repair_that_asks_a_person_is_announced_when_its_window_ends_though_no_fault_stands() -> (
    None
):
    planned(resource="node/gn042")
    incident = raised("gpu.lost", "node/gn042")
    services.record(
        incident.pk,
        kind="repair_failed",
        text="No.",
        now=NOW + MINUTE,
        needs_human="Look at gn042.",
    )
    services.ingest(
        [a_clear("gpu.lost", "node/gn042", at=NOW + 10 * MINUTE)], now=NOW + 10 * MINUTE
    )
    swept(HOUR)
    assert "announced" in owed(incident)


@pytest.mark.usefixtures("site")
def test_an_incident_that_grows_beyond_its_window_is_announced_at_once() -> None:
    planned(resource="node/gn042/gpu/*")
    incident = raised()
    assert owed(incident) == []
    assert raised("gpu.count_mismatch", "node/gn042", after=2 * MINUTE) == incident
    incident.refresh_from_db()
    assert (incident.silence, incident.announced_at) == (None, NOW + 2 * MINUTE)
    assert owed(incident) == ["card", "joined", "announced"]
    assert incident.timeline.get(kind="announced").text.endswith("on gn042 is not part of it.")


@pytest.mark.usefixtures("site")
def test_a_fault_that_gets_worse_stays_silenced() -> None:
    planned(resource="node/gn042")
    incident = raised()
    worse = an_event(at=NOW + 5 * MINUTE, action=Action.VENDOR)
    services.ingest([worse], now=NOW + 5 * MINUTE)
    incident.refresh_from_db()
    assert incident.action == Action.VENDOR
    assert incident.silence is not None


@pytest.mark.usefixtures("site")
def test_a_port_whose_node_is_under_maintenance_is_part_of_it() -> None:
    planned(kind=WindowKind.MAINTENANCE, machines=("node/gn042",))
    services.ingest([an_event("switch.port.down", PORT, at=NOW + MINUTE)], now=NOW + MINUTE)
    swept(10 * MINUTE)
    assert not Notification.objects.exists()
    assert Fault.objects.get().is_active


def test_a_rack_whose_nodes_are_restarted_under_maintenance_is_told_to_nobody() -> None:
    a_site()
    nodes = [f"node/{name}" for name in NODES[:3]]
    planned(kind=WindowKind.MAINTENANCE, machines=tuple(nodes))
    happen("slurm.node_down", nodes, at=NOW + MINUTE)
    assert open_incidents() == [("facility.nodes_down", "rack/r01")]

    happen("target.unreachable", nodes, at=NOW + 2 * MINUTE)
    assert Incident.objects.get().silence is not None
    assert not Notification.objects.exists()


def a_rack_that_is_down_under_maintenance(**values: Any) -> tuple[Incident, list[str]]:
    a_site()
    nodes = [f"node/{name}" for name in NODES[:3]]
    planned(kind=WindowKind.MAINTENANCE, machines=tuple(nodes), **values)
    happen("slurm.node_down", nodes, at=NOW + MINUTE)
    return Incident.objects.get(), nodes


def test_what_a_restart_brought_is_told_to_nobody_when_it_passes_minutes_after_the_maintenance() -> (
    None
):
    incident, nodes = a_rack_that_is_down_under_maintenance()
    swept(HOUR)
    happen("slurm.node_down", nodes, at=NOW + HOUR + 5 * MINUTE, kind=EventKind.CLEARED)
    back_at = NOW + HOUR + 6 * MINUTE
    services.ingest(aggregation.find_ended(back_at), now=back_at)
    swept(HOUR + 11 * MINUTE)

    incident.refresh_from_db()
    assert (incident.announced_at, decided(incident)) == (None, ["silenced"])
    assert not Notification.objects.exists()


def test_what_a_restart_brought_is_told_once_when_it_stands_ten_minutes_after_the_maintenance() -> (
    None
):
    incident, _ = a_rack_that_is_down_under_maintenance()
    swept(HOUR)
    swept(HOUR + 9 * MINUTE)
    assert not Notification.objects.exists()

    swept(HOUR + 10 * MINUTE)
    swept(HOUR + 11 * MINUTE)
    incident.refresh_from_db()
    assert incident.announced_at == NOW + HOUR + 10 * MINUTE
    assert decided(incident) == ["silenced", "announced"]


def test_what_was_down_before_the_maintenance_is_told_at_its_end() -> None:
    starts_at = NOW + 2 * MINUTE
    incident, _ = a_rack_that_is_down_under_maintenance(starts_at=starts_at, ends_at=NOW + HOUR)
    swept(2 * MINUTE)
    swept(HOUR)

    incident.refresh_from_db()
    assert decided(incident) == ["silenced", "announced"]


def test_what_no_restart_brings_is_told_at_the_end_of_the_maintenance_with_what_one_brings() -> (
    None
):
    incident, nodes = a_rack_that_is_down_under_maintenance()
    raised("gpu.xid.79", f"{nodes[0]}/gpu/0000:19:00.0", after=2 * MINUTE)
    swept(HOUR)

    incident.refresh_from_db()
    gpu = Incident.objects.get(fault_type="gpu.xid.79")
    assert gpu.announced_at == NOW + HOUR
    assert (incident.announced_at is None) == (gpu.pk != incident.pk)


def test_a_rack_is_told_when_a_node_beside_those_under_maintenance_is_down_too() -> None:
    a_site()
    nodes = [f"node/{name}" for name in NODES[:4]]
    planned(kind=WindowKind.MAINTENANCE, machines=tuple(nodes[:3]))
    happen("slurm.node_down", nodes[:3], at=NOW + MINUTE)
    happen("slurm.node_down", nodes[3:], at=NOW + 2 * MINUTE)

    assert open_incidents() == [("facility.nodes_down", "rack/r01")]
    assert Incident.objects.get().silence is None
    assert Notification.objects.exists()


@pytest.mark.usefixtures("site")
def test_a_window_keeps_what_people_know_of_from_its_start_and_updates_the_card_alone() -> None:
    incident = raised()
    Notification.objects.filter(sequence=0).update(
        state="sent", message_ts="1.2", attempts=1, sent_revision=1
    )
    window = planned(resource="node/gn042", now=NOW + 5 * MINUTE)
    incident.refresh_from_db()
    assert incident.silence_id == window
    card = Notification.objects.get(incident=incident)
    assert (card.reason, card.state) == ("card", "waiting")


@pytest.mark.usefixtures("site")
def test_a_message_that_was_not_sent_yet_is_not_sent_when_a_window_begins() -> None:
    incident = raised()
    planned(resource="node/gn042", now=NOW + 2 * MINUTE)
    assert owed(incident) == []


@pytest.mark.usefixtures("site")
def test_a_planned_window_begins_by_itself() -> None:
    incident = raised()
    planned(resource="node/gn042", starts_at=NOW + HOUR, ends_at=NOW + 2 * HOUR)
    swept(30 * MINUTE)
    incident.refresh_from_db()
    assert incident.silence is None
    swept(HOUR)
    incident.refresh_from_db()
    assert incident.silence is not None


@pytest.mark.usefixtures("site")
def test_an_incident_moves_to_the_window_that_lasts_when_its_own_ends() -> None:
    first = planned(resource="node/gn042", ends_at=NOW + HOUR)
    incident = raised()
    second = planned(
        resource="node/*", ends_at=NOW + 2 * HOUR, now=NOW + 2 * MINUTE, may_cover_all=True
    )
    incident.refresh_from_db()
    assert incident.silence_id in (first, second)
    swept(HOUR)
    incident.refresh_from_db()
    assert incident.silence_id == second
    assert owed(incident) == []
    swept(2 * HOUR)
    assert owed(incident) == ["card", "announced"]


@pytest.mark.usefixtures("site")
def test_an_end_by_a_person_announces_what_stands_and_says_who_ended_it() -> None:
    planned(resource="node/gn042")
    incident = raised()
    planning.end(Silence.objects.get().pk, actor="bob", now=NOW + 5 * MINUTE)
    incident.refresh_from_db()
    assert incident.timeline.get(kind="announced").text.endswith(
        "and that ended 2025-01-15 03:05:00 UTC by bob."
    )
    swept(6 * MINUTE)
    incident.refresh_from_db()
    assert incident.silence is None


# People
# ---------------------------------------------------------------------------


@pytest.mark.usefixtures("site")
def test_a_window_is_refused_when_it_is_about_nothing_known() -> None:
    draft = Draft(
        WindowKind.SILENCE, "why", NOW, NOW + HOUR, resource="node/xy*", fault_type="no.such"
    )
    outcome = planning.plan(draft, author="ada", now=NOW)
    assert isinstance(outcome, NotPlanned)
    assert {problem.field for problem in outcome.problems} == {
        DraftField.WHERE,
        DraftField.FAULT_TYPE,
    }
    assert not Silence.objects.exists()


@pytest.mark.usefixtures("site")
def test_a_preview_counts_what_would_be_kept_and_what_would_be_told_all_the_same() -> None:
    inside = raised()
    raised("gpu.xid.79", "node/gn043/gpu/0000:19:00.0")
    draft = Draft(WindowKind.SILENCE, "why", NOW + DAY, NOW + 2 * DAY, resource="node/gn042")
    seen = planning.preview(draft, NOW + 2 * MINUTE)
    assert seen.incidents == ((inside.pk, inside.title),)
    assert (seen.incident_count, seen.partly_count, seen.faults) == (1, 0, 1)


@pytest.mark.usefixtures("site")
def test_machines_are_written_as_slurm_writes_them() -> None:
    there = planning.get_known_names()
    assert planning.parse_machines("gn[042-043], leaf-01", there) == (
        "node/gn042",
        "node/gn043",
        "switch/leaf-01",
    )
    assert planning.parse_machines("gn9", there) == ("node/gn9",)


@pytest.mark.usefixtures("site")
def test_an_end_that_is_put_off_keeps_the_window_in_force() -> None:
    window = planned(resource="node/gn042")
    incident = raised()
    moved = planning.change(
        window, ends_at=NOW + 2 * HOUR, review_at=None, actor="bob", now=NOW + MINUTE
    )
    assert isinstance(moved, PlannedWindow)
    swept(HOUR)
    assert owed(incident) == []
    swept(2 * HOUR)
    assert owed(incident) == ["card", "announced"]


@pytest.mark.usefixtures("site")
def test_a_change_is_refused_when_it_leaves_neither_end_nor_review() -> None:
    window = planned(resource="node/gn042")
    outcome = planning.change(window, ends_at=None, review_at=None, actor="bob", now=NOW + MINUTE)
    assert isinstance(outcome, NotPlanned)
    assert [problem.field for problem in outcome.problems] == [DraftField.ENDS_AT]


@pytest.mark.usefixtures("site")
def test_the_second_of_two_people_who_end_a_window_is_told_who_was_first() -> None:
    window = planned(resource="node/gn042")
    assert isinstance(planning.end(window, actor="ada", now=NOW + MINUTE), PlannedWindow)
    outcome = planning.end(window, actor="bob", now=NOW + 2 * MINUTE)
    assert outcome == Refused(
        f"Window {window} was ended already: 2025-01-15 03:01:00 UTC, by ada."
    )


@pytest.mark.usefixtures("site")
def test_what_a_person_splits_off_stays_kept_and_what_outgrows_the_window_by_a_merge_is_announced() -> (
    None
):
    planned(resource="node/gn042")
    incident = raised()
    raised("gpu.count_mismatch", "node/gn042", after=2 * MINUTE)
    member = Fault.objects.get(fault_type="gpu.count_mismatch")
    fresh = services.split(incident.pk, [member.pk], actor="ada", now=NOW + 3 * MINUTE)
    assert isinstance(fresh, services.Rearranged), fresh
    apart = Incident.objects.get(members__fault=member)
    assert apart.silence is not None
    assert not Notification.objects.exists()
    other = raised("gpu.xid.79", "node/gn043/gpu/0000:19:00.0", after=4 * MINUTE)
    merged = services.merge(other.pk, incident.pk, actor="ada", now=NOW + 5 * MINUTE)
    assert isinstance(merged, services.Rearranged), merged
    incident.refresh_from_db()
    assert incident.silence is None
    assert "announced" in owed(incident)


@pytest.mark.usefixtures("site")
def test_the_card_says_that_it_was_kept_once_it_is_told() -> None:
    planned(resource="node/gn042")
    incident = raised()
    assert story.build_card(incident, now=NOW).now == story.QUIET
    swept(HOUR)
    card = story.build_card(Incident.objects.get(), now=NOW + HOUR)
    assert card.now != story.QUIET
    assert card.latest.startswith(
        "Announced now: it stands since 2025-01-15 03:01:00 UTC and was kept from people by"
    )


# Reviews
# ---------------------------------------------------------------------------


def review(after: timedelta) -> None:
    services.ingest(services.reviews_due(NOW + after), now=NOW + after)


@pytest.mark.usefixtures("site")
def test_a_review_that_is_due_asks_people_and_ends_when_it_is_answered() -> None:
    window = planned(resource="node/gn042", ends_at=None, review_at=NOW + DAY)
    review(DAY - MINUTE)
    assert not Incident.objects.exists()
    review(DAY)
    review(DAY + MINUTE)
    incident = Incident.objects.get()
    assert incident.fault_type == "kintsugi.silence_review"
    assert "ada" in incident.root_fault.evidence.get().excerpt  # type: ignore[union-attr]
    assert owed(incident) == ["card"]
    planning.change(
        window, ends_at=None, review_at=NOW + 20 * DAY, actor="ada", now=NOW + DAY + HOUR
    )
    review(DAY + HOUR)
    assert not Fault.objects.filter(is_active=True).exists()


@pytest.mark.usefixtures("site")
def test_a_window_whose_review_nobody_answers_ends_after_a_week() -> None:
    planned(resource="node/gn042", ends_at=None, review_at=NOW + DAY)
    incident = raised()
    swept(7 * DAY)
    assert Silence.objects.get().ended_at is None
    swept(8 * DAY)
    assert Silence.objects.get().ended_at == NOW + 8 * DAY
    assert owed(incident) == ["card", "announced"]


# Races
# ---------------------------------------------------------------------------


def at_once(*acts: Callable[[], object]) -> list[object]:
    barrier, results = threading.Barrier(len(acts)), []

    def run(act: Callable[[], object]) -> None:
        barrier.wait()
        try:
            results.append(act())
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_on_disk")
def test_one_of_two_people_ends_a_window_when_both_do_at_once() -> None:
    a_node("gn042")
    window = planned(resource="node/gn042")
    incident = raised()
    results = at_once(
        lambda: planning.end(window, actor="ada", now=NOW + 2 * MINUTE),
        lambda: planning.end(window, actor="bob", now=NOW + 2 * MINUTE),
    )
    assert sorted(type(result).__name__ for result in results) == ["PlannedWindow", "Refused"]
    assert owed(incident) == ["card", "announced"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_on_disk")
def test_an_incident_is_announced_once_when_a_fault_comes_while_its_window_ends() -> None:
    a_node("gn042")
    planned(resource="node/gn042")
    incident = raised()
    late = an_event("gpu.xid.48", GPU, at=NOW + HOUR)
    at_once(
        lambda: services.end_silences(NOW + HOUR),
        lambda: services.ingest([late], now=NOW + HOUR),
        lambda: services.end_silences(NOW + HOUR),
    )
    assert owed(incident).count("announced") == 1
    assert Incident.objects.get().silence is None


def test_the_clock_alone_decides_what_a_window_keeps() -> None:
    a_node("gn042")
    planned(resource="node/gn042")
    incident = raised(after=HOUR)
    assert incident.silence is None
    assert active_windows.list_in_force(NOW + HOUR) == []
