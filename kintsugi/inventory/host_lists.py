"""Names as Slurm's host lists, the inverse of `incidents.topology.topology.expand`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

_NUMBERED = re.compile(r"(?P<prefix>.*?)(?P<number>\d+)(?P<rest>\D*)")


def fold(names: Iterable[str]) -> str:
    """Names as a Slurm host list, `gn[001-003,007],mt001`: in sorted order."""
    groups: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    whole: list[str] = []
    for name in sorted(set(names)):
        found = _NUMBERED.fullmatch(name)
        if found is None:
            whole.append(name)
        else:
            width = len(found["number"]) if found["number"].startswith("0") else 0
            groups[(found["prefix"], found["rest"], width or len(found["number"]))].append(
                int(found["number"])
            )
    lists = [
        _bracketed(prefix, rest, width, numbers)
        for (prefix, rest, width), numbers in groups.items()
    ]
    return ",".join([*lists, *whole])


def _bracketed(prefix: str, rest: str, width: int, numbers: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    if len(spans) == 1 and spans[0][0] == spans[0][1]:
        return f"{prefix}{spans[0][0]:0{width}d}{rest}"
    words = (f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in spans)
    return f"{prefix}[{','.join(words)}]{rest}"
