"""Three thousand hosts that nobody has, named by one sender: from the socket to the pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from django.utils import timezone

from detectors.receivers.refusals import NAMES, RefusedInput
from detectors.receivers.senders import Senders
from incidents.checks import refused_senders
from incidents.models import Incident, Node, Notification
from incidents.triage import inbox
from kintsugi.web import banners
from tests.builders import a_node
from tests.detectors.receiver_twin import AT, RunningReceiver
from tests.services.ports import wait_until

pytestmark = pytest.mark.django_db
SENT = 3000
TAKEN = 20


def make_line(host: str) -> bytes:
    return (
        f"<3>1 2025-01-12T03:04:05Z {host} kernel - - - NVRM: Xid (PCI:0000:19:00): 79, pid=1, x"
    ).encode()


def test_three_thousand_invented_hosts_are_twenty_machines_and_one_line_above_the_pages(
    tmp_path: Path,
) -> None:
    a_node("gn001")
    refused: list[RefusedInput] = []

    def count_refused() -> int:
        return sum(one.count for one in refused if one.transport == NAMES)

    senders = Senders(names=frozenset({"gn001"}))
    with RunningReceiver(tmp_path, senders=senders, report_refusals=refused.extend) as running:
        running.send(*(make_line(f"forged{number}") for number in range(SENT)), make_line("gn001"))
        running.wait_for_occurrences(TAKEN + 1)
        wait_until(lambda: count_refused() == SENT - TAKEN, within_s=60, what="the reports")
        batches = list(running.inbox.batches)
    for batch in batches:
        inbox.ingest_wires(batch.wires, now=AT)
    assert Node.objects.count() == Incident.objects.count() == TAKEN + 1
    assert Incident.objects.filter(owner="node/gn001").exists()
    assert Notification.objects.count() <= 2 * (TAKEN + 1)
    refused_senders.record([replace(one, last_at=timezone.now()) for one in refused])
    shown = [banner.text for banner in banners.get_banners() if "127.0.0.1" in banner.text]
    assert len(shown) == 1
    assert f"{SENT - TAKEN}" in shown[0].replace(",", "")
