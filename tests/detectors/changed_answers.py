"""What the simulated cluster answers, changed as a device of another make or a broken one might
answer it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from detectors.detector import OneByOne, Output, SnmpValue, Target, Transports

_ODD_WORDS = (
    *("", "N/A", "[N/A]", "[Unknown Error]", "x", "-", "--5", "-1", "+5", "1_000", "1,5", "0xzz"),
    *("nan", "inf", "1e999", "9" * 24, "²", "\uff11\uff12", "٣", "\0", "\t", "=", "[", "{"),
    *("true", "null", "(null)", "None", "12%", "é"),
)
_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 10**30, 1e308, float("inf"), [], {}, [None], ["x"], [[]], {"a": 1}),
    *_ODD_WORDS,
)
_ODD_OBJECTS: tuple[SnmpValue, ...] = (
    *(None, b"", b"x", b"\xff\xfe", b"\0\0\0\0\0\0", b"nan", b"1e999", b"N/A", b"9" * 24),
    *("x", "", -1, 0, 2**64),
)
_WORD = re.compile(r"[\w.+-]+")


class ChangedAnswers(OneByOne):
    """All three transports: what others answer, some of it changed, as `dice` fall."""

    def __init__(self, whole: Transports, dice: random.Random) -> None:
        self.whole = whole
        self.dice = dice

    @property
    def transports(self) -> Transports:
        return Transports(shell=self, snmp=_ChangedObjects(self), http=_ChangedPages(self))

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return self.change(self.whole.shell.run(target, argv, timeout))

    def change(self, output: Output) -> Output:
        if not output.stdout or self.dice.random() < 0.3:
            return output
        text = output.stdout.decode("utf-8", "replace")
        changed = _change_document(self.dice, text) or _change_text(self.dice, text)
        return replace(output, stdout=changed.encode())


class _ChangedPages:
    def __init__(self, answers: ChangedAnswers) -> None:
        self.answers = answers

    def get(self, target: Target, url: str, timeout: timedelta) -> Output:
        return self.answers.change(self.answers.whole.http.get(target, url, timeout))


class _ChangedObjects:
    def __init__(self, answers: ChangedAnswers) -> None:
        self.answers = answers

    def get(self, target: Target, oids: Sequence[str]) -> dict[str, SnmpValue]:
        return self._change(self.answers.whole.snmp.get(target, oids))

    def walk(self, target: Target, columns: Sequence[str]) -> dict[str, SnmpValue]:
        return self._change(self.answers.whole.snmp.walk(target, columns))

    def _change(self, values: dict[str, SnmpValue]) -> dict[str, SnmpValue]:
        dice = self.answers.dice
        changed = dict(values)
        for _ in range(dice.choice([0, 1, 10])):
            if not changed:
                return changed
            oid = dice.choice(list(changed))
            column = oid.rpartition(".")[0]
            row = dice.choice([oid, oid, f"{oid}.1", f"{column}.999999999999"])
            changed[row] = dice.choice(_ODD_OBJECTS)
        return changed


def _change_document(dice: random.Random, text: str) -> str | None:
    """A JSON document with an odd value in some place; None: the text is none."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    if not isinstance(document, dict | list):
        return None
    for _ in range(dice.choice([1, 1, 3])):
        holder, key = _choose_place(dice, document)
        holder[key] = json.loads(json.dumps(dice.choice(_ODD_VALUES)))
    return json.dumps(document)


def _choose_place(dice: random.Random, document: Any) -> tuple[Any, Any]:
    """Where in it a value stands: the list or mapping, and its index or key."""
    places: list[tuple[Any, Any]] = []
    left = [document]
    while left:
        holder = left.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        places += [(holder, key) for key in keys]
        left += [holder[key] for key in keys if isinstance(holder[key], dict | list)]
    return dice.choice(places) if places else ({}, "")


def _change_text(dice: random.Random, text: str) -> str:
    for _ in range(dice.choice([1, 1, 3])):
        lines = text.split("\n")
        number = dice.randrange(len(lines))
        how = dice.choice(["word", "word", "word", "lose", "repeat", "cut"])
        if how == "lose":
            del lines[number]
        elif how == "repeat":
            lines.insert(number, lines[number])
        elif how == "cut":
            lines = lines[: number + 1]
        words = list(_WORD.finditer(lines[number])) if how == "word" else []
        if words:
            word = dice.choice(words)
            line = lines[number]
            lines[number] = line[: word.start()] + dice.choice(_ODD_WORDS) + line[word.end() :]
        text = "\n".join(lines)
    return text
