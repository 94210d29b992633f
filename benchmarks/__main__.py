"""``python -m benchmarks``: measure, print, and say which targets were met."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import (
    conversions,
    layouts,
    lookup,
    objects,
    orbax_checkpoints,
    partial,
    plan,
    policies,
    redistribution,
    reshard,
    sharded,
    simulate,
    startup,
    table,
    tiny,
    torch_checkpoints,
    training,
)
from benchmarks.figures import Figure, print_table, to_json
from benchmarks.places import open_places
from benchmarks.setting import Setting
from benchmarks.sizes import FULL, QUICK

SUBJECTS: dict[str, Callable[[Setting], Iterator[Figure]]] = {
    module.__name__.rpartition(".")[2]: module.measure
    for module in (
        *(startup, lookup, partial, plan, tiny, table, torch_checkpoints, orbax_checkpoints),
        *(objects, policies, redistribution, reshard, conversions, sharded, training, layouts, simulate),
    )
}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output instead of a table")
    parser.add_argument("--disk", type=Path, default=Path("build/bench"), help="a directory on the disk to measure")
    options = parser.parse_args()
    for name in options.subjects:
        if name not in SUBJECTS:
            parser.error(f"Unknown subject {name!r}: expected one of {', '.join(SUBJECTS)}.")
    figures = []
    with open_places(options.disk) as places:
        setting = Setting(places, QUICK if options.quick else FULL)
        for name in options.subjects or SUBJECTS:
            for figure in SUBJECTS[name](setting):
                figures.append(figure)
                print(" | ".join(filter(None, figure.cells())), file=sys.stderr)
    if options.json:
        print(json.dumps(to_json(figures), indent=1))
    else:
        print_table(figures)


if __name__ == "__main__":
    main()
