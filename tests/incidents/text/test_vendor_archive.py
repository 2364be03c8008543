"""An archive of evidence: the same bytes for the same pieces, bounded, and never a secret in it."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incidents.text import archive as vendor_archive
from incidents.text.archive import HIDDEN, MOST_OF_ONE, Piece, hide_secrets, pack
from tests.builders import NOW

names = st.text("abcdefgh-.", min_size=1, max_size=8).filter(lambda name: name.strip(".") != "")


def unpacked(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        found = {}
        for row in archive.getmembers():
            inside = archive.extractfile(row)
            assert inside is not None
            found[row.name] = inside.read()
        return found


@given(st.dictionaries(names, st.binary(max_size=200), max_size=5))
def test_what_goes_in_comes_out_and_twice_the_same(contents: dict[str, bytes]) -> None:
    pieces = [Piece(name, "test", content) for name, content in contents.items()]
    content = pack("case-1", pieces, at=NOW)
    assert content == pack("case-1", list(reversed(pieces)), at=NOW)
    found = unpacked(content)
    assert found.pop("case-1/MANIFEST.txt").count(b"sha256") == len(contents)
    assert found == {f"case-1/{name}": hide_secrets(inside) for name, inside in contents.items()}


def test_what_is_missing_is_named_with_why() -> None:
    found = unpacked(
        pack("case-1", [Piece("sel.txt", "ipmitool", missing="no route to host")], at=NOW)
    )
    assert list(found) == ["case-1/MANIFEST.txt"]
    assert b"missing  sel.txt  (ipmitool): no route to host" in found["case-1/MANIFEST.txt"]


def test_what_is_too_long_keeps_its_end_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = unpacked(pack("c", [Piece("log.txt", "test", b"x" * MOST_OF_ONE + b"the end")], at=NOW))
    assert len(found["c/log.txt"]) == MOST_OF_ONE
    assert found["c/log.txt"].endswith(b"the end")
    assert b"cut      log.txt" in found["c/MANIFEST.txt"]
    monkeypatch.setattr(vendor_archive, "MOST_OF_ALL", 10)
    found = unpacked(
        pack("c", [Piece("a", "test", b"12345678"), Piece("b", "test", b"12345678")], at=NOW)
    )
    assert (found["c/a"], found["c/b"]) == (b"12345678", b"78")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("password=hunter2", f"password={HIDDEN}"),
        ('"bmc_password": "hunter2"', f'"bmc_password": "{HIDDEN}"'),
        ("SLACK_BOT_TOKEN=xoxb-1-2", f"SLACK_BOT_TOKEN={HIDDEN}"),
        ("rocommunity: public1", f"rocommunity: {HIDDEN}"),
        ("GET https://root:pw@bmc/redfish", f"GET https://{HIDDEN}@bmc/redfish"),
        ("Authorization: Bearer abcdefgh12345", f"Authorization: Bearer {HIDDEN}"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAA\n-----END OPENSSH PRIVATE KEY-----", HIDDEN),
        ("NVRM: Xid (PCI:0000:4c:00): 79", "NVRM: Xid (PCI:0000:4c:00): 79"),
        ("Serial Number : 165", "Serial Number : 165"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, expected: str) -> None:
    assert hide_secrets(text.encode()).decode() == expected


@pytest.mark.parametrize("beside", [b"\xff", b"\x80\xfe SEL \x00", b"caf\xe9 ", b"\xc3\xa0"])
def test_what_looks_like_a_secret_is_hidden_beside_bytes_that_are_no_text(beside: bytes) -> None:
    key = b"-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----"
    secrets = (b"password=hunter2secret\n", b"https://root:hunter2secret@bmc/\n", key)
    content = beside + b"\n" + beside.join(secrets) + beside + b"\nkept"
    shown = hide_secrets(content)
    assert b"hunter2secret" not in shown
    assert b"AAAA" not in shown
    assert beside in shown
    assert shown.endswith(b"kept")


def test_a_password_of_letters_beyond_ascii_is_hidden_whole() -> None:
    assert hide_secrets("password=àéîõü".encode()) == f"password={HIDDEN}".encode()


@given(st.binary(max_size=200))
def test_any_bytes_are_taken(content: bytes) -> None:
    assert isinstance(hide_secrets(content, ["S3cret-Value"]), bytes)


@given(st.text("abc \xff=", max_size=30), st.text("abc \xff=", max_size=30))
def test_a_known_secret_never_leaves(before: str, after: str) -> None:
    for encoding in ("utf-8", "latin-1"):
        content = before.encode(encoding) + b"S3cret-Value" + after.encode(encoding)
        assert b"S3cret-Value" not in hide_secrets(content, ["S3cret-Value"])
