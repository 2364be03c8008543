"""Hostile text in every text column of every model, and what of it may stand raw nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from django.apps import apps
from django.db import connection, models

APPS = ("incidents", "runbooks", "kintsugi")
NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
MARK = "owned"
# What terminals obey, what changes the direction of writing, what browsers run, what Slack obeys.
CONTROLS = "\x1b\x07\x9b\x7f\x08\u202e\u2066\u200f"
TAGS = ("<script>alert", "<!channel>", "<@U0HOSTILE>")
HOSTILE = f"{MARK}{CONTROLS}{TAGS[0]}(1){TAGS[1]}{TAGS[2]}"


def get_texts() -> tuple[str, str]:
    """For a text column, and inside JSON. PostgreSQL holds neither NUL nor half a character
    anywhere, SQLite holds NUL, and in JSON both."""
    if connection.vendor == "postgresql":
        return HOSTILE, HOSTILE
    return f"{HOSTILE}\x00", f"{HOSTILE}\x00\ud800"


def list_models() -> list[type[models.Model]]:
    return [model for app in APPS for model in apps.get_app_config(app).get_models()]


def list_text_columns(model: type[models.Model]) -> Iterator[models.Field[Any, Any]]:
    """Those that hold what somebody wrote: no choices, no keys."""
    for field in model._meta.concrete_fields:
        is_text = isinstance(field, models.CharField | models.TextField | models.JSONField)
        if is_text and not field.choices and not field.primary_key:
            yield field


def poison(model: type[models.Model]) -> None:
    """Puts the hostile text behind what stands in each text column of each row."""
    text, in_json = get_texts()
    for row in model._default_manager.all():
        changes: dict[str, Any] = {}
        for field in list_text_columns(model):
            value = getattr(row, field.attname)
            if isinstance(field, models.JSONField):
                changes[field.name] = _poison_json(value, in_json)
            elif value is not None:
                changes[field.name] = f"{value or row.pk}{text}"[: field.max_length]
        if changes:
            models.QuerySet(model).filter(pk=row.pk).update(**changes)


def _poison_json(value: Any, text: str) -> Any:
    """Each string in it; the names of its fields are ours."""
    if isinstance(value, str):
        return f"{value}{text}"
    if isinstance(value, list):
        return [_poison_json(inside, text) for inside in value]
    if isinstance(value, dict):
        return {name: _poison_json(inside, text) for name, inside in value.items()}
    return value


def has_words(value: Any) -> bool:
    """Whether there is a text in it to put something behind."""
    if isinstance(value, dict):
        return any(map(has_words, value.values()))
    return any(map(has_words, value)) if isinstance(value, list) else isinstance(value, str)


def find_raw(shown: str, *, is_markup: bool) -> list[str]:
    """What stands in it as it was written; with `is_markup` also what browsers and Slack obey."""
    found = [repr(letter) for letter in dict.fromkeys(CONTROLS) if letter in shown]
    found += [repr(letter) for letter in ("\x00", "\ud800") if letter in shown]
    return found + [tag for tag in TAGS if is_markup and tag in shown]


def fill_empty_models() -> None:
    """One row of each model that has none."""
    for model in list_models():
        get_row(model)


def get_row(model: type[models.Model]) -> models.Model:
    row = model._default_manager.first()
    if row is not None:
        return row
    values: dict[str, Any] = {}
    for field in model._meta.concrete_fields:
        if field.primary_key and isinstance(field, models.AutoField):
            continue
        if isinstance(field, models.ForeignKey):
            if not field.null:
                values[field.name] = get_row(field.related_model)
        elif not field.has_default() and not (field.blank and not field.null):
            values[field.name] = _get_value(field)
    return model._default_manager.create(**values)


def _get_value(field: models.Field[Any, Any]) -> Any:
    if field.choices:
        return field.flatchoices[0][0]
    for kind, value in _VALUES:
        if isinstance(field, kind):
            return value
    raise TypeError(f"{field}: of which value a row may be made is not said")


_VALUES: tuple[tuple[type[models.Field[Any, Any]], Any], ...] = (
    (models.DateTimeField, NOW),
    (models.DateField, NOW.date()),
    (models.BooleanField, True),
    (models.IntegerField, 1),
    (models.FloatField, 1.0),
    (models.JSONField, {"words": "x"}),
    (models.BinaryField, b"[]"),
    (models.CharField, "x"),
    (models.TextField, "x"),
    (models.DurationField, None),
    (models.UUIDField, None),
)
