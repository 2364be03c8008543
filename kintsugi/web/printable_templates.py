"""Pages hand nothing on that is no text: whatever a row holds, it is shown."""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest
from django.template.backends.django import DjangoTemplates, Template
from django.utils.safestring import SafeString, mark_safe

# Control characters but for tab and the ends of lines; marks, embeddings, overrides and isolates of
# the direction of writing (UAX 9); halves of surrogate pairs, which UTF-8 has no bytes for.
_NO_TEXT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def show_as_text(page: str) -> str:
    """Each of them as a replacement character."""
    return _NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", page)


class PrintableTemplates(DjangoTemplates):
    """Django's own; every page goes through `show_as_text` whole, so that none is left out."""

    def from_string(self, template_code: str) -> Template:
        return PrintableTemplate(super().from_string(template_code).template, self)

    def get_template(self, template_name: str) -> Template:
        return PrintableTemplate(super().get_template(template_name).template, self)


class PrintableTemplate(Template):
    def render(
        self, context: dict[str, Any] | None = None, request: HttpRequest | None = None
    ) -> SafeString:
        page = super().render(context, request)
        return mark_safe(show_as_text(page))  # noqa: S308  # it was safe before, and no tag is made
