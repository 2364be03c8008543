"""Settings: each wrong value is named with what was expected, all in one go."""

from __future__ import annotations

import io
import os
import shlex
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command

from kintsugi.configuration import config


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
    assert (
        config.load({"SLACK_BOT_TOKEN_FILE": str(tmp_path / "token")})["SLACK_BOT_TOKEN"]
        == "xoxb-1"
    )


def test_a_missing_secret_file_is_named() -> None:
    with pytest.raises(ImproperlyConfigured, match="SLACK_BOT_TOKEN_FILE=/nowhere: cannot be read"):
        config.load({"SLACK_BOT_TOKEN_FILE": "/nowhere"})


def test_a_secret_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    with pytest.raises(ImproperlyConfigured, match=r"SLACK_BOT_TOKEN_FILE=.*token: expected UTF-8"):
        config.load({"SLACK_BOT_TOKEN_FILE": str(tmp_path / "token")})


def test_a_period_longer_than_a_century_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"KINTSUGI_KEEP=9999y: .* longer than 36500d"):
        config.load({"KINTSUGI_KEEP": "9999y"})


def test_a_value_and_a_file_for_one_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ImproperlyConfigured, match="both set"):
        config.load({"REDIS_URL": "redis://x", "REDIS_URL_FILE": str(tmp_path)})


def test_a_wrong_secret_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        config.load({"DATABASE_URL": "mysql://root:hunter2@db/x"})
    assert "hunter2" not in str(caught.value)


def test_options_of_the_database_reach_the_driver() -> None:
    url = "postgresql://kin:s%40cret@db1:5432,db2:5433/kintsugi?sslmode=verify-full&target_session_attrs=read-write"
    found = config.load({"DATABASE_URL": url})["DATABASE_URL"]
    assert found == {
        "host": "db1,db2",
        "port": "5432,5433",
        "user": "kin",
        "password": "s@cret",
        "dbname": "kintsugi",
        "sslmode": "verify-full",
        "target_session_attrs": "read-write",
    }


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://db/kintsugi?ssl_mode=verify-full", "libpq has no option 'ssl_mode'"),
        ("postgresql://db/kintsugi?sslmode=verify", "sslmode is one of disable, allow"),
        ("postgresql://hunter2@db", "it names no database"),
        ("postgresql://db:port/kintsugi?sslmode", "expected postgresql://USER"),
    ],
)
def test_an_option_of_the_database_that_cannot_be_honoured_stops_the_start(
    url: str, reason: str
) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        config.load({"DATABASE_URL": url})
    assert reason in str(caught.value)
    assert "hunter2" not in str(caught.value)


def _pasted(text: str) -> dict[str, str]:
    """An environment file as a shell and systemd read it."""
    lines = [shlex.split(line) for line in text.splitlines() if line and not line.startswith("#")]
    return dict(word.split("=", 1) for (word,) in lines)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {
            "KINTSUGI_QUIET_PERIOD": "45m",
            "KINTSUGI_CAP_SHARE": "7.5%",
            "KINTSUGI_WEB_LISTEN": "[::1]:8000",
            "KINTSUGI_VERIFY_COMMAND": "dcgmi diag -r 2 --parameters 'a b'",
            "KINTSUGI_SYSLOG_TIME_ZONES": "leaf-01=Asia/Tokyo,*=UTC",
            "KINTSUGI_SYSLOG_NETWORKS": "inventory,10.0.0.0/8",
        },
    ],
)
def test_what_settings_prints_is_taken_as_it_stands(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("xoxb-1")
    environ = {**given, "SLACK_BOT_TOKEN_FILE": str(tmp_path / "token")}
    monkeypatch.setattr(os, "environ", environ)
    out = io.StringIO()
    call_command("settings", stdout=out)
    assert config.load(_pasted(out.getvalue())) == config.load(environ)


def test_settings_print_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "environ", {"KINTSUGI_SECRET_KEY": "hunter2", "SLACK_BOT_TOKEN": "hunter3"}
    )
    out = io.StringIO()
    call_command("settings", stdout=out)
    assert "hunter" not in out.getvalue()
    assert "# SLACK_BOT_TOKEN is set and not shown" in out.getvalue()
