"""A management controller that speaks IPMI: openipmi's ipmi_sim, with a fan, a temperature and two
power sensors."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from datetime import timedelta
from pathlib import Path

from detectors.detector import OneByOne, Output, Target
from tests.services.patience import patient
from tests.services.ports import free_port, wait_until
from tests.services.programs import find, spawn, stop

_LAN = """name "kintsugi"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
{chassis}  startnow false
  user 2 true "ipmiusr" "test" admin 10 none md2 md5 straight
"""
# Called as `PROGRAM 0x20 get power` and `PROGRAM 0x20 set power 0`; the file `power` is the
# chassis.
_CHASSIS = """#!/bin/sh
verb=$2; shift 2
if [ "$verb" = get ]; then
  for what in "$@"; do
    if [ "$what" = power ]; then echo "power:$(cat '{home}/power')"; else echo "$what:0"; fi
  done
elif [ "$verb" = set ]; then
  while [ $# -gt 1 ]; do [ "$1" != power ] || echo "$2" >'{home}/power'; shift 2; done
fi
"""
_EMU = """mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02
sel_enable 0x20 1000 0x0a
sensor_add 0x20 0 0 35 0x6f event-only
{sensors}mc_enable 0x20
"""
# IPMI 2.0 tables 43-1 and 43-2. Event masks of upper, and of lower thresholds going past.
_UPPER, _LOWER = "80 7a 80 7a 38 38", "15 70 15 70 07 07"
TEMPERATURE, FAN, SUPPLY, REDUNDANCY = 1, 2, 3, 4


class IpmiSim:
    """`tell` gives it commands of ipmi_sim_cmd(5), such as `sensor_set_value 0x20 0 1 0x95 1`.

    `has_chassis`: main power that can be switched; without it every such request is refused.
    """

    def __init__(self, *, has_chassis: bool = False) -> None:
        self._has_chassis = has_chassis
        self._directory = tempfile.TemporaryDirectory(
            prefix="kintsugi-ipmi-", ignore_cleanup_errors=True
        )
        self.home = Path(self._directory.name)
        self.port = free_port(socket.SOCK_DGRAM)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> IpmiSim:
        (self.home / "lan.conf").write_text(_LAN.format(port=self.port, chassis=self._chassis()))
        (self.home / "sim.emu").write_text(_EMU.format(sensors=_sensors()))
        argv = [
            str(find("ipmi_sim")),
            "-c",
            str(self.home / "lan.conf"),
            "-f",
            str(self.home / "sim.emu"),
        ]
        with (self.home / "log").open("ab") as log:
            # It ends when its standard input does.
            self._process = spawn(
                [*argv, "-s", str(self.home), "-p"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.home,
            )
        wait_until(self._answers, within_s=20, what=f"ipmi_sim on port {self.port}")
        return self

    def _chassis(self) -> str:
        if not self._has_chassis:
            return ""
        (self.home / "power").write_text("1\n")
        program = self.home / "chassis"
        program.write_text(_CHASSIS.format(home=self.home))
        program.chmod(0o755)
        return f'  chassis_control "{program} 0x20"\n'

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"ipmi_sim ended: {(self.home / 'log').read_text()[-2000:]}")
        return self.ask("mc", "info").status == 0

    def tell(self, *lines: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self._process.stdin.flush()

    def ask(self, *words: str) -> Output:
        """ipmitool over the network, as an administrator."""
        way = (
            "-I",
            "lanplus",
            "-H",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "ipmiusr",
            "-P",
            "test",
            "-C",
            "3",
        )
        argv = [str(find("ipmitool")), *way, "-N", "1", "-R", "2", *words]
        done = subprocess.run(argv, capture_output=True, check=False, timeout=patient(60))
        return Output(done.returncode, done.stdout, done.stderr, timedelta(0))

    def remove(self) -> None:
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            stop(self._process)
        self._directory.cleanup()


class IpmiShell(OneByOne):
    """A node whose ipmitool reaches the simulated controller, and which has nothing else."""

    def __init__(self, sim: IpmiSim) -> None:
        self.sim = sim

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        if argv[0] != "ipmitool":
            return Output(127, b"", f"{argv[0]}: command not found".encode(), timedelta(0))
        return self.sim.ask(*argv[1:])


def _sensors() -> str:
    """Sensors with their records: the repository tells names, units and thresholds."""
    return "".join(
        (
            _analog(
                TEMPERATURE,
                "GPU Tray Temp",
                "0b",
                1,
                _UPPER,
                unit=1,
                factor=1,
                limits="a0 90 70 00 00 00",
            ),
            f"sensor_set_value 0x20 0 {TEMPERATURE} 0x30 0\n",
            f"sensor_set_threshold 0x20 0 {TEMPERATURE} settable 111000 0xa0 0x90 0x70 00 00 00\n",
            _support(TEMPERATURE, "000111111000000"),
            _analog(FAN, "FAN1", "1d", 4, _LOWER, unit=18, factor=100, limits="00 00 00 02 05 08"),
            f"sensor_set_value 0x20 0 {FAN} 0x60 0\n",
            f"sensor_set_threshold 0x20 0 {FAN} settable 000111 00 00 00 0x02 0x05 0x08\n",
            _support(FAN, "000000000010101"),
            _discrete(SUPPLY, "PS1 Status", "0a", 8, "6f"),
            f"sensor_set_bit 0x20 0 {SUPPLY} 0 1 0\n",
            _discrete(REDUNDANCY, "PS Redundancy", "0a", 8, "0b"),
            f"sensor_set_bit 0x20 0 {REDUNDANCY} 0 1 0\n",
        )
    )


def _support(number: int, events: str) -> str:
    return f"sensor_set_event_support 0x20 0 {number} enable scanning per-state {events} {events} {events} {events}\n"


def _analog(
    number: int,
    name: str,
    entity: str,
    kind: int,
    masks: str,
    *,
    unit: int,
    factor: int,
    limits: str,
) -> str:
    body = (
        f"20 00 {number:02x} {entity} 01 7f 68 {kind:02x} 01 {masks} 00 {unit:02x} 00 00 {factor:02x} 00 00 00 00 00 "
        f"03 60 b0 00 ff 00 {limits} 01 01 00 00 00"
    )
    return f"sensor_add 0x20 0 {number} {kind} 1\n{_record('01', body, name)}"


def _discrete(number: int, name: str, entity: str, kind: int, reading_type: str) -> str:
    body = (
        f"20 00 {number:02x} {entity} 01 67 40 {kind:02x} {reading_type} ff 00 ff 00 ff 00 c0 00 00 01 00 00 00 "
        "00 00 00 00"
    )
    added = f"sensor_add 0x20 0 {number} {kind} 0x{reading_type}\n"
    return added + _record("02", body, name) + _support(number, "000000011111111")


def _record(kind: str, body: str, name: str) -> str:
    fields = [
        "00",
        "00",
        "51",
        kind,
        "",
        *body.split(),
        f"{0xC0 | len(name):02x}",
        *(f"{ord(c):02x}" for c in name),
    ]
    fields[4] = f"{len(fields) - 5:02x}"
    return f"main_sdr_add 0x20 {' '.join(f'0x{field}' for field in fields)}\n"
