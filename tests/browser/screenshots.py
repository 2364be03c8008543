"""Takes the documentation's pictures: `script/screenshots`. Not a test; run by its file name alone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.conf import LazySettings
from playwright.sync_api import Page

from kintsugi.roles import Role
from tests.browser.conftest import Visit
from tests.browser.story import tell

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
LARGEST = 200_000  # bytes of one picture in the README
FOLDED = 880  # pixels of a page that a reader looks at

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture
def a_day(settings: LazySettings, transactional_db: None) -> int:
    settings.TIME_ZONE = "Asia/Tokyo"
    settings.KINTSUGI = settings.KINTSUGI | {"SLACK_BOT_TOKEN": "", "KINTSUGI_IS_DEMO": False}
    return tell(datetime.now(UTC)).pk


def taken(page: Page, address: str, name: str) -> int:
    """The picture's size in bytes."""
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_timeout(500)  # fonts; pictures are taken by hand, not by the test command
    height = min(FOLDED, int(page.evaluate("document.documentElement.scrollHeight")))
    page.set_viewport_size({"width": 1280, "height": height})
    IMAGES.mkdir(parents=True, exist_ok=True)
    return len(page.screenshot(path=IMAGES / name))


def test_pictures_are_taken(a_day: int, visit: Visit) -> None:
    page = visit(Role.ON_CALL)
    assert taken(page, "/", "home.png") < LARGEST
    assert taken(page, f"/incidents/{a_day}/", "incident.png") < LARGEST
