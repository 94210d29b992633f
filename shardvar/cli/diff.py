"""``shardvar diff``: compare two checkpoints, and with ``--html`` draw both on one page."""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from itertools import islice

from shardvar.cli.changes import print_changes
from shardvar.cli.comparison_page import check_diff_page, write_diff_page
from shardvar.cli.output import answer, note, print_json, progress, say, short_path
from shardvar.cli.usage import parse_renames
from shardvar.cli.verify import payload_nbytes
from shardvar.cli.view import check_target, show_link
from shardvar.cli.workers import executor_of
from shardvar.errors import ArgumentError
from shardvar.verbs.compare.comparison import DiffReport, lines_of_diff
from shardvar.verbs.compare.diff import diff

_EQUAL, _DIFFERENT, _UNREADABLE = 0, 1, 3

_MOST_PREFIXES = 16
"""Prefixes that are tried before names are said to have nothing in common."""


def execute(arguments: Namespace) -> int:
    """Compare and print. Return 0 for equal checkpoints, 1 for different ones, 3 where a tensor
    cannot be read."""
    a, b = arguments.a, arguments.b
    rename = parse_renames(arguments.rename or (), None)
    if arguments.html:
        check_target(arguments.html)
        check_diff_page(arguments, rename or {})
    elif arguments.stats:
        raise ArgumentError(
            "--stats is given without --html.", "Add --html FILE: the page shows the histograms."
        )
    with (
        executor_of(arguments) as executor,
        progress("comparing", lambda: payload_nbytes(a) + payload_nbytes(b)) as advance,
    ):
        report = diff(
            a,
            b,
            advance,
            filter=arguments.filter,
            exclude=arguments.exclude,
            rename=rename,
            rtol=arguments.rtol,
            atol=arguments.atol,
            close=arguments.close,
            ignore_dtype=arguments.ignore_dtype,
            executor=executor,
        )
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
    if not arguments.json and not arguments.rename and (remedy := _rename_by_prefix(report)):
        note(f"hint: {remedy}")
    if report.unreadable:
        return _UNREADABLE
    return _EQUAL if report.equal else _DIFFERENT


def _rename_by_prefix(report: DiffReport) -> str | None:
    """Return how to compare checkpoints without a name in common, where one prefix is what most
    names differ in."""
    if report.num_equal or report.differences or report.unreadable:
        return None
    for short, long, pattern in (("B", "A", "{}*=*"), ("A", "B", "*={}*")):
        names = {"A": report.only_in_a, "B": report.only_in_b}
        if prefix := _prefix_before(names[short], names[long]):
            rename = shlex.quote(pattern.format(prefix))
            return (
                f"Most names of {short} are in {long}, after {prefix!r}. To compare them: --rename "
                f"{rename}"
            )
    return None


def _prefix_before(names: Sequence[str], longer: Sequence[str]) -> str | None:
    """Return a text that turns most of some names into names of another list; None without one."""
    if not names:
        return None
    ends = (
        key.removesuffix(names[0]) for key in longer if key.endswith(names[0]) and key != names[0]
    )
    there = set(longer)
    # A name such as "w" may be the end of all others.
    for prefix in islice(ends, _MOST_PREFIXES):
        if "*" not in prefix and 2 * sum(prefix + name in there for name in names) > len(names):
            return prefix
    return None


def _print(report: DiffReport, arguments: Namespace) -> None:
    """Print the verdict, and below it what differs: folded at a terminal, a line a tensor in a
    pipe."""
    verdict, *lines = lines_of_diff(report)
    answer("good" if report.equal else "bad" if report.unreadable else "different", verdict)
    if arguments.summary:
        return
    if sys.stdout.isatty() and not arguments.all:
        print_changes(report, by_change=arguments.sort != "index")
        return
    for line in lines:
        say(line)
