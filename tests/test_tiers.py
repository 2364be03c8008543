"""The tiers: what each selects, in which order, and what is repeated on SQLite."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import durations, statements, touched
from tests.durations import Duration, get_slowest
from tests.services import patience
from tests.services.patience import Deadline, patient
from tests.tiers import (
    FAST,
    PLAIN,
    Unit,
    belongs,
    deal,
    drives,
    get_units,
    is_repeated_on_sqlite,
    is_within,
    may_differ_on_sqlite,
)

pytest_plugins = ["pytester"]
SUITE = """
    import pytest

    @pytest.fixture(scope="module")
    def server():
        return object()

    def test_quick(): pass
    def test_slow(): pass
    def test_longest(): pass
    def test_served_first(server): pass
    def test_served_last(server): pass

    @pytest.mark.needs("slurmctld")
    def test_with_slurm(): pass
"""
ASKED_BY_NAME = """
    import pytest

    @pytest.fixture(scope="module")
    def server():
        return object()

    @pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.needs("slurmctld"))])
    def site(request):
        return request.getfixturevalue("server") if request.param == "real" else None

    def test_first(site): pass
    def test_second(site): pass
"""
LONG = Duration(PLAIN.wall_s + 1, 1.0)
SLOW = Duration(1.0, FAST.cpu_s + 0.1)


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    pytester.makeini("[pytest]\nmarkers = needs(program): a service")
    return pytester.getitems(SUITE)


def known(items: list[pytest.Item]) -> dict[str, Duration]:
    file = items[0].path.name
    return {
        f"{file}::test_slow": SLOW,
        f"{file}::test_longest": LONG,
        f"{file}::test_served_last": Duration(3.0, 0.1),
    }


def names(items: list[pytest.Item]) -> list[str]:
    return [item.name for item in items]


def test_the_tests_of_another_slurm_are_those_that_drive_slurmctld(
    items: list[pytest.Item],
) -> None:
    assert names([item for item in items if drives(item, "slurmctld")]) == ["test_with_slurm"]


def test_the_fast_tier_has_no_test_that_is_known_to_be_slow_and_none_that_needs_a_service(
    items: list[pytest.Item],
) -> None:
    kept = [item for item in items if belongs(item, "fast", known(items))]
    assert names(kept) == ["test_quick", "test_served_first"]


@pytest.mark.parametrize(
    "marks",
    [
        "pytest.mark.django_db",
        '[pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("tmp_path")]',
        '[\n    pytest.mark.timeout(300),\n    pytest.mark.needs("slurmctld"),\n]',
    ],
)
def test_a_file_all_of_whose_tests_use_a_service_is_not_read_in_the_fast_tier(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, marks: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(touched.ROOT))
    pytester.makepyfile(
        test_of_service=f"import pytest\n\npytestmark = {marks}\nraise RuntimeError('it is read')",
        test_pure="""
        import pytest

        pytestmark = pytest.mark.timeout(300)

        @pytest.mark.django_db
        def test_of_service(): pass

        def test_quick(): pass
        """,
    )
    run = [sys.executable, "-m", "pytest", "-p", "tests.tiers", "-p", "no:django"]
    pytester.run(*run, "--tier", "fast").assert_outcomes(passed=2)
    pytester.run(*run, "--tier", "plain").assert_outcomes(errors=1)


def test_plain_and_deep_are_all_tests_together(items: list[pytest.Item]) -> None:
    plain = [item for item in items if belongs(item, "plain", known(items))]
    deep = [item for item in items if belongs(item, "deep", known(items))]
    assert names(deep) == ["test_longest"]
    assert set(plain) | set(deep) == set(items)


def test_tests_that_share_a_fixture_stay_together_and_the_slowest_come_first(
    items: list[pytest.Item],
) -> None:
    units = get_units(items, known(items))
    assert [names(unit.items) for unit in units[:3]] == [
        ["test_longest"],
        ["test_served_first", "test_served_last"],
        ["test_slow"],
    ]


def test_tests_that_may_ask_for_a_shared_service_by_its_name_stay_together(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\nmarkers = needs(program): a service")
    units = get_units(pytester.getitems(ASKED_BY_NAME), {})
    assert sorted(sorted(names(unit.items)) for unit in units) == [
        ["test_first[memory]"],
        ["test_first[real]", "test_second[real]"],
        ["test_second[memory]"],
    ]


def test_each_worker_gets_as_many_tests_and_as_many_seconds(items: list[pytest.Item]) -> None:
    quick, slow, longest, *rest = items
    units = [Unit([longest], 9.0), Unit([slow], 5.0), Unit([quick], 4.0)]
    dealt = deal([*units, *(Unit([item], 0.0) for item in rest)], workers=2)
    assert names(dealt[:3]) == ["test_longest", *names(rest[:2])]
    assert names(dealt[3:]) == ["test_slow", "test_quick", *names(rest[2:])]


def test_a_limit_is_kept_by_the_clock_and_by_the_processor() -> None:
    assert is_within(Duration(FAST.wall_s, FAST.cpu_s), FAST)
    assert not is_within(Duration(FAST.wall_s + 0.1, 0.0), FAST)
    assert not is_within(Duration(0.0, FAST.cpu_s + 0.1), FAST)


def test_durations_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "durations.tsv"
    measured = [("a.py::test_a", Duration(2.0, 1.0)), ("a.py::test_a", Duration(1.0, 0.5))]
    durations.save_durations(
        get_slowest([*measured, ("a.py::test_quick", Duration(0.01, 0.01))]), file
    )
    assert durations.load_durations(file) == {"a.py::test_a": Duration(2.0, 1.0)}


def test_the_clocks_count_what_a_test_computes() -> None:
    before = durations.read_clocks()
    while (spent := durations.read_clocks() - before).cpu_s < 0.05:
        sum(range(10_000))
    assert spent.longest_s >= 0.05


def test_no_test_is_started_later_than_told_and_those_left_out_are_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_RUN_STARTED_AT", str(time.time() - 60))
    monkeypatch.setenv("PYTHONPATH", str(touched.ROOT))
    pytester.makepyfile("def test_one(): pass")
    run = [sys.executable, "-m", "pytest", "-p", "tests.tiers", "-p", "no:django"]
    late = pytester.run(*run, "--start-within", "30")
    late.assert_outcomes()
    late.stdout.fnmatch_lines(["*left out for want of time: 1*", "*::test_one"])
    in_time = pytester.run(*run, "--start-within", "3000")
    in_time.assert_outcomes(passed=1)


def test_what_failed_stands_in_the_file_that_is_named_with_how_it_ended(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(touched.ROOT))
    broken = "@pytest.fixture\ndef broken(): raise OSError('no disk')\n"
    pytester.makepyfile(
        f"import pytest\n{broken}"
        "def test_one(): pass\ndef test_two(): assert 4 == 5\ndef test_three(broken): pass"
    )
    run = [sys.executable, "-m", "pytest", "-p", "tests.tiers", "-p", "no:django"]
    file = pytester.path / "failed"
    # Behind a blank pytest takes a file that exists for one that it is to run.
    file.touch()
    pytester.run(*run, f"--failures-to={file}").assert_outcomes(passed=1, failed=1, errors=1)
    failed = file.read_text()
    assert "::test_two\n" in failed
    assert "assert 4 == 5" in failed
    assert "::test_three\n" in failed
    assert "no disk" in failed
    assert "test_one" not in failed


@pytest.mark.parametrize(
    ("words", "is_full"),
    [
        (("--tier", "fast"), False),
        (("--tier", "plain"), False),
        (("--tier", "deep"), True),
        ((), False),
    ],
)
def test_what_repeats_something_does_so_at_full_length_in_the_deep_tier(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], is_full: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(touched.ROOT))
    pytester.makepyfile(f"def test_it(is_full_length): assert is_full_length is {is_full}")
    run = [sys.executable, "-m", "pytest", "-p", "tests.tiers", "-p", "no:django"]
    pytester.run(*run, *words).assert_outcomes(passed=1)


def test_a_test_that_is_slow_for_its_tier_is_measured_and_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(touched.ROOT))
    pytester.makepyfile(
        """
        import time

        def test_slow():
            began = time.process_time()
            while time.process_time() < began + 3:
                pass

        def test_quick():
            pass
        """
    )
    run = [sys.executable, "-m", "pytest", "-p", "tests.tiers", "-p", "no:django"]
    ended = pytester.run(*run, "--tier", "fast")
    ended.stdout.fnmatch_lines(["*slow for this tier*", "*::test_slow*"])
    ended.stdout.no_fnmatch_line("*::test_quick*")


def test_distance_counts_the_imports_between_a_test_and_the_change() -> None:
    files = {name: Path(name) for name in ("changed", "user", "test_user", "other")}
    imports = {
        files["test_user"]: {files["user"]},
        files["user"]: {files["changed"]},
        files["other"]: set(),
    }
    distances = touched.get_distances([files["changed"]], imports)
    assert distances == {files["changed"]: 0, files["user"]: 1, files["test_user"]: 2}


def test_imports_are_found_in_every_form_of_the_code() -> None:
    source = "import os\nfrom a.b import (\n    c,\n    d as e,\n)\n    from f import g  # why\n"
    assert touched.get_imported_names(source) >= {"os", "a.b", "a.b.c", "a.b.d", "f", "f.g"}
    imports = touched.load_imports()
    here = Path(__file__).resolve()
    assert Path(durations.__file__) in imports[here]


@pytest.mark.parametrize(
    ("statement", "shape"),
    [
        ("SELECT 1 FROM a WHERE b = %s", None),
        ("CREATE TABLE a (b varchar) -- a::b", None),
        (
            "SELECT a FROM b WHERE c IN (%s, %s, %s)\n  FOR UPDATE",
            "SELECT a FROM b WHERE c IN (%s) FOR UPDATE",
        ),
        (
            "INSERT INTO a VALUES (%s, %s), (%s, %s) ON CONFLICT DO NOTHING",
            "INSERT INTO a VALUES (%s) ON CONFLICT DO NOTHING",
        ),
    ],
)
def test_statements_that_databases_read_differently_are_known_by_their_shape(
    statement: str, shape: str | None
) -> None:
    assert statements.get_shape(statement) == shape


def test_the_cheapest_tests_that_send_every_statement_are_repeated() -> None:
    shapes = {"both": {"a", "b"}, "dear": {"a", "b"}, "one": {"b"}, "none": set()}
    seconds = {"dear": 60.0}
    chosen = statements.choose_tests(shapes, seconds)
    assert chosen == {"both", "one", "dear"}
    many = {f"test_{number}": {"a"} for number in range(10)}
    assert len(statements.choose_tests(many, {})) == statements.TESTS_PER_STATEMENT


def test_a_deadline_moves_on_while_others_use_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressure = tmp_path / "cpu"
    monkeypatch.setattr(patience, "_PRESSURE", pressure)
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n")
    deadline = Deadline(20)
    now = time.monotonic()
    assert now + 19 < deadline
    assert now + 21 > deadline
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=31000000\n")
    assert now + 49 < deadline
    assert now + 51 > deadline
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=9000000000\n")
    assert now + patient(20) + 1 > deadline


def test_a_deadline_is_the_longest_where_no_load_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_PRESSURE", tmp_path / "absent")
    deadline = Deadline(20)
    assert time.monotonic() + patient(20) - 1 < deadline


REPEATED = """
    import pytest

    @pytest.fixture
    def database_on_disk():
        return None

    @pytest.mark.database
    def test_chosen(): pass
    @pytest.mark.database
    def test_alike(): pass
    @pytest.mark.sqlite
    def test_of_sqlite(): pass
    @pytest.mark.database
    def test_race(database_on_disk): pass
    @pytest.mark.database
    @pytest.mark.needs("slurmctld")
    def test_repair(database_on_disk): pass
    @pytest.mark.database
    @pytest.mark.needs("slurmctld")
    def test_look(): pass
    def test_pure(): pass
"""


def test_on_sqlite_each_test_of_a_database_is_repeated_once_and_first_what_differs(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\nmarkers = needs(program)\n    sqlite\n    database")
    items = pytester.getitems(REPEATED)
    chosen = frozenset({f"{items[0].path.name}::test_chosen"})
    repeated = {
        which: names([item for item in items if is_repeated_on_sqlite(item, which, chosen)])
        for which in ("differing", "rest")
    }
    assert repeated == {
        "differing": ["test_chosen", "test_of_sqlite", "test_race"],
        "rest": ["test_alike", "test_repair"],
    }


def test_a_file_is_read_for_sqlite_where_a_test_of_it_may_differ_there(tmp_path: Path) -> None:
    texts = {
        "test_chosen_one.py": "def test_locks(): pass\n",
        "test_race.py": "def test_race(database_on_disk): pass\n",
        "test_embedded.py": "@pytest.mark.sqlite\ndef test_of_sqlite(): pass\n",
        "test_alike.py": "def test_locks(): pass\n",
        "conftest.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    chosen = frozenset({"test_chosen_one.py::test_locks"})
    read = {name for name in texts if may_differ_on_sqlite(tmp_path / name, chosen)}
    assert read == set(texts) - {"test_alike.py"}


def test_the_fixture_of_a_race_is_asked_for_where_the_race_stands() -> None:
    """Else a file could have a race without its name in it, and not be read for SQLite."""
    folder = Path(__file__).parent
    others = [file for file in folder.rglob("*.py") if not file.name.startswith("test_")]
    naming = {
        str(file.relative_to(folder)) for file in others if "database_on_disk" in file.read_text()
    }
    assert naming == {"conftest.py", "tiers.py"}
