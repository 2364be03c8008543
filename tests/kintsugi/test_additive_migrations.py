"""Processes of the version before run on with the new tables while a site is upgraded: migrations
take nothing away that they read, and ask for nothing that they do not write."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.db.migrations import operations
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import BooleanField, CharField, Field

# The tables of 0.1.1.
RELEASED = {("incidents", "0001_initial"), ("runbooks", "0001_initial")}
# What is allowed all the same, and why the version before goes on.
EXCEPTIONS = {
    "incidents.0013_poll_chunk: RunPython": "polls of the version before rest until their workers"
    " are restarted, as the changelog tells",
    "incidents.0020_defaults_of_columns: RunPython": "it changes no row",
    "runbooks.0003_installation: RunPython": "it fills a table that it makes",
    "runbooks.0008_defaults_of_columns: RunPython": "it changes no row",
}
_HARMLESS = (
    operations.CreateModel,
    operations.AddIndex,
    operations.RemoveIndex,
    operations.RemoveConstraint,
    operations.AlterModelOptions,
)


def is_filled(field: Field) -> bool:  # type: ignore[type-arg]
    """Whether a row that is inserted without it gets a value."""
    return field.null or field.has_db_default() or field.many_to_many is True


def is_wider(new: Field, old: Field) -> bool:  # type: ignore[type-arg]
    """Whether whatever the old column takes the new one takes too."""
    is_same_type = new.get_internal_type() == old.get_internal_type()
    is_as_long = (new.max_length or 0) >= (old.max_length or 0)
    takes_null = new.null or not old.null
    takes_double = not new.unique or old.unique
    keeps_default = new.has_db_default() or not old.has_db_default() or new.null
    return all((is_same_type, is_as_long, takes_null, takes_double, keeps_default))


def is_additive(operation: Operation, app: str, state: ProjectState, new: set[str]) -> bool:
    """`state` is that before it, `new` the models that migrations since the release have made."""
    if isinstance(operation, _HARMLESS):
        return True
    if isinstance(operation, operations.AddField):
        return operation.model_name_lower in new or is_filled(operation.field)
    if isinstance(operation, operations.AlterField):
        old = state.models[app, operation.model_name_lower].fields[operation.name]
        return is_wider(operation.field, old)
    if isinstance(operation, operations.AddConstraint):
        return operation.model_name_lower in new
    return False


def find_harmful(loader: MigrationLoader) -> Iterator[str]:
    """Each operation since the release that the version before might not live with."""
    state = loader.project_state(list(RELEASED))
    new: set[str] = set()
    graph = loader.graph
    plan = [key for leaf in graph.leaf_nodes() for key in graph.forwards_plan(leaf)]
    for app, name in dict.fromkeys(plan):
        is_ours = app in ("incidents", "runbooks")
        if not is_ours or (app, name) in RELEASED:
            continue
        for operation in graph.nodes[app, name].operations:
            if not is_additive(operation, app, state, new):
                yield f"{app}.{name}: {type(operation).__name__}"
            if isinstance(operation, operations.CreateModel):
                new.add(operation.name_lower)
            operation.state_forwards(app, state)


def test_no_migration_takes_away_what_the_version_before_reads_or_asks_for_what_it_does_not_write() -> (
    None
):
    assert set(find_harmful(MigrationLoader(None))) == EXCEPTIONS.keys()


TEXT = CharField(max_length=8, null=True)


@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (lambda: operations.AddField("fault", "word", CharField(max_length=8)), False),
        (lambda: operations.AddField("fault", "word", CharField(max_length=8, default="")), False),
        (
            lambda: operations.AddField("fault", "word", CharField(max_length=8, db_default="")),
            True,
        ),
        (lambda: operations.AddField("fault", "word", TEXT), True),
        (lambda: operations.AddField("made_since", "word", BooleanField()), True),
        (lambda: operations.RemoveField("fault", "owner"), False),
        (lambda: operations.RenameField("fault", "owner", "machine"), False),
        (lambda: operations.AlterField("fault", "owner", CharField(max_length=7)), False),
        (lambda: operations.AlterField("fault", "owner", CharField(max_length=400)), True),
        (lambda: operations.AlterField("fault", "cleared_at", BooleanField()), False),
        (lambda: operations.RenameModel("Fault", "Alarm"), False),
        (lambda: operations.DeleteModel("Fault"), False),
        (lambda: operations.RunSQL("SELECT 1"), False),
    ],
)
def test_an_operation_is_additive_when_rows_of_before_fit_and_are_read(
    make: Callable[[], Operation], allowed: bool
) -> None:
    state = MigrationLoader(None).project_state(list(RELEASED))
    assert is_additive(make(), "incidents", state, {"made_since"}) is allowed
