"""Slack's markup: escaping, cutting without breaking an escape, and dates in the reader's own time
zone. Pure.

https://docs.slack.dev/messaging/formatting-message-text
"""

from __future__ import annotations

from datetime import UTC, datetime

_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_PLAIN = {"&": "+", "<": "(", ">": ")"}
_ELLIPSIS = "…"


def escape(text: str, limit: int) -> str:
    """`text` with & < > escaped, of at most `limit` characters, cut between characters and never
    inside an escape."""
    return _shorten(_clean(text), limit, _ESCAPES)


def format_plain(text: str, limit: int) -> str:
    """For plain_text objects, where Slack does not say whether escapes are undone: none are needed
    here."""
    return _shorten(" ".join(_clean(text).split()), limit, _PLAIN)


def format_date(moment: datetime) -> str:
    """The moment in the reader's time zone; clients that cannot show that show UTC."""
    utc = moment.astimezone(UTC)
    return (
        f"<!date^{int(utc.timestamp())}^{{date_short_pretty}} {{time_secs}}|{utc:%Y-%m-%d %H:%M:%S}"
        " UTC>"
    )


def link(url: str, label: str) -> str:
    """A link; `label` is our own word. A `|` or a space in `url` would end it early."""
    address = "%20".join(_clean(url).split()).replace("|", "%7C")
    return f"<{_shorten(address, 2000, _ESCAPES)}|{escape(label, 200).replace('|', '/')}>"


def _clean(text: str) -> str:
    """Without control characters and lone surrogates, which JSON or Slack would refuse."""
    kept = "".join(
        character if character.isprintable() or character == "\n" else " " for character in text
    )
    return kept.encode("utf-8", "replace").decode()


def _shorten(text: str, limit: int, table: dict[str, str]) -> str:
    pieces = [table.get(character, character) for character in text]
    if sum(map(len, pieces)) <= limit:
        return "".join(pieces)
    room, kept = limit - len(_ELLIPSIS), []
    for piece in pieces:
        if len(piece) > room:
            break
        kept.append(piece)
        room -= len(piece)
    return "".join(kept) + _ELLIPSIS
