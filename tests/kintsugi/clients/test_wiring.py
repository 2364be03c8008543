"""The doors to the world as the settings make them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from detectors.detector import Command, DetectorError, NotConfigured, Output, Target, TargetKind
from incidents.models import Expectation
from kintsugi import checks
from kintsugi.clients import wiring
from kintsugi.configuration import config
from runbooks.power.protocol import NoPower
from runbooks.power.site import SitePower

NODE = Target("gn001", "127.0.0.1")


@pytest.fixture
def site(settings: Settings) -> Any:
    def set_to(**values: Any) -> None:
        settings.KINTSUGI = {**settings.KINTSUGI, **values}

    return set_to


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    path = tmp_path / "credentials.toml"
    (tmp_path / "community").write_text("public\n")
    path.write_text(
        f'[[group]]\nswitches = "leaf-01"\n[group.snmp]\ncommunity_file = "{tmp_path}/community"\n'
        '[[group]]\nnodes = "gn001"\n[group.ssh]\nkey_file = "DIR/key"\nknown_hosts = "DIR/hosts"\n'.replace(
            "DIR", str(tmp_path)
        )
    )
    (tmp_path / "hosts").touch()
    (tmp_path / "key").write_text("no key at all\n")
    return path


def test_without_credentials_every_door_says_what_is_not_configured(site: Any) -> None:
    via = wiring.build_watch().via
    with pytest.raises(NotConfigured, match="KINTSUGI_SSH_KEY is unset"):
        via.shell.run(NODE, ("true",), timedelta(seconds=1))
    with pytest.raises(NotConfigured, match="no SNMP credentials"):
        via.snmp.get(Target("leaf-01", "127.0.0.1", kind=TargetKind.SWITCH), ["1.3.6.1.2.1.1.3.0"])


def test_snmp_is_asked_with_the_groups_credentials_alone(site: Any, groups: Path) -> None:
    given = wiring.load_credentials(groups)
    assert given.get_snmp(Target("leaf-01", "h", kind=TargetKind.SWITCH)).community == "public"
    with pytest.raises(NotConfigured):
        given.get_snmp(Target("leaf-02", "h", kind=TargetKind.SWITCH))


def test_a_key_of_a_group_that_is_none_stops_the_start(site: Any, groups: Path) -> None:
    site(KINTSUGI_CREDENTIALS=groups)
    assert "key" in checks.check_node_access(None)[0].msg
    with pytest.raises(DetectorError, match="cannot be read"):
        wiring.build_node_shell()


def test_a_wrong_credentials_file_stops_the_start_with_its_line(site: Any, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text('[[group]]\nnodes = "*"\ncolour = "red"\n')
    site(KINTSUGI_CREDENTIALS=path)
    assert f"{path}:3: [[group]] colour: no such key" in checks.check_node_access(None)[0].msg
    with pytest.raises(ImproperlyConfigured):
        wiring.read_credentials()


def test_slurms_programs_run_here_when_slurm_is_local(site: Any) -> None:
    site(KINTSUGI_SLURM="local", KINTSUGI_SLURM_CONF="/etc/slurm/slurm.conf")
    (slurm,) = wiring.list_sites()
    assert (slurm.name, slurm.kind, slurm.expected.settings) == (
        "slurm",
        TargetKind.SITE,
        {"slurm_conf": "/etc/slurm/slurm.conf"},
    )
    outputs = wiring.build_watch().via.shell.run_all(
        slurm, "test-wiring", [Command("here", ("echo", "here"))]
    )
    assert outputs["here"] == Output(0, b"here\n", b"", outputs["here"].took)


def test_slurms_programs_run_on_the_controller_when_slurm_is_behind_ssh(site: Any) -> None:
    site(KINTSUGI_SLURM="ssh:slurm@ctl01:2222")
    (slurm,) = wiring.list_sites()
    assert (slurm.address, slurm.port, slurm.user) == ("ctl01", 2222, "slurm")
    with pytest.raises(NotConfigured):
        wiring.build_watch().via.shell.run(slurm, ("true",), timedelta(seconds=1))


@pytest.mark.django_db
def test_a_prometheus_is_asked_where_the_setting_says_with_what_the_inventory_declares(
    site: Any,
) -> None:
    site(KINTSUGI_PROMETHEUS_URL="https://prom.example:9090")
    Expectation.objects.create(
        kind="site", role="prometheus", settings={"prometheus_jobs": "node.*"}
    )
    (found,) = wiring.build_watch().list_targets(TargetKind.SITE)
    assert found.expected.urls == {"prometheus": "https://prom.example:9090"}
    assert found.expected.settings == {"prometheus_jobs": "node.*"}
    assert wiring.build_watch().list_targets(TargetKind.SITE, ["slurm"]) == []


def test_only_the_wanted_detectors_run(site: Any) -> None:
    assert len(wiring.list_detectors()) > 5
    site(KINTSUGI_DETECTORS=["gpu", "host"])
    assert [detector.name for detector in wiring.build_watch().detectors] == ["gpu", "host"]


def test_no_detector_runs_faster_than_it_says(site: Any) -> None:
    site(KINTSUGI_POLL_EVERY=timedelta(seconds=1))
    quick = wiring.build_watch()
    assert all(quick.get_period(detector) == detector.every for detector in quick.detectors)
    site(KINTSUGI_POLL_EVERY=timedelta(minutes=10))
    slow = wiring.build_watch()
    assert {slow.get_period(detector) for detector in slow.detectors} == {timedelta(minutes=10)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KINTSUGI_DETECTORS", "gpu,typo"),
        ("KINTSUGI_POLL_EVERY", "0s"),
        ("KINTSUGI_PROMETHEUS_URL", "prom:9090"),
    ],
)
def test_a_wrong_setting_of_polls_stops_the_start(name: str, value: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=name):
        config.load({name: value})


def test_only_a_process_that_acts_gets_at_power(site: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("let me in\n")
    path = tmp_path / "power.toml"
    path.write_text(
        '[[group]]\nnodes = "gn001"\n[group.bmc]\nkind = "redfish"\nuser = "act"\n'
        f'password_file = "{tmp_path}/secret"\n'
    )
    site(KINTSUGI_CREDENTIALS=path, KINTSUGI_ACTS=False)
    assert isinstance(wiring.build_power(), NoPower)
    site(KINTSUGI_ACTS=True)
    assert isinstance(wiring.build_power(), SitePower)
    (tmp_path / "secret").unlink()
    assert "password_file" in checks.check_node_access(None)[0].msg
    site(KINTSUGI_ACTS=False)
    assert "password_file" not in "".join(found.msg for found in checks.check_node_access(None))
