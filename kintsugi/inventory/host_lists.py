"""Names as Slurm's host lists, the inverse of `incidents.topology.topology.expand`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

_NUMBERED = re.compile(r"\A(?P<prefix>(?:.*\D)?)(?P<number>\d+)(?P<rest>\D*)")


def fold(names: Iterable[str]) -> str:
    """Names as a Slurm host list, `gn[001-003,007],mt001`: in sorted order."""
    groups: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    whole: list[str] = []
    for name in sorted(set(names)):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            whole.append(name)
        else:
            prefix, number, rest = match.group("prefix", "number", "rest")
            groups[prefix, rest, len(number)].append(int(number))
    lists = [_format_group(*group, numbers) for group, numbers in groups.items()]
    return ",".join([*lists, *whole])


def _format_group(prefix: str, rest: str, width: int, numbers: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    ranges = [_format_range(first, last, width) for first, last in spans]
    if len(spans) == 1 and spans[0][0] == spans[0][1]:
        return f"{prefix}{ranges[0]}{rest}"
    return f"{prefix}[{','.join(ranges)}]{rest}"


def _format_range(first: int, last: int, width: int) -> str:
    if first == last:
        return f"{first:0{width}d}"
    return f"{first:0{width}d}-{last:0{width}d}"
