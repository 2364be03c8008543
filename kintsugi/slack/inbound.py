"""The two addresses at which Slack delivers orders: `/kintsugi ...` and clicks. What is not signed
by it is refused.

Answers within Slack's 3 s: the database is asked, the cluster never. Nothing of a body is logged:
it holds tokens.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from slack_sdk.signature import Clock, SignatureVerifier
from slack_sdk.webhook import WebhookClient

from detectors.transports import error_text
from incidents.notify.slack import blocks, mrkdwn
from kintsugi import clock, tasks
from kintsugi.health import database_away
from kintsugi.slack import orders
from kintsugi.slack.orders import OrderReply, SlackRequest

_log = logging.getLogger(__name__)
# A click brings its whole message along: some 10,000 characters of text, up to 9 bytes each in a
# form. Our choice.
_LONGEST_BODY = 256 * 1024
_MOST_FIELDS = 50
_ANSWER_TIMEOUT_S = 5
_AGAIN = "Look at what stands (/kintsugi status) before you give the order again."
_HOOKS = ("hooks.slack.com", "hooks.slack-gov.com")
# A click is answered by a call of our own: Slack shows nothing of the body that acknowledges it.
_answers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="slack-answer")


class _Refused(Exception):
    """The request is answered with this status and sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class _Now(Clock):
    def now(self) -> float:
        return clock.now().timestamp()


@csrf_exempt
def command(request: HttpRequest) -> HttpResponse:
    """A slash command: the answer is shown to the person alone."""
    try:
        body = _require_signed_body(request)
        form = _parse_form(body)
        answer = orders.obey_command(
            form.get("text", ""), _build_request(form.get("user_id", ""), body)
        )
    except _Refused as refused:
        return _respond_refusal(request, refused)
    except database_away.ERRORS as error:
        answer = _describe_failure(request, error)
    return JsonResponse({"response_type": "ephemeral", **_format_reply(answer)})


@csrf_exempt
def action(request: HttpRequest) -> HttpResponse:
    """A click: acknowledged at once; what came of it goes to the message's own address."""
    try:
        body = _require_signed_body(request)
        payload = _parse_payload(_parse_form(body))
        button = _require_button(payload)
        order = _build_request(_get_slack_id(payload), body)
        answer = orders.obey_click(button["action_id"], button["value"], order)
    except _Refused as refused:
        return _respond_refusal(request, refused)
    except database_away.ERRORS as error:
        answer = _describe_failure(request, error)
    address = str(payload.get("response_url", ""))
    _answers.submit(_send_reply, address, _build_replacement(answer, payload))
    return HttpResponse()


def _get_slack_id(payload: Mapping[str, Any]) -> str:
    """Of who clicked; empty for nobody of this workspace."""
    user = payload.get("user")
    if not isinstance(user, dict) or not _is_of_workspace(user, payload):
        return ""
    return str(user.get("id", ""))


def _require_signed_body(request: HttpRequest) -> bytes:
    """What Slack signed within the last 5 min. Raises Http404 where Slack is not let in at all."""
    secret = settings.KINTSUGI["SLACK_SIGNING_SECRET"]
    if not secret:
        raise Http404
    if request.method != "POST":
        raise _Refused(405, "POST was expected")
    if int(request.headers.get("Content-Length") or 0) > _LONGEST_BODY:
        raise _Refused(413, f"a body of at most {_LONGEST_BODY} bytes was expected")
    if not _is_signed(SignatureVerifier(secret, _Now()), request):
        raise _Refused(
            401, "not signed by Slack within the last 5 min: see SLACK_SIGNING_SECRET and the clock"
        )
    return request.body


def _is_signed(verifier: SignatureVerifier, request: HttpRequest) -> bool:
    """slack-sdk 3.47 raises where a stamp is no number or too great a one, a signature not ASCII, a
    body not UTF-8."""
    try:
        return verifier.is_valid_request(request.body, dict(request.headers))
    except (ValueError, TypeError, OverflowError):
        return False


def _parse_form(body: bytes) -> Mapping[str, str]:
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise _Refused(400, "a form was expected") from error


def _parse_payload(form: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        payload = json.loads(form.get("payload", ""))
    except (ValueError, RecursionError) as error:
        raise _Refused(400, "a form with JSON in `payload` was expected") from error
    if not isinstance(payload, dict) or payload.get("type") != "block_actions":
        raise _Refused(400, "a payload of type block_actions was expected")
    return payload


def _require_button(payload: Mapping[str, Any]) -> Mapping[str, str]:
    refusal = _Refused(400, "the click of a button was expected")
    actions = payload.get("actions")
    button = actions[0] if isinstance(actions, list) and actions else None
    if not isinstance(button, dict):
        raise refusal
    if not all(isinstance(button.get(name), str) for name in ("action_id", "value")):
        raise refusal
    return button


def _is_of_workspace(user: Mapping[str, Any], payload: Mapping[str, Any]) -> bool:
    """A shared channel (Slack Connect) shows our buttons to people of other workspaces: they are
    nobody here."""
    team = payload.get("team")
    own = team.get("id") if isinstance(team, dict) else None
    return own is None or user.get("team_id") in (None, own)


def _build_request(slack_id: str, body: bytes) -> SlackRequest:
    """The same bytes are the same request: each command and click has a trigger of its own in
    it."""
    key = f"slack:{hashlib.sha256(body).hexdigest()}"
    return SlackRequest(slack_id, key, clock.now(), tasks.ask_preflight)


def _respond_refusal(request: HttpRequest, refused: _Refused) -> HttpResponse:
    _log.warning("%s: %s %s", request.path, refused.status, refused.reason)
    return JsonResponse({"error": refused.reason}, status=refused.status)


def _describe_failure(request: HttpRequest, error: Exception) -> OrderReply:
    """Slack shows people nothing of an answer that is no 200."""
    _log.warning(
        "%s: the database did not take it: %s", request.path, error_text.format_reason(error)
    )
    absence = database_away.find_absence(error)
    if absence is None:
        return OrderReply(f"Nothing is known to be done: the database did not take it. {_AGAIN}")
    return OrderReply(
        f"Nothing is known to be done. {absence.summary} {absence.rests} {absence.stop} {_AGAIN}"
    )


def _format_reply(answer: OrderReply) -> dict[str, Any]:
    text = mrkdwn.escape(answer.text, 2900)
    if answer.ask is None:
        return {"text": text}
    section = {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}
    return {"text": text, "blocks": [section, *blocks.ask_blocks(answer.ask)]}


def _build_replacement(answer: OrderReply, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Once it is done the outcome stands in the place of the buttons; a refusal is for the person
    alone."""
    if not answer.is_done:
        return {"response_type": "ephemeral", "replace_original": False, **_format_reply(answer)}
    message = payload.get("message")
    original = message.get("blocks") if isinstance(message, dict) else None
    if not isinstance(original, list):
        return {"replace_original": True, **_format_reply(answer)}
    outcome = {"type": "mrkdwn", "text": mrkdwn.escape(answer.text, 1900), "verbatim": True}
    other_blocks = [
        block for block in original if isinstance(block, dict) and not _is_actions(block)
    ]
    new_blocks = [*other_blocks, {"type": "context", "elements": [outcome]}]
    text = mrkdwn.escape(answer.text, 2900)
    return {"replace_original": True, "text": text, "blocks": new_blocks}


def _is_actions(block: Mapping[str, Any]) -> bool:
    return block.get("type") == blocks.ACTIONS


def _send_reply(address: str, body: dict[str, Any]) -> None:
    """To Slack alone, whatever address a request names. Losing it loses no more: the incident's
    thread has it too."""
    if not _is_of_slack(address):
        _log.warning("a click named no address of Slack to answer to")
        return
    client = WebhookClient(address, timeout=_ANSWER_TIMEOUT_S, retry_handlers=[])
    try:
        answer = client.send_dict(body)
        if answer.status_code != 200:
            _log.warning("Slack did not take the answer to a click (%s)", answer.status_code)
    except (OSError, HTTPException) as error:
        _log.warning("Slack did not take the answer to a click (%s)", type(error).__name__)


def _is_of_slack(address: str) -> bool:
    api, url = urlsplit(settings.KINTSUGI["SLACK_API_URL"]), urlsplit(address)
    if (url.scheme, url.netloc) == (api.scheme, api.netloc):
        return True
    return url.scheme == "https" and url.netloc in _HOOKS
