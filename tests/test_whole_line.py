"""The main job as a site runs it: real Slurm, real PostgreSQL, real Redis, a process for each part
of Kintsugi."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.services.ports import wait_until
from tests.services.site import ClusterSite

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged", "redis-server", "postgres"),
    pytest.mark.timeout(240),
]
NODE = "gn017"


def _incident(site: ClusterSite, owner: str) -> tuple[str, str, str] | None:
    rows = site.query(
        "select state, recovery, needs_human from incidents_incident where owner = %s", owner
    )
    assert len(rows) <= 1
    return rows[0] if rows else None


@pytest.fixture(scope="module")
def site() -> Iterator[ClusterSite]:
    """A site whose node has lost a GPU, and has been repaired without a person."""
    house = ClusterSite().start()
    try:
        house.inject("gpu_lost", f"{NODE}/gpu/3")
        wait_until(lambda: _is_resolved(house), within_s=120, what="the resolved incident")
        yield house
    finally:
        house.remove()


def _is_resolved(site: ClusterSite) -> bool:
    found = _incident(site, f"node/{NODE}")
    assert found is None or not found[2], f"a person is asked: {found}"
    return found is not None and found[0] == "resolved"


def test_a_gpu_off_the_bus_ends_with_its_node_verified_and_back_in_service(
    site: ClusterSite,
) -> None:
    found = _incident(site, f"node/{NODE}")
    assert found is not None
    assert found[1] == "node_restart"
    shown = site.slurm("scontrol", "show", "node", NODE)
    assert re.search(r"State=(IDLE|MIXED|ALLOCATED)\b(?!\+DRAIN)", shown), shown
    steps = [
        row[0]
        for row in site.query(
            "select name from runbooks_steprun where outcome = 'done' order by id"
        )
    ]
    assert steps.index("drain") < steps.index("reboot") < steps.index("resume")


def test_slurmctld_itself_saw_one_drain_one_reboot_and_one_resume_of_that_node_alone(
    site: ClusterSite,
) -> None:
    log = site.slurmctld_log()
    touched = set(re.findall(r"update_node: node (\S+) (?:reason|state) set", log))
    assert touched == {NODE}
    assert len(re.findall(rf"update_node: node {NODE} state set to DRAIN", log)) == 1
    assert len(re.findall(rf"reboot request queued for nodes {NODE}", log)) == 1
