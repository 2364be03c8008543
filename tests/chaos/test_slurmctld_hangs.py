"""A real slurmctld that is stopped in its tracks: what waits for it waits, and everything else goes
on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.cluster.control import read_state
from tests.services.ports import wait_until
from tests.services.site import ClusterSite

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged", "redis-server", "postgres"),
    pytest.mark.timeout(300),
]
# A vendor case that has stood for a year.
_PREPARE = """
from datetime import timedelta
from django.utils import timezone
from incidents.models import Incident, VendorCase
now = timezone.now()
incident = Incident.objects.order_by("pk").first()
VendorCase.objects.create(incident=incident, part="gpu", resource=incident.root_resource,
    state="opened", opened_at=now - timedelta(days=365), since_at=now - timedelta(days=365))
"""


@pytest.fixture
def site() -> Iterator[ClusterSite]:
    house = ClusterSite(KINTSUGI_SWEEP_EVERY="1s").start()
    yield house
    house.remove()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_reminders_ingest_sweeps_and_polls_go_on_while_slurmctld_hangs(site: ClusterSite) -> None:
    def value(sql: str, *values: Any) -> Any:
        rows = site.query(sql, *values)
        return rows[0][0] if rows else None

    def has_opened(node: str) -> bool:
        return bool(value("select id from incidents_incident where owner = %s", f"node/{node}"))

    latest_poll = "select max(polled_at) from incidents_pollchunk where kind = 'node'"
    wait_until(lambda: value(latest_poll), within_s=60, what="a first poll of nodes")
    site.inject("gpu_lost", "gn017/gpu/3")
    wait_until(lambda: has_opened("gn017"), within_s=60, what="an incident")
    conf = Path(read_state(site.home)["slurm_conf"])
    with stopped(int((conf.parent / "slurmctld.pid").read_text())):
        waiting = "select count(*) from incidents_periodictask where leased_until > now()"
        wait_until(lambda: value(waiting) > 0, within_s=90, what="a task that waits for Slurm")
        site.manage("shell", "-c", _PREPARE)
        hangs_since = value("select now()")
        reminded = "select id from incidents_notification where reason = 'vendor_late'"
        wait_until(lambda: value(reminded), within_s=60, what="the reminder of a vendor case")
        site.inject("gpu_lost", "gn018/gpu/3")
        wait_until(lambda: has_opened("gn018"), within_s=60, what="an incident of another node")
        polled_at = value(latest_poll)
        wait_until(lambda: value(latest_poll) > polled_at, within_s=120, what="further polls")
        # A task that waits gives up at its time limit and begins anew, so that at a given moment
        # none may be waiting. What stays true is that none of them was answered.
        answered = "select count(*) from incidents_jobsource where answered_at > %s"
        assert value(answered, hangs_since) == 0, "slurmctld has answered: nothing was shown"
    wait_until(
        lambda: value(answered, hangs_since),
        within_s=120,
        what="an answer of the slurmctld that goes on",
    )
