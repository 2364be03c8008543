"""A site is upgraded while lines arrive: the tables are brought forward under workers and a
receiver of the version before, which are replaced one after the other."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

import psycopg
import pytest

from tests.chaos.site import ROOT, Bell, Site, Storm
from tests.services.ports import wait_until

pytestmark = [pytest.mark.needs("redis-server", "postgres", "initdb"), pytest.mark.timeout(900)]
# A site comes from the version before the one whose first migration this is.
VERSIONS = {
    "0.1.1": "incidents/migrations/0002_refused_sender.py",
    "0.2.0 before polls in chunks": "incidents/migrations/0013_poll_chunk.py",
    "0.2.0 before its last tables": "incidents/migrations/0016_unread_lines.py",
}
# More than are reached: each is a fault that is opened by whichever version is at work then.
NODES, CODES = 2000, (31, 48, 63, 79, 94, 95)
EACH_COMES = 10
SHOWN_OF_LOG = 8000


def lines(number: int) -> bytes:
    """One line, with a stamp of its own; so many times of the same node and code."""
    now = datetime.now(UTC).isoformat()
    place = number // EACH_COMES
    code, node = CODES[place % len(CODES)], place // len(CODES) % NODES
    words = f"NVRM: Xid (PCI:0000:19:00): {code}, pid={number}, name=t"
    return f"<4>1 {now} gn{node:04d} kernel - - - {words}\n".encode()


def find_tree(migration: str, home: Path) -> Path:
    """The code as it was before this migration came, unpacked. Skips where git does not know it: in
    a clone without history, or an archive."""
    git = ("git", "-C", str(ROOT))
    log = (*git, "log", "--diff-filter=A", "--format=%H", "--", migration)
    commits = subprocess.run(log, capture_output=True, text=True, check=False).stdout.split()
    archive = (*git, "archive", f"{commits[-1]}^") if commits else ("false",)
    found = subprocess.run(archive, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"git has no commit before {migration}: fetch the whole history")
    tree = home / "before"
    with tarfile.open(fileobj=BytesIO(found.stdout)) as files:
        files.extractall(tree, filter="data")
    return tree


@contextmanager
def running(tree: Path) -> Iterator[Site]:
    site = Site(tree)
    try:
        yield site.start()
    finally:
        if site.log.exists():
            print(site.log.read_text(errors="replace")[-SHOWN_OF_LOG:])
        site.remove()


def count_faults(site: Site) -> int:
    with psycopg.connect(site.postgres.url) as connection:
        row = connection.execute("SELECT count(*) FROM incidents_fault").fetchone()
        return row[0] if row else 0


def test_each_spooled_line_counts_once_when_a_site_is_upgraded_under_load(
    tmp_path: Path,
) -> None:
    """In a clone without history it is skipped, and says what is missing."""
    for version, migration in VERSIONS.items():
        tree = find_tree(migration, tmp_path / version)
        with running(tree) as site:
            upgrade(site)


def upgrade(site: Site) -> None:
    storm = Storm(site.port, lines)
    bell = Bell(site.redis.url)
    storm.start()

    def goes_on(who: str) -> None:
        """New faults are opened, and lines counted that arrive from now on."""
        faults, counted = count_faults(site) + 20, site.counted().total() + 200

        def has_gone_on() -> bool:
            bell.ring_if_due()
            return count_faults(site) >= faults and site.counted().total() >= counted

        wait_until(has_gone_on, within_s=120, what=who)

    goes_on("the version before")
    site.tree = ROOT
    site.migrate()
    goes_on("the worker of the version before, with the new tables")
    site.kill("worker")
    site.start_worker()
    goes_on("the new worker, with the receiver of the version before")
    site.stop_receiver()
    site.start_receiver()
    goes_on("the new version")
    storm.end()

    site.stop_receiver()
    spooled = site.spooled()
    site.start_receiver()

    def is_all_counted() -> bool:
        bell.ring_if_due()
        return site.counted().total() >= spooled.total()

    wait_until(is_all_counted, within_s=120, what="every spooled line is counted")
    assert site.counted() == spooled
