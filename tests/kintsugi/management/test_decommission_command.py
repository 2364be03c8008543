"""`kintsugi decommission`: what it says, lists and refuses."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command

from incidents.reserve import decommissions
from kintsugi.management.person import get_person
from tests.builders import a_node

pytestmark = pytest.mark.django_db


def done(*words: str) -> str:
    out = io.StringIO()
    call_command("decommission", *words, stdout=out)
    return out.getvalue()


def test_nodes_leave_by_name_and_are_listed_with_who_and_why() -> None:
    a_node("gn001")
    a_node("gn002")
    told = done("add", "gn[001-002]", "--reason", "sold", "--actor", "alice").splitlines()
    assert [line.partition(" (")[0] for line in told] == [
        f"gn00{n} is being decommissioned" for n in (1, 2)
    ]
    assert done("list").splitlines()[0].endswith(f", by alice, typed by {get_person()}: sold")
    (row, _) = json.loads(done("list", "--json"))
    assert (row["node"], row["set_by"], row["reason"]) == (
        "gn001",
        f"alice, typed by {get_person()}",
        "sold",
    )
    assert (
        f"gn002 is no longer being decommissioned, by bob, typed by {get_person()}: kept"
        in done("end", "gn002", "--reason", "kept", "--actor", "bob")
    )
    assert list(decommissions.get_decommissions()) == ["gn001"]


def test_what_is_refused_is_said_beside_what_was_done() -> None:
    a_node("gn001")
    with pytest.raises(CommandError, match=r"The inventory knows no node gn009\."):
        done("add", "gn[001,009]", "--reason", "sold")
    assert list(decommissions.get_decommissions()) == ["gn001"]
    with pytest.raises(CommandError, match=r"gn001 is being decommissioned .*sold"):
        done("add", "gn001", "--reason", "twice")
    with pytest.raises(CommandError, match="gn009 is not being decommissioned"):
        done("end", "gn009", "--reason", "kept")
    done("end", "gn001", "--reason", "kept")
    assert done("list") == "None.\n"
