"""NumPy's index as rows to read, perhaps columns of them alone, and what to pick from these afterwards.

Law: ``x[key]`` is ``x[rows][:, *columns][pick]``, for everything that NumPy allows as a key: integers, slices with any
step, ``...``, ``None``, boolean masks of any rank, arrays of integers, in any mixture. So a sharded variable moves what
a key touches, and NumPy itself does the rest.

1. A boolean mask becomes the integer arrays of its ``nonzero()``, which NumPy defines it to be.
2. Now each item stands for one axis, besides ``None`` and the scalars True and False, which stand for none, and the
   ellipsis, which stands for all axes left over.
3. The item of the first axis says which rows are touched; in ``pick`` it is replaced by one that selects among them.
4. Where the rows are a range, slices and integers of other axes say which columns are touched, in the same way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.dtypes import Array, Ints
from shardvar.variables.row_layout import check_rows

Rows = range | Ints


@dataclass(frozen=True, slots=True)
class RowIndex:
    """Which rows a key touches, and what it picks from them."""

    rows: Rows
    """The rows, in range."""
    pick: tuple[Any, ...]
    """The key for the array of these rows."""
    columns: tuple[slice, ...] = ()
    """What is touched of the other axes, where rows are a range; nothing means all."""

    def read(self, read_rows: Callable[[Rows, tuple[slice, ...]], Array]) -> Array:
        """The value at the key, given a way of reading rows, or columns of them."""
        try:
            picked: Array = read_rows(self.rows, self.columns)[self.pick]
            return picked
        except IndexError as error:  # of another axis, or arrays that do not broadcast
            raise OutOfRange(f"{str(error).capitalize()}.", "The index follows NumPy's rules.") from error


def read_index(
    key: Any,
    shape: tuple[int, ...],
    read_rows: Callable[[Rows, tuple[slice, ...]], Array],
    read_value: Callable[[], Array],
) -> Array:
    """``value[key]``, reading rows where there are any."""
    if shape:
        return plan_index(key, shape).read(read_rows)
    picked: Array = read_value()[tuple(_items(key, shape))]
    return picked


def plan_index(key: Any, shape: tuple[int, ...]) -> RowIndex:
    """The rows that ``key`` touches in an array of ``shape``, which has an axis.

    >>> plan_index((slice(9, 2, -3), 1), (13, 4))
    RowIndex(rows=range(9, 2, -3), pick=(slice(None, None, None), 0), columns=(slice(1, 2, 1),))
    """
    items = _items(key, shape)
    first = next(place for place, item in enumerate(items) if _axes(item))
    item = items[first]
    rows: Rows
    pick: Any
    if isinstance(item, slice):
        rows, pick = _range(item, shape[0]), slice(None)
    elif isinstance(item, int):
        row = _row(item, shape[0])
        rows, pick = range(row, row + 1), 0
    else:
        others = items[:first] + items[first + 1 :]
        rows, pick = _rows_of_array(item, shape[0], alone=all(map(_is_basic, others)))
        return RowIndex(rows, (*items[:first], pick, *items[first + 1 :]))
    rest, columns = _columns(items[first + 1 :], shape)
    return RowIndex(rows, (*items[:first], pick, *rest), columns)


def _columns(items: list[Any], shape: tuple[int, ...]) -> tuple[list[Any], tuple[slice, ...]]:
    """What picks from the columns that are touched, and these columns; all of an axis that an array indexes.

    R-MOVE-2: of each row, what the key does not touch is not moved either.
    """
    picks: list[Any] = []
    columns: list[slice] = []
    for item in items:
        axis = len(columns) + 1
        if _axes(item) == 0 or isinstance(item, np.ndarray):
            picks.append(item)
            columns += [slice(None)] * _axes(item)
        elif isinstance(item, slice):
            picks.append(slice(None))
            columns.append(_slice_of(_range(item, shape[axis])))
        else:
            number = _row(item, shape[axis], axis)
            picks.append(0)
            columns.append(slice(number, number + 1, 1))
    return picks, tuple(columns) if any(column != slice(None) for column in columns) else ()


def _slice_of(numbers: range) -> slice:
    """The slice that selects these numbers, which are in range."""
    if not numbers:
        return slice(0, 0, 1)
    return slice(numbers.start, numbers.stop if numbers.stop >= 0 else None, numbers.step)


def plan_gather_nd(indices: Any, shape: tuple[int, ...]) -> RowIndex:
    """The rows that ``indices`` [*n, k] touch, each an index into the first k axes; none may be negative."""
    array = np.asarray(indices)
    depth = array.shape[-1] if array.ndim else 0
    if array.ndim == 0 or depth > len(shape) or depth == 0:
        raise ArgumentError(
            f"Indices of shape {array.shape} do not address the shape {shape}.",
            f"Give [..., k] with k from 1 to {len(shape)}.",
        )
    axes = [check_rows(array[..., axis], shape[axis]) for axis in range(depth)]
    return plan_index(tuple(axes), shape)


def _items(key: Any, shape: tuple[int, ...]) -> list[Any]:
    """One item an axis, besides those that stand for none; there is no ellipsis left."""
    items = list(key) if isinstance(key, tuple) else [key]
    items = [_parsed(item) for item in items]
    ellipses = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1:
        raise OutOfRange("An index has more than one ellipsis.", "One stands for all axes that are left out.")
    given = sum(map(_axes, items))
    if given > len(shape):
        raise OutOfRange(f"{given} indices are too many for the shape {shape}.")
    place = ellipses[0] if ellipses else len(items)
    items[place : place + 1] = [slice(None)] * (len(shape) - given)
    expanded: list[Any] = []
    axis = 0
    for item in items:
        expanded += _nonzero(item, shape, axis) if _is_mask(item) else [item]
        axis += _axes(item)
    return expanded


def _parsed(item: Any) -> Any:
    """None, Ellipsis, a slice, an int, a NumPy boolean, or an array of booleans or integers."""
    if item is None or item is Ellipsis:
        return item
    if isinstance(item, slice):
        return slice(*(None if bound is None else _integer(bound) for bound in (item.start, item.stop, item.step)))
    if isinstance(item, bool | np.bool_):
        return np.bool_(item)
    if hasattr(item, "__index__") and not isinstance(item, np.ndarray):
        return _integer(item)
    array = np.asarray(item)
    if array.size == 0 and array.dtype == np.float64 and isinstance(item, list | tuple):
        array = array.astype(np.int64)  # NumPy: an empty list selects nothing
    if array.dtype.kind not in "iub":
        raise ArgumentTypeError(
            f"{item!r} is no index.", "Index with integers, slices, ..., None, or arrays of integers or booleans."
        )
    if array.ndim == 0:
        return np.bool_(array) if array.dtype == np.bool_ else int(array)
    return array if array.dtype == np.bool_ else array.astype(np.int64, copy=False)


def _integer(value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise ArgumentTypeError(f"{value!r} is no integer.", "Indices and bounds of slices are integers.") from None


def _axes(item: Any) -> int:
    """How many axes an item stands for."""
    if item is None or item is Ellipsis or isinstance(item, np.bool_):
        return 0
    return item.ndim if _is_mask(item) else 1


def _is_mask(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def _is_basic(item: Any) -> bool:
    return item is None or isinstance(item, slice)


def _nonzero(mask: Array, shape: tuple[int, ...], axis: int) -> list[Ints]:
    covered = shape[axis : axis + mask.ndim]
    if mask.shape != covered:
        raise OutOfRange(f"A mask of shape {mask.shape} does not fit the axes {covered} of the shape {shape}.")
    return list(mask.nonzero())


def _range(item: slice, length: int) -> range:
    if item.step == 0:
        raise ArgumentError("A slice has step 0.", "Give another step.")
    return range(length)[item]


def _row(number: int, length: int, axis: int = 0) -> int:
    if not -length <= number < length:
        raise OutOfRange(f"Index {number} is out of range for axis {axis} of length {length}.")
    return number % length


def _rows_of_array(numbers: Ints, length: int, *, alone: bool) -> tuple[Ints, Any]:
    """The rows of an array of integers, and what picks from them."""
    outside = numbers[(numbers < -length) | (numbers >= length)]
    if outside.size:
        raise OutOfRange(f"Index {outside[0]} is out of range for axis 0 of length {length}.")
    rows = np.where(numbers < 0, numbers + length, numbers)
    if alone and rows.ndim == 1:
        return rows, slice(None)  # one array of one axis, all else basic: its place is that of a slice
    distinct, pick = np.unique(rows, return_inverse=True)
    return distinct, pick.reshape(numbers.shape)
