"""A site as docs/deploy.md installs it: its users, files, modes and units, in a directory of its
own.

Each unit's command runs with the unit's user, groups and environment files. Systemd's sandbox is
not played. The interpreter and the code are bound to places that other users may enter, in the
process's own mount namespace.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko

from tests.services.patience import patient
from tests.services.programs import spawn, stop

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted(path.stem for path in (DEPLOY / "systemd").glob("*.service"))
_IDS = {"root": 0, "kintsugi": 64101, "kintsugi-act": 64102}


@dataclass(frozen=True)
class Unit:
    """What of a systemd unit decides who runs what."""

    name: str
    user: str
    group: str
    further_groups: tuple[str, ...]
    environment_files: tuple[str, ...]
    command: tuple[str, ...]

    @classmethod
    def read(cls, name: str) -> Unit:
        rows = re.findall(
            r"^(\w+)=(.*)$", (DEPLOY / "systemd" / f"{name}.service").read_text(), re.MULTILINE
        )
        given = {key: [value for each, value in rows if each == key] for key, _ in rows}
        return cls(
            name,
            given["User"][0],
            given["Group"][0],
            tuple(given.get("SupplementaryGroups", [])),
            tuple(given["EnvironmentFile"]),
            tuple(shlex.split(given["ExecStart"][0].replace("%H", "here"))),
        )


def environment(text: str) -> dict[str, str]:
    """An environment file as systemd reads it."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {
        name: "".join(shlex.split(value)) if value else ""
        for name, _, value in (p.partition("=") for p in lines)
    }


def python_command(command: tuple[str, ...], python: str) -> list[str]:
    """A unit's command by an interpreter given, instead of the scripts in
    /opt/kintsugi/.venv/bin."""
    program, *rest = command
    modules = {"celery": ["-m", "celery"], "waitress-serve": ["-m", "waitress"], "python": []}
    return [python, *modules[Path(program).name], *rest]


class Deployment:
    """`/etc/kintsugi`, `/var/lib/kintsugi*` and `/opt/kintsugi` of one site below `home`. Root
    alone can make it."""

    def __init__(self, *, database_url: str, redis_url: str, syslog: int) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="kintsugi-deploy-"))
        self.home.chmod(0o755)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._listeners: dict[str, socket.socket] = {}
        for place in (
            "notify",
            "opt",
            "python",
            "packages",
            "etc/kintsugi/acting",
            "var/lib",
            "log",
        ):
            (self.home / place).mkdir(parents=True)
        etc = self.home / "etc" / "kintsugi"
        common = environment(self._moved((DEPLOY / "environment.example").read_text()))
        common |= {"REDIS_URL": redis_url, "KINTSUGI_SYSLOG_LISTEN": f"127.0.0.1:{syslog}"}
        del common["KINTSUGI_TRAP_LISTEN"]  # a port below 1024 is systemd's to give
        self._write(etc / "environment", common)
        self._write(
            etc / "acting" / "environment",
            environment(self._moved((DEPLOY / "acting.example").read_text())),
        )
        (etc / "database_url").write_text(database_url)
        (etc / "secret_key").write_text("s" * 50)
        (etc / "slack_bot_token").write_text("xoxb-1")
        (etc / "known_hosts").touch()
        for directory in (etc, etc / "acting"):
            paramiko.ECDSAKey.generate().write_private_key_file(str(directory / "id_ed25519"))
            access = f'user = "kintsugi"\nkey_file = "{directory / "id_ed25519"}"\n'
            (directory / "credentials.toml").write_text(
                f'[[group]]\nnodes = "*"\n[group.ssh]\n{access}'
            )
        self._apply_tmpfiles()

    def _moved(self, text: str) -> str:
        for place in ("/etc/kintsugi", "/var/lib/kintsugi"):
            text = text.replace(place, f"{self.home}{place}")
        return text

    @staticmethod
    def _write(path: Path, values: dict[str, str]) -> None:
        path.write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()))

    def _apply_tmpfiles(self) -> None:
        """Directories and modes, as `systemd-tmpfiles --create` makes them."""
        for line in self._moved((DEPLOY / "tmpfiles.d" / "kintsugi.conf").read_text()).splitlines():
            if not line or line.startswith("#"):
                continue
            kind, place, mode, user, group = line.split()
            path = Path(place)
            if kind == "d":
                path.mkdir(parents=True, exist_ok=True)
            if path.exists():
                os.chown(path, _IDS[user], _IDS[group])
                path.chmod(int(mode, 8))

    def manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`manage.py` as the user kintsugi."""
        unit = Unit.read("kintsugi-web")
        argv = self._argv(unit, ["manage.py", *words])
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=patient(170), check=False, cwd="/"
        )

    def can_read(self, user: str, place: str) -> bool:
        unit = Unit.read("kintsugi-runbook" if user == "kintsugi-act" else "kintsugi-web")
        argv = [*self._as(unit), "test", "-r", str(self.home / place.lstrip("/"))]
        return subprocess.run(argv, check=False, cwd="/").returncode == 0

    def start(self, name: str, *, port: int = 8000) -> None:
        """`port` in place of the console's own."""
        unit = Unit.read(name)
        command = [
            word.replace(":8000", f":{port}") for word in python_command(unit.command, "")[1:]
        ]
        with self.log(name).open("ab") as log:
            argv = self._argv(unit, command, **self._listen(name))
            self._processes[name] = spawn(
                argv, cwd="/", stdout=log, stderr=log, start_new_session=True
            )

    def _listen(self, name: str) -> dict[str, str]:
        """As systemd does for `Type=notify` and `WatchdogSec=`, here of three seconds."""
        path = self.home / "notify" / name
        self._listeners[name] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._listeners[name].bind(str(path))
        self._listeners[name].setblocking(False)
        path.chmod(0o777)
        return {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "3000000"}

    def read_notification(self, name: str) -> str:
        """The next thing that a unit told systemd; empty when there is none."""
        try:
            return self._listeners[name].recv(256).decode()
        except BlockingIOError:
            return ""

    def log(self, name: str) -> Path:
        return self.home / "log" / name

    def is_running(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def _as(self, unit: Unit) -> list[str]:
        groups = ",".join(str(_IDS[group]) for group in (unit.group, *unit.further_groups))
        ids = [
            "--reuid",
            str(_IDS[unit.user]),
            "--regid",
            str(_IDS[unit.group]),
            "--groups",
            groups,
        ]
        return ["setpriv", *ids, "--no-new-privs", "--bounding-set", "-all", "--inh-caps", "-all"]

    def _argv(self, unit: Unit, command: list[str], **further: str) -> list[str]:
        """`command` (words behind the interpreter) in the unit's environment, with the code where
        it may be read."""
        values: dict[str, str] = {}
        for file in unit.environment_files:
            values |= environment(Path(self._moved(file)).read_text())
        values |= further
        python = self.home / "python" / "bin" / Path(os.path.realpath(sys.executable)).name
        values |= {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONPATH": str(self.home / "packages"),
        }
        values["HOME"] = str(self.home / "var" / "lib" / unit.user)  # systemd gives it
        values |= {
            "LD_LIBRARY_PATH": str(self.home / "python" / "lib")
        }  # a built interpreter names its old place
        binds = {
            "opt": str(ROOT),
            "python": sys.base_prefix,
            "packages": sysconfig.get_paths()["purelib"],
        }
        mounts = [
            f"mount --bind {shlex.quote(source)} {self.home / place}"
            for place, source in binds.items()
        ]
        program = [str(python), *command]
        run = shlex.join(
            ["env", "-i", *(f"{name}={value}" for name, value in values.items()), *program]
        )
        script = "; ".join(
            [*mounts, f"cd {self.home / 'opt'}", f"exec {shlex.join(self._as(unit))} {run}"]
        )
        return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]

    def remove(self) -> None:
        for process in self._processes.values():
            stop(process, how=signal.SIGTERM, within_s=20)
        for listener in self._listeners.values():
            listener.close()
        shutil.rmtree(self.home, ignore_errors=True)


@contextlib.contextmanager
def deployed(*, database_url: str, redis_url: str, syslog: int) -> Iterator[Deployment]:
    site = Deployment(database_url=database_url, redis_url=redis_url, syslog=syslog)
    try:
        yield site
    finally:
        site.remove()
