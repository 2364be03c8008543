"""The console as a person meets it: in a browser, by eye, by keyboard, on a telephone."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from playwright.sync_api import Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from incidents import services
from incidents.models import Incident
from kintsugi.roles import UserRole
from tests.browser.conftest import Visit
from tests.builders import NOW, a_node, an_incident
from tests.kintsugi.more_pages import forms_and_views
from tests.kintsugi.pages import pages

__all__ = ["pages"]

pytestmark = pytest.mark.needs("chromium")

# WCAG 2.2, 1.4.3: 4.5 to 1 for text of ordinary size. A colour is read by painting it, whatever
# notation it has.
LOW_CONTRAST = """() => {
  const brush = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const over = (top, under) => top.slice(0, 3).map((c, i) => c * top[3] + under[i] * (1 - top[3]));
  const read = (colour) => {
    brush.clearRect(0, 0, 1, 1); brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = brush.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const ground = (part) => {
    const layers = [];
    for (; part; part = part.parentElement) layers.push(read(getComputedStyle(part).backgroundColor));
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const part of document.querySelectorAll("#main *")) {
    const hasText = [...part.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || !part.offsetParent || part.closest(".material-symbols-outlined, option, script")) continue;
    const under = ground(part);
    const [a, b] = [light(over(read(getComputedStyle(part).color), under)), light(under)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(`${part.className}: ${part.textContent.trim().slice(0, 40)} ${ratio.toFixed(2)}`);
  }
  return found;
}"""
UNLABELLED = """() => [...document.querySelectorAll(".k-page input, .k-page select, .k-page textarea")]
  .filter((field) => field.type !== "hidden" && !field.labels.length && !field.getAttribute("aria-label"))
  .map((field) => field.name)"""
TOO_WIDE = "() => document.documentElement.scrollWidth - window.innerWidth"


def watched(page: Page, home: str) -> list[str]:
    """What must not happen while pages load: other hosts asked, errors, what the policy forbids."""
    wrong: list[str] = []
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith((home, "data:")) else wrong.append(request.url)
        ),
    )
    page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    return wrong


def problems(page: Page, address: str) -> dict[str, Any]:
    """What one page does wrong by eye, in light, in dark and on a telephone."""
    answer = page.goto(address)
    assert answer is not None
    found: dict[str, Any] = {
        "status": answer.status,
        "headings": page.locator("h1:visible").count(),
    }
    found["unlabelled"] = page.evaluate(UNLABELLED)
    found["light"] = page.evaluate(LOW_CONTRAST)
    page.set_viewport_size({"width": 1280, "height": 900})
    found["too_wide_for_a_laptop"] = page.evaluate(TOO_WIDE)
    page.evaluate("document.documentElement.classList.add('dark')")
    found["dark"] = page.evaluate(LOW_CONTRAST)
    page.set_viewport_size({"width": 390, "height": 844})
    found["too_wide"] = page.evaluate(TOO_WIDE)
    page.set_viewport_size({"width": 1440, "height": 900})
    return found


def test_every_page_loads_from_here_alone_is_labelled_readable_and_fits_a_telephone(
    pages: list[str], visit: Visit, live_server: LiveServer
) -> None:
    page = visit(UserRole.ADMIN)
    wrong = watched(page, live_server.url)
    well = {
        "status": 200,
        "headings": 1,
        "unlabelled": [],
        "light": [],
        "dark": [],
        "too_wide": 0,
        "too_wide_for_a_laptop": 0,
    }
    addresses = [*pages, *forms_and_views(), "/auth/user/"]
    assert {address: problems(page, address) for address in addresses} == dict.fromkeys(
        addresses, well
    )
    assert wrong == []


def test_the_sign_in_page_loads_from_here_alone_and_lets_a_person_in(
    visit: Visit, live_server: LiveServer
) -> None:
    person = User.objects.create_user("vera", password="correct horse")
    person.groups.add(Group.objects.get(name=UserRole.VIEWER.value))
    page = visit(None)
    wrong = watched(page, live_server.url)
    page.goto("/incidents/incident/")
    page.get_by_label("Username").fill("vera")
    page.get_by_label("Password").fill("correct horse")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{live_server.url}/incidents/incident/")
    assert wrong == []


def test_an_incident_is_acknowledged_by_keyboard_alone(visit: Visit) -> None:
    incident = an_incident()
    page = visit(UserRole.ON_CALL)
    page.goto(f"/incidents/{incident.pk}/")
    page.locator("summary", has_text="Acknowledge").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("I look after it.")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#live-timeline")).to_contain_text("I look after it.")
    expect(page.locator("#live-head")).to_contain_text("acknowledged")
    assert Incident.objects.get().state == "acknowledged"


def test_an_open_page_follows_what_happens_and_leaves_alone_what_is_typed(visit: Visit) -> None:
    incident = an_incident()
    page = visit(UserRole.ON_CALL)
    page.clock.install()
    page.goto(f"/incidents/{incident.pk}/")
    page.locator("summary", has_text="Resolve").click()
    page.locator("#id_resolve-note").fill("Half a sent")
    services.record(incident.pk, kind="step", text="Drained gn042.", now=NOW)
    page.clock.run_for(6_000)
    expect(page.locator("#live-timeline")).to_contain_text("Drained gn042.")
    expect(page.locator("#id_resolve-note")).to_have_value("Half a sent")
    expect(page.locator("#id_resolve-note")).to_be_focused()


def test_an_open_home_page_follows_what_happens(visit: Visit) -> None:
    page = visit(UserRole.VIEWER)
    page.clock.install()
    page.goto("/")
    expect(page.locator("#live-home")).to_contain_text("No incident is open.")
    an_incident(title="GPU has fallen off the bus")
    page.clock.run_for(6_000)
    expect(page.locator("#live-home")).to_contain_text("GPU has fallen off the bus")


def test_an_open_page_says_so_when_the_server_no_longer_answers_and_when_it_does_again(
    visit: Visit,
) -> None:
    def unplugged(route: Route) -> None:
        route.abort()

    page = visit(UserRole.VIEWER)
    page.clock.install()
    page.goto("/")
    page.route("**/*", unplugged)
    page.clock.run_for(6_000)
    expect(page.get_by_role("alert")).to_contain_text(
        "The server does not answer: this page is as of"
    )
    page.unroute("**/*", unplugged)
    page.clock.run_for(6_000)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_an_open_page_says_so_when_the_person_is_signed_out(visit: Visit) -> None:
    page = visit(UserRole.VIEWER)
    page.clock.install()
    page.goto("/")
    page.context.clear_cookies()
    page.clock.run_for(6_000)
    expect(page.get_by_role("alert")).to_contain_text("You are signed out")


def test_machines_are_offered_while_a_report_is_typed(visit: Visit) -> None:
    a_node()
    page = visit(UserRole.ON_CALL)
    page.goto("/report/")
    assert page.locator("#machines option").evaluate_all("all => all.map((one) => one.value)") == [
        "gn042"
    ]
    page.get_by_label("Where").fill("gn042")
    page.get_by_label("What you saw").fill("NCCL hangs.")
    page.get_by_role("button", name="Report it").click()
    expect(page.locator("#live-reports")).to_contain_text("NCCL hangs.")
