"""The pages that hold Kintsugi back or let it go: the stop switch, and how far each runbook may
go."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from unfold.widgets import UnfoldAdminTextInputWidget

from detectors.detector import DetectorError
from kintsugi import tasks
from kintsugi.clients import wiring
from kintsugi.web.modes import MODE_MEANINGS, group_by_mode, list_runbook_modes
from kintsugi.web.pages import render_page
from runbooks import services
from runbooks.fleet import armings, fleet, proposals
from runbooks.models import (
    Arming,
    Breaker,
    Mode,
    ReturnStop,
    RunbookMode,
    SecondPersonRequest,
    StopSwitch,
)
from runbooks.second_person import requests
from runbooks.second_person.changes import Order
from runbooks.step import World

# Ninety days: who arms for longer sets the runbook's mode.
_LONGEST_HOURS = 90 * 24


class StopForm(forms.Form):
    reason = forms.CharField(
        label="Why",
        max_length=255,
        widget=UnfoldAdminTextInputWidget,
        error_messages={"required": "Say why: everyone who sees the banner will ask."},
    )


class ModeForm(forms.Form):
    runbook = forms.CharField(max_length=64)
    mode = forms.ChoiceField(choices=Mode.choices)


class ArmingForm(forms.Form):
    """`hours` from now on; a place is not named for the scope all."""

    runbook = forms.CharField(max_length=64)
    mode = forms.ChoiceField(choices=Mode.choices)
    scope = forms.ChoiceField(choices=Arming.Scope.choices)
    place = forms.CharField(max_length=255, required=False)
    hours = forms.IntegerField(min_value=1, max_value=_LONGEST_HOURS)
    runs = forms.IntegerField(min_value=1, required=False)
    reason = forms.CharField(max_length=255)


# Few nodes and a person's leave: whoever wants more says so.
_EMPTY_DRAFT = {"mode": Mode.APPROVAL.value, "scope": Arming.Scope.NODES.value}


class RequestForm(forms.Form):
    """What a second person decides on: `seen` is the mark of what was shown."""

    number = forms.IntegerField(min_value=1)
    seen = forms.CharField(max_length=64, required=False)
    reason = forms.CharField(max_length=255, required=False)


class EndArmingForm(forms.Form):
    arming = forms.IntegerField(min_value=1)
    reason = forms.CharField(max_length=255)


def stop_switch(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm("runbooks.view_stopswitch"):
        raise PermissionDenied
    may_use = request.user.has_perm("runbooks.use_stop_switch")
    is_closing = request.POST.get("turn") == "close"
    form = StopForm(request.POST or None, auto_id="breaker_%s" if is_closing else "id_%s")
    if request.method == "POST":
        if not may_use:
            raise PermissionDenied
        if form.is_valid() and _obey_switch_form(request, form):
            return HttpResponseRedirect(reverse("stop_switch"))
    context = {
        "now": timezone.now(),
        "form": StopForm() if is_closing else form,
        "breaker_form": form if is_closing else StopForm(auto_id="breaker_%s"),
        "may_use": may_use,
        **_get_switch_and_breaker_rows(),
    }
    status = 409 if form.errors else 200
    return render_page(request, "kintsugi/stop_switch.html", "Stop switch", context, status=status)


def _get_switch_and_breaker_rows() -> dict[str, Any]:
    switches = StopSwitch.objects.order_by("-engaged_at")
    engaged = switches.filter(released_at=None)
    released = switches.exclude(released_at=None)
    keeps_nodes = ReturnStop.objects.filter(switch__released_at=None).exists()
    tripped = Breaker.objects.filter(closed_at=None).first()
    closed_breakers = Breaker.objects.exclude(closed_at=None)
    return {
        "standing": engaged,
        "keeps": keeps_nodes,
        "past": released[:20],
        "tripped": tripped,
        "trips": closed_breakers[:20],
    }


def _obey_switch_form(request: HttpRequest, form: StopForm) -> bool:
    """Engages or releases, or closes the breaker; a refusal is put on the form."""
    now = timezone.now()
    actor = request.user.get_username()
    reason = form.cleaned_data["reason"]
    turn = request.POST.get("turn")
    if turn == "release":
        outcome = services.release(actor=actor, note=reason, now=now)
    elif turn == "close":
        outcome = services.close_breaker(reason, actor=actor, now=now)
    else:
        gives_back = turn != "engage_and_keep"
        outcome = services.stop(reason, actor=actor, now=now, gives_back=gives_back)
    if isinstance(outcome, services.ControlRefused):
        form.add_error(None, outcome.reason)
        return False
    messages.success(request, outcome.text)
    return True


def modes(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm("runbooks.view_runbookmode"):
        raise PermissionDenied
    may_set = request.user.has_perm("runbooks.set_mode")
    refusal: list[str] = []
    if request.method == "POST":
        if not may_set:
            raise PermissionDenied
        refusal = _ORDERS.get(request.POST.get("order", ""), _set_mode)(request)
        if not refusal:
            return HttpResponseRedirect(reverse("modes"))
    is_draft = bool(refusal) and request.POST.get("order") == "arm"
    context = {
        "requests": _list_requests(request),
        "refusal": refusal,
        "draft": request.POST if is_draft else _EMPTY_DRAFT,
        "may_set": may_set,
        **_describe_modes(),
        **_describe_armings(timezone.now()),
    }
    status = 409 if refusal else 200
    return render_page(request, "kintsugi/modes.html", "Runbook modes", context, status=status)


def _describe_modes() -> dict[str, Any]:
    meanings = [(mode.label, text) for mode, text in MODE_MEANINGS.items()]
    site_mode = RunbookMode.objects.filter(runbook=fleet.SITE).first()
    return {
        "groups": group_by_mode(list_runbook_modes()),
        "site": site_mode,
        "meanings": meanings,
        "modes": Mode.choices,
    }


def _describe_armings(now: datetime) -> dict[str, Any]:
    """Those in force, those that are proposed, and what a new one may be of."""
    in_force = [(row, armings.format_scope(row)) for row in armings.load_in_force(now)]
    proposed = [proposals.describe(row) for row in services.list_proposals(now)]
    return {
        "armings": in_force,
        "proposals": proposed,
        "scopes": Arming.Scope.choices,
        "runbooks": services.get_runbook_titles().items(),
    }


def _set_mode(request: HttpRequest) -> list[str]:
    """Empty when set, else what stands against it, a line each."""
    actor = request.user.get_username()
    form = ModeForm(request.POST)
    if not form.is_valid():
        return [f"Choose a runbook and one of {', '.join(Mode.values)}."]
    mode = form.cleaned_data["mode"]
    world, problem = _find_world(mode, actor)
    if problem:
        return [problem]
    runbook = form.cleaned_data["runbook"]
    outcome = services.set_mode(runbook, mode, actor=actor, now=timezone.now(), world=world)
    return _tell(request, outcome)


def _find_world(mode: str, actor: str) -> tuple[World | None, str]:
    """What arming looks at, where this process may act, and what keeps it from that; else the
    process that acts is asked to look."""
    if mode != Mode.ARMED:
        return None, ""
    try:
        world = wiring.build_world() if wiring.may_act() else None
    except DetectorError as error:
        return None, f"Nothing can be armed here: {error}"
    if world is None:
        tasks.ask_preflight(actor)
    return world, ""


def _begin_arming(request: HttpRequest) -> list[str]:
    """As `_set_mode`."""
    actor, now = request.user.get_username(), timezone.now()
    form = ArmingForm(request.POST)
    if not form.is_valid():
        return [f"{name}: {' '.join(map(str, errors))}" for name, errors in form.errors.items()]
    values = dict(form.cleaned_data)
    world, problem = _find_world(values["mode"], actor)
    if problem:
        return [problem]
    until = now + timedelta(hours=values.pop("hours"))
    draft = services.ArmingDraft(**values, until=until)
    outcome = services.begin_arming(draft, actor=actor, now=now, world=world)
    return _tell(request, outcome)


def _end_arming(request: HttpRequest) -> list[str]:
    """As `_set_mode`."""
    form = EndArmingForm(request.POST)
    if not form.is_valid():
        return ["Say why it ends: whoever reads of it next will ask."]
    number, reason = form.cleaned_data["arming"], form.cleaned_data["reason"]
    actor = request.user.get_username()
    outcome = services.end_arming(number, reason, actor=actor, now=timezone.now())
    return _tell(request, outcome)


def _list_requests(request: HttpRequest) -> list[dict[str, Any]]:
    """What waits for a second person: with the mark to confirm it by, and whether the reader has
    asked for it."""
    actor = request.user.get_username()
    standing = requests.list_standing(timezone.now()).exclude(order=Order.APPROVAL)
    return [
        {"row": row, "seen": requests.get_seen(row), "is_own": requests.is_asker(row, actor)}
        for row in standing
    ]


def _confirm_request(request: HttpRequest) -> list[str]:
    """As `_set_mode`."""
    actor, now = request.user.get_username(), timezone.now()
    form = RequestForm(request.POST)
    if not form.is_valid():
        return ["Say which request: its number stands on this page."]
    number, seen = form.cleaned_data["number"], form.cleaned_data["seen"]
    asked = SecondPersonRequest.objects.filter(pk=number).first()
    world, problem = _find_world(asked.terms["mode"] if asked is not None else "", actor)
    if problem:
        return [problem]
    outcome = services.confirm_request(number, actor=actor, seen=seen, now=now, world=world)
    return _tell(request, outcome)


def _reject_request(request: HttpRequest) -> list[str]:
    """As `_set_mode`."""
    form = RequestForm(request.POST)
    if not form.is_valid():
        return ["Say which request: its number stands on this page."]
    number, reason = form.cleaned_data["number"], form.cleaned_data["reason"]
    actor = request.user.get_username()
    outcome = services.reject_request(number, reason, actor=actor, now=timezone.now())
    return _tell(request, outcome)


_ORDERS = {
    "arm": _begin_arming,
    "end_arming": _end_arming,
    "confirm": _confirm_request,
    "reject": _reject_request,
}


def _tell(request: HttpRequest, outcome: services.Outcome) -> list[str]:
    if isinstance(outcome, services.ControlRefused):
        return outcome.reason.splitlines()
    messages.success(request, outcome.text)
    return []
