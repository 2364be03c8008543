"""The reserve of a play: a hot spare, the vendor's parts, and nodes that are set aside as lemons."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from incidents.db.prepared import Prepared
from incidents.models import Quarantine, Spare, VendorCase
from incidents.reserve import lemons, spares
from incidents.vendor import cases
from incidents.vocabulary.lifecycle import State
from incidents.vocabulary.vendor_states import WITHOUT_PART, Move
from runbooks import spare_swaps
from runbooks.slurm.protocol import SlurmError
from tests.builders import an_incident

if TYPE_CHECKING:
    from tests.simulation.play import Play

PARTITION = "gpu"
# A spare is kept free by leaving the partition, or by a reservation.
_RESERVED = 0.3
_BROKE_BEFORE = (timedelta(days=9), timedelta(days=3))
# Asked with each turn.
_ASIDE = Prepared(lambda: Quarantine.objects.filter(ended_at=None).values_list("node__name"))


class Reserve:
    """Administrators who look after what stands ready and what is set aside."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self._spares: tuple[str, ...] = ()
        self._parts = 0

    def list_acts(self) -> dict[str, Callable[[], None]]:
        return {
            "part": self.install_part,
            "spare": self.return_spare,
            "release": self.end_quarantine,
        }

    # Before a play begins
    # ---------------------------------------------------------------------------------------------

    def keep_spare(self, node: str, luck: random.Random) -> None:
        """Free for nodes of the partition."""
        play, is_reserved = self.play, luck.random() < _RESERVED
        now = play.site.now
        spare = spares.add(node, partitions=[PARTITION], is_reserved=is_reserved, now=now)
        assert isinstance(spare, Spare)
        spare_swaps.keep_free(spare, play.site.slurm, now)
        self._spares = (node,)
        play.note(
            "bob", f"keeps {node} as a spare by {'reservation' if is_reserved else 'partition'}"
        )

    def let_break_often(self, node: str) -> None:
        """One incident less than makes it a lemon, of another GPU."""
        play = self.play
        for before in _BROKE_BEFORE:
            at = play.site.now - before
            incident = an_incident(
                resource=play.site.gpu(node, 1), at=at, state=State.RESOLVED, closed_at=at
            )
            assert incident.root_fault is not None
            incident.root_fault.is_active = False
            incident.root_fault.save()
        play.note("site", f"{node} has broken {len(_BROKE_BEFORE)} times this month")

    # What others ask
    # ---------------------------------------------------------------------------------------------

    def list_spares(self) -> tuple[str, ...]:
        return self._spares

    def get_in_partition(self) -> frozenset[str]:
        """Those that Slurm gives jobs of the partition, or would if they were in service."""
        return frozenset(self.play.site.slurm.read_partitions()[PARTITION])

    def is_free(self, node: str) -> bool:
        """Whether no job is to come there."""
        reserved = (found.nodes for found in self.play.site.slurm.list_reservations())
        return node not in self.get_in_partition() or any(node in nodes for nodes in reserved)

    def get_aside(self) -> frozenset[str]:
        return frozenset(_ASIDE.values())

    # Acts
    # ---------------------------------------------------------------------------------------------

    def install_part(self) -> None:
        """The oldest part that a node which is out waits for."""
        play = self.play
        for case in VendorCase.objects.filter(state__in=WITHOUT_PART).order_by("pk"):
            node = case.incident.node.name if case.incident.node is not None else ""
            if not node or not play.look(node).is_out or case.resource != play.site.gpu(node):
                continue
            self._parts += 1
            serial = f"NEW-{self._parts}"
            play.site.nodes.nodes[node].replace_gpu(0, serial)
            play.site.nodes.reboot(node)
            cases.move(case.pk, Move.INSTALL, actor="bob", serial=serial, now=play.site.now)
            play.note("bob", f"puts {serial} into {node}")
            return

    def return_spare(self) -> None:
        """`kintsugi spare return`."""
        play = self.play
        spare = Spare.objects.select_related("node").filter(stands_for__isnull=False).first()
        if spare is None:
            return
        spares.begin_leaving(spare, play.site.now)
        spare.refresh_from_db()
        with play.by_person():
            try:
                spare_swaps.keep_free(spare, play.site.world.slurm_writer, play.site.now)
            except SlurmError as error:
                play.note("bob", f"kintsugi spare return {spare.node.name}: {error}")
                return
        play.note("bob", f"kintsugi spare return {spare.node.name}")

    def end_quarantine(self) -> None:
        play = self.play
        row = Quarantine.objects.filter(ended_at=None).order_by("pk").first()
        if row is None:
            return
        lemons.release(row.pk, actor="bob", why="a new riser", now=play.site.now)
        play.record.changes += 1
        play.note("bob", f"ends the quarantine of {row.node.name}")


@contextmanager
def around_swaps(enters: Callable[[str], None], leaves: Callable[[str], None]) -> Iterator[None]:
    """Each is called with the spare's name, before Slurm is asked."""
    bring_in, keep_free = spare_swaps.bring_in, spare_swaps.keep_free

    def check_and_bring_in(spare: Spare, *arguments: Any) -> None:
        enters(spare.node.name)
        bring_in(spare, *arguments)

    def check_and_keep_free(spare: Spare, *arguments: Any) -> None:
        leaves(spare.node.name)
        keep_free(spare, *arguments)

    with (
        patch.object(spare_swaps, "bring_in", check_and_bring_in),
        patch.object(spare_swaps, "keep_free", check_and_keep_free),
    ):
        yield
