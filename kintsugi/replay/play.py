"""What every play has in common: default settings, limits, and a pipeline on the virtual clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from django.conf import settings

from kintsugi.configuration import config
from runbooks.guards.policy import Policy

# The site's stop file stops the site, not a replay.
NO_STOP_FILE = Path(os.devnull) / "stop"
# What a replay keeps of the site's settings. All else is as it is by default: one scenario ends
# alike everywhere.
KEPT_SETTINGS = ("KINTSUGI_DATA_DIR", "KINTSUGI_BASE_URL", "KINTSUGI_TIME_ZONE")

Say = Callable[[str], None]


def print_nothing(text: str) -> None:
    """Nobody watches."""


@contextmanager
def use_default_settings() -> Iterator[None]:
    """Within it the periods and limits are Kintsugi's own, whatever this site or demonstration has
    set."""
    site = settings.KINTSUGI
    settings.KINTSUGI = config.load({}) | {name: site[name] for name in KEPT_SETTINGS}
    try:
        yield
    finally:
        settings.KINTSUGI = site


def make_policy(cluster_name: str, verify_command: tuple[str, ...]) -> Policy:
    """The operator's limits as they are by default, but for what the play says."""
    policy = Policy.from_settings(settings.KINTSUGI)
    return replace(
        policy, cluster_name=cluster_name, verify_command=verify_command, stop_file=NO_STOP_FILE
    )
