"""Which incident a node is held for stands in its comment: in one update with the drain, and never in
the place of a person's words. In memory, through the stand-in's programs, and on a real Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from detectors.detector import OneByOne, Output, Shell, Target
from detectors.transports.ssh import LocalShell
from fixtures.cluster.slurm_daemons import SlurmDaemons
from fixtures.memory_slurm import MemorySlurm
from fixtures.memory_slurm_commands import CommandShell
from runbooks.slurm import node_comments
from runbooks.slurm.client import ScontrolWriter, parse_controller
from tests.builders import NOW
from tests.runbooks.conftest import CLUSTER

_HOST = parse_controller("local")
_AT = "https://kintsugi.example.org/incidents/"
_OURS = "kintsugi: incident 7, https://kintsugi.example.org/incidents/7/"
_REASON = "kintsugi:7/1a2b-3c gpu.xid.79: GPU has fallen off the bus"


class Counting(OneByOne):
    """A shell that keeps what it ran."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self.ran: list[tuple[str, ...]] = []

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        self.ran.append(argv)
        return self._shell.run(target, argv, timeout)

    def count_updates(self) -> int:
        return sum("update" in argv for argv in self.ran)


class Noted:
    """A node, a writer that leaves comments, one that does not, and what a person would type."""

    def __init__(self, shell: Shell, node: str, conf: str = "") -> None:
        self.shell, self.node = Counting(shell), node
        self.writer = self._make_writer(conf, incidents_at=_AT)
        self.without = self._make_writer(conf, incidents_at="")
        self._environment = ("env", f"SLURM_CONF={conf}") if conf else ()

    def _make_writer(self, conf: str, incidents_at: str) -> ScontrolWriter:
        return ScontrolWriter(
            self.shell, _HOST, cluster_name=CLUSTER, conf=conf, incidents_at=incidents_at
        )

    @property
    def comment(self) -> str:
        return self.writer.read_nodes((self.node,))[self.node].comment

    def type(self, comment: str) -> None:
        words = ("scontrol", "update", f"NodeName={self.node}", f"Comment={comment}")
        self.shell.run(_HOST, (*self._environment, *words), timedelta(seconds=30))


@pytest.fixture(
    params=["commands", pytest.param("real", marks=pytest.mark.needs("slurmctld", "slurmd"))]
)
def noted(request: pytest.FixtureRequest) -> Iterator[Noted]:
    if request.param == "real":
        daemons: SlurmDaemons = request.getfixturevalue("slurm_daemons")
        take_node: Callable[[], str] = request.getfixturevalue("take_node")
        yield Noted(LocalShell(), take_node(), str(daemons.conf))
        return
    memory = MemorySlurm({"gn001": ["gpu"]}, cluster_name=CLUSTER, now=lambda: NOW)
    yield Noted(CommandShell(memory), "gn001")


def test_a_drain_names_the_incident_in_the_same_update_and_a_resume_takes_it_away(
    noted: Noted,
) -> None:
    noted.writer.drain(noted.node, _REASON)
    assert noted.comment == _OURS
    assert noted.shell.count_updates() == 1
    programs = len(noted.shell.ran)
    noted.without.drain(noted.node, _REASON)
    assert len(noted.shell.ran) - programs == programs - 1  # but for the look of this test
    noted.writer.resume(noted.node)
    assert noted.comment == ""
    assert noted.shell.count_updates() == 3


def test_a_persons_comment_is_never_written_over(noted: Noted) -> None:
    noted.type("bob: PSU 2 on order")
    noted.writer.drain(noted.node, _REASON)
    assert noted.comment == "bob: PSU 2 on order"
    noted.writer.resume(noted.node)
    noted.writer.remove_comment(noted.node)
    assert noted.comment == "bob: PSU 2 on order"
    noted.type("")


def test_what_a_person_has_added_to_ours_stays(noted: Noted) -> None:
    noted.writer.drain(noted.node, _REASON)
    noted.type(f"{_OURS} -- bob: RMA ordered")
    noted.writer.drain(noted.node, _REASON.replace("kintsugi:7", "kintsugi:8"))
    noted.writer.resume(noted.node)
    assert noted.comment == f"{_OURS} -- bob: RMA ordered"
    noted.type("")


def test_the_next_incident_takes_the_place_of_ours(noted: Noted) -> None:
    noted.writer.drain(noted.node, _REASON)
    noted.writer.drain(noted.node, _REASON.replace("kintsugi:7", "kintsugi:8"))
    assert noted.comment == _OURS.replace("7", "8")
    noted.writer.resume(noted.node)


def test_a_drain_that_is_handed_to_people_names_no_incident_of_ours(noted: Noted) -> None:
    noted.writer.drain(noted.node, _REASON)
    noted.writer.drain(noted.node, "left to people by Kintsugi (ada): incident #7, GPU lost")
    assert noted.comment == ""
    noted.writer.resume(noted.node)


def test_ours_is_removed_where_somebody_else_has_the_node(noted: Noted) -> None:
    noted.writer.drain(noted.node, _REASON)
    noted.writer.remove_comment(noted.node)
    state = noted.writer.read_nodes((noted.node,))[noted.node]
    assert (state.comment, state.reason, state.is_draining) == ("", _REASON, True)
    updates = noted.shell.count_updates()
    noted.writer.remove_comment(noted.node)
    assert noted.shell.count_updates() == updates
    noted.writer.resume(noted.node)


def test_a_site_that_wants_no_comments_has_none_and_loses_ours(noted: Noted) -> None:
    noted.without.drain(noted.node, _REASON)
    assert noted.comment == ""
    noted.writer.drain(noted.node, _REASON)
    noted.without.resume(noted.node)
    assert noted.comment == ""


@pytest.mark.parametrize(
    ("version", "is_given"), [("20.11.9", False), ("22.05.8", True), ("26.05.1", True), ("", False)]
)
def test_a_slurm_that_might_refuse_the_whole_update_is_given_none(
    version: str, is_given: bool
) -> None:
    memory = MemorySlurm({"gn001": ["gpu"]}, cluster_name=CLUSTER, now=lambda: NOW)
    state = memory.read_nodes(("gn001",))["gn001"]
    words = node_comments.get_words(state, _REASON, _AT, {"SLURM_VERSION": version})
    assert words == ((f"Comment={_OURS}",) if is_given else ())
