"""The spool: what it took it gives back, once committed it forgets, and no half-written record
comes out."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from detectors.faults import Action, Component, EventKind, FaultEvent, Severity, from_wire
from detectors.receivers.spool import Spool, SpoolError, SpoolFull

AT = datetime(2025, 1, 12, 3, 4, 5, 123456, tzinfo=UTC)


def event(number: int, excerpt: str = "") -> FaultEvent:
    return FaultEvent(
        event_id="",
        fault_type="gpu.xid.79",
        event=EventKind.RAISED,
        resource=f"node/gn{number:03d}/gpu/0000:19:00.0",
        source="syslog",
        occurred_at=AT,
        observed_at=AT,
        severity=Severity.CRITICAL,
        action=Action.REBOOT,
        component=Component.GPU,
        code=79,
        excerpt=excerpt,
    )


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    opened = Spool(tmp_path / "spool", segment_bytes=4096)
    yield opened
    opened.close()


def resources(spool: Spool) -> list[str]:
    return [wire["resource"] for batch in spool.list_batches() for wire in batch.wires]


def test_events_come_back_whole(spool: Spool) -> None:
    events = [event(1, 'quote " newline \n nul \0 kanji 継'), event(2)]
    batch = spool.append(events)
    [again] = spool.list_batches()
    assert again == batch == spool.read(batch.extent)
    back = [from_wire(wire) for wire in again.wires]
    assert [each.excerpt for each in back] == [each.excerpt for each in events]
    assert [each.occurred_at for each in back] == [AT, AT]


def test_ids_are_the_same_when_a_batch_is_read_again_and_differ_between_places(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path)
    batches = [spool.append([event(1), event(1)]), spool.append([event(1)])]
    spool.close()
    ids = [wire["event_id"] for batch in batches for wire in batch.wires]
    assert len(set(ids)) == 3
    again = Spool(tmp_path)
    assert [wire["event_id"] for batch in again.list_batches() for wire in batch.wires] == ids
    again.close()


def test_batches_are_read_from_a_position_on(spool: Spool) -> None:
    extents = [spool.append([event(number)]).extent for number in range(5)]
    assert list(spool.list_extents(after=extents[2])) == extents[3:]
    assert spool.compute_size_after(extents[2]) == sum(extent.size for extent in extents[3:])
    assert spool.compute_size_after(None) == spool.size


def test_closed_segments_go_once_delivered_and_numbers_are_never_used_again(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path, segment_bytes=1000)
    extents = [spool.append([event(number)]).extent for number in range(10)]
    before = spool.segments
    assert spool.remove_delivered(None) == []
    assert spool.remove_delivered(extents[0]) == []
    spool.remove_delivered(extents[4])
    assert [batch.extent for batch in spool.list_batches()][-5:] == extents[5:]
    assert before[0] not in spool.segments
    spool.remove_delivered(extents[-1])
    assert spool.segments == before[-1:] == [spool.current]
    spool.close()
    again = Spool(tmp_path)
    assert again.current > before[-1]
    assert again.remove_delivered(extents[-1]) == before[-1:]
    again.close()


def test_a_spool_that_was_restored_from_a_copy_uses_no_number_that_was_used_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 1_800_000_000
    monkeypatch.setattr(time, "time", lambda: seconds)
    Spool(tmp_path / "live").close()
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    used = set()
    for _ in range(5):
        seconds += 3600
        live = Spool(tmp_path / "live")
        used.add(live.current)
        live.close()
    seconds += 60
    restored = Spool(tmp_path / "copy")
    assert restored.current not in used
    restored.close()


def test_records_of_version_0_1_are_read(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    batch = spool.append([event(1)])
    spool.close()
    path = tmp_path / f"{batch.extent.segment:012d}.segment"
    checksum, length, _, payload = path.read_bytes().split(b" ", 3)
    path.write_bytes(b" ".join((checksum, length, payload)))
    again = Spool(tmp_path)
    [found] = again.list_batches()
    assert (found.payload, found.is_urgent) == (batch.payload, False)
    assert found.wires == batch.wires
    again.close()


def test_a_torn_tail_is_cut_when_the_spool_is_opened_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    kept = spool.append([event(1)]).extent
    torn = spool.append([event(2)]).extent
    spool.close()
    path = tmp_path / f"{torn.segment:012d}.segment"
    whole = path.read_bytes()
    for length in range(torn.start, torn.end):
        path.write_bytes(whole[:length])
        again = Spool(tmp_path)
        assert [batch.extent for batch in again.list_batches()] == [kept]
        assert again.torn_bytes == length - torn.start
        again.close()


def test_a_damaged_record_is_skipped_and_counted_and_does_not_keep_its_segment(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path)
    first, second, third = [spool.append([event(number)]).extent for number in range(3)]
    spool.close()
    path = tmp_path / f"{first.segment:012d}.segment"
    raw = bytearray(path.read_bytes())
    raw[second.start + 60] ^= 1
    path.write_bytes(raw)
    again = Spool(tmp_path)
    assert [batch.extent for batch in again.list_batches()] == [first, third]
    assert again.damaged_records == 1
    with pytest.raises(SpoolError, match="damaged"):
        again.read(second)
    assert again.remove_delivered(third) == [first.segment]
    again.close()


def test_nothing_of_a_batch_is_kept_when_the_disk_is_full(spool: Spool) -> None:
    kept = spool.append([event(1)]).extent
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kept.end + 100, limits[1]))
        with pytest.raises(SpoolFull, match="Make room"):
            spool.append([event(2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    after = spool.append([event(3)]).extent
    assert after.start == kept.end
    assert resources(spool) == [event(1).resource, event(3).resource]


def test_a_second_receiver_is_refused_with_the_process_that_holds_the_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(SpoolError, match=f"in use by another receiver .process {os.getpid()}"):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path).close()


def test_the_receiver_keeps_its_name_when_it_starts_again(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        spool = Spool(tmp_path)
        names.add(spool.receiver)
        spool.close()
    other = Spool(tmp_path / "other")
    assert len(names) == 1
    assert other.receiver not in names
    other.close()
