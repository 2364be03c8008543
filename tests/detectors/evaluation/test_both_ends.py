"""One cable judged from both ends: a table of what is seen and what is said, and what may never be
said."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.evaluation.cable_ends import (
    LIGHT,
    End,
    Finding,
    Pair,
    Suspect,
    end,
    evaluate_cable,
    find_suspects,
    observe_light,
)
from detectors.expected import ExpectedPort
from detectors.faults import Observation

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
NODE, OTHER_NODE = "node/gn001/nic/mlx5_4", "node/gn002/nic/mlx5_4"
PORT, OTHER_PORT = "switch/leaf-04/port/Ethernet0", "switch/leaf-04/port/Ethernet4"
MODULE = "switch/leaf-04/module/1"
GOOD, LOW = 1.0, -12.0


def an_end(
    resource: str,
    rx: float | None = GOOD,
    tx: float | None = GOOD,
    *,
    errors: bool | None = False,
    up: bool | None = True,
) -> End:
    """All four lanes alike, with the module's own alarm thresholds."""
    light = {
        name: {str(lane): dbm for lane in range(1, 5)}
        for name, dbm in (("rx", rx), ("tx", tx))
        if dbm is not None
    }
    return End(resource, light.get("rx", {}), light.get("tx", {}), -8.9, -5.9, errors, up)


def node(
    rx: float | None = GOOD,
    tx: float | None = GOOD,
    *,
    errors: bool | None = False,
    up: bool | None = True,
) -> End:
    return an_end(NODE, rx, tx, errors=errors, up=up)


def switch(
    rx: float | None = GOOD,
    tx: float | None = GOOD,
    *,
    errors: bool | None = False,
    up: bool | None = True,
) -> End:
    return an_end(PORT, rx, tx, errors=errors, up=up)


def unknown(resource: str) -> End:
    return End(resource)


@pytest.mark.parametrize(
    ("cable", "suspect", "resource", "said"),
    [
        (Pair(node(), switch()), Suspect.NOTHING, "", "well at both ends"),
        (Pair(node(tx=LOW), switch(rx=LOW)), Suspect.NODE_END, NODE, "laser is failing"),
        (Pair(node(rx=LOW), switch(tx=LOW)), Suspect.SWITCH_END, PORT, "laser is failing"),
        (Pair(node(tx=LOW), switch(rx=GOOD)), Suspect.NODE_END, NODE, "laser is failing"),
        (Pair(node(tx=LOW), switch(tx=LOW)), Suspect.NOT_TOLD, "", "switched on"),
        (Pair(node(rx=LOW), switch(rx=LOW)), Suspect.FIBRE, "", "fibre"),
        (Pair(node(rx=LOW), switch()), Suspect.FIBRE, NODE, f"connector at {NODE}"),
        (Pair(node(), switch(rx=LOW)), Suspect.FIBRE, PORT, f"connector at {PORT}"),
        (
            Pair(node(rx=LOW), unknown(PORT)),
            Suspect.NOT_TOLD,
            "",
            f"nothing tells what {PORT} sends",
        ),
        (
            Pair(unknown(NODE), switch(rx=LOW)),
            Suspect.NOT_TOLD,
            "",
            f"nothing tells what {NODE} sends",
        ),
        (
            Pair(node(rx=LOW, tx=None), switch(rx=LOW, tx=None)),
            Suspect.NOT_TOLD,
            "",
            "is not known",
        ),
        (Pair(node(errors=True), switch()), Suspect.NOT_TOLD, "", "Swap one module"),
        (Pair(node(), switch(errors=True)), Suspect.NOT_TOLD, "", "Swap one module"),
        (
            Pair(node(errors=True), switch(errors=True)),
            Suspect.NOT_TOLD,
            "",
            "both ends in good light",
        ),
        (
            Pair(node(up=False), switch(up=False)),
            Suspect.NOT_TOLD,
            "",
            "nothing tells at which end",
        ),
        (Pair(node(up=False), switch(up=True)), Suspect.NOT_TOLD, "", f"{NODE} has no link"),
        (Pair(node(), unknown(PORT)), Suspect.NOT_TOLD, "", f"Nothing is known of {PORT}"),
        (Pair(unknown(NODE), unknown(PORT)), Suspect.NOT_TOLD, "", "Nothing is known"),
    ],
)
def test_a_cable_is_judged_by_what_both_ends_say(
    cable: Pair, suspect: Suspect, resource: str, said: str
) -> None:
    found = evaluate_cable(cable)
    assert (found.suspect, found.resource) == (suspect, resource)
    assert said in found.text


def neighbour(
    *, node_rx: float = GOOD, port_rx: float = GOOD, port_tx: float = GOOD, **both: bool
) -> Pair:
    return Pair(an_end(OTHER_NODE, node_rx, **both), an_end(OTHER_PORT, port_rx, port_tx, **both))


@pytest.mark.parametrize(
    ("cable", "sibling"),
    [
        (Pair(node(rx=LOW), switch(tx=LOW)), neighbour(node_rx=LOW, port_tx=LOW)),
        (Pair(node(rx=LOW), switch()), neighbour(node_rx=LOW)),
        (Pair(node(), switch(rx=LOW)), neighbour(port_rx=LOW)),
        (Pair(node(errors=True), switch()), neighbour(errors=True)),
        (Pair(node(up=False), switch(up=False)), neighbour(up=False)),
    ],
    ids=[
        "both dark",
        "both nodes get little",
        "both ports get little",
        "errors at both nodes",
        "both down",
    ],
)
def test_both_cables_of_a_module_bad_in_one_way_mean_the_module(cable: Pair, sibling: Pair) -> None:
    found = evaluate_cable(cable, siblings=[sibling], module=MODULE)
    assert (found.suspect, found.resource) == (Suspect.SHARED_MODULE, MODULE)
    assert PORT in found.text
    assert OTHER_PORT in found.text
    assert found.spare == ()


def test_one_bad_cable_of_a_module_never_means_unplugging_the_neighbour() -> None:
    found = evaluate_cable(
        Pair(node(rx=LOW), switch(tx=LOW)), siblings=[neighbour()], module=MODULE
    )
    assert (found.suspect, found.resource) == (Suspect.SWITCH_END, PORT)
    assert found.spare == (OTHER_PORT,)
    assert f"{OTHER_PORT} on the same module works: leave it plugged in." in found.text


def test_two_failing_lasers_of_nodes_are_not_the_modules_fault() -> None:
    sibling = Pair(an_end(OTHER_NODE, GOOD, LOW), an_end(OTHER_PORT, LOW, GOOD))
    found = evaluate_cable(Pair(node(tx=LOW), switch(rx=LOW)), siblings=[sibling], module=MODULE)
    assert found.suspect is Suspect.NODE_END


def test_two_cables_bad_in_different_ways_are_judged_each_by_itself() -> None:
    found = evaluate_cable(
        Pair(node(rx=LOW), switch()), siblings=[neighbour(port_rx=LOW)], module=MODULE
    )
    assert found.suspect is Suspect.FIBRE
    assert found.spare == ()


def seen(resource: str, metric: str, value: object, **attributes: str) -> Observation:
    return Observation(resource, metric, value, NOW, attributes)


def test_an_end_is_read_from_what_the_node_and_the_switch_observe() -> None:
    there = [
        seen(NODE, "optics.rx_power_dbm", -10.0, lane="1"),
        seen(NODE, "optics.tx_power_dbm", 1.5, lane="1"),
        seen(NODE, "nic.module.rx_power_dbm", -10.0, lane="1", raise_at="-8.9"),
        seen(NODE, "nic.lost_per_s", 0.0),
        seen(NODE, "nic.link.working", True),
        seen(PORT, "optics.rx_power_dbm", -40.0, lane="1"),
        seen(PORT, "optics.tx_power_dbm", -40.0, lane="1"),
        seen(PORT, "optics.rx_power_dbm", 0.5, lane="2"),
        seen(PORT, "optics.tx_power_dbm", 0.5, lane="2"),
        seen(PORT, "port.in_errors_per_second", 0.0),
        seen(PORT, "port.well", True),
    ]
    near, far = end(NODE, there), end(PORT, there)
    assert (near.receives_little, near.sends_little, near.has_errors, near.is_up) == (
        True,
        False,
        False,
        True,
    )
    assert far.rx_dbm == {"2": 0.5}, "a lane without light in either direction is not in use"
    found = evaluate_cable(Pair(near, far))
    assert (found.suspect, found.resource) == (Suspect.FIBRE, NODE)


def test_what_is_remembered_of_a_modules_light_is_the_weakest_lane_in_use_and_its_limits() -> None:
    there = [
        *(seen(NODE, f"optics.{way}_power_dbm", 1.5, lane="1") for way in ("rx", "tx")),
        seen(NODE, "optics.rx_power_dbm", -10.0, lane="2"),
        seen(NODE, "optics.tx_power_dbm", 1.2, lane="2"),
        *(seen(NODE, f"optics.{way}_power_dbm", -40.0, lane="3") for way in ("rx", "tx")),
        seen(NODE, "nic.module.rx_power_dbm", -10.0, lane="2", raise_at="-8.9"),
        seen(PORT, "optics.rx_power_dbm", 0.5, lane="1"),
        seen(OTHER_PORT, "port.well", True),
    ]
    kept = list(observe_light(there))
    assert [(each.resource, each.metric, each.value) for each in kept] == [
        (NODE, LIGHT, [-10.0, 1.2, -8.9, -30.0]),
        (PORT, LIGHT, [0.5, None, -30.0, -30.0]),
    ]
    near, far = end(NODE, kept), end(PORT, kept)
    assert (near.receives_little, near.sends_little) == (True, False)
    assert (far.receives_little, far.sends_little) == (False, None)


@pytest.mark.parametrize("value", [None, 3, [], [1.0], ["x", "y", "z", True], {"rx": 1}])
def test_a_memory_that_cannot_be_read_says_nothing_of_light(value: object) -> None:
    assert not end(NODE, [seen(NODE, LIGHT, value)]).is_known


@pytest.mark.parametrize(
    "told",
    [
        [
            seen(NODE, "nic.link.state", "disabled"),
            seen(PORT, "port.oper", "down"),
            seen(PORT, "port.well", False),
        ],
        [
            seen(NODE, "nic.link.working", False),
            seen(PORT, "port.oper", "down"),
            seen(PORT, "port.well", True),
        ],
    ],
    ids=["the node's interface", "the switch's port"],
)
def test_a_dark_port_that_is_switched_off_is_no_failing_laser(told: list[Observation]) -> None:
    told += [
        seen(NODE, LIGHT, [-40.0, -40.0, -8.9, -5.9]),
        seen(PORT, LIGHT, [-40.0, -40.0, -30.0, -30.0]),
    ]
    found = evaluate_cable(Pair(end(NODE, told), end(PORT, told)))
    assert found.suspect is Suspect.NOT_TOLD
    assert "switched off by configuration" in found.text


@pytest.mark.parametrize(
    ("rate", "has_errors"), [(0.0, False), (0.02, False), (0.04, True), (25.0, True)]
)
def test_a_frame_now_and_then_is_no_sign_of_a_bad_cable(rate: float, has_errors: bool) -> None:
    assert end(PORT, [seen(PORT, "port.in_errors_per_second", rate)]).has_errors is has_errors


def test_the_bad_cables_of_a_switch_are_found_with_the_neighbours_of_their_modules() -> None:
    ports = [
        ExpectedPort("Ethernet0", peer=NODE, module="1"),
        ExpectedPort("Ethernet4", peer=OTHER_NODE, module="1"),
        ExpectedPort("Ethernet8", peer="node/gn003/nic/mlx5_4", module="2"),
        ExpectedPort("Ethernet256", peer="switch/spine-01/port/Ethernet0", module="33"),
    ]
    there = [
        *(
            seen(port, f"optics.{way}_power_dbm", 1.0, lane="1")
            for port in (NODE, PORT, OTHER_NODE)
            for way in ("rx", "tx")
        ),
        seen(OTHER_PORT, "optics.tx_power_dbm", -35.0, lane="1"),
        seen(OTHER_PORT, "optics.rx_power_dbm", 1.0, lane="1"),
    ]
    found = list(find_suspects("leaf-04", ports, there))
    assert [(pair.switch.resource, finding.suspect, finding.spare) for pair, finding in found] == [
        (OTHER_PORT, Suspect.SWITCH_END, (PORT,))
    ]
    there += [seen(PORT, "optics.tx_power_dbm", -35.0, lane="1")]
    both = [finding for _, finding in find_suspects("leaf-04", ports, there)]
    assert [(finding.suspect, finding.resource) for finding in both] == [
        (Suspect.SHARED_MODULE, MODULE)
    ] * 2


dbm = st.none() | st.sampled_from([GOOD, LOW, -40.0])
known = st.none() | st.booleans()


def ends(resource: str) -> st.SearchStrategy[End]:
    return st.builds(an_end, st.just(resource), dbm, dbm, errors=known, up=known)


@given(
    cable=st.builds(Pair, ends(NODE), ends(PORT)),
    sibling=st.none() | st.builds(Pair, ends(OTHER_NODE), ends(OTHER_PORT)),
)
def test_every_pair_of_ends_gets_a_sentence_and_a_well_neighbour_is_left_alone(
    cable: Pair, sibling: Pair | None
) -> None:
    found: Finding = evaluate_cable(cable, siblings=[sibling] if sibling else [], module=MODULE)
    assert found.text.endswith(".")
    assert (found.suspect is Suspect.NOTHING) <= (not cable.is_bad)
    if sibling is None or not sibling.is_bad:
        assert found.suspect is not Suspect.SHARED_MODULE
    if sibling is not None and cable.is_bad and not sibling.is_bad:
        assert found.spare == (OTHER_PORT,)
        assert OTHER_PORT in found.text
    assert found.resource in ("", NODE, PORT, MODULE)


@given(
    cable=st.builds(Pair, ends(NODE), ends(PORT)),
    sibling=st.builds(Pair, ends(OTHER_NODE), ends(OTHER_PORT)),
)
def test_both_cables_of_a_module_agree_on_whether_it_is_the_module(
    cable: Pair, sibling: Pair
) -> None:
    one = evaluate_cable(cable, siblings=[sibling], module=MODULE).suspect is Suspect.SHARED_MODULE
    other = (
        evaluate_cable(sibling, siblings=[cable], module=MODULE).suspect is Suspect.SHARED_MODULE
    )
    assert one == other
