"""What stands above every page while something holds Kintsugi back. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from incidents.checks import overload, refused_senders
from incidents.maintenance import active_windows, silences
from incidents.notify.services import troubles
from kintsugi.configuration.setting_values import INVENTORY
from runbooks.models import Breaker, StopSwitch

_NAMED = 3


@dataclass(frozen=True)
class Banner:
    """A line above every page: `kind` is stop or mode, `text` says what holds and since when."""

    kind: str
    icon: str
    text: str
    address: str = ""  # no link where it is empty
    link: str = "Stop switch"


def stop_file() -> Path:
    return Path(settings.KINTSUGI["KINTSUGI_STOP_FILE"] or settings.DATA_DIR / "stop")


def get_banners() -> list[Banner]:
    """What holds Kintsugi back right now."""
    found = [
        Banner(
            "stop",
            "front_hand",
            f"Stopped by {row.engaged_by} at"
            f" {timezone.localtime(row.engaged_at):%Y-%m-%d %H:%M %Z}: {row.reason}. Nothing"
            " disruptive is done until it is released.",
            reverse("stop_switch"),
        )
        for row in StopSwitch.objects.filter(released_at=None).order_by("-engaged_at")[:1]
    ]
    found += [
        Banner(
            "stop",
            "electric_bolt",
            f"The breaker tripped at {timezone.localtime(row.tripped_at):%Y-%m-%d %H:%M %Z}:"
            f" {row.why}. No node is taken out of service until a person closes it.",
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
    found += _refused()
    found += _silenced()
    found += _overloaded()
    messages = reverse("admin:incidents_notification_changelist")
    found += [
        Banner("mode", "error", text, messages, "Messages") for text in troubles(timezone.now())
    ]
    return found


def _refused() -> list[Banner]:
    """Whose syslog is refused, and the line that lets it in."""
    refused = refused_senders.recent(timezone.now())
    if not refused:
        return []
    first = refused[0]
    what = "connections" if first.transport == "TCP" else "datagrams"
    since = timezone.localtime(first.first_at)
    others = sorted({row.address for row in refused} - {first.address})
    more = f", and that of {len(others)} more: {', '.join(others[:_NAMED])}" if others else ""
    more += ", ..." if len(others) > _NAMED else ""
    listed = settings.KINTSUGI["KINTSUGI_SYSLOG_NETWORKS"] or [INVENTORY]
    line = ",".join([*listed, first.address])
    text = (
        f"Syslog from {first.address} is refused ({first.count} {what} since"
        f" {since:%Y-%m-%d %H:%M %Z}){more}: nothing that it says is read. If it is a machine of"
        f" yours, add it to the inventory with this address, or set KINTSUGI_SYSLOG_NETWORKS={line}"
        " and restart the receiver."
    )
    return [Banner("mode", "block", text)]


def _overloaded() -> list[Banner]:
    """Whose silence says nothing now, and what to do about it."""
    address = reverse("admin:incidents_fault_changelist")
    return [
        Banner(
            "mode",
            "hourglass_bottom",
            f"Kintsugi is overloaded since {timezone.localtime(since):%H:%M %Z}. {text}",
            address,
            "Faults",
        )
        for since, text in overload.get_active_overload()
    ]


def _silenced() -> list[Banner]:
    """How much is kept from people now; nothing while no window is in force."""
    windows = len(active_windows.in_force(timezone.now()))
    if not windows:
        return []
    kept, one = silences.kept_now(), windows == 1
    incidents = "1 open incident is" if kept == 1 else f"{kept or 'no'} open incidents are"
    word = (
        "window (silence, maintenance or shelf) is"
        if one
        else "windows (silences, maintenance, shelves) are"
    )
    text = f"{windows} {word} in force; {incidents} kept from people by {'it' if one else 'them'}."
    address = reverse("admin:incidents_silence_changelist") + "?state=in_force"
    return [Banner("mode", "notifications_paused", text, address, "Silences")]
