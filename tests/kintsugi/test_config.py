"""Settings: each wrong value is named with what was expected, all in one go."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from kintsugi import config


def test_every_default_loads_when_nothing_is_set() -> None:
    values = config.load({})
    assert set(values) == {key.name for key in config.KEYS}
    assert values["KINTSUGI_QUIET_PERIOD"] == timedelta(minutes=30)
    assert values["DATABASE_URL"] is None


def test_every_wrong_value_is_named_with_what_was_expected() -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        config.load({"KINTSUGI_QUIET_PERIOD": "soon", "KINTSUGI_SLURM": "telnet:x"})
    assert "KINTSUGI_QUIET_PERIOD=soon: expected a number and s, m, h or d" in str(caught.value)
    assert "KINTSUGI_SLURM=telnet:x: expected off, local, or ssh:" in str(caught.value)


def test_an_unknown_key_is_refused_when_it_is_ours_by_prefix() -> None:
    with pytest.raises(ImproperlyConfigured, match="KINTSUGI_QUITE_PERIOD: no such setting"):
        config.load({"KINTSUGI_QUITE_PERIOD": "5m", "HOME": "/"})


def test_a_secret_is_read_from_a_file_when_its_key_says_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("xoxb-1\n")
    assert config.load({"SLACK_BOT_TOKEN_FILE": str(tmp_path / "token")})["SLACK_BOT_TOKEN"] == "xoxb-1"


def test_a_missing_secret_file_is_named() -> None:
    with pytest.raises(ImproperlyConfigured, match="SLACK_BOT_TOKEN_FILE=/nowhere: cannot be read"):
        config.load({"SLACK_BOT_TOKEN_FILE": "/nowhere"})


def test_a_value_and_a_file_for_one_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ImproperlyConfigured, match="both set"):
        config.load({"REDIS_URL": "redis://x", "REDIS_URL_FILE": str(tmp_path)})


def test_a_wrong_secret_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        config.load({"DATABASE_URL": "mysql://root:hunter2@db/x"})
    assert "hunter2" not in str(caught.value)
