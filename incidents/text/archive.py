"""Pieces of evidence as one archive: bounded, without secrets, the same bytes for the same pieces.
Pure."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

# Our choices: a ticket system takes attachments of some 20 MiB, and text packs to a tenth.
MOST_OF_ONE = 8 * 1024 * 1024
MOST_OF_ALL = 64 * 1024 * 1024
HIDDEN = "(hidden)"
_SHORTEST_SECRET = 6
# What looks like a secret whoever wrote it: a word that names one and its value, and a URL's user
# and password. Of bytes, since logs hold what is no text; each repetition that may begin anywhere
# is bounded, so that none takes longer than its text is long.
_NAMED = re.compile(
    rb"""(?ix) ( (?: pass(?:word|wd|phrase)? | secret | token | api[_-]?key | community )
        [\w-]{0,64} ["']? \s{0,32} [:=] \s{0,32} ["']? ) [^\s"',;]+"""
)
_IN_URL = re.compile(rb"(://)[^\s/@]+@")
_BEARER = re.compile(rb"(?i)\b(bearer|basic)\s{1,32}[a-z0-9+/._~=-]{8,}")
_KEY_BLOCK = re.compile(
    rb"-----BEGIN [A-Z ]{0,64}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,64}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Piece:
    """One file of the archive, or why it is missing. `source` says where it comes from."""

    name: str
    source: str
    content: bytes = b""
    missing: str = ""


def hide_secrets(content: bytes, secrets: Collection[str] = ()) -> bytes:
    """Any bytes, with each known secret, and whatever looks like one, hidden: whether or not they
    are text."""
    hidden = HIDDEN.encode()
    for secret in _list_worth_hiding(secrets):
        for encoded in _encode(secret):
            content = content.replace(encoded, hidden)
    content = _KEY_BLOCK.sub(hidden, content)
    content = _IN_URL.sub(rb"\1" + hidden + b"@", content)
    content = _BEARER.sub(rb"\1 " + hidden, content)
    return _NAMED.sub(rb"\1" + hidden, content)


def pack(
    folder: str, pieces: Sequence[Piece], *, at: datetime, secrets: Collection[str] = ()
) -> bytes:
    """A .tar.gz with one folder: the pieces in order of their names, and MANIFEST.txt, which names
    the missing too."""
    kept, lines, left = [], [], MOST_OF_ALL
    for piece in sorted(pieces, key=lambda piece: piece.name):
        if piece.missing:
            lines.append(f"missing  {piece.name}  ({piece.source}): {piece.missing}")
            continue
        whole = hide_secrets(piece.content, secrets)
        content = whole[-min(MOST_OF_ONE, left) :] if left else b""
        left -= len(content)
        if len(content) < len(whole):
            cut = f"only its last {len(content)} of {len(whole)} bytes, since an archive is bounded"
            lines.append(f"cut      {piece.name}  ({piece.source}): {cut}")
        digest = hashlib.sha256(content).hexdigest()
        lines.append(
            f"file     {piece.name}  ({piece.source}), {len(content)} bytes, sha256 {digest}"
        )
        kept.append((piece.name, content))
    head = [
        (
            f"Evidence collected at {at.isoformat()}. Names of people may stand in it: read it"
            " before you send it."
        ),
        "",
    ]
    manifest = "\n".join([*head, *lines, ""]).encode()
    return _make_tar(folder, [("MANIFEST.txt", manifest), *kept], at)


def _list_worth_hiding(secrets: Collection[str]) -> Iterable[str]:
    """A short one would be found in every second word; the longest first, since one may hold
    another."""
    return sorted(
        (secret for secret in secrets if len(secret) >= _SHORTEST_SECRET), key=len, reverse=True
    )


def _encode(secret: str) -> Iterable[bytes]:
    """As programs of any locale may have printed it."""
    yield secret.encode(errors="surrogatepass")
    with suppress(UnicodeEncodeError):
        yield secret.encode("latin-1")


def _make_tar(folder: str, files: Iterable[tuple[str, bytes]], at: datetime) -> bytes:
    buffer = io.BytesIO()
    moment = int(at.timestamp())
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=moment) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in files:
            row = tarfile.TarInfo(f"{folder}/{name}")
            row.size, row.mtime, row.mode = len(content), moment, 0o644
            archive.addfile(row, io.BytesIO(content))
    return buffer.getvalue()
