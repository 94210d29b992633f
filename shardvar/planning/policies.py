"""Which slices share a file: the policies that the command line offers, as pure functions of columns.

A policy takes the slices that a checkpoint is to hold and answers with an ``Assignment``: the same elements, cut
further where that helps and is allowed, each slice with the number of its file. Strings are never cut.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import NAMES, code
from shardvar.layout.region import Ints, Region
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable


class TablePolicy(Protocol):
    """Decides which slices share a file."""

    @property
    def description(self) -> str:
        """One sentence, kept in the index and repeated in errors."""

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """The slices, possibly cut further, each with its file."""


@dataclass(frozen=True, slots=True)
class AllInOnePolicy:
    """Everything in a single file."""

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return "Places all slices in a single file."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """The slices as they are, all in file 0."""
        return Assignment(slices, np.zeros(len(slices), dtype=np.int64), 1, self.description)


@dataclass(frozen=True, slots=True)
class MaxShardSizePolicy:
    """Files of at most ``max_shard_size`` payload bytes, filled in order, cutting the slices that do not fit."""

    max_shard_size: int
    """The limit in bytes of payload; framing and indexes are not counted."""

    def __post_init__(self) -> None:
        if self.max_shard_size < 1:
            raise ArgumentError(f"A maximum of {self.max_shard_size} bytes a file holds nothing.", "Give at least 1.")

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return f"Fills files up to {self.max_shard_size} bytes, cutting slices that do not fit."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """Fill one file after the other. What cannot be cut and exceeds the limit gets a file of its own.

        A slice is cut along the axis that fills most of what remains in the file (RFC 001, Tensor Partitioning: "We
        want to partition along the axis that results in the most amount of remaining shard space being filled up").
        """
        cuttable = _cuttable(slices, capabilities)
        rows: list[int] = []
        regions: list[Region | None] = []
        files: list[int] = []
        file, remaining = 0, self.max_shard_size
        for row, nbytes in enumerate(slices.nbytes.tolist()):
            if nbytes <= remaining:
                pieces: list[tuple[Region | None, int]] = [(None, nbytes)]
            elif not cuttable[row]:
                pieces = [(None, nbytes)]
            else:
                pieces = _fill(slices.region(row), nbytes, remaining, self.max_shard_size)
            for region, size in pieces:
                if size > remaining and remaining < self.max_shard_size:
                    file, remaining = file + 1, self.max_shard_size
                rows.append(row)
                regions.append(region)
                files.append(file)
                remaining = max(0, remaining - size)
        table = _recut(slices, rows, regions)
        return Assignment(table, np.array(files, dtype=np.int64), file + 1, self.description)


@dataclass(frozen=True, slots=True)
class BalancedPolicy:
    """``num_files`` files of about equal payload, cutting slices along axis 0 where that helps."""

    num_files: int
    """The number of files."""

    def __post_init__(self) -> None:
        if self.num_files < 1:
            raise ArgumentError(f"{self.num_files} files hold nothing.", "Give at least 1.")

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return f"Balances payload bytes over {self.num_files} files."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """Lay all payloads end to end, draw ``num_files - 1`` even marks, and cut at the row nearest to each mark."""
        cuttable = _cuttable(slices, capabilities)
        stops = np.cumsum(slices.nbytes)
        total = int(stops[-1]) if len(stops) else 0
        marks = [total * n // self.num_files for n in range(1, self.num_files)]
        rows: list[int] = []
        regions: list[Region | None] = []
        begins: list[int] = []
        position = 0
        for row, nbytes in enumerate(slices.nbytes.tolist()):
            inside = [mark - position for mark in marks if position < mark < position + nbytes] if cuttable[row] else []
            pieces = _cut_at(slices.region(row), nbytes, inside) if inside else [(None, nbytes)]
            for region, size in pieces:
                rows.append(row)
                regions.append(region)
                begins.append(position + size // 2)
                position += size
        # A piece belongs to the file that its middle falls in, so that one that cannot be cut goes to the nearer side.
        file = np.searchsorted(np.array(marks, dtype=np.int64), np.array(begins, dtype=np.int64), side="right")
        return Assignment(_recut(slices, rows, regions), file.astype(np.int64), self.num_files, self.description)


def _cuttable(slices: SliceTable, capabilities: Capabilities) -> list[bool]:
    held = np.zeros(len(NAMES), dtype=np.bool)
    held[[code(name) for name in capabilities.slice_dtypes]] = True
    ranks = slices.tensors.ranks
    allowed = held[slices.tensors.codes] & (ranks > 0) & (ranks <= capabilities.max_slice_rank)
    result: list[bool] = allowed[slices.tensor].tolist()
    return result


def _fill(region: Region, nbytes: int, remaining: int, limit: int) -> list[tuple[Region | None, int]]:
    """Pieces of a region, each as large as what remains in its file allows; an element is never cut."""
    itemsize = nbytes // region.size
    pieces: list[tuple[Region | None, int]] = []
    while region.size * itemsize > remaining:
        axis, count = _best_axis(region, itemsize, remaining)
        if count == 0 and remaining < limit:
            remaining = limit
            continue
        piece, region = _split(region, axis, max(count, 1))
        size = piece.size * itemsize
        pieces.append((piece, size))
        remaining = remaining - size if size < remaining else limit
        if not region.size:
            return pieces
    pieces.append((region, region.size * itemsize))
    return pieces


def _best_axis(region: Region, itemsize: int, remaining: int) -> tuple[int, int]:
    """The axis along which most bytes fit, and how many indices do; the longest axis where none fits."""
    per_index = [region.size // extent * itemsize for extent in region.shape]
    counts = [min(remaining // size, extent) for size, extent in zip(per_index, region.shape, strict=True)]
    filled = [count * size for count, size in zip(counts, per_index, strict=True)]
    if max(filled) == 0:
        return per_index.index(min(per_index)), 0
    axis = filled.index(max(filled))
    return axis, counts[axis]


def _split(region: Region, axis: int, count: int) -> tuple[Region, Region]:
    """The first ``count`` indices along an axis, and the rest."""
    shape, offset = list(region.shape), list(region.offset)
    shape[axis], offset[axis] = count, offset[axis] + count
    rest = list(region.shape)
    rest[axis] -= count
    return Region(region.offset, shape), Region(offset, rest)


def _cut_at(region: Region, nbytes: int, marks: list[int]) -> list[tuple[Region | None, int]]:
    """The region cut along axis 0 at the rows nearest to some places of its payload."""
    row_nbytes = nbytes // region.shape[0]
    rows = sorted({(mark + row_nbytes // 2) // row_nbytes for mark in marks} - {0, region.shape[0]})
    stops = [*rows, region.shape[0]]
    return [
        (
            Region((region.offset[0] + start, *region.offset[1:]), (stop - start, *region.shape[1:])),
            (stop - start) * row_nbytes,
        )
        for start, stop in zip([0, *stops], stops, strict=False)
    ]


def _recut(slices: SliceTable, rows: list[int], regions: list[Region | None]) -> SliceTable:
    """The table with these rows, those that have a region of their own cut to it."""
    table = slices.take(np.array(rows, dtype=np.int64))
    offset, shape = table.offset.copy(), table.shape.copy()
    for position, region in enumerate(regions):
        if region is not None:
            offset[position, : region.rank] = region.offset
            shape[position, : region.rank] = region.shape
    return SliceTable.of(table.tensors, table.tensor, offset, shape, table.nbytes)


def file_nbytes(assignment: Assignment) -> Ints:
    """[num_files] the payload bytes of each file."""
    totals = np.zeros(assignment.num_files, dtype=np.int64)
    np.add.at(totals, assignment.file, assignment.slices.nbytes)
    return totals
