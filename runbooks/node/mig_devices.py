"""MIG devices that a repair took away: a boot and a reset of the GPU end them, and nothing of the
driver's makes them anew (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/).

Kept from the look before the repair, compared with the look after it. Only looks: which devices a
site wants is known to the site alone, so nothing is created here.
"""

from __future__ import annotations

from collections.abc import Mapping

from runbooks.node.looking import NodeInspection
from runbooks.step import Context

BEFORE = "mig_devices_before"
"""The fact of a run: of each GPU that had MIG devices before the repair, which."""
_REPAIRED = {"booted_at", "reset_at"}


def note_before(ctx: Context, inspection: NodeInspection) -> None:
    """A later look before the repair replaces what an earlier one has seen of the same GPU; one
    that could not see a GPU takes nothing back."""
    if _REPAIRED & ctx.facts.keys():
        return
    before = dict(ctx.facts.get(BEFORE, {}))
    for resource, devices in inspection.mig_devices.items():
        before.pop(resource, None)
        if devices:
            before[resource] = devices
    if before or BEFORE in ctx.facts:
        ctx.facts[BEFORE] = before


def list_lost(ctx: Context, inspection: NodeInspection) -> list[str]:
    """One sentence part for each GPU whose devices are others now; GPUs that did not answer are
    left out."""
    before: Mapping[str, str] = ctx.facts.get(BEFORE, {})
    now = inspection.mig_devices
    lost = []
    for resource in sorted(before.keys() & now.keys()):
        if before[resource] != now[resource]:
            left = now[resource] or "none"
            lost.append(f"{resource}: {before[resource]} before, {left} now")
    return lost
