"""What holds before a process begins, in two kinds of Django checks.

1. CONFIGURATION: the files that the settings name. Light, so that every command asks for it.
2. SERVING: catalogue, rules, runbooks, Redis and node access. It loads what it checks, so it is
   asked for by what serves (`up`, receiver, workers, beat, web), by what acts, and by `preflight`.

`kintsugi check` asks for both. Celery drops the answer of Django's checks and a WSGI server asks
for none: these processes call `require`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

from kintsugi.configuration import schema

CONFIGURATION = "configuration"
SERVING = "serving"

_log = logging.getLogger(__name__)


def register_checks() -> None:
    checks.register(check_configuration, CONFIGURATION)
    checks.register(check_serving, SERVING)


def check_configuration(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:
    return [*_check_credentials(), *_check_people_of_slack()]


def check_serving(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:
    """All that CONFIGURATION has not found already."""
    from kintsugi import checks as serving  # noqa: PLC0415  (paramiko, redis, the catalogue)

    known = check_configuration(app_configs)
    found = [message for check in serving.CHECKS for message in check(app_configs)]
    return [message for message in found if message not in known]


def _check_credentials() -> Sequence[checks.CheckMessage]:
    values = settings.KINTSUGI
    path = values["KINTSUGI_CREDENTIALS"]
    if not path:
        return []
    from kintsugi.clients import credentials  # noqa: PLC0415  (only a site that has the file reads it)

    try:
        credentials.load(path, with_bmc=bool(values["KINTSUGI_ACTS"]))
    except ImproperlyConfigured as error:
        hint = "Correct KINTSUGI_SSH_KEY or the host keys."
        return [checks.Error(str(error), hint=hint, id="kintsugi.E002")]
    return []


def _check_people_of_slack() -> Sequence[checks.CheckMessage]:
    """A list that is read wrongly would keep people from the stop switch when they need it."""
    if not settings.KINTSUGI["KINTSUGI_SLACK_USERS"]:
        return []
    from kintsugi.clients import slack_users  # noqa: PLC0415  (models: this module loads before)

    try:
        slack_users.names()
    except slack_users.UnreadableList as error:
        return [checks.Error(str(error), hint="docs/slack.md has the format.", id="kintsugi.E005")]
    return []


def require(*tags: str) -> None:
    """Logs what the checks with one of these tags warn of; without tags, all checks.

    Raises SystemExit with every error when there is one, or when the schema is not this version's.
    """
    found = checks.run_checks(tags=tags or None)
    shown = [message for message in found if not message.is_silenced()]
    errors = [message for message in shown if message.level >= checks.ERROR]
    for message in shown:
        if message not in errors:
            _log.warning("%s", message)
    if errors:
        _refuse("\n".join(str(message) for message in errors))
    require_schema()


def require_schema() -> None:
    """Raises SystemExit when the tables are not this version's. A database that does not answer
    keeps nobody from starting: what comes in waits for it on disk."""
    try:
        problem = schema.find_problem()
    except DatabaseError as error:
        _log.warning("%s does not answer: %s", schema.store_name(), str(error).strip())
        return
    if problem:
        _refuse(problem)


def _refuse(words: str) -> None:
    raise SystemExit(f"Kintsugi does not start:\n{words}")
