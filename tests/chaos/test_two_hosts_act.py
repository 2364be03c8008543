"""Two management machines that act on one real Slurm: the one that drains is cut off from the
database in mid-command, and the other goes on with its run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmOptions
from tests.chaos.hosts import OF_DATABASE, OF_OTHERS, Host, Pair, two_hosts
from tests.runbooks.site import CLUSTER
from tests.services.ports import wait_until
from tests.services.sshd import Sshd

pytestmark = [
    pytest.mark.needs("ip", "unshare", "redis-server", "postgres", "initdb"),
    pytest.mark.needs("slurmctld", "slurmd", "munged", "sshd", "ssh-keygen"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes networks"),
    pytest.mark.timeout(1800),
]
ILL = ("gn001", "gn002", "gn003")
# One stays well: the floor of a pod keeps a node in service.
NODES = (*ILL, "gn004")
DRAINED = "update_node: node {node} state set to DRAIN"
# All nodes are repaired at once: what is tested is the cut, not the limits.
SETTINGS = {
    "KINTSUGI_CLUSTER_NAME": CLUSTER,
    "KINTSUGI_SWEEP_EVERY": "1s",
    "KINTSUGI_POLL_EVERY": "1h",
    "KINTSUGI_CAP_NODES": "100",
    "KINTSUGI_CAP_SHARE": "100%",
    "KINTSUGI_POD_FLOOR": "1%",
    "KINTSUGI_RATE_PER_HOUR": "1000",
    "KINTSUGI_BREAKER_SHARE": "100%",
    "KINTSUGI_APPROVAL_ABOVE": "1000",
}
# What a machine asks Slurm is kept, with its address. The first drain waits for `go`.
COMMAND = """#!/bin/sh
client=${{SSH_CONNECTION%% *}}
echo "$client $SSH_ORIGINAL_COMMAND" >>'{home}/asked'
case "$SSH_ORIGINAL_COMMAND" in
*State=DRAIN*)
    if mkdir '{home}/held' 2>/dev/null; then
        echo "$client" >'{home}/holder'
        while [ ! -e '{home}/go' ]; do sleep 0.1; done
    fi ;;
esac
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""
# Reservations are followed once a minute by whichever machine comes first.
FOLLOW, FOLLOWS_EVERY_S = "show reservation", 60 * 0.95


@dataclass
class House:
    pair: Pair
    daemons: SlurmDaemons
    home: Path

    def count_drains(self, node: str) -> int:
        """How often slurmctld says that it drained that node."""
        line = DRAINED.format(node=node)
        return sum(line in one for one in self.daemons.log.read_text().splitlines())

    def are_all_drained(self) -> bool:
        """Every run has its drain behind it, and looks at its node, which nobody reaches."""
        looking = "SELECT count(DISTINCT run_id) FROM runbooks_steprun WHERE name = %s"
        return bool(self.pair.ask(looking, "confirm_on_node") == len(ILL))

    def holder(self) -> Host | None:
        """The machine whose drain is held."""
        path = self.home / "holder"
        address = path.read_text().strip() if path.exists() else ""
        return next((host for host in self.pair.hosts if host.address == address), None)

    def follows(self) -> list[str]:
        lines = (self.home / "asked").read_text().splitlines()
        return [line for line in lines if FOLLOW in line]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    directory = tmp_path / "slurm"
    directory.mkdir()
    options = SlurmOptions(gpus_per_node=2, boot_takes=timedelta(seconds=2))
    with ExitStack() as running:
        slurm = SlurmDaemons(directory, nodes=NODES, cluster_name=CLUSTER, options=options)
        daemons = running.enter_context(slurm)
        sshd = Sshd(SetEnv=f'PATH="{os.environ["PATH"]}"', ListenAddress="0.0.0.0")
        running.callback(sshd.remove)
        program = sshd.home / "command"
        program.write_text(COMMAND.format(home=sshd.home))
        program.chmod(0o755)
        sshd.settings["ForceCommand"] = str(program)
        sshd.start()
        host_key = " ".join((sshd.home / "host.pub").read_text().split()[:2])
        known_hosts = sshd.home / "known_hosts_of_both"
        known_hosts.write_text(f"[{OF_OTHERS}]:{sshd.port} {host_key}\n")
        access = {
            "KINTSUGI_SLURM": f"ssh:{sshd.user}@{OF_OTHERS}:{sshd.port}",
            "KINTSUGI_SLURM_CONF": str(daemons.conf),
            "KINTSUGI_SSH_USER": sshd.user,
            "KINTSUGI_SSH_KEY": str(sshd.key_file),
            "KINTSUGI_SSH_KNOWN_HOSTS": str(known_hosts),
        }
        pair = running.enter_context(two_hosts(tmp_path, SETTINGS | access))
        # Nobody listens there: what is told of a node cannot be confirmed, and it stays drained.
        where = [f"{node}=127.0.0.1:9" for node in NODES]
        pair.hosts[0].run("-m", "tests.chaos.prepare", *where)
        yield House(pair, daemons, sshd.home)


def test_an_act_is_made_once_when_the_machine_that_makes_it_is_cut_from_the_database(
    house: House,
) -> None:
    pair = house.pair
    began_at = pair.ask("SELECT now()")
    pair.start_parts(runbook=True)
    wait_until(house.holder, within_s=120, what="the first drain is asked for")
    cut = house.holder()
    assert cut is not None
    with cut.cut_from(OF_DATABASE):
        (house.home / "go").touch()
        wait_until(house.are_all_drained, within_s=240, what="the other goes on with every run")
    follows = len(house.follows())
    # Two lookers would be seen by then.
    wait_until(lambda: len(house.follows()) > follows + 1, within_s=300, what="two more looks")
    lasted = pair.ask("SELECT now() - %s", began_at)
    assert {node: house.count_drains(node) for node in ILL} == dict.fromkeys(ILL, 1)
    unknown = "SELECT count(*) FROM runbooks_steprun WHERE outcome = 'attempted'"
    assert pair.ask(unknown) == 0
    assert len(house.follows()) <= lasted.total_seconds() / FOLLOWS_EVERY_S + 1
    asked = {line.split()[0] for line in (house.home / "asked").read_text().splitlines()}
    assert asked == {host.address for host in pair.hosts}
