"""What leaving one source out counts, on a catalogue of three rows."""

import json
from pathlib import Path

import pytest

from detectors.catalog import catalog, compiled
from tests.conformance import score
from tests.conformance.score import LabelledLine, Score

_CATALOGUE = """
[[type]]
id = "gpu.sample"
title = "A sample"
component = "gpu"
event_type = "equipment"
severity = "warning"
action = "none"
clears = "by_operator"
meaning = "Made for a test."
source = "https://github.com/example/types"

# https://github.com/example/driver (sample.c, 1.7)
[[signature]]
type = "gpu.sample"
event = "raised"
on = "node"
program = "kernel"
facility = "kern"
begins = "message"
pattern = 'sample: lost'

# https://github.com/example/other (other.c, 1.7)
[[signature]]
type = "gpu.sample"
event = "raised"
on = "node"
program = "kernel"
facility = "kern"
begins = "message"
pattern = 'sample: broken'

[[signature]]
type = "gpu.sample"
event = "raised"
on = "node"
program = "kernel"
facility = "kern"
begins = "message"
pattern = 'sample: gone'
"""
_TABLE = """\
line\tcomponent\tsource
kernel: sample: lost\tgpu\thttps://github.com/example/driver test/a.log
kernel: sample: broken\tgpu\thttps://github.com/example/driver test/a.log
kernel: sample: gone\tnic_transceiver\ta list of 2026
kernel: sample: fine\tnone\ta list of 2026
"""


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    path = tmp_path / "sample.toml"
    path.write_text(_CATALOGUE, encoding="utf-8")
    return [path]


def test_a_row_states_its_comment_else_its_types_source(paths):
    assert [row.stated for row in score.read_rows(paths)] == [
        "# https://github.com/example/driver (sample.c, 1.7)",
        "# https://github.com/example/other (other.c, 1.7)",
        "https://github.com/example/types",
    ]


def test_signatures_written_from_the_source_itself_do_not_count(paths):
    lines = score.read_lines(_TABLE)
    assert list(score.score(lines, paths)) == [
        Score("a list of 2026", lines=1, read=1, wrong=1, left_out=0),
        Score("example/driver", lines=2, read=1, wrong=0, left_out=1),
    ]


def test_the_table_sums_up(paths):
    table = score.format_table(list(score.score(score.read_lines(_TABLE), paths)))
    assert table.splitlines()[-1].split() == ["all", "3", "67%", "50.0%", "0"]


def test_every_shipped_signature_is_among_the_rows():
    compiled_rows = json.loads(compiled.compile_catalog(catalog.files()))["signature"]
    rows = [row.row for row in score.read_rows(catalog.files())]
    assert sorted(map(repr, rows)) == sorted(map(repr, compiled_rows))


def test_a_line_is_named_by_its_repository_its_site_or_its_words():
    line = LabelledLine("sample: gone", "nic", "a list of 2026")
    assert line in score.read_lines(_TABLE.replace("kernel: sample: gone", "sample: gone"))
    assert score.name_source("https://lists.example.org/x/7") == "lists.example.org"


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "No such file"), ("line\tcomponent\n", "names no column source")],
)
def test_a_table_that_cannot_be_read_is_named_with_the_reason(
    text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "ours.tsv"
    if text is not None:
        table.write_text(text)
    with pytest.raises(SystemExit) as ended:
        score.main([str(table)])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert str(table) in error
    assert words in error
