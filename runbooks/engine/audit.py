"""The audit log: each act with who, what, where, when and why, appended in the act's own
transaction. Its only writer.

The same line goes to the logger `kintsugi.audit`, so that a copy leaves the machine with its other
logs.
"""

from __future__ import annotations

import logging
from datetime import datetime

from django.db import transaction

from runbooks.models import AuditEntry, Run

_log = logging.getLogger("kintsugi.audit")
KINTSUGI = "kintsugi"
ORDER = "order"
Phase = AuditEntry.Phase


def record_run(
    run: Run, act: str, phase: AuditEntry.Phase, text: str, *, now: datetime, key: str = ""
) -> None:
    """A line about what Kintsugi does for a run."""
    entry = AuditEntry(at=now, actor=KINTSUGI, act=act, phase=phase, key=key, text=text)
    _set_run(entry, run)
    _create_entry(entry)


def record_person(
    actor: str, act: str, text: str, *, now: datetime, run: Run | None = None
) -> None:
    """A line about what a person made Kintsugi do, or kept it from."""
    entry = AuditEntry(at=now, actor=actor[:150], act=act, phase=Phase.DONE, text=text)
    if run is not None:
        _set_run(entry, run)
    _create_entry(entry)


def record_node(actor: str, act: str, node: str, text: str, *, now: datetime) -> None:
    """A line about what a person made Kintsugi do on a node, for no run."""
    _create_entry(
        AuditEntry(at=now, actor=actor[:150], act=act, phase=Phase.DONE, node=node, text=text)
    )


def _set_run(entry: AuditEntry, run: Run) -> None:
    entry.run, entry.incident = run.pk, run.incident_id
    entry.node = run.node.name if run.node is not None else ""


def record_order(actor: str, text: str, *, is_done: bool, now: datetime, key: str = "") -> None:
    """A line about an order from outside the console, done or refused. `key` names the request that
    brought it."""
    phase = Phase.DONE if is_done else Phase.FAILED
    _create_entry(AuditEntry(at=now, actor=actor[:150], act=ORDER, phase=phase, key=key, text=text))


def get_order(key: str, *, since: datetime) -> AuditEntry | None:
    """What the request of that key came to, if it came already."""
    return AuditEntry.objects.filter(node="", at__gte=since, act=ORDER, key=key).first()


def _create_entry(entry: AuditEntry) -> None:
    entry.save()
    transaction.on_commit(lambda: _log_entry(entry))


def _log_entry(entry: AuditEntry) -> None:
    """Once it is certain: a worker that dies before its commit has said nothing."""
    place = f" on {entry.node}" if entry.node else ""
    number = f" (run {entry.run}, incident #{entry.incident})" if entry.run else ""
    _log.info(
        "%s: %s %s%s%s: %s",
        entry.actor,
        entry.act,
        entry.phase,
        place,
        number,
        " ".join(entry.text.split()),
    )
