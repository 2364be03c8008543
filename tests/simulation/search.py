"""Many plays, of the product as it is or without one of its protections."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from tests.simulation.mutants import BY_NAME, MUTANTS, taken_out
from tests.simulation.play import play_once
from tests.simulation.record import Broken


def list_failures(seeds: Iterable[int], mutant: str = "", *, go_on: bool = False) -> Iterator[str]:
    """The report of each play that fails; of the first one alone unless `go_on`."""
    with taken_out(mutant):
        for seed in seeds:
            try:
                play_once(seed)
            except Broken as broken:
                yield str(broken)
                if not go_on:
                    return


def get_trace(seed: int, mutant: str = "") -> str:
    with taken_out(mutant):
        return "\n".join(play_once(seed).trace)


def find_seed(mutant: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of these whose play finds that mutant, and what it found; None where none does."""
    for report in list_failures(seeds, mutant):
        first = report.partition("\n")[0]
        return int(first.split()[1].rstrip(":")), first
    return None


def print_mutants(first: int, plays: int, names: list[str]) -> int:
    """How many plays each takes to be found; 1 where one is not."""
    missed = 0
    for mutant in [BY_NAME[name] for name in names] or MUTANTS:
        begun = time.monotonic()
        found = find_seed(mutant.name, range(first, first + plays))
        took = time.monotonic() - begun
        if found is None:
            missed += 1
            print(f"{mutant.name:<22} NOT FOUND in {plays} plays ({took:.0f} s)", flush=True)
            continue
        seed, what = found
        print(f"{mutant.name:<22} {seed - first + 1:>6} plays  {what[:150]}", flush=True)
    return 1 if missed else 0
