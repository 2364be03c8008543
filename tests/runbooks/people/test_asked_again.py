"""No critical fault waits in silence: a person is asked within half an hour, and again each shift
while nobody has taken it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from incidents import services as incidents
from incidents.models import Incident, Notification
from incidents.state import outbox
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.library import library
from runbooks.people import asked_again
from runbooks.step import Wait, format_iso
from tests.runbooks.site import Site, a_context

pytestmark = pytest.mark.django_db
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
AT_LATEST = asked_again.AT_LATEST + MINUTE


def live(site: Site, incident: Incident, how_long: timedelta) -> None:
    """Turns and sweeps, each minute for an hour and then each five."""
    run = site.run_of(incident)
    ends_at = site.now + how_long
    while site.now < ends_at:
        site.now += MINUTE if how_long <= HOUR else 5 * MINUTE
        run.refresh_from_db()
        if run.wake_at is not None and run.wake_at <= site.now:
            services.advance(run.pk, now=site.now, world=site.world)
        services.sweep_standstills(site.now)
        services.sweep_unanswered(site.now)


def count_loud(incident: Incident) -> int:
    """Questions in the channel."""
    return Notification.objects.filter(incident=incident, reason__in=outbox.ASKING).count()


def a_hung_job() -> tuple[Site, Incident]:
    """A GPU is lost under a job of 20 nodes, which hangs and never ends."""
    site = Site()
    site.slurm.add_job("78", nodes=site.names, user="alice")
    incident = site.lose_gpu()
    site.begin(incident)
    return site, incident


def test_a_person_is_asked_about_a_job_that_is_in_the_way_within_half_an_hour() -> None:
    site, incident = a_hung_job()
    live(site, incident, 29 * MINUTE)
    assert count_loud(incident) == 0
    live(site, incident, 2 * MINUTE)
    assert count_loud(incident) == 1
    incident.refresh_from_db()
    assert incident.needs_human.startswith("Ask alice about job 78 on gn001")
    told = incident.timeline.filter(kind__in=outbox.ASKING).get()
    assert "1 job is still on gn001 (78 of alice)" in told.text


def test_it_is_asked_again_each_shift_while_nobody_has_taken_it() -> None:
    site, incident = a_hung_job()
    live(site, incident, DAY)
    assert count_loud(incident) == 3
    again = incident.timeline.filter(kind=asked_again.AGAIN).latest("pk")
    assert again.text.startswith("Asked and not taken since ")
    assert again.text.endswith(Incident.objects.get(pk=incident.pk).needs_human)


def test_nobody_is_asked_again_once_a_person_has_taken_it() -> None:
    site, incident = a_hung_job()
    live(site, incident, HOUR)
    incidents.act(incident.pk, Trigger.ACKNOWLEDGE, actor="alice", now=site.now)
    Incident.objects.filter(pk=incident.pk).update(acknowledged_at=site.now)
    live(site, incident, DAY)
    assert count_loud(incident) == 1


def test_what_was_asked_in_the_thread_alone_is_asked_in_the_channel() -> None:
    site = Site()
    incident = site.raise_fault()  # the node is well: nothing is confirmed
    site.begin(incident)
    live(site, incident, AT_LATEST)
    assert count_loud(incident) >= 1


def test_a_question_about_a_job_stands_in_the_timeline_once_and_not_at_each_look() -> None:
    site, incident = a_hung_job()
    live(site, incident, 5 * HOUR)
    lines = incident.timeline.filter(text__contains="still on gn001")
    assert lines.count() == 2  # that it waits, and what is asked


@pytest.mark.parametrize(
    ("fault_type", "kind"),
    [("gpu.xid.79", "jobs_in_the_way"), ("gpu.ecc.row_remap_pending", "run_waiting")],
)
def test_each_shipped_runbook_asks_about_jobs_in_the_end(fault_type: str, kind: str) -> None:
    site = Site()
    site.slurm.add_job("17", nodes=["gn001"])
    context = a_context(site, fault_type=fault_type, now=site.now + DAY)
    for book in library.read_folders(None).values():
        for planned in (one for one in book.steps if one.step.name == "wait_for_jobs"):
            facts = {"drained_at": format_iso(site.now)}
            waiting = planned.step.find_obstacle(
                replace(context, params=planned.params, facts=facts)
            )
            assert isinstance(waiting, Wait), book.name
            assert (bool(waiting.ask), waiting.kind) == (True, kind), book.name
