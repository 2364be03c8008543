"""A site's own rows: tried first, read again when they change, and never half."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from detectors.catalog import catalog, site_catalog
from detectors.logs.signatures import Matcher

_AT = datetime(2026, 11, 1, tzinfo=UTC)
_ROW = """
[[signature]]
type = "node.kernel.panic"
event = "raised"
on = "node"
program = "kernel"
facility = "kern"
begins = "message"
pattern = 'quux: gave up'
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # A look at each call: what changes between two calls of a test is seen.
    monkeypatch.setattr(catalog, "_LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(catalog, "_site", catalog._SiteCatalog())
    site_catalog.set_directory(tmp_path)
    yield tmp_path
    site_catalog.set_directory(None)


def types(line: str = "kernel: quux: gave up") -> list[str]:
    facts = Matcher(catalog.load()).facts(
        line.encode(), default_host="gn001", observed_at=_AT, zone=UTC
    )
    return [fact.fault_type for fact in facts]


def write(path: Path, text: str) -> None:
    path.write_text(text)
    # Two writes within one tick of the file system's clock differ in this.
    stamp = path.stat().st_mtime_ns
    os.utime(path, ns=(stamp, stamp + len(text)))


def test_rows_count_once_they_are_written_and_no_more_once_they_are_gone(directory: Path) -> None:
    assert types() == []
    write(directory / "site.toml", _ROW)
    assert types() == ["node.kernel.panic"]
    (directory / "site.toml").unlink()
    assert types() == []


def test_a_sites_advice_and_the_address_of_its_own_runbook_come_before_ours(
    directory: Path,
) -> None:
    ours = catalog.load().get_advice("nic.tx_timeout")
    row = """
[[advice]]
types = ["nic.tx_timeout"]
text = "Call the network team. Give them {host}."
source = "the site"
url = "https://wiki.example.org/nic"
"""
    write(directory / "site.toml", row)
    found = catalog.load().get_advice("nic.tx_timeout")
    assert ours is not None
    assert found is not None
    assert found.format("node/gn042") == "Call the network team. Give them gn042."
    assert (ours.url, found.url) == ("", "https://wiki.example.org/nic")


def test_a_fact_names_the_file_that_decided(directory: Path) -> None:
    write(directory / "site.toml", _ROW)
    [fact] = Matcher(catalog.load()).facts(
        b"kernel: quux: gave up", default_host="gn001", observed_at=_AT, zone=UTC
    )
    assert fact.decided_by == f"{directory / 'site.toml'}:2"


def test_the_site_speaks_before_the_shipped_rows(directory: Path) -> None:
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
    assert types(xid) == ["gpu.xid.79"]
    write(directory / "site.toml", _ROW.replace("quux: gave up", "NVRM: Xid"))
    assert types(xid) == ["node.kernel.panic"]


def test_the_catalogue_of_before_stays_when_a_change_breaks_the_files(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(directory / "site.toml", _ROW)
    assert types() == ["node.kernel.panic"]
    write(directory / "site.toml", _ROW + "[[signature]]\n")
    assert types() == ["node.kernel.panic"]
    assert "site.toml:10" in caplog.text


def test_the_catalogue_of_before_stays_when_a_value_has_the_wrong_kind(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(directory / "site.toml", _ROW)
    assert types() == ["node.kernel.panic"]
    for text in (
        _ROW.replace("'quux: gave up'", "5"),
        _ROW.replace('"kernel"', "7"),
        'signature = "quux"\n',
        "signature = [1]\n",
        'defaults = "quux"\n',
        _ROW + 'scan = ["quux"]\n',
    ):
        caplog.clear()
        write(directory / "site.toml", text)
        assert types() == ["node.kernel.panic"]
        assert "the catalogue of before stays" in caplog.text
        assert "site.toml:" in caplog.text


def test_files_that_are_wrong_at_the_start_are_refused(directory: Path) -> None:
    write(directory / "site.toml", _ROW.replace("node.kernel.panic", "node.nothing_of_the_kind"))
    with pytest.raises(catalog.CatalogError, match=r"site\.toml:2: .*no such fault type"):
        catalog.load()


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path, directory: Path) -> None:
    site_catalog.set_directory(tmp_path / "nowhere")
    with pytest.raises(catalog.CatalogError, match=r"KINTSUGI_CATALOG_DIR: .*nowhere"):
        catalog.load()
