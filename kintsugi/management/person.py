"""Who types a command: the account that logged in to this machine, as the kernel kept it."""

from __future__ import annotations

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


def check_actor(actor: str) -> None:
    """Raises CommandError where the site wants two persons for some orders, and somebody speaks in
    another's name."""
    person = get_person()
    if settings.KINTSUGI["KINTSUGI_SECOND_PERSON"] and actor != person:
        raise CommandError(
            f"You are {person}: with KINTSUGI_SECOND_PERSON set, --actor names nobody else."
        )


def name_actor(actor: str) -> str:
    """Whom the record names: who types the command, and whom they say that they do it for. Raises
    CommandError as `check_actor`."""
    check_actor(actor)
    person = get_person()
    return actor if actor == person else f"{actor}, typed by {person}"
