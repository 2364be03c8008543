"""The people of the console's tests: each signed in with a role, one without any, one not signed in
at all."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from kintsugi.roles import UserRole


@dataclass(frozen=True)
class People:
    anonymous: Client
    stranger: Client
    viewer: Client
    on_call: Client
    admin: Client


def signed_in(name: str, role: UserRole | None) -> Client:
    user = User.objects.create_user(name)
    if role is not None:
        user.groups.add(Group.objects.get(name=role.value))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def people(db: None) -> People:
    return People(
        anonymous=Client(),
        stranger=signed_in("sam", None),
        viewer=signed_in("vera", UserRole.VIEWER),
        on_call=signed_in("omar", UserRole.ON_CALL),
        admin=signed_in("ada", UserRole.ADMIN),
    )
