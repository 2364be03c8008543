"""The network to Slurm's machine cut in mid-command: the act is made once, and its run goes on by
itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from detectors.detector import OneByOne, Output, Target
from detectors.transports.ssh import SshShell
from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmOptions
from incidents.models import Incident
from runbooks import services
from runbooks.models import Run, RunState, StepRun
from runbooks.slurm.client import ScontrolWriter, parse_controller
from tests.chaos.relay import Relay
from tests.runbooks.real_site import RealSite
from tests.runbooks.site import CLUSTER, Site
from tests.services.patience import patient
from tests.services.ports import wait_until
from tests.services.sshd import Sshd

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged", "sshd", "ssh-keygen"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("database_on_disk"),
    pytest.mark.timeout(180),
]
# Each act: the words of its command, and its line in slurmctld's log.
ACTS = {
    "drain": ("State=DRAIN", "update_node: node {node} state set to DRAIN"),
    "reboot": ("scontrol reboot", "reboot request queued for nodes {node}"),
    "resume": ("State=RESUME", "update_node: node {node} state set to IDLE"),
}
CASES = [
    (act, moment) for act in ACTS for moment in ("before it is asked for", "before its answer")
]
NODES = tuple(f"gn{number:03d}" for number in range(1, len(CASES) + 1))
# A command that holds the words in `held` is run, and its answer never leaves the machine.
HOLD = """#!/bin/sh
held=$(cat '{home}/held' 2>/dev/null)
case "$SSH_ORIGINAL_COMMAND" in
*"${{held:-nothing is held}}"*)
    rm '{home}/held'
    sh -c "$SSH_ORIGINAL_COMMAND" >'{home}/answer' 2>&1
    touch '{home}/done'
    read -r _
    exit 1 ;;
esac
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""


@dataclass
class CutShell(OneByOne):
    """SSH through the relay, which is cut right before a command with the words `before` is
    sent."""

    ssh: SshShell
    relay: Relay
    before: str = ""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        line = " ".join(argv)
        if self.before and self.before in line:
            self.before = ""
            self.relay.cut()
        return self.ssh.run(target, argv, timeout)


@dataclass
class House:
    """A small Slurm, and the sshd of its machine behind the relay."""

    daemons: SlurmDaemons
    sshd: Sshd
    relay: Relay
    shell: CutShell

    def begin(self, node: str) -> tuple[RealSite, Run, Incident]:
        """Once the one before is in service: just after a resume a node does not answer for a
        moment."""
        self.daemons.wait_until(self.all_serve, what="all nodes serve")
        site = RealSite(
            self.daemons.conf, self.daemons.directory / "boots", (node,), lost=(f"{node}/gpu/0",)
        )
        where = parse_controller(f"ssh:127.0.0.1:{self.relay.port}")
        slurm = ScontrolWriter(self.shell, where, cluster_name=CLUSTER, conf=str(self.daemons.conf))
        site.world = replace(site.world, slurm=slurm, writer=slurm)
        tables = Site(nodes=0)
        tables.now = site.now()
        tables.add_node(node)
        incident = tables.raise_fault(node, resource=f"node/{node}/gpu/0000:19:00.0")
        services.start_due([incident.pk], now=site.now(), world=site.world)
        return site, Run.objects.get(incident=incident), incident

    def all_serve(self) -> bool:
        shown = self.daemons.command("sinfo", "--noheader", "--Node", "--format=%t").split()
        return set(shown) == {"idle"}

    def cut_at(self, words: str, moment: str) -> Callable[[], None]:
        """Arms the cut; what is returned waits until it has come."""
        if moment == "before it is asked for":
            self.shell.before = words
            return lambda: None
        (self.sshd.home / "done").unlink(missing_ok=True)
        (self.sshd.home / "held").write_text(words)
        watch = threading.Thread(target=self._cut_when_done, daemon=True)
        watch.start()
        return lambda: watch.join(patient(30))

    def _cut_when_done(self) -> None:
        wait_until((self.sshd.home / "done").exists, within_s=30, what="the command has run")
        self.relay.cut()

    def told(self, act: str, node: str) -> int:
        """How often slurmctld says that it did that."""
        line = ACTS[act][1].format(node=node)
        return sum(line in one for one in self.daemons.log.read_text().splitlines())


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    directory = tmp_path_factory.mktemp("slurm")
    hook = directory / "hook"
    hook.write_text(f'#!/bin/sh\necho "$1" >> "{directory}/boots"\n')
    hook.chmod(0o755)
    options = SlurmOptions(gpus_per_node=2, reboot_hook=(str(hook),))
    with ExitStack() as running:
        # The same Slurm as this process finds.
        sshd = Sshd(SetEnv=f'PATH="{os.environ["PATH"]}"')
        running.callback(sshd.remove)
        program = sshd.home / "hold"
        program.write_text(HOLD.format(home=sshd.home))
        program.chmod(0o755)
        sshd.settings["ForceCommand"] = str(program)
        sshd.start()
        relay = Relay(sshd.port)
        running.callback(relay.stop)
        host_key = " ".join((sshd.home / "host.pub").read_text().split()[:2])
        known_hosts = Path(sshd.home) / "known_hosts_of_the_relay"
        known_hosts.write_text(f"[127.0.0.1]:{relay.port} {host_key}\n")
        ssh = SshShell(user=sshd.user, key_file=sshd.key_file, known_hosts=known_hosts)
        running.callback(ssh.close)
        daemons = running.enter_context(
            SlurmDaemons(directory, nodes=NODES, cluster_name=CLUSTER, options=options)
        )
        yield House(daemons, sshd, relay, CutShell(ssh, relay))


@pytest.mark.parametrize(
    ("node", "act", "moment"), [(node, *case) for node, case in zip(NODES, CASES, strict=True)]
)
def test_an_act_is_made_once_when_the_network_is_cut(
    house: House, node: str, act: str, moment: str
) -> None:
    site, run, incident = house.begin(node)
    site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == act)
    cuts, join = house.relay.cuts, house.cut_at(ACTS[act][0], moment)
    site.play_until(
        run.pk, lambda run: house.relay.cuts > cuts and "Kintsugi looks again" in run.waiting_for
    )
    join()
    # Its attempt is stored and its outcome is not known; Slurm was told, or it was not.
    assert run.steps.get(name=act).outcome == StepRun.Outcome.ATTEMPTED
    assert house.told(act, node) == (1 if moment == "before its answer" else 0)
    # While nobody gets through, nothing is asked for again.
    site.advance(run.pk)
    assert "Kintsugi looks again" in Run.objects.get(pk=run.pk).waiting_for
    house.relay.mend()
    site.ahead = timedelta(seconds=70)
    ended = site.play(run.pk)
    story = list(incident.timeline.values_list("text", flat=True))
    assert ended.state == RunState.SUCCEEDED, (ended.outcome, story)
    assert {name: house.told(name, node) for name in ACTS} == dict.fromkeys(ACTS, 1)
    assert not run.steps.filter(outcome=StepRun.Outcome.ATTEMPTED).exists()
    assert Incident.objects.get(pk=incident.pk).needs_human == ""
