"""The site's settings file: TOML under the environment, each wrong line named with its file."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from kintsugi.configuration import config, settings_file


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "kintsugi.toml"
    path.write_text(text)
    return path


def loaded(path: Path, **environ: str) -> dict[str, object]:
    sources = settings_file.merge({"KINTSUGI_CONFIG": str(path), **environ})
    return config.load(sources.values, sources.origins)


def refused(path: Path, **environ: str) -> str:
    with pytest.raises(ImproperlyConfigured) as caught:
        loaded(path, **environ)
    return str(caught.value)


def test_texts_numbers_truths_and_lists_are_settings(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'KINTSUGI_CLUSTER_NAME = "sakuraone"\nKINTSUGI_CAP_NODES = 7\nKINTSUGI_ACTS = false\n'
        'KINTSUGI_ALLOWED_HOSTS = ["a.example.org", "b.example.org"]\n',
    )
    values = loaded(path)
    assert values["KINTSUGI_CLUSTER_NAME"] == "sakuraone"
    assert values["KINTSUGI_CAP_NODES"] == 7
    assert values["KINTSUGI_ACTS"] is False
    assert values["KINTSUGI_ALLOWED_HOSTS"] == ["a.example.org", "b.example.org"]


def test_the_environment_wins(tmp_path: Path) -> None:
    path = written(tmp_path, "KINTSUGI_CAP_NODES = 7\nKINTSUGI_POD_FLOOR = '80%'\n")
    values = loaded(path, KINTSUGI_CAP_NODES="9")
    assert (values["KINTSUGI_CAP_NODES"], values["KINTSUGI_POD_FLOOR"]) == (9, 0.8)


def test_a_secret_in_the_environment_outdoes_the_files_path_to_it(tmp_path: Path) -> None:
    path = written(tmp_path, 'SLACK_BOT_TOKEN_FILE = "/nowhere"\n')
    assert loaded(path, SLACK_BOT_TOKEN="xoxb-1")["SLACK_BOT_TOKEN"] == "xoxb-1"


def test_a_wrong_value_is_named_with_its_file_and_what_was_expected(tmp_path: Path) -> None:
    path = written(tmp_path, "KINTSUGI_CAP_NODES = 0\n")
    assert f"{path}: KINTSUGI_CAP_NODES=0: expected a whole number from 1." in refused(path)


def test_a_name_that_is_no_setting_is_refused_whatever_its_prefix(tmp_path: Path) -> None:
    path = written(tmp_path, 'KINTSUGI_QUITE_PERIOD = "5m"\ncap_nodes = 3\n')
    text = refused(path)
    assert f"{path}: KINTSUGI_QUITE_PERIOD: no such setting. Is it KINTSUGI_QUIET_PERIOD?" in text
    assert f"{path}: cap_nodes: no such setting." in text


def test_a_wrong_secret_of_the_file_is_not_repeated(tmp_path: Path) -> None:
    text = refused(written(tmp_path, 'DATABASE_URL = "mysql://root:hunter2@db/x"\n'))
    assert "DATABASE_URL=(hidden): expected postgresql://" in text
    assert "hunter2" not in text


def test_a_table_is_refused_by_its_name(tmp_path: Path) -> None:
    path = written(tmp_path, "[database]\nhost = 'x'\n")
    assert f"{path}: database: expected a text, a number, true, false or a list." in refused(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"KINTSUGI_ACTS = \n", "expected TOML"), (b"\xff", "expected UTF-8")],
    ids=["no value", "no text"],
)
def test_what_is_no_toml_is_named_with_its_file(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / "kintsugi.toml"
    path.write_bytes(content)
    assert f"{path}: {problem}" in refused(path)


def test_a_file_that_is_named_and_not_there_stops_the_start(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in refused(tmp_path / "kintsugi.toml")


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    """A folder in its place: root too cannot read that."""
    folder = tmp_path / "kintsugi.toml"
    folder.mkdir()
    assert "cannot be read (Is a directory)" in refused(folder)


def test_no_file_is_read_unless_it_is_named() -> None:
    sources = settings_file.merge({"KINTSUGI_CAP_NODES": "3"})
    assert sources.values == {"KINTSUGI_CAP_NODES": "3"}
    assert sources.origins == {}
