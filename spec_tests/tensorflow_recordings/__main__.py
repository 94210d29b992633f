"""Run a folder of TensorFlow's recordings against this engine: `python spec_tests/run_vectors.py
DIR [GROUP ...]`.

Prints a row for each failure, with ``-v`` for each deviation too; then the rules that explain the
deviations, with their number and a case each; and last ``passed P, deviates D, failed F``. The exit
code is 0 only where nothing failed. The cases of the group `operators` are Python expressions and
are evaluated: run it only on recordings that you trust.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from spec_tests.tensorflow_recordings import group_module
from spec_tests.tensorflow_recordings.cases import Verdict, judge


def verdicts(folder: Path, groups: list[str]) -> Iterator[Verdict]:
    """Yield the verdict on each case of each file, or of the named groups only."""
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        group = document.get("header", {}).get("group", path.stem)
        if not groups or group in groups:
            module = group_module(group)
            yield from (judge(case, module) for case in document["cases"])


def main(arguments: list[str] | None = None) -> int:
    """Print the failures and the counts; return the exit code."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("run_vectors.py", description=__doc__, formatter_class=layout)
    parser.add_argument("folder", type=Path)
    parser.add_argument("groups", nargs="*")
    parser.add_argument("-v", "--verbose", action="store_true", help="list deviations too")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    explained: dict[str, list[str]] = {}
    for verdict in verdicts(options.folder, options.groups):
        counts[verdict.kind] += 1
        if verdict.kind == "deviates":
            explained.setdefault(verdict.why, []).append(verdict.id)
        if verdict.kind == "failed" or (options.verbose and verdict.kind == "deviates"):
            print(f"{verdict.kind} {verdict.id}: {verdict.why}")
    for rule, cases in sorted(explained.items()):
        print(f"{rule} of docs/deviations.md explains {len(cases)}, such as {cases[0]}")
    print(f"passed {counts['passed']}, deviates {counts['deviates']}, failed {counts['failed']}")
    return int(counts["failed"] > 0 or not counts)


if __name__ == "__main__":
    sys.exit(main())
