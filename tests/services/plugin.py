"""Prepares the process before Django's settings load: a database of its own, and no way out but
loopback.

Loaded by `-p` in pyproject.toml, because pytest-django reads the settings before any conftest.
`KINTSUGI_TEST_DATABASE` is `sqlite` (the default), `postgresql` (a private server is started) or
`missing` (SQLite, and tests marked `postgresql` are reported as skipped instead of left out).
"""

from __future__ import annotations

import ipaddress
import os
import sys
import tempfile
from typing import Any

import pytest

from tests.services.patience import patient
from tests.services.postgres import Postgres
from tests.services.programs import find

DATABASE = os.environ.pop("KINTSUGI_TEST_DATABASE", "") or os.environ.get(
    "TEST_DATABASE_KIND", "sqlite"
)
os.environ["TEST_DATABASE_KIND"] = DATABASE  # for the worker processes of xdist
IN_CI = os.environ.get("CI") == "true"
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
_server: Postgres | None = None

for _name in [name for name in os.environ if name.startswith(("KINTSUGI_", "SLACK_"))]:
    del os.environ[_name]
if not _IS_WORKER:
    for _name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(_name, None)
    if DATABASE == "postgresql":
        _server = Postgres().start()
        os.environ["DATABASE_URL"] = _server.url
_scratch = tempfile.TemporaryDirectory(prefix="kintsugi-tests-", ignore_cleanup_errors=True)
os.environ["KINTSUGI_DATA_DIR"] = _scratch.name
os.environ["KINTSUGI_SIMULATOR"] = "yes"


def _loopback_only(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "socket.connect" or not isinstance(arguments[1], tuple):
        return
    host = str(arguments[1][0])
    if host != "localhost" and not ipaddress.ip_address(host.split("%")[0]).is_loopback:
        raise RuntimeError(f"a test connects to {host}; tests talk to loopback only")


sys.addaudithook(_loopback_only)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left_out = [], []
    usual = float(config.getini("timeout"))
    for item in items:
        mark = item.get_closest_marker("timeout")
        longest_s = patient(mark.args[0] if mark else usual)
        item.add_marker(pytest.mark.timeout(longest_s), append=False)
        if item.get_closest_marker("django_db") or {"db", "transactional_db"} & set(
            getattr(item, "fixturenames", ())
        ):
            item.add_marker("database")
        missing = sorted(
            {p for mark in item.iter_markers("needs") for p in mark.args if find(p) is None}
        )
        if missing and not IN_CI:
            item.add_marker(pytest.mark.skip(reason=f"missing programs: {', '.join(missing)}"))
        if item.get_closest_marker("sqlite") is not None and DATABASE == "postgresql":
            left_out.append(item)
        elif item.get_closest_marker("postgresql") is None or DATABASE == "postgresql":
            kept.append(item)
        elif DATABASE == "missing":
            item.add_marker(pytest.mark.skip(reason="missing programs: postgres"))
            kept.append(item)
        else:
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI a skip is a failure: everything it needs is installed there."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if IN_CI and not _IS_WORKER and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if IN_CI and skipped:
        terminalreporter.write_line(f"{len(skipped)} skipped: in CI that is a failure", red=True)


def pytest_unconfigure() -> None:
    if _server is not None:
        _server.remove()
