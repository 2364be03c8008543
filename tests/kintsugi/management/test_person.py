"""Nobody gives an order in another person's name by what they type."""

from __future__ import annotations

import argparse
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import CommandError
from pytest_django import Settings

from kintsugi.management import person
from runbooks.models import AuditEntry, StopSwitch

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
    assert person.name_actor("") == "nobody"
    assert person.name_actor("ada") == "ada, typed by nobody"
    two = {"KINTSUGI_SECOND_PERSON": frozenset({"arming"})}
    settings.KINTSUGI = {**settings.KINTSUGI, **two}
    assert person.check_and_name_actor("nobody") == "nobody"
    with pytest.raises(CommandError, match="You are nobody"):
        person.check_and_name_actor("ada")


@pytest.mark.parametrize("actor", ["ada\nroot", "a" * 131, "\x1b[2J"])
def test_a_name_that_no_record_can_hold_is_refused_in_words(login: Path, actor: str) -> None:
    login.write_text(f"{NOBODY.pw_uid}\n")
    with pytest.raises(CommandError, match="of 133 characters at most"):
        person.name_actor(actor + "bcd")


def _find_actors(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if "--actor" in action.option_strings:
            yield action
        if isinstance(action, argparse._SubParsersAction):
            for leaf in action.choices.values():
                yield from _find_actors(leaf)


def test_every_command_names_who_types_it_beside_whom_it_is_typed_for(login: Path) -> None:
    login.write_text(f"{NOBODY.pw_uid}\n")
    names = [name for name, app in get_commands().items() if app == "kintsugi"]
    parsers = [
        load_command_class("kintsugi", name).create_parser("kintsugi", name) for name in names
    ]
    actors = [action for parser in parsers for action in _find_actors(parser)]
    assert len(actors) >= 20
    for action in actors:
        assert callable(action.type)
        assert action.type("ada") == "ada, typed by nobody"


@pytest.mark.django_db
def test_the_audit_log_says_who_stopped_and_for_whom(login: Path) -> None:
    login.write_text(f"{NOBODY.pw_uid}\n")
    call_command("stop", "--reason", "a fire", "--actor", "ada")
    assert StopSwitch.objects.get().engaged_by == "ada, typed by nobody"
    assert AuditEntry.objects.get().actor == "ada, typed by nobody"
