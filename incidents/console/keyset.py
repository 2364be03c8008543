"""Lists that cost the same however long they are: their pages end at a bound, and go on from the
number of the last row there."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest

# Our choice: a hundred pages of fifty. Who looks further back searches, filters, or goes on.
MOST = 5_000


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts and pages through the first rows only; the rest is reached with `before`."""

    @cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[: MOST + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self._counted, MOST)

    @property
    def is_cut(self) -> bool:
        return self._counted > MOST

    @cached_property
    def last_number(self) -> int:
        """Of the last row that the pages show."""
        return int(self.object_list[MOST - 1].pk)


class BeforeFilter(admin.SimpleListFilter):
    """What follows the row of this number in the list's own order, the newest first. It shows in
    the filters only while it is set."""

    title = "before number"
    parameter_name = "before"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        number = self.value()
        return [(number, number)] if number else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        number = self.value() or ""
        if not number.isdecimal():
            return queryset
        return queryset.filter(self.build_following_filter(int(number)))

    def build_following_filter(self, number: int) -> Q:
        return Q(pk__lt=number)
