"""The runbook from fault to quiet period, on a site in memory."""

from __future__ import annotations

import pytest

from incidents.lifecycle import State
from runbooks.models import RunState
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


def test_node_is_drained_rebooted_verified_and_resumed_when_its_gpu_is_lost() -> None:
    site = Site()
    incident = site.lose_gpu()
    run = site.play(site.begin(incident))
    incident.refresh_from_db()
    assert run.state == RunState.SUCCEEDED
    assert [act[0] for act in site.slurm.journal] == ["drain", "reboot", "resume"]
    assert incident.state == State.MONITORING
    assert incident.recovery == "node_restart"
    assert site.slurm.nodes(("gn001",))["gn001"].is_out is False
