"""`kintsugi arming`: begun, listed and ended on the command line."""

from __future__ import annotations

import json

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from kintsugi.cli import site_tools
from kintsugi.management.person import get_person
from kintsugi.roles import UserRole
from runbooks.models import Arming, SecondPersonRequest
from tests.builders import a_node
from tests.kintsugi.people import signed_in
from tests.kintsugi.typing_person import types

pytestmark = pytest.mark.django_db
BOOK = "drain_reboot_verify"


def add(mode: str = "approval", **where: object) -> None:
    site_tools.add_arming(BOOK, mode, length="8h", reason="pilot", **where)  # type: ignore[arg-type]


def test_one_is_begun_listed_and_ended(capsys: pytest.CaptureFixture[str]) -> None:
    a_node("gn001")
    a_node("gn002")
    add(nodes="gn[001-002]", runs=3)
    assert "nodes gn[001-002]" in capsys.readouterr().out
    row = Arming.objects.get()
    assert (row.nodes, row.runs) == (["gn001", "gn002"], 3)
    site_tools.list_armings(as_json=True)
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["id"], listed["place"], listed["used"]) == (row.pk, "gn[001-002]", 0)
    site_tools.end_arming(row.pk, "done")
    assert "has ended" in capsys.readouterr().out
    site_tools.list_armings()
    assert capsys.readouterr().out == "No arming is in force.\n"
    with pytest.raises(CommandError, match="not in force"):
        site_tools.end_arming(row.pk, "done")


@pytest.mark.parametrize(
    "where", [{}, {"everywhere": True, "nodes": "gn001"}, {"rack": "r9"}, {"pod": "p", "rack": "r"}]
)
def test_what_names_no_place_or_two_is_refused(where: dict[str, object]) -> None:
    with pytest.raises(CommandError):
        add(**where)
    assert not Arming.objects.exists()


def test_without_a_record_nothing_is_proposed_and_an_arming_says_what_it_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    site_tools.propose_armings()
    assert "No runbook has a record yet" in capsys.readouterr().out
    a_node("gn001")
    add(nodes="gn001")
    capsys.readouterr()
    site_tools.propose_armings()
    assert "17 more drains, none of them wrong, before armed on nodes gn001." in (
        capsys.readouterr().out
    )
    site_tools.propose_armings(as_json=True)
    (proposal,) = json.loads(capsys.readouterr().out)
    assert (proposal["runbook"], proposal["missing"], proposal["record"]["of"]) == (BOOK, 17, 0)


class TestSecondPerson:
    @pytest.fixture(autouse=True)
    def _two(self, settings: Settings) -> None:
        two = {"KINTSUGI_SECOND_PERSON": frozenset({"arming", "widening"})}
        settings.KINTSUGI = {**settings.KINTSUGI, **two}
        for name in ("aya", "bob"):
            signed_in(name, UserRole.ADMIN)

    def test_one_asks_and_another_reads_and_confirms(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a_node("gn001")
        types("aya", monkeypatch)
        add(nodes="gn001")
        request = SecondPersonRequest.objects.get()
        assert f"by kintsugi arming confirm {request.pk}" in capsys.readouterr().out
        site_tools.list_requests(as_json=True)
        (listed,) = json.loads(capsys.readouterr().out)
        assert (listed["by"], listed["kind"]) == ("aya", "widening")
        site_tools.confirm_request(request.pk)
        shown = capsys.readouterr().out
        assert "Asked for by aya" in shown
        seen = shown.rpartition("--seen ")[2].strip()
        with pytest.raises(CommandError, match="asked for this yourself"):
            site_tools.confirm_request(request.pk, seen)
        types("bob", monkeypatch)
        with pytest.raises(CommandError, match="something else than what you saw"):
            site_tools.confirm_request(request.pk, "stale")
        site_tools.confirm_request(request.pk, seen)
        assert Arming.objects.get().set_by == "aya, confirmed by bob"
        with pytest.raises(CommandError, match="was confirmed by bob"):
            site_tools.confirm_request(request.pk, seen)

    def test_it_is_taken_back(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a_node("gn001")
        types("aya", monkeypatch)
        add(nodes="gn001")
        site_tools.reject_request(SecondPersonRequest.objects.get().pk, "other nodes")
        capsys.readouterr()
        site_tools.list_requests()
        assert capsys.readouterr().out == "Nothing waits for a second person.\n"
        with pytest.raises(CommandError, match="There is no request 999"):
            site_tools.confirm_request(999)

    @pytest.mark.parametrize("variable", ["LOGNAME", "USER"])
    def test_nobody_speaks_in_anothers_name(
        self, variable: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("SUDO_USER", raising=False)
        monkeypatch.setenv(variable, "bob")
        assert get_person() != "bob"
        with pytest.raises(CommandError, match="names nobody else"):
            call_command("mode", BOOK, "approval", "--actor", "bob")
