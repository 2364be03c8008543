"""Compiled patterns on disk: whole or not at all, this user's alone, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from detectors.logs import pattern_cache
from detectors.logs.matcher import ENGINES, compile_patterns

ROOT = Path(__file__).resolve().parents[2]
KEY = pattern_cache.key_of([b"one", b"two"])
needs_hyperscan = pytest.mark.skipif(ENGINES["hyperscan"] is None, reason="hyperscan is missing")
# Each process waits for the other's sign, so that both write while both read.
RACE = """
import sys, pathlib, time
from detectors.logs import pattern_cache
own, other = map(pathlib.Path, sys.argv[1:3])
own.touch()
while not other.exists():
    time.sleep(0.001)
content = bytes([int(sys.argv[3])]) * 1_000_000
for _ in range(50):
    pattern_cache.store("key", content)
    found = pattern_cache.load("key")
    assert found is not None and len(found) == 1_000_000 and len(set(found)) == 1, found
"""
COUNT_COMPILES = """
import sys
import hyperscan
from detectors.logs import matcher
compiled = []
kept = matcher._compile
matcher._compile = lambda *given: compiled.append(1) or kept(*given)
lines = matcher.compile_patterns([(3, b"NVRM: Xid"), (7, b"link.{0,9}down")], engine="hyperscan")
print(len(compiled), lines.match(b"a link is down"), lines.has_match(b"well"))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kintsugi" / "patterns"


def _matching_process() -> list[str]:
    """How many sets it compiled, and what it found."""
    argv = [sys.executable, "-c", COUNT_COMPILES]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def test_what_is_kept_is_found_again_and_its_folder_is_its_users_alone(folder: Path) -> None:
    assert pattern_cache.load(KEY) is None
    pattern_cache.store(KEY, b"compiled")
    assert pattern_cache.load(KEY) == b"compiled"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / KEY).stat().st_mode & 0o777 == 0o600


def test_other_parts_have_another_name() -> None:
    keys = {
        pattern_cache.key_of(parts)
        for parts in ([b"one", b"two"], [b"two", b"one"], [b"onetwo"], [b"one", b"two", b""])
    }
    assert len(keys) == 4


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_as_none(folder: Path, damage: str) -> None:
    pattern_cache.store(KEY, b"compiled" * 100)
    whole = (folder / KEY).read_bytes()
    damaged = {"cut": whole[:-1], "changed": whole[:-1] + b"!", "empty": b""}[damage]
    (folder / KEY).write_bytes(damaged)
    assert pattern_cache.load(KEY) is None


def test_a_file_that_others_may_write_is_as_none(folder: Path) -> None:
    pattern_cache.store(KEY, b"compiled")
    (folder / KEY).chmod(0o620)
    assert pattern_cache.load(KEY) is None


def test_a_link_in_a_files_place_is_not_followed(folder: Path, tmp_path: Path) -> None:
    pattern_cache.store(KEY, b"compiled")
    (folder / KEY).rename(tmp_path / "elsewhere")
    (folder / KEY).symlink_to(tmp_path / "elsewhere")
    assert pattern_cache.load(KEY) is None


def test_a_folder_that_others_may_enter_is_narrowed(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    pattern_cache.store(KEY, b"compiled")
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_nothing_is_read_from_or_written_to_another_users_folder(folder: Path) -> None:
    pattern_cache.store(KEY, b"compiled")
    os.chown(folder, 65534, 65534)
    assert pattern_cache.load(KEY) is None
    pattern_cache.store("other", b"compiled")
    assert [path.name for path in folder.iterdir()] == [KEY]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_as_none(folder: Path) -> None:
    pattern_cache.store(KEY, b"compiled")
    os.chown(folder / KEY, 65534, 65534)
    assert pattern_cache.load(KEY) is None


@pytest.mark.parametrize("kind", ["a file", "no place", "no home"])
def test_without_a_folder_nothing_is_kept_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "cache").write_text("no folder")
    if kind == "no place":
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    if kind == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", "/proc/none")
    pattern_cache.store(KEY, b"compiled")
    assert pattern_cache.load(KEY) is None
    assert compile_patterns([(1, b"Xid")]).match(b"NVRM: Xid 79") == [1]


def test_old_files_go(folder: Path) -> None:
    for number in range(60):
        pattern_cache.store(f"key{number}", b"compiled")
    assert len(list(folder.iterdir())) == 48
    assert pattern_cache.load("key39") == b"compiled"


def test_what_is_used_stays_however_much_is_written_after_it(folder: Path) -> None:
    for number in range(60):
        pattern_cache.store(f"key{number}", b"compiled")
        assert pattern_cache.load("key0") == b"compiled"
    assert pattern_cache.load("key1") is None


def test_two_processes_that_write_at_once_leave_a_whole_file(folder: Path, tmp_path: Path) -> None:
    signs = [str(tmp_path / "first"), str(tmp_path / "second")]
    racing = [
        subprocess.Popen([sys.executable, "-c", RACE, *order, number], cwd=ROOT)
        for order, number in ((signs, "1"), (signs[::-1], "2"))
    ]
    assert [process.wait() for process in racing] == [0, 0]
    assert [path.name for path in folder.iterdir()] == ["key"]


@needs_hyperscan
def test_a_second_process_compiles_nothing() -> None:
    assert _matching_process() == ["2", "[7]", "False"]
    assert _matching_process() == ["0", "[7]", "False"]


@needs_hyperscan
def test_what_hyperscan_does_not_take_back_is_compiled_anew(folder: Path) -> None:
    _matching_process()
    keys = [path.name for path in folder.iterdir()]
    for key in keys:
        pattern_cache.store(key, b"another processor's database")
    assert _matching_process() == ["2", "[7]", "False"]
    assert _matching_process() == ["0", "[7]", "False"]


@needs_hyperscan
def test_threads_share_a_database_and_find_each_its_own() -> None:
    patterns = [(number, b"word%d\\b" % number) for number in range(50)]
    found: dict[int, set[tuple[int, ...]]] = {}

    def look(number: int) -> None:
        lines = compile_patterns(patterns, engine="hyperscan")
        line = b"x word%d y word%d z" % (number, number + 8)
        found[number] = {tuple(lines.match(line)) for _ in range(500)}

    threads = [threading.Thread(target=look, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: {(number, number + 8)} for number in range(8)}
