"""The `[[advice]]` rows of the catalogue: what a person does about a fault of each type.

Pure. Python 3.9, standard library alone.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from detectors.catalog import rows

_REQUIRED = ("types", "text", "source")
_KNOWN = (*_REQUIRED, "url")
# A command begins a sentence as often as not; what ends one is followed by a space and a capital
# letter or a quoted command.
_SENTENCE_END = re.compile(r"[.](?:\s+(?=[A-Z`])|$)")
_FEWEST, _MOST = 2, 4
# What Slack shows of it without cutting.
_LONGEST = 600
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PLACEHOLDERS = ("host", "part")
# Names and addresses that a shell takes as they stand; anything else is not put into a command.
_PLAIN_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")


@dataclass(frozen=True)
class Advice:
    """One row. `types` are ids or patterns of ids, such as `nvlink.sxid.18*`.

    `text` is two to four sentences of at most 600 characters: a command to type, what well looks
    like, what to collect. `{host}` in it stands for the machine, `{part}` for its part (a PCI
    address, an interface, a port). `url` is a page of the site's own, or empty.
    """

    types: tuple[str, ...]
    text: str
    source: str
    url: str = ""
    where: str = ""

    def unknown(self, types: Iterable[str]) -> list[str]:
        """The patterns that fit no type."""
        known = list(types)
        return [pattern for pattern in self.types if not fnmatch.filter(known, pattern)]

    def covers(self, fault_type: str) -> bool:
        return any(fnmatch.fnmatchcase(fault_type, pattern) for pattern in self.types)

    def format(self, resource: str) -> str:
        """The text for a resource path (`node/gn042/gpu/0000:9b:00.0`).

        What is no plain word stays `<host>` or `<part>`: a name out of a log never becomes part of
        a command that a person pastes.
        """
        parts = resource.split("/", 3)
        host = parts[1] if len(parts) > 1 else ""
        part = parts[3] if len(parts) > 3 else ""
        values = {"host": _get_plain_word(host, "host"), "part": _get_plain_word(part, "part")}
        return self.text.format(**values)


def find(advices: Iterable[Advice], fault_type: str) -> Optional[Advice]:
    """The first that covers the type: a site's rows are read before ours."""
    return next((advice for advice in advices if advice.covers(fault_type)), None)


def read(where: str, row: Mapping[str, Any]) -> Advice:
    """An `[[advice]]` row. Raises ValueError with one reason per line."""
    reasons = rows.list_wrong_fields(row, _KNOWN, _REQUIRED)
    types = row.get("types", ())
    if not rows.are_names(types):
        reasons.append("types is no list of ids or patterns")
    text = " ".join(str(row.get("text", "")).split())
    reasons += _list_text_faults(text)
    url = str(row.get("url", ""))
    if url and not url.startswith(("https://", "http://")):
        reasons.append(f"url {url!r} is no https:// address")
    if reasons:
        raise ValueError("\n".join(reasons))
    return Advice(tuple(types), text, str(row["source"]), url, where)


def _list_text_faults(text: str) -> list[str]:
    if not text:
        return []  # said as a missing field
    reasons = []
    count = len(_SENTENCE_END.findall(text))
    if not text.endswith(".") or not _FEWEST <= count <= _MOST:
        reasons.append(f"text has {count} sentences; two to four are expected, each with its stop")
    if len(text) > _LONGEST:
        reasons.append(f"text has {len(text)} characters; at most {_LONGEST} are expected")
    unknown = sorted(set(_PLACEHOLDER.findall(text)) - set(_PLACEHOLDERS))
    reasons += [f"text names {{{name}}}; {{host}} and {{part}} are known" for name in unknown]
    if set(_PLACEHOLDER.sub("", text)) & set("{}"):
        reasons.append("text has a single brace; only {host} and {part} have braces")
    return reasons


def _get_plain_word(word: str, placeholder: str) -> str:
    return word if _PLAIN_WORD.fullmatch(word) else f"<{placeholder}>"
