"""Takes the documentation's pictures from the running demonstration: `script/screenshots`. Not a
test.

Nothing on them is staged: the incident is the demonstration's own GPU that a reboot does not bring
back, once Kintsugi has drained and rebooted its node and asks a person. They are not taken while
the page contradicts itself.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.services.programs import find, spawn, stop

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
NODE = "gn031"
LARGEST = 200_000  # bytes of one picture in the README
FOLDED = 880  # pixels of a page that a reader looks at
WITHIN_S = 900.0
ASKS = "Waits for a person"  # what the page says once the run asks
NOT_SHOWN = (
    "not known yet",
    "is overloaded",
)  # a page that contradicts itself, or a machine too busy for pictures


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "output"
        argv = [
            sys.executable,
            "-u",
            "-m",
            "fixtures.demo",
            "--data",
            str(Path(directory) / "data"),
        ]
        with output.open("wb") as file:
            demonstration = spawn(argv, cwd=ROOT, stdout=file, stderr=file)
        try:
            address, password = _address(demonstration, output)
            _take(address, password)
        finally:
            stop(demonstration, how=signal.SIGINT, within_s=60)
    return 0


def _address(demonstration: subprocess.Popen[bytes], output: Path) -> tuple[str, str]:
    """Where the console is and its password, as the demonstration prints them."""
    while demonstration.poll() is None:
        printed = output.read_text()
        found = re.search(r"Console +(http://[\d.]+:\d+/) +user admin, password (\S+)", printed)
        if found and "What will happen" in printed:
            return found[1], found[2]
        time.sleep(1)
    raise SystemExit(f"The demonstration ended before it was up:\n{output.read_text()}")


def _take(address: str, password: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(find("chromium")), args=["--no-sandbox"]
        )
        page = browser.new_page(base_url=address, viewport={"width": 1280, "height": 900})
        page.set_default_timeout(60_000)
        page.goto("/login/")
        page.fill("[name=username]", "admin")
        page.fill("[name=password]", password)
        page.press("[name=password]", "Enter")
        page.wait_for_url(address)
        incident = _incident_that_asks(page)
        _picture(page, incident, "incident.png")
        _picture(page, "/", "home.png")
        browser.close()


def _incident_that_asks(page: Page) -> str:
    """The address of the node's incident, once its run asks a person and its impact is known."""
    until = time.monotonic() + WITHIN_S
    text = ""
    while time.monotonic() < until:
        time.sleep(10)
        page.goto(f"/incidents/incident/?q={NODE}")
        link = page.locator("#result_list a[href*='/incidents/incident/']").first
        if not link.count():
            continue
        address = str(link.get_attribute("href"))
        page.goto(address)
        text = page.inner_text("body")
        if ASKS in text and not any(words in text for words in NOT_SHOWN):
            return address.split("?")[0]
        print(
            f"{NODE}: waits until its run asks a person, its jobs are known and the machine is free enough",
            flush=True,
        )
    raise SystemExit(f"{NODE}'s incident does not ask, or its page contradicts itself:\n{text}")


def _picture(page: Page, address: str, name: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_timeout(1_000)  # fonts
    height = min(FOLDED, int(page.evaluate("document.documentElement.scrollHeight")))
    page.set_viewport_size({"width": 1280, "height": height})
    size = len(page.screenshot(path=IMAGES / name))
    print(f"{IMAGES / name}: {size} bytes")
    if size > LARGEST:
        raise SystemExit(f"{name} is larger than {LARGEST} bytes.")


if __name__ == "__main__":
    sys.exit(main())
