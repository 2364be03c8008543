"""docs/reference/what-runs.md holds all that Kintsugi runs on a site's machines, and is current."""

from __future__ import annotations

import pytest

from detectors import registry
from tests.security import everything

# Each place in the code that has a machine run something, and the part of the page that has it. The
# detectors' own `collect` is run and recorded for the page.
PLACES = {
    "incidents/vendor/inspection.py:_collect_field_diagnostics": everything.LOOKS,
    "incidents/vendor/inspection.py:_fetch_file": everything.LOOKS,
    "incidents/vendor/inspection.py:read_pieces": everything.LOOKS,
    "kintsugi/inventory/discover.py:_inspect_node": everything.LOOKS,
    "kintsugi/inventory/sudoers.py:_locate_programs": everything.LOOKS,
    "runbooks/node/detached_command.py:_run_script": everything.ACTS,
    "runbooks/node/gpu_holders.py:list_holders": everything.LOOKS,
    "runbooks/node/looking.py:_read_as_root": everything.LOOKS,
    "runbooks/node/looking.py:read_boot": everything.LOOKS,
    "runbooks/node/looking.py:read_journal": everything.LOOKS,
    "runbooks/node/looking.py:read_refusal": everything.LOOKS,
    "runbooks/node/traces.py:_ask": everything.ACTS,
    "runbooks/people/preflight.py:_find_boot_id_complaint": everything.LOOKS,
    "runbooks/people/root_rights.py:list_missing": everything.LOOKS,
    "runbooks/power/ipmi.py:_ask": everything.ACTS,
    "runbooks/slurm/client.py:_run": everything.SLURM,
    "runbooks/steps/diagnose_in_job.py:_read_report": everything.LOOKS,
}
# These hand on what others ask for.
BETWEEN = {
    "detectors/polling.py:run",
    "detectors/polling.py:run_all",
    "detectors/transports/local.py:run",
    "kintsugi/inventory/sudoers.py:run",
    "kintsugi/inventory/sudoers.py:run_all",
}


def test_the_page_is_what_the_code_says(request: pytest.FixtureRequest) -> None:
    page = everything.build_page()
    if request.config.getoption("--update-golden"):
        everything.PAGE.write_text(page)
    assert everything.PAGE.read_text() == page


def test_each_place_that_runs_something_is_on_the_page() -> None:
    found = everything.find_places() - BETWEEN
    recorded = {place for place in found if place.endswith(":collect")}
    assert found - recorded == set(PLACES)
    modules = {type(detector).__module__ for detector in registry.DETECTORS}
    files = {f"{module.replace('.', '/')}.py:collect" for module in modules}
    assert recorded <= files
    page = everything.PAGE.read_text()
    assert [part for part in PLACES.values() if part not in page] == []


def test_each_act_through_slurm_was_recorded_as_it_is_sent() -> None:
    assert set(everything.record_slurm_acts()) == set(everything.OCCASIONS)
