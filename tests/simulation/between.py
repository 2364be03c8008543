"""Where others may act between the product's calls to Slurm, within one of them, and between its
transactions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from django.db import connection

from detectors.detector import Output, Target
from fixtures.memory_power import MemoryPower
from fixtures.memory_slurm import MemorySlurm
from fixtures.memory_slurm_commands import CommandShell
from incidents.models import Incident
from runbooks.engine import start
from runbooks.lease import lease
from runbooks.models import Run
from runbooks.node import detached_command
from runbooks.power.protocol import PowerState
from runbooks.slurm.client import ScontrolWriter


class Interleaved:
    """The product's client; `pause` is called before each call of it."""

    def __init__(self, client: ScontrolWriter, pause: Callable[[str], None]) -> None:
        self._client = client
        self._pause = pause

    def with_check(self, check: Callable[[], None]) -> Interleaved:
        return Interleaved(self._client.with_check(check), self._pause)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        def paused(*arguments: Any, **more: Any) -> Any:
            self._pause(name)
            return call(*arguments, **more)

        return paused


# How a command that changes a node begins.
_UPDATE, _REBOOT, _CANCEL = (
    ("scontrol", "update"),
    ("scontrol", "reboot"),
    ("scontrol", "cancel_reboot"),
)


def parse_act(argv: tuple[str, ...]) -> tuple[str, str, str] | None:
    """(verb, node, reason) of a command that changes a node; None of any other."""
    words = [word for word in argv if word != "env" and not word.startswith(("TZ=", "SLURM_"))]
    opening = tuple(words[:2])
    if opening in (_REBOOT, _CANCEL):
        return words[1], words[2], ""
    fields = dict(word.partition("=")[::2] for word in words[2:])
    if opening != _UPDATE or "NodeName" not in fields:
        return None
    return fields["State"].lower(), fields["NodeName"], fields.get("Reason", "")


class ActShell(CommandShell):
    """Slurm's programs over a Slurm in memory. `watch` is called around each command that changes a
    node."""

    def __init__(
        self,
        slurm: MemorySlurm,
        watch: Callable[[tuple[str, str, str], Callable[[], Output]], Output],
    ) -> None:
        super().__init__(slurm)
        self._watch = watch

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        run = super().run
        act = parse_act(argv)
        if act is None:
            return run(target, argv, timeout)
        return self._watch(act, lambda: run(target, argv, timeout))


class WatchedPower:
    """Boards in memory. `watch` is called before each request to them, with `power_off` or
    `power_on`."""

    def __init__(self, power: MemoryPower, watch: Callable[[str, str], None]) -> None:
        self._power = power
        self._watch = watch

    def read_state(self, node: Target) -> PowerState:
        return self._power.read_state(node)

    def turn_off(self, node: Target) -> None:
        self._watch("power_off", node.name)
        self._power.turn_off(node)

    def turn_on(self, node: Target) -> None:
        self._watch("power_on", node.name)
        self._power.turn_on(node)


def _count_transactions() -> int:
    return len(connection.savepoint_ids)


@contextlib.contextmanager
def before_runs_begin(pause: Callable[[Incident], None]) -> Iterator[None]:
    """Calls `pause` once the product has decided to begin a run for an incident, before the
    transaction that stores it."""
    depth, build_run = _count_transactions(), start.build_run

    def build(incident: Incident, *arguments: Any, **more: Any) -> Run:
        if _count_transactions() == depth:
            pause(incident)
        return build_run(incident, *arguments, **more)

    with patch.object(start, "build_run", build):
        yield


@contextlib.contextmanager
def before_commands_start(check: Callable[[], None]) -> Iterator[None]:
    """Calls `check` before a step starts a command on its node that outlives the turn."""
    start_command = detached_command.start

    def start_checked(*arguments: Any, **more: Any) -> Any:
        check()
        return start_command(*arguments, **more)

    with patch.object(detached_command, "start", start_checked):
        yield


@contextlib.contextmanager
def checks_undisturbed(undisturbed: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """The lease is checked between the product's last look at a node and its act: in that moment
    nobody acts, but for what a play does within the act itself."""
    original = lease.check

    def check(run: Run) -> None:
        with undisturbed():
            original(run)

    with patch.object(lease, "check", check):
        yield


# These end a transaction, which nobody sees into before.
_ENDS = ("RELEASE", "ROLLBACK")


@contextlib.contextmanager
def between_statements(pause: Callable[[str], None]) -> Iterator[None]:
    """Calls `pause` with each statement, before it runs, that is in no transaction but the one that
    holds here, or begins one."""
    depth = _count_transactions()

    def run(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        is_outside = _count_transactions() == depth
        if is_outside and not sql.startswith(_ENDS):
            pause(sql)
        return execute(sql, *arguments)

    with connection.execute_wrapper(run):
        yield
