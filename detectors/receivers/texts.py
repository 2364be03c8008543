"""What a text of the kernel means whichever host says it, once two hosts have shown that only their
name differs.

Never judges a line itself: a fabric's fault comes from every node at once, and asking the matcher
for each is slow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from detectors.logs.signatures import Fact
from detectors.receivers.shapes import Shape, StampedLine

_TEXTS = 4096
# A plain host name with a number, where the header's form leaves no doubt that it is one.
_HOST = re.compile(rb" ([A-Za-z][A-Za-z-]*\d{1,6})(?= kernel(?:: | - ))")
_ANY_DIGIT = bytes.maketrans(b"123456789", b"000000000")

# A reading without its host: sender, form of the header, the name with its digits hidden, and the
# text.
_Place = tuple[bytes, ...]


@dataclass(slots=True)
class _Known:
    """The first host that said a text, what its line meant, and whether another host's line meant
    the same."""

    host: str
    shape: Shape
    is_shown: bool = False


@dataclass
class Texts:
    """Bounded. None stands for a text whose meaning depends on more than the host's name."""

    _known: dict[_Place, _Known | None] = field(default_factory=dict)

    def find_shape(self, reading: StampedLine) -> Shape | None:
        """The shape of a line that other hosts have sent; None when the matcher must be asked."""
        place, host = _get_place(reading)
        known = self._known.get(place) if host else None
        return (
            _make_for_host(known, host, reading.identity)
            if known is not None and known.is_shown
            else None
        )

    def record_shape(self, reading: StampedLine, shape: Shape) -> None:
        """`shape` as the matcher judged the line."""
        place, host = _get_place(reading)
        if not host:
            return
        if place not in self._known:
            if len(self._known) >= _TEXTS:
                self._known.clear()
            self._known[place] = _Known(host, shape)
            return
        known = self._known[place]
        if known is None or known.is_shown or known.host == host:
            return
        if _is_same(_make_for_host(known, host, reading.identity), shape):
            known.is_shown = True
        else:
            self._known[place] = None


def _get_place(reading: StampedLine) -> tuple[_Place, str]:
    """Where a reading's text is remembered, and its host; the host is empty where the line names
    none for certain."""
    sender, prefix, offset, first, *rest = reading.identity
    found = _HOST.match(first)
    if found is None:
        return (), ""
    host, text = found[1], first[found.end() :]
    return (sender, prefix, offset, host.translate(_ANY_DIGIT), text, *rest), host.decode()


def _make_for_host(known: _Known, host: str, identity: tuple[bytes, ...]) -> Shape:
    """What `known` says, said by another host. Excerpt, time and key of its facts stay those of the
    first line."""
    before, shape = known.host, known.shape
    facts = tuple(_replace_host(fact, before, host) for fact in shape.facts)
    key = None if shape.key is None else (shape.key[0].replace(before, host), shape.key[1])
    return Shape(facts, shape.zone, key, identity)


def _replace_host(fact: Fact, before: str, host: str) -> Fact:
    """As `replace` makes it, without the constructor and its twenty arguments: a fabric's fault
    comes here once a node."""
    copy = object.__new__(Fact)
    resource = fact.resource.replace(before, host)
    vars(copy).update(vars(fact), host=fact.host.replace(before, host), resource=resource)
    return copy


def _is_same(shown: Shape, judged: Shape) -> bool:
    if len(shown.facts) != len(judged.facts):
        return False
    if (shown.zone, shown.key) != (judged.zone, judged.key):
        return False
    pairs = zip(shown.facts, judged.facts, strict=True)
    return all(_replace_line(fact, like) == like for fact, like in pairs)


def _replace_line(fact: Fact, like: Fact) -> Fact:
    return replace(
        fact, occurred_at=like.occurred_at, excerpt=like.excerpt, source_key=like.source_key
    )
