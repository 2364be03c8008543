"""Management machines of their own: each a network and a host name (namespaces), with every part of
Kintsugi, on the PostgreSQL and the Redis of a third machine.

PostgreSQL and Redis have an address each, so that a machine can be cut off from one alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
import psycopg

from tests.services.patience import patient
from tests.services.ports import wait_until
from tests.services.postgres import Postgres
from tests.services.programs import spawn
from tests.services.redis import Redis

ROOT = Path(__file__).resolve().parents[2]
# Of this process: another one's may be there as well, or have been left behind.
BRIDGE = f"kin{os.getpid()}"
NETWORK = f"10.231.{os.getpid() % 250}"
# The third machine: of PostgreSQL, and of Redis and Slurm.
OF_DATABASE, OF_OTHERS = f"{NETWORK}.1", f"{NETWORK}.2"
# Nobody has it: what is sent there is lost without a word, as in a network that is cut.
_NOWHERE = "02:00:00:00:00:99"
NODES = 20
_MAKE_NODES = f"""
from incidents.models import Node
names = [f"gn{{number:03d}}" for number in range({NODES})]
Node.objects.bulk_create(Node(name=name, address="127.0.0.1") for name in names)
"""
SYSLOG_PORT, WEB_PORT = 5514, 8000
CELERY = (sys.executable, "-m", "celery", "-A", "kintsugi")
PARTS = {
    "ingest": (*CELERY, "worker", "-Q", "ingest,sweep,notify,slurm", "-c", "2", "-n", "ingest@%h"),
    "poll": (*CELERY, "worker", "-Q", "poll", "-P", "threads", "-c", "8", "-n", "poll@%h"),
    "beat": (*CELERY, "beat", "--pidfile="),
    "receiver": (sys.executable, "manage.py", "receive"),
    "web": (
        *(sys.executable, "-m", "waitress"),
        f"--listen=0.0.0.0:{WEB_PORT}",
        "kintsugi.wsgi:application",
    ),
}
RUNBOOK = (*CELERY, "worker", "-Q", "runbook", "-c", "2", "-n", "runbook@%h")
# Their names in heartbeats.
PART_NAMES = ("beat", "receiver", "web", "worker-poll", "worker-ingest-notify-slurm-sweep")


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
            self.processes.append(self._spawn(PARTS[name], self.home / f"{name}.log"))

    def spawn(self, *argv: str) -> subprocess.Popen[bytes]:
        """A Python program on this machine."""
        return self._spawn((sys.executable, *argv), self.home / "others.log")

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

    def ask(self, path: str) -> tuple[int, str]:
        """Status and body that its own console answers."""
        get = (
            "import sys,urllib.error as e,urllib.request as u\n"
            f"url='http://127.0.0.1:{WEB_PORT}'+sys.argv[1]\n"
            "try: answer=u.urlopen(url,timeout=60)\n"
            "except e.HTTPError as error: answer=error\n"
            "print(answer.status, answer.read().decode())"
        )
        status, _, body = self.run("-c", get, path).partition(" ")
        return int(status), body

    def reaches(self, other: Host) -> bool:
        connect = (
            "import socket,sys\n"
            f"with socket.socket() as s: s.settimeout(2);print(s.connect_ex((sys.argv[1],{WEB_PORT})))"
        )
        return self.run("-c", connect, other.address).strip() == "0"

    def read_log(self, part: str) -> str:
        return (self.home / f"{part}.log").read_text(errors="replace")

    def cut_from_neighbours(self, is_cut: bool) -> None:
        """From all other machines on the bridge that are so; the third machine is the bridge."""
        how = "on" if is_cut else "off"
        ip("link", "set", self.wire, "type", "bridge_slave", "isolated", how)

    @contextmanager
    def cut_from(self, address: str) -> Iterator[None]:
        """From one address; all others answer."""
        entry = ("-n", self.wire, "neigh")
        ip(*entry, "replace", address, "lladdr", _NOWHERE, "dev", "eth0", "nud", "permanent")
        try:
            yield
        finally:
            ip(*entry, "delete", address, "dev", "eth0")

    @contextmanager
    def cut_from_all(self) -> Iterator[None]:
        ip("link", "set", self.wire, "down")
        try:
            yield
        finally:
            ip("link", "set", self.wire, "up")

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

    def _spawn(self, argv: tuple[str, ...], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return spawn(
                self._here(argv),
                cwd=ROOT,
                env=os.environ | self.settings,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _here(self, argv: tuple[str, ...]) -> list[str]:
        script = f'hostname {self.name}; exec "$@"'
        inside = ["unshare", "--uts", "sh", "-c", script, "sh", *argv]
        return ["ip", "netns", "exec", self.wire, *inside]


@dataclass
class Pair:
    """Both machines, and the third that has PostgreSQL and Redis."""

    hosts: tuple[Host, Host]
    url: str

    def start(self) -> None:
        """Tables, nodes, and every part of both machines, until each has said that it is alive."""
        self.hosts[0].run("manage.py", "migrate", "--verbosity", "0")
        self.hosts[0].run("manage.py", "shell", "-c", _MAKE_NODES)
        self.start_parts()

    def start_parts(self, *, runbook: bool = False) -> None:
        for host in self.hosts:
            host.start(*PARTS)
            if runbook:
                host.processes.append(host.spawn(*RUNBOOK[1:]))
        wanted = {(host.name, part) for host in self.hosts for part in PART_NAMES}
        wait_until(lambda: wanted <= self.parts(), within_s=120, what="all parts of both machines")

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, connect_timeout=5) as connection:
            return connection.execute(statement, values).fetchall()

    def ask(self, statement: str, *values: Any) -> Any:
        rows = self.rows(statement, *values)
        return rows[0][0] if rows else None

    def parts(self) -> set[tuple[str, str]]:
        """Host and part of all that said lately that they are alive."""
        rows = self.rows(
            "SELECT host, part FROM incidents_heartbeat WHERE seen_at > now() - interval '30s'"
        )
        return {(host, part) for host, part in rows}

    def polled_at(self) -> Any:
        return self.ask("SELECT max(polled_at) FROM incidents_pollchunk")

    def is_counted(self, node: str) -> bool:
        statement = "SELECT count(*) FROM incidents_fault WHERE owner = %s"
        return bool(self.ask(statement, f"node/{node}"))

    def silent(self) -> set[str]:
        """Parts that are told as silent now, as `mgmt-1/beat`."""
        rows = self.rows(
            "SELECT resource FROM incidents_fault"
            " WHERE fault_type = 'kintsugi.part_silent' AND cleared_at IS NULL"
        )
        return {resource.removeprefix("kintsugi/") for (resource,) in rows}


@contextmanager
def two_hosts(home: Path, more: Mapping[str, str] | None = None) -> Iterator[Pair]:
    """Not started yet. `more`: settings of both."""
    with ExitStack() as running:
        _make_bridge((OF_DATABASE, OF_OTHERS))
        running.callback(_remove_bridge)
        postgres = Postgres(is_durable=True, address=OF_DATABASE)
        running.callback(postgres.remove)
        queue = Redis(address=OF_OTHERS)
        running.callback(queue.remove)
        postgres.start()
        queue.start()
        shared = {
            "DATABASE_URL": f"postgresql://kintsugi@{OF_DATABASE}:{postgres.port}/postgres",
            "REDIS_URL": f"redis://{OF_OTHERS}:{queue.port}/0",
            "KINTSUGI_SECRET_KEY": "the same on both machines, and long enough for Django",
            "KINTSUGI_ALLOWED_HOSTS": "*",
            "KINTSUGI_SYSLOG_LISTEN": f"0.0.0.0:{SYSLOG_PORT}",
            "KINTSUGI_SYSLOG_NETWORKS": "10.0.0.0/8,127.0.0.0/8",
            "KINTSUGI_SLURM": "off",
            # Nobody listens there: each poll is one, and is refused.
            "KINTSUGI_SSH_USER": "kintsugi",
            "KINTSUGI_SSH_KEY": str(home / "key"),
            "KINTSUGI_SSH_KNOWN_HOSTS": str(home / "known_hosts"),
        }
        paramiko.ECDSAKey.generate().write_private_key_file(shared["KINTSUGI_SSH_KEY"])
        (home / "known_hosts").touch()
        hosts = []
        for number in (1, 2):
            own = home / f"mgmt-{number}"
            own.mkdir()
            settings = shared | {"KINTSUGI_DATA_DIR": str(own / "data")} | dict(more or {})
            hosts.append(Host(number, own, settings))
            running.callback(hosts[-1].remove)
            hosts[-1].plug_in()
        yield Pair((hosts[0], hosts[1]), postgres.url)


def _make_bridge(addresses: Collection[str]) -> None:
    ip("link", "add", BRIDGE, "type", "bridge")
    for address in addresses:
        ip("address", "add", f"{address}/24", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")


def _remove_bridge() -> None:
    with suppress(subprocess.CalledProcessError):
        ip("link", "delete", BRIDGE)
