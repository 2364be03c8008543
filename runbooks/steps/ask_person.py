"""Ask a person for what no reboot cures: the node stays drained until they resume it."""

from __future__ import annotations

from typing import ClassVar

from runbooks.step import Base, Context, HandedOver, Result


class AskPerson(Base):
    name: ClassVar[str] = "ask_person"
    plan: ClassVar[str] = "ask a person to mend it"

    def run(self, ctx: Context) -> Result:
        return HandedOver(
            f"{ctx.node} is drained and empty. {ctx.fault_type} on {ctx.resource} is not cured by a reboot.",
            ask=f"Power-cycle {ctx.node} or call the vendor; afterwards resume it and resolve the incident.",
        )
