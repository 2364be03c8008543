"""A node that has another name from now on: everything that is known of it goes by the new one, so
that it has one history.

What others wrote stays as they wrote it: texts, evidence, what a person was shown, the audit log.
The old name becomes another name of the node, so that a line that still comes under it is counted
for it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.db import models, transaction
from django.db.models import Q

from detectors import resources
from detectors.faults import fingerprint
from incidents.db import upsert
from incidents.inventory import graphs, node_states
from incidents.models import (
    Alias,
    Cable,
    Fault,
    Incident,
    InService,
    JobNode,
    Node,
    NodeInterval,
    NodeReport,
    PlannedWork,
    Poll,
    PollChunk,
    PollPause,
    Shown,
    Silence,
    UnreadOnMachine,
    UserReport,
    VendorCase,
)
from incidents.state.transitions import record

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
# Each column of these holds the path of a machine or of a part of one.
_PATHS: tuple[tuple[type[models.Model], str], ...] = (
    (Incident, "root_resource"),
    (Incident, "owner"),
    (UserReport, "resource"),
    (Alias, "resource"),
    (Shown, "owner"),
    (InService, "slot"),
    (InService, "owner"),
    (Cable, "a"),
    (Cable, "b"),
    (Silence, "resource"),
    (VendorCase, "resource"),
)
# And of these a node's bare name.
_NAMES: tuple[tuple[type[models.Model], str], ...] = (
    (NodeInterval, "node"),
    (NodeReport, "node"),
    (PollPause, "node"),
    (PlannedWork, "node"),
    (JobNode, "node"),
    (UnreadOnMachine, "machine"),
)
_BATCH = 500
# What an import and a look at Slurm say of a node that has done nothing yet.
_OF_THE_INVENTORY = ("gpus", "nvswitches", "nics", "seen")


def find_obstacle(old: str, new: str) -> str:
    """Why the node cannot be called so, as a sentence; empty where nothing speaks against it."""
    if not _NAME.fullmatch(new) or resources.short_host(new) != new:
        return f"{new!r} is no node's name: small letters, digits and hyphens, without a domain."
    if not Node.objects.inventoried().filter(name=old).exists():
        return f"The inventory knows no node {old}."
    if old == new:
        return f"{old} is called so already."
    known = _find_history(new)
    if known:
        return (
            f"{new} has a history of its own ({known}): two histories are not made one. Choose"
            f" another name, or remove {new} first."
        )
    return ""


def _find_history(name: str) -> str:
    """What is known under this name beside its row and its parts in the inventory."""
    path = resources.node(name)
    is_here = Q(owner=path)
    if Fault.objects.filter(is_here).exists():
        return "faults"
    if Incident.objects.filter(is_here).exists():
        return "incidents"
    # What the inventory itself has said of its parts comes again with the next import.
    if InService.objects.filter(is_here, to_at__isnull=False).exists():
        return "parts that were replaced"
    node = Node.objects.filter(name=name).first()
    if node is None:
        return ""
    for relation in node._meta.related_objects:
        kept = relation.related_model
        if relation.name in _OF_THE_INVENTORY or isinstance(kept, str):
            continue
        if kept._default_manager.filter(**{relation.field.name: node}).exists():
            return str(kept._meta.verbose_name_plural)
    return ""


def rename(old: str, new: str, *, actor: str, why: str, now: datetime) -> str:
    """In the caller's transaction, after `find_obstacle`. The sentence that its open incidents are
    told."""
    rewrite = _make_rewrite(old, new)
    # Before the lock of placement, as a round of polls takes them.
    polls = list(Poll.objects.select_for_update().filter(kind="node", target=old).order_by("pk"))
    named = PollChunk.objects.filter(kind="node", targets__contains=f"\n{old}\n")
    chunks = list(named.select_for_update())
    upsert.lock_placement()
    node = Node.objects.select_for_update().get(name=old)
    _remove_empty(new)
    node.name = new
    if node.address == old:
        node.address = new
    node.save(update_fields=["name", "address"])
    for model, column in _PATHS:
        _rename_paths(model, column, old, rewrite)
    for model, column in _NAMES:
        model._default_manager.filter(**{column: old}).update(**{column: new})
    node_states.forget_look()
    _rename_faults(old, rewrite)
    _rename_windows(old, rewrite)
    _rename_polls(polls, new, rewrite)
    _rename_in_chunks(chunks, old, new)
    Alias.objects.update_or_create(name=old, defaults={"resource": resources.node(new)})
    Alias.objects.filter(name=new).delete()
    text = f"{old} is called {new} from now on, says {actor}: {why}"
    for incident in Incident.objects.open().filter(node=node):
        record(incident.pk, kind="renamed", text=text, actor=actor, now=now)
    graphs.mark_changed()
    transaction.on_commit(graphs.forget)
    return text


def _make_rewrite(old: str, new: str) -> Callable[[str], str]:
    before, after = resources.node(old), resources.node(new)

    def rewrite(path: str) -> str:
        is_here = path == before or path.startswith(f"{before}/")
        return after + path[len(before) :] if is_here else path

    return rewrite


def rename_paths(model: type[models.Model], column: str, old: str, new: str) -> None:
    """Of another package's table, in the same transaction."""
    _rename_paths(model, column, old, _make_rewrite(old, new))


def rewrite_json(value: Any, rewrite: Callable[[str], str]) -> Any:
    """The same value with each text rewritten, keys of objects too."""
    if isinstance(value, str):
        return rewrite(value)
    if isinstance(value, list):
        return [rewrite_json(item, rewrite) for item in value]
    if isinstance(value, dict):
        return {rewrite(key): rewrite_json(item, rewrite) for key, item in value.items()}
    return value


def make_rewrite_of_names(old: str, new: str) -> Callable[[str], str]:
    """Paths, and the bare name where a text is nothing else."""
    rewrite = _make_rewrite(old, new)
    return lambda text: new if text == old else rewrite(text)


def _remove_empty(new: str) -> None:
    """A row without a history, as an import or a first line makes it, with what the inventory said
    of its parts."""
    Poll.objects.filter(kind="node", target=new).delete()
    InService.objects.filter(owner=resources.node(new)).delete()
    Shown.objects.filter(owner=resources.node(new)).delete()
    for model, column in _NAMES:
        model._default_manager.filter(**{column: new}).delete()
    Node.objects.filter(name=new).delete()


def _rename_paths(
    model: type[models.Model], column: str, old: str, rewrite: Callable[[str], str]
) -> None:
    path = resources.node(old)
    is_here = Q(**{column: path}) | Q(**{f"{column}__startswith": f"{path}/"})
    rows = list(model._default_manager.filter(is_here))
    for row in rows:
        setattr(row, column, rewrite(getattr(row, column)))
    model._default_manager.bulk_update(rows, [column], batch_size=_BATCH)


def _rename_faults(old: str, rewrite: Callable[[str], str]) -> None:
    """The identity of a fault follows from its resource."""
    rows = list(Fault.objects.filter(owner=resources.node(old)))
    for row in rows:
        row.resource, row.owner = rewrite(row.resource), rewrite(row.owner)
        row.fingerprint = fingerprint(row.resource, row.fault_type, row.qualifier)
    columns = ["resource", "owner", "fingerprint"]
    Fault.objects.bulk_update(rows, columns, batch_size=_BATCH)


def _rename_windows(old: str, rewrite: Callable[[str], str]) -> None:
    path = resources.node(old)
    rows = [row for row in Silence.objects.exclude(machines=[]) if path in row.machines]
    for row in rows:
        row.machines = rewrite_json(row.machines, rewrite)
    Silence.objects.bulk_update(rows, ["machines"], batch_size=_BATCH)


def _rename_polls(polls: Sequence[Poll], new: str, rewrite: Callable[[str], str]) -> None:
    """What polls remember of it goes on: counters, streaks."""
    for poll in polls:
        poll.target, poll.memory = new, _rewrite_memory(bytes(poll.memory), rewrite)
    Poll.objects.bulk_update(polls, ["target", "memory"], batch_size=_BATCH)


def _rename_in_chunks(chunks: Sequence[PollChunk], old: str, new: str) -> None:
    """A chunk names its targets, each between line feeds."""
    for chunk in chunks:
        chunk.targets = chunk.targets.replace(f"\n{old}\n", f"\n{new}\n")
    PollChunk.objects.bulk_update(chunks, ["targets"], batch_size=_BATCH)


def _rewrite_memory(packed: bytes, rewrite: Callable[[str], str]) -> bytes:
    """One that cannot be read is begun anew, as its next reader would."""
    try:
        memory = json.loads(zlib.decompress(packed)) if packed else None
    except (zlib.error, ValueError):
        return b""
    if memory is None:
        return b""
    return zlib.compress(json.dumps(rewrite_json(memory, rewrite)).encode(), 1)
