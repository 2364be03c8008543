"""Time against length: every pattern and every parser of a package, found by itself, on texts that
are made to be slow for it.

A text is a head, then one piece again and again, then a tail that fits nothing. Twice the length
may take twice the time, and no more: what takes longer is cut off long before it hangs.
"""

from __future__ import annotations

import ast
import gc
import inspect
import itertools
import pkgutil
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from re import _constants as opcodes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

KIB = 1024
_FIRST = 2 * KIB
SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB)
# Of processor time, which another process's load does not change: a tenth of a second whatever the
# length, and five more for each MiB. The slowest of what is linear here takes 1.2 s for 1 MiB; what
# is quadratic is past it at 64 KiB.
_SECONDS, _SECONDS_PER_MIB = 0.1, 5.0
# How far past its limit a text is measured: more would change no verdict.
_PAST_LIMIT_S = 0.05
_PIECES = (
    *("a", " ", "\n", "0", "-", ".", "|", ":", "/", '"', "=", "[", "{", "\\", "\t", "é", "\x00"),
    *("a ", "0 ", "a.", "a-", "| ", "0.", " \n", "a\n", "0\n", "0 0 ", '{"a":', "a=", "://"),
)
_TAILS = ("", "!\n!", "x")
# What has a call of the module in it, and some more.
_NAMES_RE = re.compile(r"\bre\s*\.")
_TEXTS = frozenset({"text", "output", "said", "comment", "content"})


def load_modules(package: str) -> Iterator[ModuleType]:
    root = import_module(package)
    yield root
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        is_program = found.name.endswith((".__main__", ".wsgi"))
        if ".migrations." not in found.name and not is_program:
            yield import_module(found.name)


def find_patterns(package: str) -> dict[str, re.Pattern[Any]]:
    """Those that stand in a module's names, also inside tuples and tables, by `module.NAME`."""
    found: dict[str, re.Pattern[Any]] = {}
    for module in load_modules(package):
        for name, value in vars(module).items():
            for number, pattern in enumerate(_patterns_in(value)):
                is_imported = pattern in found.values()
                if not is_imported:
                    found[f"{module.__name__}.{name}{f'[{number}]' if number else ''}"] = pattern
    return found


def _patterns_in(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list | frozenset | set):
        for inside in value:
            yield from _patterns_in(inside)
    elif isinstance(value, Mapping):
        for inside in value.values():
            yield from _patterns_in(inside)


def find_hidden_patterns(package: str) -> list[str]:
    """Where a pattern is made inside a function, or handed to `re` as a text: none of these is
    found by its name, and so none is measured. As `file:line`."""
    return [place for place, _ in _find_calls_of_re(package)]


def find_inline_patterns(package: str) -> tuple[dict[str, re.Pattern[Any]], list[str]]:
    """Those that are written where they are used, by `file:line`; and the places of others, whose
    pattern is worked out there."""
    patterns: dict[str, re.Pattern[Any]] = {}
    worked_out = []
    for place, call in _find_calls_of_re(package):
        first = call.args[0]
        if isinstance(first, ast.Constant):
            patterns[place] = re.compile(first.value)
        else:
            worked_out.append(place)
    return patterns, worked_out


def _find_calls_of_re(package: str) -> Iterator[tuple[str, ast.Call]]:
    root = Path(str(import_module(package).__file__)).parent
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        if not _NAMES_RE.search(text):
            continue
        tree = ast.parse(text)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        inside = {id(node) for function in functions for node in ast.walk(function)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_of_re(node, is_inside=id(node) in inside):
                yield f"{path.relative_to(root.parent)}:{node.lineno}", node


def _is_of_re(call: ast.Call, *, is_inside: bool) -> bool:
    function = call.func
    is_re = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
    if not is_re or function.value.id != "re" or function.attr == "escape":  # type: ignore[attr-defined]
        return False
    return is_inside or function.attr != "compile"  # type: ignore[attr-defined]


def find_parsers(package: str) -> dict[str, Callable[..., object]]:
    """Functions that take a text apart: their first parameter is called so and is str or bytes."""
    found: dict[str, Callable[..., object]] = {}
    for module in load_modules(package):
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__:
                first = next(iter(inspect.signature(value).parameters.values()), None)
                if first and first.name in _TEXTS and str(first.annotation) in ("str", "bytes"):
                    found[f"{module.__name__}.{name}"] = value
    return found


def list_texts(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """Heads, pieces and tails for a pattern: its own beginnings and what it repeats, and the usual
    ones."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
    tree = parser.parse(source, pattern.flags & ~re.UNICODE)
    heads = ["", *dict.fromkeys(_sample(tree[:length]) for length in range(1, len(tree) + 1))]
    own = [piece for piece in dict.fromkeys(_repeats(tree)) if piece]
    whole = _sample(tree)
    pieces = dict.fromkeys((*own, whole, whole[: len(whole) // 2], *_PIECES))
    for head, piece, tail in itertools.product(heads, pieces, _TAILS):
        if piece:
            yield head, piece, tail


def _sample(tree: Any) -> str:
    """A text that fits a parsed pattern, more or less: what it looks at and not at is left out."""
    return "".join(_sample_of(operation, argument) for operation, argument in tree)


def _sample_of(operation: Any, argument: Any) -> str:
    if operation is opcodes.LITERAL:
        return chr(argument)
    if operation is opcodes.IN:
        return _sample_of_class(argument)
    if operation in (opcodes.MAX_REPEAT, opcodes.MIN_REPEAT, opcodes.POSSESSIVE_REPEAT):
        least, most, body = argument
        return _sample(body) * min(max(least, 1), 40 if most is opcodes.MAXREPEAT else most)
    if operation is opcodes.SUBPATTERN:
        return _sample(argument[-1])
    if operation is opcodes.BRANCH:
        return _sample(argument[1][0])
    return "a" if operation in (opcodes.ANY, opcodes.NOT_LITERAL) else ""


_OF_CATEGORY = {
    opcodes.CATEGORY_DIGIT: "0",
    opcodes.CATEGORY_SPACE: " ",
    opcodes.CATEGORY_WORD: "a",
    opcodes.CATEGORY_NOT_SPACE: "a",
    opcodes.CATEGORY_NOT_DIGIT: "a",
    opcodes.CATEGORY_NOT_WORD: "-",
}


def _sample_of_class(items: Any) -> str:
    if items[0][0] is opcodes.NEGATE:
        return "a"
    operation, argument = items[0]
    if operation is opcodes.CATEGORY:
        return _OF_CATEGORY[argument]
    return chr(argument if operation is opcodes.LITERAL else argument[0])


def _repeats(tree: Any) -> Iterator[str]:
    """What each repetition in the pattern repeats."""
    for operation, argument in tree:
        if operation in (opcodes.MAX_REPEAT, opcodes.MIN_REPEAT, opcodes.POSSESSIVE_REPEAT):
            yield _sample(argument[2])
            yield from _repeats(argument[2])
        elif operation is opcodes.SUBPATTERN:
            yield from _repeats(argument[-1])
        elif operation is opcodes.BRANCH:
            for branch in argument[1]:
                yield _sample(branch)
                yield from _repeats(branch)


def build_text(head: str, piece: str, tail: str, size: int) -> str:
    room = max(1, (size - len(head) - len(tail)) // len(piece))
    return f"{head}{piece * room}{tail}"


def find_slow_pattern(pattern: re.Pattern[Any], *, longest: int) -> str:
    """What is too slow for its length, in words; empty where nothing is."""

    def use(text: str) -> None:
        subject: Any = text if isinstance(pattern.pattern, str) else text.encode()
        pattern.fullmatch(subject)
        for _ in pattern.finditer(subject):
            pass

    return find_slow_text(use, list_texts(pattern), longest=longest)


def find_slow_parser(
    parse: Callable[[str], object], heads: tuple[str, ...] = (), *, longest: int
) -> str:
    texts = itertools.product(("", *heads), (*_PIECES, *heads), _TAILS)
    return find_slow_text(parse, texts, longest=longest)


def find_slow_text(
    use: Callable[[str], object],
    texts: Iterator[tuple[str, str, str]] | itertools.product[Any],
    *,
    longest: int,
) -> str:
    """All of them at 2 KiB, and the six that took longest there at each length up to `longest`."""
    took = []
    for head, piece, tail in texts:
        spent = _measure(use, build_text(head, piece, tail, _FIRST))
        if spent > _get_limit(_FIRST):
            return _describe(head, piece, tail, _FIRST, spent)
        took.append((spent, head, piece, tail))
    for _, head, piece, tail in sorted(took)[-6:]:
        for size in (size for size in SIZES if size <= longest):
            spent = _measure(use, build_text(head, piece, tail, size))
            if spent > _get_limit(size):
                return _describe(head, piece, tail, size, spent)
    return ""


def _get_limit(size: int) -> float:
    return _SECONDS + _SECONDS_PER_MIB * size / (1024 * KIB)


def _measure(use: Callable[[str], object], text: str) -> float:
    """The least of three where the first is too slow: a process that shares its core takes longer
    once; what grows too fast does so each time."""
    spent = _measure_once(use, text)
    if spent <= _get_limit(len(text)):
        return spent
    return min(spent, _measure_once(use, text), _measure_once(use, text))


def _measure_once(use: Callable[[str], object], text: str) -> float:
    """What is exponential would not end: it is given up soon past what any may take, when it is known
    to be too slow."""
    give_up_s = _get_limit(len(text)) + _PAST_LIMIT_S
    return measure_cpu(use, text, time.process_time, give_up_s=give_up_s)


def measure_cpu(
    use: Callable[[str], object], text: str, clock: Callable[[], float], *, give_up_s: float
) -> float:
    """Seconds by `clock`, at least `give_up_s` where it had to be given up. The collector of garbage
    waits: one pass over all that a long test process holds takes a second, whatever is measured."""
    is_given_up = False
    gc.disable()
    began = clock()
    try:
        with limited(give_up_s):
            use(text)
    except TookTooLong:
        is_given_up = True
    finally:
        spent = clock() - began
        gc.enable()
    return max(give_up_s, spent) if is_given_up else spent


class TookTooLong(BaseException):
    """No `except Exception` of what is measured takes it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TookTooLong in the main thread when what is inside has computed for so long. `re` looks
    for signals while it matches (Modules/_sre/sre_lib.h, `MAYBE_CHECK_SIGNALS`)."""

    def give_up(_number: int, _frame: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def _describe(head: str, piece: str, tail: str, size: int, spent: float) -> str:
    return f"{head[:60]!r} + {piece[:40]!r} * n + {tail!r}: {spent:.2f} s for {size // KIB} KiB"
