"""A real Chromium before the real server. Django's guard against blocking calls is lifted:
playwright's loop waits in this thread while the server answers in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from kintsugi.roles import UserRole
from tests.services.patience import patient
from tests.services.programs import find

Visit = Callable[[UserRole | None], Page]
expect.set_options(timeout=patient(5) * 1000)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Until the module's last test: as long as playwright's loop runs, no other test can run one of
    its own."""
    with pytest.MonkeyPatch.context() as environment, sync_playwright() as playwright:
        environment.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(
            executable_path=str(find("chromium")), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(transactional_db: None, live_server: LiveServer, chromium: Browser) -> Iterator[Visit]:
    """Opens a window on the console, signed in with a role; None: not signed in."""
    contexts = []

    def open_window(role: UserRole | None) -> Page:
        context = chromium.new_context(
            base_url=live_server.url, viewport={"width": 1440, "height": 900}
        )
        contexts.append(context)
        if role is not None:
            user = User.objects.create_user(f"{role.value}-person")
            user.groups.add(Group.objects.get(name=role.value))
            client = Client()
            client.force_login(user)
            cookie = client.cookies["sessionid"].value
            context.add_cookies([{"name": "sessionid", "value": cookie, "url": live_server.url}])
        page = context.new_page()
        page.set_default_timeout(patient(10) * 1000)
        return page

    yield open_window
    for context in contexts:
        context.close()
