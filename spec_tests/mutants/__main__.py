"""``python -m spec_tests.mutants [--no-rules] [NAME...]``: make these mutants, or all, and print
what sees each.

The exit code is 1 where a mutant survives, 2 where one cannot be made or a run proves nothing.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spec_tests.mutants.mutant import DoesNotApply, Mutant
from spec_tests.mutants.run import NoProof, Seen, Workshop
from spec_tests.mutants.table import MUTANTS

JOBS = int(os.environ.get("JOBS", "2"))


def lines_of(seen: Seen) -> Iterator[str]:
    """A row of the table: the mutant and its bug, the tests, the rules."""
    yield f"{'caught  ' if seen.tests else 'SURVIVES'}  {seen.mutant.name}: {seen.mutant.bug}"
    for test in seen.tests:
        yield f"            {test.removeprefix('spec_tests/')}"
    if seen.rules is not None:
        yield f"            kit: {', '.join(seen.rules) or 'no rule'} (of level {seen.mutant.levels})"


def look(workshop: Workshop, mutant: Mutant, with_rules: bool) -> Seen | str:
    """Return the tests and rules that see a mutant, or the reason why that is unknown."""
    try:
        return workshop.look(mutant, with_rules)
    except (DoesNotApply, NoProof) as error:
        return f"ERROR     {mutant.name}: {error}"


def main(words: list[str]) -> int:
    names = [word for word in words if not word.startswith("-")]
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        print(f"There is no mutant {', '.join(sorted(unknown))}.")
        return 2
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(JOBS) as pool:
        workshop = Workshop(Path(directory).resolve()).open()
        found = []
        for each in pool.map(
            lambda mutant: look(workshop, mutant, "--no-rules" not in words), chosen
        ):
            found.append(each)
            print(*([each] if isinstance(each, str) else lines_of(each)), sep="\n", flush=True)
        whole = workshop.control([each for each in found if isinstance(each, Seen)])
    if whole:
        print(f"ERROR     Without any mutant these fail too: {', '.join(whole)}")
    errors = sum(isinstance(each, str) for each in found) + len(whole)
    caught = sum(isinstance(each, Seen) and bool(each.tests) for each in found)
    survive = sum(isinstance(each, Seen) and not each.tests for each in found)
    by_kit = [each for each in found if isinstance(each, Seen) and each.rules is not None]
    print(f"\n{len(found)} mutants: {caught} caught, {survive} survive, {errors} errors, ", end="")
    print(
        f"in {time.monotonic() - start:.0f} s. Of {len(by_kit)} that concern the conformance kit, ",
        end="",
    )
    print(f"{sum(bool(each.rules) for each in by_kit)} break a rule of it.")
    return 2 if errors else 0 if caught == len(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
