"""What stands above every page while something holds Kintsugi back. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from detectors.receivers.refusals import EVENTS, FAULTS, NAMES
from incidents.checks import overload, own_health, refused_senders
from incidents.maintenance import active_windows, silences
from incidents.models import RefusedSender
from incidents.notify.services import list_troubles
from kintsugi.configuration import stop_file
from kintsugi.configuration.setting_values import INVENTORY
from runbooks.fleet import fleet
from runbooks.models import Breaker, ReturnStop, StopSwitch

_NAMED = 3
# Why events of a sender were left out, the first that holds.
_LEFT_OUT = {
    NAMES: "in the name of machines that no inventory knows",
    FAULTS: "more faults of one machine than a sender states in a day",
    EVENTS: "too many at once",
}


@dataclass(frozen=True)
class Banner:
    """A line above every page: `kind` is stop or mode, `text` says what holds and since when."""

    kind: str
    icon: str
    text: str
    address: str = ""  # no link where it is empty
    link: str = "Stop switch"


def get_banners() -> list[Banner]:
    """What holds Kintsugi back right now."""
    return [banner for build in _BUILDERS for banner in build()]


def _stop_switch_banners() -> list[Banner]:
    switch = StopSwitch.objects.filter(released_at=None).order_by("-engaged_at").first()
    if switch is None:
        return []
    text = (
        f"Stopped by {switch.engaged_by} at {_format_minute(switch.engaged_at)}: {switch.reason}."
        " Nothing disruptive is done until it is released."
    )
    if ReturnStop.objects.filter(switch__released_at=None).exists():
        text += " No node is given back either."
    return [Banner("stop", "front_hand", text, reverse("stop_switch"))]


def _build_breaker_banners() -> list[Banner]:
    address = reverse("stop_switch")
    banners = []
    for breaker in Breaker.objects.filter(closed_at=None):
        text = (
            f"The breaker tripped at {_format_minute(breaker.tripped_at)}: {breaker.why}."
            " No node is taken out of service until a person closes it."
        )
        banners.append(Banner("stop", "electric_bolt", text, address, "Breaker"))
    return banners


def _stop_file_banners() -> list[Banner]:
    path = stop_file.get_path()
    if not path.exists():
        return []
    text = f"Stopped by the file {path}. Nothing disruptive is done while it exists."
    if fleet.read_return_stop(path):
        text += " No node is given back either."
    return [Banner("stop", "front_hand", text, reverse("stop_switch"))]


def _build_message_banners() -> list[Banner]:
    address = reverse("admin:incidents_notification_changelist")
    return [
        Banner("mode", "error", text, address, "Messages") for text in list_troubles(timezone.now())
    ]


def _build_refused_sender_banners() -> list[Banner]:
    """Whose syslog is refused, and the line that lets it in."""
    recent = refused_senders.get_recent(timezone.now())
    left_out = [sender for sender in recent if sender.transport in _LEFT_OUT]
    refused = [sender for sender in recent if sender not in left_out]
    banners = [_build_left_out_banner(left_out)] if left_out else []
    if not refused:
        return banners
    first = refused[0]
    address = first.address
    unit = "connections" if first.transport == "TCP" else "datagrams"
    amount = f"{first.count} {unit} since {_format_minute(first.first_at)}"
    others = _format_others(sorted({sender.address for sender in refused} - {address}))
    text = (
        f"Syslog from {address} is refused ({amount}){others}: nothing that it says is read."
        f" {_format_admission(first)}"
    )
    return [*banners, Banner("mode", "block", text)]


def _format_admission(sender: RefusedSender) -> str:
    """What lets it in."""
    address = sender.address
    if sender.transport == "UDP" and settings.KINTSUGI["KINTSUGI_SYSLOG_UDP"] == "switches":
        return (
            "Datagrams are taken of switches alone (KINTSUGI_SYSLOG_UDP=switches). If it is a"
            " switch of yours, add it to the inventory with this address; let any other machine"
            " send by TCP or TLS."
        )
    networks = settings.KINTSUGI["KINTSUGI_SYSLOG_NETWORKS"] or [INVENTORY]
    setting = ",".join([*networks, address])
    return (
        "If it is a machine of yours, add it to the inventory with this address, or set"
        f" KINTSUGI_SYSLOG_NETWORKS={setting} and restart the receiver."
    )


def _build_left_out_banner(left_out: list[RefusedSender]) -> Banner:
    """Whose events were read and left out, in one line however many machines they name."""
    count = sum(sender.count for sender in left_out)
    first = left_out[0]
    others = _format_others(sorted({sender.address for sender in left_out} - {first.address}))
    reasons = {sender.transport for sender in left_out}
    why = next(words for reason, words in _LEFT_OUT.items() if reason in reasons)
    text = (
        f"{count} faults told by {first.address}{others} since {_format_minute(first.first_at)}"
        f" were left out: {why}. If they are yours, add the machines to the inventory, and a log"
        " host to KINTSUGI_SYSLOG_RELAYS; otherwise find out who sends them."
    )
    return Banner("mode", "block", text)


def _format_others(addresses: list[str]) -> str:
    if not addresses:
        return ""
    named = ", ".join(addresses[:_NAMED])
    more = ", ..." if len(addresses) > _NAMED else ""
    return f", and that of {len(addresses)} more: {named}{more}"


def _build_overload_banners() -> list[Banner]:
    """Whose silence says nothing now, and what to do about it."""
    address = reverse("admin:incidents_fault_changelist")
    banners = []
    for since, advice in overload.get_active_overload():
        text = f"Kintsugi is overloaded since {timezone.localtime(since):%H:%M %Z}. {advice}"
        banners.append(Banner("mode", "hourglass_bottom", text, address, "Faults"))
    return banners


def _build_own_health_banners() -> list[Banner]:
    """Which part of Kintsugi is silent or does not get on, as it was when that was found: figures
    and lengths in it are of then."""
    address = reverse("admin:incidents_fault_changelist")
    return [
        Banner("mode", "heart_broken", f"As of {_format_minute(at)}: {text}", address, "Faults")
        for at, text in own_health.list_standing()
    ]


def _build_silence_banners() -> list[Banner]:
    """How much is kept from people now; nothing while no window is in force."""
    windows = len(active_windows.list_in_force(timezone.now()))
    if not windows:
        return []
    muted = silences.count_kept()
    incidents = "1 open incident is" if muted == 1 else f"{muted or 'no'} open incidents are"
    if windows == 1:
        text = (
            "1 window (silence, maintenance or shelf) is in force;"
            f" {incidents} kept from people by it."
        )
    else:
        text = (
            f"{windows} windows (silences, maintenance, shelves) are in force;"
            f" {incidents} kept from people by them."
        )
    address = reverse("admin:incidents_silence_changelist") + "?state=in_force"
    return [Banner("mode", "notifications_paused", text, address, "Silences")]


def _format_minute(time: datetime) -> str:
    return f"{timezone.localtime(time):%Y-%m-%d %H:%M %Z}"


# In the order in which they are shown.
_BUILDERS = (
    _stop_switch_banners,
    _build_breaker_banners,
    _stop_file_banners,
    _build_refused_sender_banners,
    _build_silence_banners,
    _build_overload_banners,
    _build_own_health_banners,
    _build_message_banners,
)
