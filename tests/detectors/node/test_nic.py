"""Network cards: which link has failed, which was never cabled, when a flap is minor and when
major, what is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import Command, Output, Reading, Target, Transports
from detectors.evaluation import judge
from detectors.evaluation.cable_ends import LinkState
from detectors.expected import Expected, ExpectedNic
from detectors.faults import EventKind, FaultEvent, Observation, fingerprint
from detectors.node.nic import NicDetector
from detectors.node.outputs import nic_outputs
from detectors.node.outputs.nic_counters import list_counters
from detectors.node.outputs.nic_link import link
from detectors.node.outputs.nic_outputs import Interface, Rdma, Settings
from detectors.node.outputs.nic_ports import NicPort, build_rdma_command, list_ports
from detectors.transports import bundle, files
from detectors.transports.local import LocalShell
from fixtures.cluster.facets.nic import NicFacet
from fixtures.cluster.facets.nic_polled import expected
from fixtures.cluster.world import SimulatedShell, SimulatedWorld
from tests.matching import get_shipped_matcher
from tests.services.patience import patient

START = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DETECTOR = NicDetector()


class Node:
    """One simulated node under the nic detector; what it says, round by round."""

    def __init__(self, inventory: Expected | None = None) -> None:
        self.now = START
        self.world = SimulatedWorld.sakuraone(clock=lambda: self.now)
        self.facet = self.world.node("gn001").facet(NicFacet)
        self.target = Target("gn001", "127.0.0.1", expected=inventory or Expected())
        self.memory = judge.Memory()
        self.active: set[str] = set()

    def look(self, *, apart: timedelta = MINUTE) -> list[str]:
        """`+severity type part` and `-type part` of each event."""
        self.now += apart
        reading = DETECTOR.collect(
            self.target, Transports(shell=SimulatedShell(self.world)), self.now
        )
        return self.judged(list(DETECTOR.parse(reading)))

    def judged(self, observations: Sequence[Observation]) -> list[str]:
        done = judge.judge_round(
            DETECTOR, observations, self.memory, active=self.active, catalog=catalog.load()
        )
        self.memory = done.memory
        return [self._word(event) for event in done.events]

    def _word(self, event: FaultEvent) -> str:
        mark, part = (
            fingerprint(event.resource, event.fault_type, event.qualifier),
            event.resource.rpartition("/")[2],
        )
        if event.event is EventKind.CLEARED:
            self.active.discard(mark)
            return f"-{event.fault_type} {part}"
        self.active.add(mark)
        return f"+{event.severity} {event.fault_type} {part}"


def an_interface(name: str, *, up: bool = True, admin: bool = True) -> Interface:
    return Interface(name, admin, up, 9000, "b8:3f:d2:00:00:01", "ether")


def a_port(
    device: str,
    role: str = "fabric",
    *,
    up: bool = True,
    admin: bool = True,
    ups: str = "0",
    layer: str = "Ethernet",
) -> NicPort:
    row = ExpectedNic(device, f"{device}_if", role=role) if role else None
    interface = an_interface(f"{device}_if", up=up, admin=admin)
    state, physical = ("ACTIVE", "LINKUP") if up else ("DOWN", "POLLING")
    rdma = Rdma(device, state=state, physical=physical, layer=layer)
    return NicPort(device, f"{device}_if", "", row, interface, rdma, {"carrier_up_count": ups})


UP, NEVER_UP = a_port("mlx5_0"), a_port("mlx5_1", up=False)


@pytest.mark.parametrize(
    ("port", "peers", "state", "said"),
    [
        (UP, [], LinkState.UP, "up"),
        (NEVER_UP, [UP], LinkState.FAILED, "while other fabric ports are up"),
        (NEVER_UP, [replace(NEVER_UP, device="mlx5_2")], LinkState.UNCABLED, "never was up"),
        (NEVER_UP, [], LinkState.UNCABLED, "never was up"),
        (a_port("mlx5_1", up=False, ups="1"), [], LinkState.FAILED, "it was up before"),
        (a_port("mlx5_1", "", up=False), [UP], LinkState.UNCABLED, "never was up"),
        (a_port("mlx5_1", "", up=False, ups="2"), [], LinkState.FAILED, "it was up before"),
        (a_port("mlx5_3", "reserved", up=False, ups="3"), [], LinkState.RESERVED, "reserved"),
        (a_port("mlx5_1", up=False, admin=False), [UP], LinkState.FAILED, "switched off"),
        (
            a_port("mlx5_1", "", up=False, admin=False, ups="1"),
            [],
            LinkState.DISABLED,
            "switched off",
        ),
        (
            a_port("mlx5_1", up=False, layer="InfiniBand"),
            [UP],
            LinkState.FAILED,
            "while other fabric ports are up",
        ),
        (NicPort("eth9"), [], LinkState.UNKNOWN, "nothing tells"),
    ],
)
def test_a_link_that_is_down_is_told_from_one_that_was_never_cabled(
    port: NicPort, peers: list[NicPort], state: LinkState, said: str
) -> None:
    found = link(port, None, peers)
    assert found.state is state
    assert said in found.text


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("Cable issue, Unsupported cable", LinkState.FAILED),
        ("Bad signal integrity", LinkState.FAILED),
        ("No cable", LinkState.UNCABLED),
        ("Autoneg, No partner detected", LinkState.UNCABLED),
    ],
)
def test_the_drivers_own_reason_tells_a_bad_cable_from_none(reason: str, state: LinkState) -> None:
    said = Settings("eth0", None, None, has_link=False, reason=reason, port="FIBRE")
    found = link(a_port("eth0", "", up=False), said, [])
    assert found.state is state
    assert reason in found.text


def test_a_lost_link_is_minor_at_once_major_after_30_seconds_and_cleared_when_it_is_back() -> None:
    node = Node(expected())
    assert node.look() == []
    node.facet.port("rail3").go_down()
    first = node.look()
    assert "+minor nic.link.down mlx5_4" in first
    assert "+major nic.link.down mlx5_4" in node.look()
    node.facet.port("rail3").come_up()
    assert "-nic.link.down mlx5_4" in node.look()


def test_one_flap_between_two_looks_is_minor_two_within_five_minutes_major() -> None:
    node = Node(expected())
    port = node.facet.port("rail3")
    node.look()
    port.flap()
    assert node.look() == ["+minor nic.link.flapping mlx5_4"]
    port.flap()
    assert node.look() == ["+major nic.link.flapping mlx5_4"]
    said = [node.look() for _ in range(6)]
    assert said[-1] == []
    assert ["-nic.link.flapping mlx5_4"] in said


def test_a_counter_that_was_high_at_first_sight_is_a_baseline() -> None:
    node = Node(expected())
    node.facet.port("rail3").added.update(
        rx_pcs_symbol_err_phy=13_000_000, link_down_events_phy=500
    )
    assert [node.look() for _ in range(3)] == [[], [], []]


def test_without_an_inventory_a_port_seen_up_has_failed_even_when_the_kernel_counts_anew() -> None:
    node = Node()
    node.look()
    port = node.facet.port("rail3")
    port.is_up, port.was_up = False, False  # the driver was loaded again: its counts begin at 0
    assert "+minor nic.link.down mlx5_4" in node.look()


def test_without_an_inventory_a_port_that_never_was_up_is_no_fault() -> None:
    node = Node()
    port = node.facet.port("rail3")
    port.is_up, port.was_up = False, False
    assert [node.look() for _ in range(3)] == [[], [], []]


def test_a_poll_and_the_kernels_log_speak_of_one_fault() -> None:
    line = b"mlx5_core 0000:5c:00.0 rail3: Link down"
    fact = get_shipped_matcher().facts(line, default_host="gn001", observed_at=START, zone=UTC)[0]
    rules = [rule.type for rule in catalog.load().rules["nic.link.working"]]
    assert {fact.fault_type} == set(rules)
    assert fact.resource == "node/gn001/nic/0000:5c:00.0", (
        "of which the inventory knows that it is mlx5_4"
    )


INFINIBAND = "CA '{}'\n\tPort 1:\n\t\tState: {}\n\t\tPhysical state: {}\n\t\tRate: 400\n\t\tLink layer: InfiniBand\n"
ACTIVE, DOWN = ("Active", "LinkUp"), ("Down", "Polling")


def infiniband(node: Node, first: tuple[str, str], *, apart: timedelta = MINUTE) -> list[str]:
    """A round that sees the port in that state, its peer up."""
    node.now += apart
    text = INFINIBAND.format("mlx5_0", *first) + INFINIBAND.format("mlx5_1", *ACTIVE)
    outputs = {"ibstat": Output(0, text.encode(), b"", timedelta(0))}
    return node.judged(list(DETECTOR.parse(Reading("nic", node.target, node.now, outputs))))


RAILS = Expected(nics=(ExpectedNic("mlx5_0", role="fabric"), ExpectedNic("mlx5_1", role="fabric")))


def test_an_infiniband_port_has_dropped_after_four_minutes() -> None:
    node = Node(RAILS)
    infiniband(node, ACTIVE)
    assert [infiniband(node, DOWN) for _ in range(5)] == [
        [],
        [],
        [],
        [],
        ["+major nic.link.down mlx5_0"],
    ]
    assert infiniband(node, ACTIVE) == ["-nic.link.down mlx5_0"]


def test_an_infiniband_port_flaps_when_it_came_back_three_times_in_twelve_hours() -> None:
    node = Node(RAILS)
    said = []
    for _ in range(3):
        said += [infiniband(node, ACTIVE), infiniband(node, DOWN), infiniband(node, ACTIVE)]
    assert said[:-1] == [[]] * 8
    assert said[-1] == ["+major nic.link.flapping mlx5_0"]
    assert infiniband(node, ACTIVE, apart=timedelta(hours=13)) == ["-nic.link.flapping mlx5_0"]


def test_an_infiniband_link_without_a_subnet_manager_does_not_work() -> None:
    assert (
        nic_outputs.parse_ibstat(INFINIBAND.format("mlx5_0", "Initializing", "LinkUp").encode())[
            0
        ].is_active
        is False
    )


@pytest.mark.parametrize(
    ("inventory", "gbps", "said"),
    [
        (expected(), 200, ["+minor nic.link.speed_low mlx5_4"]),
        (expected(), 400, []),
        (None, 200, ["+minor nic.link.speed_low mlx5_4"]),
    ],
    ids=["below the inventory's", "as the inventory says", "below its peers"],
)
def test_a_port_is_slow_against_the_inventory_or_its_peers(
    inventory: Expected | None, gbps: int, said: list[str]
) -> None:
    node = Node(inventory)
    node.facet.port("rail3").gbps = gbps
    node.look()
    assert node.look() == said


def test_a_site_whose_ports_all_run_below_what_the_cards_could_is_not_told_off() -> None:
    node = Node()
    for port in node.facet.ports.values():
        port.gbps = min(port.gbps, 200)
    assert [node.look(), node.look()] == [[], []]


def test_losses_are_a_fault_by_their_pace() -> None:
    node = Node(expected())
    port = node.facet.port("rail3")
    node.look()
    port.added.update(rx_pcs_symbol_err_phy=100)
    assert node.look() == [], "below the 120 an hour of the specification"
    port.added.update(rx_pcs_symbol_err_phy=30)
    assert node.look() == ["+minor nic.link.errors mlx5_4"]
    port.added.update(rx_pcs_symbol_err_phy=3000)
    assert node.look() == ["+major nic.link.errors mlx5_4"]


def test_marks_pauses_and_retransmissions_are_recorded_and_no_fault() -> None:
    node = Node(expected())
    node.look()
    port = node.facet.port("rail0")
    port.added.update(np_cnp_sent=10**6, np_ecn_marked_roce_packets=10**6, rx_prio3_pause=10**6)
    port.added.update(
        rx_prio3_pause_duration=30_000_000, out_of_sequence=10**6, roce_adp_retrans=10**4
    )
    before = node.memory
    assert node.look() == []
    reading = DETECTOR.collect(node.target, Transports(shell=SimulatedShell(node.world)), node.now)
    compared = DETECTOR.compare(list(DETECTOR.parse(reading)), before.samples)
    rates = {seen.metric: seen.value for seen in compared if seen.resource.endswith("/mlx5_0")}
    share_paused = rates["nic.rx_prio3_pause_duration_per_s"] / 1e6
    assert share_paused == pytest.approx(0.5, abs=0.01)
    assert {
        "nic.np_cnp_sent_per_s",
        "nic.out_of_sequence_per_s",
        "nic.roce_adp_retrans_per_s",
    } <= set(rates)


@pytest.mark.parametrize(
    ("corrected", "said"),
    [
        (int(400e9 * 60 * 9e-7), []),
        (int(400e9 * 60 * 2e-6), ["+warning nic.link.ber_high mlx5_4"]),
        (int(400e9 * 60 * 2e-5), ["+major nic.link.ber_high mlx5_4"]),
    ],
)
def test_bit_errors_are_told_by_the_cards_own_counters_after_three_polls(
    corrected: int, said: list[str]
) -> None:
    node = Node(expected())
    node.look()
    rounds = []
    for _ in range(3):
        node.facet.port("rail3").added.update(rx_corrected_bits_phy=corrected)
        rounds.append(node.look())
    assert rounds == [[], [], said]


def test_only_one_count_of_a_lost_link_speaks() -> None:
    both = {"link_down_events_phy": 3, "carrier_down_count": 4}
    assert [metric for metric, _, _ in list_counters(both, is_infiniband=False)] == [
        "nic.link_down_events_phy"
    ]


class Counting(SimulatedShell):
    """Counts the bundles: each is one SSH command. Keeps the commands in them."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self.bundles = 0
        self.commands: list[Command] = []

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        self.bundles += 1
        self.commands += commands
        return super().run_all(target, name, commands)


@pytest.mark.parametrize(("inventory", "bundles"), [(expected(), 1), (Expected(), 2)])
def test_a_round_is_one_command_where_the_inventory_names_every_interface(
    inventory: Expected, bundles: int
) -> None:
    node = Node(inventory)
    shell = Counting(node.world)
    DETECTOR.collect(replace(node.target, expected=inventory), Transports(shell=shell), START)
    assert shell.bundles == bundles


def test_a_bond_is_one_port_by_its_rdma_device_and_its_member_another() -> None:
    node = Node(expected())
    reading = DETECTOR.collect(node.target, Transports(shell=SimulatedShell(node.world)), START)
    by_device = {port.device: port for port in list_ports(reading)}
    assert by_device["mlx5_bond_0"].netdev == "bond0"
    assert by_device["mlx5_bond_0"].role == "storage"
    assert {"sto1", "eno1"} <= set(by_device)


def _tree(root: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_the_search_of_sysfs_finds_counters_and_does_not_wander_off(tmp_path: Path) -> None:
    """Run as it is, but over a tree of our own: links into the bus, and tables of addresses, are
    not gone into."""
    device = tmp_path / "mlx5_0"
    _tree(
        device,
        {
            "ports/1/state": "4: ACTIVE\n",
            "ports/1/link_layer": "Ethernet\n",
            "ports/1/hw_counters/out_of_sequence": "7\n",
            "ports/1/gid_attrs/ndevs/0": "rail0\n",
            "ports/1/gids/0": "fe80::1\n",
            "fw_ver": "28.39.1002\n",
        },
    )
    _tree(tmp_path / "bus", {"state": "secret\n"})
    (device / "device").symlink_to(tmp_path / "bus")
    (device / "subsystem").symlink_to(tmp_path)
    argv = [
        word.replace("/sys/class/infiniband", str(tmp_path)) for word in build_rdma_command().argv
    ]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=patient(20))
    found = files.parse_contents(Output(done.returncode, done.stdout, done.stderr, timedelta(0)))
    assert {path.replace(str(tmp_path), "") for path in found} == {
        "/mlx5_0/ports/1/state",
        "/mlx5_0/ports/1/link_layer",
        "/mlx5_0/ports/1/hw_counters/out_of_sequence",
        "/mlx5_0/ports/1/gid_attrs/ndevs/0",
        "/mlx5_0/fw_ver",
    }
    rdma = nic_outputs.parse_rdma_files(
        {p.replace(str(tmp_path), "/sys/class/infiniband"): t for p, t in found.items()}
    )
    assert (rdma[0].netdev, rdma[0].is_active, rdma[0].counters) == (
        "rail0",
        True,
        {"out_of_sequence": 7},
    )


PARSERS: tuple[Callable[[bytes], object], ...] = (
    nic_outputs.parse_interfaces,
    nic_outputs.parse_rdma_links,
    nic_outputs.parse_ibstat,
    nic_outputs.parse_settings,
    nic_outputs.parse_statistics,
    nic_outputs.parse_driver,
)
words = st.sampled_from(
    [
        "Speed: ",
        "Link detected: no (",
        "CA '",
        "\tPort 1:",
        "State: ",
        "link mlx5_0/1 state ",
        '[{"ifname":',
        "\n",
        ": ",
        "9" * 25,
    ]
)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__name__)
@given(
    text=st.binary(max_size=300)
    | st.lists(words | st.text(max_size=8), max_size=30).map(lambda w: "".join(w).encode())
)
def test_parsers_take_any_text(parser: Callable[[bytes], object], text: bytes) -> None:
    parser(text)


def test_parsers_take_time_in_step_with_the_text() -> None:
    """A megabyte without a line end, of what each pattern begins with, within the limit of the
    test."""
    for start in (
        b"link mlx5_0/1 ",
        b"Speed: ",
        b"Supported link modes: ",
        b" a",
        b"CA '",
        b"State: ",
    ):
        text = start * 70_000
        for parser in PARSERS:
            parser(text)


def test_the_node_picks_the_lines_of_the_port_by_itself(tmp_path: Path) -> None:
    """The bundle as SSH sends it, run by a real shell, with a program of our own in ethtool's
    place."""
    fake = tmp_path / "ethtool"
    fake.write_text(
        "#!/bin/sh\n"
        '[ "$*" = "-S rail0" ] || exit 1\n'
        "echo 'NIC statistics:'\n"
        "echo '     rx0_packets: 5'\n"
        "echo '     rx_pcs_symbol_err_phy: 7'\n"
        "echo '     tx_prio3_pause: 9'\n"
        "echo '     ch0_events: 4'\n"
    )
    fake.chmod(0o755)
    shell = Counting(SimulatedWorld.sakuraone(clock=lambda: START))
    DETECTOR.collect(Target("gn001", "", expected=expected()), Transports(shell=shell), START)
    command = next(each for each in shell.commands if each.name == "ethtool-S.rail0")
    text = bundle.build_script([command], "0a1b", is_root=False)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", text], capture_output=True, check=False, timeout=patient(20), env=environment
    )
    output = bundle.split_outputs([command], "0a1b", done.stdout, done.stderr)[command.name]
    assert nic_outputs.parse_statistics(output.stdout) == {
        "rx_pcs_symbol_err_phy": 7,
        "tx_prio3_pause": 9,
    }


@pytest.mark.needs("ip", "ethtool")
def test_the_machine_that_runs_the_tests_is_read() -> None:
    target = Target("here", "127.0.0.1")
    seen = list(DETECTOR.parse(DETECTOR.collect(target, Transports(shell=LocalShell()), START)))
    assert [o.value for o in seen if o.metric == "detector.answered"] == [True]
    assert "node/here/nic/lo" not in {o.resource for o in seen}


def test_quiet_counters_do_not_clear_what_the_log_says_of_a_module() -> None:
    node = Node(expected())
    node.look()
    of_log = fingerprint("node/gn001/nic/mlx5_4", "nic.module.error")
    node.active.add(of_log)
    assert node.look() == []
    node.facet.port("rail3").added.update(module_high_temp=1)
    assert node.look() == ["+major nic.module.error mlx5_4"]
    assert of_log in node.active


def test_no_two_counters_of_one_port_raise_the_same_fault() -> None:
    """Two metrics of one type and qualifier would clear each other's fault."""
    rules = catalog.load().rules
    everything = dict.fromkeys((*_NAMES, "link_downed", "symbol_error", "link_error_recovery"), 1)
    for is_infiniband in (False, True):
        metrics = [
            metric for metric, _, _ in list_counters(everything, is_infiniband=is_infiniband)
        ]
        types = {metric: {rule.type for rule in rules.get(metric, ())} for metric in metrics}
        said = [
            (name, _QUALIFIERS.get(metric, "")) for metric, names in types.items() for name in names
        ]
        assert len(said) == len(set(said)), said


_NAMES = (
    *(
        "link_down_events_phy",
        "carrier_down_count",
        "rx_pcs_symbol_err_phy",
        "fec_uncorrectable_blocks",
    ),
    *(
        "port_rcv_errors",
        "local_link_integrity_errors",
        "module_high_temp",
        "rx_pci_signal_integrity",
    ),
    *(
        "tx_pause_storm_error_events",
        "tx_pause_storm_warning_events",
        "roce_slow_restart",
        "local_ack_timeout_err",
    ),
)
_QUALIFIERS = {
    "nic.ib.out_of_spec": "out of specification",
    "nic.fec_uncorrectable_blocks": "uncorrectable blocks",
}
