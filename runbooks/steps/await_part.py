"""Wait for the vendor's part, for days if need be, until it is in its slot and the node answers
again."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from detectors.faults import Recovery
from incidents.models import VendorCase
from incidents.vendor import cases, texts
from incidents.vocabulary.vendor_states import CaseState
from runbooks.node import looking
from runbooks.step import Base, Context, Done, Failed, Result, Wait, format_iso, get_backoff

# Our choice: the part takes days, and whoever has put it in waits this long for the tests at most.
_LONGEST = timedelta(minutes=10)


class AwaitPart(Base):
    """Ends when the case says that the part is installed, by a person's word or because polls saw
    it."""

    name: ClassVar[str] = "await_part"
    plan: ClassVar[str] = "wait for the new part"
    recovery: ClassVar[Recovery | None] = Recovery.VENDOR_REPLACEMENT

    def run(self, ctx: Context) -> Result:
        case = _find_case(ctx)
        if case is None:
            return _fail(ctx, f"Incident #{ctx.incident_id} has no vendor case.")
        if case.state == CaseState.CLOSED and not case.new_serial:
            return _fail(ctx, f"Vendor case {case.pk} was closed without a new part.")
        if cases.is_without_part(case):
            since = f"{case.since_at:%Y-%m-%d %H:%M %Z}"
            part = texts.format_part(case.part, case.resource)
            text = f"Vendor case {case.pk} for {part} is {case.state} since {since}."
            return Wait(text, get_backoff(case.since_at, ctx.now, longest=_LONGEST))
        return _end_wait(ctx, case)


def _find_case(ctx: Context) -> VendorCase | None:
    """The case that this run opened, else the incident's."""
    number = ctx.facts.get("vendor_case")
    if number is None:
        return cases.get_active_case(ctx.incident_id)
    return VendorCase.objects.filter(pk=number).first()


def _end_wait(ctx: Context, case: VendorCase) -> Result:
    """The part is in. A machine that was off for it has to be on again before anything is
    tested."""
    boot = looking.read_boot(ctx)
    if boot is None:
        text = f"The part of vendor case {case.pk} is in, and {ctx.node} does not answer yet."
        again_in = get_backoff(case.since_at, ctx.now, longest=timedelta(minutes=1))
        ask = f"Switch {ctx.node} on: its new part is to be tested."
        return Wait(text, again_in, ask=ask, is_told=True)
    part = f"The new part of vendor case {case.pk}"
    text = f"{part} is in, serial {case.new_serial}: {ctx.node} is tested now."
    cases.reopen_after_dead_part(case.pk, now=ctx.now, note=text)
    ctx.facts.update(booted_at=format_iso(boot.booted_at), boot_id_after=boot.boot_id)
    return Done(text, boot=boot, is_told=False)


def _fail(ctx: Context, text: str) -> Failed:
    return Failed(
        text,
        ask=(
            f"Decide what becomes of {ctx.node}: it is drained and waits for a part that does not"
            " come."
        ),
    )
