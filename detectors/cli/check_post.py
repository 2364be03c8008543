"""What a node's check says to Kintsugi over HTTP: what it saw, and whether it may stop a job.
Python 3.9."""

from __future__ import annotations

import json
import stat
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A job's start waits for this long at most.
_TIMEOUT_S = 3.0
# Our choice: a line that people read.
_MOST_SENTENCES = 3
_LONGEST_ANSWER = 64 * 1024
# What may stop a job's start: faults that no job survives and no wait heals.
MAY_BLOCK = ("gpu.lost", "gpu.ecc.row_remap_failure")


class _Trouble(Exception):
    """The server was not asked, or gave no answer: says why."""


@dataclass(frozen=True)
class JobStopAnswer:
    """Whether the job may be stopped, and why, for people."""

    is_granted: bool
    reason: str


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to wherever it points."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post_report(url: str, token_file: Path, result: Mapping[str, Any]) -> str:
    """Sends what was seen. Returns what to add to the check's line: empty when all was taken."""
    body = {name: result[name] for name in ("node", "taken_at", "boot_id", "readings")}
    try:
        answer = _post(url, token_file, {"version": 1, **body})
    except _Trouble as error:
        return f"; not reported: {error}"
    not_believed = answer.get("not_believed")
    if not isinstance(not_believed, list):
        return ""
    return "".join(f"; {sentence}" for sentence in not_believed[:_MOST_SENTENCES])


def ask_to_stop_job(
    url: str, token_file: Path, node: str, faults: Sequence[Mapping[str, Any]]
) -> JobStopAnswer:
    """Whether the job may be stopped for these faults. No answer is a no."""
    try:
        answer = _post(url, token_file, {"version": 1, "node": node, "faults": list(faults)})
    except _Trouble as error:
        return JobStopAnswer(False, f"Kintsugi could not be asked ({error})")
    reason = str(answer.get("reason") or "Kintsugi gave no reason")
    return JobStopAnswer(answer.get("is_granted") is True, reason)


def _post(url: str, token_file: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise _Trouble(f"{url} is no http or https address")
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {_read_token(token_file)}",
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")  # noqa: S310 - checked above
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S) as response:
            answer = json.loads(response.read(_LONGEST_ANSWER))
    except urllib.error.HTTPError as error:
        said = " ".join(error.read(300).decode("utf-8", "replace").split())
        raise _Trouble(f"{url} answered {error.code}: {said}") from error
    except (OSError, ValueError) as error:
        raise _Trouble(f"{url}: {getattr(error, 'reason', None) or error}") from error
    return answer if isinstance(answer, dict) else {}


def _read_token(path: Path) -> str:
    try:
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH):
            raise _Trouble(f"{path} can be read by others: chmod 600 it")
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise _Trouble(f"no token: {error}. `kintsugi node token NODE` prints it") from error
