"""Looks at one node for the steps that confirm and verify: its detectors, its boot id, its kernel
log. Only looks."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from datetime import UTC, timedelta

from detectors.catalog import catalog
from detectors.detector import (
    Command,
    Detector,
    DetectorError,
    Output,
    Shell,
    Target,
    TargetKind,
    Transports,
)
from detectors.evaluation.classify import classify
from detectors.faults import (
    Action,
    Component,
    EventKind,
    FaultEvent,
    Fitness,
    Observation,
    Severity,
)
from detectors.logs.signatures import Fact, Matcher
from detectors.node import node_log
from detectors.polling import observe
from runbooks.step import Context, EndedBoot

_BOOT = ("cat", "/proc/sys/kernel/random/boot_id", "/proc/uptime")
# Of this boot alone; a storm of lines does not fill memory. As JSON, so that a name with a line's
# end in it begins no line; of facility kern alone, since root's programs write to /dev/kmsg too.
_MOST_LINES = 20_000
KERNEL_LOG = Command(
    "kernel-log",
    (
        *("journalctl", "--dmesg", "--no-pager", "--output=json", f"--lines={_MOST_LINES}"),
        *("--output-fields=MESSAGE,PRIORITY,_SOURCE_MONOTONIC_TIMESTAMP", "SYSLOG_FACILITY=0"),
    ),
    timeout=timedelta(seconds=20),
    as_root=True,
)
_TIMEOUT = timedelta(seconds=20)
# What a noisy login shell prints before it is passed over.
_BOOT_ID_AND_UPTIME = re.compile(
    r"^(?P<boot>[0-9a-f-]{36})\s+(?P<uptime>\d{1,9}(?:\.\d+)?)\s", re.MULTILINE
)


# Parts of the node itself. A file system, a switch or a setting that is wrong is wrong on many
# nodes at once: keeping each of them drained would turn one trouble into a fleet that is out.
_OF_THE_NODE = frozenset({Component.GPU, Component.NVLINK, Component.NIC, Component.NODE})
# Slower ones look at what changes over minutes (optics, disks), cost the node more, and say nothing
# new at once.
_AT_ONCE = timedelta(minutes=1)
SILENT = "detector.silent"

# The file by which a node's own root refuses whatever Kintsugi would do there.
NEVER_FILE = "/etc/kintsugi/never"
# What a simulated node, or a person who reads `ps`, knows the question by.
NEVER = "kintsugi-never"
# A folder that our user may not enter may hold the file: that is not taken for absent.
_NEVER_SCRIPT = f"""folder=${{1%/*}}
if [ -e "$1" ] || [ -L "$1" ]; then echo "{NEVER}: refused"; [ -f "$1" ] && head -c 400 "$1"
elif [ -e "$folder" ] && ! [ -x "$folder" ]; then echo "{NEVER}: hidden"
else echo "{NEVER}: absent"; fi"""
_NEVER_ANSWER = re.compile(rf"^{NEVER}: (?P<word>refused|hidden|absent)$", re.MULTILINE)
# Asked before each act, also of nodes that answer nobody: their drain is not to wait for long.
_NEVER_TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True)
class NodeInspection:
    """One round of detectors. `complaint` says why the node could not be reached; empty when it
    was.

    `silent`: detectors that were meant to look and gave no whole answer, by name, and why. What
    these could have seen is not known: it is neither there nor not there. `mig_devices`: those of
    each GPU that answered, by its resource, for people; empty where a GPU has none.
    """

    raised: tuple[FaultEvent, ...]
    complaint: str
    silent: Mapping[str, str] = field(default_factory=dict)
    mig_devices: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_reachable(self) -> bool:
        return not self.complaint

    def get_grave_events(self, confirmed_by: Container[str]) -> tuple[FaultEvent, ...]:
        """What speaks against putting the node back.

        Major faults of its own parts, those that call for a repair, whatever leaves it unfit for
        jobs, and silence of a detector in `confirmed_by`: of what nobody could see it is not known
        that it is well.
        """
        return tuple(event for event in self.raised if _is_grave(event, confirmed_by))


def _is_grave(event: FaultEvent, confirmed_by: Container[str]) -> bool:
    if event.fault_type == SILENT:
        return event.qualifier in confirmed_by
    row = catalog.load().get(event.fault_type)
    if row is not None and row.fitness is Fitness.UNFIT:
        return True
    is_heavy = event.severity.at_least(Severity.MAJOR) or event.action.at_least(Action.RESET_GPU)
    return is_heavy and event.component in _OF_THE_NODE


_own = threading.local()


def _get_matcher() -> Matcher:
    """One per thread: it is not thread-safe. Made when first needed, which takes a second, and when
    a site's rows change."""
    current = catalog.load()
    if getattr(_own, "catalog", None) is not current:
        _own.catalog, _own.matcher = current, Matcher(current)
    matcher: Matcher = _own.matcher
    return matcher


def inspect_node(ctx: Context, *, only: Collection[str] = ()) -> NodeInspection:
    """What detectors see on the node right now: the named ones, or all that can answer at once.

    A detector that gives no answer raises a fault of its own.
    """
    via = Transports(shell=ctx.world.shell)
    detectors = [detector for detector in ctx.world.detectors if _is_selected(detector, ctx, only)]
    not_selected = set(only) - {detector.name for detector in detectors}
    silent = {name: f"it does not look at {ctx.node}" for name in only if name in not_selected}
    observations: list[Observation] = []
    for detector in detectors:
        answer = observe(ctx.target, [detector], via, ctx.now)
        if answer[-1].value is False:
            return NodeInspection((), answer[-1].attributes.get("text") or "it does not answer")
        observations += answer
        why = _get_silence_reason(answer)
        if why:
            silent[detector.name] = why
    raised = _list_raised(observations)
    return NodeInspection(raised, "", silent, _find_mig_devices(observations))


def _find_mig_devices(observations: list[Observation]) -> dict[str, str]:
    devices = {seen.resource: "" for seen in observations if seen.metric == "gpu.uuid"}
    listed = {seen.resource: seen for seen in observations if seen.metric == "gpu.mig_devices"}
    return devices | {resource: str(seen.value) for resource, seen in listed.items()}


def _list_raised(observations: list[Observation]) -> tuple[FaultEvent, ...]:
    rows = catalog.load()
    events = (event for observation in observations for event in classify(observation, (), rows))
    return tuple(event for event in events if event.event is EventKind.RAISED)


def _get_silence_reason(answer: list[Observation]) -> str:
    """Why a detector gave no whole answer; empty where it did. The last observation says that the
    node was reached."""
    if len(answer) == 1:
        return "it is not set up"
    for observation in answer:
        if observation.metric == "detector.answered" and observation.value is False:
            return observation.attributes.get("text") or "no reason given"
    return ""


def _is_selected(detector: Detector, ctx: Context, only: Collection[str]) -> bool:
    is_named = detector.name in only if only else detector.every <= _AT_ONCE
    return is_named and detector.kind is TargetKind.NODE and detector.wants(ctx.target)


def is_of_part(resource: str, ctx: Context) -> bool:
    """It is on the part that the run is about; what is on the whole node counts for each of its
    parts."""
    return is_on(resource, part=ctx.resource, node=ctx.node)


def is_on(resource: str, *, part: str, node: str) -> bool:
    whole = f"node/{node}"
    return resource in (part, whole) or (part == whole and resource.startswith(f"{whole}/"))


def get_confirming_detectors(fault_type: str) -> tuple[str, ...]:
    """The detectors that can see a fault of this type on the node; for one that none can see, the
    one of the GPUs."""
    row = catalog.load().get(fault_type)
    return tuple(row.confirmed_by) if row is not None and row.confirmed_by else ("gpu",)


def read_boot(ctx: Context) -> EndedBoot | None:
    """The kernel's random id of this boot, and when it was by our clock; None when the node cannot
    be asked."""
    try:
        output = ctx.world.shell.run(ctx.target, _BOOT, _TIMEOUT)
    except DetectorError:
        return None
    found = _BOOT_ID_AND_UPTIME.search(output.stdout.decode(errors="replace"))
    if output.status != 0 or found is None:
        return None
    return EndedBoot(found["boot"], ctx.now - timedelta(seconds=float(found["uptime"])))


@dataclass(frozen=True)
class KernelLog:
    """What the node's own kernel log of this boot holds, in its drivers' own words. `complaint`:
    why it could not be read; empty when it was. `is_whole`: no older lines were left out;
    `is_reached`: the node itself answered."""

    raised: tuple[Fact, ...]
    complaint: str
    is_whole: bool = True
    is_reached: bool = True

    def get_last(self, fault_type: str, resource: str, node: str) -> Fact | None:
        """The last line that shows this fault on the resource, or on the node where it names no
        part."""
        places = (resource, f"node/{node}")
        for fact in reversed(self.raised):
            if fact.fault_type == fault_type and fact.resource in places:
                return fact
        return None


def read_kernel_log(ctx: Context) -> KernelLog:
    """As our user, and as root where that user may not read it (group systemd-journal)."""
    output = read_journal(ctx.world.shell, ctx.target)
    if isinstance(output, KernelLog):
        return output
    lines = list(node_log.read_lines("journal", output.stdout, ctx.node, most=_MOST_LINES))
    raised = []
    for line, _ in lines:
        facts = _get_matcher().facts(
            line.encode(), default_host=ctx.node, observed_at=ctx.now, zone=UTC, is_own_line=True
        )
        raised += [fact for fact in facts if _is_drivers_own(fact)]
    return KernelLog(tuple(raised), "", is_whole=len(lines) < _MOST_LINES)


def read_journal(shell: Shell, target: Target) -> Output | KernelLog:
    """The kernel's records; a log with a complaint where they cannot be read."""
    try:
        own = shell.run(target, KERNEL_LOG.argv, KERNEL_LOG.timeout)
    except DetectorError as error:
        return KernelLog((), str(error), is_reached=False)
    complaint = node_log.find_complaint("journal", own)
    output = _read_as_root(shell, target) if complaint else own
    if output is None or node_log.find_complaint("journal", output):
        return KernelLog((), complaint)
    return output


def _read_as_root(shell: Shell, target: Target) -> Output | None:
    try:
        return shell.run_all(target, KERNEL_LOG.name, [KERNEL_LOG])[KERNEL_LOG.name]
    except DetectorError:
        return None


def _is_drivers_own(fact: Fact) -> bool:
    """Whether the driver itself says it: no name that a user chose stands before it, or is it."""
    return fact.event is EventKind.RAISED and fact.program == "kernel" and fact.is_of_driver


@dataclass(frozen=True)
class NodeRefusal:
    """The node's own root wants nothing done there. `reason` says how that is known, for people."""

    reason: str


@dataclass(frozen=True)
class NoAnswer:
    """Whether the node's root refuses is not known; `why`, for people."""

    why: str


def read_refusal(shell: Shell, target: Target) -> NodeRefusal | NoAnswer | None:
    """Whether the node's root refuses (`NEVER_FILE`); None where it does not.

    NoAnswer: the node cannot be asked, or does not come to an end; what each act asks of a node
    that does not answer holds then. A node that answers with anything but a plain no refuses.
    """
    argv = ("sh", "-c", _NEVER_SCRIPT, NEVER, NEVER_FILE)
    try:
        output = shell.run(target, argv, _NEVER_TIMEOUT)
    except DetectorError as error:
        return NoAnswer(str(error))
    found = _NEVER_ANSWER.search(output.text)
    if found is None and output.status is None:
        return NoAnswer(output.complaint)
    if found is None:
        return NodeRefusal(f"it cannot be seen whether {NEVER_FILE} is there: {output.complaint}")
    if found["word"] == "absent":
        return None
    if found["word"] == "hidden":
        return NodeRefusal(f"Kintsugi's user may not look into the folder of {NEVER_FILE}")
    words = _to_one_line(output.text[found.end() :])
    return NodeRefusal(
        f'{NEVER_FILE} is there and says "{words}"' if words else f"{NEVER_FILE} is there"
    )


def _to_one_line(text: str) -> str:
    """Printable, of 200 characters at most: who wrote it is not known."""
    printable = (letter if letter.isprintable() else " " for letter in text)
    return " ".join("".join(printable).split())[:200]
