"""What others than the product do in a play: people, Slurm itself, jobs, nodes and an attacker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from detectors import resources
from detectors.catalog import catalog
from detectors.faults import EventKind, FaultEvent, event_id, to_wire
from detectors.provenance import Forger, Provenance, Transport
from incidents import services as incidents
from incidents.evaluation.windows import WindowKind
from incidents.maintenance import planning
from incidents.maintenance.planning import Draft
from incidents.models import Incident, Silence
from incidents.vocabulary.lifecycle import OPEN, Trigger
from runbooks import services
from runbooks.guards.policy import DRAIN_AND_ASK, DRAIN_REBOOT_VERIFY
from runbooks.models import UNFINISHED, Mode, Run
from tests.simulation.record import Word

if TYPE_CHECKING:
    from tests.simulation.play import Play

LINE = Provenance("gn001", Transport.SSH, program="kernel", forger=Forger.ROOT)
FORGED = Provenance("10.9.8.7", Transport.UDP, program="kernel", forger=Forger.ANYONE)
LOST, DEGRADED = "gpu.xid.79", "gpu.ecc.uncorrectable"
# From 23.02 on slurmctld writes it over the reason of a drained node that registers so.
FEWER_GPUS = "gres/gpu count reported lower than configured (7 < 8)"
_LONGEST_REASON = 240


class People:
    """Administrators with a shell, and with Kintsugi's own commands."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self._said = 0

    def list_acts(self) -> dict[str, Callable[[], None]]:
        return {
            "drain": self.drain,
            "fail": self.fail,
            "append": self.append,
            "resume": self.resume,
            "reboot": self.reboot,
            "stop": self.stop,
            "mode": self.set_mode,
            "maintain": self.maintain,
            "incident": self.handle_incident,
            "abort": self.abort_run,
            "copy": self.copy_reason,
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

    def fail(self) -> None:
        play, node = self.play, self.play.choose_node()
        reason = self.say(node)
        play.site.slurm.human_fail(node, reason)
        play.note("bob", f"scontrol update NodeName={node} State=FAIL Reason={reason!r}", node)

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
        if state.reason.startswith("kintsugi:"):
            record.resumed.setdefault(node, set()).add(state.reason.partition(" ")[0])
        record.resumed_at[node] = play.site.now
        record.words.pop(node, None)
        record.overwritten_at.pop(node, None)
        record.awaited_boots.pop(node, None)  # a resume cancels it, and it is theirs to cancel
        play.site.slurm.human_resume(node)
        play.note("bob", f"scontrol update NodeName={node} State=RESUME", node)

    def reboot(self) -> None:
        play, node = self.play, self.play.choose_node()
        if play.look(node).is_rebooting:
            return
        play.record.awaited_boots[node] = play.site.nodes.nodes[node].boots
        play.site.slurm.human_reboot(node)
        play.note("bob", f"scontrol reboot {node}", node)

    def stop(self) -> None:
        play = self.play
        if play.record.is_stopped:
            services.release(actor="bob", now=play.site.now)
        else:
            services.stop("looking at the cooling", actor="bob", now=play.site.now)
        play.record.is_stopped = not play.record.is_stopped
        play.record.changes += 1
        play.note("bob", "kintsugi stop" if play.record.is_stopped else "kintsugi release")

    def set_mode(self) -> None:
        play = self.play
        mode = Mode.ARMED if not play.record.is_armed else play.dice.choice((Mode.OFF, Mode.SHADOW))
        for runbook in (DRAIN_REBOOT_VERIFY, DRAIN_AND_ASK):
            play.site.set_mode(mode, runbook)
        play.record.is_armed = mode is Mode.ARMED
        play.record.changes += 1
        play.note("bob", f"sets the runbooks to {mode}")

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
        how = play.dice.choice((Trigger.ACKNOWLEDGE, Trigger.MARK_FALSE_POSITIVE, Trigger.RESOLVE))
        incidents.act(incident.pk, how, actor="bob", note="looked at it", now=play.site.now)
        play.note("bob", f"{how} of incident #{incident.pk}")

    def abort_run(self) -> None:
        play = self.play
        run = Run.objects.filter(state__in=UNFINISHED).order_by("pk").last()
        if run is not None:
            services.abort(run.pk, actor="bob", now=play.site.now)
            play.record.aborted.add(run.incident_id)
            play.note("bob", f"kintsugi run abort {run.pk}")


class Site:
    """Slurm itself, jobs and machines."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self._jobs = 0

    def list_acts(self) -> dict[str, Callable[[], None]]:
        return {
            "lose": self.lose_gpu,
            "degrade": self.degrade_gpu,
            "job": self.start_job,
            "end": self.end_job,
            "wait": self.queue_job,
            "crash": self.crash,
            "return": self.bring_back,
            "replace": self.replace_reason,
            "redeliver": self.redeliver,
            "forge": self.forge,
        }

    def lose_gpu(self) -> None:
        """It falls off the bus, and its line comes. What no reboot heals is drawn."""
        self._fall_ill(LOST, is_dead=self.play.dice.random() < self.play.habits.dead)

    def degrade_gpu(self) -> None:
        """It is gone, and all that is told is an error that leaves the node to jobs."""
        self._fall_ill(DEGRADED, is_dead=False)

    def _fall_ill(self, fault_type: str, *, is_dead: bool) -> None:
        play, node = self.play, self.play.choose_node()
        if play.is_ill(node) or not play.site.nodes.nodes[node].is_up:
            return
        play.site.nodes.inject("gpu_dead" if is_dead else "gpu_lost", f"{node}/gpu/0")
        play.record.sick.add(node)
        play.note("node", f"{node} loses a GPU{' for good' if is_dead else ''}: {fault_type}")
        self.tell(fault_type, play.site.gpu(node), LINE)
        if fault_type == LOST:
            play.record.told_critical[play.site.gpu(node)] = play.site.now

    def forge(self) -> None:
        """Anyone on the network writes what a kernel would."""
        play, node = self.play, self.play.choose_node()
        if play.is_ill(node):
            return
        play.note("attacker", f"writes {LOST} in the name of {node}")
        self.tell(LOST, play.site.gpu(node), FORGED)

    def tell(self, fault_type: str, resource: str, told_by: Provenance) -> None:
        play, row = self.play, catalog.load()[fault_type]
        host = resources.host_of(resource) or ""
        event = FaultEvent(
            event_id=event_id(fault_type, resource, play.site.now, len(play.trace)),
            fault_type=fault_type,
            event=EventKind.RAISED,
            resource=resource,
            source="rsyslog",
            occurred_at=play.site.now,
            observed_at=play.site.now,
            severity=row.severity,
            action=row.action,
            component=row.component,
            code=row.code,
            excerpt=f"{fault_type} on {host}",
            provenance=told_by,
        )
        play.last_wire = to_wire(event)
        play.record.events[fault_type, resource] += 1
        play.pipeline.ingest([play.last_wire])

    def redeliver(self) -> None:
        """The last line comes once more, by the receiver that did not hear that it was taken."""
        if self.play.last_wire:
            self.play.note("receiver", "delivers the last event again")
            self.play.pipeline.ingest([self.play.last_wire])

    def start_job(self) -> None:
        play, node = self.play, self.play.choose_node()
        if play.look(node).is_out or play.site.slurm.jobs(node):
            return
        self._jobs += 1
        play.site.slurm.add_job(str(1000 + self._jobs), nodes=[node])
        play.note("job", f"starts on {node}")

    def end_job(self) -> None:
        play, node = self.play, self.play.choose_node()
        for job in play.site.slurm.jobs(node):
            play.site.slurm.finish_job(job.job_id)
            play.note("job", f"ends on {node}")

    def queue_job(self) -> None:
        play = self.play
        play.record.needed = play.dice.randrange(len(play.site.names) + 1)
        play.site.slurm.add_waiting_job("17", nodes=play.record.needed, partitions=["gpu"])
        play.note("job", f"waits for {play.record.needed} nodes")

    def crash(self) -> None:
        play, node = self.play, self.play.choose_node()
        if node in play.site.shell.silent or play.look(node).is_rebooting:
            return
        play.site.shell.silent.add(node)
        play.site.slurm.switch_off(node)
        play.note("node", f"{node} crashes", node)

    def bring_back(self) -> None:
        play = self.play
        for node in sorted(play.site.shell.silent):
            play.site.shell.silent.discard(node)
            play.site.nodes.reboot(node)
            play.site.slurm.switch_on(node)
            play.note("node", f"{node} boots", node)

    def replace_reason(self) -> None:
        """slurmctld writes a reason of its own over that of a drained node with fewer GPUs."""
        play, node = self.play, self.play.choose_node()
        state, word = play.look(node), play.record.get_word(node)
        if not play.replaces_reasons or not state.is_drained or state.is_rebooting:
            return
        if node in play.record.overwritten_at:
            return
        if word is not None and word.stands_in(state):
            if not word.is_seen:
                return  # nobody can know whose it was
            word.is_hidden = True
        play.site.slurm.slurm_drain(node, FEWER_GPUS)
        play.note("slurmctld", f"writes {FEWER_GPUS!r} on {node}", node)
