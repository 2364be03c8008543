"""Looks at one node for the steps that confirm and verify: its detectors, its boot id, its kernel log. Only looks."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from datetime import UTC, timedelta

from detectors import catalog
from detectors.classify import classify
from detectors.detector import DetectorError, Transports
from detectors.faults import EventKind, FaultEvent
from detectors.polling import observe
from detectors.signatures import Fact, Matcher
from runbooks.step import Boot, Context

_BOOT = ("cat", "/proc/sys/kernel/random/boot_id", "/proc/uptime")
# Of this boot alone; a storm of lines does not fill memory.
_KERNEL_LOG = ("journalctl", "--dmesg", "--no-pager", "--output=short-iso", "--lines=20000")
_TIMEOUT = timedelta(seconds=20)


@dataclass(frozen=True)
class Look:
    """One round of all detectors. `complaint` says why the node could not be reached; empty when it was."""

    raised: tuple[FaultEvent, ...]
    complaint: str

    @property
    def is_reachable(self) -> bool:
        return not self.complaint

    @property
    def text(self) -> str:
        return "; ".join(f"{event.fault_type} on {event.resource}: {event.excerpt}" for event in self.raised)


_own = threading.local()


def _matcher() -> Matcher:
    """One per thread: it is not thread-safe. Made when first needed: that takes a second."""
    if not hasattr(_own, "matcher"):
        _own.matcher = Matcher(catalog.load())
    matcher: Matcher = _own.matcher
    return matcher


def look(ctx: Context) -> Look:
    """What the detectors see on the node right now. A detector that gives no answer raises a fault of its own."""
    observations = observe(ctx.target, ctx.world.detectors, Transports(shell=ctx.world.shell), ctx.now)
    unreachable = [seen for seen in observations if seen.metric == "target.reachable" and seen.value is False]
    if unreachable:
        return Look((), unreachable[0].attributes.get("text") or "it does not answer")
    rows = catalog.load()
    events = (event for seen in observations for event in classify(seen, (), rows))
    return Look(tuple(event for event in events if event.event is EventKind.RAISED), "")


def boot(ctx: Context) -> Boot | None:
    """The kernel's random id of this boot, and when it was by our clock; None when the node cannot be asked."""
    try:
        output = ctx.world.shell.run(ctx.target, _BOOT, _TIMEOUT)
    except DetectorError:
        return None
    words = output.stdout.decode(errors="replace").split()
    if output.status != 0 or len(words) < 2 or not re.fullmatch(r"\d+(\.\d+)?", words[1]):
        return None
    return Boot(words[0], ctx.now - timedelta(seconds=float(words[1])))


def in_kernel_log(ctx: Context) -> Fact | None:
    """The last line of the node's own kernel log, this boot's, that shows the run's fault on its resource."""
    try:
        output = ctx.world.shell.run(ctx.target, _KERNEL_LOG, _TIMEOUT)
    except DetectorError:
        return None
    found = None
    for line in output.stdout.splitlines():
        for fact in _matcher().facts(line, default_host=ctx.node, observed_at=ctx.now, zone=UTC):
            is_it = fact.fault_type == ctx.fault_type and fact.event is EventKind.RAISED
            if is_it and ctx.resource in (fact.resource, f"node/{ctx.node}"):
                found = fact
    return found
