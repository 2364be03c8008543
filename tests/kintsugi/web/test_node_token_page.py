"""The pages of nodes' tokens, and who may revoke one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.inventory import node_tokens
from incidents.models import NodeToken
from runbooks.models import AuditEntry
from tests.builders import NOW, a_node
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db
LIST = "/incidents/nodetoken/"


def test_on_call_revokes_a_token_and_a_viewer_does_not(people: People) -> None:
    lasts = timedelta(days=100_000)
    token = node_tokens.create(a_node("gn041"), lasts=lasts, actor="ada", now=NOW)
    row = NodeToken.objects.get()
    page, revoke = f"{LIST}{row.pk}/change/", f"{LIST}{row.pk}/revoke/"
    assert "gn041" in people.viewer.get(LIST).content.decode()
    assert "Revoke" not in people.viewer.get(page).content.decode()
    assert people.viewer.post(revoke).status_code == 403
    assert "Revoke" in people.on_call.get(page).content.decode()
    assert people.on_call.post(revoke).headers["Location"] == LIST
    row.refresh_from_db()
    assert row.revoked_by == "omar"
    assert AuditEntry.objects.get().actor == "omar"
    shown = people.on_call.get(page).content.decode()
    assert "not taken" in shown
    assert token not in shown


def test_a_token_that_is_revoked_already_stays_whose_it_was(people: People) -> None:
    node_tokens.create(a_node("gn041"), lasts=timedelta(days=1), actor="ada", now=NOW)
    row = NodeToken.objects.get()
    node_tokens.revoke(row.pk, actor="ada", now=NOW)
    people.on_call.post(f"{LIST}{row.pk}/revoke/")
    row.refresh_from_db()
    assert row.revoked_by == "ada"
