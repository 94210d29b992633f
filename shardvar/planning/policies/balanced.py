"""BalancedPolicy: files of about equal size."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.region import Region
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.plan import Assignment
from shardvar.planning.policies.columnar import ColumnarPolicy
from shardvar.planning.policies.pieces import Piece, cuttable_rows, recut
from shardvar.planning.slices import SliceTable


@dataclass(frozen=True, slots=True)
class BalancedPolicy(ColumnarPolicy):
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
        cuttable = cuttable_rows(slices, capabilities)
        total = int(slices.nbytes.sum())
        marks = [total * n // self.num_files for n in range(1, self.num_files)]
        pieces: list[Piece] = []
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
        return Assignment(recut(slices, pieces), file.astype(np.int64), num_files, self.description)


def _cut_at(slices: SliceTable, row: int, nbytes: int, marks: list[int]) -> list[Piece]:
    """A slice cut along axis 0 at the rows nearest to some places of its payload."""
    if not marks:
        return [Piece(row, None, nbytes)]
    region = slices.region(row)
    count = region.shape[0]
    row_nbytes = nbytes // count
    cuts = sorted({(mark + row_nbytes // 2) // row_nbytes for mark in marks} - {0, count})
    pieces = []
    for start, stop in zip([0, *cuts], [*cuts, count], strict=True):
        part = Region((region.offset[0] + start, *region.offset[1:]), (stop - start, *region.shape[1:]))
        pieces.append(Piece(row, part, (stop - start) * row_nbytes))
    return pieces


def _leave_none_empty(first: list[int], num_pieces: int, num_files: int) -> list[int]:
    """The first piece of each file but the first one, moved as little as it takes for every file to have one."""
    kept = list(first) if num_files == len(first) + 1 else list(range(1, num_files))
    for file in range(len(kept)):
        kept[file] = max(kept[file], kept[file - 1] + 1 if file else 1)
    for file in reversed(range(len(kept))):
        kept[file] = min(kept[file], num_pieces - len(kept) + file)
    return kept
