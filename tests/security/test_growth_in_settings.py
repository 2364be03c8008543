"""What the site itself writes freezes no start and no command: each setting, each file and each word
of an operator takes a time that grows as the text does, whatever was pasted there."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from detectors.catalog import catalog
from detectors.catalog.catalog import CatalogError
from detectors.receivers import senders
from incidents.correlation import aggregation_rules, rule_file
from incidents.correlation.rules import CorrelationError
from incidents.evaluation.windows import KnownNames
from incidents.topology import inventory_file, topology
from incidents.topology.inventory_file import InventoryError
from kintsugi.cli import hosts
from kintsugi.cli.main import main
from kintsugi.clients import credentials
from kintsugi.configuration import config, settings_file
from kintsugi.inventory import host_lists
from kintsugi.management import typed_times
from runbooks.fleet import fleet
from runbooks.guards import job_policy
from runbooks.library import library
from runbooks.plan.runbook_file import LibraryError
from tests import growth
from tests.detectors.growth import find_growth
from tests.security.test_growth_in_runbooks import OF_OUR_OWN_FILES, OF_THE_SITE

PACKAGES = ("detectors", "incidents", "kintsugi", "runbooks")
# These write what they are given, and take nothing apart.
WRITERS = {
    "kintsugi.cli.main._end",
    "kintsugi.cli.output.complain",
    "kintsugi.cli.output.echo",
    "kintsugi.configuration.stop_file.write",
    "kintsugi.replay.play.print_nothing",
    "kintsugi.slack.orders._ask_which",
}
# Measured with the file that it is of.
OF_A_FILE = {"runbooks.plan.runbook_file._is_harmless"}
# How people are told that they wrote something wrong; zoneinfo goes as deep as Python does.
REFUSALS = (
    *(RecursionError, yaml.YAMLError),
    *(ValueError, KeyError, OSError, CommandError, ImproperlyConfigured, CatalogError),
    *(CorrelationError, InventoryError, LibraryError, SystemExit),
)
MORE: dict[str, dict[str, Any]] = {
    "incidents.maintenance.planning.parse_machines": {
        "there": KnownNames(frozenset(), frozenset())
    },
    "incidents.topology.inventory_file._list_lines": {"table": "node", "count": 1},
    "kintsugi.clients.credentials._find_line": {"number": 0, "table": "ssh", "key": "user"},
    "runbooks.text_templates.fill": {"node": "gn001", "fault_type": "gpu.lost", "incident": 1},
}
HEADS = ("gn[001-004],", "90d", "10.0.0.0/8,", "opened=2d,", "{node}", "/var/log/", "a.b.c:")
# Not one key of thousands of parts: tomllib is quadratic in these, and no file has one.
OF_FILES = (
    *(
        "a",
        " ",
        "\n",
        "# ",
        '"',
        "'",
        "0",
        "=",
        "[",
        "{",
        "\x00",
        "é",
        "a = 1\n",
        '"a, ',
        "a = [",
        "- ",
    ),
    *('[[node]]\nname = "gn001"\n', '[[node]]\nname = "gn[001-100]"\n', "[a]\n", "[[a]]\n"),
    *("a: b\n", "- a:\n  ", "&a [*a]\n", 'KINTSUGI_DATA_DIR = "var"\n'),
)


def find_words() -> dict[str, Callable[[str], object]]:
    """The parsers of the packages that test_growth_in_runbooks leaves to this file."""
    found: dict[str, Callable[..., object]] = {}
    for package in PACKAGES[1:]:
        found.update(growth.find_parsers(package))
    return {
        name: partial(parse, **MORE.get(name, {}))
        for name, parse in found.items()
        if (name.startswith(OF_THE_SITE) or name in OF_OUR_OWN_FILES)
        and name not in WRITERS | OF_A_FILE
    }


def call_command(*words: str) -> None:
    main(words)


WORDS: dict[str, Callable[[str], object]] = {
    **find_words(),
    **{f"setting {key.name}": key.parse for key in config.KEYS},
    "a host list": topology.expand,
    "host lists of a command": lambda text: hosts.parse([text]),
    "hosts to be folded": lambda text: host_lists.fold(text.split(",")),
    "a duration": lambda text: typed_times.parse_length("--for", text),
    "a time": lambda text: typed_times.parse_moment("--at", text),
    "an unknown setting": lambda text: config.load({f"KINTSUGI_{text}": "x"}),
}
COMMANDS: dict[str, Callable[[str], object]] = {
    "object": call_command,
    "verb": lambda text: call_command("incident", text),
    "option": lambda text: call_command("incident", "list", f"--{text}"),
}
FILES: dict[str, Callable[[Path], object]] = {
    "detectors.catalog.catalog.read": lambda path: catalog.read([path]),
    "incidents.correlation.aggregation_rules._read_texts": lambda path: aggregation_rules.load(
        path.parent
    ),
    "incidents.correlation.rule_file.read": lambda path: rule_file.read(
        [path.parent], catalog.load()
    ),
    "incidents.topology.inventory_file.load": inventory_file.load,
    "kintsugi.clients.credentials.load": credentials.load,
    "kintsugi.configuration.settings_file.read": settings_file.read,
    "runbooks.guards.job_policy.load": job_policy.load,
    "detectors.receivers.senders._read_fingerprints": senders._read_fingerprints,
    "runbooks.fleet.fleet.read_return_stop": fleet.read_return_stop,
}
# Read what this machine has written: histories, spools, captures, states, the senders' cache; or
# hand a file on to those above.
OF_THIS_MACHINE = {
    "kintsugi.servers.receiving._read_kept_hosts",
    "detectors.cli.captures.read_file",
    "detectors.cli.captures.read_folder",
    "detectors.cli.captures._read_bytes",
    "detectors.cli.check_post._read_token",
    "detectors.cli.check_run.read_state",
    "incidents.inventory.services.load",
    "kintsugi.history.files.read",
    "kintsugi.periodic.own_pace.read_thread_times",
    "kintsugi.replay.log_file.read",
    "kintsugi.settings._read_or_create_secret",
    "runbooks.library.library._read_or_note",
    "runbooks.plan.runbook_file.read_runbook",
}


def find_readers() -> set[str]:
    """Functions whose first parameter is a path and that read or load it, by their name."""
    found = set()
    for package in PACKAGES:
        for module in growth.load_modules(package):
            for name, value in vars(module).items():
                is_own = inspect.isfunction(value) and value.__module__ == module.__name__
                if not is_own or not name.lstrip("_").startswith(("read", "load")):
                    continue
                first = next(iter(inspect.signature(value).parameters.values()), None)
                if first is not None and str(first.annotation).endswith(("Path", "Path]")):
                    found.add(f"{module.__name__}.{name}")
    return found


def test_each_reader_of_a_file_is_measured_or_reads_our_own() -> None:
    assert find_readers() == FILES.keys() | OF_THIS_MACHINE | {"runbooks.library.library.read"}


@pytest.fixture
def longest(*, is_full_length: bool) -> int:
    """Twice what Linux takes of one argument (MAX_ARG_STRLEN, 128 KiB); in the deep tier 1 MiB."""
    return 1024 * growth.KIB if is_full_length else 256 * growth.KIB


def refuse_or_take(parse: Callable[[str], object]) -> Callable[[str], None]:
    def call(text: str) -> None:
        with contextlib.suppress(*REFUSALS):
            parse(text)

    return call


@pytest.mark.parametrize("what", sorted(WORDS))
def test_what_the_site_says_takes_a_time_that_grows_as_the_text(what: str, longest: int) -> None:
    assert growth.find_slow_parser(refuse_or_take(WORDS[what]), HEADS, longest=longest) == ""


@pytest.mark.parametrize("part", sorted(COMMANDS))
def test_word_of_a_command_takes_a_time_that_grows_as_the_text(part: str, longest: int) -> None:
    """Each text is a whole start of the command: a few of them."""
    texts = itertools.product(("",), ("a", "-", "=", "[", "a ", "é"), ("", "x"))
    call = refuse_or_take(COMMANDS[part])
    assert growth.find_slow_text(call, texts, longest=longest) == ""


DEEP = {"lists": "a = " + "[" * 1000 + "]" * 1000, "tables": "a = " + "{a = " * 1000 + "}" * 1000}
LAID_OUT = {
    "detectors.catalog.catalog.read": CatalogError,
    "incidents.correlation.aggregation_rules._read_texts": aggregation_rules.AggregationError,
    "incidents.correlation.rule_file.read": CorrelationError,
    "incidents.topology.inventory_file.load": InventoryError,
    "kintsugi.clients.credentials.load": ImproperlyConfigured,
    "kintsugi.configuration.settings_file.read": ImproperlyConfigured,
    "runbooks.guards.job_policy.load": job_policy.JobPolicyError,
}


@pytest.mark.parametrize("name", sorted(LAID_OUT))
@pytest.mark.parametrize("shape", sorted(DEEP))
def test_file_whose_tables_stand_too_deep_is_refused_with_its_name_and_what_was_expected(
    name: str, shape: str, tmp_path: Path
) -> None:
    path = tmp_path / "of_the_site.toml"
    path.write_text(DEEP[shape])
    with pytest.raises(LAID_OUT[name]) as refused:
        FILES[name](path)
    assert "of_the_site.toml" in str(refused.value)
    assert "expected a few levels" in str(refused.value)


@pytest.mark.parametrize("name", sorted(FILES))
def test_file_of_the_site_takes_a_time_that_grows_as_the_text(
    name: str, longest: int, tmp_path: Path
) -> None:
    path = tmp_path / "site.toml"
    path.touch(0o600)

    def read(text: str) -> None:
        path.write_text(text)
        FILES[name](path)

    call = refuse_or_take(read)
    call("")  # what it reads beside this file is read once
    texts = itertools.product(("", "version = 1\n", "a = "), OF_FILES, ("", "]", "!\n"))
    assert growth.find_slow_text(call, texts, longest=longest) == ""


@pytest.mark.parametrize("piece", OF_FILES)
def test_runbook_takes_a_time_that_grows_as_the_text(piece: str, tmp_path: Path) -> None:
    """PyYAML takes some 10 s a MiB, so its growth is asked for; 64 KiB are read."""
    path = tmp_path / "site.yaml"

    def read(text: str) -> None:
        path.write_text(text)
        library.read(path)

    assert find_growth(refuse_or_take(read), "", piece, "", longest=64 * growth.KIB) == ""
