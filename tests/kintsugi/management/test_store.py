"""Commands on a store that is not there, as a person meets them who forgot the settings at 3
a.m."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.patience import patient

ROOT = Path(__file__).resolve().parents[3]


def manage(data_dir: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("KINTSUGI_", "DATABASE_"))
    }
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env={**clean, "KINTSUGI_DATA_DIR": str(data_dir), **environ},
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=False,
    )


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


def test_a_stop_is_not_kept_by_a_setting_that_is_wrong_elsewhere(tmp_path: Path) -> None:
    broken = tmp_path / "runbooks"
    broken.mkdir()
    (broken / "mine.yaml").write_text("name: mine\n")
    assert manage(tmp_path, "migrate", "--verbosity", "0").returncode == 0
    ended = manage(tmp_path, "stop", "--reason", "3 a.m.", KINTSUGI_RUNBOOKS=str(broken))
    assert ended.returncode == 0, ended.stderr
    assert str(tmp_path / "kintsugi.sqlite3") in ended.stdout


def test_a_stop_works_in_the_middle_of_an_upgrade_and_a_list_asks_for_its_end(
    tmp_path: Path,
) -> None:
    assert manage(tmp_path, "migrate", "--verbosity", "0").returncode == 0
    back = manage(tmp_path, "migrate", "incidents", "0002", "--verbosity", "0")
    assert back.returncode == 0, back.stderr
    listed = manage(tmp_path, "silence", "list")
    assert listed.returncode == 1
    assert "without incidents.0003_periodic_task" in listed.stderr
    stopped = manage(tmp_path, "stop", "--reason", "3 a.m.")
    assert stopped.returncode == 0, stopped.stderr
