"""Rows of a variable: which a key touches, which shard holds them, and how they are read and written.

Shards are contiguous intervals along the first axis, of any sizes. ``div`` has a closed form for
its own sizes. A row layout may have others, empty shards included, so rows are found by searching
among the bounds between shards: one method for every row layout.

Law of indexes: ``x[key]`` is ``x[rows][:, *columns][pick]``, for everything that NumPy allows as a
key: integers, slices with any step, ``...``, ``None``, boolean masks of any rank, arrays of
integers, in any mixture. So a sharded variable moves what a key touches, and NumPy itself does the
rest.

1. ``layout.indexing`` reads the key: one item for each axis, between new axes and the scalars True
   and False.
2. The item of the first axis gives the rows that are touched; in ``pick`` it is replaced by an item
   that selects among them.
3. If the rows are a range, slices and integers of other axes give the columns that are touched, in
   the same way.

Rows that lie in several shards are read and written in these steps. A plain variable is its own
only shard.

1. ``RowLayout`` has the rows that each shard holds.
2. Each shard that holds some of the rows is asked only for its part, in its own row numbers.
3. A read holds the mutexes of all shards, so it never sees half of a write. A write returns one
   list of plans, which ``commit`` performs at once.

Every ``Variable`` provides what this module asks of a shard.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.dtypes import Array, DType, Ints, Shape
from shardvar.layout.indexing import expand_index, is_axis, slice_of
from shardvar.records import entity, frozen
from shardvar.reference.devices import allocate, current_device, gather_parts
from shardvar.reference.variables.values import (
    ADD,
    as_value,
    holding,
    scatter_sorted,
    sort_rows,
)

_FEW = 8
_MANY_ROWS = 1 << 10
"""With at most so many shards and at least so many rows, comparing all rows with each shard's first
row is faster than searching and sorting."""


@frozen
class RowLayout:
    """The bounds between shards."""

    bounds: tuple[int, ...]
    """Shard ``s`` holds the rows ``bounds[s]`` to ``bounds[s + 1]``, half-open. The first bound is
    0; none falls."""

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Self:
        return cls((0, *accumulate(sizes)))

    @property
    def num_rows(self) -> int:
        return self.bounds[-1]

    @property
    def num_shards(self) -> int:
        """The number of shards, empty ones included."""
        return len(self.bounds) - 1

    def owner(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the shard that holds each row, which is in range, and the row's number in it."""
        bounds = np.array(self.bounds, np.int64)
        # The owner is the number of upper bounds at or below the row. Bounds (0, 3, 3, 5): row 3 is
        # behind the upper bounds 3 and 3, so it is in shard 2, and the empty shard 1 is skipped.
        shard = bounds[1:].searchsorted(rows, side="right")
        return shard, rows - bounds[shard]

    def split_rows(self, rows: Ints) -> Iterator[tuple[int, Ints, Ints | None]]:
        """Yield each shard with rows, their numbers in it, and their places in ``rows``; None: all."""
        # Of bounds (0, 3, 5) and rows 4, 0, 3: shard 0 with row [0] of place [1], and shard 1 with
        # [1, 0] of [0, 2].
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
        """Yield each shard that holds rows, and the ascending places of these."""
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
            owners: Array = self.owner(rows)[0]
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
        """Yield each shard with rows, a slice of it, and the slice of ``rows`` that it fills."""
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
    """Return indices as int64, each in ``[0, num_rows)``; an error names the first outside."""
    # R-ID-1: ids address rows; unlike NumPy's they are never negative, since a negative id is a
    # mistake in the data. An empty list becomes an array of floats in NumPy; here it means no rows.
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


Rows = range | Ints
RowColumns = tuple[slice, ...]
"""Slices of the axes behind the first."""


@frozen
class RowIndex:
    """The rows that a key touches, and the key to pick from them."""

    rows: Rows
    pick: tuple[Any, ...]
    """The key for the array of these rows."""
    columns: RowColumns = ()
    """The part of the other axes that is touched, if rows are a range; empty for all."""

    def read(self, read_rows: Callable[[Rows, RowColumns], Array]) -> Array:
        """The value at the key, given a way of reading rows, or columns of them."""
        try:
            picked: Array = read_rows(self.rows, self.columns)[self.pick]
            return picked
        except IndexError as error:  # arrays that do not broadcast
            raise OutOfRange(
                f"{str(error).capitalize()}.", "Give arrays that broadcast, as NumPy asks."
            ) from error


def plan_index(key: Any, shape: Shape) -> RowIndex:
    """The rows that ``key`` touches in an array of ``shape``, which has an axis."""
    items = expand_index(key, shape)
    first = next(place for place, item in enumerate(items) if is_axis(item))
    item = items[first]
    rows: Rows
    pick: Any
    if isinstance(item, slice):
        rows, pick = range(shape[0])[item], slice(None)
    elif isinstance(item, int):
        rows, pick = range(item, item + 1), 0
    else:
        numbers = np.where(item < 0, item + shape[0], item)
        others = items[:first] + items[first + 1 :]
        if numbers.ndim == 1 and all(other is None or isinstance(other, slice) for other in others):
            # With only slices and new axes around it, NumPy puts the result of one array where its
            # axis was, as a slice.
            rows, pick = numbers, slice(None)
        else:
            # Its axes may move to the front. NumPy decides that, and each row is read once: [4, 0,
            # 4] reads 0 and 4, and picks [1, 0, 1].
            rows, pick = np.unique(numbers, return_inverse=True)
            pick = pick.reshape(item.shape)
        return RowIndex(rows, (*items[:first], pick, *items[first + 1 :]))
    # R-MOVE-2: of each row, what the key does not touch is not moved either. An array touches all
    # of its axis.
    picks: list[Any] = []
    columns: list[slice] = []
    for other in items[first + 1 :]:
        if isinstance(other, slice):
            picks.append(slice(None))
            columns.append(slice_of(range(shape[len(columns) + 1])[other]))
        elif isinstance(other, int):
            picks.append(0)
            columns.append(slice(other, other + 1, 1))
        else:
            picks.append(other)
            columns += [slice(None)] * is_axis(other)
    touched = tuple(columns) if any(column != slice(None) for column in columns) else ()
    return RowIndex(rows, (*items[:first], pick, *picks), touched)


def plan_gather_nd(indices: Any, shape: Shape) -> RowIndex:
    """The rows that ``indices`` [*n, k] touch, each an index into the first k axes."""
    array = np.asarray(indices)
    depth = array.shape[-1] if array.ndim else 0
    if array.ndim == 0 or depth > len(shape) or depth == 0:
        raise ArgumentError(
            f"Indices of shape {array.shape} do not address the shape {shape}.",
            f"Give [..., k] with k from 1 to {len(shape)}.",
        )
    axes = [check_rows(array[..., axis], shape[axis]) for axis in range(depth)]
    return plan_index(tuple(axes), shape)


def read_shards(
    variable: Any,
    shards: Sequence[Any],
    layout: RowLayout,
    rows: Rows,
    columns: RowColumns,
) -> Array:
    """Return the rows, in their order; of a range of rows, only ``columns`` if they are given."""
    # R-MOVE-1: only these rows cross to the current device. Plan: memory for the result, on the
    # current device, whose limit is checked first. If slice(2, 9, 3) is read of a row of 10
    # columns, 3 are read: columns 2, 5 and 8.
    row_shape = variable.shape[1:]
    extents = [len(range(size)[column]) for size, column in zip(row_shape, columns, strict=False)]
    shape = (len(rows), *(extents if columns else row_shape))
    out = allocate(shape, variable.dtype, is_zeroed=False).array
    # Move, one message for each shard that holds some of the rows.
    with holding(variable.resources):
        if isinstance(rows, range):
            for shard, local, places in layout.split_range(rows):
                shards[shard].read_range(out[places], (local, *columns))
            return out
        # Plain resources are gathered together, in row blocks that stay in the processor's cache.
        # Other kinds of shards compute their rows, so each is asked by itself.
        buffers = [buffer for shard in shards if (buffer := shard.rows_buffer()) is not None]
        if len(buffers) == len(shards):
            gather_parts(out, buffers, rows, layout.split_rows, current_device())
        else:
            for shard, numbers, at in layout.split_rows(rows):
                shards[shard].gather_rows(out, numbers, at)
    return out


@entity
class IndexedSlices:
    """Some rows of a tensor and their numbers; "essentially dicts mapping from indices to vectors"
    (RFC 002).

    A row may occur several times. The operation that applies the slices decides what that means:
    gradients add up, and of several replacements the last stays.

    Parameters
    ----------
    values : array_like
        The rows [n, *row]; ``values[i]`` belongs to row ``indices[i]``.
    indices : array_like of int
        The numbers of the rows, [n].
    dense_shape : sequence of int, optional
        The shape of the whole tensor; None if it is unknown.

    Raises
    ------
    ArgumentError
        If `values` does not have one row for each index.

    Examples
    --------
    >>> IndexedSlices([[1.0, 2.0], [3.0, 4.0]], [4, 4], (6, 2)).to_dense()[4]
    array([4., 6.], dtype=float32)
    """

    values: Array
    indices: Any
    dense_shape: Shape | None = None

    def __init__(
        self,
        values: npt.ArrayLike,
        indices: npt.ArrayLike,
        dense_shape: Sequence[int] | None = None,
    ) -> None:
        object.__setattr__(self, "values", as_value(values))
        numbers = as_value(indices)
        # An empty list becomes an array of floats in NumPy, although it means no indices.
        if not numbers.size and numbers.dtype.kind not in "iu":
            numbers = numbers.astype(np.int64)
        object.__setattr__(self, "indices", numbers)
        object.__setattr__(
            self, "dense_shape", None if dense_shape is None else tuple(map(int, dense_shape))
        )
        # Indices [*batch, n] come with values [*batch, n, *row]; of one axis, [n] with [n, *row].
        leading = self.values.shape[: self.indices.ndim]
        if leading != self.indices.shape:
            raise ArgumentError(
                f"The values have shape {self.values.shape} and the indices {self.indices.shape}.",
                "Give one row of values for each index.",
            )

    @property
    def dtype(self) -> DType:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def shape(self) -> Shape | None:
        """``dense_shape``, as for a tensor."""
        return self.dense_shape

    def to_dense(self) -> Array:
        """Return the tensor; rows that occur several times are summed in their order.

        Returns
        -------
        ndarray
            Of ``dense_shape``, with zeros in the other rows.

        Raises
        ------
        ArgumentError
            If ``dense_shape`` is not known, or ``indices`` has several axes.
        OutOfRange
            If an index is outside of ``dense_shape``.
        """
        if self.dense_shape is None:
            raise ArgumentError(
                "IndexedSlices without a dense_shape have no dense form.", "Give dense_shape."
            )
        dense = np.zeros(self.dense_shape, self.values.dtype)
        rows, order = sort_rows(check_rows(self.indices, self.dense_shape[0], rank=1))
        scatter_sorted(dense, rows, self.values[order], ADD)
        return dense


def check_slices(sparse_delta: Any) -> IndexedSlices:
    """Return the argument of a sparse write; ``ArgumentTypeError`` if it has another type."""
    if not isinstance(sparse_delta, IndexedSlices):
        raise ArgumentTypeError(
            f"A sparse write is given {type(sparse_delta).__name__}.",
            "Give sv.IndexedSlices(values, indices).",
        )
    return sparse_delta
