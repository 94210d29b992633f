"""The page of ``shardvar diff --html``: both checkpoints as columns, what differs, and histograms
of what differs.

The steps: before a value is read, see that a page has room for the columns; after the comparison,
that it has room for the differences; with ``--stats``, measure what differs and keep as much as
there is room for; write the page.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from shardvar.cli.maps import through_map
from shardvar.cli.names import names_of
from shardvar.cli.output import note, progress
from shardvar.cli.view import as_typed, message_as_typed, write_page
from shardvar.errors import ReadError
from shardvar.layout.dtypes import Ints
from shardvar.verbs.compare.blocks import Statistics, histograms, measure
from shardvar.verbs.compare.comparison import DiffReport
from shardvar.verbs.locate import Location, find_checkpoint
from shardvar.verbs.mapping import renamed_reader
from shardvar.verbs.reader import Reader, open_found
from shardvar.verbs.renaming import matches_any
from shardvar.verbs.scalars import read_scalars
from shardvar.view.collect import (
    Columns,
    StatisticsByKey,
    describe,
    describe_diff,
    file_sizes,
    statistics_that_fit,
)
from shardvar.view.page import make_page, room_left
from shardvar.view.scalars import scalar_columns


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two checkpoints."""

    path: str
    """As it was typed."""
    found: Location
    name: str
    """Its name on the page."""
    reader: Reader
    scalars: Columns
    """Its settings, and the values of its scalars."""
    keys: Sequence[str]
    """The keys that are compared."""

    def columns(
        self, measured: StatisticsByKey | None = None, counts: Mapping[str, Ints] | None = None
    ) -> Columns:
        """Return what the page has of it."""
        sizes = file_sizes(self.found.storage, self.reader.index.files)
        about = describe(self.reader, list(self.keys), sizes, measured, counts) | self.scalars
        return as_typed(about, self.found, self.path, self.name)


def check_diff_page(arguments: Namespace, rename: Mapping[str, str]) -> None:
    """Raise ``ArgumentError`` if the page would be too large whatever differs; no value is read."""
    with ExitStack() as stack:
        make_page([side.columns() for side in _open_sides(stack, arguments, rename)], {})


def write_diff_page(arguments: Namespace, report: DiffReport, rename: Mapping[str, str]) -> None:
    """Write the page of the compared tensors, of A as the map and ``rename`` make them."""
    with ExitStack() as stack:
        sides = _open_sides(stack, arguments, rename)
        told = describe_diff(report, sides[0].keys)
        side_of = dict(zip("ab", sides, strict=True))
        told["unreadable"] = [
            [row, side, kind, message_as_typed(text, side_of[side].found, side_of[side].path)]
            for row, side, kind, text in told["unreadable"]
        ]
        columns = [side.columns() for side in sides]
        if arguments.stats:
            make_page(columns, told)  # raises
            columns = _with_statistics(sides, report, told)
    write_page(arguments.html, make_page(columns, told))


def _open_sides(stack: ExitStack, arguments: Namespace, rename: Mapping[str, str]) -> list[_Side]:
    sides: list[_Side] = []
    checkpoints = [(find_checkpoint(path), path) for path in (arguments.a, arguments.b)]
    for (found, path), name in zip(checkpoints, names_of(*checkpoints), strict=True):
        reader = stack.enter_context(open_found(found, dequantize=arguments.dequantize))
        if not sides:
            reader = renamed_reader(through_map(reader, arguments), rename)
        keys = [key for key in reader if _is_chosen(key, arguments.filter, arguments.exclude)]
        scalars = scalar_columns(reader, keys, read_scalars(reader, keys))
        sides.append(_Side(path, found, name, reader, scalars, keys))
    return sides


def _is_chosen(name: str, globs: Sequence[str] | None, excluded: Sequence[str] | None) -> bool:
    if matches_any(name, excluded or ()):
        return False
    return not globs or matches_any(name, globs)


def _with_statistics(sides: Sequence[_Side], report: DiffReport, told: Columns) -> list[Columns]:
    """Return the columns with statistics and bin counts of the tensors that differ, as many as
    there is room for.

    Both sides have the same bins, and the same tensors have statistics in both.
    """
    differing = {each.key for each in report.differences}
    keys = [[key for key in side.keys if key in differing] for side in sides]
    total = 2 * sum(_nbytes(side.reader, some) for side, some in zip(sides, keys, strict=True))
    with progress("reading", lambda: total) as advance:
        measured = [
            dict(measure(side.reader, some, advance))
            for side, some in zip(sides, keys, strict=True)
        ]
        kept = _that_fit(sides, measured, told)
        ends = _ends(kept)
        columns = []
        for side, of_side in zip(sides, kept, strict=True):
            joint = {
                key: replace(each, minimum=ends[key][0], maximum=ends[key][1])
                for key, each in of_side.items()
                if isinstance(each, Statistics) and key in ends
            }
            columns.append(side.columns(of_side, dict(histograms(side.reader, joint, advance))))
    names, shown = ({key for of_side in some for key in of_side} for some in (measured, kept))
    for each in columns:
        each["stats"]["num_left_out"] = len(names) - len(shown)
    if len(shown) < len(names):
        note(
            f"note: the page has room for the histograms of {len(shown):,} of {len(names):,} "
            "tensors. Choose tensors with `--filter`."
        )
    return columns


def _that_fit(
    sides: Sequence[_Side], measured: Sequence[StatisticsByKey], told: Columns
) -> list[StatisticsByKey]:
    """Return the statistics of the tensors that fit the page, and every error."""
    errors = [
        {key: each for key, each in some.items() if isinstance(each, ReadError)}
        for some in measured
    ]
    plain = make_page([side.columns(some) for side, some in zip(sides, errors, strict=True)], told)
    room = room_left(plain) // 2
    kept = [
        statistics_that_fit(side.keys, some, room)
        for side, some in zip(sides, measured, strict=True)
    ]
    left_out = {
        key for all_, some in zip(measured, kept, strict=True) for key in all_.keys() - some.keys()
    }
    return [
        {
            key: each
            for key, each in some.items()
            if isinstance(each, ReadError) or key not in left_out
        }
        for some in kept
    ]


def _nbytes(reader: Reader, keys: Sequence[str]) -> int:
    slices = reader.entries().slices
    rows, nbytes = slices.tensors.rows(), slices.nbytes_of_tensors()
    return sum(int(nbytes[rows[key]]) for key in keys if key in rows)


def _ends(measured: Sequence[StatisticsByKey]) -> dict[str, tuple[Any, Any]]:
    """The least and the largest finite value of each key, of both sides together."""
    ends: dict[str, tuple[Any, Any]] = {}
    for of_side in measured:
        for key, each in of_side.items():
            if (
                isinstance(each, Statistics)
                and each.minimum is not None
                and each.maximum is not None
            ):
                low, high = ends.get(key, (each.minimum, each.maximum))
                ends[key] = min(low, each.minimum), max(high, each.maximum)
    return ends
