"""The contract of power, the same for every way to it; and what each way makes of boards that
behave badly."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from detectors.detector import Target
from runbooks.power.access import LIMIT, BmcAccess, BmcKind
from runbooks.power.protocol import NoController, NoPower, PowerError, PowerRefusal, PowerState
from runbooks.power.site import SitePower
from tests.runbooks.power_doors import DOORS, Door, machine
from tests.services.patience import deadline_in


@pytest.fixture(scope="module", params=DOORS)
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    with DOORS[request.param]() as made:
        yield made


def test_a_node_goes_off_comes_back_and_its_neighbour_stays_on(door: Door) -> None:
    assert door.power.read_state(door.node) is PowerState.ON
    door.power.turn_off(door.node)
    door.until(PowerState.OFF)
    assert door.power.read_state(door.other) is PowerState.ON
    door.power.turn_on(door.node)
    door.until(PowerState.ON)


def test_asking_for_what_is_so_already_changes_nothing(door: Door) -> None:
    door.power.turn_on(door.node)
    assert door.power.read_state(door.node) is PowerState.ON
    door.power.turn_off(door.node)
    door.until(PowerState.OFF)
    door.power.turn_off(door.node)
    assert door.power.read_state(door.node) is PowerState.OFF
    door.power.turn_on(door.node)
    door.until(PowerState.ON)


def test_wrong_credentials_are_refused_and_nothing_is_switched(door: Door) -> None:
    for verb in (door.locked_out.read_state, door.locked_out.turn_off):
        with pytest.raises(PowerRefusal, match="does not let"):
            verb(door.node)
    assert door.power.read_state(door.node) is PowerState.ON


def test_a_controller_that_is_away_is_told_in_time_and_may_be_asked_again(door: Door) -> None:
    limit = deadline_in(LIMIT.total_seconds())
    with pytest.raises(PowerError, match=door.away.name) as raised:
        door.power.read_state(door.away)
    assert not isinstance(raised.value, PowerRefusal)
    assert time.monotonic() < limit


def test_a_node_without_a_controller_is_refused_with_what_to_give() -> None:
    access = BmcAccess(BmcKind.REDFISH, "kintsugi", "secret")
    for power, words in ((NoPower(), "group.bmc"), (SitePower(lambda node: None), "group.bmc")):
        with pytest.raises(NoController, match=words):
            power.turn_off(machine("gn001", "10.0.9.1"))
    for kind in BmcKind:
        site = SitePower(lambda node, kind=kind: BmcAccess(kind, "kintsugi", "secret"))  # type: ignore[misc]
        with pytest.raises(NoController, match="key `bmc`"):
            site.read_state(Target("gn001", "gn001"))
    assert "secret" not in repr(access)
