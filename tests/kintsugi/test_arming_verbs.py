"""`kintsugi arming`: begun, listed and ended on the command line."""

from __future__ import annotations

import json

import pytest
from django.core.management import CommandError

from kintsugi.cli import site_tools
from runbooks.models import Arming
from tests.builders import a_node

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
