"""What administrators do in a play, with a shell and with Kintsugi's own commands."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from unittest.mock import patch

from incidents import services as incidents
from incidents.evaluation.windows import WindowKind
from incidents.maintenance import planning
from incidents.maintenance.planning import Draft
from incidents.models import Incident, Silence
from incidents.vocabulary.lifecycle import OPEN, Trigger
from runbooks import questions, services
from runbooks.engine import approvals
from runbooks.models import UNFINISHED, Mode, Question, Run, RunState, StepRun
from runbooks.node import drains
from runbooks.node.holding import SHOWN_AT
from runbooks.outcomes import Controlled, ControlRefused
from runbooks.people import decommission, leaving
from runbooks.slurm.protocol import NodeState, SlurmError
from tests.simulation.record import TakenBack, Word

if TYPE_CHECKING:
    from tests.simulation.play import Play

# Both have an account of the console.
ADMINISTRATORS = ("bob", "amy")
_LONGEST_REASON = 240
# How often somebody drains a node just as it is handed over or given back.
_RACES_LEAVE = 0.5
_OF_INCIDENTS = (
    *(Trigger.ACKNOWLEDGE, Trigger.MARK_FALSE_POSITIVE, Trigger.RESOLVE),
    *(Trigger.CONFIRM, Trigger.HANDED_TO_VENDOR),
)


class People:
    """Administrators with a shell, and with Kintsugi's own commands."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self._said = 0
        self._is_leaving = False
        self._clock = _Clock(play)

    def list_acts(self) -> dict[str, Callable[[], None]]:
        return {
            "drain": self.drain,
            "fail": self.fail,
            "append": self.append,
            "resume": self.resume,
            "undrain": self.undrain,
            "reboot": self.reboot,
            "stop": self.stop,
            "stop_file": self.write_stop_file,
            "mode": self.set_mode,
            "own_mode": self.set_own_mode,
            "approve": self.approve,
            "breaker": self.close_breaker,
            "decommission": self.decommission,
            "refuse": self.refuse,
            "maintain": self.maintain,
            "incident": self.handle_incident,
            "abort": self.abort_run,
            "pause": self.pause_run,
            "copy": self.copy_reason,
            "start": self.start_run,
            "leave": self.leave,
            "answer": self.answer,
        }

    def say(self, node: str, *, base: str = "") -> str:
        """A text that is no other's, and that the person means from now on."""
        self._said += 1
        text = f"hands inside, {self._said}"
        self.play.record.words[node] = Word(text, self.play.site.now)
        self.play.record.overwritten_at.pop(node, None)
        return f"{base} -- bob: {text}"[-_LONGEST_REASON:] if base else f"bob: {text}"

    def drain(self, node: str = "") -> None:
        play, node = self.play, node or self.play.choose_node()
        reason, user = self.say(node), play.dice.choice(("bob", "root"))
        play.site.slurm.human_drain(node, reason, user=user)
        play.note(user, f"scontrol update NodeName={node} State=DRAIN Reason={reason!r}", node)

    def bar(self, node: str, luck: random.Random) -> None:
        """It may not be used, by one of the ways to say so."""
        luck.choice((self.drain, self.refuse, self.decommission))(node)

    def fail(self) -> None:
        """With words of their own, or with the reason that stands there, which no text tells from
        ours."""
        play, node = self.play, self.play.choose_node()
        before, user = play.look(node).reason, "bob"
        if before and play.dice.random() < 0.4:
            reason, user = before, "root"
            play.record.words[node] = Word(reason, play.site.now, is_fail=True)
            play.record.overwritten_at.pop(node, None)
        else:
            reason = self.say(node)
        play.site.slurm.human_fail(node, reason, user=user)
        play.note(user, f"scontrol update NodeName={node} State=FAIL Reason={reason!r}", node)

    def append(self) -> None:
        """To what stands there: ours, mostly."""
        play, node = self.play, self.play.choose_node()
        before = play.look(node).reason
        if not play.look(node).is_draining:
            return
        reason = self.say(node, base=before)
        play.site.slurm.human_drain(node, reason, user=play.dice.choice(("bob", "root")))
        play.note("bob", f"appends to the reason of {node}: {reason!r}", node)

    def copy_reason(self) -> None:
        """A reason that looks like ours: of another installation, or copied from another node."""
        play, node = self.play, self.play.choose_node()
        number = play.dice.choice((1, 2, 90017))
        text = f"kintsugi:{number} gpu.xid.79: vendor case {number} open"
        play.record.words[node] = Word(text, play.site.now)
        play.record.overwritten_at.pop(node, None)
        play.site.slurm.human_drain(node, text, user="root")
        play.note("root", f"scontrol update NodeName={node} State=DRAIN Reason={text!r}", node)

    def resume(self, node: str = "") -> None:
        play, node = self.play, node or self.play.choose_node()
        state, record = play.look(node), play.record
        if not state.is_out:
            return
        record.resumed_at[node] = play.site.now
        record.words.pop(node, None)
        record.overwritten_at.pop(node, None)
        is_ours = "REBOOT_REQUESTED" in state.flags and node not in record.awaited_boots
        record.awaited_boots.pop(node, None)  # a resume cancels it, and it is theirs to cancel
        play.site.slurm.human_resume(node)
        left = play.look(node)
        if is_ours and left.reason == state.reason and node in record.ours_asked:
            record.taken_back[node] = TakenBack(play.site.now, left)
        self._note_resumed(state)
        play.note("bob", f"scontrol update NodeName={node} State=RESUME", node)

    def undrain(self) -> None:
        """Takes DRAIN alone away: a reboot that is asked for still stands."""
        play, node = self.play, self.play.choose_node()
        state, record = play.look(node), play.record
        if not state.is_draining or state.is_failing or node in record.overwritten_at:
            return
        record.resumed_at[node] = play.site.now
        record.words.pop(node, None)
        play.site.slurm.update(node, "UNDRAIN", "")
        self._note_resumed(state)
        play.note("bob", f"scontrol update NodeName={node} State=UNDRAIN", node)

    def _note_resumed(self, before: NodeState) -> None:
        """Under which reason of ours. Where no worker has lived to keep that it had drained the
        node, no accounts are kept and Slurm takes the reason away, nothing tells of the resume
        (docs/runbooks.md says so)."""
        play, node = self.play, before.name
        if not before.reason.startswith("kintsugi:"):
            return
        runs = Run.objects.filter(node__name=node).values_list("facts", flat=True)
        written = [row["reason"] for facts in runs for row in facts.get("written", ())]
        is_kept = any(before.reason.startswith(reason) for reason in written)
        is_left = play.look(node).reason == before.reason
        shown = [datetime.fromisoformat(facts[SHOWN_AT]) for facts in runs if SHOWN_AT in facts]
        restarted_at = play.record.restarted_at
        is_known = is_left or restarted_at is None or any(at > restarted_at for at in shown)
        if not is_known:
            return  # it may be slurmctld that has forgotten the drain
        if is_kept or is_left or play.site.slurm.keeps_accounts:
            play.record.resumed.setdefault(node, set()).add(before.reason.partition(" ")[0])

    def reboot(self) -> None:
        play, node = self.play, self.play.choose_node()
        if play.look(node).is_rebooting:
            return
        if not self._is_like_ours(node):
            play.record.awaited_boots[node] = play.site.nodes.nodes[node].boots
        play.record.persons_reboots[node] = play.site.now
        play.site.slurm.human_reboot(node)
        play.note("bob", f"scontrol reboot {node}", node)

    def _is_like_ours(self, node: str) -> bool:
        """Nothing tells the two apart (docs/runbooks.md says so): under our drain, where a worker has
        died asking for ours; in service, where a resume that no run has seen yet has taken ours back
        and left our reason, as after State=UNDRAIN alone (tests/runbooks/slurm/
        test_real_slurm_states.py has it of real ones)."""
        attempts = StepRun.objects.filter(name="reboot", outcome=StepRun.Outcome.ATTEMPTED)
        if attempts.filter(run__node__name=node, run__state__in=UNFINISHED).exists():
            return True
        record = self.play.record
        taken_back = record.taken_back.get(node)
        if taken_back is None or record.ours_asked[node] > taken_back.at:
            return False
        looking = Run.objects.filter(node__name=node, wake_at__isnull=False)
        is_seen = not looking.exclude(facts__has_key=drains.RESUMED_AT).exists()
        acts_since = [act for act in record.acts if act.node == node and act.at > taken_back.at]
        return not (is_seen or acts_since) and self.play.look(node) == taken_back.left

    def stop(self) -> None:
        play, record = self.play, self.play.record
        record.changes += 1
        if "switch" in record.stops:
            services.release(actor="bob", now=play.site.now)
            record.stops.discard("switch")
            record.keeps_out.discard("switch")
            play.note("bob", "kintsugi release")
            return
        gives_back = play.dice.random() < 0.7
        if not gives_back:
            held = Run.objects.filter(state__in=UNFINISHED, claimed_at__isnull=False)
            record.aborted.update(held.values_list("incident_id", flat=True))
            record.aborted_runs.update(held.values_list("pk", flat=True))
            record.keeps_out.add("switch")
        record.stops.add("switch")
        why = "looking at the cooling"
        services.stop(why, actor="bob", now=play.site.now, gives_back=gives_back)
        play.note("bob", f"kintsugi stop{'' if gives_back else ' --give-nothing-back'}")

    def write_stop_file(self) -> None:
        play, record = self.play, self.play.record
        record.changes += 1
        if "file" in record.stops:
            play.stop_file.unlink()
            record.stops.discard("file")
            record.keeps_out.discard("file")
            play.note("root", "removes the stop file")
            return
        word = play.dice.choice(("", "give-nothing-back"))
        play.stop_file.write_text(word)
        record.stops.add("file")
        if word:
            record.keeps_out.add("file")
        play.note("root", f"writes the stop file: {word!r}")

    def set_mode(self) -> None:
        play = self.play
        lower = play.dice.choice((Mode.OFF, Mode.SHADOW, Mode.APPROVAL, Mode.APPROVAL))
        mode = lower if play.record.mode is Mode.ARMED else Mode.ARMED
        for runbook in play.runbooks:
            play.site.set_mode(mode, runbook)
        play.record.mode = mode
        play.record.own_modes.clear()
        play.record.changes += 1
        play.note("bob", f"sets the runbooks to {mode}")

    def set_own_mode(self) -> None:
        """Of one runbook, whatever is under way by it."""
        play, record = self.play, self.play.record
        runbook = play.dice.choice(play.runbooks)
        is_armed = record.get_mode(runbook) is Mode.ARMED
        mode = play.dice.choice((Mode.OFF, Mode.SHADOW, Mode.APPROVAL)) if is_armed else Mode.ARMED
        play.site.set_mode(mode, runbook)
        record.own_modes[runbook] = mode
        record.changes += 1
        play.note("bob", f"sets {runbook} to {mode}")

    def approve(self) -> None:
        play = self.play
        run = Run.objects.filter(state=RunState.AWAITING_APPROVAL).order_by("pk").last()
        if run is None:
            return
        seen, actor = approvals.get_fingerprint(run), play.luck.choice(ADMINISTRATORS)
        step = run.plan[run.step]["step"]
        outcome = services.approve(run.pk, actor=actor, seen=seen, now=play.site.now)
        if isinstance(outcome, Controlled):
            play.record.granted.add(run.pk)
        if not isinstance(outcome, ControlRefused):
            play.record.approvers.setdefault((run.pk, step), set()).add(actor)
        play.note(actor, f"approves run {run.pk}: {type(outcome).__name__}")

    def close_breaker(self) -> None:
        play = self.play
        outcome = services.close_breaker("it was the cooling", actor="bob", now=play.site.now)
        if isinstance(outcome, Controlled):
            play.record.changes += 1
            play.note("bob", "kintsugi breaker close")

    def decommission(self, node: str = "") -> None:
        """One node at a time is being taken away for good; the next such act keeps it after all."""
        play, record = self.play, self.play.record
        record.changes += 1
        if record.decommissioned:
            node = record.decommissioned.pop()
            decommission.end(node, actor="bob", why="it stays", now=play.site.now)
            play.note("bob", f"keeps {node} after all")
            return
        node = node or play.choose_node()
        decommission.begin(node, actor="bob", why="its lease ends", now=play.site.now)
        record.decommissioned.add(node)
        play.note("bob", f"decommissions {node}")

    def refuse(self, node: str = "") -> None:
        """A node's root writes the file by which Kintsugi is to do nothing there, or removes it."""
        play, record = self.play, self.play.record
        node = node or play.choose_node()
        record.changes += 1
        record.refusing ^= {node}
        play.site.nodes.nodes[node].never = "measuring" if node in record.refusing else None
        play.note("root", f"{'writes' if node in record.refusing else 'removes'} {node}'s refusal")

    def maintain(self) -> None:
        """A maintenance of one node begins, or the one that lasts ends."""
        play = self.play
        if play.record.maintained:
            for number in Silence.objects.filter(ended_at=None).values_list("pk", flat=True):
                planning.end(number, actor="bob", now=play.site.now)
            play.record.maintained.clear()
            play.record.changes += 1
            play.note("bob", "ends the maintenance")
            return
        node = play.choose_node()
        ends_at = play.site.now + timedelta(hours=4)
        draft = Draft(
            WindowKind.MAINTENANCE, "new fans", play.site.now, ends_at, machines=(f"node/{node}",)
        )
        planning.plan(draft, author="bob", now=play.site.now)
        play.record.maintained.add(node)
        play.record.changes += 1
        play.note("bob", f"begins a maintenance of {node}")

    def handle_incident(self) -> None:
        play = self.play
        incident = Incident.objects.filter(state__in=OPEN).order_by("pk").last()
        if incident is None:
            return
        how = play.dice.choice(_OF_INCIDENTS)
        incidents.act(incident.pk, how, actor="bob", note="looked at it", now=play.site.now)
        play.note("bob", f"{how} of incident #{incident.pk}")

    def start_run(self) -> None:
        """Of a runbook that they choose, for the newest open incident."""
        play = self.play
        incident = Incident.objects.filter(state__in=OPEN).order_by("pk").last()
        if incident is not None:
            self._start_run(play.dice.choice(play.runbooks), incident)

    def call_vendor(self) -> None:
        """For each open incident."""
        for incident in Incident.objects.filter(state__in=OPEN).order_by("pk"):
            self._start_run("vendor_replacement", incident)

    def _start_run(self, runbook: str, incident: Incident) -> None:
        play = self.play
        outcome = services.start_manual_run(
            runbook, incident.pk, actor="bob", note="try it", now=play.site.now
        )
        if isinstance(outcome, Controlled):
            run = Run.objects.filter(incident=incident).order_by("pk").last()
            assert run is not None
            play.record.granted.add(run.pk)
            play.record.started_runs.add(run.pk)
            play.record.aborted.discard(incident.pk)
        play.note("bob", f"kintsugi runbook start {runbook}: {type(outcome).__name__}")

    def abort_run(self) -> None:
        play = self.play
        run = Run.objects.filter(state__in=UNFINISHED).order_by("pk").last()
        if run is None:
            return
        end, word = play.luck.choice(
            ((services.abort, "aborts"), (services.take_over, "takes over"))
        )
        end(run.pk, actor="bob", now=play.site.now)
        play.record.aborted.add(run.incident_id)
        play.record.aborted_runs.add(run.pk)
        play.note("bob", f"{word} run {run.pk}")

    def pause_run(self) -> None:
        """The newest that goes on; the next such act lets it go on again."""
        play, record = self.play, self.play.record
        record.changes += 1
        if record.paused:
            number = record.paused.pop()
            services.resume(number, actor="bob", now=play.site.now)
            play.note("bob", f"lets run {number} go on")
            return
        run = Run.objects.filter(state=RunState.RUNNING).order_by("pk").last()
        if run is not None:
            services.pause(run.pk, actor="bob", now=play.site.now)
            record.paused.add(run.pk)
            play.note("bob", f"pauses run {run.pk}")

    def answer(self) -> None:
        """What a run asks, by one of the words that it takes."""
        play = self.play
        question = Question.objects.filter(answered_at=None).order_by("pk").last()
        if question is None:
            return
        word = play.dice.choice(questions.get_ways(question))
        outcome = questions.answer(question.pk, word, actor="bob", now=play.site.now)
        play.note("bob", f"answers {word!r} to {question.text!r}: {type(outcome).__name__}")

    def leave(self) -> None:
        """`kintsugi leave`: runs end, and each drain of ours is handed over or given back. What is
        handed over is a person's from then on."""
        play, record = self.play, self.play.record
        if self._is_leaving:
            return
        self._is_leaving = True
        gives_back = play.dice.sample(play.site.names, play.dice.randrange(3))
        play.note("bob", f"kintsugi leave --give-back {','.join(gives_back)}")
        if play.luck.random() < _RACES_LEAVE:
            play.race_next()
        record.changes += 1
        record.stops.add("switch")
        leaving.stop_everything(actor="bob", now=play.site.now)
        ended = leaving.end_runs(actor="bob", now=play.site.now)
        if ended.settled_at is not None:
            play.site.now = max(play.site.now, ended.settled_at)
        try:
            with play.by_person(), patch.object(leaving, "time", self._clock):
                self._leave_drains(frozenset(gives_back))
        except SlurmError as error:
            play.note("bob", f"kintsugi leave: {error}")
        finally:
            self._is_leaving = False

    def _leave_drains(self, gives_back: frozenset[str]) -> None:
        play, site = self.play, self.play.site
        drains = leaving.leave_drains(
            site.world, give_back=gives_back, actor="bob", clock=lambda: site.now
        )
        for left in drains:
            play.note("bob", f"kintsugi leave: {left.text}", left.node)
            reason = play.look(left.node).reason
            is_theirs = left.node not in play.record.overwritten_at
            if left.is_done and is_theirs and reason.startswith("left to people"):
                play.record.words[left.node] = Word(reason, site.now)
            last = Run.objects.filter(node__name=left.node).latest("pk")
            if last.state == RunState.FAILED and "is given back" in left.text:
                play.record.given_up.add(last.incident_id)


class _Clock:
    """For what waits by sleeping: the play's time passes."""

    def __init__(self, play: Play) -> None:
        self._play = play

    def sleep(self, seconds: float) -> None:
        self._play.site.now += timedelta(seconds=seconds)
