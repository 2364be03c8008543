"""What stands above every page while something holds Kintsugi back. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from incidents import silencing
from incidents.notify.services import troubles
from runbooks.models import Breaker, StopSwitch


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
    found += [
        Banner(
            "stop",
            "electric_bolt",
            f"The breaker tripped at {timezone.localtime(row.tripped_at):%Y-%m-%d %H:%M %Z}: {row.why}. "
            "No node is taken out of service until a person closes it.",
            reverse("stop_switch"),
            "Breaker",
        )
        for row in Breaker.objects.filter(closed_at=None)
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
    found += _silenced()
    messages = reverse("admin:incidents_notification_changelist")
    found += [Banner("mode", "error", text, messages, "Messages") for text in troubles(timezone.now())]
    return found


def _silenced() -> list[Banner]:
    """How much is kept from people now; nothing while no window is in force."""
    windows = len(silencing.in_force(timezone.now()))
    if not windows:
        return []
    kept, one = silencing.kept_now(), windows == 1
    incidents = "1 open incident is" if kept == 1 else f"{kept or 'no'} open incidents are"
    word = "window (silence, maintenance or shelf) is" if one else "windows (silences, maintenance, shelves) are"
    text = f"{windows} {word} in force; {incidents} kept from people by {'it' if one else 'them'}."
    address = reverse("admin:incidents_silence_changelist") + "?state=in_force"
    return [Banner("mode", "notifications_paused", text, address, "Silences")]
