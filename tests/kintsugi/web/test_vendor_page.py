"""What people find and do on the pages of vendor cases, spares and lemons, and what each role
may."""

from __future__ import annotations

import io
import tarfile
from datetime import timedelta

import pytest
from django.utils import timezone

from incidents.models import Incident, Quarantine, VendorCase
from incidents.reserve import lemons, spares
from incidents.vendor import cases
from incidents.vendor.cases import Facts, Opened
from incidents.vocabulary.lifecycle import State
from incidents.vocabulary.vendor_states import CaseState, Move
from tests.builders import GPU, a_node, an_incident
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db
CASES = "/incidents/vendorcase/"


def a_case(**facts: str) -> VendorCase:
    a_node()
    opened = cases.open_case(
        an_incident().pk, actor="ada", now=timezone.now(), facts=Facts(**facts)
    )
    assert isinstance(opened, Opened)
    return VendorCase.objects.get(pk=opened.case_id)


def page_of(case: VendorCase) -> str:
    return f"{CASES}{case.pk}/change/"


def said(what: str, **words: str) -> dict[str, str]:
    return {"what": what, **{f"{what}-{name}": word for name, word in words.items()}}


def test_an_incident_leads_to_a_case_of_its_part(people: People) -> None:
    a_node()
    incident = an_incident()
    address = f"{CASES}open/{incident.pk}/"
    page = people.on_call.get(f"/incidents/incident/{incident.pk}/change/").content.decode()
    assert f'href="{address}"' in page
    assert f'value="{GPU}"' in people.on_call.get(address).content.decode()
    answer = people.on_call.post(address, {"resource": GPU, "vendor": "Dell", "number": "RMA-7"})
    case = VendorCase.objects.get()
    assert answer.headers["Location"] == page_of(case)
    assert (case.vendor, case.number, case.opened_by) == ("Dell", "RMA-7", "omar")
    page = people.viewer.get(f"/incidents/incident/{incident.pk}/change/").content.decode()
    assert f'<a href="{page_of(case)}">Case {case.pk} (RMA-7)</a>' in page
    assert address not in page


def test_a_case_that_cannot_be_is_asked_again_with_the_reason(people: People) -> None:
    a_node()
    address = f"{CASES}open/{an_incident().pk}/"
    answer = people.on_call.post(address, {"resource": "node/gn043"})
    assert answer.status_code == 422
    assert "node/gn043 is not of node/gn042" in answer.content.decode()


def test_a_case_is_moved_by_buttons_and_tells_what_happened(people: People) -> None:
    case = a_case()
    address = f"{CASES}{case.pk}/act/"
    people.on_call.post(address, said("note", number="RMA-7"))
    people.on_call.post(address, said("ship", note="Tracking 123."))
    answer = people.on_call.post(address, said("install", serial="NEW-1"))
    assert answer.headers["Location"] == page_of(case)
    case.refresh_from_db()
    assert (case.state, case.new_serial, case.number) == (CaseState.INSTALLED, "NEW-1", "RMA-7")
    page = people.viewer.get(page_of(case)).content.decode()
    assert "Tracking 123." in page
    assert "Test gn042 GPU 0" in page
    assert "k-acts" not in page


def test_a_move_that_came_too_late_is_refused_and_keeps_the_words(people: People) -> None:
    case = a_case()
    cases.move(case.pk, Move.SHIP, actor="ada", now=timezone.now())
    answer = people.on_call.post(f"{CASES}{case.pk}/act/", said("ship", note="On its way."))
    page = answer.content.decode()
    assert answer.status_code == 409
    assert f"Vendor case {case.pk} is shipped: shipped is not possible there." in page
    assert "On its way." in page


def test_dead_on_arrival_needs_a_word(people: People) -> None:
    case = a_case()
    cases.move(case.pk, Move.INSTALL, actor="ada", now=timezone.now(), serial="NEW-1")
    answer = people.on_call.post(f"{CASES}{case.pk}/act/", said("dead_on_arrival"))
    assert answer.status_code == 409
    people.on_call.post(f"{CASES}{case.pk}/act/", said("dead_on_arrival", note="No fan spins."))
    case.refresh_from_db()
    assert (case.state, case.dead_on_arrival) == (CaseState.SHIPPED, 1)


@pytest.mark.parametrize("who", ["anonymous", "stranger", "viewer"])
def test_only_those_on_call_open_move_and_take_the_evidence(people: People, who: str) -> None:
    case = a_case()
    client = getattr(people, who)
    for answer in (
        client.post(f"{CASES}{case.pk}/act/", said("ship")),
        client.post(f"{CASES}open/{case.incident_id}/", {"vendor": "X"}),
        client.get(f"{CASES}{case.pk}/bundle/"),
    ):
        assert answer.status_code in (302, 403)
        assert answer.headers.get("Content-Type") != "application/gzip"
    case.refresh_from_db()
    assert (case.state, VendorCase.objects.count()) == (CaseState.OPENED, 1)


def test_the_evidence_is_one_download(people: People) -> None:
    case = a_case()
    answer = people.on_call.get(f"{CASES}{case.pk}/bundle/")
    assert (
        answer.headers["Content-Disposition"]
        == f'attachment; filename="kintsugi-case-{case.pk}.tar.gz"'
    )
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert f"kintsugi-case-{case.pk}/MANIFEST.txt" in archive.getnames()
    assert people.on_call.get(f"{CASES}999/bundle/").status_code == 302


def test_the_list_filters_and_tells_how_long_vendors_take(people: People) -> None:
    case = a_case(vendor="Dell", number="RMA-7")
    page = people.viewer.get(CASES).content.decode()
    assert "RMA-7" in page
    assert "Dell, GPU" in page
    cases.move(case.pk, Move.CLOSE, actor="ada", note="Out of warranty.", now=timezone.now())
    assert "RMA-7" not in people.viewer.get(f"{CASES}?state=standing").content.decode()
    assert "RMA-7" in people.viewer.get(f"{CASES}?state=closed").content.decode()
    assert "RMA-7" in people.viewer.get(f"{CASES}?q=rma-7").content.decode()


def test_spares_say_for_whom_they_stand_in(people: People) -> None:
    a_node("gn099")
    a_node("gn042")
    spare = spares.add("gn099", partitions=["gpu"], is_reserved=False, now=timezone.now())
    assert not isinstance(spare, cases.Refused)
    spares.claim(spare, stands_for="gn042", incident_id=0, now=timezone.now())
    page = people.viewer.get("/incidents/spare/").content.decode()
    assert "gn099" in page
    assert "gn042" in page
    assert "entering" in page


def test_lemons_are_listed_and_a_quarantine_ends_with_a_word(people: People) -> None:
    now = timezone.now()
    a_node()
    for days in range(3):
        incident = an_incident(state=State.RESOLVED, at=now - timedelta(days=days))
        assert incident.root_fault is not None
        incident.root_fault.is_active = False
        incident.root_fault.save()
    lemons.quarantine(
        "gn042", incident_id=Incident.objects.latest("pk").pk, reason="three times", now=now
    )
    page = people.viewer.get("/incidents/quarantine/").content.decode()
    assert "Lemons of the last 28 days" in page
    assert "three times" in page
    row = Quarantine.objects.get()
    address = f"/incidents/quarantine/{row.pk}/end/"
    assert (
        "End the quarantine"
        not in people.viewer.get(f"/incidents/quarantine/{row.pk}/change/").content.decode()
    )
    assert people.viewer.post(address, {"note": "Board swapped."}).status_code == 403
    assert people.on_call.post(address, {"note": ""}).status_code == 409
    assert people.on_call.post(address, {"note": "Board swapped."}).status_code == 302
    assert lemons.get_quarantined() == set()
    assert (
        "Board swapped."
        in people.viewer.get(f"/incidents/quarantine/{row.pk}/change/").content.decode()
    )
