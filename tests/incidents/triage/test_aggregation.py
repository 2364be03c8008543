"""Counting rules: what many effects at one place conclude, what they must not, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from detectors import resources
from detectors.faults import EventKind
from detectors.slurm.job_records import JobRecord
from incidents.correlation import aggregation_rules
from incidents.correlation.aggregation_rules import AggregationError
from incidents.jobs import jobs
from incidents.models import Decision, Fault, Incident
from incidents.state import site_rules
from incidents.triage import aggregation
from incidents.triage.ingest import ingest
from incidents.triage.sweep import sweep
from tests.builders import NOW
from tests.incidents.sites import (
    LEAFS,
    NODES,
    SPINES,
    TWO_OF_A_RACK,
    a_site,
    happen,
    nics,
    open_incidents,
)
from tests.odd_values import ODD_VALUES, format_toml

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
LEAF = "switch/leaf-02"


@pytest.fixture(autouse=True)
def _site(db: None) -> None:
    a_site()


def concluded() -> list[tuple[str, str]]:
    kinds = {rule.concludes for rule in aggregation_rules.load()} | {"nic.pfc.source"}
    rows = Fault.objects.filter(fault_type__in=kinds, is_active=True).order_by("pk")
    return list(rows.values_list("fault_type", "resource"))


def swept(after: timedelta) -> None:
    """What the pipeline's sweep does with conclusions."""
    now = NOW + after
    events = aggregation.find_ended(now)
    if events:
        ingest(events, now=now)
    sweep(now=now)


def test_a_leaf_is_the_root_when_a_third_of_its_links_fail_and_it_says_nothing() -> None:
    happen("nic.link.down", nics(1, NODES[:5]))

    assert concluded() == [("switch.ports_lost", LEAF)]
    assert open_incidents() == [("switch.ports_lost", LEAF)]
    assert Incident.objects.get().members.count() == 6
    decision = Decision.objects.get(kind="concluded")
    assert decision.rule == "leaf"
    assert decision.text.startswith(
        "5 of 12 (gn001 NIC mlx5_1, gn002 NIC mlx5_1, gn003 NIC mlx5_1 and 2 more) within 1 min"
    )


def test_both_ends_of_a_cable_count_once_when_switch_and_node_tell() -> None:
    happen("nic.link.down", nics(1, NODES[:4]))
    happen("switch.port.down", [f"{LEAF}/port/Ethernet{4 * n}" for n in range(4)], at=NOW + SECOND)

    assert concluded() == []


def test_a_leaf_is_concluded_when_its_links_fail_in_several_batches() -> None:
    for number in range(5):
        happen("nic.link.down", nics(1, NODES[number : number + 1]), at=NOW + number * 10 * SECOND)

    assert concluded() == [("switch.ports_lost", LEAF)]


def test_no_leaf_is_concluded_when_its_links_fail_over_hours() -> None:
    for number in range(6):
        happen("nic.link.down", nics(1, NODES[number : number + 1]), at=NOW + number * 2 * MINUTE)

    assert concluded() == []


def test_no_leaf_is_concluded_when_every_rail_loses_the_same_nodes() -> None:
    happen("nic.link.down", [nic for rail in range(4) for nic in nics(rail, NODES[:6])])

    assert [kind for kind, _ in concluded()] == []


def test_two_leafs_are_concluded_when_both_die_and_the_other_rails_are_quiet() -> None:
    happen("nic.link.down", [*nics(0), *nics(1)])

    assert concluded() == [("switch.ports_lost", "switch/leaf-01"), ("switch.ports_lost", LEAF)]


def test_no_leaf_is_concluded_when_the_leaf_said_itself_what_happened() -> None:
    happen("switch.rebooted", [LEAF])
    happen("nic.link.down", nics(1), at=NOW + SECOND)

    assert concluded() == []
    assert open_incidents() == [("switch.rebooted", LEAF)]


def test_the_switch_itself_is_the_root_when_it_speaks_after_the_conclusion() -> None:
    happen("nic.link.down", nics(1))
    happen("switch.rebooted", [LEAF], at=NOW + 90 * SECOND)

    assert open_incidents() == [("switch.rebooted", LEAF)]


def test_a_concluded_leaf_ends_when_most_of_its_links_are_back() -> None:
    happen("nic.link.down", nics(1))
    happen("nic.link.down", nics(1, NODES[:9]), at=NOW + 5 * MINUTE, kind=EventKind.CLEARED)
    swept(6 * MINUTE)
    assert concluded() == [("switch.ports_lost", LEAF)]

    happen("nic.link.down", nics(1, NODES[9:10]), at=NOW + 7 * MINUTE, kind=EventKind.CLEARED)
    swept(8 * MINUTE)
    assert concluded() == []


def test_a_spine_is_concluded_when_leafs_lose_their_links_to_it() -> None:
    happen("switch.port.down", [f"switch/leaf-{n:02}/port/Ethernet256" for n in (1, 2, 3, 4)])

    assert concluded() == [("switch.ports_lost", "switch/spine-01")]


def told_by_spines(*leafs: int, spines: Sequence[str] = SPINES) -> list[str]:
    """The spines' own ports that these leafs are cabled to."""
    return [f"switch/{spine}/port/Ethernet{8 * (leaf - 1)}" for spine in spines for leaf in leafs]


def test_a_leaf_is_concluded_when_its_spines_alone_speak() -> None:
    happen("switch.port.down", told_by_spines(2))

    assert concluded() == [("switch.ports_lost", LEAF)]
    assert open_incidents() == [("switch.ports_lost", LEAF)]


def test_no_leaf_is_concluded_while_a_spine_keeps_its_links_to_it() -> None:
    happen("switch.port.down", told_by_spines(2, spines=SPINES[1:]))

    assert concluded() == []


def test_leafs_that_their_spines_alone_tell_of_are_one_incident_of_their_pod() -> None:
    happen("switch.port.down", told_by_spines(1, 2, 3, 4))

    assert open_incidents() == [("switch.leafs_lost", "pod/pod-a")]


def test_a_storage_switch_is_concluded_when_one_path_of_each_node_goes() -> None:
    happen("nic.link.down", [f"node/{name}/nic/mlx5_8" for name in NODES])
    happen("storage.lustre.rpc_timeout", [f"node/{name}" for name in NODES], at=NOW + 30 * SECOND)

    assert concluded() == [("switch.ports_lost", "switch/sto-01")]
    assert open_incidents() == [("switch.ports_lost", "switch/sto-01")]


def test_a_file_system_is_concluded_when_many_clients_lose_it_and_every_link_is_up() -> None:
    happen("storage.lustre.connection_lost", [f"node/{name}" for name in NODES[:10]])

    assert concluded() == [("storage.service_lost", "storage/lustre")]
    assert open_incidents() == [("storage.service_lost", "storage/lustre")]


def test_a_module_is_concluded_when_both_its_ports_are_bad() -> None:
    happen("nic.transceiver.rx_power_low", nics(1, NODES[2:3]))
    happen("switch.port.error", [f"{LEAF}/port/Ethernet12"], at=NOW + MINUTE)

    assert concluded() == [("switch.transceiver.shared", f"{LEAF}/module/2")]
    assert open_incidents() == [("switch.transceiver.shared", f"{LEAF}/module/2")]


def test_no_module_is_concluded_when_its_links_come_back_within_their_hold_down() -> None:
    happen("nic.link.down", nics(1, NODES[2:4]))
    happen("nic.link.down", nics(1, NODES[2:4]), at=NOW + 20 * SECOND, kind=EventKind.CLEARED)
    swept(2 * MINUTE)

    assert concluded() == []


def test_a_module_is_concluded_when_both_its_links_outlast_their_hold_down() -> None:
    happen("nic.link.down", nics(1, NODES[2:4]))
    assert concluded() == []
    swept(62 * SECOND)

    assert concluded() == [("switch.transceiver.shared", f"{LEAF}/module/2")]
    assert open_incidents() == [("switch.transceiver.shared", f"{LEAF}/module/2")]


def test_no_module_is_concluded_when_the_nodes_that_it_carries_lost_other_links_too() -> None:
    happen(
        "switch.port.down",
        [f"switch/{leaf}/port/Ethernet{n}" for leaf in LEAFS[1:3] for n in (8, 12)],
    )
    swept(62 * SECOND)

    assert concluded() == []


def test_no_module_is_concluded_when_the_nodes_that_it_carries_are_down_for_slurm() -> None:
    happen("switch.port.down", [f"{LEAF}/port/Ethernet{n}" for n in (8, 12)])
    happen("slurm.node_down", [f"node/{name}" for name in NODES[2:4]], at=NOW + 30 * SECOND)
    swept(62 * SECOND)

    assert concluded() == []


def test_a_module_is_concluded_when_one_of_its_nodes_is_down_for_slurm_and_the_other_is_well() -> (
    None
):
    happen("switch.port.down", [f"{LEAF}/port/Ethernet{n}" for n in (8, 12)])
    happen("slurm.node_down", [f"node/{NODES[2]}"], at=NOW + 30 * SECOND)
    swept(62 * SECOND)

    assert concluded() == [("switch.transceiver.shared", f"{LEAF}/module/2")]


def test_links_of_nodes_are_of_their_sites_incident_whichever_end_tells_of_them() -> None:
    happen("slurm.node_down", [f"node/{name}" for name in NODES])
    happen("switch.port.down", ["switch/sto-01/port/Ethernet0"], at=NOW + MINUTE)
    swept(3 * MINUTE)

    assert open_incidents() == [("facility.nodes_down", "site/nodes")]


def test_a_rack_is_concluded_when_its_nodes_are_down_and_other_racks_are_not() -> None:
    happen("slurm.node_down", [f"node/{name}" for name in NODES[4:8]])
    happen("target.unreachable", [f"node/{name}" for name in NODES[4:8]], at=NOW + 20 * SECOND)

    assert concluded() == [("facility.nodes_down", "rack/r02")]
    assert open_incidents() == [("facility.nodes_down", "rack/r02")]


def test_the_site_is_concluded_when_nodes_of_all_racks_are_down() -> None:
    happen("slurm.node_down", [f"node/{name}" for name in NODES[:11]])

    assert concluded() == [("facility.nodes_down", "site/nodes")]


SHARED_BY_ALL = [
    ("node.identity.failed", "facility.directory_lost"),
    ("config.clock_unsynchronised", "facility.time_lost"),
    ("clock.skewed", "facility.time_lost"),
    ("config.slurm", "config.slurm_on_many"),
    ("config.munge", "config.slurm_on_many"),
    ("config.gpu_driver", "config.software_on_many"),
]


@pytest.mark.parametrize(("fault_type", "conclusion"), SHARED_BY_ALL)
def test_what_all_nodes_share_is_one_incident_when_many_complain_of_it(
    fault_type: str, conclusion: str
) -> None:
    happen(fault_type, [f"node/{name}" for name in NODES[:9]])
    assert concluded() == []

    happen(fault_type, [f"node/{name}" for name in NODES[9:]], at=NOW + MINUTE)
    assert open_incidents() == [(conclusion, "site/nodes")]


def test_services_that_end_for_settings_which_many_nodes_share_are_of_the_same_incident() -> None:
    nodes = [f"node/{name}" for name in NODES]
    happen("config.slurm_refused", nodes)
    happen("node.service.failed", nodes, at=NOW + SECOND)

    assert open_incidents() == [("config.slurm_on_many", "site/nodes")]


def test_a_node_that_is_set_wrongly_hours_later_is_an_incident_of_its_own() -> None:
    happen("config.slurm", [f"node/{name}" for name in NODES[:11]])
    happen("config.slurm", [f"node/{NODES[11]}"], at=NOW + timedelta(hours=2))

    assert open_incidents() == [
        ("config.slurm_on_many", "site/nodes"),
        ("config.slurm", f"node/{NODES[11]}"),
    ]


def test_a_gpu_that_fails_while_many_nodes_are_set_wrongly_is_an_incident_of_its_own() -> None:
    happen("config.gpu_driver", [f"node/{name}" for name in NODES])
    happen("gpu.xid.79", gpus(NODES[3:4]), at=NOW + MINUTE)

    assert sorted(open_incidents()) == [
        ("config.software_on_many", "site/nodes"),
        ("gpu.xid.79", "node/gn004/gpu/0000:19:00.0"),
    ]


def test_power_is_concluded_when_supplies_of_many_racks_fail() -> None:
    happen("node.power_supply.failed", [f"node/{name}" for name in NODES[:10]])

    assert concluded() == [("facility.power.degraded", "feed/feed-1")]
    assert open_incidents() == [("facility.power.degraded", "feed/feed-1")]
    assert "Not told apart from feed-2" in Decision.objects.get(kind="concluded").text


def test_cooling_is_concluded_when_one_rack_runs_hot() -> None:
    happen("node.temperature.high", [f"node/{name}" for name in NODES[:3]])
    happen("gpu.slowdown.thermal", [f"node/{NODES[0]}/gpu/0000:19:00.0"], at=NOW + 45 * SECOND)

    assert concluded() == [("facility.cooling.degraded", "rack/r01")]
    assert open_incidents() == [("facility.cooling.degraded", "rack/r01")]


def a_job(job_id: str, nodes: tuple[str, ...], *, started_at=NOW - MINUTE) -> str:
    record = JobRecord(
        job_id=job_id, cluster="slurm", name="train", user="ana", partition="gpu", nodes=nodes, gpus=8 * len(nodes),
        state="RUNNING", started_at=started_at, ended_at=None, checkpoint_at=None,
    )  # fmt: skip
    jobs.store_jobs([record], started_at)
    return resources.job("slurm", job_id)


def gpus(nodes: tuple[str, ...], slot: str = "0000:19:00.0") -> list[str]:
    return [f"node/{name}/gpu/{slot}" for name in nodes]


def test_one_incident_of_the_job_opens_when_its_program_fails_on_many_nodes() -> None:
    job = a_job("7", NODES[:8])
    happen("gpu.xid.31", gpus(NODES[:1]))
    happen("gpu.xid.45", gpus(NODES[:8]), at=NOW + 2 * SECOND)

    assert concluded() == [("job.application_failed", job)]
    assert open_incidents() == [("job.application_failed", job)]
    incident = Incident.objects.get()
    assert incident.node is None
    assert incident.members.count() == 10


def test_the_first_hardware_fault_is_the_root_when_a_job_loses_a_node() -> None:
    a_job("7", NODES[:8])
    happen("gpu.xid.79", gpus(NODES[3:4]))
    happen("gpu.xid.45", gpus(NODES[:3] + NODES[4:8]), at=NOW + 2 * SECOND)

    assert open_incidents() == [("gpu.xid.79", "node/gn004/gpu/0000:19:00.0")]


def test_the_hardware_fault_takes_the_root_when_it_comes_after_its_echoes() -> None:
    a_job("7", NODES[:8])
    happen("gpu.xid.45", gpus(NODES[:3] + NODES[4:8]))
    happen("gpu.xid.79", gpus(NODES[3:4]), at=NOW + 5 * SECOND)

    assert open_incidents() == [("gpu.xid.79", "node/gn004/gpu/0000:19:00.0")]


def test_nothing_is_concluded_of_echoes_when_no_job_is_known() -> None:
    happen("gpu.xid.45", gpus(NODES))

    assert concluded() == []


def test_a_gpu_is_suspect_when_program_errors_come_back_in_three_jobs() -> None:
    gpu = gpus(NODES[5:6])
    for number in range(3):
        at = NOW + timedelta(hours=3 * number)
        a_job(str(number), NODES[5:6], started_at=at - MINUTE)
        happen("gpu.xid.13", gpu, at=at)
        sweep(now=at + timedelta(hours=2))

    assert concluded() == [("gpu.program_errors_repeated", gpu[0])]


def test_no_gpu_is_suspect_when_other_gpus_of_the_jobs_show_the_same() -> None:
    for number in range(3):
        at = NOW + timedelta(hours=3 * number)
        a_job(str(number), NODES[4:6], started_at=at - MINUTE)
        happen("gpu.xid.13", gpus(NODES[4:6]), at=at)
        sweep(now=at + timedelta(hours=2))

    assert concluded() == []


MINUTES_APART = (0, 15, 25)


def test_a_gpu_is_suspect_with_its_third_job_within_half_an_hour() -> None:
    """The fault stands all the time: each time that it is seen counts, under the job that ran
    then."""
    gpu = gpus(NODES[5:6])
    for number, minutes in enumerate(MINUTES_APART):
        assert concluded() == []
        at = NOW + minutes * MINUTE
        a_job(str(number), NODES[5:6], started_at=at - 2 * MINUTE)
        happen("gpu.xid.13", gpu, at=at)

    assert Fault.objects.filter(fault_type="gpu.xid.13").count() == 1
    assert concluded() == [("gpu.program_errors_repeated", gpu[0])]


def test_a_gpu_is_suspect_when_errors_come_back_within_the_hour_and_no_job_is_known() -> None:
    for minutes in MINUTES_APART:
        happen("gpu.xid.31", gpus(NODES[5:6]), at=NOW + minutes * MINUTE)

    assert concluded() == [("gpu.program_errors_repeated", gpus(NODES[5:6])[0])]


def test_no_gpu_is_suspect_when_one_program_repeats_its_error_within_moments() -> None:
    for seconds in range(0, 50, 10):
        happen("gpu.xid.13", gpus(NODES[5:6]), at=NOW + seconds * SECOND)

    assert concluded() == []


def test_no_gpu_is_suspect_when_one_job_shows_its_error_for_an_hour() -> None:
    a_job("7", NODES[5:6], started_at=NOW - MINUTE)
    for minutes in range(0, 60, 10):
        happen("gpu.xid.13", gpus(NODES[5:6]), at=NOW + minutes * MINUTE)

    assert concluded() == []


def test_no_gpu_is_suspect_when_a_program_that_is_started_again_and_again_fails_on_all_of_its_gpus() -> (
    None
):
    for minutes in (*MINUTES_APART, 40, 55):
        happen("gpu.xid.13", gpus(NODES[4:5]), at=NOW + minutes * MINUTE)
        happen(
            "gpu.xid.13", [f"node/{NODES[4]}/gpu/0000:3b:00.0"], at=NOW + minutes * MINUTE + SECOND
        )

    assert concluded() == []


def test_nothing_is_read_when_no_rule_asks() -> None:
    with CaptureQueriesContext(connection) as asked:
        assert aggregation.find_ended(NOW) == []

    assert len(asked) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('effect = "nic.nonsense"', "effect: nic.nonsense matches no fault type"),
        ('relation = "beside"', "relation 'beside' is none of"),
        ('concludes = "switch.nonsense"', "concludes: switch.nonsense is no fault type"),
        ('window = "soon"', "window 'soon' is no duration"),
        ("share = 2", "share: 2 is no share"),
        ("hold_at = 3", "hold and hold_at: each needs the other"),
        ("colour = 1", "colour: unknown"),
        ('source = ""', "source: missing"),
        ("effect = 7", "effect is 7: expected a text or a list of texts"),
        ("share = inf", "share inf is no number"),
        ('quiet = "yes"', "quiet is 'yes': expected true or false"),
    ],
)
def test_a_rule_is_refused_when_it_says_what_cannot_be_meant(change: str, said: str) -> None:
    key, _, value = change.partition(" = ")
    with pytest.raises(AggregationError, match=r"rules\.toml:1: x: ") as refused:
        aggregation_rules.read([("rules.toml", a_counting_rule(**{key: value}))])
    assert said in str(refused.value)


def a_counting_rule(**changes: str) -> str:
    row = {
        "name": '"x"', "effect": '"nic.link.down"', "relation": '"port_of_switch"', "at": '"leaf"', "fewest": "3",
        "counts": '"children"', "window": '"60s"', "concludes": '"switch.ports_lost"', "because": '"it is"',
        "source": '"our choice"',
    }  # fmt: skip
    lines = [f"{name} = {given}" for name, given in {**row, **changes}.items()]
    return "\n".join(["[[gather]]", *lines])


@given(value=ODD_VALUES, data=st.data())
def test_any_value_of_any_key_of_a_counting_rule_is_taken_or_its_row_is_named(
    value: Any, data: st.DataObject
) -> None:
    keys = [each.name for each in fields(aggregation_rules.AggregationRule)]
    key = data.draw(st.sampled_from(keys))
    problems = list_problems(a_counting_rule(**{key: format_toml(value)}))
    assert all(line.startswith("rules.toml:1: ") for line in problems)


@given(value=ODD_VALUES)
def test_any_value_in_place_of_counting_rules_is_taken_or_named(value: Any) -> None:
    problems = list_problems(f"gather = {format_toml(value)}")
    assert all(line.startswith("rules.toml:") for line in problems)


def list_problems(text: str) -> list[str]:
    """Why the file is refused, or nothing."""
    try:
        aggregation_rules.read([("rules.toml", text)])
    except AggregationError as error:
        return str(error).splitlines()
    return []


@pytest.fixture
def folder(settings: Any, tmp_path: Path) -> Path:
    """The site's own."""
    settings.KINTSUGI = settings.KINTSUGI | {"KINTSUGI_CORRELATION": tmp_path}
    return tmp_path


def test_a_sites_counting_rule_takes_the_place_of_ours_and_its_others_come_first(
    folder: Path,
) -> None:
    names = [rule.name for rule in aggregation_rules.load()]
    (folder / "own.toml").write_text(
        TWO_OF_A_RACK.format(name="rack_power")
        + TWO_OF_A_RACK.format(name="two_of_a_rack")
        + '[[gather]]\nname = "leaf"\nenabled = false'
    )
    found = site_rules.load_counting_rules()

    assert [rule.name for rule in found] == [
        "two_of_a_rack",
        *(name for name in names if name != "leaf"),
    ]
    assert [rule.fewest for rule in found if rule.name == "rack_power"] == [2]


def test_a_sites_counting_rule_concludes(folder: Path) -> None:
    (folder / "own.toml").write_text(TWO_OF_A_RACK.format(name="two_of_a_rack"))
    happen("node.power_supply.failed", [f"node/{name}/psu/1" for name in NODES[:2]])

    assert concluded() == [("facility.power.degraded", "rack/r01")]


def test_two_counting_rules_of_one_name_in_one_folder_are_refused(folder: Path) -> None:
    (folder / "own.toml").write_text(2 * TWO_OF_A_RACK.format(name="leaf"))

    with pytest.raises(
        AggregationError,
        match=r"own\.toml:14: leaf: name: a second rule of this name, at own\.toml:2",
    ):
        site_rules.load_counting_rules()


def ports_of(node: int, *, leafs: int = 4) -> list[str]:
    """The far ends of a node's fabric links."""
    return [f"switch/leaf-{leaf:02}/port/Ethernet{4 * (node - 1)}" for leaf in range(1, leafs + 1)]


def test_a_node_is_the_root_when_most_of_its_links_go_down_and_stay_down() -> None:
    happen("switch.port.down", ports_of(5))
    assert (concluded(), open_incidents()) == ([], [])

    swept(61 * SECOND)
    assert open_incidents() == [("node.links_lost", "node/gn005")]
    assert Incident.objects.get().component == "node"


def test_links_that_came_up_again_conclude_no_lost_node() -> None:
    happen("switch.port.down", ports_of(5))
    happen("switch.port.down", ports_of(5)[1:], at=NOW + 20 * SECOND, kind=EventKind.CLEARED)
    swept(61 * SECOND)

    assert open_incidents() == [("switch.port.down", ports_of(5)[0])]


def test_the_links_of_a_node_that_is_restarted_belong_to_its_open_incident() -> None:
    happen("gpu.xid.79", ["node/gn005/gpu/0000:19:00.0"])
    happen("switch.port.down", ports_of(5), at=NOW + 3 * 60 * MINUTE)
    swept(3 * 60 * MINUTE + 61 * SECOND)

    assert open_incidents() == [("gpu.xid.79", "node/gn005/gpu/0000:19:00.0")]


def test_a_node_that_slurm_and_ssh_miss_later_is_one_incident_with_its_links() -> None:
    happen("switch.port.down", ports_of(5))
    swept(61 * SECOND)
    happen("target.unreachable", ["node/gn005"], at=NOW + 2 * MINUTE)
    happen("slurm.node_down", ["node/gn005"], at=NOW + 6 * MINUTE)
    swept(7 * MINUTE)

    assert [resource for _, resource in open_incidents()] == ["node/gn005"]
    assert Incident.objects.get().members.count() == 7


def links_of_all_leafs() -> list[str]:
    return [nic for rail in range(4) for nic in nics(rail)]


def test_leafs_that_die_in_one_moment_are_one_incident_of_their_pod_though_none_is_quiet() -> None:
    happen("nic.link.down", links_of_all_leafs())
    assert (concluded(), open_incidents()) == ([], [])

    swept(61 * SECOND)
    assert open_incidents() == [("switch.leafs_lost", "pod/pod-a")]
    lost = [place for kind, place in concluded() if kind == "switch.ports_lost"]
    assert lost == ["switch/leaf-01", "switch/leaf-02", "switch/leaf-03", "switch/leaf-04"]


def test_leafs_that_die_in_one_moment_are_found_when_a_node_behind_them_says_nothing() -> None:
    silent_node = NODES[0]
    links = [link for link in links_of_all_leafs() if f"/{silent_node}/" not in link]
    happen("nic.link.down", links)
    swept(61 * SECOND)

    assert open_incidents() == [("switch.leafs_lost", "pod/pod-a")]


def test_nodes_that_lose_their_power_together_make_no_leaf_lost() -> None:
    happen("switch.port.down", [port for node in range(1, 13) for port in ports_of(node)])
    swept(61 * SECOND)

    assert open_incidents() == [("facility.nodes_down", "site/nodes")]
    assert {kind for kind, _ in concluded()} == {"node.links_lost", "facility.nodes_down"}


def test_a_rack_that_loses_its_power_is_one_incident_before_slurm_misses_its_nodes() -> None:
    happen("switch.port.down", [port for node in range(1, 5) for port in ports_of(node)])
    swept(61 * SECOND)
    assert open_incidents() == [("facility.nodes_down", "rack/r01")]

    happen("target.unreachable", [f"node/{name}" for name in NODES[:4]], at=NOW + 2 * MINUTE)
    happen("slurm.node_down", [f"node/{name}" for name in NODES[:4]], at=NOW + 6 * MINUTE)
    assert open_incidents() == [("facility.nodes_down", "rack/r01")]


def test_two_nodes_of_a_rack_that_stop_are_two_incidents() -> None:
    happen("switch.port.down", [*ports_of(1), *ports_of(2)])
    swept(61 * SECOND)

    lost = [("node.links_lost", f"node/{name}") for name in NODES[:2]]
    assert sorted(open_incidents()) == lost


def test_most_nodes_that_say_their_links_are_down_make_no_leaf_lost() -> None:
    happen("nic.link.down", [nic for rail in range(4) for nic in nics(rail, NODES[:10])])
    swept(61 * SECOND)

    assert "switch.ports_lost" not in {kind for kind, _ in concluded()}


def test_a_hosts_link_is_of_the_network_cards_class_whichever_end_tells_of_it() -> None:
    uplink = "switch/leaf-01/port/Ethernet1024"
    happen("switch.port.down", [ports_of(5)[0], uplink])

    rows = Fault.objects.filter(fault_type="switch.port.down").values_list("resource", "component")
    assert dict(rows) == {ports_of(5)[0]: "nic", uplink: "interconnect_switch"}
