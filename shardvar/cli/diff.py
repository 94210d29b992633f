"""``shardvar diff``: compare two checkpoints, and with ``--html`` draw both on one page."""

import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from shardvar.checkpoint.comparison import DiffReport, lines_of_diff
from shardvar.checkpoint.diff import diff
from shardvar.checkpoint.locate import find_checkpoint
from shardvar.checkpoint.reader import Reader
from shardvar.checkpoint.renaming import new_names
from shardvar.checkpoint.stats import Statistics, histograms, measure
from shardvar.cli.changes import print_changes
from shardvar.cli.output import answer, note, print_json, progress, say, short_path
from shardvar.cli.usage import parse_renames
from shardvar.cli.verify import payload_nbytes
from shardvar.cli.view import as_typed, check_target, message_as_typed, write_page
from shardvar.cli.workers import executor_of
from shardvar.errors import ArgumentError, ReadError
from shardvar.layout.dtypes import Ints
from shardvar.view.collect import describe, describe_diff, file_sizes, front_coded
from shardvar.view.page import make_page

_EQUAL, _DIFFERENT, _UNREADABLE = 0, 1, 3

_MOST_PREFIXES = 16
"""Prefixes that are tried before names are said to have nothing in common."""

_Measured = dict[str, Statistics | ReadError]


def execute(arguments: Namespace) -> int:
    """Compare and print. Return 0 for equal checkpoints, 1 for different ones, 3 where a tensor cannot be read."""
    a, b = arguments.a, arguments.b
    rename = parse_renames(arguments.rename or (), None)
    if arguments.html:
        check_target(arguments.html)
    elif arguments.stats:
        raise ArgumentError("--stats is given without --html.", "Add --html FILE: the page shows the histograms.")
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
        _write_diff_page(arguments, report, rename or {})
        note(f"wrote {short_path(arguments.html)}")
    if not arguments.json and not arguments.rename and (remedy := _rename_by_prefix(report)):
        note(f"hint: {remedy}")
    if report.unreadable:
        return _UNREADABLE
    return _EQUAL if report.equal else _DIFFERENT


def _rename_by_prefix(report: DiffReport) -> str | None:
    """Return how to compare checkpoints without a name in common, where one prefix is what most names differ in."""
    if report.num_equal or report.differences or report.unreadable:
        return None
    for short, long, pattern in (("B", "A", "{}*=*"), ("A", "B", "*={}*")):
        names = {"A": report.only_in_a, "B": report.only_in_b}
        if prefix := _prefix_before(names[short], names[long]):
            rename = shlex.quote(pattern.format(prefix))
            return f"Most names of {short} are in {long}, after {prefix!r}. To compare them: --rename {rename}"
    return None


def _prefix_before(names: Sequence[str], longer: Sequence[str]) -> str | None:
    """Return a text that makes most of some names those of another list; None without one."""
    if not names:
        return None
    ends = (key.removesuffix(names[0]) for key in longer if key.endswith(names[0]) and key != names[0])
    there = set(longer)
    # A name such as "w" may be the end of all others.
    for prefix in islice(ends, _MOST_PREFIXES):
        if "*" not in prefix and 2 * sum(prefix + name in there for name in names) > len(names):
            return prefix
    return None


def _print(report: DiffReport, arguments: Namespace) -> None:
    """Print the verdict, and below it what differs: folded at a terminal, a line for each tensor in a pipe."""
    verdict, *lines = lines_of_diff(report)
    answer("good" if report.equal else "bad" if report.unreadable else "different", verdict)
    if arguments.summary:
        return
    if sys.stdout.isatty() and not arguments.all:
        print_changes(report, by_change=arguments.sort != "index")
        return
    for line in lines:
        say(line)


def _write_diff_page(arguments: Namespace, report: DiffReport, rename: Mapping[str, str]) -> None:
    """Write the page of the tensors that were compared, those of A by the names that ``rename`` gives them."""
    paths = arguments.a, arguments.b
    found = [find_checkpoint(path) for path in paths]
    with ExitStack() as stack:
        readers = [stack.enter_context(Reader(each.path, each.format.name, each.open())) for each in found]
        names = [_compared(reader, of, arguments) for reader, of in zip(readers, (rename, {}), strict=True)]
        values = _values_of_both(readers, names, report) if arguments.stats else [(None, None), (None, None)]
        columns = []
        for path, there, reader, name_of, (measured, counts) in zip(paths, found, readers, names, values, strict=True):
            sizes = file_sizes(there.storage, reader.index.files)
            about = describe(reader, list(name_of), sizes, measured, counts)
            columns.append(as_typed(about | {"keys": front_coded(list(name_of.values()))}, there, path))
    told = describe_diff(report, list(names[0].values()))
    sides = {"a": 0, "b": 1}
    told["unreadable"] = [
        [row, side, kind, message_as_typed(text, found[sides[side]], paths[sides[side]])]
        for row, side, kind, text in told["unreadable"]
    ]
    write_page(arguments.html, make_page(columns, told))


def _compared(reader: Reader, rename: Mapping[str, str], arguments: Namespace) -> dict[str, str]:
    """The keys that were compared, each with the name under which it was."""
    name_of = dict(zip(reader.keys(), new_names(reader.keys(), rename), strict=True))
    return {key: name for key, name in name_of.items() if _is_chosen(name, arguments.filter, arguments.exclude)}


def _is_chosen(name: str, globs: Sequence[str] | None, excluded: Sequence[str] | None) -> bool:
    if any(fnmatchcase(name, glob) for glob in excluded or ()):
        return False
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def _values_of_both(
    readers: Sequence[Reader], names: Sequence[Mapping[str, str]], report: DiffReport
) -> list[tuple[_Measured, dict[str, Ints]]]:
    """Return statistics and bin counts of the tensors that differ, of each side; both sides have the same bins."""
    differing = {each.key for each in report.differences}
    keys = [[key for key, name in name_of.items() if name in differing] for name_of in names]
    total = 2 * sum(_nbytes(reader, some) for reader, some in zip(readers, keys, strict=True))
    with progress("reading", lambda: total) as advance:
        measured = [dict(measure(reader, some, advance)) for reader, some in zip(readers, keys, strict=True)]
        ends = _ends(measured, names)
        found = []
        for reader, of_side, name_of in zip(readers, measured, names, strict=True):
            joint: _Measured = {
                key: replace(each, minimum=ends[name_of[key]][0], maximum=ends[name_of[key]][1])
                for key, each in of_side.items()
                if isinstance(each, Statistics) and name_of[key] in ends
            }
            found.append((of_side, dict(histograms(reader, joint, advance))))
    return found


def _nbytes(reader: Reader, keys: Sequence[str]) -> int:
    slices = reader.entries().slices
    rows, nbytes = slices.tensors.rows(), slices.nbytes_of_tensors()
    return sum(int(nbytes[rows[key]]) for key in keys if key in rows)


def _ends(measured: Sequence[_Measured], names: Sequence[Mapping[str, str]]) -> dict[str, tuple[Any, Any]]:
    """The least and the largest finite value of each name, of both sides together."""
    ends: dict[str, tuple[Any, Any]] = {}
    for of_side, name_of in zip(measured, names, strict=True):
        for key, each in of_side.items():
            if isinstance(each, Statistics) and each.minimum is not None and each.maximum is not None:
                low, high = ends.get(name_of[key], (each.minimum, each.maximum))
                ends[name_of[key]] = min(low, each.minimum), max(high, each.maximum)
    return ends
