"""LazySlice: a tensor that can be cut without being read.

R-POLICY-19 (RFC 001): "the callback really only works with the tensor metadata (it doesn't actually move around GBs of
data when sharding)".
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from shardvar.checkpoint.basic_index import bounds_of, expand, integer_of
from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.region import Region


class Holder(Protocol):
    """What holds slices, row by row, and reads them when it is asked to."""

    def dtype(self, row: int) -> np.dtype[Any]:
        """The dtype of the elements."""

    def region(self, row: int) -> Region:
        """The part of the whole tensor."""

    def nbytes(self, row: int) -> int:
        """The bytes of the payload."""

    def name(self, row: int) -> str:
        """The name of the variable, or the key."""

    def device(self, row: int) -> str:
        """The full name of the device."""

    def read(self, row: int, region: Region) -> npt.NDArray[Any]:
        """The values of a part of the whole tensor, verified."""


Axis = tuple[range | int, bool]
"""Indices of the held slice, one where an integer chose it, and whether its axis is one that ``None`` made."""


class LazySlice(NDArrayOperatorsMixin):
    """A tensor whose values are read when they are needed: by ``np.asarray``, by arithmetic, by being saved.

    NumPy's basic indices give another such tensor and read nothing. Operators and functions of NumPy read it and give
    an array.
    """

    __slots__ = ("_axes", "_holder", "_row")

    def __init__(self, holder: Holder, row: int, axes: tuple[Axis, ...] | None = None) -> None:
        self._holder = holder
        self._row = row
        self._axes = axes

    @property
    def row(self) -> int:
        """Which of the slices that a callback is given it is a part of."""
        return self._row

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements; ``object`` for strings."""
        return self._holder.dtype(self._row)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        if self._axes is None:
            return self._holder.region(self._row).shape
        return tuple(len(indices) for indices, _ in self._axes if isinstance(indices, range))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return Region.whole(self.shape).size

    @property
    def nbytes(self) -> int:
        """The bytes of its payload; of a part of strings those of its elements, for which it is read."""
        if self._axes is None:
            return self._holder.nbytes(self._row)
        if self.dtype == np.object_:
            return sum(map(len, np.asarray(self).flat))
        return self.size * self.dtype.itemsize

    @property
    def name(self) -> str:
        """The name of the variable that it is of, or the key where there is none."""
        return self._holder.name(self._row)

    @property
    def device(self) -> str:
        """The full name of the device that holds it in memory."""
        return self._holder.device(self._row)

    @property
    def region(self) -> Region | None:
        """Which part of the whole tensor it is; None where it is no region of it, but has steps or other axes."""
        held = self._holder.region(self._row)
        if self._axes is None:
            return held
        starts = [axis.start for axis, new in self._axes if isinstance(axis, range) and axis.step == 1 and not new]
        if len(starts) < len(self._axes):
            return None
        return Region((a + b for a, b in zip(held.offset, starts, strict=True)), self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError(f"{self!r} has no axes and therefore no length.")
        return self.shape[0]

    def __getitem__(self, index: Any) -> "LazySlice":
        items = index if isinstance(index, tuple) else (index,)
        before = self._axes if self._axes is not None else [(range(extent), False) for extent in self.shape]
        rest = iter(expand(items, self.shape))
        axes: list[Axis] = []
        for indices, new in before:
            if isinstance(indices, int):
                axes.append((indices, new))
                continue
            while (item := next(rest)) is None:
                axes.append((range(1), True))
            picked = _pick(indices, item)
            if isinstance(picked, range) or not new:
                axes.append((picked, new))
        axes.extend((range(1), True) for _ in rest)
        return LazySlice(self._holder, self._row, tuple(axes))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:  # as NumPy's protocol has it
            raise ArgumentError(f"An array of {self!r} is always a copy.")
        array = self._read()
        return array if dtype is None else array.astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(each, LazySlice) for each in options.get("out", ())):
            return NotImplemented
        arrays = [np.asarray(each) if isinstance(each, LazySlice) else each for each in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def numpy(self) -> npt.NDArray[Any]:
        """The values, as a fresh array."""
        return self._read()

    def __repr__(self) -> str:
        return f"<LazySlice of {self.name!r}: {self.dtype}{list(self.shape)}>"

    def _read(self) -> npt.NDArray[Any]:
        held = self._holder.region(self._row)
        if self._axes is None:
            return self._holder.read(self._row, held)
        chosen = [indices for indices, new in self._axes if not new]
        bounds = [_bounds(indices) for indices in chosen]
        offset = [start + low for start, (low, _) in zip(held.offset, bounds, strict=True)]
        array = self._holder.read(self._row, Region(offset, [count for _, count in bounds]))
        picked = array[(*map(_from_bounds, chosen, [low for low, _ in bounds]), ...)]
        return picked.reshape(self.shape) if self.size else np.empty(self.shape, self.dtype)


def _pick(indices: range, item: Any) -> range | int:
    if isinstance(item, slice):
        return indices[bounds_of(item)]
    number = integer_of(item)
    if not -len(indices) <= number < len(indices):
        raise OutOfRange(f"Index {number} is out of range for an axis of length {len(indices)}.")
    return indices[number]


def _bounds(indices: range | int) -> tuple[int, int]:
    """The first index, and how many there are up to the last one."""
    if isinstance(indices, int):
        return indices, 1
    if not indices:
        return 0, 0
    return min(indices[0], indices[-1]), abs(indices[-1] - indices[0]) + 1


def _from_bounds(indices: range | int, low: int) -> slice | int:
    """What picks the indices from those that ``_bounds`` says are read."""
    if isinstance(indices, int):
        return 0
    if not indices:
        return slice(0)
    last = indices[-1] - low + (1 if indices.step > 0 else -1)
    return slice(indices[0] - low, last if last >= 0 else None, indices.step)


def row_of(value: Any, holder: Holder) -> int:
    """The row that the value is, all of it; -1 for whatever else it is."""
    if type(value) is LazySlice and value._axes is None and value._holder is holder:
        return value._row
    return -1


def is_held_by(value: Any, holder: Holder) -> bool:
    """Whether the value is a tensor, or a part of one, that is held there."""
    return isinstance(value, LazySlice) and value._holder is holder
