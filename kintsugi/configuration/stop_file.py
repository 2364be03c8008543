"""The stop file: while it exists no act is made from this machine, with or without a database."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

# Whoever acts reads it, whichever user wrote it: one that cannot be read holds resumes as well.
_READABLE = 0o644


def get_path() -> Path:
    return Path(settings.KINTSUGI["KINTSUGI_STOP_FILE"] or settings.DATA_DIR / "stop")


def write(text: str) -> None:
    """In place of what stood there. Raises OSError."""
    path = get_path()
    path.write_text(f"{text}\n")
    path.chmod(_READABLE)


def remove() -> bool:
    """Whether there was one. Raises OSError."""
    try:
        get_path().unlink()
    except FileNotFoundError:
        return False
    return True


def describe_stop() -> str:
    """How a person stops all acts while no database takes the stop switch."""
    return (
        'Without a database `kintsugi stop --file --reason "WHY"` stops what acts: it creates the'
        f" stop file ({get_path()}; `touch` does the same), which counts on its own machine alone,"
        " so call it on each machine with a runbook worker. Acts rest until `kintsugi stop --file"
        " --release` removes it."
    )
