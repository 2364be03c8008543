"""What a process depends on and cannot reach: since when. One line in the log when it begins, and
one when it ends, however many ask meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime

from incidents.text.wording import format_duration, format_moment
from kintsugi import clock

_log = logging.getLogger(__name__)


class Outage:
    """Of one thing. `describe` says in the log which it is, `effect` what rests meanwhile; `verb`
    and `ends` are what it does then, and what it does again."""

    def __init__(
        self,
        describe: Callable[[], str],
        effect: str,
        *,
        verb: str = "does not answer",
        ends: str = "answers again",
    ) -> None:
        self._describe = describe
        self._effect = effect
        self._verb = verb
        self._ends = ends
        self._lock = threading.Lock()
        self._since: datetime | None = None

    @property
    def since(self) -> datetime | None:
        """None: it answers, as far as this process knows."""
        return self._since

    def begin(self, reason: str) -> datetime:
        """Since when it is away: from now on, where it was not before."""
        with self._lock:
            if self._since is None:
                self._since = clock.now()
                _log.warning(
                    "%s %s since %s: %s. %s",
                    self._describe(),
                    self._verb,
                    format_moment(self._since),
                    reason,
                    self._effect,
                )
            return self._since

    def end(self) -> None:
        with self._lock:
            if self._since is None:
                return
            length = format_duration(clock.now() - self._since)
            _log.warning("%s %s, after %s", self._describe(), self._ends, length)
            self._since = None
