"""What stands above every page while something holds Kintsugi back. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from incidents.notify.services import troubles
from runbooks.models import StopSwitch


@dataclass(frozen=True)
class Banner:
    """A line above every page: `kind` is stop or mode, `text` says what holds and since when."""

    kind: str
    icon: str
    text: str
    address: str
    link: str = "Stop switch"


def stop_file() -> Path:
    return Path(settings.KINTSUGI["KINTSUGI_STOP_FILE"] or settings.DATA_DIR / "stop")


def standing() -> list[Banner]:
    """What holds Kintsugi back right now."""
    found = [
        Banner(
            "stop",
            "front_hand",
            f"Stopped by {row.engaged_by} at {timezone.localtime(row.engaged_at):%Y-%m-%d %H:%M %Z}: {row.reason}. "
            "Nothing disruptive is done until it is released.",
            reverse("stop_switch"),
        )
        for row in StopSwitch.objects.filter(released_at=None).order_by("-engaged_at")[:1]
    ]
    if stop_file().exists():
        found.append(
            Banner(
                "stop",
                "front_hand",
                f"Stopped by the file {stop_file()}. Nothing disruptive is done while it exists.",
                reverse("stop_switch"),
            )
        )
    messages = reverse("admin:incidents_notification_changelist")
    found += [Banner("mode", "error", text, messages, "Messages") for text in troubles(timezone.now())]
    return found
