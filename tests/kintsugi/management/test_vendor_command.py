"""`kintsugi vendor`: what it opens, moves, prints and refuses, and what is in the archive."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from incidents.inventory import part_history
from incidents.inventory.part_history import Sighting
from incidents.models import Evidence, Fault, VendorCase
from incidents.text.archive import hide_secrets
from incidents.vendor import cases
from incidents.vocabulary.part_kinds import Part
from kintsugi import vendor_bundle
from kintsugi.vendor_bundle import Bundle
from runbooks.models import CureAttempt, StepRun
from tests.builders import NOW, a_node, an_incident
from tests.kintsugi.pages import a_run
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


def done(*words: str) -> str:
    out = io.StringIO()
    call_command("vendor", *words, stdout=out)
    return out.getvalue()


def refused(*words: str) -> str:
    with pytest.raises(CommandError) as caught:
        done(*words)
    return str(caught.value)


@pytest.fixture
def incident_id() -> int:
    a_node()
    return an_incident().pk


def test_a_case_lives_from_the_call_to_its_end(incident_id: int) -> None:
    assert done("open", str(incident_id), "--vendor", "Dell", "--actor", "ada").startswith(
        "Vendor case"
    )
    number = str(VendorCase.objects.get().pk)
    assert "number RMA-7, Dell" in done("note", number, "--number", "RMA-7")
    for what in ("approve", "ship", "receive"):
        done("move", number, what)
    assert "serial NEW-1" in done("move", number, "install", "--serial", "NEW-1")
    assert f"{number}  installed since" in done("list")
    done("move", number, "verify")
    done("move", number, "close")
    assert done("list") == "None.\n"
    (row,) = json.loads(done("list", "--closed", "--json"))
    assert (row["state"], row["new_serial"], row["number"], row["incident"]) == (
        "closed",
        "NEW-1",
        "RMA-7",
        incident_id,
    )
    assert done("times").startswith("all, all: 1 cases, 0 of 1 parts dead on arrival\n")
    assert json.loads(done("times", "--json"))[1]["vendor"] == "Dell"


def test_what_cannot_be_is_refused_with_the_reason(incident_id: int, tmp_path: Path) -> None:
    assert refused("open", "999") == "There is no incident #999."
    assert refused("move", "999", "ship") == "There is no vendor case 999."
    assert refused("bundle", "999", "--out", str(tmp_path / "x")) == "There is no vendor case 999."
    done("open", str(incident_id))
    number = str(VendorCase.objects.get().pk)
    assert (
        refused("move", number, "verify")
        == f"Vendor case {number} is opened: verified is not possible there."
    )
    assert "No such file" in refused("bundle", number, "--out", str(tmp_path / "no" / "x.tar.gz"))


def test_without_node_access_the_archive_holds_what_kintsugi_knows(
    incident_id: int, tmp_path: Path
) -> None:
    done("open", str(incident_id))
    number = VendorCase.objects.get().pk
    out = tmp_path / "evidence.tar.gz"
    done("bundle", str(number), "--out", str(out))
    manifest = unpacked(out.read_bytes())[f"kintsugi-case-{number}/MANIFEST.txt"]
    assert "missing  node/nvidia-smi-q.txt" in manifest
    assert "KINTSUGI_SSH_KEY is unset" in manifest


def unpacked(content: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        inside = {row.name: archive.extractfile(row) for row in archive.getmembers()}
        return {name: file.read().decode() for name, file in inside.items() if file is not None}


def a_case_of(site: Site) -> VendorCase:
    """gn001's first GPU, which fell off the bus, with a repair that did not help."""
    incident = site.lose_gpu()
    part_history.settle(
        [Sighting(Part.GPU, incident.root_resource, serial="OLD-1")], NOW, why="seen by a poll"
    )
    run = a_run(incident)
    CureAttempt.objects.create(
        run=run,
        node=run.node,
        resource=incident.root_resource,
        serial="OLD-1",
        fault_type=incident.fault_type,
        rung="node_restart",
        tried_at=NOW,
        has_cured=False,
        why="It came back.",
    )
    StepRun.objects.create(
        run=run,
        index=1,
        name="diagnose",
        outcome="failed",
        started_at=NOW,
        evidence={"dcgmi": "Fail: memory"},
    )
    opened = cases.open_case(incident.pk, actor="ada", now=NOW)
    assert isinstance(opened, cases.Opened)
    return VendorCase.objects.get(pk=opened.case_id)


def test_the_archive_holds_what_is_known_and_what_the_machine_shows(settings: Settings) -> None:
    settings.KINTSUGI = {**settings.KINTSUGI, "SLACK_BOT_TOKEN": "xoxb-secret-token"}
    site = Site(nodes=1)
    case = a_case_of(site)
    Evidence.objects.create(
        fault=Fault.objects.get(resource=case.resource),
        position="last",
        slot=7,
        source="syslog",
        occurred_at=NOW,
        excerpt="NVRM: Xid 79 while xoxb-secret-token",
    )
    bundle = vendor_bundle.collect(case.pk, shell=site.shell, now=NOW)
    assert isinstance(bundle, Bundle)
    assert bundle.name == f"kintsugi-case-{case.pk}.tar.gz"
    found = {name.partition("/")[2]: text for name, text in unpacked(bundle.content).items()}
    assert "OLD-1" in found["case.txt"]
    assert "GPU has fallen off the bus" in found["incident.txt"]
    assert "NVRM: Xid 79 while (hidden)" in found["log-excerpts.txt"]
    assert (
        "node_restart for gpu.xid.79 on serial OLD-1: not cured. It came back."
        in found["repairs-tried.txt"]
    )
    assert "Where the part was" in found["part-history.txt"]
    assert "GPU 0:" in found["topology.txt"]
    assert next(text for name, text in found.items() if "diagnose" in name) == "Fail: memory\n"
    assert not any("xoxb-secret-token" in text for text in found.values())
    again = vendor_bundle.collect(case.pk, shell=site.shell, now=NOW)
    assert isinstance(again, Bundle)
    assert again.content == bundle.content


GROUPS = """
[[group]]
switches = "*"
[group.snmp]
version = "2c"
community_env = "T_COMMUNITY"

[[group]]
nodes = "*"
[group.http]
bearer_env = "T_BEARER"
[group.bmc]
kind = "redfish"
user = "root"
password_env = "T_BMC"
"""


def test_no_secret_of_the_credentials_leaves_in_an_archive(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"T_COMMUNITY": "v\xe4terchen", "T_BEARER": "bearer-of-all", "T_BMC": "calvin-calvin"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "credentials.toml"
    path.write_text(GROUPS)
    settings.KINTSUGI = {
        **settings.KINTSUGI,
        "KINTSUGI_CREDENTIALS": path,
        "KINTSUGI_ACTS": True,
    }
    hidden = vendor_bundle._list_secrets()
    assert set(secrets.values()) <= set(hidden)
    for secret in secrets.values():
        for said in (secret.encode(), secret.encode("latin-1")):
            content = b"\xff\xfe seen: " + said + b"\x80\n"
            assert said not in hide_secrets(content, hidden)


def test_a_silent_machine_is_named_with_why(tmp_path: Path) -> None:
    site = Site(nodes=1)
    case = a_case_of(site)
    site.shell.silent.add("gn001")
    bundle = vendor_bundle.collect(
        case.pk, shell=site.shell, now=NOW, field_diagnostics="/var/log/fieldiag/*.log"
    )
    assert isinstance(bundle, Bundle)
    manifest = unpacked(bundle.content)[f"kintsugi-case-{case.pk}/MANIFEST.txt"]
    assert "missing  node/system-event-log.txt" in manifest
    assert "missing  field-diagnostics  (/var/log/fieldiag/*.log)" in manifest
    assert manifest.count("gn001: no route to host") == 7
