"""Run a folder of vectors against this engine: ``python spec_tests/run_vectors.py DIR [GROUP ...]``.

Prints a row for each failure, with ``-v`` for each deviation too, and last ``passed P, deviates D, failed F``. The exit
code is 0 only where nothing failed. The vectors of the group ``operators`` are Python expressions and are evaluated:
run it on vectors that you trust.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(path) for path in (HERE, HERE.parent) if str(path) not in sys.path]

from vectors import group_module  # noqa: E402 - found by the line above
from vectors.cases import Verdict, judge  # noqa: E402


def verdicts(folder: Path, groups: list[str]) -> Iterator[Verdict]:
    """One for every case of every file, or of the groups that are named."""
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        group = document.get("header", {}).get("group", path.stem)
        if not groups or group in groups:
            module = group_module(group)
            yield from (judge(case, module) for case in document["cases"])


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("groups", nargs="*")
    parser.add_argument("-v", "--verbose", action="store_true", help="list deviations too")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    for verdict in verdicts(options.folder, options.groups):
        counts[verdict.kind] += 1
        if verdict.kind == "failed" or (options.verbose and verdict.kind == "deviates"):
            print(f"{verdict.kind} {verdict.id}: {verdict.why}")
    print(f"passed {counts['passed']}, deviates {counts['deviates']}, failed {counts['failed']}")
    return int(counts["failed"] > 0 or not counts)


if __name__ == "__main__":
    sys.exit(main())
