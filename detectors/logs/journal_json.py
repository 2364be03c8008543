"""One entry of `journalctl --output=json` as the syslog line that it stands for.

Whose words an entry holds is told by the fields that journald itself writes: what a program sends
may not begin with an underscore (systemd.journal-fields(7), Trusted Journal Fields). An entry is
only read where nothing stands before it in the line: within a message it is text. Python 3.9.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any, Optional

_BEGIN = b"{"
# An entry has twenty fields about its message; a line of syslog is read to 8 KiB.
_LONGEST_ENTRY = 64 * 1024
_KERNEL = "kernel"
# systemd.journal-fields(7): of an entry that names none. What a program sends is at most a user's.
_KERN, _USER, _HIGHEST_FACILITY = 0, 1, 23
_INFO, _DEBUG = 6, 7
_BLANKS = re.compile(r"[\s\0]+")


def format_plain(line: bytes) -> bytes:
    """RFC 5424 for an entry of the journal; any other line as it is."""
    if not line.startswith(_BEGIN):
        return line
    entry = _parse_entry(line)
    message = None if entry is None else _get_text(entry, "MESSAGE")
    return line if entry is None or message is None else _format(entry, message)


def find_in_block(block: bytes) -> list[bytes]:
    """The lines of a block (LF between them) that may be entries."""
    if not block.startswith(_BEGIN) and b"\n{" not in block:
        return []
    return [line for line in block.split(b"\n") if line.startswith(_BEGIN)]


def _parse_entry(line: bytes) -> Optional[dict[str, Any]]:
    try:
        found = json.loads(line[:_LONGEST_ENTRY])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _get_text(entry: dict[str, Any], name: str) -> Optional[str]:
    """A field's text; of one that was sent several times the first. None where there is none."""
    value = entry.get(name)
    # Bytes that are no text are printed as their numbers (src/shared/logs-show.c).
    if isinstance(value, list) and value and all(isinstance(part, int) for part in value):
        numbers = [part for part in value if 0 <= part < 256]
        return bytes(numbers).decode("utf-8", "replace")
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, str) else None


def _get_number(entry: dict[str, Any], name: str, *, highest: int) -> Optional[int]:
    text = _get_text(entry, name) or ""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(highest))
    return int(text) if is_number and int(text) <= highest else None


def _format(entry: dict[str, Any], message: str) -> bytes:
    is_of_kernel = entry.get("_TRANSPORT") == _KERNEL
    least = _KERN if is_of_kernel else _USER
    facility = _get_number(entry, "SYSLOG_FACILITY", highest=_HIGHEST_FACILITY) or least
    severity = _get_number(entry, "PRIORITY", highest=_DEBUG)
    priority = 8 * facility + (_INFO if severity is None else severity)
    host = _get_token(entry, "_HOSTNAME")
    program = _get_program(entry, is_of_kernel=is_of_kernel)
    boot = _get_token(entry, "_BOOT_ID")
    head = f'<{priority}>1 {_get_stamp(entry)} {host} {program} - - [journald boot_id="{boot}"] '
    text = _BLANKS.sub(" ", message)
    return f"{head}{_get_printk(entry) if is_of_kernel else ''}{text}".encode("utf-8", "replace")


def _get_program(entry: dict[str, Any], *, is_of_kernel: bool) -> str:
    """As the program names itself; never the kernel, where it is not."""
    named = _get_token(entry, "SYSLOG_IDENTIFIER")
    if is_of_kernel:
        return _KERNEL if named == "-" else named
    names = (named, _get_token(entry, "_COMM"))
    return next((name for name in names if name not in ("-", _KERNEL)), "-")


def _get_token(entry: dict[str, Any], name: str) -> str:
    """A word of RFC 5424's header, `-` for none."""
    text = _BLANKS.sub("_", (_get_text(entry, name) or "").strip())
    return re.sub(r'["\\\]]', "", text)[:120] or "-"


def _get_stamp(entry: dict[str, Any]) -> str:
    """When it was said, as `journalctl` prints it in its other forms: by the program's own clock
    where that is known."""
    longest = 10**17
    micros = _get_number(entry, "_SOURCE_REALTIME_TIMESTAMP", highest=longest)
    micros = micros or _get_number(entry, "__REALTIME_TIMESTAMP", highest=longest)
    if not micros:
        return "-"
    try:
        at = datetime.fromtimestamp(micros // 1_000_000, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):
        return "-"
    return at.replace(microsecond=micros % 1_000_000).isoformat()


def _get_printk(entry: dict[str, Any]) -> str:
    """The kernel's own stamp, by which one line that came by two paths counts once."""
    micros = _get_number(entry, "_SOURCE_MONOTONIC_TIMESTAMP", highest=10**17)
    if micros is None:
        return ""
    return f"[{micros // 1_000_000:5d}.{micros % 1_000_000:06d}] "
