"""Commands on a store that is not there, as a person meets them who forgot the settings at 3
a.m."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from runbooks.fleet import fleet
from tests.services.patience import patient
from tests.services.ports import free_port

ROOT = Path(__file__).resolve().parents[3]


def manage(data_dir: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run(data_dir, "manage.py", *words, **environ)


def run(data_dir: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("KINTSUGI_", "DATABASE_"))
    }
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**clean, "KINTSUGI_DATA_DIR": str(data_dir), **environ},
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=False,
    )


@pytest.fixture(scope="module")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the tables of this version, to be copied."""
    data = tmp_path_factory.mktemp("made") / "data"
    assert manage(data, "migrate", "--verbosity", "0").returncode == 0
    return data


@pytest.fixture(scope="module")
def half_made_store(made_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One in the middle of an upgrade, to be copied."""
    data = shutil.copytree(made_store, tmp_path_factory.mktemp("half made") / "data")
    back = manage(data, "migrate", "incidents", "0002", "--verbosity", "0")
    assert back.returncode == 0, back.stderr
    return data


@pytest.fixture
def store(made_store: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made_store, tmp_path / "var")


@pytest.fixture
def store_in_upgrade(half_made_store: Path, tmp_path: Path) -> Path:
    return shutil.copytree(half_made_store, tmp_path / "var")


@pytest.mark.parametrize(
    "words", [("stop", "--reason", "3 a.m."), ("silence", "list")], ids=["a stop", "a list"]
)
def test_a_command_says_in_a_sentence_that_there_is_no_store_and_makes_none(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    ended = manage(tmp_path / "var", *words)
    assert ended.returncode == 1
    assert "There is no Kintsugi here: DATABASE_URL is unset" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.rglob("*.sqlite3*"))


def test_a_store_without_tables_is_told_in_a_sentence(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "kintsugi.sqlite3").close()
    (tmp_path / "kintsugi.sqlite3").touch(mode=0o600)
    (tmp_path / "kintsugi.sqlite3").chmod(0o600)
    ended = manage(tmp_path, "stop", "--reason", "3 a.m.")
    assert ended.returncode == 1
    assert "it has none of the tables" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_stop_is_not_kept_by_a_setting_that_is_wrong_elsewhere(
    store: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "runbooks"
    broken.mkdir()
    (broken / "mine.yaml").write_text("name: mine\n")
    ended = manage(store, "stop", "--reason", "3 a.m.", KINTSUGI_RUNBOOKS=str(broken))
    assert ended.returncode == 0, ended.stderr
    assert str(store / "kintsugi.sqlite3") in ended.stdout


def test_a_stop_works_in_the_middle_of_an_upgrade_and_a_list_asks_for_its_end(
    store_in_upgrade: Path,
) -> None:
    listed = manage(store_in_upgrade, "silence", "list")
    assert listed.returncode == 1
    assert "without incidents.0003_periodic_task" in listed.stderr
    stopped = manage(store_in_upgrade, "stop", "--reason", "3 a.m.")
    assert stopped.returncode == 0, stopped.stderr


# A database that is away
# ------------------------------------------------------------------------------------------------


@pytest.fixture
def nowhere() -> str:
    """The address of a PostgreSQL that is not there."""
    return f"postgresql://kintsugi:s3cret@127.0.0.1:{free_port()}/kintsugi"


def test_a_stop_without_its_database_names_the_stop_file(tmp_path: Path, nowhere: str) -> None:
    stop = tmp_path / "elsewhere"
    for words in (("manage.py", "stop"), ("-m", "kintsugi", "stop")):
        ended = run(
            tmp_path, *words, "--reason", "x", DATABASE_URL=nowhere, KINTSUGI_STOP_FILE=str(stop)
        )
        assert ended.returncode in (1, 3)
        assert "kintsugi on 127.0.0.1" in ended.stderr
        assert "kintsugi stop --file --reason" in ended.stderr
        assert str(stop) in ended.stderr
        assert "s3cret" not in ended.stderr
        assert "Traceback" not in ended.stderr
    assert not stop.exists()


def test_a_stop_by_the_file_needs_no_database_and_holds_what_it_says(
    tmp_path: Path, nowhere: str
) -> None:
    stop = tmp_path / "stop"
    command = ("-m", "kintsugi", "stop", "--file")
    without_reason = run(tmp_path, *command, DATABASE_URL=nowhere)
    assert (without_reason.returncode, stop.exists()) == (1, False)

    plain = run(tmp_path, *command, "--reason", "row 3 burns", DATABASE_URL=nowhere)
    assert plain.returncode == 0, plain.stderr
    assert str(stop) in plain.stdout
    assert "row 3 burns" in stop.read_text()
    assert stop.stat().st_mode & 0o777 == 0o644
    assert fleet.read_return_stop(stop) == ""

    whole = run(tmp_path, *command, "--give-nothing-back", "--reason", "x", DATABASE_URL=nowhere)
    assert whole.returncode == 0, whole.stderr
    assert "give-nothing-back" in fleet.read_return_stop(stop)

    released = run(tmp_path, *command, "--release", DATABASE_URL=nowhere)
    assert (released.returncode, stop.exists()) == (0, False)
    again = run(tmp_path, *command, "--release", DATABASE_URL=nowhere)
    assert (again.returncode, "There is no stop file" in again.stderr) == (1, True)


def test_a_reason_does_not_hold_resumes_by_chance(tmp_path: Path, nowhere: str) -> None:
    words = ("-m", "kintsugi", "stop", "--file", "--reason", "not give-nothing-back yet")
    ended = run(tmp_path, *words, DATABASE_URL=nowhere)
    assert (ended.returncode, (tmp_path / "stop").exists()) == (1, False)
    assert "holds resumes as well" in ended.stderr


def test_who_releases_the_switch_is_told_of_the_file_that_still_stops(store: Path) -> None:
    assert manage(store, "stop", "--reason", "x").returncode == 0
    (store / "stop").touch()
    released = manage(store, "stop", "--release")
    assert released.returncode == 0, released.stderr
    assert f"The stop file {store / 'stop'} still stops" in released.stdout


def test_kintsugi_stop_works_in_the_middle_of_an_upgrade_too(store_in_upgrade: Path) -> None:
    stopped = run(store_in_upgrade, "-m", "kintsugi", "stop", "--reason", "3 a.m.")
    assert stopped.returncode == 0, stopped.stderr


# What cannot start
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["up", "receive"])
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
def test_a_port_that_is_taken_is_named_with_its_setting_and_who_shows_the_owner(
    store: Path, command: str, kind: socket.SocketKind
) -> None:
    with socket.socket(socket.AF_INET, kind) as owner:
        owner.bind(("127.0.0.1", 0))
        if kind is socket.SOCK_STREAM:
            owner.listen()
        port = owner.getsockname()[1]
        ended = manage(
            store,
            command,
            KINTSUGI_SYSLOG_LISTEN=f"127.0.0.1:{port}",
            KINTSUGI_WEB_LISTEN=f"127.0.0.1:{free_port()}",
        )
    assert ended.returncode == 1
    assert f"KINTSUGI_SYSLOG_LISTEN=127.0.0.1:{port}: Address already in use" in ended.stderr
    assert f"sport = :{port}" in ended.stderr
    assert "Traceback" not in ended.stderr
