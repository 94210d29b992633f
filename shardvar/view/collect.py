"""An index as columns that fit in a page.

Keys share beginnings with the key before them and shapes are few, so both are told once. Most slices are whole tensors,
which is one number. So a tensor takes some thirty bytes besides what is new in its name.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from os.path import commonprefix
from typing import Any

import numpy as np

from shardvar.checkpoint.numbers import json_number
from shardvar.checkpoint.reader import Reader
from shardvar.checkpoint.reports import DiffReport
from shardvar.checkpoint.stats import Statistics
from shardvar.errors import ArgumentError, CheckpointError, MissingFile, ReadError, StorageError
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import EntryTable
from shardvar.storage.protocol import Storage

Columns = dict[str, Any]
Measured = Mapping[str, Statistics | ReadError]

HEIGHTS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""The height of a bar of a histogram as one character; the highest bar of each has the last one."""

_EXACT = 2**53
"""Integers from here on are not all numbers to JavaScript, and are told as text."""


def choose_keys(reader: Reader, globs: Sequence[str] | None = None) -> list[str]:
    """The keys that match one of the globs, in the order of the index; ``ArgumentError`` where none does."""
    keys = [key for key in reader if not globs or any(fnmatchcase(key, glob) for glob in globs)]
    if globs and not keys and len(reader):
        raise ArgumentError(
            f"No tensor matches {' or '.join(globs)}.", "`shardvar inspect` without --filter lists all."
        )
    return keys


def file_sizes(storage: Storage, files: Sequence[str]) -> list[int | None]:
    """The bytes of each data file; None for one that is not there or cannot be opened."""
    return [_size(storage, name) for name in files]


def describe(
    reader: Reader,
    keys: Sequence[str],
    file_nbytes: Sequence[int | None],
    measured: Measured | None = None,
    counts: Mapping[str, Ints] | None = None,
) -> Columns:
    """The columns of one checkpoint: what its index says of the tensors named by ``keys``.

    Slices stand together by tensor and in the order of their offsets. A tensor that the index names without telling of
    it has dtype -1, shape -1 and no slices.
    """
    entries, metadata = reader.entries(), reader.metadata
    tensors, row_of = entries.slices.tensors, entries.slices.tensors.rows()
    rows = [row_of.get(key, -1) for key in keys]
    order, num_slices = _slices_of(entries, rows)
    used = sorted({tensors.dtype(row) for row in rows if row >= 0})
    shapes: dict[tuple[int, ...], int] = {}
    shape = [-1 if row < 0 else shapes.setdefault(tensors.shape(row), len(shapes)) for row in rows]
    nbytes = np.zeros(len(tensors) + 1, dtype=np.int64)
    np.add.at(nbytes, entries.slices.tensor, entries.slices.nbytes)
    return {
        "path": reader.path,
        "format": reader.format,
        "writer": metadata.writer,
        "description": metadata.description,
        "metadata": dict(metadata.user),
        "files": list(reader.index.files),
        "file_nbytes": list(file_nbytes),
        "dtypes": used,
        "shapes": [_exact(each) for each in shapes],
        "keys": front_coded(keys),
        "dtype": [-1 if row < 0 else used.index(tensors.dtype(row)) for row in rows],
        "shape": shape,
        "nbytes": nbytes[rows].tolist(),
        "num_slices": num_slices,
        "slices": _slice_columns(entries, order),
        "faults": _faults(reader, keys, measured or {}),
        "stats": None if measured is None else _statistics(keys, measured, counts or {}),
    }


def describe_diff(report: DiffReport, keys: Sequence[str]) -> Columns:
    """What is not the same in both; ``keys`` are those of the first checkpoint, by whose rows tensors are told."""
    row_of = {key: row for row, key in enumerate(keys)}
    return {
        "num_equal": report.num_equal,
        "differences": [
            [row_of[each.key], *(_value_difference(each.values) if each.values else [None])]
            for each in report.differences
        ],
        "unreadable": [[row_of[each.key], each.side, each.kind, each.message] for each in report.unreadable],
    }


def front_coded(keys: Sequence[str]) -> Columns:
    """Each key as how many characters it shares with the one before it, and the rest.

    >>> front_coded(["dense/bias", "dense/kernel", "step"])
    {'shared': [0, 6, 0], 'rest': ['dense/bias', 'kernel', 'step']}
    """
    shared = [len(commonprefix(pair)) for pair in zip(["", *keys], keys, strict=False)]  # noqa: RUF071  # no paths
    return {"shared": shared, "rest": [key[count:] for key, count in zip(keys, shared, strict=True)]}


def bar_heights(counts: Ints) -> str:
    """A histogram as one character a bar; only a count of zero has no height.

    >>> bar_heights(np.array([0, 1, 350, 700]))
    '01iz'
    """
    highest = max(int(counts.max()), 1)
    scaled = -(-counts * (len(HEIGHTS) - 1) // highest)
    return "".join(HEIGHTS[height] for height in scaled.tolist())


def _size(storage: Storage, name: str) -> int | None:
    try:
        file = storage.open(name)
    except (CheckpointError, MissingFile, StorageError):
        return None
    try:
        return file.size
    finally:
        file.close()


def _slices_of(entries: EntryTable, rows: Sequence[int]) -> tuple[Ints, list[int]]:
    """The rows of the entries of these tensors, tensor after tensor, and how many each has."""
    slices = entries.slices
    order = np.lexsort((*slices.offset.T[::-1], slices.tensor))
    bounds = np.searchsorted(slices.tensor[order], np.arange(len(slices.tensors) + 1)).tolist()
    ranges = [(bounds[row], bounds[row + 1]) if row >= 0 else (0, 0) for row in rows]
    parts = [order[start:stop] for start, stop in ranges if start < stop]
    return np.concatenate([np.zeros(0, np.int64), *parts]), [stop - start for start, stop in ranges]


def _slice_columns(entries: EntryTable, order: Ints) -> Columns:
    """``cut`` has, of each slice that is not its whole tensor, its number, offset and shape."""
    slices = entries.slices
    ranks = slices.tensors.ranks[slices.tensor[order]].tolist()
    numbers = np.flatnonzero(~slices.is_whole()[order]).tolist()
    cut_rows = order[numbers]
    boxes = np.stack([slices.offset[cut_rows], slices.shape[cut_rows]], axis=1).tolist()
    return {
        "file": entries.file[order].tolist(),
        "start": _exact(entries.start[order].tolist()),
        "nbytes": slices.nbytes[order].tolist(),
        "encoded": np.flatnonzero(~entries.plain[order]).tolist(),
        "cut": [
            [number, *_exact([extent for part in box for extent in part[: ranks[number]]])]
            for number, box in zip(numbers, boxes, strict=True)
        ],
    }


def _faults(reader: Reader, keys: Sequence[str], measured: Measured) -> list[list[Any]]:
    """Row, kind and message of every tensor that cannot be read, also of those whose values said so."""
    faults: dict[str, Any] = {key: found for key, found in measured.items() if not isinstance(found, Statistics)}
    faults |= reader.faults
    return [[row, type(faults[key]).__name__, str(faults[key])] for row, key in enumerate(keys) if key in faults]


def _statistics(keys: Sequence[str], measured: Measured, counts: Mapping[str, Ints]) -> Columns:
    """Columns over the tensors that have statistics, ``row`` saying which these are."""
    found = [(row, key, each) for row, key in enumerate(keys) if isinstance(each := measured.get(key), Statistics)]
    names = ("min", "max", "mean", "std")
    values = [(each.minimum, each.maximum, each.mean, each.std) for _, _, each in found]
    numbers = [[json_number(value) for value in row] for row in values]
    return {
        "row": [row for row, _, _ in found],
        **{name: [row[place] for row in numbers] for place, name in enumerate(names)},
        **{name: [getattr(each, name) for _, _, each in found] for name in ("count", "nan", "inf", "zero")},
        "histogram": [bar_heights(counts[key]) if key in counts else "" for _, key, _ in found],
        "peak": [int(counts[key].max()) if key in counts else 0 for _, key, _ in found],
    }


def _value_difference(values: Any) -> list[Any]:
    told = values.to_json()
    return [told[name] for name in ("count", "first", "max_absolute", "max_relative", "num_without_distance")]


def _exact(numbers: Sequence[int]) -> list[int | str]:
    return [number if -_EXACT < number < _EXACT else str(number) for number in numbers]
