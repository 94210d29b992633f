"""Run the published vectors on your implementation: `python -m shardvar.vectors ANSWERS [GROUP ...]`.

ANSWERS is `package.module` or `package.module:Name`: a module, a mapping, an object or a class with
a function for each op, which takes the inputs of a case as a dict and returns the answer or raises
an exception. Or it is a file `answers.jsonl` with the answers of a program in any language.

Prints each case that failed, each that has another acceptable answer with the reason, and the
counts. An op without an answer is an error unless `--without` lists it. The exit code is 0 only if a
case passed and none failed, and 2 if the answers cannot be used.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from shardvar.errors import ShardvarError
from shardvar.vectors import run


def run_program(arguments: list[str] | None = None) -> int:
    """Judge the answers and print the report; return the exit code."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m shardvar.vectors", description=__doc__, formatter_class=layout
    )
    parser.add_argument("answers", metavar="ANSWERS")
    parser.add_argument("groups", nargs="*", default=[], metavar="GROUP")
    parser.add_argument(
        "--without", default="", metavar="OP,OP", help="ops that the implementation does not have"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="list unclaimed cases too")
    options = parser.parse_args(arguments)
    without = [name for name in options.without.split(",") if name]
    try:
        if options.answers.endswith(".jsonl"):
            found = run.judged_file(Path(options.answers), options.groups, without)
        else:
            sys.path.insert(0, "")
            found = run.run(run.import_answers(options.answers), options.groups, without)
    except ShardvarError as error:
        print(error, file=sys.stderr)
        return 2
    # The failures, the acceptable differences with their reasons, and the counts.
    counts = Counter(each.outcome for each in found)
    shown = {"failed", "acceptable"} | ({"not claimed"} if options.verbose else set())
    for each in found:
        if each.outcome in shown:
            print(f"{each.outcome} {each.id}: {each.why}")
    kinds = ("passed", "acceptable", "not claimed", "failed")
    print(", ".join(f"{kind} {counts[kind]}" for kind in kinds))
    return int(counts["failed"] > 0 or counts["passed"] == 0)


if __name__ == "__main__":
    sys.exit(run_program())
