"""The product with one of its protections taken out: what plays must find without being told.

`taken_out(name)` is the product without that protection, until it ends; `watched(names, speak)` the
product as it is, which tells which of them has changed what was done: in a play where a protection
has not, its mutant plays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

from detectors.slurm.output import NodeState
from incidents.models import Node, Spare
from incidents.reserve import lemons, spares
from incidents.state import outbox
from incidents.triage import deduplication, repeats
from runbooks.engine import keep_drained, persons_resume, start, turn, withdraw, witness_check
from runbooks.engine import result as ending
from runbooks.engine.approvals import Permission
from runbooks.fleet import armings, guard_check
from runbooks.guards import table
from runbooks.lease import lease
from runbooks.models import Arming, Mode
from runbooks.node import drains, holding, overwritten
from runbooks.people import leaving
from runbooks.second_person import requests
from runbooks.slurm import client, ownership
from runbooks.slurm.ownership import Held, Owner
from runbooks.step import Done, World
from runbooks.steps import swap_hot_spare
from runbooks.steps.confirm_on_node import ConfirmOnNode
from runbooks.steps.reboot import Reboot
from runbooks.steps.resume import Resume
from runbooks.steps.verify import Verify
from runbooks.steps.wait_for_neighbours import WaitForNeighbours

Patch = Any


@dataclass(frozen=True)
class Mutant:
    """`taken_out` says which protection is missing; `patches` makes it so. `watches` calls what it
    is given wherever the product would have gone on another way; None: that is not known."""

    name: str
    taken_out: str
    patches: Callable[[], list[Patch]]
    watches: Callable[[Callable[[], None]], list[Patch]] | None = None


def _never(*arguments: object, **more: object) -> None:
    return None


def _no(*arguments: object, **more: object) -> bool:
    return False


def _yes(*arguments: object, **more: object) -> bool:
    return True


def _say_nothing(*arguments: object, **more: object) -> str:
    return ""


def _permit(*arguments: object, **more: object) -> Permission:
    return Permission()


def _replaced(name: str, taken_out: str, *places: tuple[Any, str, Callable[..., Any]]) -> Mutant:
    """Each place: owner, its function's name, and what answers in its stead and changes nothing."""
    return Mutant(
        name,
        taken_out,
        lambda: [patch.object(*place) for place in places],
        lambda speak: [patch.object(*place[:2], _compare(*place, speak)) for place in places],
    )


def _silenced(
    name: str, taken_out: str, owner: Any, function: str, by: Callable[..., Any] = _never
) -> Mutant:
    """What the function does counts, not what it answers."""
    watch = _watch_calls(owner, function)
    return Mutant(name, taken_out, lambda: [patch.object(owner, function, by)], watch)


def _watch_calls(owner: Any, function: str) -> Callable[[Callable[[], None]], list[Patch]]:
    def watch(speak: Callable[[], None]) -> list[Patch]:
        original = getattr(owner, function)

        def tell(*arguments: Any, **more: Any) -> Any:
            speak()
            return original(*arguments, **more)

        return [patch.object(owner, function, tell)]

    return watch


def _compare(
    owner: Any, name: str, by: Callable[..., Any], speak: Callable[[], None]
) -> Callable[..., Any]:
    original = getattr(owner, name)

    def answer(*arguments: Any, **more: Any) -> Any:
        try:
            found = original(*arguments, **more)
        except Exception:
            speak()
            raise
        if found != by(*arguments, **more):
            speak()
        return found

    return answer


def _claim_nothing(*arguments: object, **more: object) -> guard_check.fleet.Claims:
    return guard_check.fleet.Claims(frozenset(), frozenset())


def _rest(run: Any, ctx: Any) -> None:
    lease.release(run, wake_at=None)


def _await_any_reboot(facts: Mapping[str, Any]) -> bool:
    return "reboot_at" in facts and "booted_at" not in facts


def _guard(name: str, taken_out: str, guard: str) -> Mutant:
    def check_otherwise(by: Callable[[Any], Any]) -> list[Patch]:
        guards = tuple(
            replace(row, check=by(row.check)) if row.name == guard else row for row in table.GUARDS
        )
        return [patch.object(table, "GUARDS", guards)]

    def watch(speak: Callable[[], None]) -> list[Patch]:
        return check_otherwise(lambda check: _tell_refusal(check, speak))

    return Mutant(name, taken_out, lambda: check_otherwise(lambda check: _never), watch)


def _tell_refusal(check: Callable[..., Any], speak: Callable[[], None]) -> Callable[..., Any]:
    def tell(*arguments: Any, **more: Any) -> Any:
        refused = check(*arguments, **more)
        if refused is not None:
            speak()
        return refused

    return tell


def _without_comparison(verb: str) -> list[Patch]:
    """The client's verb acts whatever has become of the node since it was seen."""
    original = getattr(client.ScontrolWriter, verb)

    def act(self: client.ScontrolWriter, *arguments: Any, as_seen: Any = None) -> Any:
        return original(self, *arguments, as_seen=None)

    return [patch.object(client.ScontrolWriter, verb, act)]


def _believe_text_alone() -> list[Patch]:
    original = ownership.get_owner

    def get_owner(state: NodeState, incident_id: int, known: Any = None, **more: Any) -> Owner:
        return original(state, incident_id, None, **more)

    return [patch.object(ownership, "get_owner", get_owner)]


def _ignore_setter() -> list[Patch]:
    return [patch.object(ownership.Written, "stands_in", _stands_by_its_beginning)]


def _stands_by_its_beginning(written: ownership.Written, state: NodeState) -> bool:
    return state.reason.startswith(written.reason)


def _take_persons_drains() -> list[Patch]:
    original = ownership.get_owner

    def get_owner(*arguments: Any, **more: Any) -> Owner:
        found = original(*arguments, **more)
        return Owner.SLURM if found is Owner.PERSON else found

    return [patch.object(ownership, "get_owner", get_owner)]


def _hold_always() -> list[Patch]:
    return [patch.object(holding, "get_hold", lambda ctx: Held())]


def _done_at_once(step: type, text: str) -> list[Patch]:
    return [patch.object(step, "run", lambda self, ctx: Done(text))]


def _get_none() -> set[str]:
    return set()


def _list_waiting(partitions: Collection[str]) -> list[Spare]:
    ready = Spare.objects.select_related("node").filter(state=Spare.State.READY)
    fit = (row for row in ready if partitions and set(partitions) <= set(row.partitions))
    return sorted(fit, key=lambda row: (row.since_at, row.pk))


def _lend_twice() -> list[Patch]:
    def get_all() -> Any:
        return Spare.objects.select_related("node").order_by("since_at", "pk")

    def claim(spare: Spare, *, stands_for: str, incident_id: int, now: Any) -> bool:
        out = Node.objects.get(name=stands_for)
        values = {"state": Spare.State.ENTERING, "stands_for": out, "since_at": now}
        return Spare.objects.filter(pk=spare.pk).update(**values) == 1

    return [patch.object(spares, "_get_waiting", get_all), patch.object(spares, "claim", claim)]


def _steal_leases() -> list[Patch]:
    """A worker whose run another has taken acts and stores what it did all the same."""

    def leased(run: Any) -> Any:
        return type(run).objects.filter(pk=run.pk)

    return [patch.object(lease, "_filter_leased", leased)]


def _repeat_blindly() -> list[Patch]:
    def is_done(self: Reboot, ctx: Any) -> None:
        return None

    return [
        patch.object(Reboot, "find_done", is_done),
        patch.object(Reboot, "settles_in", timedelta(0)),
    ]


def _start_whatever_ended() -> list[Patch]:
    """The query that holds what is final is made anew: it is kept otherwise."""
    prepare = start._prepare_waiting.__wrapped__
    return [patch.object(start, "_FINAL", ()), patch.object(start, "_prepare_waiting", prepare)]


def _load_all_armings(*arguments: object) -> list[Arming]:
    return list(Arming.objects.order_by("pk"))


def _find_widest(
    found: Iterable[Arming], runbook: str, node: Any, *, used: int | None
) -> Arming | None:
    """The one that lets most happen, and none that only holds back."""
    narrow_first = (Mode.APPROVAL, Mode.ARMED)
    open_to_run = [row for row in found if row.pk == used or not armings.is_used_up(row)]
    of_runbook = [row for row in open_to_run if row.runbook == runbook]
    covering = [row for row in of_runbook if armings.covers(row, node)]
    acting = [row for row in covering if row.mode in narrow_first]
    return max(acting, key=lambda row: narrow_first.index(Mode(row.mode)), default=None)


def _drop_instead(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A person's resume taken for Slurm's."""

    def get_hold(ctx: Any) -> Any:
        found = original(ctx)
        if isinstance(found, ownership.TakenOver) and found.is_resumed:
            return ownership.Dropped("Slurm dropped it")
        return found

    return get_hold


MUTANTS: tuple[Mutant, ...] = (
    _replaced(
        "comparison",
        "the client compares the node with what was seen before any act",
        (client, "check_unchanged", _never),
    ),
    Mutant("comparison_drain", "... before a drain", lambda: _without_comparison("drain")),
    Mutant("comparison_resume", "... before a resume", lambda: _without_comparison("resume")),
    Mutant("comparison_reboot", "... before a reboot", lambda: _without_comparison("reboot")),
    _replaced(
        "comparison_past_slurm",
        "... before its power is cut, a GPU is reset or the node is tested",
        (World, "check_unchanged", _never),
    ),
    _silenced(
        "accounts",
        "after a drain or resume the accounts are read for what a person said in its moment",
        ending,
        "restore_persons_drain",
    ),
    _silenced(
        "accounts_of_leave",
        "... after whoever has Kintsugi leave has handed a drain over",
        leaving,
        "_put_back_person",
        _say_nothing,
    ),
    _replaced(
        "accounts_of_drain", "... after a drain", (overwritten, "_find_before_drain", _never)
    ),
    _replaced(
        "accounts_of_resume", "... after a resume", (overwritten, "_find_before_resume", _never)
    ),
    Mutant(
        "put_back_looks",
        "words are put back only where ours still stand",
        lambda: [patch.object(overwritten, "_stands", lambda act, state: True)],
    ),
    Mutant("text_alone", "a reason is ours only if a run wrote it", _believe_text_alone),
    Mutant("appended", "a text that somebody appended to is not ours", _ignore_setter),
    Mutant("owner", "a person's drain is left alone", _take_persons_drains),
    _replaced(
        "shown",
        "a drain that the slurmctld of today has shown was not forgotten by it",
        (holding, "_is_drain_forgotten", holding.is_forgotten),
    ),
    _replaced(
        "second_person",
        "where the site wants two persons, one alone has no node's power cut",
        (requests, "is_needed", _no),
    ),
    Mutant("hold", "each turn looks whether the drain is still ours", _hold_always),
    Mutant(
        "fail",
        "FAIL is a person's word",
        lambda: [patch.object(NodeState, "is_failing", property(_no))],
    ),
    Mutant(
        "hidden_reason",
        "a person's drain stays theirs when Slurm writes over its reason",
        lambda: [patch.object(drains, "find_hidden_reason", lambda ctx: "")],
    ),
    _replaced(
        "persons_reboot",
        "a reboot that somebody asked for is left to them",
        (turn, "_is_being_rebooted", _no),
    ),
    Mutant(
        "withdrawn_reboot",
        "our reboot is cancelled when a person resumes the node",
        lambda: [patch.object(drains, "withdraw_own_reboot", lambda ctx: "")],
    ),
    _silenced(
        "paused",
        "what its last act owes people is looked after while a run is paused",
        withdraw,
        "check_paused_run",
        _rest,
    ),
    Mutant(
        "withdrawal_looks",
        "a withdrawn run gives back only what it holds",
        lambda: [patch.object(withdraw.drains, "evaluate_hold", lambda ctx: Held())],
    ),
    Mutant(
        "persons_resume",
        "a node that a person resumed is not drained again",
        lambda: [
            patch.object(holding, "get_hold", _drop_instead(holding.get_hold)),
        ],
    ),
    _replaced(
        "counted_once",
        "of a fault that stands an event that comes twice counts once",
        (deduplication, "_get_seen_reason", _say_nothing),
        (repeats, "use_keys", _say_nothing),
    ),
    _replaced(
        "arming_scope",
        "an arming counts on the nodes that it names alone",
        (armings, "covers", _yes),
    ),
    _replaced(
        "arming_end",
        "an arming that is over or was taken back counts no more",
        (armings, "load_in_force", _load_all_armings),
    ),
    _replaced(
        "arming_runs",
        "an arming is for so many runs",
        (armings, "is_used_up", _no),
        (armings, "count_run", _yes),
    ),
    _replaced(
        "arming_narrows",
        "of the armings that cover a runbook there the strictest counts",
        (armings, "find_deciding", _find_widest),
    ),
    _replaced(
        "set_aside",
        "nothing is begun on a node that is set aside, or given back, by itself",
        (lemons, "get_quarantined", _get_none),
    ),
    Mutant(
        "spare_once",
        "a spare stands in for one node",
        _lend_twice,
        _watch_calls(spares, "_get_waiting"),
    ),
    _replaced(
        "spare_serves",
        "a spare that is out is not brought in",
        (swap_hot_spare, "_list_serving", lambda rows, slurm: list(rows)),
    ),
    _replaced(
        "spare_set_aside",
        "no spare stands in that is set aside or taken away for good",
        (spares, "list_ready", _list_waiting),
    ),
    _replaced(
        "spare_refusal",
        "the root of a spare may refuse",
        (swap_hot_spare, "_find_refusal", _say_nothing),
    ),
    Mutant(
        "neighbours",
        "no transceiver is pulled while a node that hangs on it runs a job",
        lambda: _done_at_once(WaitForNeighbours, "x"),
        _watch_calls(WaitForNeighbours, "run"),
    ),
    _guard("stop", "the stop switch", "stop switch"),
    _guard("mode", "the mode", "mode"),
    _replaced(
        "leave",
        "in mode approval a person lets a run act",
        (turn.approvals, "check_permission", _permit),
    ),
    _replaced(
        "kept_out",
        "nothing is given back where whoever stopped everything says so",
        (turn, "_is_kept_out", _no),
    ),
    _guard("breaker", "the breaker", "breaker"),
    _guard(
        "decommissioned", "nothing is done to a node that is taken away for good", "decommissioned"
    ),
    _replaced("refusal", "the node's own root may refuse", (turn, "_is_refused_by_node", _no)),
    _replaced(
        "persons_own_reboot",
        "a reboot that a person asked for is theirs to cancel",
        (drains, "is_own_reboot_awaited", _await_any_reboot),
    ),
    _guard("maintenance", "maintenance holds drains and reboots", "maintenance"),
    _replaced("maintenance_of_steps", "maintenance holds resumes", (turn, "_is_maintained", _no)),
    _guard("cap", "the cap of a partition", "cap"),
    _guard("pod_floor", "the floor of a pod", "pod floor"),
    _guard("job_floor", "what the largest job needs", "job floor"),
    _guard("rate", "how many nodes one fault type may take an hour", "rate"),
    _guard("cooldown", "one restart a day", "reboots"),
    _replaced(
        "claims",
        "what other runs have been let take out counts",
        (guard_check.fleet, "_load_claims", _claim_nothing),
    ),
    Mutant("repeat", "a reboot of unknown outcome is looked at, not repeated", _repeat_blindly),
    Mutant("fence", "one worker at a time on a run", _steal_leases),
    Mutant(
        "forged",
        "the node denies what a text alone tells, by a witness and once more by its confirmation:"
        " each is enough",
        lambda: [
            patch.object(witness_check, "is_denied", _no),
            *_done_at_once(ConfirmOnNode, "x"),
        ],
    ),
    Mutant("verify", "a node is verified before jobs get it", lambda: _done_at_once(Verify, "x")),
    _replaced(
        "new_trouble",
        "a node that fell ill after its proof is not given back",
        (Resume, "find_obstacle", _never),
    ),
    _silenced(
        "kept_drained",
        "a drain that Slurm dropped after the run's end is put back",
        keep_drained,
        "_drain_again",
    ),
    _silenced(
        "resumed_and_ill",
        "people hear that the node they resumed is still ill",
        persons_resume,
        "_ask_person",
    ),
    _silenced("told", "an incident owes people a message", outbox, "enqueue"),
    _silenced("cards", "a card is owed anew when its incident changes", outbox, "_raise_cards"),
    Mutant(
        "final",
        "a run that a person ended does not come again",
        _start_whatever_ended,
    ),
)


BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@contextmanager
def taken_out(name: str) -> Iterator[None]:
    """The product without that protection; with an empty name as it is."""
    with ExitStack() as patched:
        if name:
            for change in BY_NAME[name].patches():
                patched.enter_context(change)
        yield


@contextmanager
def watched(names: Iterable[str], speak: Callable[[str], None]) -> Iterator[None]:
    """The product as it is; `speak` is called with the name of a mutant of these wherever it would
    have gone on another way."""
    with ExitStack() as patched:
        for name in names:
            watches = BY_NAME[name].watches
            for change in watches(partial(speak, name)) if watches is not None else ():
                patched.enter_context(change)
        yield
