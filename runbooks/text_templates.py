"""Texts of runbooks with places for a run's own words. Pure: a text names its places, and reaches
nothing else."""

from __future__ import annotations

from string import Formatter

PLACES = ("node", "fault_type", "incident")
LONGEST = 1000
EXPECTED = (
    "a text of at most 1000 characters, with {node}, {fault_type} and {incident} as its only places"
)


def parse_template(value: object) -> str:
    """A text as a parameter may give it. Raises ValueError where it would reach for more than its
    places."""
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST:
        raise ValueError("it is no text of at most 1000 characters")
    for _, place, form, conversion in Formatter().parse(value):
        if place is not None and (place not in PLACES or form or conversion):
            raise ValueError(f"{{{place}}} is none of its places")
    return value


def fill(text: str, *, node: str, fault_type: str, incident: int) -> str:
    """The text with its places filled. The text has been read before: what is filled in is never
    looked at again."""
    return text.format(node=node, fault_type=fault_type, incident=incident)
