"""What the operator allows, and until when a run is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from incidents.vocabulary.lifecycle import CLOSED, State
from kintsugi.configuration import config
from runbooks.guards.policy import Policy
from runbooks.lease import withdrawal_reasons


@pytest.mark.parametrize("state", list(State))
def test_run_goes_on_only_while_its_incident_wants_it(state: State) -> None:
    verdict = withdrawal_reasons.evaluate(state)
    wants = state in (State.OPEN, State.ACKNOWLEDGED, State.REPAIRING)
    assert isinstance(verdict, withdrawal_reasons.GoOn) == wants
    if state in CLOSED:
        assert isinstance(verdict, withdrawal_reasons.Withdraw)
        assert verdict.hands_back


def test_policy_comes_from_the_settings(tmp_path: Path) -> None:
    values = config.load(
        {"KINTSUGI_DATA_DIR": str(tmp_path), "KINTSUGI_VERIFY_COMMAND": "dcgmi diag -r 2"}
    )
    policy = Policy.from_settings(values)
    assert policy.verify_command == ("dcgmi", "diag", "-r", "2")
    assert policy.stop_file == tmp_path / "stop"
    assert policy.cluster_name == ""
    assert not policy.requeue_dead_jobs
