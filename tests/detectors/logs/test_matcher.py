"""All engines find the same patterns, on any bytes."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.logs.matcher import ENGINES, PatternError, compile_patterns
from tests.matching import get_shipped_matcher

INSTALLED = [name for name, module in ENGINES.items() if module is not None]
PATTERNS = [
    (3, rb"(?:^|[\s\];>])NVRM: Xid \((?P<pci>[0-9a-f:]+)\)"),
    (7, rb"(?i)link (?:is )?down\b"),
    (11, rb"^\d+ node"),
    (20, rb"a.{0,5}b"),
    (23, rb"(?:^|: )(?:mlx5_core|x{6})\b.*[^\w\n](?i:down|lost)"),
    (24, rb"yy|host.*[^\w\n](?i:down|lost)"),
    (25, rb"\][^,]*x.*"),
    (26, rb"yy(?P<code>\d{1,3})?(?:, pid=(?P<pid>[^,]*))?,?\s*"),
    (27, rb"ho|x{6}\d+"),
    (28, rb": mlx5_core.*(?:" + b"|".join(b"words %d" % n for n in range(9)) + rb"|host|lost\?)"),
]
WORDS = st.sampled_from(
    [
        b"NVRM: Xid (0:1)",
        b"\n",
        b" ",
        b"Link is Down",
        b"link down",
        b"12 node",
        b"a",
        b"b",
        b"\xff\x00",
        b"x" * 6,
        b"]",
        b": mlx5_core",
        b"yy",
        b"host",
        b" LOST",
        b" words 7",
        b"lost?",
    ]
)
LINES = st.lists(WORDS, max_size=12).map(b"".join) | st.binary(max_size=60)


@cache
def matcher_of(engine):
    return compile_patterns(PATTERNS, engine=engine)


def test_plain_re_is_always_there_and_hyperscan_first():
    assert INSTALLED[-1] == "re"
    assert INSTALLED[0] == next(name for name in ENGINES if name in INSTALLED)


@pytest.mark.parametrize("engine", INSTALLED)
def test_ids_of_all_that_occur_come_ascending(engine):
    matcher = compile_patterns(PATTERNS, engine=engine)
    assert matcher.match(b"12 node: NVRM: Xid (0000:01:00): link down") == [3, 7, 11]
    assert matcher.match(b"nothing of the kind") == []


@pytest.mark.parametrize("engine", INSTALLED)
def test_a_line_is_judged_anew_each_time(engine):
    matcher = compile_patterns(PATTERNS, engine=engine)
    assert matcher.has_match(b"link down")
    assert not matcher.has_match(b"calm")
    assert matcher.match(b"calm") == []
    assert matcher.find_lines(b"calm\nlink down\n") == [b"link down"]
    assert matcher.match(b"link is down") == [7]


@pytest.mark.parametrize("engine", INSTALLED)
@given(line=LINES)
@settings(max_examples=200, deadline=None)
def test_every_engine_says_what_plain_re_says(engine, line):
    plain, matcher = matcher_of("re"), matcher_of(engine)
    line = line.replace(b"\n", b"")
    assert matcher.match(line) == plain.match(line)
    assert matcher.has_match(line) == bool(plain.match(line))


@pytest.mark.parametrize("engine", INSTALLED)
@given(lines=st.lists(LINES, max_size=6))
@settings(max_examples=200, deadline=None)
def test_a_block_never_misses_a_line_that_matches(engine, lines):
    matcher = matcher_of(engine)
    lines = [line.replace(b"\n", b"") for line in lines]
    found = matcher.find_lines(b"\n".join(lines))
    matching = [line for line in lines if matcher.has_match(line)]
    assert [line for line in found if matcher.has_match(line)] == matching
    assert _is_in_order(found, lines)


def _is_in_order(found, lines):
    rest = iter(lines)
    return all(line in rest for line in found)


@pytest.mark.parametrize("engine", INSTALLED)
def test_a_block_with_more_matches_than_are_counted_is_asked_for_line_by_line(engine):
    lines = [b"link down " * 400, b"calm", b"link down " * 4000, b"calm", b"12 node"]
    found = matcher_of(engine).find_lines(b"\n".join(lines))
    assert [line for line in found if line != b"calm"] == [lines[0], lines[2], lines[4]]


@pytest.mark.parametrize("engine", INSTALLED)
def test_the_catalogue_compiles(engine):
    """As it is looked for: hyperscan takes a minute and more for the patterns of rows that have a
    `scan`, and no program compiles those."""
    matcher = get_shipped_matcher(engine)
    assert matcher.is_hit(b"NVRM: Xid (PCI:0000:19:00): 79, GPU has fallen off the bus.")


@pytest.mark.parametrize("engine", INSTALLED)
def test_a_pattern_that_does_not_compile_is_refused_by_name(engine):
    with pytest.raises(PatternError, match=engine):
        compile_patterns([(1, rb"(")], engine=engine)


@pytest.mark.parametrize("engine", INSTALLED)
def test_no_patterns_match_nothing(engine):
    matcher = compile_patterns([], engine=engine)
    assert matcher.match(b"anything") == []
    assert not matcher.has_match(b"anything")
    assert matcher.find_lines(b"any\nthing") == []


def test_an_engine_that_is_not_installed_is_refused_with_those_that_are():
    with pytest.raises(LookupError, match="abacus is not installed here; there are"):
        compile_patterns(PATTERNS, engine="abacus")
