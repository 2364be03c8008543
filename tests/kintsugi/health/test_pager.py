"""What nobody has taken half an hour after it was asked reaches people through the site's own
Alertmanager, and stops when somebody takes it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings

from incidents.models import Incident, PeriodicTask
from kintsugi import tasks
from kintsugi.health import pager
from runbooks import services
from runbooks.people import asked_again
from tests.runbooks.site import Site
from tests.services.alertmanager import PROGRAM, Alertmanager
from tests.services.ports import free_port

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
# Asked within half an hour, and not taken for half an hour more.
UNANSWERED_AFTER = 63 * MINUTE


def live(site: Site, incident: Incident, how_long: timedelta) -> None:
    run = site.run_of(incident)
    ends_at = site.now + how_long
    while site.now < ends_at:
        site.now += MINUTE
        run.refresh_from_db()
        if run.wake_at is not None and run.wake_at <= site.now:
            services.advance(run.pk, now=site.now, world=site.world)
        services.sweep_unanswered(site.now)


def a_hung_job(*, for_: timedelta) -> tuple[Site, Incident]:
    """A GPU is lost under a job that never ends; nobody has done anything about it until now."""
    site = Site()
    site.now = datetime.now(UTC) - for_
    site.slurm.add_job("78", nodes=site.names, user="alice")
    incident = site.lose_gpu()
    site.begin(incident)
    live(site, incident, for_)
    incident.refresh_from_db()
    return site, incident


def get_kinds(incident: Incident) -> list[str]:
    kinds = (asked_again.PAGED, asked_again.PAGE_FAILED)
    return list(
        incident.timeline.filter(kind__in=kinds).order_by("pk").values_list("kind", flat=True)
    )


class TestWhoIsPaged:
    def test_nobody_within_the_half_hour_that_a_person_has_for_an_answer(self) -> None:
        site, _ = a_hung_job(for_=45 * MINUTE)
        assert services.list_unanswered(site.now) == []

    def test_what_is_not_taken_by_then(self) -> None:
        site, incident = a_hung_job(for_=UNANSWERED_AFTER)
        [question] = services.list_unanswered(site.now)
        assert question.incident == incident
        assert question.first_at is not None
        assert site.now - question.first_at >= asked_again.AT_LATEST

    def test_nobody_once_a_person_has_taken_it(self) -> None:
        site, incident = a_hung_job(for_=UNANSWERED_AFTER)
        Incident.objects.filter(pk=incident.pk).update(acknowledged_at=site.now)
        assert services.list_unanswered(site.now) == []

    def test_it_stays_so_when_it_is_asked_again(self) -> None:
        """An alert that ended for half an hour whenever it is repeated would call off the page."""
        site, incident = a_hung_job(for_=UNANSWERED_AFTER)
        live(site, incident, asked_again.SHIFT)
        assert [one.incident for one in services.list_unanswered(site.now)] == [incident]


def test_an_alert_says_what_is_asked_and_ends_by_itself() -> None:
    site, incident = a_hung_job(for_=UNANSWERED_AFTER)
    [question] = services.list_unanswered(site.now)
    alert = pager.make_alert(question, site.now)
    assert alert["labels"] == {
        "alertname": "KintsugiUnanswered",
        "severity": "critical",
        "incident": str(incident.pk),
        "node": "gn001",
    }
    assert alert["annotations"]["description"].startswith("Ask alice about job 78 on gn001")
    assert alert["generatorURL"].endswith(f"/incidents/incident/{incident.pk}/change/")
    ends_at = datetime.fromisoformat(alert["endsAt"])
    assert site.now + pager.EVERY < ends_at <= site.now + 5 * MINUTE


@pytest.mark.needs(PROGRAM)
class TestWithAlertmanager:
    @pytest.fixture
    def alertmanager(self) -> Iterator[Alertmanager]:
        server = Alertmanager()
        yield server.start()
        server.remove()

    def test_it_holds_one_alert_however_often_it_is_sent(self, alertmanager: Alertmanager) -> None:
        site, incident = a_hung_job(for_=UNANSWERED_AFTER)
        pager.page(alertmanager.url, site.now)
        [first] = alertmanager.get_active()
        assert first["labels"]["incident"] == str(incident.pk)
        assert first["status"]["state"] == "active"
        pager.page(f"{alertmanager.url}/", site.now + MINUTE)
        [second] = alertmanager.get_active()
        assert second["fingerprint"] == first["fingerprint"]
        assert second["endsAt"] > first["endsAt"]
        assert get_kinds(incident) == [asked_again.PAGED]

    def test_it_is_renewed_no_more_once_a_person_has_taken_it(
        self, alertmanager: Alertmanager
    ) -> None:
        site, incident = a_hung_job(for_=UNANSWERED_AFTER)
        pager.page(alertmanager.url, site.now)
        [first] = alertmanager.get_active()
        Incident.objects.filter(pk=incident.pk).update(acknowledged_at=site.now)
        pager.page(alertmanager.url, site.now + MINUTE)
        [second] = alertmanager.get_active()
        assert second["endsAt"] == first["endsAt"]

    def test_one_that_was_away_gets_it_when_it_is_back(self, alertmanager: Alertmanager) -> None:
        site, incident = a_hung_job(for_=UNANSWERED_AFTER)
        away = f"http://127.0.0.1:{free_port()}"
        pager.page(away, site.now)
        pager.page(away, site.now + MINUTE)
        assert get_kinds(incident) == [asked_again.PAGE_FAILED]
        told = incident.timeline.get(kind=asked_again.PAGE_FAILED).text
        assert told == (
            "Nobody was paged: the Alertmanager of KINTSUGI_ALERTMANAGER_URL does not answer"
            " (Connection refused). It is tried again each minute."
        )
        pager.page(alertmanager.url, site.now + 2 * MINUTE)
        assert get_kinds(incident) == [asked_again.PAGE_FAILED, asked_again.PAGED]
        assert len(alertmanager.get_active()) == 1

    def test_what_it_refuses_is_told_with_its_answer(self, alertmanager: Alertmanager) -> None:
        site, incident = a_hung_job(for_=UNANSWERED_AFTER)
        pager.page(f"{alertmanager.url}/no-such-prefix", site.now)
        assert "answers 404" in incident.timeline.get(kind=asked_again.PAGE_FAILED).text


class TestSweep:
    @pytest.fixture
    def pages(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What is paged, with Celery calling the task at once."""
        paged: list[str] = []
        monkeypatch.setattr(pager, "page", lambda url, _now: paged.append(url))
        monkeypatch.setattr(tasks, "_send", lambda task, *_: task())
        return paged

    def test_it_looks_once_a_minute(
        self, pages: list[str], settings: Any, django_capture_on_commit_callbacks: Any
    ) -> None:
        url = "http://alertmanager.example:9093"
        with override_settings(KINTSUGI=settings.KINTSUGI | {"KINTSUGI_ALERTMANAGER_URL": url}):
            for _ in range(3):
                with django_capture_on_commit_callbacks(execute=True):
                    tasks.sweep()
            assert pages == [url]
            PeriodicTask.objects.filter(name=pager.TASK).delete()
            with django_capture_on_commit_callbacks(execute=True):
                tasks.sweep()
        assert pages == [url, url]

    def test_a_site_without_one_pages_nobody(
        self, pages: list[str], django_capture_on_commit_callbacks: Any
    ) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            tasks.sweep()
        assert pages == []


@pytest.mark.parametrize(
    "address", ["http://kintsugi:hunter2@127.0.0.1", "http://a b", "http://127.0.0.1:x"]
)
def test_an_address_that_cannot_be_used_is_told_without_its_password(address: str) -> None:
    told = pager.send(address, [])
    assert told.startswith("Nobody was paged: ")
    assert "hunter2" not in told
