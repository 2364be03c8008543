"""What a run's page tells and asks, and what the other pages of repairs say in words."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.models import Incident, VendorCase
from incidents.templatetags import console, vendor
from incidents.vendor import cases
from incidents.vocabulary.vendor_states import Move
from runbooks.fleet import fleet
from runbooks.models import Approval, Mode, RunbookMode, RunState
from tests.builders import GPU, NOW, a_node, an_incident
from tests.kintsugi.pages import a_run
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db
SHOWN = {
    "node": "gn042",
    "service": "in service",
    "reason": "",
    "jobs": ["48812 of sato"],
    "faults": [f"gpu.xid.79 on {GPU}"],
    "power": "",
    "nodes_out": 3,
}


def incident() -> Incident:
    a_node()
    return an_incident()


def asked(why: str, index: int, people: People) -> str:
    run = a_run(incident(), RunState.AWAITING_APPROVAL, step=index)
    Approval.objects.create(run=run, index=index, asked_at=NOW, why=why, shown=SHOWN)
    return people.on_call.get(f"/runbooks/run/{run.pk}/change/").content.decode()


def test_who_approves_a_whole_run_reads_all_that_it_would_do(people: People) -> None:
    page = asked("The runbook's mode is approval", 0, people)
    assert "Kintsugi would drain gn042, requeue" in page
    assert "and resume it." in page
    assert "gn042 GPU 0000:19:00.0</a>" in page


def test_who_approves_a_step_reads_that_step_alone(people: People) -> None:
    page = asked("A person approves each reboot", 4, people)
    assert "Kintsugi would reboot it through Slurm." in page
    assert "Kintsugi would drain" not in page


def test_a_run_that_did_not_cure_leads_to_the_one_that_goes_on(people: People) -> None:
    about = incident()
    ended = {"finished_at": NOW + timedelta(minutes=3)}
    first = a_run(
        about, RunState.NOT_CURED, outcome=f"The reboot has not cured gpu.xid.79 on {GPU}.", **ended
    )
    second = a_run(about, RunState.RUNNING, started_at=NOW + timedelta(minutes=4))
    page = people.viewer.get(f"/runbooks/run/{first.pk}/change/").content.decode()
    assert f'<a href="/runbooks/run/{second.pk}/change/">run #{second.pk}</a>' in page
    assert "has not cured gpu.xid.79 on gn042 GPU 0000:19:00.0." in page


def test_a_run_that_ended_says_what_its_incident_still_asks(people: People) -> None:
    about = incident()
    Incident.objects.filter(pk=about.pk).update(needs_human="Call the vendor about gn042.")
    run = a_run(about, RunState.FAILED, finished_at=NOW)
    assert (
        "Call the vendor about gn042."
        in people.viewer.get(f"/runbooks/run/{run.pk}/change/").content.decode()
    )


def test_what_steps_noted_is_told_in_times_and_words_without_keys_of_steps(people: People) -> None:
    facts = {
        "drained_at": NOW.isoformat(),
        "handed_over": True,
        "4-6-verify:since": NOW.isoformat(),
    }
    run = a_run(incident(), RunState.RUNNING, facts=facts)
    page = people.viewer.get(f"/runbooks/run/{run.pk}/change/").content.decode()
    assert f'<dt>drained at</dt><dd><time datetime="{NOW.isoformat()}"' in page
    assert "<dt>handed over</dt><dd>yes</dd>" in page
    assert "4-6-verify" not in page


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"gpu.lost on {GPU}: gone.", "gpu.lost on gn042 GPU 0000:19:00.0: gone."),
        ("port switch/leaf-03/port/Ethernet64.", "port leaf-03 port Ethernet64."),
        ("The state of node/gn042.", "The state of gn042."),
        ("Nothing of a node is named.", "Nothing of a node is named."),
        ("x" * 254 + " ", "x" * 254 + " ..."),
    ],
)
def test_a_sentence_names_resources_as_people_do_and_says_where_it_was_cut(
    text: str, told: str
) -> None:
    assert console.prose(text) == told


def test_a_command_between_backticks_is_shown_as_code_and_nothing_else_is_trusted() -> None:
    assert console.coded("`manage.py x` puts <b>") == "<code>manage.py x</code> puts &lt;b&gt;"


def test_a_runbook_that_the_site_holds_back_stands_under_the_sites_mode(people: People) -> None:
    for name, mode in (("drain_reboot_verify", Mode.ARMED), (fleet.SITE, Mode.SHADOW)):
        RunbookMode.objects.create(runbook=name, mode=mode, set_by="ada", set_at=NOW)
    page = people.viewer.get("/modes/").content.decode()
    assert "Held back by the site's mode: its own is armed." in page
    assert 'id="mode-armed"' not in page
    assert "k-mode-armed" not in people.viewer.get("/").content.decode()


def test_a_vendor_case_says_how_long_it_stands_of_what_is_expected_and_what_is_to_be_done(
    people: People,
) -> None:
    about = incident()
    cases.open_case(about.pk, actor="ada", now=NOW)
    case = VendorCase.objects.get()
    assert vendor.stands(case).endswith(", 2 d expected")
    assert vendor.can_do(case).startswith("Call the vendor about gn042 GPU 0")
    cases.move(case.pk, Move.SHIP, actor="ada", now=NOW, note="Tracking 1.")
    case.refresh_from_db()
    page = people.viewer.get(f"/incidents/vendorcase/{case.pk}/change/").content.decode()
    assert vendor.can_do(case) in page
    assert "Nothing until the part is here." in page
