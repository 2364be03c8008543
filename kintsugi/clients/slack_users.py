"""Who a Slack user is in the console, and whether that person may. Nothing else decides on orders
from Slack.

The list is read for each order, and the account's rights are asked each time: what is taken away
counts at once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User

from detectors import toml_text
from kintsugi.roles import PERMISSIONS

_log = logging.getLogger(__name__)
_SETTING = "KINTSUGI_SLACK_USERS"
_ID = re.compile(r"[UW][A-Z0-9]{1,30}")


class UnreadableList(Exception):
    """The file of KINTSUGI_SLACK_USERS is not what was expected. The message names the line or the
    reason."""


@dataclass(frozen=True)
class Person:
    """An account of the console."""

    name: str


@dataclass(frozen=True)
class NotPermitted:
    """Nothing is done; `reason` says who may and how to become one. `name`: who it was, as far as
    is known."""

    name: str
    reason: str


def names() -> Mapping[str, str]:
    """Console names by Slack user id; empty where none is set. Raises UnreadableList."""
    path: Path | None = settings.KINTSUGI[_SETTING]
    if path is None:
        return {}
    try:
        read = toml_text.parse(path.read_text())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableList(f"{_SETTING}={path}: cannot be read ({why}).") from error
    for slack_id, name in read.items():
        if not _ID.fullmatch(slack_id) or not isinstance(name, str) or not name:
            raise UnreadableList(
                f'{_SETTING}={path}: {slack_id!r}: expected lines such as U012ABCDEF = "alice".'
            )
    return read


def find(slack_id: str, permissions: Sequence[str]) -> Person | NotPermitted:
    """The person, who has all of these permissions in the console now; or why nothing is done."""
    shown = slack_id if _ID.fullmatch(slack_id) else "-"
    nobody = f"slack:{shown}"
    try:
        name = names().get(slack_id)
    except UnreadableList as error:
        _log.error("nobody can act from Slack: %s", error)
        return NotPermitted(
            nobody, "Kintsugi cannot read who is who in Slack; its log says why. Use the console."
        )
    if name is None:
        return NotPermitted(
            nobody,
            f"Slack user {shown} is nobody in the console. {_format_allowed_roles(permissions)}"
            " An administrator of Kintsugi adds"
            f' the line {shown} = "your console name" to the file of {_SETTING}.',
        )
    user = User.objects.filter(username=name, is_active=True).first()
    if user is None:
        return NotPermitted(
            nobody,
            f"The console has no active account {name}. An administrator makes it, or corrects it.",
        )
    if not user.has_perms(permissions):
        return NotPermitted(
            name,
            f"{name} may not do this. {_format_allowed_roles(permissions)}"
            " An administrator gives roles.",
        )
    return Person(name)


def _format_allowed_roles(permissions: Sequence[str]) -> str:
    roles = [role.value for role, given in PERMISSIONS.items() if set(permissions) <= set(given)]
    return f"Who has the role {' or '.join(roles)} may."
