"""State changes of incidents: each a compare-and-swap with its timeline entry in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from detectors.faults import Recovery
from incidents import upsert
from incidents.changes import Acted, Refused
from incidents.lifecycle import CLOSED, State, Trigger, next_state
from incidents.models import Fault, Incident, TimelineEntry
from incidents.notify import outbox
from incidents.writing import KINTSUGI

# What a caller may set beside the state.
_SETTABLE = frozenset(
    {
        "recovery",
        "needs_human",
        "duplicate_of",
        "duplicate_of_id",
        "out_of_service_at",
        "restored_at",
        "last_known_good_at",
        "onset_at",
    }
)
_NEEDS_NOTE = frozenset({Trigger.MARK_FALSE_POSITIVE})
# Someone else may have moved the incident between our look and our write; then we look again.
_ATTEMPTS = 3


def act(
    incident_id: int, trigger: Trigger, *, actor: str, note: str = "", now: datetime, **changes: Any
) -> Acted | Refused:
    """Moves an incident by `trigger`, writing its timeline; `changes` are fields that belong to the same step.

    Refused, with the reason, when the state does not allow it, a needed word is missing, or another hand was
    quicker. Raises TypeError for a field that is not a caller's to set.
    """
    wrong = set(changes) - _SETTABLE
    if wrong:
        raise TypeError(f"act() does not set {', '.join(sorted(wrong))}")
    with transaction.atomic():
        if _closes(trigger):
            upsert.lock_placement()
        for _ in range(_ATTEMPTS):
            incident = Incident.objects.filter(pk=incident_id).first()
            if incident is None:
                return Refused(f"There is no incident #{incident_id}.")
            refused = _refusal(incident, trigger, note, changes)
            if refused is not None:
                return refused
            moved = move(incident, trigger, actor=actor, note=note, now=now, **changes)
            if isinstance(moved, Acted):
                return moved
    return Refused(f"Incident #{incident_id} is being changed by others; look at it again.")


def record(
    incident_id: int,
    *,
    kind: str,
    text: str,
    actor: str = KINTSUGI,
    now: datetime,
    needs_human: str | None = None,
) -> TimelineEntry:
    """A timeline entry without a state change, told to people like any other. `needs_human` sets what is asked."""
    with transaction.atomic():
        entry = TimelineEntry.objects.create(
            incident_id=incident_id, kind=kind[:32], actor=actor[:150], text=text, occurred_at=now, recorded_at=now
        )
        asked = {} if needs_human is None else {"needs_human": needs_human}
        Incident.objects.filter(pk=incident_id).update(updated_at=now, **asked)
        outbox.enqueue([entry], now=now)
    return entry


def move(
    incident: Incident,
    trigger: Trigger,
    *,
    actor: str,
    note: str = "",
    now: datetime,
    told: list[TimelineEntry] | None = None,
    **changes: Any,
) -> Acted | Refused:
    """One compare-and-swap inside the caller's transaction.

    A caller that moves many collects their entries in `told`, and ends with `tell`.
    """
    old = State(incident.state)
    new = next_state(old, trigger)
    if new is None:
        return Refused(f"Incident #{incident.pk} is {_words(old)}: {_words(trigger)} is not possible there.")
    values = {**_consequences(incident, trigger, now), **changes, "state": new.value, "updated_at": now}
    if Incident.objects.filter(pk=incident.pk, state=old.value).update(**values) != 1:
        return Refused(f"Incident #{incident.pk} is no longer {_words(old)}.")
    for name, value in values.items():
        setattr(incident, name, value)
    if new in CLOSED and old not in CLOSED:
        _end_faults(incident, trigger, actor=actor, now=now)
    entry = TimelineEntry(
        incident=incident,
        kind=trigger.value,
        actor=actor[:150],
        text=_text(incident, trigger, old, note),
        occurred_at=now,
        recorded_at=now,
    )
    if told is None:
        tell([entry], now)
    else:
        told.append(entry)
    return Acted(new)


def tell(entries: Sequence[TimelineEntry], now: datetime) -> None:
    """Writes the timeline entries of moves, and what they owe to people."""
    if entries:
        TimelineEntry.objects.bulk_create(entries)
        outbox.enqueue(entries, now=now)


def _closes(trigger: Trigger) -> bool:
    return trigger in (
        Trigger.RESOLVE,
        Trigger.QUIET_ELAPSED,
        Trigger.MARK_DUPLICATE,
        Trigger.MARK_FALSE_POSITIVE,
    )


def _refusal(incident: Incident, trigger: Trigger, note: str, changes: dict[str, Any]) -> Refused | None:
    if next_state(State(incident.state), trigger) is None:
        return Refused(
            f"Incident #{incident.pk} is {_words(State(incident.state))}: {_words(trigger)} is not possible there."
        )
    if trigger in _NEEDS_NOTE and not note.strip():
        return Refused("A false positive needs a reason: write what was seen instead of a fault.")
    if trigger is Trigger.MARK_DUPLICATE:
        target = changes.get("duplicate_of") or _other(changes.get("duplicate_of_id"))
        return _duplicate_refusal(incident, target)
    return None


def _other(incident_id: int | None) -> Incident | None:
    return Incident.objects.filter(pk=incident_id).first() if incident_id is not None else None


def _duplicate_refusal(incident: Incident, target: Incident | None) -> Refused | None:
    if target is None:
        return Refused("A duplicate needs the incident that it repeats.")
    if target.pk == incident.pk:
        return Refused(f"Incident #{incident.pk} cannot be a duplicate of itself.")
    if target.state in (State.DUPLICATE.value, State.FALSE_POSITIVE.value):
        other = f", of #{target.duplicate_of_id}" if target.duplicate_of_id else ""
        return Refused(f"Incident #{target.pk} is itself closed as {_words(State(target.state))}{other}.")
    return None


def _consequences(incident: Incident, trigger: Trigger, now: datetime) -> dict[str, Any]:
    """What a trigger means for the other fields; the caller's own values win."""
    acknowledged = {} if incident.acknowledged_at else {"acknowledged_at": now}
    restored = {} if incident.restored_at else {"restored_at": now}
    closed = {} if incident.closed_at else {"closed_at": now}
    nobody = {"recovery": str(Recovery.SELF_CLEARED)} if incident.recovery == str(Recovery.NONE) else {}
    table: dict[Trigger, dict[str, Any]] = {
        Trigger.ACKNOWLEDGE: acknowledged,
        Trigger.CONFIRM: {"is_confirmed": True, **acknowledged},
        Trigger.REPAIR_SUCCEEDED: {"restored_at": now, "repaired_at": now, "needs_human": ""},
        Trigger.HANDED_TO_VENDOR: acknowledged,
        Trigger.FAULTS_CLEARED: {"restored_at": now},
        Trigger.FAULT_RETURNED: {"restored_at": None, "recovery": str(Recovery.NONE)},
        Trigger.QUIET_ELAPSED: {**closed, **restored, **nobody, "needs_human": ""},
        Trigger.RESOLVE: {**closed, **restored, **acknowledged, "repaired_at": now, "needs_human": ""},
        Trigger.MARK_FALSE_POSITIVE: {**closed, **acknowledged, "needs_human": ""},
        Trigger.MARK_DUPLICATE: {**closed, **acknowledged, "needs_human": ""},
    }
    return table.get(trigger, {})


def _end_faults(incident: Incident, trigger: Trigger, *, actor: str, now: datetime) -> None:
    """A closed incident leaves no fault standing that would hide the next one.

    After a false positive the condition stays known as it is: polled again, it opens nothing. The faults of a
    duplicate stand until they clear, and its incident of record waits for them.
    """
    if trigger not in (Trigger.RESOLVE, Trigger.QUIET_ELAPSED):
        return
    why = "closed with its incident" if actor == KINTSUGI else f"resolved by {actor}"
    standing = Fault.objects.filter(membership__incident=incident, is_active=True).order_by("fingerprint")
    ids = list(standing.select_for_update(of=("self",)).values_list("pk", flat=True))
    Fault.objects.filter(pk__in=ids).update(
        is_active=False, cleared_at=now, cleared_reason=why[:255], clears_at=None, held_until=None
    )


_SENTENCES: dict[Trigger, str] = {
    Trigger.ACKNOWLEDGE: "Acknowledged: a person has taken it.",
    Trigger.CONFIRM: "Confirmed as a real fault.",
    Trigger.REPAIR_STARTED: "Repair started.",
    Trigger.REPAIR_SUCCEEDED: "Repaired: service is back. Watching for the quiet period.",
    Trigger.REPAIR_FAILED: "The repair did not succeed.",
    Trigger.REPAIR_WITHDRAWN: "The repair was withdrawn.",
    Trigger.HANDED_TO_VENDOR: "Handed to the vendor.",
    Trigger.FAULTS_CLEARED: "All faults have cleared. Watching for the quiet period.",
    Trigger.FAULT_RETURNED: "The fault is back.",
    Trigger.QUIET_ELAPSED: "Resolved: the quiet period passed without the fault.",
    Trigger.RESOLVE: "Resolved.",
    Trigger.MARK_FALSE_POSITIVE: "Closed as a false positive.",
    Trigger.MARK_DUPLICATE: "Closed as a duplicate.",
}


def _text(incident: Incident, trigger: Trigger, old: State, note: str) -> str:
    text = _SENTENCES[trigger]
    if trigger is Trigger.MARK_DUPLICATE:
        text = f"Closed as a duplicate of incident #{incident.duplicate_of_id}."
    if trigger in (Trigger.QUIET_ELAPSED, Trigger.RESOLVE):
        text = f"{text} Recovery: {incident.recovery.replace('_', ' ')}."
    return f"{text} {note.strip()}".strip()


def _words(word: State | Trigger) -> str:
    return word.value.replace("_", " ")
