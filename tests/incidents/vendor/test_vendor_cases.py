"""A vendor case from the call to the verified part: what moves it, what it does to incident, ledger
and people."""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta

import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase
from pytest_django.fixtures import DjangoAssertNumQueries

from detectors.faults import Recovery
from incidents import services
from incidents.inventory import part_history
from incidents.inventory.part_history import Sighting
from incidents.models import Incident, InService, Notification, VendorCase, VendorMove
from incidents.vendor import cases, deadlines
from incidents.vendor.cases import CaseMoved, Facts, Opened
from incidents.vocabulary.changes import Refused
from incidents.vocabulary.lifecycle import State, Trigger
from incidents.vocabulary.part_kinds import Part
from incidents.vocabulary.vendor_states import (
    TRANSITIONS,
    CaseState,
    Move,
    get_next_state,
    list_moves,
)
from tests.builders import GPU, NOW, a_node, an_incident

DAY = timedelta(days=1)


def a_case(incident: Incident | None = None, **values: object) -> VendorCase:
    """Of gn042's first GPU, serial OLD-1."""
    if incident is None:
        a_node()
        part_history.settle([Sighting(Part.GPU, GPU, serial="OLD-1")], NOW, why="seen by a poll")
        incident = an_incident()
    opened = cases.open_case(incident.pk, actor="ada", now=NOW, **values)  # type: ignore[arg-type]
    assert isinstance(opened, Opened), opened
    return VendorCase.objects.get(pk=opened.case_id)


def moved(case: VendorCase, *moves: Move, at: timedelta = DAY, serial: str = "") -> VendorCase:
    """Each move one `at` after the one before."""
    for what in moves:
        case.refresh_from_db()
        told = serial if what is Move.INSTALL else ""
        outcome = cases.move(case.pk, what, actor="ada", now=case.since_at + at, serial=told)
        assert isinstance(outcome, CaseMoved), outcome
    case.refresh_from_db()
    return case


@pytest.mark.parametrize("state", CaseState)
@pytest.mark.parametrize("what", Move)
def test_every_state_says_what_may_happen(state: CaseState, what: Move) -> None:
    after = get_next_state(state, what)
    assert (after is not None) == (what in list_moves(state)) == ((state, what) in TRANSITIONS)
    assert state is not CaseState.CLOSED or after is None


@pytest.mark.django_db
def test_a_case_is_opened_with_the_serial_of_the_part_and_the_incident_waits() -> None:
    case = a_case(facts=Facts(vendor="Supermicro", number="RMA-7"))
    assert (case.part, case.resource, case.old_serial, case.number) == (
        Part.GPU,
        GPU,
        "OLD-1",
        "RMA-7",
    )
    incident = Incident.objects.get()
    assert incident.state == State.AWAITING_VENDOR
    assert incident.needs_human == ""
    text = incident.timeline.get(kind="handed_to_vendor").text
    said = f"Vendor case {case.pk} is opened for gn042 GPU 0 (0000:19:00.0), serial OLD-1."
    assert text == f"Handed to the vendor. {said}"


@pytest.mark.django_db
def test_a_person_is_asked_for_the_number_until_it_is_known() -> None:
    case = a_case()
    assert Incident.objects.get().needs_human.startswith("Call the vendor about gn042 GPU 0")
    cases.describe(case.pk, Facts(number="RMA-7", is_advance=True), actor="omar", now=NOW)
    case.refresh_from_db()
    assert (case.number, case.is_advance, Incident.objects.get().needs_human) == ("RMA-7", True, "")
    assert [row.move for row in case.moves.all()] == ["open", "note"]


@pytest.mark.django_db
def test_the_part_that_is_put_in_is_in_the_ledger_from_then_on() -> None:
    case = moved(a_case(), Move.APPROVE, Move.SHIP, Move.RECEIVE, Move.INSTALL, serial="NEW-1")
    rows = {row.serial: row for row in InService.objects.filter(slot=GPU)}
    assert rows["OLD-1"].to_at == rows["NEW-1"].from_at == NOW + 4 * DAY
    assert (
        rows["NEW-1"].came == f"gpu NEW-1 replaces OLD-1 in {GPU}: put in by vendor case {case.pk}"
    )
    assert case.new_serial == "NEW-1"


@pytest.mark.django_db
def test_a_part_is_not_put_in_without_its_serial_unless_polls_saw_it() -> None:
    case = a_case()
    refused = cases.move(case.pk, Move.INSTALL, actor="ada", now=NOW + DAY)
    assert isinstance(refused, Refused)
    assert "Give the serial" in refused.reason
    part_history.settle([Sighting(Part.GPU, GPU, serial="NEW-1")], NOW + DAY, why="seen by a poll")
    assert moved(case, Move.INSTALL, at=2 * DAY).new_serial == "NEW-1"


@pytest.mark.django_db
def test_a_serial_that_serves_elsewhere_is_refused() -> None:
    case = a_case()
    part_history.settle(
        [Sighting(Part.GPU, "node/gn042/gpu/0000:3b:00.0", serial="X")], NOW, why="seen by a poll"
    )
    refused = cases.move(case.pk, Move.INSTALL, actor="ada", now=NOW, serial="X")
    assert isinstance(refused, Refused)
    assert "is in service in node/gn042/gpu/0000:3b:00.0" in refused.reason


@pytest.mark.django_db
def test_a_part_that_came_back_repaired_keeps_its_place_in_the_ledger() -> None:
    moved(a_case(), Move.INSTALL, serial="OLD-1")
    assert [(row.serial, row.to_at) for row in InService.objects.filter(slot=GPU)] == [
        ("OLD-1", None)
    ]


@pytest.mark.django_db
def test_a_dead_part_sends_the_case_back_and_is_counted() -> None:
    case = moved(a_case(), Move.INSTALL, Move.DEAD_ON_ARRIVAL, serial="NEW-1")
    assert (case.state, case.dead_on_arrival, case.new_serial) == (CaseState.SHIPPED, 1, "")
    assert case.moves.get(move="dead_on_arrival").serial == "NEW-1"
    case = moved(case, Move.INSTALL, serial="NEW-2")
    assert (case.state, case.new_serial) == (CaseState.INSTALLED, "NEW-2")


@pytest.mark.django_db
def test_a_second_call_for_the_part_finds_its_case() -> None:
    case = a_case()
    again = cases.open_case(case.incident_id, actor="omar", now=NOW + DAY)
    assert isinstance(again, Opened)
    assert (again.case_id, again.is_new) == (case.pk, False)


@pytest.mark.django_db
def test_a_new_part_that_is_called_for_again_was_dead_on_arrival() -> None:
    case = moved(a_case(), Move.INSTALL, serial="NEW-1")
    cases.reopen_after_dead_part(case.pk, now=NOW + DAY, note="Verifying.")
    services.act(case.incident_id, Trigger.REPAIR_FAILED, actor="kintsugi", now=NOW + DAY)
    again = cases.open_case(case.incident_id, actor="kintsugi", now=NOW + 2 * DAY)
    assert isinstance(again, Opened)
    case.refresh_from_db()
    assert (again.case_id, case.state, case.dead_on_arrival) == (case.pk, CaseState.SHIPPED, 1)
    assert Incident.objects.get().state == State.AWAITING_VENDOR


@pytest.mark.django_db
def test_a_part_that_fails_after_it_was_verified_gets_a_case_of_its_own() -> None:
    case = moved(a_case(), Move.INSTALL, Move.VERIFY, serial="NEW-1")
    services.act(case.incident_id, Trigger.RESOLVE, actor="ada", now=NOW + 3 * DAY)
    later = an_incident(at=NOW + 9 * DAY)
    opened = cases.open_case(later.pk, actor="ada", now=NOW + 9 * DAY)
    assert isinstance(opened, Opened)
    assert opened.is_new
    case.refresh_from_db()
    assert case.state == CaseState.CLOSED
    assert VendorCase.objects.get(pk=opened.case_id).old_serial == "NEW-1"


@pytest.mark.django_db
def test_a_case_that_an_incident_left_open_goes_to_the_next_one() -> None:
    case = a_case()
    services.act(case.incident_id, Trigger.RESOLVE, actor="ada", now=NOW)
    later = an_incident(at=NOW + DAY)
    opened = cases.open_case(later.pk, actor="ada", now=NOW + DAY)
    assert isinstance(opened, Opened)
    case.refresh_from_db()
    assert (opened.case_id, case.incident_id) == (case.pk, later.pk)


@pytest.mark.django_db
def test_a_part_whose_case_is_of_another_open_incident_is_refused() -> None:
    case = a_case()
    other = an_incident("gpu.xid.48")
    refused = cases.open_case(other.pk, actor="ada", now=NOW)
    assert isinstance(refused, Refused)
    assert (
        f"has its case {case.pk} already, of incident #{case.incident_id}: merge the two"
        in refused.reason
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("resource", "text"),
    [
        ("node/gn043", "is not of node/gn042"),
        ("rack/r1", "no machine nor a part of one"),
    ],
)
def test_a_part_elsewhere_is_refused(resource: str, text: str) -> None:
    a_node()
    refused = cases.open_case(an_incident().pk, actor="ada", now=NOW, resource=resource)
    assert isinstance(refused, Refused)
    assert text in refused.reason
    assert not VendorCase.objects.exists()


@pytest.mark.django_db
def test_no_case_is_opened_for_a_machine_that_only_spoke_to_us() -> None:
    a_node(is_provisional=True)
    refused = cases.open_case(an_incident().pk, actor="ada", now=NOW)
    assert isinstance(refused, Refused)
    assert "not in the inventory" in refused.reason


@pytest.mark.django_db
def test_no_case_is_opened_for_a_closed_or_unknown_incident() -> None:
    a_node()
    closed = an_incident(state=State.RESOLVED)
    for number in (closed.pk, closed.pk + 1):
        assert isinstance(cases.open_case(number, actor="ada", now=NOW), Refused)


@pytest.mark.django_db
def test_a_case_ends_without_a_part_only_with_a_word_why() -> None:
    case = a_case()
    assert isinstance(cases.move(case.pk, Move.CLOSE, actor="ada", now=NOW), Refused)
    done = cases.move(case.pk, Move.CLOSE, actor="ada", note="Out of warranty.", now=NOW)
    assert isinstance(done, CaseMoved)
    assert Incident.objects.get().needs_human.startswith("Decide what becomes of gn042 GPU 0")


@pytest.mark.django_db
def test_polls_that_see_another_part_move_the_case() -> None:
    case = moved(a_case(), Move.SHIP)
    assert deadlines.check_deadlines(NOW + DAY) == []
    part_history.settle(
        [Sighting(Part.GPU, GPU, serial="NEW-1")], NOW + 2 * DAY, why="seen by a poll"
    )
    (text,) = deadlines.check_deadlines(NOW + 2 * DAY)
    said = f"Vendor case {case.pk}: the new part is in its slot, serial NEW-1."
    assert text == f"{said} Polls see another part in the slot."
    assert deadlines.check_deadlines(NOW + 2 * DAY) == []


@pytest.mark.django_db
def test_a_sweep_asks_five_questions_however_many_cases_wait(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    for number in range(5):
        path = f"node/gn{number:03d}/gpu/0000:19:00.0"
        a_node(f"gn{number:03d}")
        part_history.settle(
            [Sighting(Part.GPU, path, serial=f"OLD-{number}")], NOW, why="seen by a poll"
        )
        a_case(an_incident(resource=path))
    with django_assert_num_queries(5):
        assert deadlines.check_deadlines(NOW + DAY) == []


@pytest.mark.django_db
def test_a_dead_part_that_still_sits_in_its_slot_is_no_new_one() -> None:
    moved(a_case(), Move.INSTALL, Move.DEAD_ON_ARRIVAL, serial="NEW-1")
    assert deadlines.check_deadlines(NOW + 3 * DAY) == []


@pytest.mark.django_db
def test_a_part_with_which_service_came_back_is_verified() -> None:
    case = moved(a_case(), Move.INSTALL, serial="NEW-1")
    cases.reopen_after_dead_part(case.pk, now=NOW + DAY, note="Verifying.")
    at = NOW + 2 * DAY
    services.act(
        case.incident_id,
        Trigger.REPAIR_SUCCEEDED,
        actor="kintsugi",
        now=at,
        restored_at=at,
        recovery=Recovery.VENDOR_REPLACEMENT,
    )
    deadlines.check_deadlines(at)
    case.refresh_from_db()
    assert case.state == CaseState.VERIFIED


@pytest.mark.django_db
def test_people_are_reminded_once_a_day_of_a_case_that_stands_too_long() -> None:
    case = moved(a_case(facts=Facts(number="RMA-7")), Move.APPROVE, Move.SHIP)
    shipped = case.since_at
    assert deadlines.check_deadlines(shipped + 13 * DAY) == []
    (text,) = deadlines.check_deadlines(shipped + 14 * DAY)
    assert text == (
        f"Vendor case {case.pk} (RMA-7) for gn042 GPU 0 (0000:19:00.0) is shipped for 14 d; 14 d are expected there."
    )
    assert deadlines.check_deadlines(shipped + 14.9 * DAY) == []
    assert len(deadlines.check_deadlines(shipped + 15 * DAY)) == 1
    incident = Incident.objects.get()
    assert (
        incident.needs_human
        == f"Ask the vendor where the part is: vendor case {case.pk} stands there for 15 d."
    )
    told = Notification.objects.filter(reason="vendor_late")
    assert told.count() == 2
    moved(case, Move.RECEIVE)
    assert Incident.objects.get().needs_human.startswith("Put the new part into gn042 GPU 0")


class TestMovesInAnyOrder(TestCase):
    @settings(max_examples=40)
    @given(st.lists(st.tuples(st.sampled_from(Move), st.booleans()), max_size=12))
    def test_rows_add_up_to_the_state_whatever_people_click(
        self, clicks: list[tuple[Move, bool]]
    ) -> None:
        case = a_case()
        at = NOW
        for what, is_known in clicks:
            at += DAY
            before = CaseState(VendorCase.objects.get(pk=case.pk).state)
            serial = f"S-{at:%j}" if is_known else ""
            outcome = cases.move(case.pk, what, actor="ada", now=at, serial=serial, note="word")
            case.refresh_from_db()
            assert isinstance(outcome, Refused) == (case.since_at != at)
            assert case.state == (
                before if isinstance(outcome, Refused) else TRANSITIONS[before, what]
            )
        rows = list(case.moves.order_by("pk"))
        assert rows[-1].to_state == case.state
        assert all(a.to_state == b.from_state for a, b in itertools.pairwise(rows))
        assert case.dead_on_arrival == sum(row.move == Move.DEAD_ON_ARRIVAL for row in rows)
        served = InService.objects.filter(slot=GPU, to_at=None)
        put_in = [row.serial for row in rows if row.move == Move.INSTALL]
        assert [row.serial for row in served] == [put_in[-1] if put_in else "OLD-1"]
        assert (case.closed_at is not None) == (case.state == CaseState.CLOSED)


def _at_once(*calls: object) -> list[object]:
    found: list[object] = []
    gate = threading.Barrier(len(calls))

    def play(call: object) -> None:
        gate.wait()
        found.append(call())  # type: ignore[operator]
        connection.close()

    threads = [threading.Thread(target=play, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.usefixtures("database_on_disk")
def test_of_two_people_who_move_a_case_at_once_one_is_refused() -> None:
    case = a_case()

    def click(who: str) -> object:
        return cases.move(case.pk, Move.SHIP, actor=who, now=NOW + DAY)

    outcomes = _at_once(lambda: click("ada"), lambda: click("omar"))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["CaseMoved", "Refused"]
    assert VendorMove.objects.filter(move=Move.SHIP).count() == 1
    assert Incident.objects.get().timeline.filter(kind="vendor_shipped").count() == 1


@pytest.mark.usefixtures("database_on_disk")
def test_of_two_people_who_open_a_case_at_once_both_find_one() -> None:
    a_node()
    number = an_incident().pk

    def click(who: str) -> object:
        return cases.open_case(number, actor=who, now=NOW)

    outcomes = _at_once(lambda: click("ada"), lambda: click("omar"))
    assert VendorCase.objects.count() == 1
    assert sum(isinstance(outcome, Opened) and outcome.is_new for outcome in outcomes) == 1
