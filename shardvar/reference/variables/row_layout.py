"""Row layouts: which shard holds which rows. Shards are contiguous intervals along the first axis,
of any sizes.

``div`` has a closed form for its own sizes. A row layout may have others, empty shards included, so
rows are found by searching among the bounds between shards: one method for every row layout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.dtypes import Ints

_FEW = 8
_MANY_ROWS = 1 << 10
"""With at most so many shards and at least so many rows, comparing all rows with each shard's first
row is faster than searching and sorting."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The bounds between shards."""

    bounds: tuple[int, ...]
    """Shard ``s`` holds the rows ``bounds[s]`` to ``bounds[s + 1]``, half-open. The first bound is
    0; none falls."""

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Self:
        """Return the row layout of shards with these numbers of rows.

        >>> RowLayout.of_sizes([3, 0, 2]).bounds
        (0, 3, 3, 5)
        """
        return cls((0, *accumulate(sizes)))

    @property
    def num_rows(self) -> int:
        """The number of rows of all shards together."""
        return self.bounds[-1]

    @property
    def num_shards(self) -> int:
        """The number of shards, empty ones included."""
        return len(self.bounds) - 1

    def owner(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the shard that holds each row, and the row's number in it; rows must be in range.

        >>> RowLayout.of_sizes([3, 0, 2]).owner(np.array([4, 0, 3]))
        (array([2, 0, 2]), array([1, 0, 0]))
        """
        bounds = np.array(self.bounds, np.int64)
        # The owner is the number of upper bounds at or below the row. Bounds (0, 3, 3, 5): row 3 is
        # behind the upper bounds 3 and 3, so it is in shard 2, and the empty shard 1 is skipped.
        shard = bounds[1:].searchsorted(rows, side="right")
        return shard, rows - bounds[shard]

    def split_rows(self, rows: Ints) -> Iterator[tuple[int, Ints, Ints | None]]:
        """Yield, for each shard that holds some of the rows: the shard, their numbers in it, their
        places in ``rows``.

        Places ascend. None stands for all places, where one shard holds everything.

        >>> [(s, local.tolist(), at.tolist()) for s, local, at in RowLayout((0, 3, 5)).split_rows(np.array([4, 0, 3]))]
        [(0, [0], [1]), (1, [1, 0], [0, 2])]
        """
        if len(rows) == 0:
            return
        whole = self._only_shard(rows)
        if whole is not None:
            yield whole, rows - self.bounds[whole], None
        else:
            for shard, places in self._places(rows):
                local = rows[places]
                local -= self.bounds[shard]
                yield shard, local, places

    def _places(self, rows: Ints) -> Iterator[tuple[int, Ints]]:
        """Yield, for each shard that holds some of the rows: the shard and the places of its rows,
        which ascend."""
        if self.num_shards <= _FEW and len(rows) >= _MANY_ROWS:
            # The owner is the number of inner bounds at or below the row, as in `owner`: bounds (0,
            # 3, 5, 9) and row 6 count 3 and 5, so shard 2. A sum of at most eight comparisons fits
            # one byte a row.
            owner = np.zeros(len(rows), np.uint8)
            for start in self.bounds[1:-1]:
                owner += (rows >= start).view(np.uint8)
            for shard in range(self.num_shards):
                (places,) = (owner == shard).nonzero()
                if len(places):
                    yield shard, places
        else:
            owners: npt.NDArray[Any] = self.owner(rows)[0]
            if self.num_shards <= 1 << 16:
                # NumPy's stable sort of 16-bit integers is a radix sort, several times as fast as
                # the sort of 64 bits.
                owners = owners.astype(np.uint16)
            order = owners.argsort(kind="stable")
            # owners [2, 0, 2] have the order [1, 0, 2]: shard s has the places
            # order[edges[s]:edges[s + 1]].
            edges = (
                owners[order].searchsorted(np.arange(self.num_shards, dtype=owners.dtype)).tolist()
            )
            for shard, (first, last) in enumerate(pairwise([*edges, len(rows)])):
                if first < last:
                    yield shard, order[first:last]

    def split_range(self, rows: range) -> Iterator[tuple[int, slice, slice]]:
        """Yield, for each shard that holds some of the rows: the shard, a slice of it, the slice of
        ``rows`` it fills.

        >>> list(RowLayout.of_sizes([3, 0, 2]).split_range(range(4, 0, -2)))
        [(0, slice(2, 1, -2), slice(1, 2, None)), (2, slice(1, 0, -2), slice(0, 1, None))]
        """
        step = rows.step
        for shard, (start, stop) in enumerate(pairwise(self.bounds)):
            # The rows of this shard are rows[low:high]. `low` counts the rows of the range before
            # its first one, `high` those before the first one behind it; going backwards, a shard
            # begins with its last row.
            first, behind = (start, stop) if step > 0 else (stop - 1, start - 1)
            # rows[i] is rows.start + i * step, so it reaches `first` at i = ceil((first -
            # rows.start) / step). The ceiling is -((rows.start - first) // step), and is clamped
            # because the range may begin or end elsewhere. range(1, 9, 3) is (1, 4, 7); for the
            # shard of rows 3 to 6 low = -((1 - 3) // 3) = 1 and high = -((1 - 6) // 3) = 2: the
            # shard holds rows[1:2], which is row 4.
            low = min(max(-((rows.start - first) // step), 0), len(rows))
            high = min(max(-((rows.start - behind) // step), 0), len(rows))
            if low < high:
                # In the shard's numbers, up to one step of 1 past the last row. Going backwards
                # this may be -1, which a slice would take for the last row; None means "to the
                # beginning".
                begin, end = rows[low] - start, rows[high - 1] - start + (1 if step > 0 else -1)
                yield shard, slice(begin, end if end >= 0 else None, step), slice(low, high)

    def _only_shard(self, rows: Ints) -> int | None:
        """Return the shard that holds all rows, if one does: the lowest and the highest."""
        if self.num_shards == 1:
            return 0
        ends, _ = self.owner(np.array([rows.min(), rows.max()]))
        return int(ends[0]) if ends[0] == ends[1] else None


def check_rows(indices: Any, num_rows: int, *, rank: int | None = None) -> Ints:
    """Return indices as int64, each in ``[0, num_rows)``; ``OutOfRange`` names the first that is
    not, and its place.

    R-ID-1: ids address rows; unlike NumPy's they are never negative, since a negative id is a
    mistake in the data.
    """
    # An empty list becomes an array of floats in NumPy; here it means no rows.
    array = np.asarray(indices)
    if array.size == 0 and not isinstance(indices, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(f"Indices have dtype {array.dtype}.", "Give integers.")
    if rank is not None and array.ndim != rank:
        raise ArgumentError(
            f"Indices have shape {array.shape}, and {rank} axis is expected.", "Flatten them."
        )
    # Compared in the dtype that was given: 2**63 as uint64 would become -2**63 as int64. Two
    # reductions are faster than a mask of all ids, which is made only to find the place of the
    # first bad one.
    if array.size and (array.min() < 0 or array.max() >= num_rows):
        place = np.argwhere((array < 0) | (array >= num_rows))[0]
        raise OutOfRange(
            f"Index {array[tuple(place)]} at {tuple(place.tolist())} is outside [0, {num_rows}).",
            f"Give ids from 0 to {num_rows - 1}; negative ids are not counted from the end."
            if num_rows
            else "The variable has no rows: give no ids.",
        )
    return array.astype(np.int64, copy=False)
