"""When a machine or a part is a lemon: at, just below and just above the rule; what does not
count."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.faults import Recovery
from incidents.inventory import part_history
from incidents.inventory.part_history import Sighting
from incidents.models import Incident, Quarantine
from incidents.reserve import lemons
from incidents.reserve.lemons import INCIDENTS_OF_A_NODE, WITHIN, Breakage, find_lemons
from incidents.vocabulary.changes import Refused
from incidents.vocabulary.lifecycle import State
from incidents.vocabulary.part_kinds import Part
from tests.builders import GPU, NOW, a_node, an_incident

DAY = timedelta(days=1)


def breakages(count: int, *, serial: str = "", is_replaced: bool = False) -> list[Breakage]:
    return [
        Breakage(
            number, "node/gn042", GPU, NOW + number * DAY, serial=serial, is_replaced=is_replaced
        )
        for number in range(1, count + 1)
    ]


@pytest.mark.parametrize(("count", "is_one"), [(2, False), (3, True), (4, True)])
def test_a_machine_is_a_lemon_from_three_incidents_on(count: int, is_one: bool) -> None:
    assert bool(find_lemons(breakages(count))) == is_one


@pytest.mark.parametrize(("count", "is_one"), [(1, False), (2, True)])
def test_a_part_is_a_lemon_from_two_incidents_on(count: int, is_one: bool) -> None:
    assert any(lemon.serial == "S" for lemon in find_lemons(breakages(count, serial="S"))) == is_one


def test_a_part_that_was_replaced_speaks_against_itself_and_not_against_the_machine() -> None:
    (lemon,) = find_lemons(breakages(3, serial="S", is_replaced=True))
    assert (lemon.serial, lemon.incidents) == ("S", (1, 2, 3))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["node/a", "node/b"]), st.sampled_from(["", "S", "T"]), st.booleans()
        )
    )
)
def test_every_lemon_has_its_incidents_and_none_twice(rows: list[tuple[str, str, bool]]) -> None:
    given_ones = [
        Breakage(number, owner, f"{owner}/gpu/{number}", NOW, serial, is_replaced)
        for number, (owner, serial, is_replaced) in enumerate(rows)
    ]
    for lemon in find_lemons(given_ones):
        assert (
            len(set(lemon.incidents))
            == len(lemon.incidents)
            >= (2 if lemon.serial else INCIDENTS_OF_A_NODE)
        )
        assert all(given_ones[n].serial == lemon.serial for n in lemon.incidents if lemon.serial)


def closed(**values: object) -> Incident:
    """One incident that is over, so that the next fault of its kind is another."""
    incident = an_incident(**{"state": State.RESOLVED, **values})  # type: ignore[arg-type]
    fault = incident.root_fault
    assert fault is not None
    fault.is_active = False
    fault.save()
    return incident


@pytest.mark.django_db
def test_incidents_count_for_four_weeks() -> None:
    a_node()
    for age in (timedelta(0), DAY, WITHIN - timedelta(seconds=1)):
        closed(at=NOW - age)
    found = lemons.is_lemon("gn042", NOW)
    assert found is not None
    assert found.why.startswith(
        "3 incidents with a hardware cause within 28 days speak against gn042: #"
    )
    assert lemons.is_lemon("gn042", NOW + timedelta(seconds=2)) is None
    assert lemons.is_lemon("gn043", NOW) is None


@pytest.mark.django_db
@pytest.mark.parametrize(
    "values",
    [
        {"state": State.FALSE_POSITIVE},
        {"state": State.DUPLICATE},
        {"recovery": Recovery.CONFIG_CHANGE},
        {"component": "misconfiguration"},
        {"action": "watch"},
    ],
)
def test_what_was_no_hardware_does_not_count(values: dict[str, object]) -> None:
    a_node()
    for days in range(4):
        closed(at=NOW - days * DAY, **values)
    assert lemons.is_lemon("gn042", NOW) is None


@pytest.mark.django_db
def test_a_new_part_gives_its_machine_a_new_start() -> None:
    a_node()
    part_history.settle(
        [Sighting(Part.GPU, GPU, serial="OLD-1")], NOW - 9 * DAY, why="seen by a poll"
    )
    for days in (3, 2, 1):
        closed(at=NOW - days * DAY)
    assert lemons.is_lemon("gn042", NOW) is not None
    part_history.settle([Sighting(Part.GPU, GPU, serial="NEW-1")], NOW, why="put in")
    assert lemons.is_lemon("gn042", NOW) is None
    (part,) = lemons.list_lemons(NOW)
    assert (part.serial, part.resource) == ("OLD-1", GPU)


@pytest.mark.django_db
def test_a_quarantine_stands_once_and_ends_with_a_word() -> None:
    a_node()
    incident = an_incident()
    for _ in range(2):
        lemons.quarantine("gn042", incident_id=incident.pk, reason="lemon", now=NOW)
    assert lemons.get_quarantined() == {"gn042"}
    row = Quarantine.objects.get()
    assert isinstance(lemons.release(row.pk, actor="ada", why=" ", now=NOW), Refused)
    text = lemons.release(row.pk, actor="ada", why="Board swapped.", now=NOW)
    assert (
        text == "gn042 is no longer set aside as a lemon, by ada: Board swapped. It stays drained."
    )
    assert isinstance(lemons.release(row.pk, actor="ada", why="Again.", now=NOW), Refused)
    assert lemons.get_quarantined() == set()
    assert incident.timeline.get().text == text
