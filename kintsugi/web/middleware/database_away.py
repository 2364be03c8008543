"""What whoever asks the console is told while its database does not answer: 503, which database,
what goes on without it and what can be done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.views.defaults import server_error

from kintsugi.health import database_away
from kintsugi.health.database_away import RETRY_AFTER_S, Absence


class DatabaseAwayPages:
    """Middleware: the answer to a question that the database did not take."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """None for what only this one question met: its traceback goes to the log first."""
        if not isinstance(error, database_away.ERRORS):
            return None
        absence = database_away.find_absence(error)
        return _answer(request, absence) if absence is not None else None


def show_failure(request: HttpRequest) -> HttpResponse:
    """Of whatever neither a view nor a middleware has answered, such as a session that could not be
    kept."""
    error = sys.exc_info()[1]
    if not isinstance(error, database_away.ERRORS):
        return server_error(request)
    return _answer(
        request, database_away.find_absence(error) or _Refusal(database_away.describe_reason(error))
    )


@dataclass(frozen=True)
class _Refusal:
    """One question that a database did not take which is there all the same."""

    reason: str

    @property
    def summary(self) -> str:
        return (
            f"The database answers, and did not take this one question: {self.reason}. Ask again."
        )


def _answer(request: HttpRequest, problem: Absence | _Refusal) -> HttpResponse:
    response: HttpResponse
    if request.path_info.startswith("/api/"):
        response = JsonResponse({"error": problem.summary}, status=503)
    else:
        response = HttpResponse(render_to_string("503.html", {"problem": problem}), status=503)
    response.headers["Retry-After"] = str(RETRY_AFTER_S)
    response.headers["Cache-Control"] = "no-store"
    return response
