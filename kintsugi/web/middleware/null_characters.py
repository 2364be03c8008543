"""Addresses with a null character (%00). No page needs one, and PostgreSQL takes none in a text:
a search for it would end as a failure of ours. Forms refuse theirs (Django's CharField)."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest

_ANSWER = "The address holds a null character (%00). Take it out and try again.\n"


class NullCharacterRefusal:
    """Middleware: answers such an address with 400."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        query = request.META.get("QUERY_STRING", "")
        if "%00" in query or "\0" in query or "\0" in request.path_info:
            return HttpResponseBadRequest(_ANSWER, content_type="text/plain")
        return self.get_response(request)
