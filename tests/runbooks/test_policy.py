"""Which fault calls for which runbook, and what the library holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from detectors.faults import Action, Component
from incidents.lifecycle import CLOSED, State
from kintsugi import config
from runbooks import library, withdrawing
from runbooks.policy import DRAIN_AND_ASK, DRAIN_REBOOT_VERIFY, RUNBOOK_FOR, NoRunbook, Policy, choose


@pytest.mark.parametrize(
    ("action", "runbook"),
    [
        (Action.NONE, None),
        (Action.RESTART_APP, None),
        (Action.WATCH, None),
        (Action.CHECK_CABLE, None),
        (Action.RESET_GPU, DRAIN_REBOOT_VERIFY),
        (Action.REBOOT, DRAIN_REBOOT_VERIFY),
        (Action.COLD_CYCLE, DRAIN_AND_ASK),
        (Action.VENDOR, DRAIN_AND_ASK),
    ],
)
def test_action_class_chooses_the_runbook(action: Action, runbook: str | None) -> None:
    chosen = choose(action, Component.GPU, is_node=True, is_provisional=False)
    assert chosen == runbook if runbook else isinstance(chosen, NoRunbook)


@pytest.mark.parametrize(
    "component", [c for c in Component if c not in (Component.GPU, Component.NVLINK, Component.NODE)]
)
def test_no_node_is_taken_away_for_a_switch_a_cable_or_a_report(component: Component) -> None:
    assert isinstance(choose(Action.REBOOT, component, is_node=True, is_provisional=False), NoRunbook)


def test_nothing_is_done_to_what_is_not_in_the_inventory() -> None:
    chosen = choose(Action.REBOOT, Component.GPU, is_node=True, is_provisional=True)
    assert isinstance(chosen, NoRunbook)
    assert "never acted upon" in chosen.reason


def test_every_runbook_that_the_policy_names_is_in_the_library() -> None:
    assert set(RUNBOOK_FOR.values()) <= set(library.load())


def test_drain_comes_first_and_resume_only_after_verify() -> None:
    for book in library.load().values():
        names = [step.name for step in book.steps]
        assert names[0] == "drain"
        if "resume" in names:
            assert names.index("verify") < names.index("resume")
        if "reboot" in names:
            assert names.index("confirm_on_node") < names.index("reboot")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('title = "x"\nsteps = ["drain"]', "needs title, meaning and steps"),
        ('title = "x"\nmeaning = "y"\nsteps = ["drain", "format_disk"]', "no step format_disk; there are ask_person"),
        ('title = "x"\nmeaning = "y"\nsteps = []', "no step"),
        ("title = ", "needs title, meaning and steps"),
    ],
)
def test_runbook_is_refused_with_file_and_reason_when_it_cannot_be(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(library.LibraryError, match=rf"mine\.toml: {complaint}"):
        library.read(path)


@pytest.mark.parametrize("state", list(State))
def test_run_goes_on_only_while_its_incident_wants_it(state: State) -> None:
    verdict = withdrawing.consider(state)
    wants = state in (State.OPEN, State.ACKNOWLEDGED, State.REPAIRING)
    assert isinstance(verdict, withdrawing.GoOn) == wants
    if state in CLOSED:
        assert isinstance(verdict, withdrawing.Withdraw)
        assert verdict.hands_back


def test_policy_comes_from_the_settings(tmp_path: Path) -> None:
    values = config.load({"KINTSUGI_DATA_DIR": str(tmp_path), "KINTSUGI_VERIFY_COMMAND": "dcgmi diag -r 2"})
    policy = Policy.from_settings(values)
    assert policy.verify_command == ("dcgmi", "diag", "-r", "2")
    assert policy.stop_file == tmp_path / "stop"
    assert policy.cluster_name == ""
    assert not policy.requeue_dead_jobs
