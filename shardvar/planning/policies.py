"""Which slices share a file: the policies that the command line offers, as pure functions of columns.

A policy takes the slices that a checkpoint is to hold and answers with an ``Assignment``: the same elements, cut
further where that helps and is allowed, each slice with the number of its file. Strings are never cut.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
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


class CallbackPolicy(Protocol):
    """Decides which slices share a file, tensor by tensor (RFC 001's ``ShardingCallback``)."""

    @property
    def description(self) -> str:
        """One sentence, kept in the index and repeated in errors."""

    def __call__(self, shardable_tensors: Sequence[Any], /) -> Sequence[Mapping[str, Mapping[str, Any]]]:
        """For every file the tensors in it: from keys to the texts of slices to values."""


Policy = TablePolicy | CallbackPolicy


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
        given: object = self.max_shard_size
        if not isinstance(given, Real):
            raise ArgumentTypeError(f"{given!r} is no number of bytes.", "Give an integer.")
        if self.max_shard_size < 1:
            raise ArgumentError(f"A maximum of {self.max_shard_size} bytes a file holds nothing.", "Give at least 1.")

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return f"Fills files up to {self.max_shard_size} bytes, cutting slices that do not fit."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """Fill one file after the other.

        A slice is cut along the axis that fills most of what remains in the file (RFC 001, Tensor Partitioning: "We
        want to partition along the axis that results in the most amount of remaining shard space being filled up").
        Where one index along every axis is more than a whole file, the longest axis is cut into single indices and
        these are cut further, down to single elements. Only what cannot be cut exceeds the limit, in a file of its own.
        """
        cuttable = _cuttable(slices, capabilities)
        pieces: list[_Piece] = []
        files: list[int] = []
        file, remaining = 0, self.max_shard_size
        for row, nbytes in enumerate(slices.nbytes.tolist()):
            rest = [_Piece(row, None, nbytes)]
            while rest:
                piece = rest.pop()
                if piece.nbytes > remaining:
                    halves = _fill(slices, piece, remaining, self.max_shard_size) if cuttable[row] else []
                    if halves:
                        rest.extend(reversed(halves))
                        continue
                    if remaining < self.max_shard_size:
                        file, remaining = file + 1, self.max_shard_size
                        rest.append(piece)
                        continue
                pieces.append(piece)
                files.append(file)
                remaining = max(remaining - piece.nbytes, 0)
        return Assignment(_recut(slices, pieces), np.array(files, dtype=np.int64), file + 1, self.description)


@dataclass(frozen=True, slots=True)
class BalancedPolicy:
    """Files of about equal payload, ``num_files`` of them, cutting slices along axis 0 where that helps."""

    num_files: int
    """The number of files; there are fewer where there are fewer rows and tensors to fill them."""

    def __post_init__(self) -> None:
        if self.num_files < 1:
            raise ArgumentError(f"{self.num_files} files hold nothing.", "Give at least 1.")

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return f"Balances payload bytes over {self.num_files} files."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """Lay all payloads end to end, draw ``num_files - 1`` even marks, and cut at the row nearest to each mark.

        Where everything can be cut, a file is within one row of its even share. What cannot be cut goes to the file
        that its middle falls in, unless that leaves a file empty: every file gets a piece as long as there are as
        many pieces as files, and files beyond that are not written, since a cut is made for balance alone.
        """
        cuttable = _cuttable(slices, capabilities)
        total = int(slices.nbytes.sum())
        marks = [total * n // self.num_files for n in range(1, self.num_files)]
        pieces: list[_Piece] = []
        middles: list[int] = []
        position = 0
        for row, nbytes in enumerate(slices.nbytes.tolist()):
            inside = marks[bisect_right(marks, position) : bisect_left(marks, position + nbytes)]
            cuts = [mark - position for mark in inside] if cuttable[row] else []
            for piece in _cut_at(slices, row, nbytes, cuts):
                pieces.append(piece)
                middles.append(position + piece.nbytes // 2)
                position += piece.nbytes
        num_files = max(1, min(self.num_files, len(pieces)))
        first = _leave_none_empty([bisect_left(middles, mark) for mark in marks], len(pieces), num_files)
        file = np.searchsorted(np.array(first, dtype=np.int64), np.arange(len(pieces)), side="right")
        return Assignment(_recut(slices, pieces), file.astype(np.int64), num_files, self.description)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a slice that a policy is given."""

    row: int
    """The row of the slice."""
    region: Region | None
    """The part, in the coordinates of the whole tensor; None for all of the slice."""
    nbytes: int
    """The bytes of its payload."""


def _cuttable(slices: SliceTable, capabilities: Capabilities) -> list[bool]:
    held = np.zeros(len(NAMES), dtype=np.bool)
    held[[code(name) for name in capabilities.slice_dtypes]] = True
    ranks = slices.tensors.ranks
    allowed = held[slices.tensors.codes] & (ranks > 0) & (ranks <= capabilities.max_slice_rank)
    result: list[bool] = allowed[slices.tensor].tolist()
    return result


def _fill(slices: SliceTable, piece: _Piece, remaining: int, limit: int) -> list[_Piece]:
    """The piece in two, the first as large as what remains in the file allows, or cut so that it can be cut further.

    Nothing where no cut helps: it fits a file of its own, or it is a single element.
    """
    region = piece.region or slices.region(piece.row)
    itemsize = piece.nbytes // region.size
    per_index = [piece.nbytes // extent for extent in region.shape]
    counts = [remaining // nbytes for nbytes in per_index]
    filled = [count * nbytes for count, nbytes in zip(counts, per_index, strict=True)]
    axis, count = filled.index(max(filled)), max(counts)
    if not count:
        if remaining < limit or region.size == 1:
            return []
        axis, count = region.shape.index(max(region.shape)), 1
    else:
        count = counts[axis]
    return [_Piece(piece.row, half, half.size * itemsize) for half in _split(region, axis, count)]


def _split(region: Region, axis: int, count: int) -> tuple[Region, Region]:
    """The first ``count`` indices along an axis, and the rest."""
    shape, offset = list(region.shape), list(region.offset)
    shape[axis], offset[axis] = count, offset[axis] + count
    rest = list(region.shape)
    rest[axis] -= count
    return Region(region.offset, shape), Region(offset, rest)


def _cut_at(slices: SliceTable, row: int, nbytes: int, marks: list[int]) -> list[_Piece]:
    """A slice cut along axis 0 at the rows nearest to some places of its payload."""
    if not marks:
        return [_Piece(row, None, nbytes)]
    region = slices.region(row)
    count = region.shape[0]
    row_nbytes = nbytes // count
    cuts = sorted({(mark + row_nbytes // 2) // row_nbytes for mark in marks} - {0, count})
    pieces = []
    for start, stop in zip([0, *cuts], [*cuts, count], strict=True):
        part = Region((region.offset[0] + start, *region.offset[1:]), (stop - start, *region.shape[1:]))
        pieces.append(_Piece(row, part, (stop - start) * row_nbytes))
    return pieces


def _leave_none_empty(first: list[int], num_pieces: int, num_files: int) -> list[int]:
    """The first piece of each file but the first one, moved as little as it takes for every file to have one."""
    kept = list(first) if num_files == len(first) + 1 else list(range(1, num_files))
    for file in range(len(kept)):
        kept[file] = max(kept[file], kept[file - 1] + 1 if file else 1)
    for file in reversed(range(len(kept))):
        kept[file] = min(kept[file], num_pieces - len(kept) + file)
    return kept


def _recut(slices: SliceTable, pieces: list[_Piece]) -> SliceTable:
    """The table of the pieces."""
    table = slices.take(np.array([piece.row for piece in pieces], dtype=np.int64))
    offset, shape = table.offset.copy(), table.shape.copy()
    for position, piece in enumerate(pieces):
        if piece.region is not None:
            offset[position, : piece.region.rank] = piece.region.offset
            shape[position, : piece.region.rank] = piece.region.shape
    return SliceTable.of(table.tensors, table.tensor, offset, shape, table.nbytes)


def file_nbytes(assignment: Assignment) -> Ints:
    """[num_files] the payload bytes of each file."""
    totals = np.zeros(assignment.num_files, dtype=np.int64)
    np.add.at(totals, assignment.file, assignment.slices.nbytes)
    return totals
