"""NumPy's index on rows in shards: which rows to read, perhaps only columns of them, and what to
pick from these.

Law: ``x[key]`` is ``x[rows][:, *columns][pick]``, for everything that NumPy allows as a key:
integers, slices with any step, ``...``, ``None``, boolean masks of any rank, arrays of integers, in
any mixture. So a sharded variable moves what a key touches, and NumPy itself does the rest.

1. ``layout.indexing`` reads the key: one item for each axis, between new axes and the scalars True
   and False.
2. The item of the first axis says which rows are touched; in ``pick`` it is replaced by one that
   selects among them.
3. If the rows are a range, slices and integers of other axes say which columns are touched, in the
   same way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, OutOfRange
from shardvar.layout.dtypes import Array, Ints
from shardvar.layout.indexing import expand_index, is_axis, slice_of
from shardvar.reference.variables.row_layout import check_rows

Rows = range | Ints


@dataclass(frozen=True, slots=True)
class RowIndex:
    """The rows that a key touches, and what it picks from them."""

    rows: Rows
    """The rows, in range."""
    pick: tuple[Any, ...]
    """The key for the array of these rows."""
    columns: tuple[slice, ...] = ()
    """The part of the other axes that is touched, if rows are a range; empty for all."""

    def read(self, read_rows: Callable[[Rows, tuple[slice, ...]], Array]) -> Array:
        """The value at the key, given a way of reading rows, or columns of them."""
        try:
            picked: Array = read_rows(self.rows, self.columns)[self.pick]
            return picked
        except IndexError as error:  # arrays that do not broadcast
            raise OutOfRange(
                f"{str(error).capitalize()}.", "Give arrays that broadcast, as NumPy asks."
            ) from error


def read_index(
    key: Any,
    shape: tuple[int, ...],
    read_rows: Callable[[Rows, tuple[slice, ...]], Array],
    read_value: Callable[[], Array],
) -> Array:
    """``value[key]``, reading rows if the value has any."""
    if shape:
        return plan_index(key, shape).read(read_rows)
    picked: Array = read_value()[tuple(expand_index(key, shape))]
    return picked


def plan_index(key: Any, shape: tuple[int, ...]) -> RowIndex:
    """The rows that ``key`` touches in an array of ``shape``, which has an axis.

    >>> plan_index((slice(9, 2, -3), 1), (13, 4))
    RowIndex(rows=range(9, 2, -3), pick=(slice(None, None, None), 0), columns=(slice(1, 2, 1),))
    """
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
        others = items[:first] + items[first + 1 :]
        rows, pick = _rows_of_array(item, shape[0], is_only=all(map(_is_basic, others)))
        return RowIndex(rows, (*items[:first], pick, *items[first + 1 :]))
    rest, columns = _columns(items[first + 1 :], shape)
    return RowIndex(rows, (*items[:first], pick, *rest), columns)


def _columns(items: list[Any], shape: tuple[int, ...]) -> tuple[list[Any], tuple[slice, ...]]:
    """The picks from the columns that are touched, and these columns; all of an axis that an array
    indexes.

    R-MOVE-2: of each row, what the key does not touch is not moved either.
    """
    picks: list[Any] = []
    columns: list[slice] = []
    for item in items:
        if isinstance(item, slice):
            picks.append(slice(None))
            columns.append(slice_of(range(shape[len(columns) + 1])[item]))
        elif isinstance(item, int):
            picks.append(0)
            columns.append(slice(item, item + 1, 1))
        else:
            picks.append(item)
            columns += [slice(None)] * is_axis(item)
    return picks, tuple(columns) if any(column != slice(None) for column in columns) else ()


def plan_gather_nd(indices: Any, shape: tuple[int, ...]) -> RowIndex:
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


def _is_basic(item: Any) -> bool:
    return item is None or isinstance(item, slice)


def _rows_of_array(numbers: Ints, length: int, *, is_only: bool) -> tuple[Ints, Any]:
    """The rows of an array of integers, and the index that picks from them."""
    rows = np.where(numbers < 0, numbers + length, numbers)
    if is_only and rows.ndim == 1:
        # With only slices and new axes around it, NumPy puts the result of one array where its axis
        # was, as a slice.
        return rows, slice(None)
    # Otherwise its axes may move to the front. NumPy decides that, and each row is read once: [4,
    # 0, 4] reads 0 and 4, and picks [1, 0, 1].
    distinct, pick = np.unique(rows, return_inverse=True)
    return distinct, pick.reshape(numbers.shape)
