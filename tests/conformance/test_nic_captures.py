"""What real programs printed of network cards and modules, read by our parsers, against a second
opinion of each file.

The index calls a port without a link faulty, and any counter above 0: without an inventory and a
second look we do not. Each file where we differ stands in a list with the reason.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from detectors import registry
from detectors.catalog import catalog
from detectors.cli import captures
from detectors.detector import Detector, Target
from detectors.evaluation import judge
from detectors.expected import Expected, ExpectedNic
from detectors.faults import Observation
from detectors.node.nic import NicDetector
from detectors.node.outputs import nic_outputs, optics
from detectors.node.transceiver import TransceiverDetector

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
KINDS = ("ethtool", "ip_link_json", "rdma_link", "ibstat", "mlxlink")
FEWEST = 33
STANDING = (
    "counts of a lifetime: a baseline at first sight (tested below: as a rise they are a fault)"
)
NEVER_UP = "a port that is down from the first sight on, without an inventory and without a peer of its role"
NO_FAULT = {
    "ethtool/ethm__broadcom_bnxt_en_00_sfp_10gsr85__statistics.txt": STANDING,
    "ethtool/ethm__intel_i40e_00_sfp_10g_sr85__statistics.txt": STANDING,
    "ethtool/ethm__intel_i40e_01_int_tp__statistics.txt": STANDING,
    "ethtool/ethm__intel_i40e_02_sfp_10_or_25g_sr__statistics.txt": STANDING,
    "ethtool/ethm__intel_igb_00_int_tp__statistics.txt": STANDING,
    "ethtool/vyos_cx6dx__S_phy_errors_grep.txt": STANDING,
    "ethtool/ethm__intel_igb_00_int_tp__generic_info.txt": NEVER_UP,
    "rdma_link/amdnodescraper__roce_down_polling.txt": NEVER_UP,
    "ibstat/gpud__ibstat.47.0.h100.some.down.0": f"{NEVER_UP} (tested below: with an inventory, three faults)",
    "ethtool/mlx_finisar__m_all_lanes_minus40.txt": "no light in either direction: a port that is switched off",
}


@dataclass(frozen=True)
class Capture:
    path: Path
    name: str
    kind: str
    health: str
    facts: dict[str, str]

    @property
    def detector(self) -> Detector:
        of_module = (
            self.kind == "mlxlink"
            or optics.parse_ethtool_module(self.path.read_bytes()) is not None
        )
        return TransceiverDetector() if of_module else NicDetector()

    def observations(self, inventory: Expected | None = None) -> list[Observation]:
        target = Target("gn001", "", expected=inventory or Expected())
        return list(self.detector.parse(captures.read_file(self.path, self.detector, target, NOW)))

    def faults(self, inventory: Expected | None = None) -> list[str]:
        events = captures.classify_all(self.observations(inventory), catalog.load())
        return [f"{event.fault_type} {event.resource.rpartition('/')[2]}" for event in events]


@pytest.fixture(scope="module")
def found(shared: Path) -> list[Capture]:
    return list(_listed(shared / "outputs"))


def _listed(folder: Path) -> Iterator[Capture]:
    with (folder / "index.tsv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE):
            if row["kind"] in KINDS:
                facts = dict(fact.partition("=")[::2] for fact in row["facts"].split(";") if fact)
                yield Capture(folder / row["path"], row["path"], row["kind"], row["health"], facts)


def named(found: list[Capture], name: str) -> Capture:
    return next(capture for capture in found if capture.name.endswith(name))


def test_every_file_is_read_by_the_detector_of_its_kind(found: list[Capture]) -> None:
    assert len(found) >= FEWEST
    unread = [
        capture.name
        for capture in found
        for seen in capture.observations()
        if seen.metric == "detector.answered" and seen.value is False
    ]
    assert unread == ["ibstat/gpud__ibstat.39.0.a100.failed.ibpanic.exit-255.0"]


def test_no_capture_breaks_any_parser_of_network_cards(found: list[Capture]) -> None:
    for capture in found:
        text = capture.path.read_bytes()
        for name in ("nic", "transceiver", "rail"):
            detector = registry.get_by_name(name)
            reading = captures.read_file(capture.path, detector, Target("gn001", ""), NOW)
            list(detector.parse(reading))
            for cut in range(0, len(text), max(len(text) // 20, 1)):
                detector.sniff(text[:cut])
                nic_outputs.parse_settings(text[:cut])
                optics.parse_ethtool_module(text[:cut])


def test_no_healthy_file_gives_a_fault(found: list[Capture]) -> None:
    assert {
        capture.name: capture.faults()
        for capture in found
        if capture.health == "healthy" and capture.faults()
    } == {}


def test_every_faulty_file_gives_a_fault_but_for_those_that_the_index_has_wrong(
    found: list[Capture],
) -> None:
    silent = {
        capture.name for capture in found if capture.health == "faulty" and not capture.faults()
    }
    assert silent == set(NO_FAULT)


def test_light_is_read_as_the_index_has_it(found: list[Capture]) -> None:
    for capture in found:
        module = optics.parse_ethtool_module(capture.path.read_bytes())
        for what in ("rx_power_dbm", "tx_power_dbm"):
            if what in capture.facts:
                assert module is not None, capture.name
                wanted = [float(value) for value in capture.facts[what].split(",")]
                assert list(module.values[what].values()) == wanted, capture.name


def test_links_and_speeds_are_read_as_the_index_has_them(found: list[Capture]) -> None:
    for capture in found:
        said = nic_outputs.parse_settings(capture.path.read_bytes())
        if "speed" in capture.facts:
            assert said is not None, capture.name
            assert said.has_link is capture.facts["link"].startswith("yes"), capture.name
            speed = "Unknown!" if said.speed_gbps is None else f"{said.speed_gbps * 1000:.0f}Mb/s"
            assert speed == capture.facts["speed"], capture.name


def test_mlxlink_is_read_as_the_index_has_it(found: list[Capture]) -> None:
    capture = next(capture for capture in found if capture.kind == "mlxlink")
    said = {
        o.metric.rpartition(".")[2]: o.value
        for o in capture.observations()
        if o.metric.startswith("nic.phy.")
    }
    assert {name: said[name] for name in capture.facts} == capture.facts


def test_counters_are_read_as_the_index_has_them(found: list[Capture]) -> None:
    for capture in found:
        counters = nic_outputs.parse_statistics(capture.path.read_bytes())
        for fact in filter(None, capture.facts.get("nonzero_err", "").split(",")):
            name, _, value = fact.partition("=")
            assert counters[name] == int(value), capture.name


def test_infiniband_ports_are_read_as_the_index_has_them(found: list[Capture]) -> None:
    for capture in found:
        if "ports_not_active" not in capture.facts:
            continue
        ports = nic_outputs.parse_ibstat(capture.path.read_bytes())
        lame = [port for port in ports if not port.is_active]
        told = capture.facts["ports_not_active"]
        wanted = [] if told == "none" else [each.partition(":")[0] for each in told.split(",")]
        assert [port.device for port in lame] == wanted, capture.name
        if (
            capture.facts["cas"] != "0"
        ):  # the index counts no device in ibstatus' form: there are as many as sections
            assert len(ports) == int(capture.facts["cas"]), capture.name


def test_interfaces_are_read_as_the_index_has_them(found: list[Capture]) -> None:
    for capture in found:
        if capture.kind == "ip_link_json":
            links = nic_outputs.parse_interfaces(capture.path.read_bytes())
            assert links is not None, capture.name
            assert (
                f"UP={sum(link.is_up for link in links.values())}" == capture.facts["operstate"]
            ), capture.name


def test_rdma_links_are_read_as_the_index_has_them(found: list[Capture]) -> None:
    for capture in found:
        if capture.kind == "rdma_link":
            links = nic_outputs.parse_rdma_links(capture.path.read_bytes())
            assert links is not None, capture.name
            down = sum(not link.is_active for link in links)
            assert (str(len(links)), str(down)) == (
                capture.facts["links"],
                capture.facts["down"],
            ), capture.name


def test_with_an_inventory_the_three_ports_that_are_down_have_failed(found: list[Capture]) -> None:
    capture = named(found, "h100.some.down.0")
    devices = [port.device for port in nic_outputs.parse_ibstat(capture.path.read_bytes())]
    inventory = Expected(nics=tuple(ExpectedNic(device, role="fabric") for device in devices))
    links = [fault for fault in capture.faults(inventory) if fault.startswith("nic.link.down")]
    assert links == [f"nic.link.down {device}" for device in ("mlx5_2", "mlx5_7", "mlx5_8")]


def test_the_errors_of_a_real_card_are_a_fault_once_they_rise(found: list[Capture]) -> None:
    capture = named(found, "vyos_cx6dx__S_phy_errors_grep.txt")
    seen = capture.observations()
    earlier = [
        Observation(o.resource, o.metric, 0, NOW - timedelta(minutes=1))
        for o in seen
        if o.metric == "nic.lost"
    ]
    memory = judge.judge(earlier, judge.Memory(), active=(), catalog=catalog.load()).memory
    events = judge.judge(seen, memory, active=(), catalog=catalog.load()).events
    assert [(event.fault_type, str(event.severity)) for event in events] == [
        ("nic.link.errors", "major")
    ]


def test_interfaces_in_collections_of_whole_machines_are_read(shared: Path) -> None:
    """Another tool's collections hold `ip -j addr` of real nodes under a key of their own."""
    states: dict[str, dict[str, bool]] = {}
    for path in sorted((shared / "outputs" / "host_inventory_json").glob("*eth_learn*.json")):
        rows = json.loads(path.read_text())["intf_status"]
        links = nic_outputs.parse_interfaces(json.dumps(rows).encode()) or {}
        states[path.stem.removeprefix("gcm__")] = {
            name: link.is_up for name, link in links.items() if name != "lo"
        }
    assert all(states["eth_learn_good"].values())
    assert not all(states["eth_learn_down_intf"].values())
    assert set(states["eth_learn_missing_intf"]) < set(states["eth_learn_good"])
