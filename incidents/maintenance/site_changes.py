"""What was changed at the site before something broke: the first question of whoever is called.
A commit hook, a playbook or a person tells of a change; whoever reads an incident sees those before
it. A change explains nothing by itself: it moves no node and joins no incidents."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors import resources
from incidents.models import Node, SiteChange, Switch

# Our choice: what was changed in the working day before may be in question, what is older has run
# through a night of jobs.
LOOKS_BACK = timedelta(hours=24)
# Of a clock that is not ours.
_AHEAD = timedelta(minutes=5)
_LONGEST_SUMMARY = 300
_LONGEST_AUTHOR = 100
_LONGEST_REFERENCE = 200


class ChangeRefused(ValueError):
    """It is not recorded; the text says why, and what would be."""


@dataclass(frozen=True)
class ChangeDraft:
    """`machines`: names of nodes and switches; none means the whole site. `reference` names the
    change where it is kept, such as a commit: told twice, it is recorded once."""

    summary: str
    author: str
    at: datetime
    reference: str = ""
    machines: Sequence[str] = ()


def record_change(draft: ChangeDraft, *, teller: str, now: datetime) -> SiteChange:
    """The row, also where it stood already. Raises ChangeRefused."""
    summary = _read_text("what was changed (--summary)", draft.summary, _LONGEST_SUMMARY)
    author = _read_text("who changed it (--by)", draft.author, _LONGEST_AUTHOR)
    reference = draft.reference.strip()
    if len(reference) > _LONGEST_REFERENCE:
        raise ChangeRefused(
            f"The reference (--ref) has {len(reference)} characters; {_LONGEST_REFERENCE} at most"
            " are taken."
        )
    if draft.at > now + _AHEAD:
        raise ChangeRefused(
            f"{draft.at.isoformat()} (--at) has not come yet: tell of a change when it is made. For"
            " work that is planned: kintsugi maintenance add."
        )
    fields = {
        "at": draft.at,
        "author": author,
        "summary": summary,
        "machines": _find_machines(draft.machines),
        "recorded_at": now,
        "recorded_by": teller,
    }
    if not reference:
        return SiteChange.objects.create(**fields)
    change, _ = SiteChange.objects.get_or_create(reference=reference, defaults=fields)
    return change


def list_changes_before(machines: Collection[str], onset: datetime) -> list[SiteChange]:
    """Changes of the whole site or of one of these machines (paths), in the time before the onset;
    the last one first."""
    recent = SiteChange.objects.filter(at__gt=onset - LOOKS_BACK, at__lte=onset)
    return [
        change
        for change in recent
        if not change.machines or not set(machines).isdisjoint(change.machines)
    ]


def _read_text(what: str, text: str, longest: int) -> str:
    line = " ".join(resources.printable(text).split())
    if not line:
        raise ChangeRefused(f"Say {what}.")
    if len(line) > longest:
        raise ChangeRefused(f"{what} has {len(line)} characters; {longest} at most are taken.")
    return line


def _find_machines(names: Sequence[str]) -> list[str]:
    nodes = set(Node.objects.filter(name__in=names).values_list("name", flat=True))
    switches = set(Switch.objects.filter(name__in=names).values_list("name", flat=True))
    unknown = sorted(set(names) - nodes - switches)
    if unknown:
        raise ChangeRefused(
            f"No node or switch of the inventory has the name {', '.join(unknown)}. Names as"
            " `kintsugi node list` gives them; none at all for a change of the whole site."
        )
    return sorted([*map(resources.node, nodes), *map(resources.switch, switches)])
