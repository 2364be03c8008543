"""The product with one of its protections taken out: what plays must find without being told.

`taken_out(name)` is the product without that protection, until it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from detectors.slurm.output import NodeState
from incidents.state import outbox
from incidents.triage import correlate, deduplication, repeats
from runbooks.engine import keep_drained, persons_resume, start, turn, withdraw, witness_check
from runbooks.engine import result as ending
from runbooks.engine.approvals import Permission
from runbooks.fleet import guard_check
from runbooks.guards import table
from runbooks.lease import lease
from runbooks.node import drains, holding, overwritten
from runbooks.slurm import client, ownership
from runbooks.slurm.ownership import Held, Owner
from runbooks.step import Done, World
from runbooks.steps.confirm_on_node import ConfirmOnNode
from runbooks.steps.reboot import Reboot
from runbooks.steps.resume import Resume
from runbooks.steps.verify import Verify

Patch = Any


@dataclass(frozen=True)
class Mutant:
    """`taken_out` says which protection is missing; `patches` makes it so."""

    name: str
    taken_out: str
    patches: Callable[[], list[Patch]]


def _never(*arguments: object, **more: object) -> None:
    return None


def _no(*arguments: object, **more: object) -> bool:
    return False


def _permit(*arguments: object, **more: object) -> Permission:
    return Permission()


def _await_any_reboot(facts: Mapping[str, Any]) -> bool:
    return "reboot_at" in facts and "booted_at" not in facts


def _without_guard(name: str) -> list[Patch]:
    guards = tuple(
        replace(guard, check=_never) if guard.name == name else guard for guard in table.GUARDS
    )
    return [patch.object(table, "GUARDS", guards)]


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


def _count_twice() -> list[Patch]:
    def know_nothing(keys: object) -> set[str]:
        return set()

    def use_all(item: object, new_keys: object) -> str:
        return ""

    return [
        patch.object(deduplication.upsert, "get_known", know_nothing),
        patch.object(repeats, "use_keys", use_all),
        patch.object(correlate, "use_keys", use_all),
    ]


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


def _drop_instead(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A person's resume taken for Slurm's."""

    def get_hold(ctx: Any) -> Any:
        found = original(ctx)
        if isinstance(found, ownership.TakenOver) and found.is_resumed:
            return ownership.Dropped("Slurm dropped it")
        return found

    return get_hold


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "comparison",
        "the client compares the node with what was seen before any act",
        lambda: [patch.object(client, "check_unchanged", _never)],
    ),
    Mutant("comparison_drain", "... before a drain", lambda: _without_comparison("drain")),
    Mutant("comparison_resume", "... before a resume", lambda: _without_comparison("resume")),
    Mutant("comparison_reboot", "... before a reboot", lambda: _without_comparison("reboot")),
    Mutant(
        "comparison_past_slurm",
        "... before its power is cut, a GPU is reset or the node is tested",
        lambda: [patch.object(World, "check_unchanged", _never)],
    ),
    Mutant(
        "accounts",
        "after a drain or resume the accounts are read for what a person said in its moment",
        lambda: [patch.object(ending, "restore_persons_drain", _no)],
    ),
    Mutant(
        "accounts_of_drain",
        "... after a drain",
        lambda: [patch.object(overwritten, "_find_before_drain", _never)],
    ),
    Mutant(
        "accounts_of_resume",
        "... after a resume",
        lambda: [patch.object(overwritten, "_find_before_resume", _never)],
    ),
    Mutant(
        "put_back_looks",
        "words are put back only where ours still stand",
        lambda: [patch.object(overwritten, "_stands", lambda act, state: True)],
    ),
    Mutant("text_alone", "a reason is ours only if a run wrote it", _believe_text_alone),
    Mutant("appended", "a text that somebody appended to is not ours", _ignore_setter),
    Mutant("owner", "a person's drain is left alone", _take_persons_drains),
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
    Mutant(
        "persons_reboot",
        "a reboot that somebody asked for is left to them",
        lambda: [patch.object(turn, "_is_being_rebooted", _no)],
    ),
    Mutant(
        "withdrawn_reboot",
        "our reboot is cancelled when a person resumes the node",
        lambda: [patch.object(drains, "withdraw_own_reboot", lambda ctx: "")],
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
    Mutant("counted_once", "an event that comes twice counts once", _count_twice),
    Mutant("stop", "the stop switch", lambda: _without_guard("stop switch")),
    Mutant("mode", "the mode", lambda: _without_guard("mode")),
    Mutant(
        "leave",
        "in mode approval a person lets a run act",
        lambda: [patch.object(turn.approvals, "check_permission", _permit)],
    ),
    Mutant(
        "kept_out",
        "nothing is given back where whoever stopped everything says so",
        lambda: [patch.object(turn, "_is_kept_out", _no)],
    ),
    Mutant("breaker", "the breaker", lambda: _without_guard("breaker")),
    Mutant(
        "decommissioned",
        "nothing is done to a node that is taken away for good",
        lambda: _without_guard("decommissioned"),
    ),
    Mutant(
        "refusal",
        "the node's own root may refuse",
        lambda: [patch.object(turn, "_is_refused_by_node", _no)],
    ),
    Mutant(
        "persons_own_reboot",
        "a reboot that a person asked for is theirs to cancel",
        lambda: [patch.object(drains, "is_own_reboot_awaited", _await_any_reboot)],
    ),
    Mutant(
        "maintenance", "maintenance holds drains and reboots", lambda: _without_guard("maintenance")
    ),
    Mutant(
        "maintenance_of_steps",
        "maintenance holds resumes",
        lambda: [patch.object(turn, "_is_maintained", _no)],
    ),
    Mutant("cap", "the cap of a partition", lambda: _without_guard("cap")),
    Mutant("pod_floor", "the floor of a pod", lambda: _without_guard("pod floor")),
    Mutant("job_floor", "what the largest job needs", lambda: _without_guard("job floor")),
    Mutant(
        "rate", "how many nodes one fault type may take an hour", lambda: _without_guard("rate")
    ),
    Mutant("cooldown", "one restart a day", lambda: _without_guard("reboots")),
    Mutant(
        "claims",
        "what other runs have been let take out counts",
        lambda: [
            patch.object(
                guard_check.fleet,
                "_load_claims",
                lambda which, now: guard_check.fleet.Claims(frozenset(), frozenset()),
            )
        ],
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
    Mutant(
        "new_trouble",
        "a node that fell ill after its proof is not given back",
        lambda: [patch.object(Resume, "find_obstacle", _never)],
    ),
    Mutant(
        "kept_drained",
        "a drain that Slurm dropped after the run's end is put back",
        lambda: [patch.object(keep_drained, "_drain_again", _never)],
    ),
    Mutant(
        "resumed_and_ill",
        "people hear that the node they resumed is still ill",
        lambda: [patch.object(persons_resume, "_ask_person", _never)],
    ),
    Mutant(
        "told",
        "an incident owes people a message",
        lambda: [patch.object(outbox, "enqueue", _never)],
    ),
    Mutant(
        "cards",
        "a card is owed anew when its incident changes",
        lambda: [patch.object(outbox, "_raise_cards", _never)],
    ),
    Mutant(
        "final",
        "a run that a person ended does not come again",
        lambda: [patch.object(start, "_FINAL", ())],
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
