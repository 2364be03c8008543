"""Where nothing moves for a critical fault a person is asked, with the reason, once, and as long as
that is so."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents import services as incidents
from incidents.evaluation.windows import Draft, WindowKind
from incidents.maintenance import planning
from incidents.models import Fault, Incident, Node, Notification
from incidents.vocabulary.lifecycle import Trigger
from kintsugi.web import console
from runbooks import services
from runbooks.engine import approvals, result
from runbooks.engine.result import RunTurn
from runbooks.fleet import breaker
from runbooks.guards.policy import DRAIN_REBOOT_VERIFY
from runbooks.guards.table import GuardRefused, Refusal
from runbooks.models import Mode, Run, RunState
from runbooks.people import standstill
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
TEN = standstill.ASKS_AFTER
WHY = "5 of 20 nodes of partition gpu are out, and the cap is 5"
# These people know of, since they work on the node.
WITH_PEOPLE = {Refusal.MAINTENANCE, Refusal.DECOMMISSIONED}
# This one ends its run and asks at once.
AT_ONCE = {Refusal.FAULT_RETURNED}


def asked(incident: Incident) -> str:
    incident.refresh_from_db()
    return incident.needs_human


def lines(incident: Incident) -> list[str]:
    """What was told of it, in the channel or in the thread."""
    kinds = (standstill.ASKED, standstill.ASKED_IN_THREAD, standstill.OVER)
    return list(incident.timeline.filter(kind__in=kinds).values_list("text", flat=True))


def pass_time(site: Site, how_long: timedelta) -> None:
    site.now += how_long
    services.sweep_standstills(site.now)


def refuse(site: Site, incident: Incident, kind: Refusal = Refusal.CAP, why: str = WHY) -> Run:
    """The guards refuse its run now."""
    site.start()
    run = Run.objects.select_related("incident", "node").get(incident=incident)
    result.refuse(RunTurn(run, None, site.now), GuardRefused(kind, why, site.now + MINUTE))
    return run


def spring_leak(site: Site) -> Incident:
    """Water in the machine: critical, and no runbook is for it."""
    return site.raise_fault(fault_type="facility.leak", resource="node/gn001")


@pytest.mark.parametrize("kind", sorted(set(Refusal) - WITH_PEOPLE - AT_ONCE))
def test_a_person_is_asked_with_the_reason_when_a_run_is_refused_for_ten_minutes(
    kind: Refusal,
) -> None:
    site = Site()
    incident = site.lose_gpu()
    refuse(site, incident, kind)

    pass_time(site, TEN - SECOND)
    assert asked(incident) == ""
    pass_time(site, SECOND)

    assert "gn001" in asked(incident)
    (line,) = lines(incident)
    assert line.startswith(f"Nothing has moved since 03:00:00 UTC (10 min): {WHY}. ")
    assert line.endswith(asked(incident))


@pytest.mark.parametrize("kind", sorted(WITH_PEOPLE))
def test_nobody_is_asked_while_people_have_the_node(kind: Refusal) -> None:
    site = Site()
    incident = site.lose_gpu()
    refuse(site, incident, kind)

    pass_time(site, HOUR)

    assert (asked(incident), lines(incident)) == ("", [])


def test_nobody_is_asked_when_the_fault_is_not_critical() -> None:
    site = Site()
    incident = site.raise_fault(fault_type="gpu.ecc.row_remap_pending")
    refuse(site, incident)

    pass_time(site, HOUR)

    assert asked(incident) == ""


def test_a_person_is_asked_once_for_one_reason_however_often_its_numbers_change() -> None:
    site = Site()
    incident = site.lose_gpu()
    refuse(site, incident)
    pass_time(site, TEN)
    for number in range(3):
        refuse(site, incident, Refusal.CAP, f"{number} of 20 nodes are out")
        pass_time(site, HOUR)
    assert len(lines(incident)) == 1

    refuse(site, incident, Refusal.RATE, "10 nodes were taken out within the last hour")
    pass_time(site, SECOND)

    assert len(lines(incident)) == 2
    assert asked(incident).startswith("Too many nodes were taken out")


def test_what_was_asked_is_taken_back_when_the_run_goes_on() -> None:
    site = Site()
    incident = site.lose_gpu()
    run = site.play(site.begin(incident), until=lambda run: run.plan[run.step]["step"] == "reboot")
    services.stop("power works in row 3", actor="alice", now=site.now)
    run = site.advance(run)
    assert run.facts["refused"] == Refusal.STOPPED
    pass_time(site, TEN)
    assert asked(incident) == "The stop switch is engaged: release it, or look after gn001 by hand."

    services.release(actor="alice", now=site.now)
    site.advance(run)
    pass_time(site, SECOND)

    assert asked(incident) == ""
    assert (
        lines(incident)[-1]
        == f"What was asked is taken back: run {run.pk} goes on, or a person has it."
    )


def test_a_reason_that_comes_again_is_asked_for_again_without_a_line() -> None:
    site = Site()
    incident = spring_leak(site)
    pass_time(site, TEN)
    ask = asked(incident)
    Node.objects.filter(name="gn001").update(is_provisional=True)
    pass_time(site, SECOND)
    assert asked(incident) != ask

    Node.objects.filter(name="gn001").update(is_provisional=False)
    pass_time(site, SECOND)

    assert asked(incident) == ask
    assert len([line for line in lines(incident) if line.endswith(ask)]) == 1


def test_a_run_that_has_just_ended_a_step_has_ten_minutes_from_then() -> None:
    """The second fault after a reboot: drained, confirmed, and not rebooted again within 24 h."""
    site = Site()
    first = site.lose_gpu()
    assert site.play(site.begin(first)).state == RunState.SUCCEEDED
    second = site.raise_fault(fault_type="gpu.xid.119", resource=site.gpu("gn001", 3))
    site.nodes.inject("gsp_timeout", "gn001/gpu/3")
    run = site.begin(second)
    site.play(run, until=lambda run: run.facts.get("refused") == Refusal.REBOOTED_LATELY)
    refused_at = site.now

    pass_time(site, TEN - SECOND)
    assert asked(second) == ""
    pass_time(site, 2 * SECOND)

    assert site.now < refused_at + TEN + MINUTE
    assert asked(second).startswith(
        "gn001 was restarted within 24 h and is drained: restart it by hand if that is"
    )
    assert "a node is rebooted once in 24 h" in lines(second)[0]


def test_the_breaker_asks_at_once_and_what_it_holds_after_ten_minutes_in_the_thread_alone() -> None:
    site = Site(nodes=50)
    lost = [site.lose_gpu(name) for name in site.names[:6]]
    site.start()
    for incident in lost:
        site.advance(site.run_of(incident))
    incidents.ingest(
        services.evaluate_breaker(site.now, bounds=site.world.policy.bounds), now=site.now
    )
    tripped = Incident.objects.get(fault_type=breaker.FAULT_TYPE)

    pass_time(site, SECOND)
    assert asked(tripped).startswith(
        "Find out why so many nodes turned bad at once, then close the breaker"
    )
    assert {asked(incident) for incident in lost} == {""}

    pass_time(site, TEN)
    assert (
        asked(lost[5])
        == "The breaker is open: close it once its cause is known, or look after gn006 by hand."
    )
    loud = {
        row.entry.incident_id
        for row in Notification.objects.filter(reason=standstill.ASKED)
        if row.entry
    }
    assert loud == {tripped.pk}
    assert {ask.about for ask in console.get_waiting_items()} == {
        str(incident) for incident in (*lost, tripped)
    }

    services.close_breaker("leaf-03 was at fault", actor="alice", now=site.now)
    incidents.ingest(
        services.evaluate_breaker(site.now, bounds=site.world.policy.bounds), now=site.now
    )
    pass_time(site, SECOND)
    assert asked(tripped) == ""
    incidents.sweep(now=site.now)
    tripped.refresh_from_db()
    assert tripped.state == "monitoring"


def test_a_person_is_asked_when_no_runbook_is_for_the_fault() -> None:
    site = Site()
    incident = spring_leak(site)
    site.start()

    pass_time(site, TEN - MINUTE)
    assert asked(incident) == ""
    pass_time(site, 2 * MINUTE)

    assert asked(incident) == (
        "Look after gn001 by hand: no runbook is for facility.leak with action class watch, of class facility."
    )
    assert [ask.text for ask in console.get_waiting_items()] == [asked(incident)]


def test_a_person_is_asked_when_the_node_is_not_in_the_inventory_until_it_is() -> None:
    site = Site()
    Node.objects.filter(name="gn001").update(is_provisional=True)
    incident = site.lose_gpu()

    pass_time(site, TEN)
    assert asked(incident) == (
        "gn001 is not in the inventory, and nothing is done to it: add it, or look after it by hand."
    )

    Node.objects.filter(name="gn001").update(is_provisional=False)
    pass_time(site, SECOND)
    assert asked(incident) == ""


def test_a_person_is_asked_when_every_runbook_for_the_fault_is_off() -> None:
    site = Site()
    for name in services.get_runbook_titles():
        site.set_mode(Mode.OFF, name)
    site.set_mode(Mode.ARMED, "switch_watch")
    incident = site.lose_gpu()

    pass_time(site, TEN)

    assert "no mode but off among those that would answer" in asked(incident)


def test_nobody_is_asked_for_what_shadow_wrote_down_while_nothing_may_act() -> None:
    site = Site(mode=Mode.SHADOW)
    incident = site.lose_gpu()
    site.advance(site.begin(incident))

    pass_time(site, HOUR)

    assert Run.objects.get().state == RunState.SHADOWED
    assert asked(incident) == ""


def test_a_person_is_asked_for_what_shadow_wrote_down_where_other_runbooks_act() -> None:
    site = Site()
    site.set_mode(Mode.SHADOW, DRAIN_REBOOT_VERIFY)
    incident = site.lose_gpu()
    site.advance(site.begin(incident))

    pass_time(site, TEN + SECOND)

    assert (
        asked(incident)
        == "Its runbook may not act: let it go further, or look after gn001 by hand."
    )


def test_shadow_asks_for_what_a_person_would_be_asked_for_if_it_acted() -> None:
    site = Site(mode=Mode.SHADOW)
    incident = spring_leak(site)

    pass_time(site, TEN)

    assert asked(incident).startswith("Look after gn001 by hand: no runbook is for facility.leak")


def test_a_person_who_has_taken_it_is_not_asked_for_it() -> None:
    site = Site()
    incident = spring_leak(site)
    pass_time(site, TEN)
    assert asked(incident)

    incidents.act(incident.pk, Trigger.ACKNOWLEDGE, actor="alice", now=site.now)
    pass_time(site, SECOND)

    assert asked(incident) == ""
    assert lines(incident)[-1] == "What was asked is taken back: a person has it."


def test_a_person_who_has_taken_it_is_asked_when_the_repair_that_they_rely_on_is_refused() -> None:
    site = Site()
    incident = site.lose_gpu()
    refuse(site, incident)
    incidents.act(incident.pk, Trigger.ACKNOWLEDGE, actor="alice", now=site.now)

    pass_time(site, TEN)

    assert asked(incident)


@pytest.mark.parametrize("kind", [WindowKind.SILENCE, WindowKind.MAINTENANCE])
def test_nobody_is_asked_for_what_a_window_keeps_from_people(kind: WindowKind) -> None:
    site = Site()
    where = {"machines": planning.parse_machines("gn001", planning.get_known_names())}
    if kind is WindowKind.SILENCE:
        where = {"resource": "node/gn001"}
    draft = Draft(kind, "tray out", site.now, site.now + 4 * HOUR, **where)
    assert isinstance(planning.plan(draft, author="bob", now=site.now), planning.PlannedWindow)
    incident = spring_leak(site)

    pass_time(site, HOUR)

    assert asked(incident) == ""


def test_nobody_is_asked_while_a_run_waits_for_jobs_an_approval_or_a_person() -> None:
    site = Site(mode=Mode.APPROVAL)
    site.slurm.add_job("17", nodes=["gn001"])
    incident = site.lose_gpu()
    run = site.advance(site.begin(incident))
    pass_time(site, HOUR)
    assert asked(incident).startswith(f"Approve or abort run {run.pk}")

    services.approve(run.pk, actor="alice", seen=approvals.get_fingerprint(run), now=site.now)
    site.play(run, until=lambda run: "still on gn001" in run.waiting_for)
    pass_time(site, HOUR)
    assert asked(incident) == ""

    services.pause(run.pk, actor="alice", now=site.now)
    pass_time(site, HOUR)
    assert lines(incident) == []


def test_a_person_is_asked_while_slurm_does_not_answer_and_no_longer_when_it_does() -> None:
    site = Site()
    incident = site.lose_gpu()
    run = site.begin(incident)
    site.slurm.is_answering = False
    site.play(run, limit=11 * MINUTE)
    pass_time(site, SECOND)
    assert (
        asked(incident)
        == "See what keeps Kintsugi from acting on gn001, or look after gn001 by hand."
    )

    site.slurm.is_answering = True
    site.play(run, until=lambda run: run.step > 1)
    pass_time(site, SECOND)
    assert asked(incident) == ""


def test_a_person_is_asked_for_the_fault_whose_node_waits_for_the_run_of_another_incident() -> None:
    site = Site()
    minor = site.raise_fault(fault_type="gpu.ecc.row_remap_pending", resource=site.gpu("gn001", 5))
    run = refuse(site, minor)
    critical = spring_leak(site)

    pass_time(site, TEN)

    assert asked(minor) == ""
    assert asked(critical)
    assert lines(critical)[0].startswith(
        f"Nothing has moved since 03:00:00 UTC (10 min): Run {run.pk} for incident #{minor.pk} goes first. "
    )


def test_what_was_asked_ends_with_the_fault() -> None:
    site = Site()
    incident = spring_leak(site)
    pass_time(site, TEN)
    Fault.objects.filter(membership__incident=incident).update(is_active=False, cleared_at=site.now)

    pass_time(site, SECOND)
    incidents.sweep(now=site.now)

    assert asked(incident) == ""
    assert incident.state == "monitoring"


def test_what_somebody_else_asks_is_left_as_it_is() -> None:
    site = Site()
    incident = spring_leak(site)
    incidents.record(
        incident.pk, kind="run_note", text="Odd.", now=site.now, needs_human="Look at its console."
    )

    pass_time(site, HOUR)

    assert (asked(incident), lines(incident)) == ("Look at its console.", [])
