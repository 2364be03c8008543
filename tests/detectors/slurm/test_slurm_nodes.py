"""Nodes as Slurm sees them: whose drain it is, what is a fault, and every form in which Slurm
prints it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import Detector, Output, Reading, Target, TargetKind, Transports
from detectors.evaluation.classify import classify
from detectors.expected import Expected
from detectors.faults import Observation
from detectors.slurm import drain_reasons, output, output_formats
from detectors.slurm.drain_reasons import Drainer
from detectors.slurm.job_stalled import JobStalledDetector
from detectors.slurm.slurm_jobs import SlurmJobsDetector
from detectors.slurm.slurm_nodes import SlurmNodesDetector
from detectors.transports.local import LocalShell
from fixtures.cluster.http import PROMETHEUS_URL, SimulatedHttp
from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmOptions
from fixtures.cluster.world import SimulatedShell, SimulatedWorld
from tests.site_rows import nhc, site_rows

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
SLURM = Target("slurm", "127.0.0.1", kind=TargetKind.SITE)
DETECTOR = SlurmNodesDetector()


def seen(
    text: str, *, status: int | None = 0, settings: Mapping[str, str] | None = None
) -> Reading:
    target = Target(
        "slurm", "127.0.0.1", kind=TargetKind.SITE, expected=Expected(settings=settings or {})
    )
    return Reading(
        "slurm_nodes", target, NOW, {"nodes": Output(status, text.encode(), b"", timedelta(0))}
    )


def block(state: str, reason: str = "", *, set_by: str = "slurm", name: str = "gn001") -> str:
    said = f"   Reason={reason} [{set_by}@2026-11-21T03:00:00]\n" if reason else ""
    return f"NodeName={name} Arch=x86_64\n   State={state} ThreadsPerCore=1\n{said}\n"


def faults(text: str, **options: Mapping[str, str]) -> set[str]:
    rows = catalog.load()
    found = (
        event for o in DETECTOR.parse(seen(text, **options)) for event in classify(o, (), rows)
    )  # type: ignore[arg-type]
    return {event.fault_type.removeprefix("slurm.") for event in found}


def fact(text: str, metric: str) -> object:
    return next(o.value for o in DETECTOR.parse(seen(text)) if o.metric == metric)


@pytest.mark.parametrize(
    ("state", "reason", "set_by", "expected"),
    [
        ("IDLE", "", "", set()),
        ("ALLOCATED+COMPLETING", "", "", set()),
        ("MIXED+PLANNED", "", "", set()),
        ("IDLE+NOT_RESPONDING", "", "", {"node_not_responding"}),
        ("IDLE*", "", "", {"node_not_responding"}),
        ("DOWN", "", "", {"node_down"}),
        ("DOWN+NOT_RESPONDING", "Not responding", "slurm", {"node_down", "node_not_responding"}),
        ("DOWN", "Node unexpectedly rebooted", "slurm", {"node_down"}),
        ("DOWN", "CPU dead", "bob", set()),
        ("DOWN+DRAIN", "CPU dead", "root", set()),
        ("IDLE+DRAIN", "swap DIMM B7", "bob", set()),
        ("IDLE+DRAIN", "Kill task failed", "root", {"drained_by_slurm"}),
        ("IDLE+DRAIN", "Kill task failed", "bob", set()),
        ("MIXED+DRAIN", "Prolog error", "root", {"drained_by_slurm"}),
        (
            "IDLE+DRAIN",
            "gres/gpu count reported lower than configured (7 < 8)",
            "slurm",
            {"drained_by_slurm"},
        ),
        ("IDLE+INVALID_REG", "", "", {"drained_by_slurm"}),
        ("IDLE+DRAIN", "NHC: check_fs_mount: /lustre", "root", {"drained_by_tool"}),
        ("IDLE+DRAIN", "kintsugi:7 gpu.lost: GPU 3", "root", set()),
        ("IDLE+DRAIN+REBOOT_ISSUED", "kintsugi:7 gpu.lost: x : reboot issued", "root", set()),
        ("DOWN+REBOOT_ISSUED+NOT_RESPONDING", "reboot issued", "slurm", set()),
        ("DOWN", "kintsugi:7 gpu.lost: x : reboot timed out", "root", {"reboot_timed_out"}),
        ("IDLE+MAINTENANCE+NOT_RESPONDING", "", "", set()),
        ("IDLE+POWERED_DOWN", "", "", set()),
        ("FUTURE", "", "", set()),
        ("UNKNOWN+NOT_RESPONDING", "", "", set()),
    ],
)
def test_a_state_and_its_reason_make_these_faults(
    state: str, reason: str, set_by: str, expected: set[str]
) -> None:
    assert faults(block(state, reason, set_by=set_by)) == expected


@pytest.mark.parametrize(
    ("reason", "set_by", "expected"),
    [
        ("Not responding", "slurm", Drainer.SLURM),
        ("Not responding : reboot issued", "root", Drainer.SLURM),
        ("Kill task failed : looking into it", "alice", Drainer.PERSON),
        ("Kill task failed, again", "root", Drainer.PERSON),
        ("NHC: x", "root", Drainer.TOOL),
        ("NHC says so", "bob", Drainer.PERSON),
        ("Action:Replace : Not responding", "slurm", Drainer.TOOL),
        ("[user_problem] disk full", "root", Drainer.TOOL),
        ("kintsugi:3 nic.link.down: x", "root", Drainer.KINTSUGI),
        ("kintsugi is down", "bob", Drainer.PERSON),
        ("", "", Drainer.NOBODY),
    ],
)
def test_who_drained_a_node_is_read_from_its_reason(
    reason: str, set_by: str, expected: Drainer
) -> None:
    assert fact(block("IDLE+DRAIN", reason, set_by=set_by), "slurm.drained_by") == str(expected)


def test_a_site_may_run_slurm_as_another_user() -> None:
    text = block("IDLE+DRAIN", "Kill task failed", set_by="hpc")
    assert faults(text) == set()
    assert faults(text, settings={"slurm_user": "hpc"}) == {"drained_by_slurm"}


@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=60))
def test_whatever_a_person_writes_raises_nothing(reason: str) -> None:
    if drain_reasons.classify_drainer(_drained(reason)) is Drainer.PERSON:
        assert faults(block("IDLE+DRAIN", reason, set_by="bob")) == set()


def _drained(reason: str) -> output.NodeState:
    return output.NodeState("gn001", "IDLE", frozenset({"DRAIN"}), reason, "bob", None, None, ())


def test_a_reason_keeps_its_bars_and_quotes_in_every_form() -> None:
    reason = 'fan | slot=3 "loud"'
    forms = [
        block("IDLE+DRAIN", reason, set_by="bob"),
        f"gn001|drained|bob|{reason}\n",
        json.dumps({"nodes": [{"name": "gn001", "state": ["IDLE", "DRAIN"], "reason": reason}]}),
    ]
    assert [output_formats.parse_nodes(text).nodes["gn001"].reason for text in forms] == [
        reason
    ] * 3


@pytest.mark.parametrize(
    ("suffix", "flag"),
    [
        ("*", "NOT_RESPONDING"),
        ("@", "REBOOT_REQUESTED"),
        ("^", "REBOOT_ISSUED"),
        ("$", "MAINTENANCE"),
        ("~", "POWERED_DOWN"),
        ("#", "POWERING_UP"),
        ("%", "POWERING_DOWN"),
        ("!", "POWER_DOWN"),
        ("-", "PLANNED"),
        ("+", ""),
    ],
)
def test_every_suffix_of_a_short_state_is_read(suffix: str, flag: str) -> None:
    for word in ("idle", "mix", "drain", "drng", "down"):
        node = output_formats.parse_nodes(f"gn001|{word}{suffix}|Unknown|none\n").nodes["gn001"]
        assert node.flags - {"DRAIN"} == ({flag} if flag else set())


def test_the_state_of_22_05_and_of_later_json_say_the_same() -> None:
    old = {
        "nodes": [
            {
                "name": "gn001",
                "state": "down",
                "state_flags": ["DRAIN"],
                "reason_changed_at": 1795233600,
            }
        ]
    }
    new = {
        "nodes": [
            {
                "name": "gn001",
                "state": ["DOWN", "DRAIN"],
                "reason_changed_at": {"set": True, "infinite": False, "number": 1795233600},
            }
        ]
    }
    assert (
        output_formats.parse_nodes(json.dumps(old)).nodes
        == output_formats.parse_nodes(json.dumps(new)).nodes
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slurm_load_node error: Unable to contact slurm controller (connect failure)\n",
        '{"nodes": [], "errors": [{"description": "Failure to query node", "error": "No error"}]}',
        '{"nodes": [{"name": "gn001", "state": ["IDLE"]}',
        "[" * 100_000,
        "Welcome to the cluster!\n",
        block("IDLE") + "NodeName=gn002 Arch=x86_64\n   CPUAl",
        block("IDLE").rstrip("\n"),
    ],
)
def test_an_answer_that_is_none_or_is_cut_off_is_never_healthy(text: str) -> None:
    answered = [o for o in DETECTOR.parse(seen(text)) if o.metric == "detector.answered"]
    assert [o.value for o in answered] == [False]


@pytest.mark.parametrize("status", [None, 1, 127])
def test_a_command_that_failed_is_told_even_when_it_printed_nodes(status: int | None) -> None:
    readings = list(DETECTOR.parse(seen(block("IDLE"), status=status)))
    assert [o.value for o in readings if o.metric == "detector.answered"] == [False]
    assert any(o.metric == "slurm.state" for o in readings)


@given(
    st.text(max_size=400) | st.binary(max_size=400).map(lambda raw: raw.decode("utf-8", "replace"))
)
def test_any_text_is_listed_without_an_error(text: str) -> None:
    for form in (
        text,
        f"NodeName={text}",
        f"NODELIST STATE REASON\n{text}",
        f'{{"nodes": [{text}]}}',
        f"gn|idle|{text}",
    ):
        assert output_formats.parse_nodes(form).unread >= 0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gn001", ["gn001"]),
        ("gn[001-003,007],mt001", ["gn001", "gn002", "gn003", "gn007", "mt001"]),
        ("gn[8-11]", ["gn8", "gn9", "gn10", "gn11"]),
        ("gn[1-2]-ib,x", ["gn1-ib", "gn2-ib", "x"]),
        ("", []),
        (",,a,", ["a"]),
        ("gn[001-003", []),
        ("gn[x-y]", []),
    ],
)
def test_a_host_list_is_spelled_out(text: str, names: list[str]) -> None:
    assert list(output.iterate_hosts(text)) == names


def test_lists_of_hosts_beyond_any_cluster_are_not_kept() -> None:
    begun = datetime.now(UTC)
    assert len(output.parse_jobs("1|RUNNING|a|gn[1-60000]|gres:gpu:8|x\n" * 20)) < 20
    rows = "".join(f"r{row}n[1-60000] idle\n" for row in range(3))
    assert output_formats.parse_nodes(f"NODELIST STATE\n{rows}").unread == 1
    assert output.parse_jobs(f"1|RUNNING|a|gn1|gres:gpu:{'9' * 5000}|x\n")[0].nodes == ("gn1",)
    assert datetime.now(UTC) - begun < timedelta(seconds=10)


def test_a_line_of_brackets_takes_no_time() -> None:
    begun = datetime.now(UTC)
    for text in (
        "a" * 500_000 + "[",
        "[" * 500_000,
        "a[" * 250_000,
        "a[1-2]" * 100_000,
        "," * 500_000,
    ):
        list(output.iterate_hosts(text))
        output_formats.parse_nodes(f"NODELIST STATE\n{text} idle\n")
    assert datetime.now(UTC) - begun < timedelta(seconds=5)


def test_a_host_list_beyond_any_cluster_is_not_spelled_out() -> None:
    assert list(output.iterate_hosts("gn[1-99999999999]")) == []
    assert list(output.iterate_hosts(f"gn[{'0' * 5000}-9]")) == []
    assert len(list(output.iterate_hosts("gn[1-60000]," * 50))) == 65_536
    assert len(list(output.iterate_hosts("gn[00001-10000]"))) == 10_000


def test_large_sites_ask_for_one_line_a_node() -> None:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    world.site.slurm.set_down("gn002")
    told = []
    for form in ("", "sinfo"):
        target = Target(
            "slurm", "", kind=TargetKind.SITE, expected=Expected(settings={"slurm_form": form})
        )
        reading = DETECTOR.collect(target, Transports(shell=SimulatedShell(world)), NOW)
        told.append(
            {
                (o.resource, o.metric, o.value)
                for o in DETECTOR.parse(reading)
                if o.metric != "slurm.booted_at"
            }
        )
    assert told[0] == told[1]
    assert ("node/gn002", "slurm.up", False) in told[1]


def test_ten_thousand_nodes_are_read_in_linear_time() -> None:
    text = "".join(block("IDLE", name=f"gn{number:05d}") for number in range(10_000))
    begun = datetime.now(UTC)
    assert len(output_formats.parse_nodes(text).nodes) == 10_000
    assert datetime.now(UTC) - begun < timedelta(seconds=10)


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmDaemons]:
    directory: Path = tmp_path_factory.mktemp("slurm")
    nodes = ("gn001", "gn002", "gn003")
    with SlurmDaemons(
        directory, nodes=nodes, cluster_name="looked-at", options=SlurmOptions()
    ) as running:
        yield running


@pytest.mark.needs("slurmctld", "slurmd", "munged")
@pytest.mark.parametrize("form", ["", "sinfo"])
def test_a_real_slurm_is_read(daemons: SlurmDaemons, form: str) -> None:
    daemons.command(
        "scontrol", "update", "NodeName=gn002", "State=DRAIN", 'Reason=fan | slot=3 "loud"'
    )
    settings = {"slurm_conf": str(daemons.conf), "slurm_form": form}
    target = Target(
        "slurm", "localhost", kind=TargetKind.SITE, expected=Expected(settings=settings)
    )
    reading = DETECTOR.collect(target, Transports(shell=LocalShell()), datetime.now(UTC))
    found = {(o.resource, o.metric): o for o in DETECTOR.parse(reading)}
    assert found["site/slurm", "detector.answered"].value is True
    assert found["node/gn001", "slurm.up"].value is True
    assert found["node/gn001", "slurm.responding"].value is True
    assert found["node/gn002", "slurm.drained_by"].value == "person"
    assert found["node/gn002", "slurm.drained_by"].attributes["reason"].startswith("fan | slot=3")


@pytest.mark.needs("slurmctld", "slurmd", "munged")
def test_the_jobs_of_a_real_slurm_without_accounting_are_read(daemons: SlurmDaemons) -> None:
    daemons.command(
        "sbatch", "--nodelist=gn001,gn003", "--nodes=2", "--output=/dev/null", "--wrap=sleep 30"
    )
    target = Target(
        "slurm",
        "localhost",
        kind=TargetKind.SITE,
        expected=Expected(
            settings={"slurm_conf": str(daemons.conf)}, urls={"prometheus": PROMETHEUS_URL}
        ),
    )
    via = Transports(shell=LocalShell(), http=SimulatedHttp(SimulatedWorld.sakuraone()))

    def looked(detector: Detector) -> list[Observation]:
        return list(detector.parse(detector.collect(target, via, datetime.now(UTC))))

    daemons.wait_until(
        lambda: any(o.metric == "job.stalled" for o in looked(JobStalledDetector())), what="it runs"
    )
    [stalled] = [o for o in looked(JobStalledDetector()) if o.metric == "job.stalled"]
    assert (stalled.value, stalled.attributes["nodes"]) == (False, "gn001,gn003")
    seen = looked(SlurmJobsDetector())
    assert [o.value for o in seen if o.metric == "detector.answered"] == [True]
    assert {o.resource: o.value for o in seen if o.metric == "job.node_fail"}["node/gn001"] is False
    assert not [o for o in seen if o.metric == "job.failure_excess"]


@pytest.mark.needs("scontrol")
def test_a_slurm_that_is_down_is_told_with_what_to_do(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "ClusterName=gone\nSlurmctldHost=localhost\nSlurmctldPort=1\nMessageTimeout=1\nSlurmctldTimeout=1\n"
    )
    settings = {"slurm_conf": str(conf)}
    target = Target(
        "slurm", "localhost", kind=TargetKind.SITE, expected=Expected(settings=settings)
    )
    reading = DETECTOR.collect(target, Transports(shell=LocalShell()), NOW)
    [answered] = [o for o in DETECTOR.parse(reading) if o.metric == "detector.answered"]
    assert answered.value is False
    assert answered.attributes["text"].startswith("Slurm's nodes: ")


@pytest.mark.parametrize(
    ("state", "reason", "set_by", "expected"),
    [
        ("IDLE+DRAIN", "NHC: check_gpus: GPU 3", "root", True),
        ("IDLE", "", "", False),
        ("IDLE+DRAIN", "NHC: check_gpus: GPU 3", "bob", None),
        ("IDLE+DRAIN", "kintsugi:7 gpu.lost: x", "root", None),
        ("IDLE+DRAIN", "Kill task failed", "root", None),
        ("IDLE+DRAIN", "[node_problem] no row explains this", "root", False),
    ],
)
def test_a_checks_drain_is_the_fault_that_the_sites_row_names(
    tmp_path: Path, state: str, reason: str, set_by: str, expected: bool | None
) -> None:
    """Once somebody else has written over it, it is neither raised nor cleared."""
    text = block(state, reason, set_by=set_by)
    with site_rows(tmp_path, nhc(resume=False)):
        assert fact(text, "slurm.drained_for.gpu.lost") is expected
        rows = catalog.load()
        raised = [
            event
            for seen_here in DETECTOR.parse(seen(text))
            for event in classify(seen_here, (), rows)
            if event.fault_type in ("gpu.lost", "slurm.drained_by_tool")
        ]
    if expected:
        [event] = raised
        assert (event.fault_type, event.resource) == ("gpu.lost", "node/gn001")
        assert event.qualifier == "drain"
        assert 'a health check wrote "NHC: check_gpus: GPU 3"' in event.excerpt
