"""What processes load and what they ask before they begin. Told by modules, never by time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from kintsugi import startup
from kintsugi.configuration import schema

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("pysnmp", "paramiko", "scipy", "numpy", "redis", "celery", "kombu", "hyperscan", "yaml")
PAGES = ("kintsugi.urls", "kintsugi.admin", "incidents.admin", "runbooks.admin")
CATALOGUE = ("detectors.registry", "runbooks.library.library")
# Runs the command in this process, then tells what is loaded and whether the catalogue was read.
TELL = """
import json, sys
from django.core.management import execute_from_command_line
try:
    execute_from_command_line(["manage.py", *sys.argv[1:]])
except SystemExit as ended:
    assert not ended.code, ended.code
catalog = sys.modules.get("detectors.catalog.catalog")
is_read = catalog is not None and catalog._load_shipped.cache_info().currsize > 0
print(json.dumps([sorted(sys.modules), is_read]))
"""
READS = (
    "answer",
    "approve",
    "breaker",
    "decommission list",
    "inventory check --offline",
    "maintenance list",
    "node_token list gn001",
    "settings",
    "silence list",
    "spare list",
    "vendor list",
)


def _environment(data: Path, **values: str) -> dict[str, str]:
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("KINTSUGI_", "DATABASE_", "REDIS_", "SLACK_", "PYTHON"))
    }
    own = {
        "DJANGO_SETTINGS_MODULE": "kintsugi.settings",
        "KINTSUGI_DATA_DIR": str(data),
    }
    return kept | own | values


def _run(data: Path, *argv: str, **values: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=ROOT,
        env=_environment(data, **values),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with tables and one node."""
    data = tmp_path_factory.mktemp("site") / "data"
    assert _run(data, "manage.py", "migrate", "--verbosity", "0").returncode == 0
    inventory = data / "inventory.toml"
    inventory.write_text('[[node]]\nname = "gn001"\n')
    ended = _run(data, "manage.py", "inventory", "import", str(inventory))
    assert ended.returncode == 0, ended.stderr
    return data


def _loaded(data: Path, command: str) -> tuple[set[str], bool]:
    ended = _run(data, "-c", TELL, *command.split())
    assert ended.returncode == 0, ended.stderr
    modules, is_catalogue_read = json.loads(ended.stdout.splitlines()[-1])
    return set(modules), is_catalogue_read


@pytest.mark.parametrize("command", READS)
def test_a_command_that_reads_loads_no_client_no_page_and_no_catalogue(
    site: Path, command: str
) -> None:
    modules, is_catalogue_read = _loaded(site, command)
    assert [name for name in (*HEAVY, *PAGES, *CATALOGUE) if name in modules] == []
    assert not is_catalogue_read


@pytest.mark.parametrize("command", ["mode", "runbook show"])
def test_a_command_that_reads_runbooks_loads_no_client_and_no_page(
    site: Path, command: str
) -> None:
    modules, _ = _loaded(site, command)
    unused = ("pysnmp", "paramiko", "scipy", "redis", "celery", *PAGES)
    assert [name for name in unused if name in modules] == []


@pytest.mark.parametrize("command", ["reliability", "vendor times"])
def test_statistics_alone_load_scipy(site: Path, command: str) -> None:
    modules, is_catalogue_read = _loaded(site, command)
    assert "scipy.special" in modules
    assert [name for name in ("pysnmp", "paramiko", "redis", *PAGES) if name in modules] == []
    assert not is_catalogue_read


def test_a_worker_without_redis_snmp_and_ssh_loads_none_of_their_clients_and_no_page(
    site: Path,
) -> None:
    words = (
        "import json, sys, django; django.setup()\n"
        "from kintsugi import startup, tasks\n"
        "tasks.pipeline()\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    ended = _run(site, "-c", words)
    assert ended.returncode == 0, ended.stderr
    modules = set(json.loads(ended.stdout.splitlines()[-1]))
    assert "celery" in modules
    unused = ("pysnmp", "paramiko", "scipy", "redis", *PAGES)
    assert [name for name in unused if name in modules] == []


@pytest.mark.parametrize(
    ("setting", "text", "expected"),
    [
        ("KINTSUGI_SWEEP_EVERY", "soon", "KINTSUGI_SWEEP_EVERY=soon: expected a number and s, m"),
        ("KINTSUGI_COLOUR", "red", "KINTSUGI_COLOUR: no such setting"),
        ("KINTSUGI_CREDENTIALS", '[[group]]\nnodes = "*"\ncolour = 1\n', "colour: no such key"),
        ("KINTSUGI_SLACK_USERS", "alice = 1\n", "alice"),
    ],
)
def test_a_wrong_configuration_stops_a_command_that_only_reads(
    site: Path, tmp_path: Path, setting: str, text: str, expected: str
) -> None:
    """With the setting or the file's line, and what was expected."""
    if "\n" in text:
        file = tmp_path / "file.toml"
        file.write_text(text)
        file.chmod(0o600)
        text = str(file)
    ended = _run(site, "manage.py", "breaker", **{setting: text})
    assert ended.returncode == 1
    assert expected in ended.stderr
    assert text.split("\n")[0] in ended.stderr or "no such setting" in ended.stderr


@pytest.mark.parametrize(
    ("command", "is_stopped"),
    [
        ("breaker", False),
        ("silence list", False),
        ("breaker --close --reason seen", True),
        ("preflight", True),
        ("receive", True),
        ("up", True),
        ("check", True),
    ],
)
def test_a_wrong_runbook_stops_what_serves_and_acts_and_no_look(
    site: Path, tmp_path: Path, command: str, is_stopped: bool
) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    ended = _run(site, "manage.py", *command.split(), KINTSUGI_RUNBOOKS=str(tmp_path))
    assert ("mine.yaml:1: the runbook has no version" in ended.stderr) == is_stopped, ended.stderr
    assert (ended.returncode != 0) == is_stopped


ROW = """
[[signature]]
type = "node.kernel.panic"
event = "raised"
on = "node"
program = "kernel"
facility = "kern"
begins = "message"
pattern = '{}'
"""


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        (r"fan (a)\1 down", "write a second pattern in `unless` instead"),
        ("fan (?=left) down", "write a second pattern in `unless` instead"),
        ("fan (?<!right) down", "write a second pattern in `unless` instead"),
        ("fan (?>x+)y down", "https://github.com/google/re2/wiki/Syntax"),
        ("fan x{1,2000} down", "with bounds like {0,40}"),
    ],
    ids=["back-reference", "look-ahead", "look-behind", "atomic group", "bound"],
)
def test_preflight_refuses_a_pattern_of_the_site_and_says_what_to_write_instead(
    site: Path, tmp_path: Path, pattern: str, instead: str
) -> None:
    (tmp_path / "ours.toml").write_text(ROW.format(pattern))
    ended = _run(site, "manage.py", "preflight", KINTSUGI_CATALOG_DIR=str(tmp_path))
    assert ended.returncode != 0
    told = [line for line in ended.stderr.splitlines() if "ours.toml:2: " in line]
    assert told
    assert all(instead in line for line in told), told


def test_one_finding_of_a_file_is_told_once(settings: Any, tmp_path: Path) -> None:
    path = tmp_path / "credentials.toml"
    path.write_text('[[group]]\nnodes = "*"\ncolour = 1\n')
    path.chmod(0o600)
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_CREDENTIALS": path}
    tags = [startup.CONFIGURATION, startup.SERVING]
    found = [message for message in checks.run_checks(tags=tags) if "colour" in message.msg]
    assert len(found) == 1


@pytest.mark.django_db
def test_tables_of_an_earlier_version_stop_what_serves_by_the_name_of_what_is_missing() -> None:
    startup.require_schema()
    last = [name for name in schema.list_shipped() if name[0] == "incidents"][-1]
    MigrationRecorder(connection).record_unapplied(*last)
    with pytest.raises(SystemExit, match=rf"an earlier version, without {'.'.join(last)}"):
        startup.require_schema()


def test_every_page_is_there_once_the_addresses_are_loaded(site: Path) -> None:
    words = (
        "import django; django.setup()\n"
        "from django.contrib import admin\n"
        "before = len(admin.site._registry)\n"
        "import kintsugi.urls\n"
        "print(before, len(admin.site._registry) >= 15)"
    )
    assert _run(site, "-c", words).stdout.split() == ["0", "True"]
