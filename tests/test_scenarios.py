"""Every scenario is played and compared with its expected.toml: incidents, runs, and what was done
in Slurm."""

from __future__ import annotations

import io
import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.apps import apps
from django.core.management import call_command
from django.core.management.base import CommandError
from pytest_django import DjangoDbBlocker

from fixtures.replay import expect, reader, replay
from fixtures.replay.replay import Performed
from incidents.inventory import services
from kintsugi.replay import database

SCENARIOS = Path(__file__).resolve().parent.parent / "fixtures" / "scenarios"
QUARTER = "sakuraone_2025q1"
SMALL = sorted(
    folder.name for folder in SCENARIOS.iterdir() if folder.is_dir() and folder.name != QUARTER
)
# The study's counts (arXiv 2604.13600): 21 faults by class, by month and by what cured them.
BY_CLASS = {
    "gpu": 9,
    "nvlink": 4,
    "nic": 1,
    "interconnect_switch": 5,
    "storage_switch": 1,
    "misconfiguration": 1,
}
BY_MONTH = {"2025-01": 13, "2025-02": 5, "2025-03": 3}


@pytest.fixture(autouse=True)
def own_database(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """A replay brings its own database; the tests' one stays blocked."""
    with django_db_blocker.unblock():
        yield


def perform(name: str, *, seed: int | None = None) -> tuple[Performed, list[str]]:
    script = reader.read(SCENARIOS / name)
    with database.use_temporary_database():
        performed = replay.scenario(script, seed=seed)
    return performed, expect.differences(script.expected, performed.played)


@pytest.mark.parametrize("name", SMALL)
def test_a_scenario_ends_as_it_says_when_it_is_played(name: str) -> None:
    assert perform(name)[1] == []


def test_every_shipped_scenario_names_the_public_incident_or_study_that_it_retells() -> None:
    sources = {name: reader.read(SCENARIOS / name).source for name in [*SMALL, QUARTER]}
    assert len(sources) >= 25
    assert [name for name, source in sources.items() if not source] == []


@pytest.mark.parametrize("name", ["leaf_switch_reboot", "multi_node_job_crash"])
def test_a_scenario_ends_the_same_when_the_seed_is_another(name: str) -> None:
    assert perform(name, seed=77)[1] == []


def test_a_scenario_plays_the_same_wherever_its_folder_lies(tmp_path: Path) -> None:
    played = []
    for name in ("here", "there"):
        folder = shutil.copytree(SCENARIOS / "leaf_switch_reboot", tmp_path / name)
        with database.use_temporary_database():
            played.append(replay.scenario(reader.read(folder)).played.incidents)
    assert played[0] == played[1]


SITE = """
[site]
cluster_name = "small"

[[nodes]]
names = "gn001"
gpus = [{ pci = "0000:19:00.0", serial = "1652" }]

[[switches]]
names = "leaf-01"
role = "leaf"
"""


def list_rows() -> dict[str, list[tuple[object, ...]]]:
    models = apps.get_app_config("incidents").get_models()
    return {model.__name__: sorted(model.objects.values_list(), key=repr) for model in models}


def test_a_site_is_imported_at_a_scenarios_time_whichever_was_imported_before(
    tmp_path: Path,
) -> None:
    """As without a copy of the import before."""
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    topology = services.load(path)
    for at in (datetime(2025, 1, 8, tzinfo=UTC), datetime(2025, 3, 1, tzinfo=UTC)):
        with database.use_temporary_database():
            services.apply(topology, at)
            expected = list_rows()
        with database.use_temporary_database():
            replay.import_site(topology, path.read_bytes(), at)
            assert list_rows() == expected
        assert expected["InService"]
        assert expected["Switch"]


EVERY_LEAF = """
[scenario]
name = "Every leaf switch of a pod reboots"
about = "The power of a row goes and comes back."
source = "tests"
starts_at = 2025-01-08T06:00:00Z
ends_at = 2025-01-08T12:00:00Z
topology = "sakuraone"

[world]
mode = "armed"

[noise]
jitter = "0.4s"
"""
A_LEAF = """
[[step]]
at = 2025-01-08T06:20:10.{tenths}00Z
happens = "leaf_reboot"
on = "leaf-0{number}"
"""


@pytest.mark.parametrize(
    ("seed", "tenths_apart"), [(1, 1), (77, 1), (1, 0)], ids=["1", "77", "in one moment"]
)
def test_leafs_of_one_pod_that_reboot_together_are_one_incident_of_the_pod(
    tmp_path: Path, seed: int, tenths_apart: int
) -> None:
    steps = "".join(
        A_LEAF.format(number=number, tenths=number * tenths_apart) for number in range(1, 9)
    )
    (tmp_path / "scenario.toml").write_text(EVERY_LEAF + steps)
    (tmp_path / "expected.toml").write_text("[totals]\nincidents = 1\n")
    with database.use_temporary_database():
        played = replay.scenario(reader.read(tmp_path), seed=seed).played
    found = [(row["fault_type"], row["root_resource"]) for row in played.true_incidents]
    assert found == [("switch.leafs_lost", "pod/pod-a")]
    assert {row["state"] for row in played.true_incidents} == {"resolved"}


@pytest.mark.timeout(600)  # three months, some 80 s of CPU
def test_the_quarter_gives_the_published_counts_when_it_is_played() -> None:
    performed, differences = perform(QUARTER)
    true = performed.played.true_incidents
    assert differences == []
    assert Counter(row["component"] for row in true) == BY_CLASS
    assert Counter(row["opened_at"][:7] for row in true) == BY_MONTH
    recoveries = Counter(row["recovery"] for row in true)
    assert (recoveries["node_restart"], recoveries["vendor_replacement"]) == (10, 3)
    assert performed.played.lines > 10_000


def run(*arguments: str) -> str:
    out = io.StringIO()
    with redirect_stdout(io.StringIO()):
        call_command("replay", *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def test_a_process_that_has_replayed_logs_as_before() -> None:
    root = logging.getLogger()
    before = root.level
    run(str(SCENARIOS / "one_gpu_falls_off_the_bus"))
    assert root.level == before


def test_replay_prints_the_promised_object_when_json_is_asked_for() -> None:
    told = json.loads(run(str(SCENARIOS / "one_gpu_falls_off_the_bus"), "--json"))
    assert list(told) == ["lines", "events", "faults", "incidents"]
    assert list(told["incidents"][0]) == [
        "id",
        "component",
        "fault_type",
        "severity",
        "root_resource",
        "state",
        "opened_at",
        "restored_at",
        "recovery",
        "channels",
        "faults",
        "runs",
    ]
    assert list(told["incidents"][0]["faults"][0]) == [
        "resource",
        "fault_type",
        "role",
        "rule",
        "reason",
    ]


def test_a_plain_log_is_played_in_shadow_when_its_path_is_given(tmp_path: Path) -> None:
    log = tmp_path / "messages"
    log.write_text(
        "Jan  7 03:12:44 cn1 kernel: NVRM: Xid (PCI:0000:5d:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"
    )
    (incident,) = json.loads(run(str(log), "--json", "--year", "2023"))["incidents"]
    assert incident["root_resource"] == "node/cn1/gpu/0000:5d:00.0"
    assert incident["opened_at"].startswith("2023-01-07T03:12:44")
    assert incident["runs"] == []


@pytest.mark.parametrize("content", [None, ""])
def test_replay_refuses_with_status_2_when_there_is_nothing_to_play(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "log"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CommandError) as refused:
        run(str(path))
    assert refused.value.returncode == 2
    assert str(path) in str(refused.value)


def test_replay_names_file_and_line_when_a_scenario_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text('[scenario]\nname = "x"\nstarts_at = "soon"\n')
    with pytest.raises(
        CommandError, match=r"scenario.toml:1 \[scenario\]: starts_at = 'soon': expected a time"
    ):
        run(str(tmp_path))
