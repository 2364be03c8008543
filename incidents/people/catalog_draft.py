"""A row of the site's catalogue made of an unread template: what it would do to the last week's
lines, and its way into the site's files."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from detectors.catalog import catalog
from detectors.catalog.catalog import Catalog
from detectors.logs.signatures import Matcher
from detectors.logs.unread import UnreadReader, make_pattern
from incidents.models import Evidence, UnreadOnMachine, UnreadTemplate

# What a site writes by `kintsugi unread draft`; people may edit it.
FILE = "unread.toml"
LOOK_BACK = timedelta(days=7)
# Excerpts of the last week's faults that a draft is tried on, the newest.
_MOST_EXCERPTS = 5_000


@dataclass(frozen=True)
class RowDraft:
    """`row` is TOML: one [[harmless]] or [[signature]] row."""

    row: str


@dataclass(frozen=True)
class Trial:
    """What a draft would have done in the last week. Each by what it says: how many lines, or how
    many excerpts of faults."""

    raised: Counter[str]
    silenced: Counter[str]
    machines: int
    changed_faults: Counter[str]

    @property
    def takes_nothing(self) -> bool:
        return not self.raised and not self.silenced


def draft_harmless(template: UnreadTemplate, reason: str, source: str) -> RowDraft:
    fields = {"pattern": make_pattern(template.template), **_get_writer(template)}
    return RowDraft(_format_row("harmless", fields | {"reason": reason, "source": source}))


def draft_signature(template: UnreadTemplate, fault_type: str, on: str, pattern: str) -> RowDraft:
    """`pattern` is empty for that of the template."""
    pattern = pattern or make_pattern(template.template)
    fields = {"type": fault_type, "event": "raised", "on": on, "pattern": pattern}
    return RowDraft(
        _format_row("signature", fields | _get_writer(template) | {"begins": "message"})
    )


def _get_writer(template: UnreadTemplate) -> dict[str, object]:
    name = template.program
    if name == "kernel":
        return {"program": "kernel", "facility": "kern"}
    # A network system's mnemonic stands in the message; SONiC names the container as well.
    program = "any" if name.startswith("%") else [name, f"*#{name}"]
    return {"program": program, "facility": "any"}


def _format_row(table: str, fields: dict[str, object]) -> str:
    # A JSON string or list of strings is one of TOML too (toml.io, v1.0.0, String).
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join([f"[[{table}]]", *lines]) + "\n"


def load_with(draft: RowDraft, directory: Path | None) -> Catalog:
    """The catalogue as it would be. Raises CatalogError with what is wrong."""
    paths = [] if directory is None else catalog.site_files(directory)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draft.toml"
        path.write_text(draft.row, encoding="utf-8")
        return catalog.read([path, *paths, *catalog.files()])


def try_out(draft: RowDraft, directory: Path | None, now: datetime) -> Trial:
    """On the unread lines and the faults' excerpts of the last week. Raises CatalogError."""
    new = _LineReader(load_with(draft, directory))
    old = _LineReader(catalog.load())
    raised, silenced, changed = Counter[str](), Counter[str](), Counter[str]()
    machines = set()
    rows = UnreadOnMachine.objects.filter(last_at__gt=now - LOOK_BACK).select_related("template")
    for row in rows.iterator():
        types = new.list_types(row.sample, row.machine, now)
        is_silenced = not types and new.is_read(row.sample, row.machine, now)
        for name in types:
            raised[name] += row.count
        if is_silenced:
            silenced[row.template.template] += row.count
        if types or is_silenced:
            machines.add(row.machine)
    for excerpt in _list_evidence_excerpts(now):
        before, after = (reader.list_types(excerpt, "", now) for reader in (old, new))
        if before != after:
            changed[f"{_name(before)} -> {_name(after)}"] += 1
    return Trial(raised, silenced, len(machines), changed)


def _name(types: list[str]) -> str:
    return ", ".join(types) or "nothing"


def _list_evidence_excerpts(now: datetime) -> Iterator[str]:
    recent = Evidence.objects.filter(occurred_at__gt=now - LOOK_BACK).order_by("-pk")
    yield from recent.values_list("excerpt", flat=True)[:_MOST_EXCERPTS]


class _LineReader:
    """What one catalogue says of lines."""

    def __init__(self, rows: Catalog) -> None:
        self._matcher = Matcher(rows)
        self._unread_reader = UnreadReader(self._matcher)

    def list_types(self, line: str, host: str, now: datetime) -> list[str]:
        facts = self._matcher.facts(
            line.encode(), default_host=host, observed_at=now, zone=UTC, is_own_line=True
        )
        return [fact.fault_type for fact in facts]

    def is_read(self, line: str, host: str, now: datetime) -> bool:
        found = self._unread_reader.read(
            line.encode(), default_host=host, observed_at=now, zone=UTC, is_own_line=True
        )
        return found is None


def write(draft: RowDraft, directory: Path) -> Path:
    """Adds the row to the site's file. Raises CatalogError when the whole would not load, OSError.

    Whoever reads meanwhile sees the file of before or the whole new one.
    """
    load_with(draft, directory)
    path = directory / FILE
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole = f"{text.rstrip()}\n\n{draft.row}".lstrip()
    new = path.with_name(f".{FILE}.new")
    new.write_text(whole, encoding="utf-8")
    os.replace(new, path)
    return path


def forget_read(directory: Path, now: datetime) -> int:
    """Removes unread templates that the site's catalogue reads now, by all of their lines; how
    many."""
    reader = _LineReader(catalog.read([*catalog.site_files(directory), *catalog.files()]))
    read = []
    for template in UnreadTemplate.objects.iterator():
        if all(_is_known(reader, sample, now) for sample in template.samples):
            read.append(template.pk)
    UnreadTemplate.objects.filter(pk__in=read).delete()
    return len(read)


def _is_known(reader: _LineReader, sample: str, now: datetime) -> bool:
    return bool(reader.list_types(sample, "", now)) or reader.is_read(sample, "", now)
