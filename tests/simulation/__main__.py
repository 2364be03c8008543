"""`python -m tests.simulation SEED` plays that seed and prints its trace; `--plays N` plays many.

`--mutant NAME` plays the product without one of its protections; `--mutants` looks how many plays it
takes to find each of them.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections.abc import Iterator, Sequence

from tests.simulation import database

_TOLD_EACH = 100
_OBJECTS_A_COLLECTION = 200_000


def main() -> int:
    options = _parse_options()
    database.prepare()
    logging.disable(logging.ERROR)  # the trace tells it
    from tests.simulation import search  # noqa: PLC0415 - its models need the settings

    # Modules and models, which no collection frees, are most of what each would walk: measured, a
    # quarter of a play's time.
    gc.freeze()
    gc.set_threshold(_OBJECTS_A_COLLECTION)

    if options.mutants is not None:
        return search.print_mutants(options.seed, options.plays, options.mutants)
    begun = time.monotonic()
    seeds = _tell_progress(range(options.seed, options.seed + options.plays))
    failures = search.list_failures(seeds, options.mutant, go_on=options.go_on)
    failed = 0
    for failure in failures:
        failed += 1
        print(failure, flush=True)
    if options.plays == 1 and not failed:
        print(search.get_trace(options.seed, options.mutant))
    took = time.monotonic() - begun
    print(f"{options.plays} plays, {failed} failed, {options.plays / took:.1f} plays/s")
    return 1 if failed else 0


def _tell_progress(seeds: Sequence[int]) -> Iterator[int]:
    for number, seed in enumerate(seeds):
        if number and number % _TOLD_EACH == 0:
            print(f"{number} of {len(seeds)} plays", file=sys.stderr, flush=True)
        yield seed


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--plays", type=int, default=1)
    parser.add_argument("--go-on", action="store_true", help="after a play that fails")
    parser.add_argument("--mutant", default="", metavar="NAME")
    parser.add_argument(
        "--mutants",
        nargs="*",
        metavar="NAME",
        help="all, or these: how many of --plays each takes to be found",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
