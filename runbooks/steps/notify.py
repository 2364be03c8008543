"""Tell people something in the runbook's own words. Nothing is touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from runbooks import text_templates
from runbooks.step import Base, Context, Done, Parameter, Result


class Notify(Base):
    """The text goes into the timeline, and from there to Slack like every step."""

    name: ClassVar[str] = "notify"
    plan: ClassVar[str] = "tell people"
    needs_hold: ClassVar[bool] = False
    needs_node: ClassVar[bool] = False
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "text": Parameter(text_templates.parse_template, text_templates.EXPECTED, is_needed=True),
    }

    def run(self, ctx: Context) -> Result:
        text = text_templates.fill(
            ctx.params["text"], node=ctx.node, fault_type=ctx.fault_type, incident=ctx.incident_id
        )
        return Done(text)
