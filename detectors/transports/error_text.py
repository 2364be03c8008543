"""Why something did not work, in words for people: never the class of an exception. Pure."""

from __future__ import annotations

_LONGEST = 200


def format_reason(error: BaseException) -> str:
    """What the system or a library said of it."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())[:_LONGEST]
    if text:
        return text
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return "the connection was lost" if isinstance(error, EOFError) else "no reason was given"
