"""Queries of the hot ways, ingest, a run's turn and what each sweep asks though it mostly finds
nothing: the ORM writes their SQL once per kind of database, it is kept. All else is plain ORM.

Values are given by name at each run, and a list is one parameter, so the text is the same whatever
a batch holds. Reads only; one that locks rows is made and asked in a transaction. The one module
that uses what Django does not promise to keep (`get_compiler`, `as_sql`, `ModelState`,
`get_related_populators`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar

from django.db import DEFAULT_DB_ALIAS, connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, Expression, Field, Func, Lookup, Model, QuerySet
from django.db.models.base import ModelState
from django.db.models.fields.related import ForeignObject
from django.db.models.query import (  # type: ignore[attr-defined]
    RelatedPopulator,
    get_related_populators,
)
from django.db.models.sql.compiler import SQLCompiler

_Reader = Callable[[Any], Any]
# A time that is known, or will be given at each run.
Moment: TypeAlias = "datetime | Given"
_M = TypeVar("_M", bound=Model)


class Given(Expression):
    """A value that is known when the query runs: `clears_at__lte=Given("now")`,
    `owner__among=Given("near")`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def as_sql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper
    ) -> tuple[str, list[Any]]:
        return "%s", [self]


@ForeignObject.register_lookup
@Field.register_lookup
class Among(Lookup):  # type: ignore[type-arg]
    """Like `in`, with the whole list as one parameter."""

    lookup_name = "among"
    prepare_rhs = False

    def as_sql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper
    ) -> tuple[str, list[Any]]:
        left, parameters = self.process_lhs(compiler, connection)
        is_one = (
            "= ANY(%s)"
            if connection.vendor == "postgresql"
            else "IN (SELECT value FROM json_each(%s))"
        )
        return f"{left} {is_one}", [*parameters, self.rhs]


class Hours(Func):
    """Hours since 1970, computed where the rows are: a million datetime objects would cost ten
    seconds.

    A plain Field: FloatField would call a converter for each value that is a float already.
    """

    template = "CAST(EXTRACT(EPOCH FROM %(expressions)s) AS double precision) / 3600.0"
    output_field = Field()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(
            compiler,
            connection,
            template="(julianday(%(expressions)s) - 2440587.5) * 24.0",
            **context,
        )


@dataclass(frozen=True)
class _Made:
    """The statement, what stands for each `%s`, and how each column's value is read where it must
    be. `names` are the attributes of the query's model, which come first; `related` make what
    `select_related` asks for of the others."""

    sql: str
    parameters: Sequence[Any]
    readers: Mapping[int, Sequence[_Reader]]
    model: type[Model]
    names: Sequence[str]
    related: Sequence[RelatedPopulator]


@dataclass
class Prepared:
    """One query. `build` gives its QuerySet, with `Given` where values will stand: rows are whole
    models, with those of `select_related`, or tuples of `values_list`."""

    build: Callable[[], QuerySet[Any, Any]]
    _made: dict[str, _Made] = field(default_factory=dict)

    def rows(self, **given: Any) -> list[tuple[Any, ...]]:
        """The columns of each row, in the order of the query."""
        return self._fetch(self._get_made(), given)

    def values(self, **given: Any) -> list[Any]:
        """Of a query with one column."""
        return [value for (value,) in self.rows(**given)]

    def objects(self, **given: Any) -> list[Any]:
        """The rows as instances of the query's model."""
        made = self._get_made()
        rows = self._fetch(made, given)
        if not made.related:
            return [make_instance(made.model, made.names, row) for row in rows]
        count = len(made.names)
        found = []
        for row in rows:
            instance = make_instance(made.model, made.names, row[:count])
            for populator in made.related:
                populator.populate(row, instance)
            found.append(instance)
        return found

    def _fetch(self, made: _Made, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(made.sql, [_bound(one, given) for one in made.parameters])
            found: list[tuple[Any, ...]] = cursor.fetchall()
        if not made.readers or not found:
            return found
        columns: list[Sequence[Any]] = list(zip(*found, strict=True))
        for index, readers in made.readers.items():
            for read in readers:
                columns[index] = [read(value) for value in columns[index]]
        return list(zip(*columns, strict=True))

    def _get_made(self) -> _Made:
        made = self._made.get(connection.vendor)
        if made is None:
            made = self._made[connection.vendor] = self._make()
        return made

    def _make(self) -> _Made:
        query = self.build()
        compiler = query.query.get_compiler(connection.alias)
        sql, parameters = compiler.as_sql()
        columns = [column for column, _, _ in compiler.select]
        readers = {
            index: found for index, column in enumerate(columns) if (found := _list_readers(column))
        }
        # Of `values_list` no model is made.
        whole = compiler.klass_info if query.query.default_cols else None
        own = columns[: len(whole["select_fields"])] if whole is not None else []
        names = [column.target.attname for column in own]
        related = (
            get_related_populators(whole, compiler.select, connection.alias)
            if whole is not None
            else []
        )
        return _Made(sql, parameters, readers, query.model, names, related)


def make_instance(model: type[_M], names: Sequence[str], values: Iterable[Any]) -> _M:
    """A row as `Model.from_db` gives it, without a call of `__init__`: it takes most of the time
    where rows are many, and nothing here listens to its signals."""
    one = model.__new__(model)
    one._state = ModelState()
    one._state.adding, one._state.db = False, DEFAULT_DB_ALIAS
    one.__dict__.update(zip(names, values, strict=True))
    return one


def _bound(parameter: Any, given: Mapping[str, Any]) -> Any:
    """What the database takes for it."""
    value = given[parameter.name] if isinstance(parameter, Given) else parameter
    if isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    if isinstance(value, Collection) and not isinstance(value, str):
        return list(value) if connection.vendor == "postgresql" else json.dumps(list(value))
    return value


def _list_readers(column: Any) -> list[_Reader]:
    """Django's own converters, but for times in SQLite: there are most of them, and its own takes
    ten times as long."""
    if connection.vendor == "sqlite" and isinstance(column.output_field, DateTimeField):
        return [_parse_moment]
    converters = [*connection.ops.get_db_converters(column), *column.get_db_converters(connection)]
    return [_make_reader(convert, column) for convert in converters]


def _make_reader(convert: Callable[..., Any], column: Any) -> _Reader:
    return lambda value: convert(value, column, connection)


def _parse_moment(stored: datetime | str | None) -> datetime | None:
    """As Django stores it: in UTC, without saying so. What is computed in the query comes as
    text."""
    if stored is None:
        return None
    return (datetime.fromisoformat(stored) if isinstance(stored, str) else stored).replace(
        tzinfo=UTC
    )
