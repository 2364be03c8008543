"""The pages of nodes that are being taken away for good, and what each role may."""

from __future__ import annotations

import pytest

from incidents.models import Decommission
from incidents.reserve import decommissions
from tests.builders import NOW, a_node
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db
LIST = "/incidents/decommission/"


def test_on_call_says_which_nodes_leave_and_takes_it_back(people: People) -> None:
    a_node("gn041")
    a_node("gn042")
    assert "Decommission nodes" in people.on_call.get(LIST).content.decode()
    said = {"nodes": "gn[041-042]", "reason": "sold"}
    assert people.on_call.post(f"{LIST}begin/", said).headers["Location"] == LIST
    assert sorted(decommissions.get_decommissions()) == ["gn041", "gn042"]
    assert "sold" in people.viewer.get(LIST).content.decode()
    row = Decommission.objects.get(node__name="gn042")
    assert row.set_by == "omar"
    assert "It stays after all" in people.on_call.get(f"{LIST}{row.pk}/change/").content.decode()
    assert people.on_call.post(f"{LIST}{row.pk}/end/", {"reason": ""}).status_code == 409
    assert people.on_call.post(f"{LIST}{row.pk}/end/", {"reason": "kept"}).status_code == 302
    assert list(decommissions.get_decommissions()) == ["gn041"]
    assert "by omar: kept" in people.viewer.get(f"{LIST}{row.pk}/change/").content.decode()
    assert people.on_call.post(f"{LIST}{row.pk}/end/", {"reason": "again"}).status_code == 409


def test_who_may_only_look_changes_nothing(people: People) -> None:
    a_node("gn042")
    assert "Decommission nodes" not in people.viewer.get(LIST).content.decode()
    assert (
        people.viewer.post(f"{LIST}begin/", {"nodes": "gn042", "reason": "sold"}).status_code == 403
    )
    decommissions.begin("gn042", actor="ada", why="sold", now=NOW)
    row = Decommission.objects.get()
    assert people.viewer.post(f"{LIST}{row.pk}/end/", {"reason": "kept"}).status_code == 403
    assert "It stays after all" not in people.viewer.get(f"{LIST}{row.pk}/change/").content.decode()
    assert list(decommissions.get_decommissions()) == ["gn042"]


def test_what_is_refused_is_asked_again_with_the_reason(people: People) -> None:
    answer = people.on_call.post(f"{LIST}begin/", {"nodes": "gn009", "reason": "sold"})
    assert answer.status_code == 409
    assert "The inventory knows no node gn009." in answer.content.decode()
    assert people.on_call.post(f"{LIST}begin/", {"nodes": "gn009", "reason": ""}).status_code == 409
    a_node("gn001")
    said = {"nodes": "gn001,gn[002-", "reason": "sold"}
    unread = people.on_call.post(f"{LIST}begin/", said)
    assert unread.status_code == 409
    assert "gn001,gn[002-: brackets do not match." in unread.content.decode()
    assert not Decommission.objects.exists()
