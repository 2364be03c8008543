"""One leaf storm into Kintsugi and into Prometheus Alertmanager: what a person gets.

Run as `python -m tests.benchmarks.alertmanager`. A leaf of 200 hosts dies and comes back while four
other things break behind it or beside it. Alertmanager runs with the grouping of its sample
configuration and with inhibition by a `switch` label, as its manual advises; its time limits and
the storm run ten times as fast. Kintsugi plays the same list on a virtual clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")
django.setup()

from detectors.catalog import catalog  # noqa: E402  after the settings
from fixtures.replay import reader, replay  # noqa: E402
from fixtures.replay.scenario import Scenario  # noqa: E402
from incidents.notify.notifier import Card, Reply  # noqa: E402
from kintsugi.replay import database  # noqa: E402
from tests.services.ports import free_port, listens, wait_until  # noqa: E402
from tests.services.programs import find, spawn, stop  # noqa: E402

FASTER = 10
HOSTS = 200
RAILS = 4
STARTS_AT = datetime(2026, 2, 2, 6, 0, tzinfo=UTC)
LASTS = timedelta(minutes=25)
LEAF = "switch/leaf-01"

# group_by, group_wait and group_interval are those of the sample configuration that Alertmanager
# 0.25 ships; the first inhibition too. The second is the manual's advice: what is behind a dead
# device is muted by a label they share.
CONFIGURATION = """
route:
  group_by: ['alertname', 'cluster', 'service']
  group_wait: {wait}s
  group_interval: {interval}s
  repeat_interval: 3h
  receiver: people
inhibit_rules:
- source_matchers: [severity="critical"]
  target_matchers: [severity="warning"]
  equal: ['alertname', 'cluster', 'service']
- source_matchers: [alertname="switch.rebooted"]
  target_matchers: [alertname=~"nic.link.down|switch.bgp.down"]
  equal: ['switch']
receivers:
- name: people
  webhook_configs:
  - url: http://127.0.0.1:{port}/
    send_resolved: true
"""


# The same site as Kintsugi's inventory: 200 hosts with a card on each of four leafs, eight spines.
SITE = """
[site]
name = "leaf storm"
cluster_name = "bench"

[[nodes]]
names = "n[001-200]"
pod = "pod-a"
partitions = ["gpu"]
gpus = ["0000:19:00.0", "0000:3b:00.0", "0000:4c:00.0", "0000:5d:00.0"]
nics = [
    { device = "mlx5_0", role = "fabric", rail = 0 },
    { device = "mlx5_1", role = "fabric", rail = 1 },
    { device = "mlx5_2", role = "fabric", rail = 2 },
    { device = "mlx5_3", role = "fabric", rail = 3 },
]

[[switches]]
names = "leaf-[01-04]"
role = "leaf"
pod = "pod-a"
rails = [0, 1, 2, 3]

[[switches]]
names = "spine-[01-08]"
role = "spine"

[[cables]]
nodes = "n[001-200]"
nics = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
switches = "leaf-[01-04]"
ports = { name = "Ethernet{}", first = 0, step = 4 }

[[cables]]
lower = "leaf-[01-04]"
upper = "spine-[01-08]"
links = 1
lower_ports = { name = "Ethernet{}", first = 1024, step = 8 }
upper_ports = { name = "Ethernet{}", first = 0, step = 8 }
"""


@dataclass(frozen=True)
class Told:
    """`messages` reach people in the channel; `inside` are alerts within them, or lines in their
    threads."""

    messages: int
    inside: int
    announced: list[str]


@dataclass(frozen=True)
class Signal:
    """One fault raised or ended, `after` the start of the storm. `of` names the true fault that it
    is the root of."""

    after: timedelta
    fault_type: str
    resource: str
    is_raised: bool = True
    of: str = ""

    @property
    def switch(self) -> str:
        """The switch label that a careful site gives its alerts."""
        if self.resource.startswith("switch/") and "spine" not in self.resource:
            return self.resource.split("/")[1]
        return f"leaf-{int(self.resource[-1]) + 1:02}" if "/nic/" in self.resource else "leaf-01"


def _nic(host: int, rail: int = 0) -> str:
    return f"node/n{host:03}/nic/mlx5_{rail}"


def storm() -> list[Signal]:
    """The leaf is heard of 90 s after its links are gone, as by a poll; one link stays down when it
    is back."""
    second = timedelta(seconds=1)
    links = [
        Signal(second * (1 + host % 7), "nic.link.down", _nic(host)) for host in range(1, HOSTS + 1)
    ]
    spines = [
        Signal(20 * second, "switch.bgp.down", f"switch/spine-{number:02}")
        for number in range(1, 9)
    ]
    ends = [
        Signal(480 * second, link.fault_type, link.resource, False)
        for link in links
        if link.resource != _nic(17)
    ]
    ends += [Signal(485 * second, "switch.bgp.down", spine.resource, False) for spine in spines]
    own = [
        Signal(90 * second, "switch.rebooted", LEAF, of="the leaf"),
        Signal(
            500 * second, "nic.link.down", _nic(17), of="a cable that was cut behind the dead leaf"
        ),
        Signal(120 * second, "gpu.xid.79", "node/n050/gpu/0000:3b:00.0", of="a lost GPU"),
        Signal(
            150 * second,
            "nic.firmware.unhealthy",
            _nic(120),
            of="a card's firmware behind the dead leaf",
        ),
        Signal(
            170 * second,
            "nic.transceiver.rx_power_low",
            _nic(60, 1),
            of="a dark cable on another leaf",
        ),
        Signal(540 * second, "switch.rebooted", LEAF, False),
    ]
    return sorted([*links, *spines, *ends, *own], key=lambda signal: signal.after)


TRUE = [signal.of for signal in storm() if signal.of]


class Webhook:
    """Takes Alertmanager's notifications and keeps them."""

    def __init__(self) -> None:
        self.got: list[tuple[float, dict[str, Any]]] = []
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append(
                    (
                        time.monotonic(),
                        json.loads(self.rfile.read(int(self.headers["Content-Length"]))),
                    )
                )
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()


def alertmanager(signals: Sequence[Signal], severities: dict[str, str]) -> Told:
    webhook, port = Webhook(), free_port()
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as folder:
        file = Path(folder, "alertmanager.yml")
        file.write_text(
            CONFIGURATION.format(wait=30 // FASTER, interval=300 // FASTER, port=webhook.port)
        )
        listen = (f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=")
        command = [
            str(find("prometheus-alertmanager")),
            f"--config.file={file}",
            f"--storage.path={folder}",
            *listen,
        ]
        server = spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: listens(port), within_s=30, what="Alertmanager")
            began = time.monotonic()
            _send(f"http://127.0.0.1:{port}/api/v2/alerts", signals, severities)
        finally:
            stop(server)
            webhook.stop()
    roots = {(signal.fault_type, signal.resource): signal for signal in signals if signal.of}
    announced = set()
    alerts = [(at - began, alert) for at, note in webhook.got for alert in note["alerts"]]
    for after, alert in alerts:
        root = roots.get((alert["labels"]["alertname"], alert["labels"]["resource"]))
        # The cut cable is one of 200 alerts while the leaf is dead: it counts once it stands for
        # itself.
        if (
            root is not None
            and alert["status"] == "firing"
            and after * FASTER >= root.after.total_seconds()
        ):
            announced.add(root.of)
    return Told(len(webhook.got), len(alerts), sorted(announced))


def kintsugi(signals: Sequence[Signal]) -> Told:
    """The same list through ingest, sweeps and notifications; a message is an incident's card."""
    with (
        tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as folder,
        database.use_temporary_database(),
    ):
        script = _scenario(Path(folder), signals)
        performed = replay.scenario(script)
        messages = performed.stage.notifier.messages
    cards = {message.key for message in messages if isinstance(message.content, Card)}
    replies = sum(isinstance(message.content, Reply) for message in messages)
    roots = {(signal.fault_type, signal.resource): signal.of for signal in signals if signal.of}
    told = [row for row in performed.played.incidents if row["state"] != "duplicate"]
    announced = {roots.get((row["fault_type"], row["root_resource"]), "") for row in told} - {""}
    return Told(len(cards), replies, sorted(announced))


def _scenario(folder: Path, signals: Sequence[Signal]) -> Scenario:
    topology = folder / "topology.toml"
    topology.write_text(SITE)
    steps = [
        f"[[step]]\nat = {(STARTS_AT + signal.after).isoformat()}\n"
        f'{"raises" if signal.is_raised else "clears"} = "{signal.fault_type}"\non = "{signal.resource}"\n'
        for signal in signals
    ]
    head = f'[scenario]\nname = "leaf storm"\nstarts_at = {STARTS_AT.isoformat()}\n'
    head += f'ends_at = {(STARTS_AT + LASTS).isoformat()}\n[world]\nmode = "shadow"\n'
    (folder / "scenario.toml").write_text(head + "".join(steps))
    return replace(reader.read(folder), topology=topology)


def _send(url: str, signals: Sequence[Signal], severities: dict[str, str]) -> None:
    """As Prometheus does: firing alerts again and again, here twice a second; ended ones with their
    end."""
    standing: dict[tuple[str, str], dict[str, object]] = {}
    waiting, began = list(signals), time.monotonic()
    while (now := time.monotonic() - began) < LASTS.total_seconds() / FASTER:
        while waiting and waiting[0].after.total_seconds() / FASTER <= now:
            signal = waiting.pop(0)
            alert = standing.setdefault(
                (signal.fault_type, signal.resource), _alert(signal, severities)
            )
            alert["endsAt"] = None if signal.is_raised else datetime.now(UTC).isoformat()
        lasting = datetime.now(UTC) + timedelta(seconds=30)
        body = [
            {**alert, "endsAt": alert["endsAt"] or lasting.isoformat()}
            for alert in standing.values()
        ]
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10):
            time.sleep(0.5)


def _alert(signal: Signal, severities: dict[str, str]) -> dict[str, object]:
    labels = {
        "alertname": signal.fault_type,
        "cluster": "bench",
        "service": signal.fault_type.split(".")[0],
        "severity": severities[signal.fault_type],
        "resource": signal.resource,
        "switch": signal.switch,
    }
    return {"labels": labels, "startsAt": datetime.now(UTC).isoformat(), "endsAt": None}


def main() -> int:
    if find("prometheus-alertmanager") is None:
        sys.stdout.write(
            "Install the Debian package prometheus-alertmanager first: the storm is played into both.\n"
        )
        return 0
    signals, types = storm(), catalog.load()
    levels = {signal.fault_type: str(types[signal.fault_type].severity) for signal in signals}
    severities = {
        kind: "critical" if level in ("critical", "major") else "warning"
        for kind, level in levels.items()
    }
    true = {signal.of for signal in signals if signal.of}
    sys.stdout.write(
        f"{len(signals)} signals of {len(true)} true faults, {HOSTS} hosts on one leaf\n"
    )
    for name, told, inside in (
        ("Kintsugi", kintsugi(signals), "lines in threads"),
        ("Alertmanager", alertmanager(signals, severities), "alerts in them"),
    ):
        missed = ", ".join(sorted(true - set(told.announced))) or "none"
        sys.stdout.write(
            f"{name}: {told.messages} messages, {told.inside} {inside};"
            f" {len(told.announced)} of {len(true)} true faults announced; not announced: {missed}\n"
        )
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
