"""Which shard holds which rows: contiguous intervals along the first axis, of any sizes, empty ones included.

There is no closed form here as for div: rows are found among the bounds, so every contiguous layout works alike.
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
"""With so few shards and so many rows it is faster to compare all rows with each shard's first than to search and sort.
"""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The bounds between shards."""

    bounds: tuple[int, ...]
    """Shard ``s`` holds the rows ``bounds[s]`` to ``bounds[s + 1]``, half-open; the first is 0, they never fall."""

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Self:
        """The layout of shards with so many rows.

        >>> RowLayout.of_sizes([3, 0, 2]).bounds
        (0, 3, 3, 5)
        """
        return cls((0, *accumulate(sizes)))

    @property
    def num_rows(self) -> int:
        """The rows of all shards."""
        return self.bounds[-1]

    @property
    def num_shards(self) -> int:
        """The shards, empty ones included."""
        return len(self.bounds) - 1

    def owner(self, rows: Ints) -> tuple[Ints, Ints]:
        """The shard that holds each row, and the row's number in it; rows must be in range.

        >>> RowLayout.of_sizes([3, 0, 2]).owner(np.array([4, 0, 3]))
        (array([2, 0, 2]), array([1, 0, 0]))
        """
        bounds = np.array(self.bounds, np.int64)
        shard = bounds[1:].searchsorted(rows, side="right")
        return shard, rows - bounds[shard]

    def pieces(self, rows: Ints) -> Iterator[tuple[int, Ints, Ints | None]]:
        """For each shard that holds some of the rows: the shard, their numbers in it, their places in ``rows``.

        Places ascend; None stands for all of them, where one shard holds everything.
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
        """For each shard that holds some of the rows: the shard, the places of its rows, which ascend."""
        if self.num_shards <= _FEW and len(rows) >= _MANY_ROWS:
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
                owners = owners.astype(np.uint16)  # which NumPy sorts digit by digit, several times as fast
            order = owners.argsort(kind="stable")
            edges = owners[order].searchsorted(np.arange(self.num_shards, dtype=owners.dtype)).tolist()
            for shard, (first, last) in enumerate(pairwise([*edges, len(rows)])):
                if first < last:
                    yield shard, order[first:last]

    def runs(self, rows: range) -> Iterator[tuple[int, slice, slice]]:
        """For each shard that holds some of the rows: the shard, a slice of it, and the slice of ``rows`` that it is.

        >>> list(RowLayout.of_sizes([3, 0, 2]).runs(range(4, 0, -2)))
        [(0, slice(2, 1, -2), slice(1, 2, None)), (2, slice(1, 0, -2), slice(0, 1, None))]
        """
        for shard, (start, stop) in enumerate(pairwise(self.bounds)):
            first, last = (start, stop) if rows.step > 0 else (stop - 1, start - 1)
            low = min(max(-((rows.start - first) // rows.step), 0), len(rows))
            high = min(max(-((rows.start - last) // rows.step), 0), len(rows))
            if low < high:
                begin, end = rows[low] - start, rows[high - 1] - start + (1 if rows.step > 0 else -1)
                yield shard, slice(begin, end if end >= 0 else None, rows.step), slice(low, high)

    def _only_shard(self, rows: Ints) -> int | None:
        if self.num_shards == 1:
            return 0
        ends, _ = self.owner(np.array([rows.min(), rows.max()]))
        return int(ends[0]) if ends[0] == ends[1] else None


def check_rows(indices: Any, num_rows: int, *, rank: int | None = None) -> Ints:
    """Indices as int64, each in ``[0, num_rows)``; ``OutOfRange`` names the first that is not, and where it stands.

    R-ID-1: ids address rows; unlike NumPy's they are never negative, since a negative id is a mistake in the data.
    """
    array = np.asarray(indices)
    if array.size == 0 and not isinstance(indices, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(f"Indices have dtype {array.dtype}.", "Give integers.")
    if rank is not None and array.ndim != rank:
        raise ArgumentError(f"Indices have shape {array.shape}, and {rank} axis is asked for.", "Flatten them.")
    if array.size and (array.min() < 0 or array.max() >= num_rows):
        place = np.argwhere((array < 0) | (array >= num_rows))[0]
        raise OutOfRange(
            f"Index {array[tuple(place)]} at {tuple(place.tolist())} is outside [0, {num_rows}).",
            "Nothing was read or written.",
        )
    return array.astype(np.int64, copy=False)
