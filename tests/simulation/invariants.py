"""What must hold in every play, each a function of its own that raises Broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.db.models import Sum

from detectors.catalog import catalog
from detectors.faults import Fitness
from incidents.models import Fault, Incident, Quarantine, QuarantinedEvent, TimelineEntry
from incidents.notify.notifier import Card
from incidents.reserve import decommissions
from incidents.vocabulary.lifecycle import OPEN, State
from runbooks.models import UNFINISHED, Mode, Run, RunState
from runbooks.node.drains import RESUMED_AT
from runbooks.node.holding import LOST_AT
from runbooks.slurm.protocol import format_state
from tests.simulation.armings import ACTING, get_strictest
from tests.simulation.record import Act, Broken, TurnView
from tests.simulation.site_events import LOST

if TYPE_CHECKING:
    from tests.simulation.play import Play

# A person's word that is written over in the one moment that no look can close stands again by then:
# two turns, and the lease of a worker that died over each.
PUT_BACK_IN = timedelta(seconds=40)
# Acceptance of this project: no critical fault is kept from people for longer.
TOLD_WITHIN = timedelta(minutes=10)
# Rows follow Slurm by the next turn of the run: five minutes at most, and the lease of a dead worker.
AGREES_WITHIN = timedelta(minutes=6)
WITHDRAWN_WITHIN = timedelta(minutes=2)
_LEFT_FOR = re.compile(r"stays drained for incident #(\d+)")


# Of each act of the product
# -------------------------------------------------------------------------------------------------


def no_word_is_overwritten(play: Play, act: Act) -> None:
    word = play.record.get_word(act.node)
    if word is None or not word.stands_in(act.before):
        return
    if word.is_hidden:
        raise Broken(f"{act.verb} of {act.node}, which is still a person's: {word.text!r}")
    if word.stands_in(act.after):
        return
    if not act.is_raced:
        raise Broken(f"{word.text!r} is overwritten: {format_state(act.after)}")
    play.record.overwritten_at.setdefault(act.node, act.at)


def no_node_is_rebooted_under_a_word(play: Play, act: Act) -> None:
    if act.verb not in ("reboot", "power_off"):
        return
    word = play.record.get_word(act.node)
    is_overwritten = act.node in play.record.overwritten_at
    if word is not None and (is_overwritten or word.stands_in(act.before)):
        raise Broken(f"{act.verb} of {act.node}, and a person said {word.text!r}")


def no_node_in_service_loses_its_power(play: Play, act: Act) -> None:
    if act.verb == "power_off" and "DRAIN" not in act.before.flags:
        raise Broken(f"{act.node} is switched off: {format_state(act.before)}")


def no_power_is_cut_without_leave(play: Play, act: Act) -> None:
    """Whatever the mode: the runbook asks a person each time, or a person has asked for the run."""
    if act.verb != "power_off" or act.view is None:
        return
    if act.view.run_id not in play.record.granted:
        raise Broken(f"{act.node} is switched off, and nobody has approved run {act.view.run_id}")


def no_power_is_cut_by_one_person(play: Play, act: Act) -> None:
    """Where the site wants two."""
    if act.verb != "power_off" or act.view is None or not play.wants_two_persons:
        return
    approvers = play.record.approvers.get((act.view.run_id, act.view.step), set())
    if len(approvers) < 2:
        raise Broken(f"{act.node} is switched off by leave of {sorted(approvers)} alone")


def no_persons_reboot_is_cancelled(play: Play, act: Act) -> None:
    is_awaited = act.node in play.record.awaited_boots and act.before.is_rebooting
    if is_awaited and not act.after.is_rebooting:
        raise Broken(f"a person's reboot of {act.node} is cancelled by {act.verb}")


def no_resumed_node_is_taken_again(play: Play, act: Act) -> None:
    """Words of others that look like ours may be put back: whether they were taken away before our
    drain is not to be told where both came within the seconds by which clocks may differ."""
    taken_before = play.record.resumed.get(act.node, set())
    is_put_back = act.reason.endswith("put back by Kintsugi)")
    if act.verb == "drain" and not is_put_back and _get_tag(act.reason) in taken_before:
        raise Broken(f"a person resumed {act.node}, and the same run drains it again")


def no_cause_has_two_reboots(play: Play, act: Act) -> None:
    if act.verb == "reboot" and play.record.list_reboots(act.node):
        raise Broken(f"a second reboot of {act.node}")


def no_healthy_node_is_rebooted(play: Play, act: Act) -> None:
    if act.verb == "reboot" and act.node not in play.record.sick:
        raise Broken(f"{act.node} was never ill, and is rebooted")


def no_ill_node_is_given_to_jobs(play: Play, act: Act) -> None:
    if act.verb != "resume" or act.view is None:
        return
    reboots = play.record.list_reboots(act.node)
    is_of_this_run = any(old.view and old.view.run_id == act.view.run_id for old in reboots)
    if is_of_this_run and act.node in act.view.ill and play.is_ill(act.node):
        raise Broken(f"{act.node} was rebooted, is ill all the same, and is given to jobs")


def no_act_passes_the_stop_switch(play: Play, act: Act) -> None:
    if _is_disruptive(play, act) and _stood(play, act) and play.record.is_stopped:
        raise Broken(f"{act.verb} of {act.node} while everything is stopped")


def no_act_passes_the_mode(play: Play, act: Act) -> None:
    """The runbook's own, or that of the arming that covers it there."""
    if not (_is_disruptive(play, act) and _stood(play, act)):
        return
    if not play.record.list_modes(act) & set(ACTING):
        raise Broken(f"{act.verb} of {act.node} though the runbook may not act there")


def no_act_is_made_without_leave(play: Play, act: Act) -> None:
    if not (_is_disruptive(play, act) and _stood(play, act) and act.view is not None):
        return
    is_armed = Mode.ARMED in play.record.list_modes(act)
    if not is_armed and act.view.run_id not in play.record.granted:
        raise Broken(f"{act.verb} of {act.node}, and nobody has approved run {act.view.run_id}")


def nothing_is_done_to_another_node(play: Play, act: Act) -> None:
    """A run acts on its own: not on the spare that stands in for it, nor on what a transceiver
    carries beside it."""
    if act.view is not None and act.node != act.view.node:
        raise Broken(f"{act.verb} of {act.node} by run {act.view.run_id} for {act.view.node}")


def nothing_is_given_back_that_is_set_aside(play: Play, act: Act) -> None:
    """Unless a person has begun the run."""
    if act.verb != "resume" or act.view is None or act.view.run_id in play.record.started_runs:
        return
    if act.node in act.view.aside & play.reserve.get_aside():
        raise Broken(f"resume of {act.node}, which is set aside as a lemon")


def no_arming_lets_more_runs_act_than_it_is_for(play: Play, act: Act) -> None:
    """Of runs that nothing else lets take a node out."""
    view, record = act.view, play.record
    if act.verb != "drain" or view is None or not _is_new(play, act) or not _stood(play, act):
        return
    covering = [
        terms for terms in record.armings if terms.covers(view.runbook, act.node, view.begun_at)
    ]
    limited = [terms for terms in covering if terms.runs is not None]
    others = [terms for terms in covering if terms.runs is None]
    if get_strictest(record.get_mode(view.runbook), others) in ACTING or len(limited) != 1:
        return
    (terms,) = limited
    terms.acted.add(view.run_id)
    if terms.runs is not None and len(terms.acted) > terms.runs:
        raise Broken(f"arming {terms.number} is for {terms.runs} runs: {sorted(terms.acted)} act")


def nothing_is_given_back_where_people_say_so(play: Play, act: Act) -> None:
    if act.verb == "resume" and _stood(play, act) and play.record.keeps_out:
        raise Broken(f"resume of {act.node}, and nothing is to be given back")


def no_run_comes_after_one_that_a_person_ended(play: Play, act: Act) -> None:
    if act.verb != "drain" or act.view is None or not _is_new(play, act):
        return
    is_ended = act.view.incident_id in play.record.aborted
    if is_ended and act.view.run_id not in play.record.aborted_runs:
        raise Broken(f"{act.node} is drained anew for #{act.view.incident_id}, which was ended")


def no_worker_acts_whose_run_another_has(play: Play, act: Act) -> None:
    if act.view is None:
        return
    fence = Run.objects.values_list("fence", flat=True).get(pk=act.view.run_id)
    if fence != act.view.fence:
        raise Broken(
            f"{act.verb} of {act.node} by a worker whose run {act.view.run_id} is another's"
        )


def no_run_acts_that_is_paused(play: Play, act: Act) -> None:
    """But for what its act before that owes people."""
    if act.view is None or act.view.run_id not in play.record.paused or not _stood(play, act):
        return
    if act.verb == "resume" or _is_disruptive(play, act):
        raise Broken(f"{act.verb} of {act.node} by run {act.view.run_id}, which is paused")


def no_drain_passes_the_breaker(play: Play, act: Act) -> None:
    if act.verb != "drain" or not _is_new(play, act) or not _stood(play, act):
        return
    if act.view is not None and act.view.is_breaker_open:
        raise Broken(f"{act.node} is drained, and the breaker is open")


def nothing_is_done_to_what_is_taken_away(play: Play, act: Act) -> None:
    if _is_disruptive(play, act) and _stood(play, act) and act.node in play.record.decommissioned:
        raise Broken(f"{act.verb} of {act.node}, which is being decommissioned")


def nothing_is_done_where_the_nodes_root_refuses(play: Play, act: Act) -> None:
    if not _is_disruptive(play, act) or not _stood(play, act):
        return
    is_asked = play.site.nodes.nodes[act.node].is_up and act.node not in play.site.shell.silent
    if is_asked and act.node in play.record.refusing:
        raise Broken(f"{act.verb} of {act.node}, whose root refuses")


def no_act_is_made_under_maintenance(play: Play, act: Act) -> None:
    if not _stood(play, act) or act.node not in play.record.maintained:
        return
    if act.verb == "resume" or _is_disruptive(play, act):
        raise Broken(f"{act.verb} of {act.node} while people work on it")


def no_limit_is_exceeded(play: Play, act: Act) -> None:
    """Cap of the partition, floors of pod and jobs: of what takes a node from jobs."""
    view, record = act.view, play.record
    if act.verb != "drain" or view is None or act.before.is_out or not _is_new(play, act):
        return
    row = catalog.load()[view.fault_type]
    if _is_of_no_use(play, act.node, row.fitness):
        return
    out = (view.out & play.get_out() | view.claimed & play.get_claimed(view.run_id)) - {act.node}
    in_pod = [node for node in out if play.pods[node] == play.pods[act.node]]
    if len(in_pod) >= play.pod_spares:
        raise Broken(f"{act.node} is drained beyond its pod's floor: {in_pod} are out")
    members = view.in_partition & play.reserve.get_in_partition()
    if act.node not in members:
        return  # a spare that no job may have
    if len(out & members) >= play.cap:
        raise Broken(f"{act.node} is drained beyond the cap: {sorted(out)} are out")
    # Whoever goes out or comes back while the turn is under way changes what a job can have.
    out_now = play.get_out() | play.get_claimed(view.run_id)
    serving_then = len(members - ((view.out | view.claimed) - {act.node}))
    serving_now = len(members - (out_now - {act.node}))
    is_light = row.fitness is not Fitness.UNFIT  # a job that waits is not helped by such a node
    is_short = serving_then == view.needed and serving_now == record.needed
    if is_light and is_short and view.queued == record.queued:
        raise Broken(f"{act.node} is drained, and a job needs {view.needed} of them")


def no_fault_type_takes_too_many_nodes(play: Play, act: Act) -> None:
    view = act.view
    if act.verb != "drain" or view is None or not _is_new(play, act) or act.before.is_out:
        return
    row = catalog.load()[view.fault_type]
    if _is_of_no_use(play, act.node, row.fitness):
        return
    taken = {
        other.node
        for other in play.record.acts
        if other.verb == "drain" and _is_first_of_run(play, other, view.fault_type)
    }
    if len(taken - {act.node}) >= play.per_hour:
        raise Broken(f"{view.fault_type} takes {act.node} after {sorted(taken)} within the hour")


def _is_of_no_use(play: Play, node: str, fitness: Fitness) -> bool:
    """It serves no job as it is, by the fault that is acted on or by a lost GPU beside it: no limit
    on number holds it."""
    is_lost = play.site.gpu(node) in play.record.told_critical and play.is_ill(node)
    return is_lost or (fitness is Fitness.UNFIT and node in play.record.sick)


def _is_first_of_run(play: Play, act: Act, fault_type: str) -> bool:
    return act.view is not None and act.view.fault_type == fault_type and not act.before.is_out


def _get_tag(reason: str) -> str:
    return reason.partition(" ")[0]


def _stood(play: Play, act: Act) -> bool:
    """What people allow has stood since the turn began: the product could know."""
    return act.view is not None and act.view.changes == play.record.changes


def _is_new(play: Play, act: Act) -> bool:
    """Neither a person's word put back, nor what Slurm had dropped of ours drained again."""
    is_put_back = act.reason.endswith("put back by Kintsugi)")
    if not act.reason.startswith("kintsugi:") or is_put_back:
        return False
    return act.reason not in play.record.own_reasons


def _is_disruptive(play: Play, act: Act) -> bool:
    is_restart = act.verb in ("reboot", "power_off")
    return is_restart or (act.verb == "drain" and _is_new(play, act))


OF_ACTS: tuple[Callable[[Play, Act], None], ...] = (
    no_word_is_overwritten,
    no_node_is_rebooted_under_a_word,
    no_node_in_service_loses_its_power,
    no_power_is_cut_without_leave,
    no_power_is_cut_by_one_person,
    no_persons_reboot_is_cancelled,
    no_resumed_node_is_taken_again,
    no_cause_has_two_reboots,
    no_healthy_node_is_rebooted,
    no_ill_node_is_given_to_jobs,
    no_act_passes_the_stop_switch,
    no_act_passes_the_mode,
    no_act_is_made_without_leave,
    no_arming_lets_more_runs_act_than_it_is_for,
    nothing_is_done_to_another_node,
    nothing_is_given_back_that_is_set_aside,
    nothing_is_given_back_where_people_say_so,
    no_run_comes_after_one_that_a_person_ended,
    no_worker_acts_whose_run_another_has,
    no_run_acts_that_is_paused,
    no_drain_passes_the_breaker,
    nothing_is_done_to_what_is_taken_away,
    nothing_is_done_where_the_nodes_root_refuses,
    no_act_is_made_under_maintenance,
    no_limit_is_exceeded,
    no_fault_type_takes_too_many_nodes,
)


# Of each command that a step starts on a node
# -------------------------------------------------------------------------------------------------


def nothing_is_started_under_a_word(play: Play) -> None:
    """That was said before the step was about to act."""
    view = play.get_view()
    word = play.record.get_word(view.node)
    attempted_at = play.record.attempted_at.get(view.run_id)
    if word is None or attempted_at is None or word.said_at > attempted_at:
        return
    if word.stands_in(play.look(view.node)):
        raise Broken(f"{view.step} acts on {view.node}, and a person said {word.text!r}")


OF_COMMANDS: tuple[Callable[[Play], None], ...] = (nothing_is_started_under_a_word,)


# Of each spare that is about to stand in for a node, or to be kept free again
# -------------------------------------------------------------------------------------------------


def a_spare_stands_in_for_one_node(play: Play, spare: str) -> None:
    view, stands_for = play.get_view(), play.record.stand_ins.get(spare)
    if stands_for not in (None, view.node):
        raise Broken(f"{spare} stands in for {stands_for}, and now for {view.node} too")
    play.record.stand_ins[spare] = view.node


def a_spare_that_stands_in_serves(play: Play, spare: str) -> None:
    """It took jobs when the turn began, or takes them now."""
    if spare in play.get_view().out & play.get_out():
        raise Broken(f"{spare} is brought in, and is out: {format_state(play.look(spare))}")


def no_spare_is_brought_in_that_is_set_aside(play: Play, spare: str) -> None:
    view, record = play.get_view(), play.record
    is_leaving = spare in record.decommissioned and view.changes == record.changes
    if is_leaving or spare in view.aside & play.reserve.get_aside():
        raise Broken(f"{spare} is brought in, and is set aside or taken away for good")


def no_spare_is_moved_whose_root_refuses(play: Play, spare: str) -> None:
    is_asked = play.site.nodes.nodes[spare].is_up and spare not in play.site.shell.silent
    has_stood = play.get_view().changes == play.record.changes
    if is_asked and has_stood and spare in play.record.refusing:
        raise Broken(f"{spare} is brought in or taken out, and its root refuses")


def a_spare_is_taken_back_by_whom_it_serves(play: Play, spare: str) -> None:
    """Or by a person."""
    stands_for = play.record.stand_ins.pop(spare, None)
    if play.has_view() and stands_for != play.get_view().node:
        raise Broken(
            f"{spare} stands in for {stands_for}, and {play.get_view().node} takes it back"
        )


OF_SPARES_IN: tuple[Callable[[Play, str], None], ...] = (
    a_spare_stands_in_for_one_node,
    a_spare_that_stands_in_serves,
    no_spare_is_brought_in_that_is_set_aside,
    no_spare_is_moved_whose_root_refuses,
)


# After each turn
# -------------------------------------------------------------------------------------------------


def no_transceiver_is_pulled_under_a_job(play: Play, view: TurnView, run: Run) -> None:
    """Hands are asked for once none of the nodes that it carries runs a job."""
    if view.step != "wait_for_neighbours" or run.step == 0:
        return
    running = view.busy & play.get_jobs_on_transceiver()
    if running:
        raise Broken(f"a transceiver may be pulled, and jobs {sorted(running)} run on it")


OF_TURNS: tuple[Callable[[Play, TurnView, Run], None], ...] = (
    no_transceiver_is_pulled_under_a_job,
)


# After each step
# -------------------------------------------------------------------------------------------------


def overwritten_words_are_put_back(play: Play) -> None:
    for node, since in list(play.record.overwritten_at.items()):
        word = play.record.get_word(node)
        if word is None or word.stands_in(play.look(node)):
            del play.record.overwritten_at[node]
        elif play.site.now - since > PUT_BACK_IN:
            raise Broken(f"{word.text!r} is not put back: {format_state(play.look(node))}")


def no_reboot_of_ours_outlasts_a_persons_resume(play: Play) -> None:
    for node, at in play.record.resumed_at.items():
        asked_at = play.record.ours_asked.get(node)
        if asked_at is None or asked_at > at or play.site.now - at < WITHDRAWN_WITHIN:
            continue
        state = play.look(node)
        is_out = state.is_draining or state.is_failing  # of these the words would go with it
        asked_since = play.record.persons_reboots.get(node, at) > at
        # Of a node that went down since, nothing tells whose reboot it is: people are told of it.
        has_booted = state.boot_time is not None and state.boot_time > at
        is_unclear = state.base == "DOWN" or has_booted
        is_theirs = node in play.record.awaited_boots or asked_since or is_out or is_unclear
        if "REBOOT_REQUESTED" in state.flags and not is_theirs:
            raise Broken(f"{node} was resumed by a person, and our reboot of it still stands")


AFTER_STEPS: tuple[Callable[[Play], None], ...] = (
    overwritten_words_are_put_back,
    no_reboot_of_ours_outlasts_a_persons_resume,
)


# At each beat: these ask the database
# -------------------------------------------------------------------------------------------------


def nothing_breaks(play: Play) -> None:
    """No event is put aside, and no step of a run is broken off by an error of Kintsugi's own."""
    for event in QuarantinedEvent.objects.all():
        raise Broken(f"an event is put aside: {event.error[:200]}")
    broken = TimelineEntry.objects.filter(text__contains="The step was broken off").first()
    if broken is not None:
        raise Broken(broken.text)


def events_are_counted_once(play: Play) -> None:
    rows = Fault.objects.values("fault_type", "resource").annotate(total=Sum("count"))
    counted = {(row["fault_type"], row["resource"]): row["total"] for row in rows}
    for place, told in play.record.events.items():
        if counted.get(place, 0) > told:
            raise Broken(f"{place} was told {told} times and is counted {counted[place]} times")
        if not counted.get(place):
            raise Broken(f"{place} was told and is not counted")


def critical_faults_are_told(play: Play) -> None:
    told = {message.key.incident for message in play.notifier.messages}
    for resource, since in play.record.told_critical.items():
        if play.site.now - since < TOLD_WITHIN:
            continue
        # One that a maintenance has kept from people is told once that is over.
        incidents = Incident.objects.filter(
            members__fault__resource=resource, members__fault__is_active=True, silence=None
        ).exclude(announced_at__gt=play.site.now - TOLD_WITHIN)
        for number in incidents.values_list("pk", flat=True):
            if number not in told:
                raise Broken(f"incident #{number} on {resource} was told to nobody")


def no_critical_fault_is_left_to_nobody(play: Play) -> None:
    """A run works on it, a person is asked or has ended its run, or Kintsugi may not act. Whoever
    takes a node away for good, or works on it, has been told that nothing is started on it."""
    alone = set()
    leaving = decommissions.get_decommissions()
    for incident in Incident.objects.filter(severity="critical", state=State.OPEN, needs_human=""):
        name = incident.node.name if incident.node is not None else ""
        is_theirs_now = name in leaving or name in play.record.maintained
        is_kept = (
            incident.silence_id is not None
            or is_theirs_now
            or not play.record.may_act(play.site.now)
        )
        is_run = Run.objects.filter(incident=incident, state__in=UNFINISHED).exists()
        is_busy = Run.objects.filter(node=incident.node, state__in=UNFINISHED).exists()
        is_active = Fault.objects.active().filter(membership__incident=incident).exists()
        is_theirs = incident.pk in play.record.aborted | play.record.given_up
        if is_active and not (is_kept or is_run or is_busy or is_theirs):
            alone.add(incident.pk)
    play.record.alone_since = {
        number: play.record.alone_since.get(number, play.site.now) for number in alone
    }
    for number, since in play.record.alone_since.items():
        if play.site.now - since >= TOLD_WITHIN:
            raise Broken(
                f"incident #{number}: nothing is done and nobody is asked since {since:%T}"
            )


def no_run_is_begun_after_one_that_a_person_ended(play: Play) -> None:
    """Unless a person has started one since."""
    by_people = play.record.aborted_runs | play.record.started_runs
    last = dict(
        Run.objects.filter(pk__in=by_people).order_by("pk").values_list("incident_id", "pk")
    )
    later = Run.objects.filter(incident_id__in=last).exclude(pk__in=by_people)
    for number, incident in later.values_list("pk", "incident_id"):
        if number > last[incident] and last[incident] in play.record.aborted_runs:
            raise Broken(f"run {number} for #{incident}, whose run {last[incident]} was aborted")


def whoever_resumes_an_ill_node_is_told(play: Play) -> None:
    """Of a lost GPU that polls see there after a person has ended the last run of its incident so: a
    later one says itself how it ends."""
    untold = set()
    ended = Run.objects.exclude(state__in=UNFINISHED).filter(node__isnull=False)
    for run in ended.select_related("incident", "node"):
        resumed_at, gpu = run.facts.get(RESUMED_AT), play.site.gpu(run.place)
        polled_at = play.record.polled_at.get(gpu)
        is_taken = Run.objects.filter(node=run.node, state__in=UNFINISHED).exists()
        if resumed_at is None or polled_at is None or is_taken or play.look(run.place).is_out:
            continue
        later = Run.objects.filter(incident=run.incident, pk__gt=run.pk)
        is_gone_on_with = later.exclude(state=RunState.SHADOWED).exists()
        members = Fault.objects.active().filter(membership__incident=run.incident)
        if is_gone_on_with or not members.filter(resource=gpu, fault_type=LOST).exists():
            continue
        is_seen_since = polled_at > datetime.fromisoformat(resumed_at)
        is_told = run.incident.timeline.filter(kind="still_standing").exists()
        if is_seen_since and State(run.incident.state) in OPEN and not is_told:
            untold.add(run.pk)
    since = {number: play.record.untold_since.get(number, play.site.now) for number in untold}
    play.record.untold_since = since
    for number, at in since.items():
        if play.site.now - at > AGREES_WITHIN:
            raise Broken(f"run {number}: a person resumed its node, which is ill; nobody is told")


def incident_and_slurm_agree(play: Play) -> None:
    """A node that a run of ours holds: out in Slurm and out by its incident, or neither. Of one that
    is paused nothing is looked after before a person lets it go on, and where slurmctld may have
    lost its state a person is asked first."""
    apart = {}
    holding = Run.objects.filter(state__in=UNFINISHED, node__isnull=False)
    holding = holding.exclude(state=RunState.PAUSED)
    holding = holding.exclude(facts__has_key=LOST_AT)
    for run in holding.select_related("incident", "node"):
        node = run.place
        state = play.look(node)
        says_out = run.incident.out_of_service_at is not None and run.incident.restored_at is None
        is_held = bool(run.facts.get("drained_at")) and run.step > 0
        if is_held and not (says_out and state.is_out):
            apart[node] = f"#{run.incident_id} says out: {says_out}, Slurm: {format_state(state)}"
    since = {node: play.record.apart_since.get(node, play.site.now) for node in apart}
    play.record.apart_since = since
    for node, at in since.items():
        if play.site.now - at > AGREES_WITHIN:
            raise Broken(f"{node} since {at:%T}: {apart[node]}")


def nothing_is_begun_on_what_is_set_aside(play: Play) -> None:
    """But by a person."""
    for row in Quarantine.objects.filter(ended_at=None).select_related("node"):
        begun = Run.objects.filter(node=row.node, started_at__gt=row.began_at)
        by_itself = begun.exclude(pk__in=play.record.started_runs).first()
        if by_itself is not None:
            raise Broken(f"run {by_itself.pk} is begun on {row.node.name}, which is set aside")


def drains_that_slurm_dropped_are_put_back(play: Play) -> None:
    """slurmctld 22.05 takes the drain of a node away whose boot it has given up on."""
    dropped = set()
    for run in Run.objects.filter(incident__state__in=OPEN, node__isnull=False):
        state, node = play.look(run.place), run.place
        is_ours = state.reason.startswith(run.facts.get("reason", "-"))
        is_given_up = state.base == "DOWN" and state.reason.endswith("reboot timed out")
        is_theirs = node in play.record.resumed_at or run.incident_id in play.record.aborted
        is_theirs = is_theirs or run.state == RunState.PAUSED
        may_drain = play.record.may_act(play.site.now) and not play.record.is_stopped
        is_out = bool(state.flags & {"DRAIN", "FAIL"})
        if is_ours and is_given_up and may_drain and not (is_out or is_theirs):
            dropped.add(node)
    since = {node: play.record.dropped_since.get(node, play.site.now) for node in dropped}
    play.record.dropped_since = since
    for node, at in since.items():
        if play.site.now - at > AGREES_WITHIN:
            raise Broken(f"the drain of {node} is gone since {at:%T}, and is not put back")


AT_BEATS: tuple[Callable[[Play], None], ...] = (
    nothing_breaks,
    events_are_counted_once,
    critical_faults_are_told,
    no_critical_fault_is_left_to_nobody,
    no_run_is_begun_after_one_that_a_person_ended,
    whoever_resumes_an_ill_node_is_told,
    incident_and_slurm_agree,
    nothing_is_begun_on_what_is_set_aside,
    drains_that_slurm_dropped_are_put_back,
)


# At the end, when every message is sent
# -------------------------------------------------------------------------------------------------


def cards_say_what_the_incident_is(play: Play) -> None:
    shown: dict[int, Card] = {}
    for message in play.notifier.messages:
        if isinstance(message.content, Card):
            shown[message.content.incident] = message.content
    for incident in Incident.objects.filter(pk__in=list(shown), silence=None):
        card = shown[incident.pk]
        if card.state != incident.state:
            raise Broken(
                f"the card of #{incident.pk} says {card.state}, and it is {incident.state}"
            )


def our_drains_belong_to_incidents(play: Play) -> None:
    """A node that stands with a reason of ours has an incident of that number that is not over, or a
    timeline that says that it stays drained. Of one that is being taken away nobody asks."""
    leaving = decommissions.get_decommissions()
    for node in play.site.names:
        state = play.look(node)
        if not state.is_draining or state.reason not in play.record.own_reasons or node in leaving:
            continue
        number = int(state.reason.removeprefix("kintsugi:").partition("/")[0])
        incident = Incident.objects.get(pk=number)
        texts = " ".join(incident.timeline.values_list("text", flat=True))
        is_said = "stays drained" in texts or "aborted" in texts
        if State(incident.state) not in OPEN and not is_said and not play.has_work():
            raise Broken(f"{node} is drained for #{number}, which is {incident.state}")


def a_node_left_for_another_incident_is_not_forgotten(play: Play) -> None:
    """That one is open, somebody is asked, or the node is still looked at."""
    for node in play.site.names:
        state = play.look(node)
        if not state.is_draining or state.reason not in play.record.own_reasons or play.has_work():
            continue
        number = int(state.reason.removeprefix("kintsugi:").partition("/")[0])
        incident = Incident.objects.get(pk=number)
        texts = " ".join(incident.timeline.values_list("text", flat=True))
        left_for = [int(other) for other in _LEFT_FOR.findall(texts)]
        concerned = Incident.objects.filter(pk__in=[number, *left_for])
        is_asked = concerned.exclude(needs_human="").exists()
        is_open = concerned.filter(state__in=OPEN).exists()
        if left_for and not is_asked and not is_open:
            raise Broken(f"{node} was left drained for #{left_for}, and is forgotten")


AT_THE_END: tuple[Callable[[Play], None], ...] = (
    a_node_left_for_another_incident_is_not_forgotten,
    cards_say_what_the_incident_is,
    our_drains_belong_to_incidents,
)
