"""The ledger's page: agreement in words, differences with two clicks, for those who may judge."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from runbooks.models import RunState, ShadowAct
from tests.builders import a_node, an_incident
from tests.kintsugi.pages import RUNBOOK, a_run
from tests.kintsugi.people import People, people

__all__ = ["people"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def act(db: None) -> ShadowAct:
    a_node()
    incident = an_incident()
    run = a_run(incident, RunState.SHADOWED)
    now = timezone.now()
    return ShadowAct.objects.create(
        side="kintsugi",
        node=run.node,
        incident=incident,
        run=run,
        runbook=RUNBOOK,
        kind="drain",
        at=now - timedelta(days=2),
        settles_at=now - timedelta(days=1),
        verdict="differed",
    )


def test_a_difference_stands_there_with_both_judgements(people: People, act: ShadowAct) -> None:
    page = people.on_call.get("/shadow/").content.decode()
    assert "Kintsugi was right" in page
    assert "People were right" in page
    assert "nobody did" in page
    assert "0 of 1 act agreed: 0% (95 % interval 0% to 79%)" in page


def test_what_only_people_did_is_counted_and_never_called_agreement(
    people: People, act: ShadowAct
) -> None:
    alone = {
        "node": act.node,
        "kind": "drain",
        "at": act.at,
        "settles_at": act.settles_at,
        "verdict": "differed",
    }
    ShadowAct.objects.create(side="people", **alone)
    page = people.viewer.get("/shadow/").content.decode()
    assert "<dt>What people did and no runbook wanted</dt><dd>1 act.</dd>" in page


def test_two_clicks_judge_a_difference(people: People, act: ShadowAct) -> None:
    answer = people.on_call.post("/shadow/?view=differed", {"act": act.pk, "judgement": "kintsugi"})
    assert answer.url == "/shadow/?view=differed"
    act.refresh_from_db()
    assert (act.judged, bool(act.judged_by)) == ("kintsugi", True)
    assert (
        "Kintsugi was right, says" in people.viewer.get("/shadow/?view=differed").content.decode()
    )
    assert "Take back" in people.on_call.get("/shadow/?view=differed").content.decode()


def test_a_viewer_sees_the_ledger_and_judges_nothing(people: People, act: ShadowAct) -> None:
    assert "Kintsugi was right" not in people.viewer.get("/shadow/").content.decode()
    assert (
        people.viewer.post("/shadow/", {"act": act.pk, "judgement": "kintsugi"}).status_code == 403
    )
    act.refresh_from_db()
    assert act.judged == ""


@pytest.mark.parametrize(
    "form", [{}, {"act": "x"}, {"act": "999999", "judgement": "people"}, {"act": "{pk}"}]
)
def test_a_wrong_form_changes_nothing_and_says_why(
    people: People, act: ShadowAct, form: dict[str, str]
) -> None:
    given = {key: value.format(pk=act.pk) for key, value in form.items()}
    page = people.on_call.post("/shadow/", given, follow=True).content.decode()
    assert any(word in page for word in ("Choose a line", "no difference", "no judgement"))
    act.refresh_from_db()
    assert act.judged == ""


def test_an_unknown_period_or_view_shows_the_usual_one(people: People, act: ShadowAct) -> None:
    page = people.viewer.get("/shadow/?days=x&view=y&page=z").content.decode()
    assert "Agreement in the last 30 days" in page
