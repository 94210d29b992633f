"""``shardvar diff``: compare two checkpoints, and with ``--html`` draw both on one page."""

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator

from shardvar.cli.changes import print_changes
from shardvar.cli.comparison_page import check_diff_page, write_diff_page
from shardvar.cli.maps import map_of
from shardvar.cli.numbers import note_dequantized
from shardvar.cli.output import Mark, answer, note, print_json, progress, say, short_path
from shardvar.cli.plan import print_rules
from shardvar.cli.renames import rename_hint
from shardvar.cli.usage import parse_renames
from shardvar.cli.verify import payload_nbytes
from shardvar.cli.view import check_target, show_link
from shardvar.cli.workers import executor_of
from shardvar.errors import ArgumentError
from shardvar.verbs.compare.comparison import DiffReport, lines_of_diff, only_dtypes
from shardvar.verbs.compare.diff import diff
from shardvar.verbs.mapping import paths_of_ranks

_EQUAL, _DIFFERENT, _UNREADABLE = 0, 1, 3


def execute(arguments: Namespace) -> int:
    """Compare and print. Return 0 for equal checkpoints, 1 for different ones, 3 if a tensor cannot
    be read."""
    a, b = arguments.a, arguments.b
    given = map_of(arguments)
    stored = [
        os.fsdecode(each)
        for path, is_made in ((a, False), (b, True))
        for each in paths_of_ranks(path, given, is_made=is_made)
    ]
    rename = parse_renames(arguments.rename or (), None)
    if arguments.html:
        if len(stored) > 2:
            cause = f"--html shows two checkpoints, and {len(stored)} are compared."
            raise ArgumentError(cause, "Leave --html out: the report in text is about all ranks.")
        check_target(arguments.html)
        check_diff_page(arguments, rename or {})
    elif arguments.stats:
        raise ArgumentError(
            "--stats is given without --html.", "Add --html FILE: the page shows the histograms."
        )
    with (
        executor_of(arguments) as executor,
        progress("comparing", lambda: sum(map(payload_nbytes, stored))) as advance,
    ):
        report = diff(
            a,
            b,
            advance,
            filter=arguments.filter,
            exclude=arguments.exclude,
            rename=rename,
            map=given,
            rtol=arguments.rtol,
            atol=arguments.atol,
            close=arguments.close,
            ignore_dtype=arguments.ignore_dtype,
            dequantize=arguments.dequantize,
            executor=executor,
        )
    note_dequantized(stored, arguments.dequantize)
    if arguments.sort == "change":
        report = report.by_change()
    if arguments.json:
        print_json(report.to_json())
    else:
        _print(report, arguments)
    if arguments.html:
        write_diff_page(arguments, report, rename or {})
        note(f"wrote {short_path(arguments.html)}")
        show_link(arguments.html)
    if not arguments.json:
        for remedy in _remedies(report, arguments):
            note(f"hint: {remedy}")
    if report.unreadable:
        return _UNREADABLE
    return _EQUAL if report.equal else _DIFFERENT


def _remedies(report: DiffReport, arguments: Namespace) -> Iterator[str]:
    """Yield what to type next: a renaming, or to compare only the values."""
    if not arguments.rename and (remedy := rename_hint(report, arguments)):
        yield remedy
    pairs = {dtype for each in report.differences for dtype in (each.dtype_a, each.dtype_b)}
    if only_dtypes(report) and pairs <= _ROUNDED_CLOSELY:
        options = [] if arguments.ignore_dtype else ["--ignore-dtype"]
        has_tolerance = arguments.close or arguments.rtol is not None or arguments.atol is not None
        if not has_tolerance and any(each.values for each in report.differences):
            options.append("--close")
        if options:
            command = shlex.join(["shardvar", *arguments.words, *options])
            yield f"To compare only values: `{command}`"


_ROUNDED_CLOSELY = {"float64", "float32", "float16", "bfloat16"}
"""Dtypes whose tolerances allow for rounding from a more precise one among them."""


def _print(report: DiffReport, arguments: Namespace) -> None:
    """Print the verdict and what differs: folded at a terminal, a line a tensor in a pipe."""
    verdict, *lines = lines_of_diff(report)
    mark: Mark = "good" if report.equal else "bad" if report.unreadable else "different"
    answer(
        mark, verdict, "equal" if report.equal else "differs" if " differs" in verdict else "differ"
    )
    if arguments.summary:
        return
    if sys.stdout.isatty() and not arguments.all:
        print_changes(report, by_change=arguments.sort != "index")
    else:
        for line in lines:
            say(line)
    if report.map is not None:
        print_rules(report.map)
