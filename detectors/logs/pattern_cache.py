"""Compiled patterns on disk, by the hash of what they were compiled from: to load them takes a
thousandth of the time.

Whoever may write such a file decides what our matcher does, so folder and files are their user's
alone, and what is not is left aside. Nothing here ever fails: without the folder patterns are
compiled anew. Python 3.9, standard library alone: it travels to nodes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

# One catalogue has six sets of patterns (signatures, harmless and unread lines, each by line and by
# block); so many are kept, those that were used last.
_MOST_FILES = 48
_LARGEST = 256 * 1024 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_DIGEST_SIZE = hashlib.sha256().digest_size


def key_of(parts: Sequence[bytes]) -> str:
    """Names what is made of these parts, in this order: another part, another name."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def folder() -> Path:
    """Where this user's files lie. Raises RuntimeError for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "kintsugi" / "patterns"


def load(key: str) -> Optional[bytes]:
    """What was kept under that name, or None when nothing whole of this user is there."""
    with contextlib.suppress(OSError, RuntimeError), _open_folder() as directory:
        return _read(key, directory)
    return None


def store(key: str, content: bytes) -> None:
    """Keeps it. A reader and a second writer see the whole file or none."""
    with contextlib.suppress(OSError, RuntimeError), _open_folder() as directory:
        _write(key, content, directory)
        _remove_oldest(directory)


@contextlib.contextmanager
def _open_folder() -> Iterator[int]:
    """A descriptor of the folder, which is made where there is none. Raises OSError, of which
    PermissionError for the folder of another user."""
    path = folder()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(directory)
        if found.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        if found.st_mode & _OTHERS:
            os.fchmod(directory, 0o700)
        yield directory
    finally:
        os.close(directory)


def _read(key: str, directory: int) -> Optional[bytes]:
    descriptor = os.open(key, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        is_ours = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS
        if not is_ours or not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return None
        digest, content = file.read(_DIGEST_SIZE), file.read()
        _note_use(descriptor)
    return content if hashlib.sha256(content).digest() == digest else None


def _note_use(descriptor: int) -> None:
    """What is read stays, however much is written after it: a catalogue takes seconds."""
    with contextlib.suppress(OSError):  # a file system that is only read
        os.utime(descriptor)


def _write(key: str, content: bytes, directory: int) -> None:
    name = f"{key}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        os.replace(name, key, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        os.unlink(name, dir_fd=directory)
        raise


def _remove_oldest(directory: int) -> None:
    """By when each was used last."""
    ages = {}
    for name in os.listdir(directory):
        with contextlib.suppress(FileNotFoundError):
            ages[name] = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns
    newest_first = sorted(ages, key=lambda name: ages[name], reverse=True)
    for name in newest_first[_MOST_FILES:]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
