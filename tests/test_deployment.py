"""What docs/deploy.md says, done: its two users start its eight units, and a wrong setting starts
none of them."""

from __future__ import annotations

import os
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from tests.deployment import ROOT, UNITS, Deployment, Unit, deployed, python_command
from tests.services.patience import patient
from tests.services.ports import free_port, listens, wait_until
from tests.services.postgres import Postgres
from tests.services.programs import spawn, stop
from tests.services.redis import Redis

WORKERS = (
    "kintsugi-ingest",
    "kintsugi-notify",
    "kintsugi-poll",
    "kintsugi-runbook",
    "kintsugi-slurm",
)


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[Postgres, Redis]]:
    postgres, queue = Postgres().start(), Redis().start()
    yield postgres, queue
    postgres.remove()
    queue.remove()


@pytest.mark.timeout(400)
@pytest.mark.needs("postgres", "redis-server", "setpriv", "unshare")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_the_eight_units_start_as_their_users_with_the_modes_that_are_shipped(
    stores: tuple[Postgres, Redis],
) -> None:
    postgres, queue = stores
    syslog, web = free_port(), free_port()
    with deployed(database_url=postgres.url, redis_url=queue.url, syslog=syslog) as site:
        migrated = site.manage("migrate", "--verbosity", "0")
        assert migrated.returncode == 0, migrated.stderr
        keys = redis.Redis.from_url(queue.url)
        site.start("kintsugi-beat")
        wait_until(lambda: keys.llen("sweep"), within_s=60, what="the beat's first task")
        for name in WORKERS:
            site.start(name)
        site.start("kintsugi-receiver")
        site.start("kintsugi-web", port=web)
        wait_until(lambda: listens(syslog), within_s=90, what="the receiver")
        wait_until(lambda: listens(web), within_s=90, what="the console")
        wait_until(
            lambda: _workers(queue) == {"ingest", "notify", "poll", "runbook", "slurm"},
            within_s=90,
            what="five workers",
        )
        asked = urllib.request.Request(
            f"http://127.0.0.1:{web}/login/", headers={"Host": "kintsugi.example.org"}
        )
        assert urllib.request.urlopen(asked, timeout=patient(10)).status == 200
        _assert_watched(site, web)
        assert [name for name in UNITS if not site.is_running(name)] == []
        assert "Permission denied" not in "".join(site.log(name).read_text() for name in UNITS)
        _assert_kept_apart(site)


def _assert_watched(site: Deployment, web: int) -> None:
    """Each tells systemd that it serves, then that it lives, and all others that it is there."""
    for name in UNITS:
        for expected in ("READY=1", "WATCHDOG=1", "WATCHDOG=1"):
            wait_until(
                lambda name=name, expected=expected: site.read_notification(name) == expected,
                within_s=30,
                what=f"{expected} of {name}",
            )
    wait_until(lambda: _ask(web, "readyz") == 200, within_s=30, what="a site that is ready")
    assert _ask(web, "healthz") == 200
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{web}/metrics", timeout=patient(10)).read()
    parts = set(re.findall(r'kintsugi_part_age_seconds\{.*part="([^"]+)"', metrics.decode()))
    assert parts == {
        "beat",
        "receiver",
        "web",
        "worker-ingest-sweep",
        "worker-notify",
        "worker-poll",
        "worker-runbook",
        "worker-slurm",
    }


def _ask(port: int, page: str) -> int:
    try:
        return int(
            urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=patient(10)).status
        )
    except urllib.error.HTTPError as refusal:
        return refusal.code


def _workers(queue: Redis) -> set[str]:
    with Celery(broker=queue.url) as app:
        answers = app.control.ping(timeout=1)
    return {name.partition("@")[0] for answer in answers for name in answer}


def _assert_kept_apart(site: Deployment) -> None:
    for place in ("acting/environment", "acting/id_ed25519", "acting/credentials.toml"):
        assert not site.can_read("kintsugi", f"/etc/kintsugi/{place}")
        assert site.can_read("kintsugi-act", f"/etc/kintsugi/{place}")
    for place in ("credentials.toml", "id_ed25519", "slack_bot_token"):
        assert not site.can_read("kintsugi-act", f"/etc/kintsugi/{place}")
    assert not site.can_read("kintsugi-act", "/var/lib/kintsugi/spool")


@pytest.mark.timeout(400)
def test_a_wrong_setting_starts_none_of_the_eight_units(tmp_path: Path) -> None:
    """Celery asks Django's checks and drops their answer, and a WSGI server does not ask."""
    (tmp_path / "runbooks").mkdir()
    (tmp_path / "runbooks" / "mine.yaml").write_text("name: mine\n")
    values = os.environ | {
        "KINTSUGI_DATA_DIR": str(tmp_path / "data"),
        "KINTSUGI_RUNBOOKS": str(tmp_path / "runbooks"),
    }
    started = {}
    for name in UNITS:
        argv = python_command(Unit.read(name).command, sys.executable)
        with (tmp_path / name).open("wb") as log:
            started[name] = spawn(argv, cwd=ROOT, env=values, stderr=log, stdout=log)
    try:
        wait_until(
            lambda: all(process.poll() for process in started.values()),
            within_s=90,
            what="eight refusals",
        )
    finally:
        for process in started.values():
            stop(process, how=signal.SIGKILL)
    complaints = {name: (tmp_path / name).read_text() for name in UNITS}
    assert [
        name for name in UNITS if "mine.yaml:1: the runbook has no version" not in complaints[name]
    ] == []
