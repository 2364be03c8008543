"""An arming goes down a rung by itself on the first wrong act by it, and a person arms again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents import services as incidents
from incidents.models import Incident, Notification
from incidents.vocabulary.lifecycle import State, Trigger
from runbooks import services
from runbooks.fleet import armings, step_backs
from runbooks.lease.withdrawal_reasons import REFUTED, UNWITNESSED
from runbooks.models import Arming, AuditEntry, Mode, Run, RunState
from runbooks.node.drains import RESUMED_AT
from runbooks.node.witnesses import CONFIRMED_AT
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
        (State.DUPLICATE, DRAINED, ""),
    ],
)
def test_what_counts_as_wrong(state: State, facts: dict[str, object], says: str) -> None:
    run = Run(incident=Incident(state=state.value), facts=facts)
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
