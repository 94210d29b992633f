"""``python -m spec_tests.mutation [--layer NAME] [--seed N] [--per-layer N] [--again |
--matrix]``: draw mutants and judge them.

It prints what sees each mutant and writes the results and docs/mutation.md. ``--again`` repeats the
recorded survivors that nobody has judged. ``--peers`` takes the layers whose tests need the real
frameworks, and the others are taken without it. ``--matrix`` finds all tests that notice each mutant, and
writes the table of ``matrix`` instead. Without ``--seed`` the seed is a new one. The exit code is 1
where a mutant survives that nobody has shown to be equivalent.
"""

import argparse
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from spec_tests.helpers.paths import ROOT
from spec_tests.mutation.matrix import record, show
from spec_tests.mutation.page import write_page
from spec_tests.mutation.results import (
    LayerResults,
    Result,
    read_judgements,
    read_results,
    write_results,
)
from spec_tests.mutation.sample import LAYERS, OF_PEERS, Mutant, all_mutants, draw, lines_of
from spec_tests.mutation.trace import JOBS, Trace, read_trace
from spec_tests.mutation.trial import Copy


def look(
    mutants: Sequence[Mutant], trace: Trace, *, peers: bool, all_: bool = False
) -> Iterator[tuple[Mutant, list[str]]]:
    """Yield each mutant with the first test that notices it, or all; a few are tried at once, each
    in a copy of its own.

    Changes in functions are tried in forks first, which is quick; what survives there, and the
    rest, one by one.
    """
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(JOBS) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(JOBS):
            copies.put(Copy(Path(directory).resolve() / str(number)).open())

        def with_copy(work: Callable[[Copy], list[Any]]) -> list[Any]:
            copy = copies.get()
            try:
                return work(copy)
            finally:
                copies.put(copy)

        # A process that has imported a framework has threads, and is not forked.
        inner = [each for each in mutants if each.change.function and not peers]
        shares = [inner[number::JOBS] for number in range(JOBS)]
        sifted = pool.map(
            lambda share: with_copy(lambda copy: copy.sift(share, trace, all_=all_)), shares
        )
        seen = {
            mutant: tests
            for share, found in zip(shares, sifted, strict=True)
            for mutant, tests in zip(share, found, strict=True)
            if tests
        }

        def judge(mutant: Mutant) -> list[str]:
            return seen.get(mutant) or with_copy(lambda copy: copy.judge(mutant, trace, all_=all_))

        yield from zip(mutants, pool.map(judge, mutants), strict=True)


def try_layer(mutants: Sequence[Mutant], trace: Trace, *, peers: bool) -> list[Result]:
    """Try mutants of a layer, and print what sees each."""
    judgements, found = read_judgements(), []
    for mutant, tests in look(mutants, trace, peers=peers):
        result = Result.of(mutant, next(iter(tests), ""))
        found.append(result)
        same = judgements.get(result.change, "")
        print(
            f"{'caught' if result.seen_by else 'same' if same else 'SURVIVES'}  "
            f"{mutant.place}  {result.kind}"
        )
        print(
            f"    - {result.before}\n    + {result.after}\n    {result.seen_by or same}", flush=True
        )
    return found


def commit() -> str:
    """Return the commit of the working copy, in twelve digits."""
    program = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(program, capture_output=True, text=True, check=True).stdout.strip()


def survivors(layer: str, results: Sequence[Result]) -> list[Mutant]:
    """Return the mutants of today's source that survived when they were tried, and that nobody has
    judged. Of several with the same text, such as ``return False``, the nearest line is meant."""
    judged = read_judgements()
    survived = {each.change: each for each in results if not each.seen_by}
    there: dict[tuple[str, str, str], list[Mutant]] = {}
    for mutant in all_mutants(layer):
        there.setdefault((mutant.path, *mutant.difference()), []).append(mutant)
    return [
        min(there[change], key=lambda one: abs(one.change.start[0] - survived[change].line))
        for change in sorted(survived.keys() & there.keys() - judged.keys())
    ]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m spec_tests.mutation")
    parser.add_argument("--layer", choices=LAYERS, action="append")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--per-layer", type=int, default=40)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--peers", action="store_true")
    chosen = parser.parse_args(words)
    seed = secrets.randbelow(10**6) if chosen.seed is None else chosen.seed
    layers = [each for each in chosen.layer or LAYERS if (each in OF_PEERS) == chosen.peers]
    trace = read_trace(layers)
    for layer in layers:
        if chosen.matrix:
            mutants = draw(layer, seed, chosen.per_layer)
            record(
                layer,
                seed,
                commit(),
                trace,
                list(look(mutants, trace, peers=chosen.peers, all_=True)),
            )
            print("\n".join(show(layer)), flush=True)
            continue
        before = read_results().get(layer)
        if chosen.again and before:
            mutants = survivors(layer, before.results)
            again = {
                each.change: each.seen_by for each in try_layer(mutants, trace, peers=chosen.peers)
            }
            results = replace(
                before,
                again=commit(),
                results=tuple(
                    replace(each, seen_by=again.get(each.change, each.seen_by))
                    for each in before.results
                ),
            )
        else:
            print(f"{layer}: seed {seed}", flush=True)
            found = try_layer(draw(layer, seed, chosen.per_layer), trace, peers=chosen.peers)
            results = LayerResults(seed, commit(), "", len(lines_of(layer)), tuple(found))
        write_results(read_results() | {layer: results})
    return 0 if chosen.matrix else write_page()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
