"""Decides which incident a new fault belongs to, by the rules of `incidents.correlation.rules`.
Pure: no clock, no database.

The cause explains its effects in whichever order they come: an effect joins its cause's incident, a
cause that comes later takes the root of every incident whose root it explains. Rules are tried from
the top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice

from detectors.faults import Action, Role
from incidents.correlation import near_misses, rule_file
from incidents.correlation.candidates import Candidate, CandidateIndex
from incidents.correlation.near_misses import Miss, Nearly
from incidents.correlation.relations import Surroundings
from incidents.correlation.rules import CauseOrder, Lasts, Root, Rule, RuleSet
from incidents.faults.fault_views import (
    FOLLOWS_HARDWARE,
    GPU_LOST,
    NETWORK_CLIENT,
    NVSWITCH,
    PORTS_LOST,
    ROUTING,
    UNREACHABLE,
    USER_REPORT,
    FaultView,
    IncidentView,
)
from incidents.text import wording
from incidents.vocabulary.lifecycle import State
from incidents.vocabulary.relations import Side

_OTHER = {Side.CAUSE: Side.EFFECT, Side.EFFECT: Side.CAUSE}
_LONGEST_REASON = 255
_MOST_NEARLY = 3


@dataclass(frozen=True)
class Opens:
    """`nearly`: the rules that almost joined it to an open incident, and what was missing."""

    reason: str
    near_misses: tuple[Nearly, ...] = ()


@dataclass(frozen=True)
class Joins:
    """`role` ROOT: the fault takes the root's place, and the old root becomes a symptom."""

    incident: int
    role: Role
    rule: str
    reason: str


@dataclass(frozen=True)
class Keeps:
    """Recorded as a fault, without an incident of its own for now."""

    reason: str


@dataclass(frozen=True)
class Explained:
    """An incident whose root the new fault explains, and why."""

    incident: int
    rule: str
    reason: str


@dataclass(frozen=True)
class Merges:
    """One response where there were several: `incident` stays, the `others` are part of it, and the
    fault joins it.

    `root_of`: the incident whose root is the root of all; None: the fault's own.
    """

    incident: int
    others: tuple[int, ...]
    joins: Joins
    root_of: int | None
    explained: tuple[Explained, ...]


Placement = Opens | Joins | Keeps | Merges


@dataclass(frozen=True)
class Setting:
    """What the rules may ask besides the two faults."""

    around: Surroundings = field(default_factory=Surroundings)
    window: timedelta = timedelta(minutes=10)
    format_resource: Callable[[str], str] = wording.format_resource_path
    """A resource path as people say it."""
    rules: RuleSet = field(default_factory=rule_file.load)


@dataclass(frozen=True)
class _Match:
    """A rule that joins the fault to an incident, over one of its faults. `side` is the new
    fault's."""

    rule: Rule
    side: Side
    candidate: Candidate
    incident: IncidentView
    role: Role

    @property
    def other(self) -> FaultView:
        return self.candidate.seen.view()

    @property
    def is_cause(self) -> bool:
        """Whether the new fault explains the incident's root."""
        return self.side is Side.CAUSE and not self.rule.is_of_peers


def place(fault: FaultView, incidents: Sequence[IncidentView], setting: Setting) -> Placement:
    """Where a new fault belongs among the open incidents of its neighbourhood."""
    index = CandidateIndex(setting.rules, setting.around)
    for incident in incidents:
        index.enter(
            incident.key, incident, root=incident.root, members=incident.members or (incident.root,)
        )
    return judge(fault, index, setting)


def judge(fault: FaultView, index: CandidateIndex, setting: Setting) -> Placement:
    """The same over an index that is kept for many faults.

    Of several incidents that fit one rule the one with the same resource, then the one nearest in
    time wins.
    """
    first = next(_list_matches(fault, index, setting), None)
    if first is None:
        if fault.opens_incident:
            return Opens("no open incident explains it", _list_nearly(fault, index, setting))
        return Keeps("recorded: a fault of this type opens no incident by itself")
    explained = _find_explained(fault, index, setting)
    if first.incident.key in explained:
        first = next(_find_wider_causes(fault, index, setting, explained), first)
    others = {key: match for key, match in explained.items() if key != first.incident.key}
    joins = Joins(
        first.incident.key, first.role, first.rule.name, _format_reason(first, fault, setting)
    )
    if not others or (first.incident.is_fixed and first.is_cause):
        return joins
    return _list_merges(fault, first, joins, others, setting)


def find_explained(
    fault: FaultView, index: CandidateIndex, setting: Setting
) -> dict[int, Explained]:
    """The incidents whose root a fault of an open incident explains, its own among them, by key."""
    return {
        key: _explain(match, fault, setting)
        for key, match in _find_explained(fault, index, setting).items()
    }


def find_likely(faults: Iterable[FaultView], index: CandidateIndex, setting: Setting) -> set[int]:
    """The incidents that these faults would join if each came alone: to read them at once."""
    likely = set()
    for fault in faults:
        match = next(_list_matches(fault, index, setting), None)
        if match is not None:
            likely.add(match.incident.key)
    return likely


def list_symptoms(
    fault: FaultView,
    index: CandidateIndex,
    setting: Setting,
    *,
    incident: IncidentView,
    is_root: bool,
) -> Iterator[tuple[Candidate, Joins]]:
    """The unassigned faults that belong to the incident now that this fault, its root or a member,
    does."""
    for rule, side in setting.rules.get_sides(fault):
        if not (is_root if rule.is_of_peers or rule.by_root else True) or (
            side is Side.EFFECT and not rule.is_of_peers
        ):
            continue
        for candidate in index.find_matches(rule, side, fault, unassigned=True):
            unassigned = candidate.seen.view()
            match = _Match(
                rule, _OTHER[side], Candidate(fault, incident.key), incident, Role.SYMPTOM
            )
            is_alike = rule.root is Root.STRONGER and takes_root(unassigned, fault)
            if is_alike or not _fits(match, unassigned, setting):
                continue
            yield (
                candidate,
                Joins(
                    incident.key,
                    Role.SYMPTOM,
                    rule.name,
                    _format_reason(match, unassigned, setting),
                ),
            )


def _list_matches(fault: FaultView, index: CandidateIndex, setting: Setting) -> Iterator[_Match]:
    """The best match of each rule, from the top."""
    for rule, side in setting.rules.get_sides(fault):
        candidates = _list_candidates(rule, side, fault, index)
        matches = [match for match in candidates if _fits(match, fault, setting)]
        if matches:
            yield min(matches, key=lambda match: _get_nearness(match, fault))


def _list_candidates(
    rule: Rule, side: Side, fault: FaultView, index: CandidateIndex
) -> Iterator[_Match]:
    if side is Side.CAUSE and (rule.is_symmetric or not _may_explain(rule, fault)):
        return
    views: dict[int, tuple[IncidentView, Role]] = {}  # many of one incident may be met
    for candidate in index.find_matches(rule, side, fault):
        if candidate.incident is not None:
            if candidate.incident not in views:
                incident = index.incidents[candidate.incident].view()
                views[candidate.incident] = incident, _get_role(rule, side, fault, incident)
            yield _Match(rule, side, candidate, *views[candidate.incident])


def _may_explain(rule: Rule, fault: FaultView) -> bool:
    """A rule that asks for an incident's state speaks of what its cause goes through, so never
    takes a root away. What opens no incident explains none."""
    return rule.is_of_peers or (
        not rule.states and fault.opens_incident and not fault.is_sympathetic
    )


def _get_role(rule: Rule, side: Side, fault: FaultView, incident: IncidentView) -> Role:
    if rule.root is Root.CAUSE:
        is_root = side is Side.CAUSE
    elif rule.root is Root.STRONGER:
        is_root = not incident.is_fixed and takes_root(fault, incident.root)
    else:
        is_root = False
    return Role.ROOT if is_root else Role.SYMPTOM


def _get_nearness(match: _Match, fault: FaultView) -> tuple[bool, timedelta, tuple[object, ...]]:
    return (
        match.other.resource != fault.resource,
        get_time_between(fault, match.other),
        match.incident.age,
    )


def _find_explained(fault: FaultView, index: CandidateIndex, setting: Setting) -> dict[int, _Match]:
    """Every incident whose root this fault explains, by the first rule that says so."""
    explained: dict[int, _Match] = {}
    for rule, side in setting.rules.get_sides(fault):
        if side is Side.CAUSE and not rule.is_of_peers:
            for match in _list_candidates(rule, side, fault, index):
                if match.incident.key not in explained and _fits(match, fault, setting):
                    explained[match.incident.key] = match
    return explained


def _find_wider_causes(
    fault: FaultView, index: CandidateIndex, setting: Setting, explained: dict[int, _Match]
) -> Iterator[_Match]:
    """What explains the fault itself, outside of the incidents that it explains: then theirs is the
    root."""
    for match in _list_matches(fault, index, setting):
        is_effect = match.side is Side.EFFECT and not match.rule.is_of_peers
        if is_effect and match.incident.key not in explained:
            yield match


def _list_merges(
    fault: FaultView, first: _Match, joins: Joins, others: dict[int, _Match], setting: Setting
) -> Merges:
    incidents = {first.incident.key: first.incident}
    incidents.update({key: match.incident for key, match in others.items()})
    stays = first.incident
    if not stays.is_fixed:
        stays = min(incidents.values(), key=lambda incident: incident.age)
    is_root = first.role is Role.ROOT
    matches = {first.incident.key: first, **others} if is_root else others
    explained = [_explain(match, fault, setting) for match in matches.values()]
    others_of_stays = tuple(key for key in incidents if key != stays.key)
    return Merges(
        incident=stays.key,
        others=others_of_stays,
        joins=replace(joins, incident=stays.key),
        root_of=None if is_root else first.incident.key,
        explained=tuple(explained),
    )


def _explain(match: _Match, fault: FaultView, setting: Setting) -> Explained:
    reason = _format_sentence(match.incident.root, fault, match.rule.because, setting)
    return Explained(match.incident.key, match.rule.name, reason)


# Whether a rule fits
# ---------------------------------------------------------------------------


def _fits(match: _Match, fault: FaultView, setting: Setting) -> bool:
    return next(_list_unmet(match, fault, setting), None) is None


def _list_unmet(match: _Match, fault: FaultView, setting: Setting) -> Iterator[Miss]:
    """The conditions that do not hold, those first that cost least and fail most; none: the rule
    fits."""
    rule, incident, other = match.rule, match.incident, match.other
    cause, effect = (fault, other) if match.side is Side.CAUSE else (other, fault)
    if not _is_in_time(rule, cause, effect, setting):
        yield Miss.WINDOW
    if not _is_in_order(rule.direction, cause, effect):
        yield Miss.DIRECTION
    if rule.states and incident.state not in rule.states:
        yield Miss.STATE
    if rule.reported_only and incident.has_platform_signal:
        yield Miss.REPORTED
    if not rule.is_of_peers and _are_peers(rule, cause, effect, setting):
        yield Miss.PEERS
    if rule.one_machine and not incident.is_on_one_machine:
        yield Miss.MACHINES
    if match.is_cause and incident.is_fixed:
        yield Miss.FIXED
    if not takes(incident, fault):
        yield Miss.WATCHED
    if _is_doubted(rule, cause, effect):
        yield Miss.DOUBTED


def _are_peers(rule: Rule, cause: FaultView, effect: FaultView, setting: Setting) -> bool:
    """Both could be the cause of the other by this rule: then it says nothing of the two."""
    return setting.rules.is_on(rule, Side.EFFECT, cause) and setting.rules.is_on(
        rule, Side.CAUSE, effect
    )


def _is_doubted(rule: Rule, cause: FaultView, effect: FaultView) -> bool:
    """Whoever can write a text of one machine takes no repair from another, and is the cause of
    nothing that was measured there, nor of a switch whose links were measured as lost. A switch
    that proved who it is has no users but the site's."""
    if cause.is_believed:
        return False
    if cause.owner == effect.owner:
        return effect.fault_type == PORTS_LOST and effect.is_measured and not cause.is_proved
    if effect.is_believed_repair:
        return True
    if rule.is_of_peers:
        return False
    is_switch_itself = cause.is_proved and cause.owner.startswith("switch/")
    return effect.is_measured and not is_switch_itself


def _is_in_time(rule: Rule, cause: FaultView, effect: FaultView, setting: Setting) -> bool:
    if rule.lasts is Lasts.WHILE_OPEN:
        return True
    window = setting.window if rule.window is None else rule.window
    stands = rule.lasts is Lasts.WHILE_ACTIVE and cause.is_active and _is_before(cause, effect)
    return stands or get_time_between(cause, effect) <= window


def _is_in_order(direction: CauseOrder, cause: FaultView, effect: FaultView) -> bool:
    if direction is CauseOrder.EITHER:
        return True
    return (
        _is_before(cause, effect)
        if direction is CauseOrder.CAUSE_FIRST
        else _is_before(effect, cause)
    )


def _is_before(one: FaultView, other: FaultView) -> bool:
    """By either clock: two machines' clocks may differ."""
    return one.occurred_at <= other.occurred_at or one.observed_at <= other.observed_at


def get_time_between(one: FaultView, other: FaultView) -> timedelta:
    """Time between two faults. Clocks of two machines differ, so there our own clock may speak
    too."""
    by_device = abs(one.occurred_at - other.occurred_at)
    if one.owner == other.owner and _has_device_clock(one) and _has_device_clock(other):
        return by_device
    return min(by_device, abs(one.observed_at - other.observed_at))


def _has_device_clock(fault: FaultView) -> bool:
    return fault.occurred_at != fault.observed_at


def takes(incident: IncidentView, fault: FaultView) -> bool:
    """Whether the incident is open to this fault at all.

    One that is watched after its repair is not, for a fault that calls for a repair of its own:
    hidden there, the fault would start none, and the repaired part did nothing to be repaired
    again.
    """
    return (
        incident.state is not State.MONITORING
        or not fault.calls_for_repair
        or is_back(fault, incident)
    )


def is_back(fault: FaultView, incident: IncidentView) -> bool:
    """Whether this is what the incident was about, come again: its root's own fault, or what called
    for its repair.

    The latter is a hardware fault that asks for as much as the incident did, on the root's part, or
    one that was there before. The other end of a link that was the root is the same link. A
    symptom, or a fault of another part, is not.
    """
    root = incident.root
    if _get_identity(fault) == _get_identity(root):
        return True
    is_of_link = fault.is_link and root.is_link
    if not fault.is_hardware and not is_of_link:
        return False
    members = [member.view() for member in incident.members]
    is_known = any(_get_identity(fault) == _get_identity(member) for member in members)
    if is_of_link:
        return is_known
    hardware = [member for member in members if member.is_hardware]
    asked_rank = max(view.action.rank for view in (root, *hardware))
    if fault.action.rank < asked_rank:
        return False
    return is_known or (fault.resource == root.resource and fault.resource != fault.owner)


def _get_identity(fault: FaultView) -> tuple[str, str]:
    return fault.fault_type, fault.resource


def takes_root(fault: FaultView, root: FaultView) -> bool:
    """The first hardware fault stays the root; what only follows, echoes or was merely told gives
    way to it."""
    if not fault.opens_incident or fault.is_sympathetic or fault.fault_type == USER_REPORT:
        return False
    if root.fault_type == USER_REPORT or root.is_sympathetic or not root.opens_incident:
        return True
    if fault.is_one_of(FOLLOWS_HARDWARE) or fault.is_one_of(UNREACHABLE):
        return False
    if root.is_one_of(FOLLOWS_HARDWARE) or root.is_one_of(UNREACHABLE):
        return fault.is_hardware
    if root.is_one_of(NVSWITCH):
        return fault.is_one_of(GPU_LOST)
    if root.is_one_of(NETWORK_CLIENT) or root.is_one_of(ROUTING):
        return fault.is_hardware or fault.is_link or fault.is_of_switch
    if root.is_link:
        return fault.is_hardware or fault.is_of_switch
    return root.action.rank <= Action.WATCH.rank < fault.action.rank


# Words
# ---------------------------------------------------------------------------


def _format_reason(match: _Match, fault: FaultView, setting: Setting) -> str:
    rule = match.rule
    words = (rule.explains or f"its cause, as {rule.because}") if match.is_cause else rule.because
    return _format_sentence(fault, match.other, words, setting)


def _format_sentence(fault: FaultView, other: FaultView, because: str, setting: Setting) -> str:
    what = f"{other.fault_type} on {setting.format_resource(other.resource)}"
    return f"{_format_when(fault, other)} {what}: {because}"[:_LONGEST_REASON]


def _format_when(fault: FaultView, other: FaultView) -> str:
    seconds = (fault.occurred_at - other.occurred_at).total_seconds()
    if abs(seconds) < 1:
        return "at the same moment as"
    lasted = wording.format_duration(timedelta(seconds=abs(seconds)))
    return f"{lasted} before" if seconds < 0 else f"{lasted} after"


def _list_nearly(fault: FaultView, index: CandidateIndex, setting: Setting) -> tuple[Nearly, ...]:
    """Rules of which one condition alone did not hold, at most three; one for each incident."""
    near: dict[int, Nearly] = {}
    for rule, side in setting.rules.get_sides(fault):
        for match in _list_candidates(rule, side, fault, index):
            if match.incident.key in near:
                continue
            misses = list(islice(_list_unmet(match, fault, setting), 2))
            if len(misses) == 1:
                words = near_misses.WORDS[misses[0]]
                if words:
                    reason = _format_sentence(fault, match.other, words, setting)
                    near[match.incident.key] = Nearly(match.incident.key, rule.name, reason)
    return tuple(list(near.values())[:_MOST_NEARLY])
