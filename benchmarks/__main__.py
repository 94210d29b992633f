"""``python -m benchmarks``: measure, print, and say which targets were met; with ``--write``, write
the page too."""

import argparse
import sys
from pathlib import Path
from time import perf_counter

from benchmarks.child import ROOT
from benchmarks.figures import Figure, print_table
from benchmarks.page import write_page
from benchmarks.results import Groups, groups_to_json, read_groups
from benchmarks.subjects import SUBJECTS, run_subject

DOCS = ROOT / "docs"


def main() -> int:
    """Measure what the command line asks for; 1 if anything failed, which keeps nothing else from
    being measured."""
    options = _parse()
    start, figures = perf_counter(), list[Figure]()
    groups = read_groups(options.into / "performance.json") if options.write else Groups()
    for name in options.subjects or SUBJECTS:
        measured = run_subject(name, options.disk, options.quick)
        print(
            f"{name}: {measured.seconds:.0f} s, {(perf_counter() - start) / 60:.1f} min so far",
            file=sys.stderr,
        )
        figures += measured.figures
        groups[name] = measured
        if options.write:  # at once, so that nothing is lost when a later one is interrupted
            write_page(DOCS, options.into, groups)
    if options.json:
        print(groups_to_json(groups), end="")
    else:
        print_table(figures)
    failed = [figure for figure in figures if figure.failed]
    minutes = (perf_counter() - start) / 60
    print(f"{minutes:.1f} minutes, {len(figures)} figures, {len(failed)} failed", file=sys.stderr)
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)}; all by default"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on standard output instead of a table"
    )
    parser.add_argument(
        "--disk", type=Path, default=Path("build/bench"), help="a directory on the disk to measure"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="replace the results of these subjects in performance.json, and write the tables and "
        "the curves of "
        "performance.md from it",
    )
    parser.add_argument(
        "--into", type=Path, default=DOCS, help="a directory for a copy of them, instead of docs"
    )
    options = parser.parse_args()
    for name in options.subjects:
        if name not in SUBJECTS:
            parser.error(f"Unknown subject {name!r}: expected one of {', '.join(SUBJECTS)}.")
    if options.quick and options.write and options.into.resolve() == DOCS:
        parser.error("Sizes of --quick mean nothing on the page. Add --into DIRECTORY, for a copy.")
    return options


if __name__ == "__main__":
    sys.exit(main())
