"""Windows that follow Slurm: begun, moved and ended with what it says, and never made again against
a person's word."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from incidents import services
from incidents.maintenance import planning
from incidents.maintenance.slurm_windows import Followed, follow
from incidents.models import Incident, Notification, Silence
from incidents.polling import polling
from incidents.vocabulary.lifecycle import Trigger
from tests.builders import GPU, NOW, a_node, an_event

pytestmark = pytest.mark.django_db
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.fixture(autouse=True)
def nodes() -> None:
    a_node("gn042")
    a_node("gn043")


def reservation(**values: Any) -> Followed:
    defaults: dict[str, Any] = {
        "origin": "slurm:maint_1",
        "machines": frozenset({"node/gn042"}),
        "reason": "Slurm reservation maint_1",
        "starts_at": NOW,
        "ends_at": NOW + HOUR,
    }
    return Followed(**{**defaults, **values})


def slurm_says(*windows: Followed, now: datetime = NOW) -> None:
    follow(windows, now, source="slurm")


def states(plans: dict[str, str], now: datetime) -> None:
    polling.store_plans(plans, now)
    services.follow_states(now)


def raised(
    resource: str = GPU, *, after: timedelta = MINUTE, fault_type: str = "gpu.xid.79"
) -> Incident:
    services.ingest([an_event(fault_type, resource, at=NOW + after)], now=NOW + after)
    return Incident.objects.get(
        members__fault__resource=resource, members__fault__fault_type=fault_type
    )


def told(incident: Incident) -> bool:
    return incident.notifications.exists()


def test_a_reservation_becomes_a_window_and_what_outlasts_it_is_announced() -> None:
    slurm_says(reservation())
    incident = raised()
    assert not told(incident)
    row = Silence.objects.get()
    assert (row.kind, row.author, row.machines, row.ends_at) == (
        "maintenance",
        "slurm",
        ["node/gn042"],
        NOW + HOUR,
    )
    services.end_silences(NOW + HOUR)
    assert told(incident)


def test_a_reservation_that_is_deleted_ends_its_window() -> None:
    slurm_says(reservation())
    incident = raised()
    slurm_says(now=NOW + 5 * MINUTE)
    row = Silence.objects.get()
    assert (row.ended_at, row.ended_by) == (NOW + 5 * MINUTE, "slurm")
    assert told(incident)


def test_the_same_told_again_changes_nothing() -> None:
    slurm_says(reservation())
    before = Silence.objects.values().get()
    slurm_says(reservation(), now=NOW + MINUTE)
    assert Silence.objects.values().get() == before


def test_a_reservation_that_is_prolonged_prolongs_its_window() -> None:
    slurm_says(reservation())
    incident = raised()
    slurm_says(reservation(ends_at=NOW + 2 * HOUR), now=NOW + 30 * MINUTE)
    services.end_silences(NOW + HOUR)
    assert not told(incident)
    services.end_silences(NOW + 2 * HOUR)
    assert told(incident)


def test_a_node_that_joins_a_reservation_is_kept_and_one_that_leaves_is_announced() -> None:
    slurm_says(reservation())
    here, there = raised(), raised("node/gn043/gpu/0000:19:00.0")
    assert (told(here), told(there)) == (False, True)
    Notification.objects.all().delete()
    slurm_says(reservation(machines=frozenset({"node/gn043"})), now=NOW + 5 * MINUTE)
    here.refresh_from_db()
    there.refresh_from_db()
    assert here.silence is None
    assert told(here)
    assert there.silence is not None


def test_a_reservation_of_tomorrow_keeps_nothing_today() -> None:
    slurm_says(reservation(starts_at=NOW + DAY, ends_at=NOW + DAY + HOUR))
    assert told(raised())
    later = raised("node/gn042", after=DAY + MINUTE, fault_type="gpu.lost")
    services.end_silences(NOW + DAY + MINUTE)
    later.refresh_from_db()
    assert later.silence is not None


def test_the_next_time_of_a_repeated_reservation_is_a_window_of_its_own() -> None:
    slurm_says(reservation())
    slurm_says(reservation(starts_at=NOW + DAY, ends_at=NOW + DAY + HOUR), now=NOW + 2 * HOUR)
    first, second = Silence.objects.order_by("pk")
    assert first.ended_at is not None
    assert (second.starts_at, second.ended_at) == (NOW + DAY, None)


def test_a_window_that_a_person_ended_is_not_made_again() -> None:
    slurm_says(reservation())
    planning.end(Silence.objects.get().pk, actor="ada", now=NOW + MINUTE)
    slurm_says(reservation(), now=NOW + 2 * MINUTE)
    assert Silence.objects.get().ended_by == "ada"


def test_a_reservation_for_months_has_a_review() -> None:
    slurm_says(reservation(ends_at=NOW + 300 * DAY))
    assert Silence.objects.get().review_at == NOW + 30 * DAY


def test_a_person_cannot_change_a_window_that_follows_slurm() -> None:
    slurm_says(reservation())
    row = Silence.objects.get()
    outcome = planning.change(row.pk, ends_at=NOW + DAY, review_at=None, actor="ada", now=NOW)
    assert "follows Slurm (slurm:maint_1)" in str(outcome)


def test_nodes_that_slurm_restarts_are_kept_until_they_have_had_three_rounds() -> None:
    states({"gn042": "reboot", "gn043": "reboot"}, NOW)
    incident = raised()
    states({"gn042": "", "gn043": ""}, NOW + 5 * MINUTE)
    services.end_silences(NOW + 7 * MINUTE)
    assert not told(incident)
    services.end_silences(NOW + 8 * MINUTE)
    assert told(incident)
    assert Silence.objects.get().ended_by == "slurm"


def test_a_node_that_is_back_is_announced_while_others_still_restart() -> None:
    states({"gn042": "reboot", "gn043": "reboot"}, NOW)
    here, there = raised(), raised("node/gn043/gpu/0000:19:00.0")
    states({"gn042": "", "gn043": "reboot"}, NOW + 5 * MINUTE)
    services.end_silences(NOW + 8 * MINUTE)
    assert (told(here), told(there)) == (True, False)
    assert Silence.objects.get().machines == ["node/gn043"]


def test_what_slurm_no_longer_speaks_of_is_announced_after_a_quarter_of_an_hour() -> None:
    states({"gn042": "reboot"}, NOW)
    incident = raised()
    services.end_silences(NOW + 14 * MINUTE)
    assert not told(incident)
    services.end_silences(NOW + 15 * MINUTE)
    assert told(incident)


def test_a_restart_by_a_repair_of_ours_keeps_nothing_from_people() -> None:
    incident = raised()
    services.act(incident.pk, Trigger.REPAIR_STARTED, actor="kintsugi", now=NOW + MINUTE)
    states({"gn042": "reboot"}, NOW + 2 * MINUTE)
    assert not Silence.objects.exists()
    services.act(incident.pk, Trigger.REPAIR_FAILED, actor="kintsugi", now=NOW + 3 * MINUTE)
    states({"gn042": "reboot"}, NOW + 4 * MINUTE)
    assert not Silence.objects.exists()


def test_a_node_of_a_reservation_has_the_window_of_the_reservation_alone() -> None:
    slurm_says(reservation())
    states({"gn042": "maintenance reservation"}, NOW + MINUTE)
    assert Silence.objects.count() == 1
    slurm_says(now=NOW + 5 * MINUTE)
    states({"gn042": "maintenance reservation"}, NOW + 5 * MINUTE)
    assert Silence.objects.filter(ended_at=None).count() == 0


def test_a_node_in_maintenance_is_kept_where_the_reservation_itself_cannot_be_read() -> None:
    states({"gn042": "maintenance reservation"}, NOW)
    assert not told(raised())


def test_a_later_end_alone_takes_no_lock(django_assert_max_num_queries: Any) -> None:
    states({"gn042": "reboot"}, NOW)
    polling.store_plans({"gn042": "reboot"}, NOW + MINUTE)
    with django_assert_max_num_queries(12):
        services.follow_states(NOW + MINUTE)
    assert Silence.objects.get().ends_at == NOW + MINUTE + polling.PLANNED_FOR
