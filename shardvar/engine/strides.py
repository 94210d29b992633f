"""Copies between two layouts of the same elements, such as a matrix and its transpose.

1  axes that follow each other on both sides become one, and side by side elements one word
2  what is read is cut into bands that lie close together, so that few pages are held at a time
3  where reading and writing prefer different axes, tiles of both are copied, which stay in the
   cache
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.pool import WORDS, thread_buffer, word_of

_TILE_ROWS, _TILE_COLUMNS = 256, 128
"""Extents that are copied at a time, along the axis that is written in order and the one that is
read in order. A tile is first copied as it lies, and then out of there, since it stays in the
cache."""

_LINE_NBYTES = 64
"""Bytes of a line of the cache. The rows of a tile lie one apart: rows at a distance of a power of
two would share few lines of the cache."""

_LEAST_TILE = 4096
"""Elements of a plane of two axes below which NumPy copies all planes in one call."""


@dataclass(frozen=True, slots=True)
class Strided:
    """Elements of two payloads, at distances in bytes."""

    shape: tuple[int, ...]
    """[k] the extents."""
    place: int
    """The first element, in bytes of the payload that is read."""
    strides: tuple[int, ...]
    """[k] bytes from one index to the next there."""
    into: int
    """The first element, in bytes of the buffer that is filled."""
    into_strides: tuple[int, ...]
    """[k] bytes from one index to the next there."""
    itemsize: int
    """Bytes of an element."""

    @property
    def span(self) -> int:
        """Bytes from the first element that is read to the end of the last."""
        return self.itemsize + sum(
            (n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return prod(self.shape) * self.itemsize

    @property
    def is_range(self) -> bool:
        """True if the elements are one range of bytes on both sides."""
        return not self.shape or (
            len(self.shape) == 1 and self.strides == self.into_strides == (self.itemsize,)
        )

    def merged(self) -> "Strided":
        """Return the same copy with as few axes as possible, in the order in which it writes."""
        axes = [
            axis
            for axis in zip(self.shape, self.strides, self.into_strides, strict=True)
            if axis[0] > 1
        ]
        axes.sort(key=lambda axis: -axis[2])
        merged: list[tuple[int, int, int]] = []
        for extent, step, into_step in axes:
            if merged:
                before, outer, into_outer = merged[-1]
                if outer == extent * step and into_outer == extent * into_step:
                    merged[-1] = (before * extent, step, into_step)
                    continue
            merged.append((extent, step, into_step))
        return self._of(merged, self.itemsize)

    def in_words(self) -> "Strided":
        """Return the same copy with side by side elements as one word: NumPy takes as long for 16
        bytes as for two."""
        axes, size = (
            list(zip(self.shape, self.strides, self.into_strides, strict=True)),
            self.itemsize,
        )
        if axes and axes[-1][1:] == (size, size):
            extent = axes[-1][0]
            word = next(
                (word for word in sorted(WORDS, reverse=True) if extent * size % word == 0), 0
            )
            if word > size:
                axes[-1] = (extent * size // word, word, word)
                size = word
                if axes[-1][0] == 1:
                    axes.pop()
        return self._of(axes, size)

    def _of(self, axes: Sequence[tuple[int, int, int]], itemsize: int) -> "Strided":
        shape, strides, into_strides = zip(*axes, strict=True) if axes else ((), (), ())
        return Strided(shape, self.place, strides, self.into, into_strides, itemsize)

    def bands(self, most: int) -> Iterator["Strided"]:
        """Yield parts with spans of at most ``most`` bytes, or of one element, in the order of the
        payload that is read."""
        if self.span <= max(most, self.itemsize):
            yield self
            return
        axis = max(
            range(len(self.shape)), key=lambda each: (self.shape[each] > 1, self.strides[each])
        )
        extent, step = self.shape[axis], self.strides[axis]
        inner = self.span - (extent - 1) * step
        count = max(1, (most - inner) // step + 1 if inner <= most else 1)
        for begin in range(0, extent, count):
            shape = list(self.shape)
            shape[axis] = min(count, extent - begin)
            part = Strided(
                tuple(shape),
                self.place + begin * step,
                self.strides,
                self.into + begin * self.into_strides[axis],
                self.into_strides,
                self.itemsize,
            )
            yield from part.bands(most)

    def copy(self, payload: memoryview, buffer: memoryview) -> None:
        """Fill the places in the buffer with the elements of the payload."""
        word = word_of(self.itemsize)
        out = np.ndarray(self.shape, word, buffer, self.into, self.into_strides)
        read = np.ndarray(self.shape, word, payload, self.place, self.strides)
        _copy(read, out)


def _copy(read: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Copy an array into one of the same shape, whose axes are in the order of ``out``."""
    rank = read.ndim
    if rank < 2:
        out[...] = read
        return
    # The axis that is read in order, and the one that is written in order, which is the last.
    across = min(range(rank), key=lambda axis: read.strides[axis])
    if across == rank - 1 or read.shape[across] * read.shape[-1] < _LEAST_TILE:
        out[...] = read
        return
    others = [axis for axis in range(rank) if axis not in (across, rank - 1)]
    index: list[Any] = [slice(None)] * rank
    for numbers in product(*(range(read.shape[axis]) for axis in others)):
        for axis, number in zip(others, numbers, strict=True):
            index[axis] = number
        _copy_tiles(read[tuple(index)], out[tuple(index)])


def _copy_tiles(read: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Copy a matrix [columns, rows] that is read by rows and written by columns, by tiles."""
    columns, rows = read.shape
    height, width = min(rows, _TILE_ROWS), min(columns, _TILE_COLUMNS)
    stride = width * read.itemsize + _LINE_NBYTES
    tile = np.ndarray(
        (height, width),
        read.dtype,
        thread_buffer(height * stride, "tile"),
        0,
        (stride, read.itemsize),
    )
    for left in range(0, columns, width):
        for top in range(0, rows, height):
            some = read[left : left + width, top : top + height].T
            there = tile[: some.shape[0], : some.shape[1]]
            there[...] = some
            out[left : left + width, top : top + height] = there.T
