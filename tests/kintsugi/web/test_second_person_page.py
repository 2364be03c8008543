"""What waits for a second person, on the page of modes and the first page."""

from __future__ import annotations

import pytest
from django.test import Client
from pytest_django import Settings

from incidents.models import Notification
from kintsugi.roles import UserRole
from runbooks.guards.policy import DRAIN_REBOOT_VERIFY as RUNBOOK
from runbooks.models import RunbookMode, SecondPersonRequest
from runbooks.second_person import requests
from tests.kintsugi.people import People, people, signed_in

__all__ = ["people"]


@pytest.fixture
def bob(people: People, settings: Settings) -> Client:
    """A second administrator, where ada has asked for a mode."""
    two = {"KINTSUGI_SECOND_PERSON": frozenset({"arming", "widening"})}
    settings.KINTSUGI = {**settings.KINTSUGI, **two}
    client = signed_in("bob", UserRole.ADMIN)
    form = {"runbook": RUNBOOK, "mode": "approval"}
    assert people.admin.post("/modes/", form).status_code == 302
    return client


def asked() -> SecondPersonRequest:
    return SecondPersonRequest.objects.get()


def shown(client: Client, page: str = "/modes/") -> str:
    return str(client.get(page).content.decode())


def test_each_reads_who_asked_for_what_since_when_and_what_to_do(
    people: People, bob: Client
) -> None:
    what = f"{RUNBOOK} goes to approval."
    assert not RunbookMode.objects.exists()
    own, other, viewer = shown(people.admin), shown(bob), shown(people.viewer)
    for page in (own, other, viewer):
        assert what in page
        assert "asked for by ada" in page
    assert "another administrator confirms it" in own
    assert "Confirm just this" not in own
    assert "Confirm just this" in other
    assert "Administrators confirm it." in viewer
    assert f"Confirm or reject, as a second person: {what}" in shown(people.viewer, "/")


def test_another_administrator_confirms_what_stands_there(people: People, bob: Client) -> None:
    form = {"order": "confirm", "number": asked().pk, "seen": requests.get_seen(asked())}
    assert people.viewer.post("/modes/", form).status_code == 403
    assert people.on_call.post("/modes/", form).status_code == 403
    own = people.admin.post("/modes/", form)
    assert own.status_code == 409
    assert "You have asked for this yourself" in own.content.decode()
    assert bob.post("/modes/", form | {"seen": ""}).status_code == 409
    assert bob.post("/modes/", form | {"number": "x"}).status_code == 409
    assert bob.post("/modes/", form).status_code == 302
    assert RunbookMode.objects.get().set_by == "ada, confirmed by bob"
    assert bob.post("/modes/", form).status_code == 409
    assert "Waits for a second person" not in shown(bob)


def test_each_of_the_two_ends_it(people: People, bob: Client) -> None:
    form = {"order": "reject", "number": asked().pk}
    assert bob.post("/modes/", form).status_code == 409
    assert bob.post("/modes/", form | {"reason": "not now"}).status_code == 302
    assert asked().ending == "rejected"
    assert not RunbookMode.objects.exists()


def test_the_message_that_asks_for_it_has_its_page_like_any_other(
    people: People, bob: Client
) -> None:
    number = Notification.objects.get().pk
    listed = shown(people.viewer, "/incidents/notification/")
    assert f"#{number}" in listed
    page = shown(people.viewer, f"/incidents/notification/{number}/change/")
    assert "Widening waits for a second person" in page
    assert f"ada asks for this: {RUNBOOK} goes to approval." in page
