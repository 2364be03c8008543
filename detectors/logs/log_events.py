"""From log lines that a poll read to fault events, by the same signatures as lines that syslog
brings.

Pure but for the matcher, which is made once per thread. Python 3.9, standard library alone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timezone

from detectors import resources
from detectors.catalog import catalog, compiled, site_catalog
from detectors.detector import Detector, Samples
from detectors.faults import FaultEvent, Observation, event_id
from detectors.logs.signatures import Matcher, to_event
from detectors.logs.unread import UnreadLine, UnreadLines, UnreadReader
from detectors.provenance import Forger, Provenance, Transport

CURSOR = "log.cursor"
LINE = "log.line"
_own = threading.local()


def _get_matcher() -> Matcher:
    """One per thread: it is not thread-safe. Made when first needed, which takes a second, and when
    a site's rows change."""
    is_made = hasattr(_own, "matcher")
    if site_catalog.get_directory() is not None:
        current = catalog.load()
        if not is_made or _own.catalog is not current:
            _make_matcher(current)
    elif not is_made:
        _make_matcher(compiled.load(with_signatures=True))
    matcher: Matcher = _own.matcher
    return matcher


def _make_matcher(current: catalog.Catalog) -> None:
    _own.catalog, _own.matcher = current, Matcher(current)
    _own.unread_reader = UnreadReader(_own.matcher)


def _get_unread_reader() -> UnreadReader:
    _get_matcher()
    reader: UnreadReader = _own.unread_reader
    return reader


def find_unread(lines: Sequence[Observation]) -> list[UnreadLine]:
    """Of `log.line` observations those that say that something failed and that no signature takes,
    one for each machine and template."""
    found = UnreadLines()
    for line in lines:
        host = resources.host_of(line.resource) or resources.UNKNOWN_HOST
        unread = _get_unread_reader().read(
            str(line.value).encode("utf-8", "replace"),
            default_host=host,
            observed_at=line.observed_at,
            zone=timezone.utc,
            is_own_line=True,
        )
        if unread is not None:
            found.add(unread)
    return found.take()


def lines_to_events(
    observations: Sequence[Observation],
    before: Samples,
    *,
    detector: Detector,
    matcher: Matcher | None = None,
    sender: Provenance | None = None,
) -> list[FaultEvent]:
    """What the new lines of one round say; nothing for a detector that reads no log, or at first
    sight.

    `before` are the samples of the round before, as for `compare`. An event's id comes of the
    line's place in the journal, so that a line that is read again counts once; its `source_key`
    folds it with a copy that syslog brought.
    """
    if CURSOR not in detector.keeps:
        return []
    lines = [o for o in detector.compare(observations, before) if o.metric == LINE]
    return of_lines(lines, matcher=matcher, sender=sender)


def of_lines(
    lines: Sequence[Observation],
    *,
    matcher: Matcher | None = None,
    sender: Provenance | None = None,
) -> list[FaultEvent]:
    """The events of `log.line` observations: kernel records of the node's journal, which `sender`
    brought; None: read by ourselves over SSH."""
    if not lines:
        return []
    matcher = matcher or _get_matcher()
    events = []
    for line in lines:
        host = resources.host_of(line.resource) or resources.UNKNOWN_HOST
        brought = sender or Provenance(host, Transport.SSH, forger=Forger.ROOT)
        raw = str(line.value).encode("utf-8", "replace")
        facts = matcher.facts(
            raw,
            default_host=host,
            observed_at=line.observed_at,
            zone=timezone.utc,
            is_own_line=True,
        )
        for number, fact in enumerate(facts):
            identity = event_id(
                "node_log", line.resource, line.attributes.get("cursor", ""), number
            )
            event = to_event(
                fact,
                event_id=identity,
                observed_at=line.observed_at,
                source="node_log",
                sender=brought,
            )
            events.append(event)
    return events
