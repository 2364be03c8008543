"""What an import of the inventory will write, and writing it. Telling it writes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from incidents.topology.inventory_file import InventoryError

_ROWS_AT_ONCE = 500


@dataclass
class Difference:
    """What an import does: one line each. `gone` stands in the database but not in the files; it
    stays."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.changed)


@dataclass
class TableWrites:
    """What is to be written into one table: deleted first, then updated, then added."""

    deleted: list[models.Model] = field(default_factory=list)
    updated: list[tuple[models.Model, tuple[str, ...]]] = field(default_factory=list)
    fresh: list[models.Model] = field(default_factory=list)


@dataclass
class Plan:
    """What an import will write, by table: machines before their parts, modules before ports."""

    difference: Difference = field(default_factory=Difference)
    writes: dict[type[models.Model], TableWrites] = field(default_factory=dict)

    def get_writes(self, table: type[models.Model]) -> TableWrites:
        return self.writes.setdefault(table, TableWrites())

    def add(self, kind: str, fresh: Sequence[models.Model]) -> None:
        if fresh:
            self.get_writes(type(fresh[0])).fresh += fresh
        self.difference.added += [f"{kind} {row}" for row in fresh]

    def update(self, row: models.Model, values: Mapping[str, Any], title: str) -> None:
        """Sets on the row what differs."""
        changed = {name: value for name, value in values.items() if getattr(row, name) != value}
        if not changed:
            return
        steps = []
        for name, value in changed.items():
            old = format_value(getattr(row, name))
            steps.append(f"{name} {old} -> {format_value(value)}")
            setattr(row, name, value)
        self.difference.changed.append(f"{title}: {', '.join(steps)}")
        self.get_writes(type(row)).updated.append((row, tuple(changed)))

    def check(self) -> None:
        """Raises InventoryError naming each value that its column does not hold."""
        problems: list[str] = []
        for table, writes in self.writes.items():
            rows = [*writes.fresh, *(row for row, _ in writes.updated)]
            for column in table._meta.concrete_fields:
                if isinstance(column, (models.CharField, models.IntegerField)):
                    problems += _list_misfits(column, rows)
        if problems:
            raise InventoryError("\n".join(problems))

    def write(self) -> None:
        for table, writes in self.writes.items():
            _write(table, writes)


def _list_misfits(column: models.Field[Any, Any], rows: Sequence[models.Model]) -> list[str]:
    """What is too long or too large, once for each value."""
    rows_by_value = {getattr(row, column.attname): row for row in rows}
    rows_by_value.pop(None, None)
    misfits = []
    for value, row in rows_by_value.items():
        try:
            column.run_validators(value)
        except ValidationError as error:
            reasons = " ".join(error.messages)
            misfits.append(f"{row._meta.verbose_name} {row}: {column.name} {value!r}: {reasons}")
    return misfits


def _write(table: type[models.Model], writes: TableWrites) -> None:
    deleted = [row.pk for row in writes.deleted]
    if deleted:
        table._default_manager.filter(pk__in=deleted).delete()
    rows_by_fields: dict[tuple[str, ...], list[models.Model]] = defaultdict(list)
    for row, fields in writes.updated:
        rows_by_fields[fields].append(row)
    for fields, rows in rows_by_fields.items():
        table._default_manager.bulk_update(rows, fields, batch_size=_ROWS_AT_ONCE)
    table._default_manager.bulk_create(writes.fresh)


def format_value(value: object) -> str:
    if value is None:
        return "unknown"
    return str(value) if isinstance(value, models.Model) else repr(value)
