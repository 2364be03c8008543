"""One check of this node: its detectors at once, judged with what the check before remembered.
Changes nothing.

Whatever goes wrong with the check itself is said, ends in UNKNOWN, and never stops a job. Python
3.9.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Optional

from detectors import expected, resources
from detectors.catalog.catalog import Catalog, CatalogError
from detectors.catalog.compiled import load
from detectors.cli import check, check_post
from detectors.detector import Detector, Target, Transports
from detectors.evaluation import judge
from detectors.evaluation.classify import classify
from detectors.faults import (
    Action,
    ClearRule,
    EventKind,
    FaultEvent,
    Observation,
    Severity,
    fingerprint,
)
from detectors.logs.log_events import lines_to_events
from detectors.node_registry import NODE_DETECTORS
from detectors.polling import observe_one
from detectors.transports.http import HttpTransport
from detectors.transports.local import LocalShell

# Each waits for its commands, not for the processor.
_AT_ONCE = 8
_BY_SEVERITY = {
    Severity.CRITICAL: check.CRITICAL,
    Severity.MAJOR: check.CRITICAL,
    Severity.MINOR: check.WARNING,
    Severity.WARNING: check.WARNING,
    Severity.INDETERMINATE: check.OK,
}
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_SHOWN = 3
# What is polled more seldom is so because it is slow or dear.
_QUICK = timedelta(seconds=60)
_STANDS = (ClearRule.BY_POLL, ClearRule.BY_EVENT)


@dataclass
class CheckState:
    """What the check before left: each detector's memory, and the faults that stand."""

    memories: dict[str, judge.Memory] = field(default_factory=dict)
    standing: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """What one detector saw; `observations` None: it was not done in time."""

    detector: Detector
    observations: Optional[list[Observation]]
    took_s: float


def run_check(options: argparse.Namespace, known: Optional[dict[str, Any]]) -> dict[str, Any]:
    """`known`: a result that is young enough; then nothing is looked at anew. Raises CheckError."""
    result = known or _check(options)
    if options.post and known is None:  # what comes from the cache was sent when it was seen
        result["line"] += check_post.post_report(options.post, Path(options.token_file), result)
    verdict = _ask_to_block(options, result) if options.block else ""
    result["line"] += verdict and f"; {verdict}"
    return {name: value for name, value in result.items() if name != "readings"}


def _ask_to_block(options: argparse.Namespace, result: dict[str, Any]) -> str:
    """Asks for leave to stop the job. Without an answer the job starts."""
    faults = [fault for fault in result["faults"] if fault["fault_type"] in check_post.MAY_BLOCK]
    if not faults:
        return ""
    leave = check_post.ask_to_stop_job(
        options.block, Path(options.token_file), result["node"], faults
    )
    result["is_blocked"] = leave.is_granted
    if leave.is_granted:
        return f"the job is stopped: {leave.reason}"
    return f"the job may start: {leave.reason}"


def _check(options: argparse.Namespace) -> dict[str, Any]:
    begun = time.monotonic()
    now = datetime.now(timezone.utc)
    try:
        catalog = load()
    except CatalogError as error:
        raise check.CheckError(f"the catalogue cannot be read: {error}") from error
    target = _build_target(options)
    chosen = _choose_detectors(options.detectors, target)
    folder = Path(options.state)
    state, trouble = read_state(folder)
    looks = _poll_all(chosen, target, now, begun + options.timeout)
    faults = evaluate_faults(looks, state, catalog, target, now)
    result = _build_result(target, looks, faults, now, time.monotonic() - begun)
    troubles = [text for text in (trouble, write_state(folder, state, result)) if text]
    result["line"] += "".join(f"; {text}" for text in troubles)
    result["readings"] = readings = []
    for look in looks:
        if look.observations is not None:
            observations = [to_plain(observation) for observation in look.observations]
            readings.append({"detector": look.detector.name, "observations": observations})
    return result


def _build_target(options: argparse.Namespace) -> Target:
    name = resources.short_host(options.node or socket.gethostname())
    wanted = expected.Expected()
    if options.expected:
        try:
            wanted = expected.from_json(
                json.loads(Path(options.expected).read_text(encoding="utf-8"))
            )
        except (OSError, ValueError, TypeError) as error:
            raise check.CheckError(
                f"{options.expected} does not say what is expected here: {error}"
            ) from error
    return Target(name, "127.0.0.1", expected=wanted)


def _choose_detectors(names: str, target: Target) -> list[Detector]:
    """Those named; else the quick ones: a board or a module's bus takes seconds, and a job waits
    for its Prolog."""
    if not names:
        return [each for each in NODE_DETECTORS if each.every <= _QUICK and each.wants(target)]
    known = {each.name: each for each in NODE_DETECTORS}
    wanted = list(known) if names == "all" else [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise check.CheckError(
            f"no detector {', '.join(unknown)}; there are {', '.join(sorted(known))}, and all"
        )
    return [known[name] for name in wanted]


def _poll_all(
    detectors: Sequence[Detector], target: Target, now: datetime, until: float
) -> list[Look]:
    """All at once. No command outlives the time limit, so no thread does."""
    via = Transports(shell=LocalShell(until=until), http=HttpTransport())
    pool = ThreadPoolExecutor(_AT_ONCE)
    begun = {}
    for detector in detectors:
        begun[pool.submit(_poll_timed, detector, target, via, now)] = detector
    wait(begun, timeout=max(0.0, until - time.monotonic()))
    pool.shutdown(wait=False)
    return [
        future.result() if future.done() else Look(detector, None, 0.0)
        for future, detector in begun.items()
    ]


def _poll_timed(detector: Detector, target: Target, via: Transports, now: datetime) -> Look:
    begun = time.monotonic()
    seen = observe_one(target, detector, via, now)
    return Look(detector, seen, time.monotonic() - begun)


def evaluate_faults(
    looks: Sequence[Look], state: CheckState, catalog: Catalog, target: Target, now: datetime
) -> list[dict[str, Any]]:
    """The faults of now, the worst first; `state` remembers what the next check needs."""
    found: dict[str, dict[str, Any]] = {}
    for look in looks:
        for event in _evaluate_look(look, state, catalog, target, now):
            key = fingerprint(event.resource, event.fault_type, event.qualifier)
            state.standing.pop(key, None)
            if event.event is EventKind.RAISED:
                found[key] = _format_fault(event)
                if catalog[event.fault_type].clears in _STANDS:
                    state.standing[key] = found[key]
    faults = {**state.standing, **found}.values()
    return sorted(faults, key=lambda fault: -Severity(fault["severity"]).rank)


def _evaluate_look(
    look: Look, state: CheckState, catalog: Catalog, target: Target, now: datetime
) -> list[FaultEvent]:
    name = look.detector.name
    observations = look.observations
    if observations is None:
        observations = [_build_timeout(name, target, now)]
    before = state.memories.get(name, judge.Memory())
    lines = lines_to_events(observations, before.samples, detector=look.detector)
    events, state.memories[name] = judge.judge_round(
        look.detector, observations, before, active=state.standing, catalog=catalog
    )
    # A detector that gave no answer is told at once: until the third time in a row it is only
    # no incident.
    silent: list[FaultEvent] = []
    for observation in observations:
        if observation.metric == "detector.answered":
            silent += classify(observation, (), catalog)
    return [*lines, *silent, *events]


def _build_timeout(detector: str, target: Target, now: datetime) -> Observation:
    text = "it was not done within the check's time limit"
    attributes = {"detector": detector, "text": text}
    return Observation(target.resource, "detector.answered", False, now, attributes)


def _format_fault(event: FaultEvent) -> dict[str, Any]:
    text = event.attributes.get("text") or event.excerpt
    return {
        "fault_type": event.fault_type,
        "resource": event.resource,
        "component": str(event.component),
        "severity": str(event.severity),
        "action": str(event.action),
        "text": text,
    }


def _build_result(
    target: Target,
    looks: Sequence[Look],
    faults: Sequence[Mapping[str, Any]],
    now: datetime,
    took_s: float,
) -> dict[str, Any]:
    code = _get_exit_code(faults)
    status = _WORDS[code]
    summary = _format_summary(faults) or f"{target.name}: {len(looks)} detectors found no fault"
    times = " ".join(f"{look.detector.name}={look.took_s:.3f}s" for look in looks)
    line = f"KINTSUGI {status} - {_format_line(summary)} | time={took_s:.3f}s {times}".rstrip()
    taken_at, taken_at_s, rounded_s = now.isoformat(), now.timestamp(), round(took_s, 3)
    return {
        "node": target.name,
        "status": status,
        "exit_code": code,
        "line": line,
        "taken_at": taken_at,
        "taken_at_s": taken_at_s,
        "took_s": rounded_s,
        "boot_id": check.read_boot_id(),
        "faults": list(faults),
    }


def _get_exit_code(faults: Sequence[Mapping[str, Any]]) -> int:
    """By the worst fault that asks for something; a silent detector alone leaves it unknown."""
    hardware = [fault for fault in faults if fault["fault_type"] != "detector.silent"]
    matters = [
        fault for fault in hardware if fault["action"] not in (Action.NONE, Action.RESTART_APP)
    ]
    code = max((_BY_SEVERITY[Severity(fault["severity"])] for fault in matters), default=check.OK)
    if code == check.OK and len(hardware) < len(faults):
        return check.UNKNOWN
    return code


def _format_summary(faults: Sequence[Mapping[str, Any]]) -> str:
    """The first faults in words; empty where there is none."""
    shown = [
        f"{fault['fault_type']} on {fault['resource']} ({fault['text']})"
        for fault in faults[:_SHOWN]
    ]
    summary = "; ".join(shown)
    if len(faults) > _SHOWN:
        return f"{summary} and {len(faults) - _SHOWN} more"
    return summary


def _format_line(text: str) -> str:
    """Nagios takes what stands behind a bar for figures."""
    return " ".join(text.split()).replace("|", "/")


def to_plain(observation: Observation) -> dict[str, Any]:
    """JSON-ready, as the server takes it."""
    value = observation.value
    plain = value if isinstance(value, (bool, int, float, str)) or value is None else str(value)
    return {
        "resource": observation.resource,
        "metric": observation.metric,
        "value": plain,
        "attributes": dict(observation.attributes),
    }


def read_state(folder: Path) -> tuple[CheckState, str]:
    """What the last check remembered, and what is wrong with it: then counters start from a new
    baseline."""
    path = folder / "memory.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["boot_id"] != check.read_boot_id():
            return CheckState(), ""
        memories = {
            name: judge.from_json(memory, timezone.utc)
            for name, memory in values["memories"].items()
        }
        return CheckState(memories, dict(values["standing"])), ""
    except FileNotFoundError:
        return CheckState(), ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return CheckState(), f"{path} cannot be read ({error}), counters start anew"


def write_state(folder: Path, state: CheckState, result: Mapping[str, Any]) -> str:
    """Empty, or what is wrong. Each file is replaced as a whole."""
    memory = {
        "boot_id": check.read_boot_id(),
        "memories": {name: judge.to_json(memory) for name, memory in state.memories.items()},
        "standing": state.standing,
    }
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, values in (("memory.json", memory), ("result.json", dict(result))):
            draft = folder / f".{name}.{os.getpid()}"
            draft.touch(mode=0o600)
            draft.write_text(json.dumps(values), encoding="utf-8")
            draft.replace(folder / name)
    except (OSError, ValueError, TypeError) as error:
        return (
            f"{folder} cannot be written ({error}), so the next check knows nothing of this one:"
            " give --state DIR"
        )
    return ""
