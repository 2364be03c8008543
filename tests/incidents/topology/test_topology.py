"""Host lists and cables."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incidents.topology.topology import CablePlace, Topology, expand, expand_typed


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gn001", ["gn001"]),
        ("gn[001-003]", ["gn001", "gn002", "gn003"]),
        ("gn[1,3-4],mt001", ["gn1", "gn3", "gn4", "mt001"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("gn[098-101]", ["gn098", "gn099", "gn100", "gn101"]),
        (" a , b ", ["a", "b"]),
        ("10.0.0.[9-10]", ["10.0.0.9", "10.0.0.10"]),
    ],
)
def test_host_list_gives_its_names(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("a,,b", "empty name"),
        ("gn[1-", "do not match"),
        ("gn1]", "do not match"),
        ("gn[[1]]", "do not match"),
        ("gn[x-y]", "no number"),
        ("gn[]", "no number"),
        ("gn[5-1]", "backwards"),
        ("gn[1-999999999999]", "more than"),
        ("gn[1-60000],m[1-60000]", "more than"),
    ],
)
def test_wrong_host_list_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        expand(text)


@given(st.text(alphabet="gn0123456789[],- ", max_size=20))
def test_any_text_gives_names_or_a_reason(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert names
    assert all("[" not in name and "," not in name for name in names)


@given(first=st.integers(0, 500), count=st.integers(1, 50), width=st.integers(1, 5))
def test_range_has_every_number_once(first: int, count: int, width: int) -> None:
    names = expand(f"n[{first:0{width}}-{first + count - 1}]")
    assert [int(name[1:]) for name in names] == list(range(first, first + count))


def test_both_ends_of_a_cable_know_each_other() -> None:
    nic, port = "node/gn001/nic/mlx5_0", "switch/leaf-01/port/Ethernet0"
    site = Topology(cables=(CablePlace(nic, port),))
    assert (site.find_peer(nic), site.find_peer(port)) == (port, nic)
    assert site.ends(nic) == {"node/gn001", "switch/leaf-01"}
    assert site.get_neighbours("switch/leaf-01") == {"node/gn001"}
    assert site.ends("node/gn002/nic/mlx5_0") == {"node/gn002"}


@pytest.mark.parametrize(
    "hostlist", ["n[1-60000][1-60000]", ",".join(["n[1-60000]"] * 2), "n[1-60000,1-60000]"]
)
def test_a_host_list_is_refused_before_it_fills_the_memory(hostlist: str) -> None:
    with pytest.raises(ValueError, match="more than 65536 names"):
        expand(hostlist)


@pytest.mark.parametrize(
    "typed", ["gn001,gn002", "gn001 gn002", "gn001, gn002,", " gn[001, 002] gn001\n"]
)
def test_people_may_type_spaces_between_names(typed: str) -> None:
    assert expand_typed(typed) == ["gn001", "gn002"]


@pytest.mark.parametrize(
    ("typed", "says"),
    [(" , ", "'': an empty name."), ("gn[001-", "gn[001-: brackets do not match.")],
)
def test_what_is_no_host_list_is_said_in_a_sentence(typed: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        expand_typed(typed)
