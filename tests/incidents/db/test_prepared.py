"""Queries whose SQL is kept give what plain ORM gives."""

from __future__ import annotations

import pytest

from incidents.db.prepared import Given, Prepared
from incidents.models import Incident, Node
from tests.builders import a_node
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


def test_rows_come_with_the_related_rows_that_are_asked_for() -> None:
    site = Site(nodes=2)
    incident = site.raise_fault("gn002")
    query = Prepared(
        lambda: Incident.objects.filter(pk=Given("pk")).select_related("node", "root_fault")
    )
    (found,) = query.objects(pk=incident.pk)
    assert (found.pk, found.title, found.opened_at) == (
        incident.pk,
        incident.title,
        incident.opened_at,
    )
    assert "node" in found._state.fields_cache
    assert found.node.name == "gn002"
    assert found.root_fault.last_seen_at == incident.root_fault.last_seen_at


def test_a_related_row_that_is_not_there_is_none() -> None:
    incident = Site(nodes=2).raise_fault("gn002")
    Incident.objects.filter(pk=incident.pk).update(node=None)
    query = Prepared(lambda: Incident.objects.filter(pk=Given("pk")).select_related("node"))
    (found,) = query.objects(pk=incident.pk)
    assert (found.node, found.node_id) == (None, None)


def test_an_instance_made_of_a_row_is_saved_as_that_row() -> None:
    a_node("gn001")
    (found,) = Prepared(lambda: Node.objects.filter(name=Given("name"))).objects(name="gn001")
    found.rack = "r7"
    found.save()
    assert list(Node.objects.values_list("name", "rack")) == [("gn001", "r7")]
