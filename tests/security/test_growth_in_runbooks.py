"""What a node, Slurm, a controller or a person in Slack writes freezes no run and no page: each
pattern and each parser of runbooks, incidents and kintsugi
takes a time that grows as the text does; those of runbooks end well on any bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incidents.text import archive
from runbooks.node import diagnostics
from runbooks.node.detached_command import Ended
from runbooks.node.diagnostics import Diagnosis, Wanted
from runbooks.slurm.ownership import parse_incident
from runbooks.slurm.protocol import NodeState
from tests import growth

PATTERNS = {
    **growth.find_patterns("runbooks"),
    **growth.find_patterns("incidents"),
    **growth.find_patterns("kintsugi"),
}
# Of runbook files, which the site writes itself, of 64 KiB at most: they are read at the start.
OF_OUR_OWN_FILES = {"runbooks.plan.runbook_file._is_harmless", "runbooks.text_templates.fill"}
PARSERS = {
    name: parse
    for name, parse in growth.find_parsers("runbooks").items()
    if name not in OF_OUR_OWN_FILES
}
# What the site itself writes: its settings, its files, the words of its operators and our own.
# test_growth_in_settings measures them.
OF_THE_SITE = (
    *("kintsugi.configuration.", "kintsugi.clients.", "kintsugi.management.commands."),
    *("kintsugi.cli.main.", "kintsugi.cli.output.complain", "kintsugi.cli.output.echo"),
    *("kintsugi.replay.play.print_nothing", "incidents.topology.inventory_file."),
    *("incidents.maintenance.planning.parse_machines", "kintsugi.slack.orders._ask_which"),
    "incidents.topology.topology.expand_typed",
)
# These split at blanks, and ask the database for the words.
WITH_THE_DATABASE = (
    "kintsugi.slack.orders.obey_command",
    "incidents.console.incident.build_search_query",
)
OF_PAGES = {
    name: parse
    for package in ("incidents", "kintsugi")
    for name, parse in growth.find_parsers(package).items()
    if not name.startswith((*OF_THE_SITE, *WITH_THE_DATABASE))
}
ALL_PARSERS = PARSERS | OF_PAGES
# What a parser needs beside the text. One that is not here, and needs more, fails the test.
MORE: dict[str, dict[str, Any]] = {
    "runbooks.slurm.jobs.parse_squeue": {"between": "\x1f"},
    "runbooks.slurm.jobs.parse_node_lists": {"between": "\x1f"},
    "runbooks.slurm.jobs.parse_sacct": {"name": "kintsugi"},
    "incidents.notify.slack.blocks._make_plain_text": {"limit": 300},
    "incidents.notify.slack.mrkdwn._shorten": {"limit": 300, "table": {"<": "&lt;"}},
    "incidents.notify.slack.mrkdwn.escape": {"limit": 300},
    "incidents.notify.slack.mrkdwn.format_plain": {"limit": 300},
    "incidents.checks.cables._replace_paths": {"names": {"node/gn001": "gn001", "a": "b"}},
    "incidents.polling.polling._decode": {"looked_at": None},
    "incidents.text.archive.hide_secrets": {"secrets": ["known-secret"]},
    "incidents.vendor.texts._format_sentence": {"note": "a note"},
    "runbooks.slurm.node_states._parse_seconds": {"default": timedelta(0)},
}
# Rows as the programs print them, to be made long in each of their parts.
HEADS = (
    "| PCIe | Pass |\n",
    "4711\x1fmai\x1fRUNNING\x1f",
    "4711|RUNNING|8|gpu|",
    "4711|kintsugi|COMPLETED|0:0|",
    " 65536 1000 390.1 389.9 0.7\n",
    "card mlx5_0\n",
    "kintsugi round 1 nccl\n",
    "ended 0\n",
    '{"DCGM GPU Diagnostic": {"test_categories": [',
)


@pytest.fixture
def longest(*, is_full_length: bool) -> int:
    """Four times what is read of a command's output; in the deep tier 1 MiB."""
    return 1024 * growth.KIB if is_full_length else 256 * growth.KIB


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_pattern_takes_a_time_that_grows_as_the_text(name: str, longest: int) -> None:
    assert growth.find_slow_pattern(PATTERNS[name], longest=longest) == ""


# These read the site's own files and settings alone, and are measured whole.
OF_OUR_OWN = {
    "incidents/topology/inventory_file.py",
    "kintsugi/clients/credentials.py",
    "kintsugi/configuration/setting_values.py",
}


def test_no_pattern_is_hidden_from_that() -> None:
    assert growth.find_hidden_patterns("runbooks") == []
    places = [*growth.find_hidden_patterns("incidents"), *growth.find_hidden_patterns("kintsugi")]
    assert {place.partition(":")[0] for place in places} == OF_OUR_OWN


def get_parser(name: str) -> Callable[[Any], object]:
    parse, more = ALL_PARSERS[name], MORE.get(name, {})

    def call(text: str) -> object:
        is_bytes = next(iter(parse.__annotations__.values())) == "bytes"
        return parse(text.encode() if is_bytes else text, **more)

    return call


@pytest.mark.parametrize("name", sorted(ALL_PARSERS))
def test_parser_takes_a_time_that_grows_as_the_text(name: str, longest: int) -> None:
    assert growth.find_slow_parser(get_parser(name), HEADS, longest=longest) == ""


@pytest.mark.parametrize("test", list(Diagnosis))
def test_verdict_takes_a_time_that_grows_as_the_text(test: Diagnosis, longest: int) -> None:
    wanted = Wanted(test, at_least=1.0, devices=("mlx5_0",))
    texts = growth.find_slow_parser(
        lambda text: diagnostics.evaluate(wanted, Ended(0, text)), HEADS, longest=longest
    )
    burn_in = growth.find_slow_parser(
        lambda text: diagnostics.evaluate_burn_in(wanted, Ended(0, text)), HEADS, longest=longest
    )
    assert (texts, burn_in) == ("", "")


def test_archive_takes_a_time_that_grows_as_the_text(longest: int) -> None:
    heads = ("password=", "a://b:", "bearer ", "-----BEGIN PRIVATE KEY-----", "token", "secret-")
    hide = lambda text: archive.hide_secrets(text.encode(), ["known-secret"])  # noqa: E731
    assert growth.find_slow_parser(hide, heads, longest=longest) == ""


texts = st.text(st.characters(exclude_categories=[]), max_size=80) | st.sampled_from(HEADS).flatmap(
    lambda head: st.text(max_size=40).map(lambda rest: head + rest)
)


@pytest.mark.parametrize("name", sorted(PARSERS))
@given(text=texts)
def test_parser_ends_well_on_any_text(name: str, text: str) -> None:
    is_bytes = next(iter(PARSERS[name].__annotations__.values())) == "bytes"
    PARSERS[name](text.encode(errors="replace") if is_bytes else text, **MORE.get(name, {}))


KEYS = (
    *("DCGM Diagnostic", "test_categories", "tests", "name", "results", "status", "warnings"),
    *("info", "warning", "error_severity", "gpu_ids", "runtime_error"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inside,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("test", list(Diagnosis))
@given(document=JSON, text=texts)
def test_verdict_is_given_on_any_text(test: Diagnosis, document: object, text: str) -> None:
    wanted = Wanted(test, at_least=1.0, devices=("mlx5_0",))
    for said in (text, json.dumps({"DCGM Diagnostic": {"test_categories": [document]}})):
        for status in (0, 1, None, 127):
            diagnostics.evaluate(wanted, Ended(status, said))
            diagnostics.evaluate_burn_in(wanted, Ended(status, said))


def test_severity_that_is_no_number_breaks_no_verdict() -> None:
    said = (
        '{"DCGM GPU Diagnostic": {"test_categories": [{"tests": [{"name": "PCIe", "results":'
        ' [{"status": "Fail", "gpu_id": "0", "warnings": [{"error_severity": [1]}]}]}]}]}}'
    )
    verdict = diagnostics.evaluate(Wanted(Diagnosis.DCGM), Ended(1, said))
    assert verdict.outcome is diagnostics.DiagnosticOutcome.ILL


def test_number_without_end_in_a_reason_names_no_incident() -> None:
    reason = f"kintsugi:{'7' * 5000} x"
    state = NodeState("gn001", "IDLE", frozenset(), reason, "root", None, None, ())
    assert parse_incident(state.reason) is None
