"""An arming, or a runbook's own mode, goes down a rung by itself on the first wrong act by it, and
a person arms again."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from pytest_django import Settings

from detectors.faults import Action
from incidents import services as incidents
from incidents.models import Incident, Notification
from incidents.vocabulary.lifecycle import State, Trigger
from runbooks import services
from runbooks.fleet import armings, step_backs
from runbooks.guards.policy import DRAIN_AND_ASK, DRAIN_REBOOT_VERIFY
from runbooks.lease.withdrawal_reasons import REFUTED, UNWITNESSED
from runbooks.library import library
from runbooks.models import (
    Arming,
    AuditEntry,
    Mode,
    Run,
    RunbookMode,
    RunState,
    SecondPersonRequest,
)
from runbooks.node.drains import RESUMED_AT
from runbooks.node.witnesses import CONFIRMED_AT, VOUCHED
from tests.incidents.test_races import at_once
from tests.runbooks.fleet.test_armings import arm
from tests.runbooks.site import EPOCH, Site

pytestmark = pytest.mark.django_db
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DRAINED = {"drained_at": EPOCH.isoformat()}
SOON, LATE = (EPOCH + HOUR / 2).isoformat(), (EPOCH + 2 * HOUR).isoformat()


@pytest.fixture
def site(db: None) -> Site:
    return Site(mode=Mode.SHADOW)


def told(incident: Incident) -> list[str]:
    return list(incident.timeline.filter(kind="stepped_back").values_list("text", flat=True))


@pytest.mark.parametrize(
    ("state", "facts", "says"),
    [
        (State.REPAIRING, DRAINED, ""),
        (State.FALSE_POSITIVE, {}, ""),
        (State.FALSE_POSITIVE, DRAINED, "marked the incident a false alarm"),
        (State.FALSE_POSITIVE, DRAINED | {CONFIRMED_AT: SOON}, "marked the incident a false"),
        (State.REPAIRING, {REFUTED: [["gpu.lost", "x"]]}, ""),
        (State.REPAIRING, DRAINED | {REFUTED: [["gpu.lost", "x"]]}, "looked for twice"),
        (State.REPAIRING, DRAINED | {UNWITNESSED: True}, "itself denies it"),
        (State.REPAIRING, DRAINED | {RESUMED_AT: SOON}, "put it back in service"),
        (State.REPAIRING, DRAINED | {RESUMED_AT: LATE}, ""),
        (State.REPAIRING, DRAINED | {RESUMED_AT: SOON, CONFIRMED_AT: SOON}, ""),
        (State.REPAIRING, DRAINED | {RESUMED_AT: SOON, VOUCHED: True}, ""),
        (State.DUPLICATE, DRAINED, ""),
    ],
)
def test_what_counts_as_wrong(state: State, facts: dict[str, object], says: str) -> None:
    plan = [{"step": "drain"}, {"step": "confirm_on_node"}]
    run = Run(incident=Incident(state=state.value), facts=facts, plan=plan)
    found = step_backs.find_wrong(run)
    assert says in found
    assert bool(found) is bool(says)


def test_a_drain_for_a_fault_that_is_not_there_takes_a_rung_in_the_turn_that_ends_it(
    site: Site,
) -> None:
    row = arm(site)
    incident = site.raise_fault()
    run = site.play(site.begin(incident), limit=DAY / 2)
    assert run.state == RunState.WITHDRAWN
    row.refresh_from_db()
    assert (row.mode, row.stepped_back_at) == (Mode.APPROVAL, run.finished_at)
    (text,) = told(incident)
    assert "steps back from armed to approval by itself" in text
    assert "looked for twice" in text
    assert f"kintsugi arming end {row.pk}" in text
    assert Notification.objects.filter(incident=incident, reason="stepped_back").exists()
    assert AuditEntry.objects.filter(act="step_back", run=run.pk, text=text).count() == 1
    second = site.advance(site.begin(site.lose_gpu("gn002")))
    assert second.state == RunState.AWAITING_APPROVAL


def test_a_true_repair_takes_none(site: Site) -> None:
    row = arm(site)
    assert site.play(site.begin(site.lose_gpu())).state == RunState.SUCCEEDED
    assert services.sweep_wrong_acts(site.now) == 0
    row.refresh_from_db()
    assert (row.mode, row.stepped_back_at) == (Mode.ARMED, None)


def test_a_false_alarm_that_a_person_names_after_the_run_counts_once(site: Site) -> None:
    row = arm(site)
    incident = site.lose_gpu()
    site.play(site.begin(incident))
    incidents.act(incident.pk, Trigger.RESOLVE, actor="aya", note="", now=site.now)
    incidents.act(
        incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="aya", note="a bad cable", now=site.now
    )
    assert services.sweep_wrong_acts(site.now) == 1
    assert services.sweep_wrong_acts(site.now) == 0
    row.refresh_from_db()
    assert row.mode == Mode.APPROVAL
    assert len(told(incident)) == 1


def test_a_person_who_resumes_at_once_what_nobody_has_seen_takes_a_rung(site: Site) -> None:
    row = arm(site)
    site.shell.silent.add("gn001")
    site.slurm.add_job("77", nodes=["gn001"])
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=10))
    assert run.state == RunState.RUNNING
    site.slurm.human_resume("gn001")
    run = site.play(run, limit=timedelta(minutes=10))
    assert run.state == RunState.ABORTED
    row.refresh_from_db()
    assert row.mode == Mode.APPROVAL


def wrong_run(site: Site, row: Arming, node: str) -> Run:
    """As such a run ends: its node was drained by the arming, and was well."""
    incident = site.raise_fault(node=node)
    facts = DRAINED | {armings.USED: row.pk, REFUTED: [["gpu.xid.79", site.gpu(node)]]}
    return Run.objects.create(
        incident=incident,
        node=incident.node,
        runbook=row.runbook,
        mode=Mode.ARMED,
        state=RunState.WITHDRAWN,
        claimed_at=site.now,
        started_at=site.now,
        finished_at=site.now,
        facts=facts,
    )


def test_two_wrong_acts_of_one_rung_take_one_and_a_later_one_the_next(site: Site) -> None:
    row = arm(site)
    first, second = (wrong_run(site, row, node) for node in ("gn001", "gn002"))
    site.now += HOUR / 4
    assert services.sweep_wrong_acts(site.now) == 1
    row.refresh_from_db()
    assert row.mode == Mode.APPROVAL
    assert row.stepped_back_why.startswith(f"run {first.pk} ")
    assert step_backs.step_back(second, site.now) == ""
    site.now += HOUR / 4
    third = wrong_run(site, row, "gn003")
    assert services.sweep_wrong_acts(site.now) == 1
    row.refresh_from_db()
    assert row.mode == Mode.SHADOW
    assert row.stepped_back_why.startswith(f"run {third.pk} ")
    wrong_run(site, row, "gn004")
    assert services.sweep_wrong_acts(site.now) == 0


def test_one_that_has_ended_or_expired_or_was_not_used_is_left_as_it_is(site: Site) -> None:
    ended, expired = arm(site, ended_at=site.now), arm(site, until=site.now)
    unused = arm(site)
    runs = [wrong_run(site, row, node) for row, node in ((ended, "gn001"), (expired, "gn002"))]
    assert services.sweep_wrong_acts(site.now) == 0
    assert [step_backs.step_back(run, site.now) for run in runs] == ["", ""]
    assert set(Arming.objects.values_list("mode", flat=True)) == {Mode.ARMED}
    assert armings.load_in_force(site.now) == [unused]


def test_a_run_that_is_looked_at_twice_takes_one_rung(site: Site) -> None:
    row = arm(site)
    run = wrong_run(site, row, "gn001")
    assert step_backs.step_back(run, site.now + HOUR / 4) != ""
    assert step_backs.step_back(run, site.now + HOUR / 2) == ""
    row.refresh_from_db()
    assert row.mode == Mode.APPROVAL


# A runbook's own mode.


@pytest.fixture
def armed(db: None) -> Site:
    """Where the runbook's own mode is armed, everywhere."""
    return Site(mode=Mode.ARMED)


def own_mode(runbook: str = DRAIN_REBOOT_VERIFY) -> RunbookMode:
    return RunbookMode.objects.get(runbook=runbook)


def wrong_by_mode(site: Site, node: str, **facts: object) -> Run:
    """As such a run ends: drained by the runbook's own mode, and well."""
    incident = site.raise_fault(node=node)
    return Run.objects.create(
        incident=incident,
        node=incident.node,
        runbook=DRAIN_REBOOT_VERIFY,
        mode=Mode.ARMED,
        state=RunState.WITHDRAWN,
        claimed_at=site.now,
        started_at=site.now,
        finished_at=site.now,
        facts=DRAINED | {REFUTED: [["gpu.xid.79", site.gpu(node)]]} | facts,
    )


def test_the_first_wrong_act_takes_a_rung_from_the_runbooks_own_mode_and_says_so_once(
    armed: Site,
) -> None:
    incident = armed.raise_fault()
    run = armed.play(armed.begin(incident), limit=DAY / 2)
    assert run.state == RunState.WITHDRAWN
    row = own_mode()
    assert (row.mode, row.stepped_back_at, row.set_by) == (Mode.APPROVAL, run.finished_at, "test")
    (text,) = told(incident)
    assert f"{DRAIN_REBOOT_VERIFY} steps back from armed to approval by itself" in text
    assert "which was well: looked for twice on the node, and not there" in text
    assert f"kintsugi mode set {DRAIN_REBOOT_VERIFY} armed" in text
    assert Notification.objects.filter(incident=incident, reason="stepped_back").count() == 1
    assert AuditEntry.objects.filter(act="step_back", run=run.pk, text=text).count() == 1
    assert services.sweep_wrong_acts(armed.now) == 0
    assert own_mode(DRAIN_AND_ASK).mode == Mode.ARMED
    second = armed.advance(armed.begin(armed.lose_gpu("gn002")))
    assert second.state == RunState.AWAITING_APPROVAL


def test_a_true_repair_by_its_own_mode_takes_none(armed: Site) -> None:
    assert armed.play(armed.begin(armed.lose_gpu())).state == RunState.SUCCEEDED
    assert services.sweep_wrong_acts(armed.now) == 0
    assert own_mode().mode == Mode.ARMED


def test_a_false_alarm_that_a_person_names_later_takes_a_rung_from_the_mode(armed: Site) -> None:
    incident = armed.lose_gpu()
    armed.play(armed.begin(incident))
    incidents.act(incident.pk, Trigger.RESOLVE, actor="aya", note="", now=armed.now)
    incidents.act(
        incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="aya", note="a bad cable", now=armed.now
    )
    assert services.sweep_wrong_acts(armed.now) == 1
    assert services.sweep_wrong_acts(armed.now) == 0
    assert own_mode().mode == Mode.APPROVAL


def test_only_a_person_sets_it_again_and_what_was_before_counts_no_more(armed: Site) -> None:
    wrong_by_mode(armed, "gn001")
    assert services.sweep_wrong_acts(armed.now + HOUR) == 1
    armed.now += 30 * DAY
    assert services.sweep_wrong_acts(armed.now) == 0
    assert own_mode().mode == Mode.APPROVAL
    services.set_mode(DRAIN_REBOOT_VERIFY, "armed", actor="aya", now=armed.now, world=armed.world)
    row = own_mode()
    assert (row.mode, row.stepped_back_at, row.stepped_back_why) == (Mode.ARMED, None, "")
    assert services.sweep_wrong_acts(armed.now) == 0
    armed.now += HOUR
    wrong_by_mode(armed, "gn002")
    assert services.sweep_wrong_acts(armed.now) == 1


def test_two_wrong_acts_of_one_mode_take_one_rung_and_a_later_one_the_next(armed: Site) -> None:
    for node in ("gn001", "gn002"):
        wrong_by_mode(armed, node)
    armed.now += HOUR
    assert services.sweep_wrong_acts(armed.now) == 1
    assert own_mode().mode == Mode.APPROVAL
    armed.now += HOUR
    wrong_by_mode(armed, "gn003")
    assert services.sweep_wrong_acts(armed.now) == 1
    assert own_mode().mode == Mode.SHADOW
    wrong_by_mode(armed, "gn004")
    assert services.sweep_wrong_acts(armed.now) == 0


def test_a_mode_that_a_person_has_set_since_is_left_as_it_is(armed: Site) -> None:
    wrong_by_mode(armed, "gn001")
    armed.now += HOUR
    services.set_mode(
        DRAIN_REBOOT_VERIFY, "approval", actor="aya", now=armed.now, world=armed.world
    )
    assert services.sweep_wrong_acts(armed.now) == 0
    assert own_mode().mode == Mode.APPROVAL


def test_a_wrong_act_by_an_arming_takes_none_from_the_runbooks_own_mode(armed: Site) -> None:
    row = arm(armed)
    wrong_run(armed, row, "gn001")
    assert services.sweep_wrong_acts(armed.now + HOUR) == 1
    row.refresh_from_db()
    assert (row.mode, own_mode().mode) == (Mode.APPROVAL, Mode.ARMED)


def test_the_sites_own_mode_is_left_as_a_person_set_it(armed: Site) -> None:
    services.set_mode("site", "armed", actor="aya", now=armed.now, world=armed.world)
    wrong_by_mode(armed, "gn001")
    assert services.sweep_wrong_acts(armed.now + HOUR) == 1
    assert services.get_site_mode() is Mode.ARMED


def test_a_node_that_another_incident_calls_for_was_not_well(armed: Site) -> None:
    """Until that one is no fault either."""
    wrong_by_mode(armed, "gn001")
    other = armed.raise_fault(
        fault_type="nic.missing", resource="node/gn001/nic/mlx5_0", action=Action.REBOOT
    )
    armed.now += HOUR
    assert services.sweep_wrong_acts(armed.now) == 0
    incidents.act(
        other.pk, Trigger.MARK_FALSE_POSITIVE, actor="aya", note="a wrong rule", now=armed.now
    )
    assert services.sweep_wrong_acts(armed.now) == 1


def test_whoever_puts_back_at_once_what_only_hands_were_asked_for_takes_none() -> None:
    """No runbook without a look at the node is wrong because a person was quick."""
    facts = DRAINED | {RESUMED_AT: SOON}
    for name, book in library.load().items():
        plan = [{"step": planned.step.name} for planned in book.steps]
        run = Run(incident=Incident(state=State.REPAIRING.value), facts=facts, plan=plan)
        looks = any(planned.step.name == "confirm_on_node" for planned in book.steps)
        assert bool(step_backs.find_wrong(run)) is looks, name


def test_a_request_for_a_second_person_ends_where_its_runbook_has_stepped_back(
    armed: Site, settings: Settings
) -> None:
    two = {"KINTSUGI_SECOND_PERSON": frozenset({"widening"})}
    settings.KINTSUGI = {**settings.KINTSUGI, **two}
    User.objects.create_superuser("ada")
    row = arm(armed, mode=Mode.SHADOW)
    services.end_arming(row.pk, "pilot is over", actor="ada", now=armed.now)
    wrong_by_mode(armed, "gn001")
    services.sweep_wrong_acts(armed.now + HOUR / 2)
    services.sweep_second_person(armed.now + HOUR / 2)
    assert SecondPersonRequest.objects.get().ending == "outdated"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_on_disk")
def test_many_that_find_it_at_once_take_one_rung(armed: Site) -> None:
    run = wrong_by_mode(armed, "gn001")
    now = armed.now + HOUR
    at_once([lambda: services.sweep_wrong_acts(now)] * 6)
    assert own_mode().mode == Mode.APPROVAL
    assert len(told(run.incident)) == 1
    assert AuditEntry.objects.filter(act="step_back").count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_on_disk")
def test_a_person_who_sets_the_mode_in_that_moment_has_the_last_word(armed: Site) -> None:
    """Whatever comes first: what they set stands, and no rung is taken from it."""
    wrong_by_mode(armed, "gn001")
    now = armed.now + HOUR

    def set_mode() -> None:
        services.set_mode(DRAIN_REBOOT_VERIFY, "approval", actor="aya", now=now, world=armed.world)

    at_once([lambda: services.sweep_wrong_acts(now), set_mode] * 3)
    row = own_mode()
    assert (row.mode, row.set_by, row.stepped_back_at) == (Mode.APPROVAL, "aya", None)
