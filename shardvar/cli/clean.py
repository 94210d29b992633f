"""``shardvar clean``: list what killed writers have left, and remove it with ``--remove``."""

import re
from argparse import Namespace

from shardvar.cli.output import (
    answer,
    count,
    human_age,
    human_size,
    human_time,
    note,
    path_on_a_line,
    print_json,
    print_table,
    say,
)
from shardvar.errors import ArgumentError
from shardvar.verbs.clean import DAY, clean

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}
_MOST_ROWS = 100


def execute(arguments: Namespace) -> int:
    seconds = _seconds(arguments.older_than)
    report = clean(arguments.folder, remove=arguments.remove, older_than=seconds)
    if arguments.json:
        print_json(report.to_json())
        return 0
    rows, old = report.leftovers, [each for each in report.leftovers if each.is_old]
    done = arguments.remove and report.num_removed == len(rows)
    answer("good" if done or not rows else "attention", str(report))
    shown = rows if arguments.all else rows[:_MOST_ROWS]
    cells = [
        (
            path_on_a_line(each.path),
            each.kind,
            human_size(each.nbytes),
            "" if each.age is None else human_age(each.age),
        )
        for each in shown
    ]
    if cells:
        print_table(("path", "kind", "size", "changed"), cells, right=(2,), drop=(1, 3))
    if len(shown) < len(rows):
        say(f"{len(rows) - len(shown):,} more (--all)")
    for each in rows:
        if each.writer:
            note(f"note: {path_on_a_line(each.path)} is {each.writer}")
    if any(each.kind == "mark of uploads" for each in rows):
        note(
            "note: the service may have parts of unfinished uploads, which are not listed here: a "
            "lifecycle rule (AbortIncompleteMultipartUpload) ends them; Azure drops them after a week"
        )
    if report.num_at_work:
        note(f"note: {count(report.num_at_work, 'file')} of writers at work not listed")
    if len(old) < len(rows):
        note(
            f"note: {count(len(rows) - len(old), 'leftover')} younger than {human_time(seconds)}: "
            "kept by --remove"
        )
    if old and not arguments.remove:
        note(f"hint: --remove removes {len(old):,} of them")
    return 0


def _seconds(text: str | None) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", "1d" if text is None else text)
    if match is None:
        raise ArgumentError(
            f"Invalid age {text!r}.", "Give a number with an optional unit, such as 30m, 12h or 2d."
        )
    return float(match[1]) * _UNITS[match[2]]
