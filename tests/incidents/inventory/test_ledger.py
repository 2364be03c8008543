"""Which part was in which slot when: first sight, replacement, move, and what is never
overwritten."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from pytest_django.fixtures import DjangoAssertNumQueries

from detectors.faults import Observation
from incidents.inventory import part_history, services
from incidents.inventory.part_history import Happened, Sighting
from incidents.models import Gpu, InService, Module, Nic, Node, Port
from incidents.vocabulary.part_kinds import Part
from tests.builders import GPU, NOW, OTHER_GPU, a_cable, a_node, a_switch

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(days=30)


def seen(slot: str = GPU, metric: str = "gpu.serial", value: Any = "1650001") -> Observation:
    return Observation(slot, metric, value, NOW)


def open_rows() -> list[tuple[str, str]]:
    return sorted(InService.objects.filter(to_at__isnull=True).values_list("slot", "serial"))


def test_part_seen_for_the_first_time_opens_a_row_and_fills_the_inventory() -> None:
    a_node()
    found = services.store_observations(
        [seen(), seen(metric="gpu.uuid", value="GPU-1"), seen(metric="gpu.temperature_c")], NOW
    )
    assert [(entry.happened, entry.slot, entry.serial) for entry in found] == [
        (Happened.FIRST_SEEN, GPU, "1650001")
    ]
    assert open_rows() == [(GPU, "1650001")]
    row = Gpu.objects.get(index=0)
    assert (row.serial, row.uuid) == ("1650001", "GPU-1")


def test_another_serial_in_a_slot_is_a_replacement_and_closes_the_old_row() -> None:
    a_node()
    services.store_observations([seen()], NOW)
    found = services.store_observations([seen(value="1650002")], LATER)
    assert [entry.happened for entry in found] == [Happened.REPLACED]
    old, new = InService.objects.order_by("id")
    assert (old.serial, old.from_at, old.to_at) == ("1650001", NOW, LATER)
    assert "1650002 is in its place" in old.went
    assert (new.serial, new.from_at, new.to_at) == ("1650002", LATER, None)
    assert "replaces 1650001" in new.came
    assert Gpu.objects.get(index=0).serial == "1650002"


def test_part_that_shows_itself_in_another_slot_was_moved() -> None:
    a_node()
    services.store_observations([seen()], NOW)
    found = services.store_observations([seen(OTHER_GPU)], LATER)
    assert [entry.happened for entry in found] == [Happened.MOVED]
    assert open_rows() == [(OTHER_GPU, "1650001")]
    assert "moved to" in InService.objects.get(slot=GPU).went


def test_two_parts_that_changed_places_are_both_moved() -> None:
    a_node()
    services.store_observations([seen(value="A"), seen(OTHER_GPU, value="B")], NOW)
    found = services.store_observations([seen(value="B"), seen(OTHER_GPU, value="A")], LATER)
    assert [entry.happened for entry in found] == [Happened.MOVED, Happened.MOVED]
    assert open_rows() == [(GPU, "B"), (OTHER_GPU, "A")]
    assert InService.objects.count() == 4


def test_one_query_is_asked_while_nothing_has_changed(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    for number in range(20):
        a_node(f"gn{number:03}")
    round_of_all = [
        seen(f"node/gn{number:03}/gpu/{pci}", value=f"{number}-{pci}")
        for number in range(20)
        for pci in ("0000:19:00.0", "0000:3b:00.0")
    ]
    assert len(services.store_observations(round_of_all, NOW)) == 40
    with django_assert_num_queries(1):
        assert services.store_observations(round_of_all, LATER) == []
    with django_assert_num_queries(0):
        assert (
            services.store_observations([seen(metric="gpu.temperature_c", value=41)], LATER) == []
        )


@pytest.mark.parametrize("text", ["N/A", "[N/A]", "", "Unknown Error", "0", " ", "ERR!"])
def test_what_stands_for_no_serial_is_no_part(text: str) -> None:
    a_node()
    services.store_observations([seen()], NOW)
    assert services.store_observations([seen(value=text)], LATER) == []
    assert open_rows() == [(GPU, "1650001")]


def test_serial_that_two_slots_show_at_once_is_the_boards_and_the_uuids_tell_them_apart() -> None:
    a_node()
    both = [seen(slot, value="BOARD-1") for slot in (GPU, OTHER_GPU)]
    both += [seen(GPU, "gpu.uuid", "GPU-1"), seen(OTHER_GPU, "gpu.uuid", "GPU-2")]
    services.store_observations(both, NOW)
    assert open_rows() == [(GPU, "GPU-1"), (OTHER_GPU, "GPU-2")]
    assert services.store_observations(both, LATER) == []


def test_new_firmware_is_written_into_the_parts_own_row() -> None:
    a_node()
    Nic.objects.create(node=Node.objects.get(), device="mlx5_0")
    slot = "node/gn042/nic/mlx5_0"
    services.store_observations(
        [seen(slot, "nic.mac", "94:6d:ae:00:00:01"), seen(slot, "nic.firmware", "28.39.1002")], NOW
    )
    found = services.store_observations(
        [seen(slot, "nic.mac", "94:6d:ae:00:00:01"), seen(slot, "nic.firmware", "28.41.1000")],
        LATER,
    )
    assert found == []
    assert InService.objects.get().firmware == "28.41.1000"
    row = Nic.objects.get()
    assert (row.mac, row.firmware, row.serial) == ("94:6d:ae:00:00:01", "28.41.1000", "")


def test_serial_learnt_after_the_uuid_is_of_the_same_part() -> None:
    a_node()
    services.store_observations([seen(metric="gpu.uuid", value="GPU-1")], NOW)
    assert (
        services.store_observations([seen(), seen(metric="gpu.uuid", value="GPU-1")], LATER) == []
    )
    assert open_rows() == [(GPU, "1650001")]
    assert services.store_observations([seen(metric="gpu.uuid", value="GPU-1")], LATER) == []


def test_optics_seen_by_port_are_those_of_the_module_that_holds_both_ports() -> None:
    switch = a_switch()
    module = Module.objects.create(switch=switch, name="1")
    for name in ("Ethernet0", "Ethernet4"):
        Port.objects.create(switch=switch, name=name, module=module)
    ports = [
        seen(f"switch/leaf-01/port/{name}", "module.serial", "OPT1")
        for name in ("Ethernet0", "Ethernet4")
    ]
    services.store_observations(ports, NOW)
    assert open_rows() == [("switch/leaf-01/module/1", "OPT1")]
    assert Module.objects.get().serial == "OPT1"
    assert services.store_observations(ports, LATER) == []


def test_what_was_seen_before_the_row_began_changes_nothing() -> None:
    a_node()
    services.store_observations([seen()], LATER)
    assert services.store_observations([seen(value="1650002")], NOW) == []
    assert open_rows() == [(GPU, "1650001")]


def test_part_that_was_taken_out_leaves_an_empty_slot() -> None:
    a_node()
    services.store_observations([seen()], NOW)
    assert part_history.remove(Part.GPU, GPU, LATER, why="sent to the vendor")
    assert not part_history.remove(Part.GPU, GPU, LATER, why="sent to the vendor")
    assert open_rows() == []
    assert InService.objects.get().went == "sent to the vendor"


def test_serial_of_an_imported_file_is_a_replacement_too() -> None:
    a_node()
    services.store_observations([seen()], NOW)
    found = part_history.settle(
        [Sighting(Part.GPU, GPU, "1650009")], LATER, why="the inventory says so"
    )
    assert "replaces 1650001" in found[0].text


def test_database_refuses_two_parts_in_one_slot_and_one_part_in_two() -> None:
    InService.objects.create(
        part="gpu", serial="A", slot=GPU, owner="node/gn042", from_at=NOW, came=""
    )
    for slot, serial in ((GPU, "B"), (OTHER_GPU, "A")):
        with pytest.raises(IntegrityError), transaction.atomic():
            InService.objects.create(
                part="gpu", serial=serial, slot=slot, owner="node/gn042", from_at=NOW, came=""
            )


NIC, SLOT = "node/gn042/nic/mlx5_0", "switch/leaf-01/port/Ethernet0"


@pytest.mark.parametrize(
    "is_cabled", [True, False], ids=["its cable is known", "no cable is known"]
)
def test_serial_of_a_fixed_cable_stays_at_both_ends_however_often_each_is_polled(
    is_cabled: bool,
) -> None:
    a_node()
    a_switch()
    if is_cabled:
        a_cable(NIC, SLOT)
    for number in range(6):
        at = NOW + timedelta(minutes=number)
        services.store_observations(
            [seen(NIC if number % 2 == 0 else SLOT, "module.serial", "DAC1")], at
        )
    assert [slot for slot, _ in open_rows()] == [NIC, SLOT]
    assert InService.objects.count() == (2 if is_cabled else 3)


def test_optics_moved_to_another_node_are_moved() -> None:
    for number, slot in enumerate((NIC, "node/gn043/nic/mlx5_0")):
        services.store_observations(
            [seen(slot, "module.serial", "OPT1")], NOW + timedelta(days=number)
        )
    assert open_rows() == [("node/gn043/nic/mlx5_0", "OPT1")]
