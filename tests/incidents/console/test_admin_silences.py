"""What people find and do on the pages of windows: a list, a new one with its preview, another end,
the end."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from incidents import services
from incidents.evaluation.windows import Draft, WindowKind
from incidents.maintenance import planning
from incidents.models import Incident, Silence
from tests.builders import GPU, a_node, an_event
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
NEW = "/incidents/silence/new/"


@pytest.fixture(autouse=True)
def machines() -> None:
    a_node("gn042")
    a_node("gn043")


def a_fault_now() -> Incident:
    now = timezone.now()
    services.ingest([an_event(at=now)], now=now)
    return Incident.objects.get()


def a_window(**values: object) -> Silence:
    now = timezone.now()
    draft = Draft(
        WindowKind.SILENCE,
        "tray out",
        now,
        now + HOUR,
        resource=str(values.get("resource", "node/gn042")),
    )
    planned = planning.plan(draft, author="ada", now=now)
    assert isinstance(planned, planning.PlannedWindow)
    return Silence.objects.get(pk=planned.silence_id)


def form(**changes: str) -> dict[str, str]:
    ends_at = f"{timezone.localtime(timezone.now() + HOUR):%Y-%m-%dT%H:%M}"
    return {
        "kind": "silence",
        "where": "node/gn042",
        "reason": "tray out",
        "ends_at": ends_at,
        **changes,
    }


def test_a_person_on_call_makes_a_silence_and_comes_to_its_page(people: People) -> None:
    incident = a_fault_now()
    answer = people.on_call.post(NEW, form())
    row = Silence.objects.get()
    assert (answer.status_code, answer.headers["Location"]) == (
        302,
        f"/incidents/silence/{row.pk}/change/",
    )
    assert (row.author, row.resource) == ("omar", "node/gn042")
    page = people.viewer.get(f"/incidents/silence/{row.pk}/change/").content.decode()
    assert f"#{incident.pk}" in page
    assert "End it now" not in page


def test_a_preview_makes_nothing_and_says_what_would_be_kept(people: People) -> None:
    incident = a_fault_now()
    page = people.on_call.post(NEW, form(preview="yes")).content.decode()
    assert "1 active faults and 1 open incidents would be kept from people now." in page
    assert f"/incidents/incident/{incident.pk}/change/" in page
    assert not Silence.objects.exists()


def test_maintenance_is_made_of_machines(people: People) -> None:
    people.on_call.post(NEW, form(kind="maintenance", where="gn042"))
    assert Silence.objects.get().machines == ["node/gn042"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"where": "node/xx"}, "Nothing known matches node/xx."),
        ({"where": "", "fault_type": ""}, "Give a resource, a fault type, or both."),
        ({"fault_type": "no.such"}, "The catalogue has no fault type no.such"),
        ({"reason": ""}, "Say why: everyone who sees it will ask."),
        ({"ends_at": ""}, "Give an end or a review"),
        ({"ends_at": "2020-01-01T00:00"}, "is not after the start"),
        ({"ends_at": "soon"}, "Give date and time as 2025-01-31 14:05."),
        ({"where": "*"}, "Say that you mean everything."),
        ({"kind": "shelf"}, "A shelf is for one kind of fault in one place"),
        ({"kind": "maintenance", "where": "gn042,gn[9-"}, "gn042,gn[9-: brackets do not match."),
        ({"kind": "maintenance", "where": "gn9"}, "The inventory knows no machine gn9."),
    ],
)
def test_a_window_that_cannot_be_is_asked_again(
    people: People, changes: dict[str, str], text: str
) -> None:
    answer = people.on_call.post(NEW, form(**changes))
    assert answer.status_code == 422
    assert text in answer.content.decode()
    assert not Silence.objects.exists()


def test_an_incident_leads_to_a_silence_of_itself(people: People) -> None:
    incident = a_fault_now()
    page = people.on_call.get(f"/incidents/incident/{incident.pk}/change/").content.decode()
    assert f'href="{NEW}?incident={incident.pk}"' in page
    filled = people.on_call.get(f"{NEW}?incident={incident.pk}").content.decode()
    assert f'value="{GPU}"' in filled
    assert 'value="gpu.xid.79"' in filled
    assert (
        NEW not in people.viewer.get(f"/incidents/incident/{incident.pk}/change/").content.decode()
    )


def test_a_kept_incident_and_every_page_say_so(people: People) -> None:
    incident = a_fault_now()
    row = a_window()
    page = people.viewer.get(f"/incidents/incident/{incident.pk}/change/").content.decode()
    assert (
        f'Kept from people by <a href="/incidents/silence/{row.pk}/change/">window {row.pk}</a>'
        in page
    )
    assert (
        "1 window (silence, maintenance or shelf) is in force; 1 open incident is kept from people by it."
        in page
    )


def test_the_end_is_put_off_and_the_window_ended(people: People) -> None:
    row = a_window()
    later = timezone.localtime(row.starts_at + 3 * HOUR)
    sent = {"ends_at": f"{later:%Y-%m-%dT%H:%M}", "review_at": "", "reason": ""}
    assert people.on_call.post(f"/incidents/silence/{row.pk}/times/", sent).status_code == 302
    row.refresh_from_db()
    assert row.ends_at == later.replace(second=0, microsecond=0)
    assert row.reason == "tray out"
    assert people.on_call.post(f"/incidents/silence/{row.pk}/end/").status_code == 302
    row.refresh_from_db()
    assert row.ended_by == "omar"
    again = people.admin.post(f"/incidents/silence/{row.pk}/end/", follow=True).content.decode()
    assert f"Window {row.pk} was ended already" in again


def test_a_change_that_leaves_no_end_is_asked_again(people: People) -> None:
    row = a_window()
    answer = people.on_call.post(
        f"/incidents/silence/{row.pk}/times/", {"ends_at": "", "review_at": ""}
    )
    assert answer.status_code == 409
    assert "Give an end or a review" in answer.content.decode()


@pytest.mark.parametrize(
    "address", [NEW, "/incidents/silence/{pk}/end/", "/incidents/silence/{pk}/times/"]
)
def test_a_viewer_silences_nothing(people: People, address: str) -> None:
    row = a_window()
    assert people.viewer.post(address.format(pk=row.pk), form()).status_code == 403
    row.refresh_from_db()
    assert row.ended_at is None
    assert Silence.objects.count() == 1


@pytest.mark.parametrize(("state", "count"), [("in_force", 1), ("ended", 1), ("planned", 0)])
def test_windows_are_listed_by_their_state(people: People, state: str, count: int) -> None:
    planning.end(a_window().pk, actor="ada", now=timezone.now())
    a_window(resource="node/gn043")
    found = people.viewer.get(f"/incidents/silence/?state={state}").context["cl"].result_list
    assert len(found) == count


def test_a_window_that_follows_slurm_can_be_ended_and_not_changed_here(people: People) -> None:
    now = timezone.now()
    services.follow(
        [
            services.Followed(
                "slurm:m1", frozenset({"node/gn042"}), "Slurm reservation m1", now, now + HOUR
            )
        ],
        now,
        source="slurm",
    )
    page = people.on_call.get(
        f"/incidents/silence/{Silence.objects.get().pk}/change/"
    ).content.decode()
    assert "End it now" in page
    assert "It follows Slurm: change it there." in page


def test_shelves_stand_apart(people: People) -> None:
    a_window()
    now = timezone.now()
    draft = Draft(
        WindowKind.SHELF,
        "RMA 4711",
        now,
        None,
        now + 24 * HOUR,
        resource="node/gn043",
        fault_type="gpu.xid.48",
    )
    planning.plan(draft, author="ada", now=now)
    usual = people.viewer.get("/incidents/silence/").context["cl"].result_list
    shelves = people.viewer.get("/incidents/silence/?kind=shelf").context["cl"].result_list
    assert [row.kind for row in usual] == ["silence"]
    assert [row.kind for row in shelves] == ["shelf"]


@pytest.mark.parametrize(("told", "count"), [("no", 1), ("shelved", 0), ("yes", 0)])
def test_incidents_are_found_by_whether_people_are_told(
    people: People, told: str, count: int
) -> None:
    a_fault_now()
    a_window()
    assert (
        len(people.viewer.get(f"/incidents/incident/?told={told}").context["cl"].result_list)
        == count
    )
