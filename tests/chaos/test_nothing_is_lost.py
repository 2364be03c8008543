"""From the moment an event is in the spool it is never lost and counts once, whatever dies in
mid-storm."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import redis

from tests.chaos.site import Bell, Site, Storm
from tests.services.ports import wait_until

pytestmark = [pytest.mark.needs("redis-server", "postgres", "initdb"), pytest.mark.timeout(120)]
CODES = (31, 48, 63, 79, 94, 95)
NODES = 40
# Bytes of what the processes say, shown with a test that fails.
SHOWN_OF_LOG = 8000


def lines(number: int) -> bytes:
    """Six lines: five that come again and again, and one with a kernel stamp that comes twice, as
    by two paths."""
    stamp = datetime.now(UTC).strftime("%b %e %H:%M:%S")
    out = []
    for index in range(5):
        node, code = (number * 5 + index) % NODES, CODES[(number + index) % len(CODES)]
        out.append(
            f"<4>{stamp} gn{node:03d} kernel: NVRM: Xid (PCI:0000:19:00): {code}, pid={number % 7}, name=t"
        )
    # The kernel's clock of one boot: never the same twice but for the copy.
    copied = f"[{10_000 + number // 2 + number % 2 * 0.5:.6f}] NVRM: Xid (PCI:0000:3b:00): 48, pid={number // 2}"
    out += [f"<4>{stamp} gn001 kernel: {copied}"] * 2
    return "".join(f"{line}\n" for line in out).encode()


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    try:
        yield running.start()
    finally:
        print(running.log.read_text(errors="replace")[-SHOWN_OF_LOG:])
        running.remove()


def test_every_spooled_event_counts_once_when_worker_receiver_redis_and_database_die_in_mid_storm(
    site: Site,
) -> None:
    storm = Storm(site.port, lines)
    storm.start()

    def goes_on(rounds: int) -> None:
        target = storm.sent + rounds
        wait_until(lambda: storm.sent >= target, within_s=30, what="the storm goes on")

    wait_until(
        lambda: site.counted().total() > 100, within_s=30, what="the first events are counted"
    )
    site.kill("worker")
    goes_on(100)
    redis.Redis.from_url(site.redis.url).flushall()
    site.start_worker()
    goes_on(100)
    site.kill_receiver()
    site.start_receiver()
    goes_on(100)
    site.redis.stop(signal.SIGKILL)
    goes_on(100)
    site.redis.start()
    goes_on(50)
    site.postgres.stop(signal.SIGQUIT)
    goes_on(100)
    site.postgres.start()
    site.kill_receiver()
    spooled_before_the_last_kill = site.spooled()
    site.start_receiver()
    goes_on(100)
    storm.end()

    site.stop_receiver()
    spooled = site.spooled()
    site.start_receiver()
    bell = Bell(site.redis.url)

    def is_all_counted() -> bool:
        bell.ring_if_due()
        return site.counted().total() >= spooled.total()

    wait_until(is_all_counted, within_s=40, what="every spooled event is counted")
    assert site.counted() == spooled
    assert spooled.total() > spooled_before_the_last_kill.total() > 100
