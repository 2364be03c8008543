"""net-snmp's snmpd on a random port: a v2c community and v3 users with SHA-2 and AES, its state in
our directory."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.services.ports import free_port, wait_until
from tests.services.programs import find, spawn, stop

COMMUNITY = "kintsugi-test"
USER, AUTH_KEY, PRIV_KEY = "kintsugi", "auth-key-of-tests", "priv-key-of-tests"
USER_AES256 = "kintsugi256"
# A GET of sysUpTime.0, community `kintsugi-test`, request id 1: any answer means that the agent
# runs.
_REQUEST = "a019020101020100020100300e300c06082b060102010103000500"
_PROBE = bytes.fromhex("302d020101040d") + COMMUNITY.encode() + bytes.fromhex(_REQUEST)


class Snmpd:
    """`extra`: further lines of its configuration."""

    def __init__(self, extra: str = "") -> None:
        self._directory = tempfile.TemporaryDirectory(
            prefix="kintsugi-snmpd-", ignore_cleanup_errors=True
        )
        self.home = Path(self._directory.name)
        self.port = free_port(socket.SOCK_DGRAM)
        self._process: subprocess.Popen[bytes] | None = None
        (self.home / "snmpd.conf").write_text(
            f"rocommunity {COMMUNITY}\n"
            f'createUser {USER} SHA-256 "{AUTH_KEY}" AES "{PRIV_KEY}"\nrouser {USER} priv\n'
            f'createUser {USER_AES256} SHA-512 "{AUTH_KEY}" AES-256 "{PRIV_KEY}"\nrouser {USER_AES256} priv\n'
            f"sysName leaf-01\n{extra}\n"
        )

    def start(self) -> Snmpd:
        argv = [
            str(find("snmpd")),
            "-f",
            "-C",
            "-c",
            str(self.home / "snmpd.conf"),
            "-Lf",
            str(self.home / "log"),
        ]
        environment = {**os.environ, "MIBS": "", "SNMP_PERSISTENT_DIR": str(self.home / "state")}
        self._process = spawn([*argv, f"udp:127.0.0.1:{self.port}"], env=environment)
        wait_until(self._answers, within_s=10, what=f"snmpd on port {self.port}")
        return self

    def _answers(self) -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.settimeout(0.2)
            probe.connect(("127.0.0.1", self.port))
            try:
                probe.send(_PROBE)
                return bool(probe.recv(1500))
            except OSError:
                return False

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)
        self._directory.cleanup()
