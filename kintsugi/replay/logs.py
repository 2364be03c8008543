"""Plays plain log lines of a site: in shadow, with no node to act upon and no Slurm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from detectors import registry
from kintsugi.clients.doors import NoShell, NoSlurmShell
from kintsugi.replay import report
from kintsugi.replay.agenda import Agenda
from kintsugi.replay.log_file import Stamped
from kintsugi.replay.notifier import KeepingNotifier
from kintsugi.replay.play import Say, make_policy, print_nothing, use_default_settings
from kintsugi.replay.player import Player, make_player
from kintsugi.replay.report import Played
from runbooks.slurm.client import ScontrolReader, parse_controller
from runbooks.step import World

# After the last line of a log file: what waits for an echo or a hold-down has been judged by then.
AFTERMATH = timedelta(minutes=10)


@use_default_settings()
def play(lines: Sequence[Stamped], *, say: Say = print_nothing) -> Played:
    """Each line at its own time, on the default connection, which must be an empty, migrated
    database."""
    agenda = Agenda(lines[0].at)
    no_slurm = NoSlurmShell("a replay of log files has no Slurm")
    world = World(
        slurm=ScontrolReader(no_slurm, parse_controller("local")),
        shell=NoShell(),
        detectors=registry.DETECTORS,
        policy=make_policy("", ()),
    )
    player = make_player(agenda, world, KeepingNotifier(), say)
    for line in lines:
        agenda.add(line.at, _build_delivery(player, line.line))
    player.play(lines[-1].at + AFTERMATH)
    return report.collect(lines=player.intake.lines, events=player.intake.events, deeds={})


def _build_delivery(player: Player, line: bytes) -> Callable[[], None]:
    return lambda: player.deliver(line)
