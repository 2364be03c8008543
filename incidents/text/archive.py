"""Pieces of evidence as one archive: bounded, without secrets, the same bytes for the same pieces.
Pure."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

# Our choices: a ticket system takes attachments of some 20 MiB, and text packs to a tenth.
MOST_OF_ONE = 8 * 1024 * 1024
MOST_OF_ALL = 64 * 1024 * 1024
HIDDEN = "(hidden)"
_SHORTEST_SECRET = 6
# What looks like a secret whoever wrote it: a word that names one and its value, and a URL's user
# and password.
_NAMED = re.compile(
    r"""(?ix) \b( [\w-]*(?: pass(?:word|wd|phrase)? | secret | token | api[_-]?key | community )[\w-]* )
        ( ["']? \s* [:=] \s* ["']? ) ( [^\s"',;]+ )"""  # noqa: E501
)
_IN_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9+/._~=-]{8,}")
_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)


@dataclass(frozen=True)
class Piece:
    """One file of the archive, or why it is missing. `source` says where it comes from."""

    name: str
    source: str
    content: bytes = b""
    missing: str = ""


def without_secrets(content: bytes, secrets: Collection[str] = ()) -> bytes:
    """Text with each known secret, and whatever looks like one, hidden. Bytes that are no text stay
    as they are."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode("latin-1")
        for secret in _worth_hiding(secrets):
            text = text.replace(secret.encode().decode("latin-1"), HIDDEN)
        return text.encode("latin-1")
    for secret in _worth_hiding(secrets):
        text = text.replace(secret, HIDDEN)
    text = _KEY_BLOCK.sub(HIDDEN, text)
    text = _IN_URL.sub(rf"\1{HIDDEN}@", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return _NAMED.sub(rf"\1\2{HIDDEN}", text).encode()


def packed(
    folder: str, pieces: Sequence[Piece], *, at: datetime, secrets: Collection[str] = ()
) -> bytes:
    """A .tar.gz with one folder: the pieces in order of their names, and MANIFEST.txt, which names
    the missing too."""
    kept, lines, left = [], [], MOST_OF_ALL
    for piece in sorted(pieces, key=lambda piece: piece.name):
        if piece.missing:
            lines.append(f"missing  {piece.name}  ({piece.source}): {piece.missing}")
            continue
        whole = without_secrets(piece.content, secrets)
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
    return _tarred(folder, [("MANIFEST.txt", manifest), *kept], at)


def _worth_hiding(secrets: Collection[str]) -> Iterable[str]:
    """A short one would be found in every second word; the longest first, since one may hold
    another."""
    return sorted(
        (secret for secret in secrets if len(secret) >= _SHORTEST_SECRET), key=len, reverse=True
    )


def _tarred(folder: str, files: Iterable[tuple[str, bytes]], at: datetime) -> bytes:
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
