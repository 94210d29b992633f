"""An index as columns that fit in a page.

Most keys share their beginning with the key before them and most shapes occur often, so each
beginning and each shape is stored once. Most slices are whole tensors, which take one number. A
tensor thus takes some thirty bytes, and the part of its key that is new.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from os.path import basename, commonprefix
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, CheckpointError, MissingFile, ReadError, StorageError
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import EntryTable
from shardvar.storage.protocol import Storage
from shardvar.verbs.compare.blocks import NUM_BINS, Statistics
from shardvar.verbs.compare.comparison import DiffReport, ValueDifference
from shardvar.verbs.holders import holders_of
from shardvar.verbs.numbers import Number, json_number
from shardvar.verbs.parameters import count_in, is_optimizer_state, reading_key
from shardvar.verbs.reader import Reader
from shardvar.verbs.renaming import select_keys
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.verify import guarded_keys

Columns = dict[str, Any]
StatisticsByKey = Mapping[str, Statistics | ReadError]

HEIGHTS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""The heights of the bars of a histogram, one character each; the highest bar of a histogram has
the last character."""

_DIFFERENCE = {
    "count": "count",
    "first": "first",
    "absolute": "max_absolute",
    "absolute_at": "max_absolute_at",
    "relative": "max_relative",
    "without": "num_without_distance",
    "cosine": "cosine",
    "norm": "relative_norm",
    "only": "only",
}
"""The fields of a difference by the names that the page has for them."""

_DIGITS = 6
"""Digits of a statistic in the page, as it prints them; all seventeen would make the page half as
large again."""

_COLUMNS_NBYTES = 500
"""The most bytes that the columns of statistics grow by, without any tensor's own, if there are
some: a column of equal numbers is an object in place of a list, and a number says how many are left
out."""

_RUN_NBYTES = len("1,0,123456789,")
"""The most bytes by which a count that is not zero lengthens a column of zeros, without its own."""

_EXACT = 2**53
"""The first integer whose successor JavaScript cannot represent; integers from here on are sent as
text."""


def choose_keys(
    reader: Reader, filter: Sequence[str] | None = None, exclude: Sequence[str] | None = None
) -> list[str]:
    """Return the keys that ``select_keys`` chooses, as a model is read."""
    chosen = select_keys(list(reader), filter, exclude)
    return sorted((key for key in reader if key in chosen), key=reading_key)


def file_sizes(storage: Storage, files: Sequence[str]) -> list[int | None]:
    """Return the bytes of each data file; None for a file that is missing or cannot be opened."""
    return [_size(storage, name) for name in files]


def describe(
    reader: Reader,
    keys: Sequence[str],
    file_nbytes: Sequence[int | None],
    measured: StatisticsByKey | None = None,
    counts: Mapping[str, Ints] | None = None,
) -> Columns:
    """Return the columns of one checkpoint: the content of its index about the tensors named by
    ``keys``.

    Slices are grouped by tensor, in the order of their offsets. A tensor whose entries cannot be
    read has dtype -1, shape -1 and no slices.
    """
    metadata = reader.metadata
    about = {
        "path": reader.path,
        "name": basename(reader.path.rstrip("/")),
        "format": reader.format,
        "writer": metadata.writer,
        "description": metadata.description,
        "metadata": dict(metadata.user),
        "num_parameters": _num_parameters(reader.entries(), keys, reader.encodings),
        "files": list(reader.index.files),
        "file_nbytes": list(file_nbytes),
        **_faults(reader, keys, measured or {}),
        "stats": None
        if measured is None
        else _statistics(keys, measured, counts or {}, _num_unguarded(reader, keys)),
    }
    return about | _tensor_columns(reader.entries(), keys, reader.index.files)


def statistics_that_fit(
    keys: Sequence[str], measured: StatisticsByKey, room: int
) -> StatisticsByKey:
    """Return what was measured, of as many tensors as fit into ``room`` bytes of a page, and every
    error.

    Tensors with NaN, infinity or one value come first, then the largest.
    """
    row_of = {key: row for row, key in enumerate(keys)}
    found = [(key, each) for key, each in measured.items() if isinstance(each, Statistics)]
    found.sort(key=lambda pair: (not _is_remarkable(pair[1]), -pair[1].count))
    ends = np.cumsum([_statistics_nbytes(row_of[key], each) for key, each in found])
    left_out = {
        key for key, _ in found[int(np.searchsorted(ends, room - _COLUMNS_NBYTES, side="right")) :]
    }
    return {key: each for key, each in measured.items() if key not in left_out}


def _is_remarkable(found: Statistics) -> bool:
    return bool(found.nan or found.inf or found.minimum == found.maximum)


def _statistics_nbytes(row: int, found: Statistics) -> int:
    """Return the most bytes that the statistics of a tensor add to the columns; no number of bars
    exceeds ``count``.

    A count of zero adds none to the run that it is in. Another ends it: the pair "7,1," and the
    pair "0,123456," of the next run. Where ``packed`` lists a column instead, more than a sixth of
    its counts are not zero, and add more.
    """
    values = [_short(json_number(value)) for value in _values_of(found)]
    counts = [each for each in (found.nan, found.inf, found.zero) if each]
    text = json.dumps([*values, *counts, row, found.count, found.count], separators=(",", ":"))
    return len(text) - 1 + _RUN_NBYTES * len(counts) + NUM_BINS


def describe_plan(report: WriteReport) -> tuple[Columns, list[Columns]]:
    """Return the numbers of a dry run, and the columns of the checkpoint that it would write."""
    entries = report.planned
    if entries is None:
        raise ArgumentError(
            "The report is of a write that was done.", "Give the report of a dry run."
        )
    keys = sorted(entries.slices.tensors.keys, key=reading_key)
    ends = np.array(
        report.file_nbytes, np.int64
    )  # at least the payloads; where they lie is up to the format
    np.maximum.at(ends, entries.file, entries.start + entries.slices.nbytes)
    about: Columns = {
        "path": report.path,
        "name": basename(report.path.rstrip("/")),
        "format": report.format,
        "writer": "",
        "description": report.description,
        "metadata": {},
        "num_parameters": _num_parameters(entries, keys, {}),
        "files": [f"file {number}" for number in range(report.num_files)],
        "file_nbytes": ends.tolist(),
        "faults": [],
        "causes": [],
        "stats": None,
    }
    numbers = ("read_nbytes", "num_copies", "peak_nbytes", "free_nbytes")
    return {name: getattr(report, name) for name in numbers}, [
        about | _tensor_columns(entries, keys, ())
    ]


def _tensor_columns(entries: EntryTable, keys: Sequence[str], files: Sequence[str]) -> Columns:
    tensors, row_of = entries.slices.tensors, entries.slices.tensors.rows()
    rows = [row_of.get(key, -1) for key in keys]
    order, num_slices = _slices_of(entries, rows)
    used = sorted({tensors.dtype(row) for row in rows if row >= 0})
    shapes: dict[tuple[int, ...], int] = {}
    shape = [-1 if row < 0 else shapes.setdefault(tensors.shape(row), len(shapes)) for row in rows]
    nbytes = np.append(entries.slices.nbytes_of_tensors(), 0)  # the last one is that of row -1
    holders = holders_of(entries, files)
    return {
        "dtypes": used,
        "shapes": [_exact(each) for each in shapes],
        "keys": front_coded(keys),
        "optimizer": ranges_of([is_optimizer_state(key) for key in keys]),
        "dtype": packed([-1 if row < 0 else used.index(tensors.dtype(row)) for row in rows]),
        "shape": packed(shape),
        "nbytes": packed(nbytes[rows].tolist()),
        "num_slices": packed(num_slices),
        "slices": _slice_columns(entries, order)
        | {"device": holders and packed(holders.device[order].tolist())},
        "holder": holders and holders.noun,
    }


def describe_diff(report: DiffReport, keys: Sequence[str]) -> Columns:
    """Return the differences of two checkpoints; a tensor is given by its row in ``keys``, those of
    the first one."""
    row_of = {key: row for row, key in enumerate(keys)}
    return {
        "num_equal": report.num_equal,
        "fields": list(_DIFFERENCE),
        "differences": [
            [
                row_of[each.key],
                json_number(each.change),
                *(_value_difference(each.values) if each.values else []),
            ]
            for each in report.differences
        ],
        "unreadable": [
            [row_of[each.key], each.side, each.kind, each.message] for each in report.unreadable
        ],
    }


def front_coded(keys: Sequence[str]) -> Columns:
    """Return, for each key, the number of characters that it shares with the key before it, and the
    rest of it.

    >>> front_coded(["dense/bias", "dense/kernel", "step"])
    {'shared': [0, 6, 0], 'rest': ['dense/bias', 'kernel', 'step']}
    """
    # No paths.
    shared = [len(commonprefix(pair)) for pair in zip(["", *keys], keys, strict=False)]  # noqa: RUF071
    return {
        "shared": shared,
        "rest": [key[count:] for key, count in zip(keys, shared, strict=True)],
    }


def ranges_of(chosen: Sequence[bool]) -> list[list[int]]:
    """Return the half-open ranges of the rows that are chosen.

    >>> ranges_of([False, True, True, False, True])
    [[1, 3], [4, 5]]
    """
    edges = np.flatnonzero(np.diff(np.array([False, *chosen, False], np.int8)))
    ranges: list[list[int]] = edges.reshape(-1, 2).tolist()
    return ranges


def packed(column: Sequence[Any]) -> Sequence[Any] | Columns:
    """Return a column, or where its values repeat, its runs: each value, and how often it comes in
    a row.

    >>> packed([0, 0, 0, 0, 0, 7]), packed([1, 1, 2]), packed([])
    ({'runs': [0, 5, 7, 1]}, [1, 1, 2], [])
    """
    runs = [(value, sum(1 for _ in equal)) for value, equal in groupby(column)]
    # Three rows a run, or the numbers of rows would take more characters than the values that they
    # stand for.
    return (
        {"runs": [number for run in runs for number in run]}
        if 0 < 3 * len(runs) <= len(column)
        else column
    )


def unpacked(column: Sequence[Any] | Columns) -> Sequence[Any]:
    """Return the column that was packed.

    >>> unpacked({"runs": [0, 2, 7, 1]}), unpacked([1, 2])
    ([0, 0, 7], [1, 2])
    """
    if not isinstance(column, dict):
        return column
    runs = column["runs"]
    return [
        value for value, length in zip(runs[::2], runs[1::2], strict=True) for _ in range(length)
    ]


def gaps(files: Sequence[int], starts: Sequence[int], nbytes: Sequence[int]) -> list[int | str]:
    """Return the bytes from the end of the slice before, of the same file, to each slice: 0 in most
    checkpoints.

    A start too large for JavaScript is sent as text, and the slice behind it is counted from the
    one before.
    """
    ends: dict[int, int] = {}
    gaps: list[int | str] = []
    for file, start, size in zip(files, starts, nbytes, strict=True):
        end = ends.get(file, 0)
        gaps.append(start - end if start < _EXACT else str(start))
        ends[file] = start + size if start + size < _EXACT else end
    return gaps


def bar_heights(counts: Ints) -> str:
    """Return a histogram as one character a bar; only a count of zero has height zero.

    >>> bar_heights(np.array([0, 1, 350, 700]))
    '01iz'
    """
    # Rounded up, so that one value among a million still shows: ceil(1 * 35 / 700) = 1.
    highest = max(int(counts.max()), 1)
    scaled = -(-counts * (len(HEIGHTS) - 1) // highest)
    return "".join(HEIGHTS[height] for height in scaled.tolist())


def _size(storage: Storage, name: str) -> int | None:
    try:
        file = storage.open(name)
    # The page shows that a file is lost; the rest of the checkpoint is still worth a look.
    except (CheckpointError, MissingFile, StorageError):
        return None
    try:
        return file.size
    finally:
        file.close()


def _num_parameters(entries: EntryTable, keys: Sequence[str], encodings: Mapping[str, str]) -> int:
    return count_in(entries.slices.tensors, encodings).among(set(keys)).total


def _slices_of(entries: EntryTable, rows: Sequence[int]) -> tuple[Ints, list[int]]:
    """Return the rows of the entries of these tensors, tensor after tensor, and the number of each
    tensor's entries."""
    slices = entries.slices
    order, ends = slices.by_tensor(by_offset=True)
    bounds = ends.tolist()
    ranges = [(bounds[row], bounds[row + 1]) if row >= 0 else (0, 0) for row in rows]
    parts = [order[start:stop] for start, stop in ranges if start < stop]
    # The empty array gives a result, and its dtype, where no tensor has entries.
    return np.concatenate([np.zeros(0, np.int64), *parts]), [stop - start for start, stop in ranges]


def _slice_columns(entries: EntryTable, order: Ints) -> Columns:
    """Return the columns of the slices; ``cut`` has number, offset and shape of each that is not a
    whole tensor."""
    slices = entries.slices
    ranks = slices.tensors.ranks[slices.tensor[order]].tolist()
    numbers = np.flatnonzero(~slices.is_whole()[order]).tolist()
    cut_rows = order[numbers]
    regions = np.stack([slices.offset[cut_rows], slices.shape[cut_rows]], axis=1).tolist()
    nbytes = slices.nbytes_of_tensors()[slices.tensor[order]]
    nbytes[numbers] = slices.nbytes[cut_rows]
    files = entries.file[order].tolist()
    return {
        "file": packed(files),
        "gap": packed(gaps(files, entries.start[order].tolist(), nbytes.tolist())),
        # Of a slice that is its whole tensor, the tensor's bytes say it.
        "nbytes": slices.nbytes[cut_rows].tolist(),
        "encoded": np.flatnonzero(~entries.plain[order]).tolist(),
        "cut": [
            # Offset and shape are padded to the highest rank of the checkpoint; the page gets the
            # axes of the tensor.
            [number, *_exact([extent for bounds in region for extent in bounds[: ranks[number]]])]
            for number, region in zip(numbers, regions, strict=True)
        ],
    }


def _faults(reader: Reader, keys: Sequence[str], measured: StatisticsByKey) -> Columns:
    """Return row and cause of every tensor that cannot be read, and the kind and message of each
    cause.

    A lost file is one cause, with any number of tensors in it.
    """
    faults: dict[str, Any] = {
        key: found for key, found in measured.items() if not isinstance(found, Statistics)
    }
    faults |= reader.faults
    causes: dict[tuple[str, str], int] = {}
    rows = [
        [row, causes.setdefault((type(faults[key]).__name__, str(faults[key])), len(causes))]
        for row, key in enumerate(keys)
        if key in faults
    ]
    return {"faults": rows, "causes": [list(cause) for cause in causes]}


def _num_unguarded(reader: Reader, keys: Sequence[str]) -> int:
    """Return how many tensors have bytes that no checksum covers."""
    guarded = guarded_keys(reader.source, [reader.entries()], reader.faults)
    return sum(not guarded[key] for key in keys)


def _statistics(
    keys: Sequence[str], measured: StatisticsByKey, counts: Mapping[str, Ints], num_unguarded: int
) -> Columns:
    """Return columns over the tensors that have statistics; ``row`` holds the rows of these, None
    if all have them."""
    found = [
        (row, key, each)
        for row, key in enumerate(keys)
        if isinstance(each := measured.get(key), Statistics)
    ]
    names = ("min", "max", "mean", "std")
    numbers = [[_short(json_number(value)) for value in _values_of(each)] for _, _, each in found]
    return {
        "num_unguarded": num_unguarded,
        "row": None if len(found) == len(keys) else [row for row, _, _ in found],
        **{name: [row[place] for row in numbers] for place, name in enumerate(names)},
        **{
            name: packed([getattr(each, name) for _, _, each in found])
            for name in ("count", "nan", "inf", "zero")
        },
        # One text: those of equal width follow each other, and spaces stand for none.
        "histogram": "".join(
            bar_heights(counts[key]) if key in counts else " " * NUM_BINS for _, key, _ in found
        ),
        "bins": NUM_BINS,
        "peak": packed([int(counts[key].max()) if key in counts else 0 for _, key, _ in found]),
    }


def _values_of(found: Statistics) -> tuple[Number | None, ...]:
    return found.minimum, found.maximum, found.mean, found.std


def _short(number: float | str | None) -> float | str | None:
    return float(f"{number:.{_DIGITS}g}") if isinstance(number, float) else number


def _value_difference(values: ValueDifference) -> list[Any]:
    fields = values.to_json()
    return [fields[name] for name in _DIFFERENCE.values()]


def _exact(numbers: Sequence[int]) -> list[int | str]:
    # JavaScript reads 2**53 + 1 as 2**53, so such numbers travel as text.
    return [number if -_EXACT < number < _EXACT else str(number) for number in numbers]
