"""State changes of incidents: each a compare-and-swap with its timeline entry in the same
transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from detectors.faults import Recovery
from incidents.db import upsert
from incidents.inventory import node_states
from incidents.models import Decision, Fault, Incident, TimelineEntry
from incidents.polling.last_polls import get_last_polls
from incidents.state import outbox
from incidents.text.wording import format_moment
from incidents.vocabulary.changes import KINTSUGI, Acted, Refused
from incidents.vocabulary.lifecycle import CLOSED, State, Trigger, get_next_state

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
    """Moves an incident by `trigger`, writing its timeline; `changes` are fields that belong to the
    same step.

    Refused, with the reason, when the state does not allow it, a needed word is missing, or another
    hand was quicker. Raises TypeError for a field that is not a caller's to set.
    """
    wrong = set(changes) - _SETTABLE
    if wrong:
        raise TypeError(f"act() does not set {', '.join(sorted(wrong))}")
    with transaction.atomic():
        if _is_closing(trigger):
            upsert.lock_placement()
        for _ in range(_ATTEMPTS):
            incident = Incident.objects.filter(pk=incident_id).first()
            if incident is None:
                return Refused(f"There is no incident #{incident_id}.")
            refused = _find_refusal(incident, trigger, note, changes, now)
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
    """A timeline entry without a state change, told to people like any other. `needs_human` sets
    what is asked."""
    with transaction.atomic():
        entry = TimelineEntry.objects.create(
            incident_id=incident_id,
            kind=kind[:32],
            actor=actor[:150],
            text=text,
            occurred_at=now,
            recorded_at=now,
        )
        asked = {} if needs_human is None else {"needs_human": needs_human}
        Incident.objects.filter(pk=incident_id).update(updated_at=now, **asked)
        outbox.enqueue([entry], now=now)
    return entry


def store_out_of_service(incident_id: int, at: datetime) -> None:
    """What an open incident is about is out since then: of a drain that came when no run was there
    to begin the repair. Where it was out already, that stands."""
    serves = Incident.objects.open().filter(out_of_service_at=None, restored_at=None)
    serves.filter(pk=incident_id).update(out_of_service_at=at)


def ask(
    incident_id: int, asked: str, *, kind: str, text: str, now: datetime, instead_of: str = ""
) -> bool:
    """Asks a person where nobody is asked for anything but `instead_of`; whether that was so.
    `text` ends with `asked`.

    What this incident has asked before in the same words is asked again without a line.
    """
    with transaction.atomic():
        apply_grace = Incident.objects.open().filter(pk=incident_id, needs_human=instead_of)
        if apply_grace.update(needs_human=asked, updated_at=now) != 1:
            return False
        if TimelineEntry.objects.filter(
            incident_id=incident_id, kind=kind, text__endswith=asked
        ).exists():
            outbox.show([incident_id], now=now)
        else:
            record(incident_id, kind=kind, text=text, now=now)
    return True


def take_back(incident_id: int, asked: str, *, kind: str, text: str, now: datetime) -> bool:
    """A person is asked for this no longer; whether that was asked."""
    with transaction.atomic():
        if (
            Incident.objects.filter(pk=incident_id, needs_human=asked).update(
                needs_human="", updated_at=now
            )
            != 1
        ):
            return False
        record(incident_id, kind=kind, text=text, now=now)
    return True


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
    new = get_next_state(old, trigger)
    if new is None:
        state, act = _format_words(old), _format_words(trigger)
        return Refused(f"Incident #{incident.pk} is {state}: {act} is not possible there.")
    values = {
        **_get_consequences(incident, trigger, now),
        **changes,
        "state": new.value,
        "updated_at": now,
    }
    if Incident.objects.filter(pk=incident.pk, state=old.value).update(**values) != 1:
        return Refused(f"Incident #{incident.pk} is no longer {_format_words(old)}.")
    for name, value in values.items():
        setattr(incident, name, value)
    if new in CLOSED and old not in CLOSED:
        _end_faults(incident, trigger, actor=actor, now=now)
    remark = f"{_format_back(trigger, values, now)} {note.strip()}"
    entry = TimelineEntry(
        incident=incident,
        kind=trigger.value,
        actor=actor[:150],
        text=_format_text(incident, trigger, remark),
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
        upsert.insert(entries)
        outbox.enqueue(entries, now=now)


def _is_closing(trigger: Trigger) -> bool:
    return trigger in (
        Trigger.RESOLVE,
        Trigger.QUIET_ELAPSED,
        Trigger.MARK_DUPLICATE,
        Trigger.MARK_FALSE_POSITIVE,
    )


def _find_refusal(
    incident: Incident, trigger: Trigger, note: str, changes: dict[str, Any], now: datetime
) -> Refused | None:
    if get_next_state(State(incident.state), trigger) is None:
        state, act = _format_words(State(incident.state)), _format_words(trigger)
        return Refused(f"Incident #{incident.pk} is {state}: {act} is not possible there.")
    if trigger in _NEEDS_NOTE and not note.strip():
        return Refused("A false positive needs a reason: write what was seen instead of a fault.")
    if trigger is Trigger.MARK_FALSE_POSITIVE:
        return _find_false_positive_refusal(incident)
    if trigger is Trigger.MARK_DUPLICATE:
        target = changes.get("duplicate_of") or _find_other(changes.get("duplicate_of_id"))
        return _find_duplicate_refusal(incident, target)
    if trigger is Trigger.RESOLVE and changes.get("restored_at") is not None:
        return _find_back_refusal(incident, changes["restored_at"], now)
    return None


def _find_back_refusal(incident: Incident, back_since: datetime, now: datetime) -> Refused | None:
    """Service comes back between the incident's begin and now."""
    if back_since > now:
        return Refused(
            f"Back since {format_moment(back_since)} lies in the future. Give the time when"
            " service was"
            " back."
        )
    if back_since < incident.onset_at:
        return Refused(
            f"Back since {format_moment(back_since)} lies before the incident began at"
            f" {format_moment(incident.onset_at)}. Give a time after that."
        )
    return None


def _find_false_positive_refusal(incident: Incident) -> Refused | None:
    """What a poll sees is no false alarm while it sees it: the node would be handed back, and
    nothing would open again.

    A check that is wrong is shelved: that ends at a review, a false positive never.
    """
    active = Fault.objects.active().filter(membership__incident=incident)
    polled_at = get_last_polls(list(active.values_list("pk", flat=True)))
    if not polled_at:
        return None
    fault = active.get(pk=max(polled_at, key=lambda pk: (polled_at[pk], -pk)))
    others = f", and {len(polled_at) - 1} more" if len(polled_at) > 1 else ""
    seen = (
        f"{fault.fault_type} on {fault.resource} was last polled as active at"
        f" {format_moment(polled_at[fault.pk])}{others}"
    )
    shelve = f"kintsugi silence add --shelf --resource {fault.resource} --type {fault.fault_type}"
    return Refused(
        f"Incident #{incident.pk} is no false positive while a check sees a fault of it: {seen}."
        " Resolve the incident when that is mended. If the check itself is wrong, shelve it:"
        f" {shelve}"
    )


def _find_other(incident_id: int | None) -> Incident | None:
    return Incident.objects.filter(pk=incident_id).first() if incident_id is not None else None


def _find_duplicate_refusal(incident: Incident, target: Incident | None) -> Refused | None:
    if target is None:
        return Refused("A duplicate needs the incident that it repeats.")
    if target.pk == incident.pk:
        return Refused(f"Incident #{incident.pk} cannot be a duplicate of itself.")
    if target.state in (State.DUPLICATE.value, State.FALSE_POSITIVE.value):
        other = f", of #{target.duplicate_of_id}" if target.duplicate_of_id else ""
        state = _format_words(State(target.state))
        return Refused(f"Incident #{target.pk} is itself closed as {state}{other}.")
    return None


def _get_consequences(incident: Incident, trigger: Trigger, now: datetime) -> dict[str, Any]:
    """What a trigger means for the other fields; the caller's own values win."""
    acknowledged = {} if incident.acknowledged_at else {"acknowledged_at": now}
    is_closing = trigger in (Trigger.QUIET_ELAPSED, Trigger.RESOLVE)
    restored = {}
    if is_closing and incident.restored_at is None:
        restored = {"restored_at": get_given_back_at(incident) or now}
    closed = {} if incident.closed_at else {"closed_at": now}
    nobody = (
        {"recovery": str(Recovery.SELF_CLEARED)} if incident.recovery == str(Recovery.NONE) else {}
    )
    settled = {**closed, "needs_human": ""}
    match trigger:
        case Trigger.ACKNOWLEDGE | Trigger.HANDED_TO_VENDOR:
            return acknowledged
        case Trigger.CONFIRM:
            return {"is_confirmed": True, **acknowledged}
        case Trigger.REPAIR_SUCCEEDED:
            return {"restored_at": now, "repaired_at": now, "needs_human": ""}
        case Trigger.FAULTS_CLEARED:
            return {"restored_at": now}
        case Trigger.FAULT_RETURNED:
            return {"restored_at": None, "recovery": str(Recovery.NONE)}
        case Trigger.QUIET_ELAPSED:
            return {**settled, **restored, **nobody}
        case Trigger.RESOLVE:
            return {**settled, **restored, **acknowledged, "repaired_at": now}
        case Trigger.MARK_FALSE_POSITIVE | Trigger.MARK_DUPLICATE:
            return {**settled, **acknowledged}
    return {}


def get_given_back_at(incident: Incident) -> datetime | None:
    """Since when Slurm gives jobs again to the node that this incident took out, whoever gave it
    back; None: it does not, or the incident took no node out."""
    kind, _, name = incident.owner.partition("/")
    if kind != "node" or incident.out_of_service_at is None:
        return None
    return node_states.get_serving_since(name, after=incident.out_of_service_at)


def _end_faults(incident: Incident, trigger: Trigger, *, actor: str, now: datetime) -> None:
    """A closed incident leaves no fault standing that would hide the next one.

    After a false positive the condition stays known as it is: polled again, it opens nothing. The
    faults of a duplicate stand until they clear, and its incident of record waits for them.
    """
    if trigger not in (Trigger.RESOLVE, Trigger.QUIET_ELAPSED):
        return
    why = "closed with its incident" if actor == KINTSUGI else f"resolved by {actor}"
    standing = Fault.objects.active().filter(membership__incident=incident).order_by("fingerprint")
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


def _format_back(trigger: Trigger, values: dict[str, Any], now: datetime) -> str:
    """Since when service counts as back, where that is not only now."""
    back_since = values.get("restored_at")
    if trigger is not Trigger.RESOLVE or back_since is None or back_since == now:
        return ""
    return f"Service is back since {format_moment(back_since)}."


def _format_text(incident: Incident, trigger: Trigger, note: str) -> str:
    text = _SENTENCES[trigger]
    if trigger is Trigger.MARK_DUPLICATE:
        text = f"Closed as a duplicate of incident #{incident.duplicate_of_id}."
    if trigger is Trigger.REPAIR_SUCCEEDED and incident.restored_at is None:
        text = "Repaired. Watching for the quiet period."
    if trigger in (Trigger.QUIET_ELAPSED, Trigger.RESOLVE):
        text = f"{text} Recovery: {incident.recovery.replace('_', ' ')}."
    return f"{text} {note.strip()}".strip()


def _format_words(word: State | Trigger) -> str:
    return word.value.replace("_", " ")


def note_withdrawal(incident_id: int, text: str, now: datetime) -> None:
    """Why a repair ended before it was done, beside what else was decided about the incident."""
    Decision.objects.create(
        incident_id=incident_id, kind=Decision.Kind.WITHDRAWN, text=text[:500], recorded_at=now
    )
