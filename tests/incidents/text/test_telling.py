"""What the timeline and the thread say of a GPU's incident, and what they leave out."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents import services
from incidents.models import Incident, IncidentFault
from tests.builders import GPU, NOW, a_node, an_event

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


def test_title_names_the_gpu_by_its_index() -> None:
    a_node()
    services.ingest([an_event()], now=NOW)
    incident = Incident.objects.get()
    assert incident.title == "gn042 GPU 0: GPU has fallen off the bus"
    assert incident.root_resource == GPU


def test_details_join_with_rule_and_reason_in_one_entry_and_are_not_told_in_the_thread() -> None:
    a_node()
    details = [an_event("gpu.driver.detail", path, at=NOW + SECOND) for path in (GPU, "node/gn042")]
    services.ingest([an_event(), details[0], an_event("gpu.xid.154"), details[1]], now=NOW + SECOND)
    incident = Incident.objects.get()
    assert [entry.kind for entry in incident.timeline.all()] == ["opened", "noted", "joined"]
    assert incident.timeline.get(kind="noted").text.startswith("2 faults: ")
    assert set(incident.notifications.values_list("reason", flat=True)) == {"card", "joined"}
    details_kept = IncidentFault.objects.filter(fault__fault_type="gpu.driver.detail")
    assert sorted(details_kept.values_list("rule", flat=True)) == ["same_node", "same_part"]


def test_join_and_end_are_told_in_words() -> None:
    a_node()
    services.ingest([an_event(), an_event("gpu.xid.154")], now=NOW)
    services.record_node_restart(
        "gn042", booted_at=NOW + 222 * SECOND, boot_id="b2", now=NOW + 230 * SECOND
    )
    told = list(Incident.objects.get().timeline.values_list("text", flat=True))
    assert told[1].endswith(
        "(gpu.xid.154) on gn042 GPU 0, at the same moment as gpu.xid.79 on gn042 GPU 0: "
        "the same part, whose incident is still open"
    )
    assert told[2] == (
        "GPU has fallen off the bus (gpu.xid.79) on gn042 GPU 0 has cleared: the node restarted at 03:03:42 UTC."
    )
    assert told[3] == (
        "All faults have cleared. Watching for the quiet period. There were 2; the last ended at 03:03:42 UTC."
    )
