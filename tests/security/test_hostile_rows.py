"""Whatever stands in a row, no page, command, log line or message to Slack hands it on raw.

Models, columns, addresses, verbs and builders of Slack's blocks are found, not listed: a new one
that nothing here reaches fails.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import logging.config
import re
import sys
import types
import typing
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.apps import apps
from django.conf import LazySettings, settings
from django.core.management import get_commands, load_command_class
from django.core.management.base import OutputWrapper
from django.urls import URLResolver, get_resolver

from detectors.faults import Severity
from incidents.models import Incident, Node, UnreadTemplate, VendorCase
from incidents.notify.notifier import Card, Message, MessageKey, Reply
from incidents.notify.slack import client
from incidents.vocabulary.lifecycle import State
from kintsugi.cli import exit_codes, grammar
from kintsugi.cli.grammar import Verb
from kintsugi.cli.main import main
from kintsugi.slack import inbound
from kintsugi.slack.orders import OrderReply
from runbooks.models import Question, Run
from tests.kintsugi.more_pages import forms_and_views
from tests.kintsugi.pages import pages
from tests.kintsugi.people import People, people
from tests.security import hostile

__all__ = ["pages", "people"]
pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_stop_file(settings: LazySettings, tmp_path: Path) -> None:
    settings.KINTSUGI = settings.KINTSUGI | {"KINTSUGI_STOP_FILE": str(tmp_path / "stop")}


@pytest.fixture
def hostile_pages(pages: list[str]) -> list[str]:
    """Every row of every model with hostile text in each of its columns; the addresses of pages."""
    found = [*pages, *forms_and_views()]
    hostile.fill_empty_models()
    for model in hostile.list_models():
        hostile.poison(model)
    return found


def test_each_model_has_a_row_and_each_text_column_of_it_the_hostile_text(
    hostile_pages: list[str],
) -> None:
    for model in hostile.list_models():
        row = model._default_manager.first()
        assert row is not None, model
        for field in hostile.list_text_columns(model):
            value = getattr(row, field.attname)
            if hostile.has_words(value) and (field.max_length or 200) > 64:
                assert hostile.MARK in str(value), field


# Pages
# ------------------------------------------------------------------------------------------------

# What shows no row to a person who looks, and why.
NO_PAGES = {
    "slack_command": "of Slack, signed",
    "slack_action": "of Slack, signed",
    "admin:app_list": "a page of ours stands before it",
    "admin:autocomplete": "no admin offers it",
    "admin:auth_user_delete": "nobody may",
    "admin:view_on_site": "no model has a page on a site",
}


def list_patterns(
    resolver: URLResolver | None = None, namespace: str = "", route: str = "/"
) -> Iterator[tuple[str, str]]:
    """All that answers an address: its name and its whole route."""
    for found in (resolver or get_resolver()).url_patterns:
        whole = f"{route}{found.pattern}"
        if isinstance(found, URLResolver):
            inside = f"{found.namespace}:" if found.namespace else namespace
            yield from list_patterns(found, inside, whole)
        else:
            yield f"{namespace}{found.name or whole}", whole


def build_address(route: str) -> str:
    """An address of a row that is there. Raises KeyError for a part of which no value is known:
    then it belongs here."""
    values = {
        "name": "drain_reboot_verify",
        "fault_type": "gpu.xid.79",
        "key": UnreadTemplate.objects.get().key,
        "question_id": Question.objects.latest("pk").pk,
        "resource": f"node/{Node.objects.latest('pk').name}",
        "number": Incident.objects.latest("pk").pk,
        "incident_id": Incident.objects.latest("pk").pk,
        "content_type_id": 1,
        "url": "no/such/page",
        "app_label": "incidents",
    }

    def fill(part: re.Match[str]) -> str:
        name = part["name"]
        if name in ("object_id", "id"):
            app, model = route.split("/")[1:3]
            is_of_model = app in apps.app_configs
            row = apps.get_model(app, model)._default_manager.first() if is_of_model else None
            return str(row.pk if row is not None else 1)
        return quote(str(values[name]))

    address = re.sub(r"<(?:\w+:)?(?P<name>\w+)>", fill, route)
    return re.sub(
        r"^/\^?|\(\?P<.*|[$^]|\\Z", lambda part: "/" if part.start() == 0 else "", address
    )


def test_no_page_hands_on_raw_what_stands_in_a_row(
    people: People, hostile_pages: list[str]
) -> None:
    shown, statuses = {}, {}
    routes = {name: build_address(route) for name, route in list_patterns()}
    addresses = [*hostile_pages, *routes.values(), "/search/?s=owned", "/metrics/", "/readyz"]
    for address in dict.fromkeys(addresses):
        answer = people.admin.get(address)
        content_type = answer.headers.get("Content-Type", "")
        html = "" if content_type == "application/gzip" else answer.content.decode()
        is_markup = not content_type.startswith("text/plain; version=")  # Prometheus reads it
        assert answer.status_code != 500, address
        assert hostile.find_raw(html, is_markup=is_markup) == [], address
        shown[address] = html
        statuses[address] = answer.status_code
    with_hostile_text = [address for address, html in shown.items() if hostile.MARK in html]
    assert len(with_hostile_text) > len(hostile_pages) // 2
    left = {name for name, address in routes.items() if statuses[address] not in _SHOWN}
    assert left == set(NO_PAGES), "an address that the tests' rows do not reach: see build_address"


# A page; another page; a form that is for sending alone.
_SHOWN = (200, 302, 405)


# Commands
# ------------------------------------------------------------------------------------------------


def get_words(verb: Verb, folder: Path) -> list[str]:
    """What a verb that only reads is told; a new one that needs words fails without a line here."""
    incident, run = Incident.objects.latest("pk").pk, Run.objects.latest("pk").pk
    node, case = Node.objects.order_by("pk").first().name, VendorCase.objects.get().pk
    log = folder / "messages"
    line = f"Jan  7 03:12:44 gn1 kernel: NVRM: Xid (PCI:0000:5d:00): 79, {hostile.HOSTILE}\n"
    log.write_bytes(line.encode() + b"\xff\xfe\x00\n")
    answer = folder / "output"
    answer.write_bytes(hostile.HOSTILE.encode() + b"\xff")
    words: dict[str, list[str]] = {
        "preflight": [],
        "history export": ["--before", "2030-01-01", "--to", str(folder / "history")],
        "incident show": [str(incident)],
        "incident why": [str(incident)],
        "unread show": [UnreadTemplate.objects.get().key],
        "node show": [node],
        "run show": [str(run)],
        "runbook show": ["drain_reboot_verify"],
        "runbook simulate": ["drain_reboot_verify", node],
        "vendor bundle": [str(case), "--out", str(folder / "case")],
        "inventory expected": [node],
        "explain": [str(log)],
        "parse": ["gpu", str(answer)],
        "replay": [str(log), "--year", "2026"],
        "simulator replay": [str(log), "--year", "2026"],
    }
    spoken = " ".join(verb.words)
    return words.get(spoken, [])


# These do not end, or show neither row nor file of others.
NOT_RUN = {
    *("up", "receive", "hosts expand", "hosts fold"),
    *("simulator run", "simulator inject", "simulator scenario"),
}
READS = [
    verb for verb in grammar.VERBS if not verb.is_change and " ".join(verb.words) not in NOT_RUN
]


@pytest.mark.parametrize("verb", READS, ids=lambda verb: " ".join(verb.words))
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_no_verb_hands_on_raw_what_stands_in_a_row(
    verb: Verb, form: list[str], hostile_pages: list[str], tmp_path: Path
) -> None:
    words = get_words(verb, tmp_path)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([*verb.words, *words, *form])
    printed = out.getvalue() + err.getvalue()
    assert hostile.find_raw(printed, is_markup=False) == []
    assert ended.value.code != exit_codes.USAGE, printed


def test_each_command_of_ours_writes_lines_that_are_printable() -> None:
    """What changes something too, and whatever a refusal quotes."""
    ours = [(name, app) for name, app in get_commands().items() if app in ("kintsugi", "fixtures")]
    assert len(ours) > 20
    for name, app in ours:
        out, err = io.StringIO(), io.StringIO()
        command = load_command_class(app, name)
        command.stdout, command.stderr = OutputWrapper(out), OutputWrapper(err)
        command.stdout.write(hostile.HOSTILE)
        command.stderr.write(hostile.HOSTILE)
        assert hostile.find_raw(out.getvalue() + err.getvalue(), is_markup=False) == [], name


def test_no_verb_writes_past_the_one_output() -> None:
    writers = {"print", "typer.echo", "click.echo", "sys.stdout.write", "sys.stderr.write"}
    found = {
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "kintsugi").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in writers
    }
    assert found == {"kintsugi/cli/output.py"}


def test_a_refusal_that_quotes_is_printable(pages: list[str]) -> None:
    err = io.StringIO()
    with redirect_stderr(err), pytest.raises(SystemExit):
        main(["unread", "show", hostile.HOSTILE])
    assert hostile.MARK in err.getvalue()
    assert hostile.find_raw(err.getvalue(), is_markup=False) == []


def test_our_own_log_is_printable_line_by_line() -> None:
    written = io.StringIO()
    configurator = logging.config.DictConfigurator(settings.LOGGING)
    handler = logging.StreamHandler(written)
    handler.setFormatter(
        configurator.configure_formatter(settings.LOGGING["formatters"]["line"])  # type: ignore[arg-type]
    )
    log = logging.getLogger("kintsugi.of_this_test")
    log.propagate = False
    log.addHandler(handler)
    try:
        raise ValueError(hostile.HOSTILE)
    except ValueError:
        log.warning("from %s", hostile.HOSTILE, exc_info=True)
    assert written.getvalue().count(hostile.MARK) >= 2
    assert written.getvalue().count("\n") > 3
    assert hostile.find_raw(written.getvalue(), is_markup=False) == []


# Slack
# ------------------------------------------------------------------------------------------------

PACKAGES = ("detectors", "incidents", "runbooks", "kintsugi")
_OF_SLACK = frozenset({"mrkdwn", "plain_text"})


def find_builders() -> set[tuple[str, str]]:
    """Each function of the product that makes a text of Slack's: its file and name."""
    return {
        (str(path), function.name)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef) and any(map(_is_of_slack, ast.walk(function)))
    }


def _is_of_slack(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in _OF_SLACK


def make_hostile(kind: Any, text: str) -> Any:
    """A value of a dataclass or of a field's type, with `text` wherever a text may stand."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        fields = dataclasses.fields(kind)
        return kind(**{field.name: make_hostile(hints[field.name], text) for field in fields})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return (make_hostile(arguments[0], text),)
    if origin is types.UnionType:
        return make_hostile(arguments[0], text)
    if issubclass(kind, Enum):
        return next(iter(kind))
    return {str: text, int: 7, bool: True, datetime: hostile.NOW}[kind]


def list_texts(body: Any) -> Iterator[str]:
    """All that Slack shows; what a button sends back to us and what finds a message again is not
    shown."""
    if isinstance(body, str):
        yield body
    elif isinstance(body, list):
        for inside in body:
            yield from list_texts(inside)
    elif isinstance(body, dict):
        for name, inside in body.items():
            if name not in ("value", "action_id", "metadata"):
                yield from list_texts(inside)


def build_messages(text: str) -> list[Any]:
    """What is sent to Slack: cards in each state, replies, answers to commands and clicks."""
    card, reply = make_hostile(Card, text), make_hostile(Reply, text)
    answer = make_hostile(OrderReply, text)
    contents = [dataclasses.replace(card, state=state) for state in State]
    contents += [dataclasses.replace(card, severity=severity) for severity in Severity]
    key = MessageKey(1, 2, "x")
    bodies: list[Any] = [
        client._post_body(Message("slack:C1", key, content, "1.2"))
        for content in (*contents, reply)
    ]
    for is_done in (True, False):
        told = dataclasses.replace(answer, is_done=is_done)
        bodies += [inbound._format_reply(told), inbound._build_replacement(told, {})]
        bodies.append(inbound._build_replacement(told, {"message": {"blocks": []}}))
    return [*bodies, inbound._format_reply(dataclasses.replace(answer, ask=None))]


def test_no_message_to_slack_hands_on_raw_what_it_quotes() -> None:
    for body in build_messages(f"{hostile.HOSTILE}\x00\ud800"):
        shown = list(list_texts(body))
        assert any(hostile.MARK in text for text in shown)
        for text in shown:
            assert hostile.find_raw(text, is_markup=True) == []


def test_no_message_to_slack_is_built_elsewhere() -> None:
    entered: set[tuple[str, str]] = set()

    def note(frame: types.FrameType, event: str, _argument: object) -> None:
        if event == "call":
            entered.add((frame.f_code.co_filename, frame.f_code.co_name))

    sys.setprofile(note)
    try:
        build_messages("x")
    finally:
        sys.setprofile(None)
    builders = find_builders()
    assert len(builders) >= 4
    assert builders - entered == set()
