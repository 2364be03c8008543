"""Many plays, of the product as it is or without one of its protections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.simulation.mutants import BY_NAME, taken_out, watched
from tests.simulation.play import play_once
from tests.simulation.record import Broken


def list_failures(seeds: Iterable[int], mutant: str = "", *, go_on: bool = False) -> Iterator[str]:
    """The report of each play that fails; of the first one alone unless `go_on`."""
    for seed in seeds:
        failure = find_failure(seed, mutant)
        if failure:
            yield failure
            if not go_on:
                return


def find_failure(seed: int, mutant: str = "") -> str:
    """The report of a play that fails; empty for one that does not."""
    with taken_out(mutant):
        try:
            play_once(seed)
        except Broken as broken:
            return str(broken)
    return ""


def get_trace(seed: int, mutant: str = "") -> str:
    with taken_out(mutant):
        return "\n".join(play_once(seed).trace)


def print_mutants(first: int, plays: int, names: list[str]) -> int:
    """How many plays each takes to be found; 1 where one is not, or where the product itself fails.
    A seed is played once for all of them, and anew for each of those whose protection has had a word
    in it."""
    missing = [BY_NAME[name].name for name in names] or list(BY_NAME)
    for number, seed in enumerate(range(first, first + plays), start=1):
        spoken: set[str] = set()
        with watched(missing, spoken.add):
            failure = find_failure(seed)
        if failure:
            print(failure, flush=True)
            return 1
        candidates = [name for name in missing if name in spoken or BY_NAME[name].watches is None]
        for name in candidates:
            found = find_failure(seed, name)
            if found:
                missing.remove(name)
                print(f"{name:<22} {number:>6} plays  {found.splitlines()[0][:150]}", flush=True)
        if not missing:
            return 0
    for name in missing:
        print(f"{name:<22} NOT FOUND in {plays} plays", flush=True)
    return 1
