"""Who types a command: the account of this machine, or behind sudo whoever called it."""

from __future__ import annotations

import os
import pwd

from django.conf import settings
from django.core.management.base import CommandError


def get_person() -> str:
    """`SUDO_USER` is set by sudo itself; the kernel says the rest. `LOGNAME`, which anybody sets,
    is not asked."""
    return os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name


def check_actor(actor: str) -> None:
    """Raises CommandError where the site wants two persons for some orders, and somebody speaks in
    another's name."""
    person = get_person()
    if settings.KINTSUGI["KINTSUGI_SECOND_PERSON"] and actor != person:
        raise CommandError(
            f"You are {person}: with KINTSUGI_SECOND_PERSON set, --actor names nobody else."
        )
