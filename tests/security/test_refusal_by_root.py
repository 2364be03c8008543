"""A node's own root may refuse: what /etc/kintsugi/never on the node keeps Kintsugi from doing
there."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from detectors.detector import Output, Target, Unreachable
from detectors.transports.local import LocalShell
from incidents.models import Incident, Spare
from incidents.reserve import spares
from runbooks import spare_swaps
from runbooks.library import library
from runbooks.models import CureAttempt, Mode, Run, RunState, StepRun
from runbooks.node import looking
from runbooks.node.looking import NoAnswer, NodeRefusal
from runbooks.power.protocol import PowerState
from runbooks.steps.cold_cycle import ColdCycle
from tests.runbooks.site import Site

NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="makes a folder of another user")
HERE = Target("here", "here")
NODE = "gn001"
HOUR = timedelta(hours=1)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stands for /etc/kintsugi/never; its folder is there, and anybody may look beside it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        path = Path(name) / "kintsugi" / "never"
        path.parent.mkdir()
        monkeypatch.setattr(looking, "NEVER_FILE", str(path))
        yield path


def read_here() -> NodeRefusal | NoAnswer | None:
    return looking.read_refusal(LocalShell(), HERE)


def test_without_the_file_kintsugi_may_act(never: Path) -> None:
    assert read_here() is None
    never.parent.rmdir()
    assert read_here() is None


@pytest.mark.parametrize("kind", ["empty", "text", "link to nothing", "folder", "pipe", "bytes"])
def test_the_file_refuses_whatever_it_is(never: Path, kind: str) -> None:
    make: dict[str, Callable[[], object]] = {
        "empty": never.touch,
        "text": lambda: never.write_text("under test by Mai\nuntil Friday\n"),
        "link to nothing": lambda: never.symlink_to("nowhere"),
        "folder": never.mkdir,
        "pipe": lambda: os.mkfifo(never),
        "bytes": lambda: never.write_bytes(b"\xff\x1b]0;x\x07" + b"z" * 70_000),
    }
    make[kind]()
    answer = read_here()
    assert isinstance(answer, NodeRefusal)
    assert answer.reason.isprintable()
    assert len(answer.reason) < 400
    assert (kind != "text") or "under test by Mai until Friday" in answer.reason


@NEEDS_ROOT
def test_a_folder_that_our_user_may_not_enter_is_not_taken_for_absence(never: Path) -> None:
    never.parent.chmod(0o700)

    class AsNobody(LocalShell):
        def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
            command = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *argv)
            done = subprocess.run(command, capture_output=True, check=False, timeout=20)
            return Output(done.returncode, done.stdout, done.stderr, timedelta(0))

    answer = looking.read_refusal(AsNobody(), HERE)
    assert answer == NodeRefusal(
        f"Kintsugi's user may not look into the folder of {looking.NEVER_FILE}"
    )


class Answering(LocalShell):
    """A node that answers the question with these bytes."""

    def __init__(self, status: int | None, stdout: bytes) -> None:
        self.status, self.stdout = status, stdout

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return Output(self.status, self.stdout, b"", timedelta(0))


def test_an_answer_that_is_none_refuses_and_one_that_never_ends_is_none() -> None:
    assert isinstance(looking.read_refusal(Answering(127, b""), HERE), NodeRefusal)
    assert isinstance(looking.read_refusal(Answering(0, b"welcome\n"), HERE), NodeRefusal)
    assert isinstance(looking.read_refusal(Answering(None, b"wel"), HERE), NoAnswer)
    begun = b"kintsugi-never: refused\nby hand"
    assert isinstance(looking.read_refusal(Answering(None, begun), HERE), NodeRefusal)
    noisy = b"Welcome to gn001\n\nkintsugi-never: absent\n"
    assert looking.read_refusal(Answering(0, noisy), HERE) is None


def refuse(site: Site, text: str = "under test by Mai") -> None:
    site.nodes.nodes[NODE].never = text


def get_acts(site: Site) -> tuple[bool, int, int, list[tuple[str, str]]]:
    """Whether it is drained, how often it was rebooted and its GPUs were reset, its power."""
    is_draining = site.slurm.read_nodes((NODE,))[NODE].is_draining
    resets = sum(gpu.resets for gpu in site.nodes.nodes[NODE].gpus)
    return is_draining, site.slurm.reboots(NODE), resets, list(site.power.journal)


@pytest.mark.django_db
def test_nothing_is_begun_on_a_node_whose_root_refuses() -> None:
    site = Site(nodes=5)
    refuse(site)
    run = site.play(site.begin(site.lose_gpu(NODE)), limit=HOUR)
    assert run.state == RunState.FAILED
    assert get_acts(site) == (False, 0, 0, [])
    incident = Incident.objects.get()
    assert f"The root of {NODE} refuses" in run.outcome
    assert "under test by Mai" in run.outcome
    assert f"remove {looking.NEVER_FILE}" in incident.needs_human
    site.now += HOUR
    assert site.start() == []
    assert not CureAttempt.objects.exists()


@pytest.mark.django_db
def test_a_refusal_that_comes_later_stops_before_the_next_act() -> None:
    site = Site(nodes=5)
    run = site.begin(site.lose_gpu(NODE))
    site.play(run, until=lambda run: run.plan[run.step]["step"] == "reboot", limit=HOUR)
    refuse(site)
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.FAILED
    assert get_acts(site) == (True, 0, 0, [])
    assert not run.steps.filter(name="reboot", outcome=StepRun.Outcome.ATTEMPTED).exists()


def begin_cold_cycle(site: Site, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that cycles the power of a node whose GPU is dead. Who gives leave is tested with
    approvals; here it is given."""
    monkeypatch.setattr(ColdCycle, "needs_approval", False)
    site.nodes.inject("gpu_dead", f"{NODE}/gpu/0")
    run = site.begin(site.raise_fault(NODE))
    names = ("drain", "wait_for_jobs", "cold_cycle", "wait_for_boot")
    run.plan = [library.plan_step(name, {}).as_row() for name in names]
    run.save()
    return run


@pytest.mark.django_db
def test_no_gpu_is_reset() -> None:
    site = Site(nodes=5, mode=Mode.OFF)
    site.set_mode(Mode.ARMED, "gpu_reset")
    site.nodes.inject("gpu_ecc_uncorrectable", f"{NODE}/gpu/0")
    run = site.begin(site.raise_fault(NODE, fault_type="gpu.xid.48"))
    site.play(run, until=lambda run: run.plan[run.step]["step"] == "reset_gpu", limit=HOUR)
    assert run.finished_at is None
    refuse(site)
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.FAILED
    assert get_acts(site) == (True, 0, 0, [])


@pytest.mark.django_db
def test_no_power_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(nodes=5)
    run = begin_cold_cycle(site, monkeypatch)
    site.play(run, until=lambda run: run.plan[run.step]["step"] == "cold_cycle", limit=HOUR)
    refuse(site)
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.FAILED
    assert get_acts(site) == (True, 0, 0, [])


@pytest.mark.django_db
def test_power_that_was_switched_off_is_switched_on_whoever_refuses_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(nodes=5)
    run = begin_cold_cycle(site, monkeypatch)
    site.play(run, until=lambda run: "seen_off_at" in run.facts, limit=HOUR)
    refuse(site)
    site.play(run, limit=HOUR)
    assert site.power.journal == [("off", NODE), ("on", NODE)]
    assert site.power.read_state(Target(NODE, NODE)) is PowerState.ON


@pytest.mark.django_db
def test_a_node_that_nobody_can_ask_is_drained_as_before() -> None:
    site = Site(nodes=5)
    site.shell.silent.add(NODE)
    run = site.begin(site.lose_gpu(NODE))
    site.advance(run)
    assert site.slurm.read_nodes((NODE,))[NODE].is_draining


def test_whether_the_root_of_a_node_out_of_reach_refuses_is_not_known() -> None:
    class Cut(LocalShell):
        def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
            raise Unreachable("no route to host")

    assert looking.read_refusal(Cut(), HERE) == NoAnswer("no route to host")


def a_swap(site: Site, *ways: str) -> Run:
    """A run that swaps a spare for the node, and nothing else."""
    for spare in ("gn003", "gn004"):
        kept = spares.add(spare, partitions=["gpu"], is_reserved=False, now=site.now)
        assert isinstance(kept, Spare)
        spare_swaps.keep_free(kept, site.slurm, site.now)
    run = site.begin(site.raise_fault(NODE))
    steps = [("drain", {}), *(("swap_hot_spare", {"way": way}) for way in ways)]
    plan = [library.plan_step(name, params) for name, params in steps]
    run.plan = [planned.as_row() for planned in (*plan, library.plan_step("wait_for_jobs", {}))]
    run.save()
    return run


@pytest.mark.django_db
def test_a_spare_whose_root_refuses_is_not_taken_and_the_next_one_is() -> None:
    site = Site(nodes=5)
    run = a_swap(site, "in")
    site.nodes.nodes["gn003"].never = "being tested"
    site.play(run, limit=HOUR)
    partition = site.slurm.read_partitions()["gpu"]
    assert ("gn003" in partition, "gn004" in partition) == (False, True)


@pytest.mark.django_db
def test_without_a_spare_that_may_be_taken_the_repair_goes_on_and_says_who_refuses() -> None:
    site = Site(nodes=5)
    run = a_swap(site, "in")
    for spare in ("gn003", "gn004"):
        site.nodes.nodes[spare].never = "being tested"
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.SUCCEEDED
    assert any("the root of gn003, gn004 refuses" in text for text in site.story(run.incident))


@pytest.mark.django_db
def test_a_spare_whose_root_refuses_is_not_taken_back_before_it_lets_us() -> None:
    site = Site(nodes=5)
    run = a_swap(site, "in", "out")
    site.play(run, until=lambda run: run.step == 2)
    site.nodes.nodes["gn003"].never = "runs a course"
    run = site.play(run, limit=timedelta(minutes=5))
    assert "gn003" in site.slurm.read_partitions()["gpu"]
    assert "The root of the spare gn003 refuses" in run.waiting_for
    site.nodes.nodes["gn003"].never = None
    run = site.play(run, limit=HOUR)
    assert "gn003" not in site.slurm.read_partitions()["gpu"]
    assert run.state == RunState.SUCCEEDED
