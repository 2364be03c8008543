"""Open a case with the vendor for the broken part: once per part, whoever asks. The vendor is
called by a person."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

from incidents.vendor import cases
from incidents.vendor.cases import Facts
from incidents.vocabulary.changes import KINTSUGI, Refused
from runbooks.node import witnesses
from runbooks.step import Base, Context, Done, Failed, Parameter, Result, Wait

_ADVANCE = "yes or no: the new part comes before the old one goes back"


def _parse_vendor(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value.strip()) <= 64:
        raise ValueError("no name")
    return value.strip()


def _parse_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("neither yes nor no")
    return value


class OpenVendorCase(Base):
    """A row of ours, and so read-only for the world. A second turn finds the case of the first one
    by the part."""

    name: ClassVar[str] = "open_vendor_case"
    plan: ClassVar[str] = "open a case with the vendor"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "vendor": Parameter(_parse_vendor, "a name of at most 64 characters", default=""),
        "advance": Parameter(_parse_flag, _ADVANCE, default=False),
    }

    def find_obstacle(self, ctx: Context) -> Wait | None:
        """No part is condemned for what a text alone has told."""
        if witnesses.is_vendor_witnessed(ctx):
            return None
        fault = f"{ctx.fault_type} on {ctx.resource}"
        text = f"{fault} was told by a text alone. No vendor is called for that."
        ask = (
            f"See whether {fault} is real: {ctx.node} shows it nowhere, or cannot be asked. If it"
            " is, open the case by hand, or abort this run and begin it anew: kintsugi runbook"
            f" start vendor_replacement {ctx.incident_id}."
        )
        return Wait(text, timedelta(minutes=1), ask=ask, is_told=True)

    def run(self, ctx: Context) -> Result:
        vendor, is_advance = ctx.params.get("vendor", ""), ctx.params.get("advance") or None
        opened = cases.open_case(
            ctx.incident_id,
            actor=KINTSUGI,
            now=ctx.now,
            resource=ctx.resource,
            facts=Facts(vendor=vendor, is_advance=is_advance),
            key=ctx.key,
        )
        if isinstance(opened, Refused):
            return Failed(
                f"No vendor case can be opened for {ctx.resource}: {opened.reason}",
                ask=f"Open a vendor case for {ctx.resource} by hand; {ctx.node} stays drained.",
            )
        ctx.facts["vendor_case"] = opened.case_id
        return Done(opened.text, is_told=False)
