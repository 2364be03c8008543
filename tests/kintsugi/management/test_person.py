"""Nobody gives an order in another person's name by what they type."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from django.core.management.base import CommandError
from pytest_django import Settings

from kintsugi.management import person

NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the kernel says of the login; root types."""
    path = tmp_path / "loginuid"
    monkeypatch.setattr(person, "LOGIN_UID", path)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.delenv("SUDO_USER", raising=False)
    return path


def test_who_logged_in_is_who_types_also_behind_sudo_and_whatever_it_is_told(
    login: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login.write_text(f"{NOBODY.pw_uid}\n")
    monkeypatch.setenv("SUDO_USER", "bob")
    assert person.get_person() == "nobody"


@pytest.mark.parametrize("content", ["4294967295", "", "no number"])
def test_without_a_login_roots_sudo_says_who_called_it(
    login: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    login.write_text(content)
    assert person.get_person() == "root"
    monkeypatch.setenv("SUDO_USER", "aya")
    assert person.get_person() == "aya"


def test_an_ordinary_user_is_themselves_whatever_they_set(
    login: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login.write_text("4294967295")
    monkeypatch.setattr(os, "getuid", lambda: NOBODY.pw_uid)
    for variable in ("SUDO_USER", "LOGNAME", "USER"):
        monkeypatch.setenv(variable, "bob")
    assert person.get_person() == "nobody"


def test_an_account_without_a_name_is_its_number(login: Path) -> None:
    login.write_text("4294000000")
    assert person.get_person() == "4294000000"


def test_who_speaks_for_another_is_named_beside_them(login: Path, settings: Settings) -> None:
    login.write_text(f"{NOBODY.pw_uid}\n")
    assert person.name_actor("nobody") == "nobody"
    assert person.name_actor("ada") == "ada, typed by nobody"
    two = {"KINTSUGI_SECOND_PERSON": frozenset({"arming"})}
    settings.KINTSUGI = {**settings.KINTSUGI, **two}
    with pytest.raises(CommandError, match="You are nobody"):
        person.name_actor("ada")
