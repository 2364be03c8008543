"""Lists page through a bounded number of rows, and go on from the last of them: nobody misses a
row, and nobody waits for all of them to be counted."""

from __future__ import annotations

import re
from html import unescape

import pytest

from incidents.console import keyset
from incidents.console.incident import ENTRIES_SHOWN
from incidents.models import Fault, TimelineEntry
from tests.builders import NOW, a_fault, an_incident
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db
_LINK = re.compile(r'<a href="(\?[^"]*before=\d+[^"]*)">Show what came before')


def _walk(people: People, path: str) -> list[int]:
    """The numbers of all rows, page after page and link after link."""
    found: list[int] = []
    query = "?"
    while True:
        answer = people.viewer.get(f"{path}{query}")
        changes = answer.context["cl"]
        for page in range(1, changes.paginator.num_pages + 1):
            page_answer = people.viewer.get(f"{path}{query}&p={page}")
            found += [row.pk for row in page_answer.context["cl"].result_list]
        link = _LINK.search(page_answer.content.decode())
        if link is None:
            return found
        query = unescape(link[1])


@pytest.fixture
def short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyset, "MOST", 60)


@pytest.mark.usefixtures("short_lists")
def test_every_fault_is_reached_once_the_active_first(people: People) -> None:
    for number in range(200):
        fault = a_fault("gpu.xid.31", f"node/gn{number:03}/gpu/0000:9b:00.0")
        if number % 3:
            Fault.objects.filter(pk=fault.pk).update(is_active=False, cleared_at=NOW)
    in_order = Fault.objects.order_by("-is_active", "-pk").values_list("pk", flat=True)
    assert _walk(people, "/incidents/fault/") == list(in_order)


@pytest.mark.usefixtures("short_lists")
def test_the_link_onwards_keeps_the_filters(people: People) -> None:
    for number in range(130):
        an_incident(resource=f"node/gn{number:03}/gpu/0000:9b:00.0")
    numbers = _walk(people, "/incidents/incident/")
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == 130
    answer = people.viewer.get("/incidents/incident/?state=unfinished&p=2")
    link = _LINK.search(answer.content.decode())
    assert link is not None
    assert "state=unfinished" in link[1]
    assert "p=2" not in link[1]


@pytest.mark.usefixtures("short_lists")
def test_a_short_list_has_no_link_onwards(people: People) -> None:
    an_incident()
    assert _LINK.search(people.viewer.get("/incidents/incident/").content.decode()) is None


def test_a_number_that_is_none_shows_everything(people: People) -> None:
    an_incident()
    answer = people.viewer.get("/incidents/incident/?before=soon")
    assert answer.context["cl"].result_count == 1


def test_a_long_timeline_is_read_in_portions_from_its_end(people: People) -> None:
    incident = an_incident()
    TimelineEntry.objects.all().delete()
    TimelineEntry.objects.bulk_create(
        TimelineEntry(
            incident=incident,
            kind="step",
            actor="kintsugi",
            text=f"entry number {number}.",
            occurred_at=NOW,
            recorded_at=NOW,
        )
        for number in range(2 * ENTRIES_SHOWN + 1)
    )
    seen: list[int] = []
    query = ""
    portions = 0
    while True:
        context = people.viewer.get(f"/incidents/incident/{incident.pk}/change/{query}").context
        seen += [entry.pk for entry in context["timeline"]]
        portions += 1
        if context["earlier"] is None:
            break
        query = f"?before={context['earlier']}"
    newest_first = TimelineEntry.objects.order_by("-pk").values_list("pk", flat=True)
    assert seen == list(newest_first)
    assert portions == 3
