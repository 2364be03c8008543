"""Two management machines on one database and one Redis, each with every part: one loses its power
in mid-work, and the other goes on.

Each is a network and a host name of its own (namespaces). The dead one is cut off first and then
killed, so that neither PostgreSQL nor Redis hears a word of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
import psycopg
import pytest

from tests.services.patience import patient
from tests.services.ports import wait_until
from tests.services.postgres import Postgres
from tests.services.programs import spawn
from tests.services.redis import Redis

pytestmark = [
    pytest.mark.needs("ip", "unshare", "redis-server", "postgres", "initdb"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes networks"),
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).resolve().parents[2]
# Of this process: another one's may be there as well, or have been left behind.
BRIDGE = f"kin{os.getpid()}"
NETWORK = f"10.231.{os.getpid() % 250}"
OURS = f"{NETWORK}.1"
MAKE_NODES = """
from incidents.models import Node
names = [f"gn{number:03d}" for number in range(20)]
Node.objects.bulk_create(Node(name=name, address="127.0.0.1") for name in names)
"""
# A machine is told as silent after a minute; work goes on long before.
GOES_ON_WITHIN_S = 30
CELERY = (sys.executable, "-m", "celery", "-A", "kintsugi")
PARTS = {
    "ingest": (*CELERY, "worker", "-Q", "ingest,sweep,notify,slurm", "-c", "2", "-n", "ingest@%h"),
    "poll": (*CELERY, "worker", "-Q", "poll", "-P", "threads", "-c", "8", "-n", "poll@%h"),
    "beat": (*CELERY, "beat", "--pidfile="),
    "receiver": (sys.executable, "manage.py", "receive"),
    "web": (sys.executable, "-m", "waitress", "--listen=0.0.0.0:8000", "kintsugi.wsgi:application"),
}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class Host:
    """One machine: `mgmt-1` has the address 11 of the network."""

    number: int
    home: Path
    settings: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"mgmt-{self.number}"

    @property
    def wire(self) -> str:
        """The device that joins it to the bridge, and the name of its network."""
        return f"{BRIDGE}-{self.number}"

    @property
    def address(self) -> str:
        return f"{NETWORK}.1{self.number}"

    def plug_in(self) -> None:
        ip("netns", "add", self.wire)
        ip("link", "add", self.wire, "type", "veth", "peer", "name", "eth0", "netns", self.wire)
        ip("link", "set", self.wire, "master", BRIDGE, "up")
        ip("-n", self.wire, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", self.wire, "link", "set", device, "up")

    def start(self, *names: str) -> None:
        for name in names:
            with (self.home / f"{name}.log").open("ab") as log:
                started = spawn(
                    self._here(PARTS[name]),
                    cwd=ROOT,
                    env=os.environ | self.settings,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self.processes.append(started)

    def run(self, *argv: str) -> str:
        words = self._here((sys.executable, *argv))
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=os.environ | self.settings,
            capture_output=True,
            text=True,
            timeout=patient(60),
            check=True,
        )
        return done.stdout

    def _here(self, argv: tuple[str, ...]) -> list[str]:
        script = f'hostname {self.name}; exec "$@"'
        inside = ["unshare", "--uts", "sh", "-c", script, "sh", *argv]
        return ["ip", "netns", "exec", self.wire, *inside]

    def lose_power(self) -> None:
        with suppress(subprocess.CalledProcessError):
            ip("link", "set", self.wire, "down")
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(patient(10))
        self.processes.clear()

    def remove(self) -> None:
        self.lose_power()
        for words in (("netns", "delete", self.wire), ("link", "delete", self.wire)):
            with suppress(subprocess.CalledProcessError):
                ip(*words)


@dataclass
class Pair:
    """Both machines, and the third that has PostgreSQL and Redis."""

    hosts: tuple[Host, Host]
    url: str

    def ask(self, statement: str, *values: Any) -> Any:
        with psycopg.connect(self.url, connect_timeout=5) as connection:
            row = connection.execute(statement, values).fetchone()
            return row[0] if row else None

    def parts(self) -> set[tuple[str, str]]:
        """Host and part of all that said lately that they are alive."""
        with psycopg.connect(self.url) as connection:
            rows = connection.execute(
                "SELECT host, part FROM incidents_heartbeat WHERE seen_at > now() - interval '30s'"
            )
            return {(host, part) for host, part in rows}

    def polled_at(self) -> Any:
        return self.ask("SELECT max(polled_at) FROM incidents_pollchunk")

    def is_counted(self, node: str) -> bool:
        statement = "SELECT count(*) FROM incidents_fault WHERE owner = %s"
        return bool(self.ask(statement, f"node/{node}"))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    postgres = Postgres(is_durable=True, address=OURS)
    queue = Redis(address=OURS)
    hosts: list[Host] = []
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("address", "add", f"{OURS}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        postgres.start()
        queue.start()
        shared = {
            "DATABASE_URL": f"postgresql://kintsugi@{OURS}:{postgres.port}/postgres",
            "REDIS_URL": f"redis://{OURS}:{queue.port}/0",
            "KINTSUGI_SECRET_KEY": "the same on both machines, and long enough for Django",
            "KINTSUGI_ALLOWED_HOSTS": "*",
            "KINTSUGI_SYSLOG_LISTEN": "0.0.0.0:5514",
            "KINTSUGI_SYSLOG_NETWORKS": "10.0.0.0/8",
            "KINTSUGI_SLURM": "off",
            # Nobody listens there: each poll is one, and is refused.
            "KINTSUGI_SSH_USER": "kintsugi",
            "KINTSUGI_SSH_KEY": str(tmp_path / "key"),
            "KINTSUGI_SSH_KNOWN_HOSTS": str(tmp_path / "known_hosts"),
        }
        paramiko.ECDSAKey.generate().write_private_key_file(shared["KINTSUGI_SSH_KEY"])
        (tmp_path / "known_hosts").touch()
        for number in (1, 2):
            home = tmp_path / f"mgmt-{number}"
            home.mkdir()
            own = {"KINTSUGI_DATA_DIR": str(home / "data")}
            hosts.append(Host(number, home, shared | own))
            hosts[-1].plug_in()
        yield Pair((hosts[0], hosts[1]), postgres.url)
    finally:
        for host in hosts:
            host.remove()
        queue.remove()
        postgres.remove()
        with suppress(subprocess.CalledProcessError):
            ip("link", "delete", BRIDGE)


def xid(host: Host, node: str) -> None:
    """A lost GPU, sent to this machine's receiver from its neighbour's side of the wire."""
    line = (
        f"<4>{time.strftime('%b %e %H:%M:%S')} {node} kernel: NVRM: Xid (PCI:0000:19:00): 79, GPU"
    )
    send = (
        "import socket,sys;"
        f"s=socket.create_connection(({host.address!r},5514),10);"
        "s.sendall(sys.argv[1].encode()+bytes([10]));s.close()"
    )
    host.run("-c", send, line)


def test_one_machine_dies_and_the_other_goes_on_within_half_a_minute(pair: Pair) -> None:
    first, second = pair.hosts
    first.run("manage.py", "migrate", "--verbosity", "0")
    first.run("manage.py", "shell", "-c", MAKE_NODES)
    for host in pair.hosts:
        host.start(*PARTS)
    wanted = {
        (host.name, part)
        for host in pair.hosts
        for part in ("beat", "receiver", "web", "worker-poll", "worker-ingest-notify-slurm-sweep")
    }
    wait_until(lambda: wanted <= pair.parts(), within_s=120, what="all parts of both machines")
    xid(first, "gn001")
    xid(second, "gn002")
    for node in ("gn001", "gn002"):
        wait_until(lambda: pair.is_counted(node), within_s=30, what=f"the line of {node}")  # noqa: B023
    wait_until(lambda: pair.polled_at() is not None, within_s=90, what="polls")

    first.lose_power()
    died_at = pair.ask("SELECT now()")
    xid(second, "gn003")
    wait_until(lambda: pair.is_counted("gn003"), within_s=GOES_ON_WITHIN_S, what="ingest goes on")
    wait_until(
        lambda: pair.polled_at() > died_at, within_s=GOES_ON_WITHIN_S + 30, what="polls go on"
    )
    ready = second.run(
        "-c",
        "import urllib.request as u;print(u.urlopen('http://127.0.0.1:8000/readyz').status)",
    )
    assert ready.strip() == "200"
    told = "SELECT count(*) FROM incidents_fault WHERE fault_type = 'kintsugi.part_silent'"
    wait_until(lambda: pair.ask(told), within_s=150, what="the dead machine is told")
    assert not pair.ask(
        "SELECT count(*) FROM (SELECT detector, target FROM incidents_poll GROUP BY 1, 2"
        " HAVING count(*) > 1) AS doubled"
    )
