"""The page of a runbook."""

from __future__ import annotations

import pytest

from runbooks.library import library
from runbooks.models import RunState
from tests.builders import a_node, an_incident
from tests.kintsugi.pages import a_run
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db


def test_the_page_says_what_it_is_for_where_it_stands_and_what_it_does(people: People) -> None:
    page = people.viewer.get("/runbook/drain_reboot_verify/").content.decode()
    assert "<dt>That call for</dt><dd>reset the GPU; reboot the node</dd>" in page
    components = "GPU; NVLink, NVSwitch, PCIe switch; NIC and transceiver; misconfiguration; node"
    assert f"<dt>Of component</dt><dd>{components}</dd>" in page
    assert "GPU reset → [warm reboot] → cold power cycle → vendor" in page
    assert (
        page.index("drain the node")
        < page.index("reboot it through Slurm")
        < page.index("resume it")
    )
    assert "asks the guards" in page
    assert "A fault that comes back within 24 h of a run was not cured by it." in page
    assert "It has not run yet." in page


@pytest.mark.parametrize("name", sorted(library.read_folders(None)))
def test_every_shipped_runbook_has_its_page(people: People, name: str) -> None:
    answer = people.viewer.get(f"/runbook/{name}/")
    assert answer.status_code == 200
    assert library.load()[name].title in answer.content.decode()


def test_run_under_way_shows_the_version_that_it_began_with(people: People) -> None:
    a_node()
    run = a_run(an_incident(), RunState.RUNNING, version="1 (01234567)")
    page = people.viewer.get("/runbook/drain_reboot_verify/").content.decode()
    assert f"Run {run.pk}</a> on gn042 follows version 1 (01234567), with which it began." in page


def test_there_is_no_page_for_what_is_no_runbook(people: People) -> None:
    assert people.viewer.get("/runbook/pray/").status_code == 404


def test_the_page_of_modes_leads_to_it(people: People) -> None:
    assert 'href="/runbook/drain_reboot_verify/"' in people.admin.get("/modes/").content.decode()
