"""Who types a command: the account that logged in to this machine, as the kernel kept it."""

from __future__ import annotations

import argparse
import os
import pwd
from pathlib import Path

from django.conf import settings
from django.core.management.base import CommandError

# Set once at a login (pam_loginuid), kept through sudo and su, and no ordinary user can set it
# anew: proc_loginuid_write in Linux's fs/proc/base.c asks for CAP_AUDIT_CONTROL.
LOGIN_UID = Path("/proc/self/loginuid")
_UNSET = 2**32 - 1
_ROOT = 0
_LONGEST = 150  # characters of an actor's column, as of Django's own User.username


def get_person() -> str:
    """Without a login, as in a container, sudo's word counts of root alone: anybody else can set
    `SUDO_USER`, as `LOGNAME`, to whatever they like."""
    login = _read_login()
    if login is not None:
        return _get_name(login)
    own = os.getuid()
    caller = os.environ.get("SUDO_USER", "") if own == _ROOT else ""
    return caller or _get_name(own)


def _read_login() -> int | None:
    """None: the kernel keeps none, or nobody has logged in."""
    try:
        login = int(LOGIN_UID.read_text())
    except (OSError, ValueError):
        return None
    return None if login == _UNSET else login


def _get_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def add_actor(
    parser: argparse.ArgumentParser,
    help_text: str = "who does it, for the record",
    *,
    may_need_second: bool = False,
) -> None:
    """`--actor` of every command that has it: `options["actor"]` is what the record names.

    `may_need_second`: where the site wants two persons for some orders, it names nobody else."""
    name = check_and_name_actor if may_need_second else name_actor
    parser.add_argument("--actor", type=name, default=get_person(), help=help_text)


def check_and_name_actor(actor: str) -> str:
    """As `name_actor`. Raises CommandError where the site wants two persons for some orders, and
    somebody speaks in another's name."""
    person = get_person()
    if settings.KINTSUGI["KINTSUGI_SECOND_PERSON"] and actor not in ("", person):
        raise CommandError(
            f"You are {person}: with KINTSUGI_SECOND_PERSON set, --actor names nobody else."
        )
    return name_actor(actor)


def name_actor(actor: str) -> str:
    """Whom the record names: who types the command, and whom they say that they do it for. Raises
    CommandError for a name that no record can hold."""
    person = get_person()
    if actor in ("", person):
        return person
    named = f"{actor}, typed by {person}"
    if not actor.isprintable() or len(named) > _LONGEST:
        most = _LONGEST - len(named) + len(actor)
        raise CommandError(f"--actor is a name in one line, of {most} characters at most.")
    return named
