"""What speaks for many machines: which targets the settings make, and which detectors want them."""

from __future__ import annotations

from typing import Any

import pytest

from detectors import registry
from detectors.detector import TargetKind
from kintsugi.clients import wiring


def wanted(settings: Any, slurm: str, prometheus: str) -> dict[str, set[str]]:
    settings.KINTSUGI = settings.KINTSUGI | {
        "KINTSUGI_SLURM": slurm,
        "KINTSUGI_PROMETHEUS_URL": prometheus,
    }
    of_sites = [detector for detector in registry.DETECTORS if detector.kind is TargetKind.SITE]
    return {site.name: {d.name for d in of_sites if d.wants(site)} for site in wiring.list_sites()}


OF_SLURM = {"slurm_nodes", "slurm_jobs"}


@pytest.mark.parametrize(
    ("slurm", "prometheus", "expected"),
    [
        ("off", "", {}),
        ("local", "", {"slurm": OF_SLURM}),
        ("off", "http://metrics:9090", {"prometheus": {"prometheus"}}),
        (
            "ssh:head",
            "http://metrics:9090",
            {"slurm": OF_SLURM | {"job_stalled"}, "prometheus": {"prometheus"}},
        ),
    ],
)
def test_the_settings_say_which_sites_are_looked_at(
    settings: Any, slurm: str, prometheus: str, expected: dict[str, set[str]]
) -> None:
    assert wanted(settings, slurm, prometheus) == expected


def test_slurms_programs_run_where_the_setting_says(settings: Any) -> None:
    settings.KINTSUGI = settings.KINTSUGI | {
        "KINTSUGI_SLURM": "ssh:kintsugi@head:2222",
        "KINTSUGI_SLURM_CONF": "/etc/s",
    }
    site = wiring.list_sites()[0]
    assert (site.address, site.port, site.user) == ("head", 2222, "kintsugi")
    assert site.expected.settings == {"slurm_conf": "/etc/s"}
