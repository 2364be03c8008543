"""A real rsyslogd and a real `logger` in front of the receiver: what they send is what is
counted."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from detectors.resources import short_host
from tests.detectors.receiver_twin import RunningReceiver
from tests.services.patience import patient
from tests.services.ports import free_port, listens, wait_until
from tests.services.programs import find
from tests.services.rsyslog import Rsyslog

# A GPU that is lost in the middle of ordinary life: 3 faults on two GPUs, one of them twice.
EPISODE = """\
[  812.100201] nvidia-nvlink: Nvlink Core is being initialized, major device number 236
[  900.441002] mlx5_core 0000:1a:00.0: Rate limit: 127 rates are supported, range: 0Mbps to 97656Mbps
[91235.118022] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[91235.118040] NVRM: Xid (PCI:0000:4c:00): 45, pid=52110, name=python3, Ch 00000013
[91235.993001] NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)
[91236.500000] NVRM: Xid (PCI:0000:4c:00): 45, pid=52110, name=python3, Ch 00000014
[91237.000104] systemd[1]: Started Session 81 of User root.
"""
CODES = {("3b", 79): 1, ("4c", 45): 2, ("3b", 154): 1}
FORWARD = """
module(load="imtcp")
input(type="imtcp" address="127.0.0.1" port="%(listen)d")
global(workDirectory="{home}")
*.* action(type="omfwd" target="127.0.0.1" port="%(port)d" %(how)s)
"""
HOWS = {
    "TCP octet-counted, RFC 5424": (
        'protocol="tcp" TCP_Framing="octet-counted" template="RSYSLOG_SyslogProtocol23Format"'
    ),
    "TCP LF, ISO stamps": 'protocol="tcp" template="RSYSLOG_ForwardFormat"',
    "UDP, traditional stamps": 'protocol="udp" template="RSYSLOG_TraditionalForwardFormat"',
}


def expected(host: str) -> dict[tuple[str, int | None], int]:
    return {
        (f"node/{host}/gpu/0000:{bus}:00.0", code): count for (bus, code), count in CODES.items()
    }


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningReceiver]:
    with RunningReceiver(tmp_path) as receiver:
        yield receiver


@pytest.mark.needs("rsyslogd")
@pytest.mark.parametrize("how", HOWS.values(), ids=HOWS)
def test_an_episode_is_counted_line_by_line_when_rsyslog_forwards_it(
    running: RunningReceiver, how: str
) -> None:
    listen = free_port()
    rsyslog = Rsyslog(FORWARD % {"listen": listen, "port": running.receiver.address[1], "how": how})
    rsyslog.start()
    try:
        wait_until(lambda: listens(listen), within_s=20, what="rsyslogd")
        lines = [f"<4>Jan 12 03:04:05 gn042 kernel: {line}\n" for line in EPISODE.splitlines()]
        with socket.create_connection(("127.0.0.1", listen)) as source:
            source.sendall("".join(lines).encode())
        running.wait_for_occurrences(sum(CODES.values()))
        running.wait_for_lines(len(lines))
    finally:
        rsyslog.remove()
    assert running.inbox.counts() == expected("gn042")


@pytest.mark.needs("logger")
@pytest.mark.parametrize(
    "how", ["--tcp --octet-count --rfc5424", "--tcp --rfc5424", "--tcp --rfc3164", "--udp"]
)
def test_what_logger_sends_is_counted_and_never_as_the_kernels(
    running: RunningReceiver, how: str, tmp_path: Path
) -> None:
    episode = tmp_path / "episode"
    lost = "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.\n"
    episode.write_text(EPISODE + 2 * lost)
    host, port = running.receiver.address
    argv = [
        str(find("logger")),
        *how.split(),
        "-n",
        host,
        "-P",
        str(port),
        "-t",
        "kernel",
        "-f",
        str(episode),
    ]
    subprocess.run(argv, check=True, timeout=patient(20))
    running.wait_for_occurrences(2)
    host = short_host(socket.gethostname())
    assert running.inbox.counts() == {(f"node/{host}/gpu/0000:3b:00.0", None): 2}
