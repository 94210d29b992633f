"""Lattices: elements at equal distances along each index, in a payload and in a target.

A piece of a map is affine on both sides: one more along an index is so many elements further in the
payload, and so many coordinates further in the target. So what a stored slice or a byte range has
of a piece is a few lattices, and no tensor is ever reshaped.

    q[(n two d)] -> q[(n d two)], n = 1, two = 2, d = 3       the slice [1:6] of the source has

    source   0 1 2 3 4 5                                      two = 0, d = 1:3
    target   0 2 4 1 3 5                                      two = 1, d = 0:3

Elements are copied between two layouts, such as a matrix and its transpose, in these steps
(``Strided``):

1  axes that follow each other on both sides become one, and side by side elements one word
2  the payload is cut into bands that lie close together, so that few pages are held at a time
3  where reading and writing prefer different axes, tiles of both are copied, which stay in the
   cache

Panels are several blocks of a target that are made together, since each of them would pass over
much more of its sources.

    a matrix [32768, 32768] of bfloat16, transposed      a block of the target is 64 columns of the
                                                         source: 128 bytes of each row of 64 KiB
    a panel of eight blocks                              1 KiB of each row, in the same passes

Threads that need a panel make it together, part by part. Two panels are kept: blocks are asked for
in order, and one thread may still be at the end of the last one.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from threading import RLock
from typing import Any

import numpy as np

from shardvar.engine.pool import BLOCK_NBYTES, WORDS, Together, thread_buffer, word_of
from shardvar.forks import new_lock
from shardvar.layout.dtypes import Array, Ints, Shape
from shardvar.layout.region import Region, row_strides
from shardvar.maps.plan import Piece, View
from shardvar.planning.slices import SliceTable
from shardvar.records import field, frozen, replace

IndexTuple = Shape  # One number for each index of a piece


@frozen
class Lattice:
    """The elements that a stored slice has of a piece, or some of them."""

    row: int  # the row of the stored slice
    piece: Piece
    first: IndexTuple  # [k] the first index, in the coordinates of the piece
    shape: IndexTuple  # [k] the extents
    place: int  # The element of the payload that the first index is
    strides: IndexTuple  # [k] elements of the payload from one index to the next

    @property
    def span(self) -> int:
        """Elements of the payload from the first one to the last, both included."""
        return 1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))

    def part(self, first: IndexTuple, shape: IndexTuple) -> "Lattice":
        skip = sum(index * stride for index, stride in zip(first, self.strides, strict=True))
        there = tuple(a + b for a, b in zip(self.first, first, strict=True))
        return replace(self, first=there, shape=shape, place=self.place + skip)

    def target_corner(self) -> list[int]:
        return coordinates(self.piece.target, self.first)

    def target_bounds(self) -> tuple[list[int], list[int]]:
        """[rank] the first coordinates in the target, and the first ones past the last element."""
        return bounds_of(self.piece.target, self.first, self.shape)

    def target_strides(self, strides: Sequence[int]) -> IndexTuple:
        """[k] elements from one index to the next in a payload with some strides [rank]."""
        return strides_along(self.piece.target, strides)

    def portions(self, most: int) -> "Iterator[Lattice]":
        """Yield parts of at most ``most`` elements, in order."""
        axis, inner = len(self.shape), 1
        while axis and inner * self.shape[axis - 1] <= most:
            axis -= 1
            inner *= self.shape[axis]
        if not axis:
            yield self
            return
        axis, count = axis - 1, max(1, most // inner)
        outer = self.shape[:axis]
        for index in product(*map(range, outer), range(0, self.shape[axis], count)):
            extent = min(count, self.shape[axis] - index[axis])
            rest = self.shape[axis + 1 :]
            yield self.part((*index, *(0 for _ in rest)), (*(1 for _ in outer), extent, *rest))

    def within(self, region: Region) -> "Iterator[Lattice]":
        corner = self.target_corner()
        for first, shape in indices_within(self.piece.target, corner, self.shape, region):
            yield self.part(first, shape)


def coordinates(view: View, index: IndexTuple) -> list[int]:
    place = list(view.start)
    for (axis, step), number in zip(view.steps, index, strict=True):
        if axis >= 0:
            place[axis] += step * number
    return place


def bounds_of(view: View, first: IndexTuple, shape: IndexTuple) -> tuple[list[int], list[int]]:
    """[rank] the first coordinates of some indices, and the first ones past the last."""
    low = coordinates(view, first)
    last = coordinates(view, tuple(f + n - 1 for f, n in zip(first, shape, strict=True)))
    return low, [number + 1 for number in last]


def strides_along(view: View, strides: Sequence[int]) -> IndexTuple:
    """[k] elements from one index to the next, where the axes of a payload have some strides."""
    return tuple(step * strides[axis] if axis >= 0 else 0 for axis, step in view.steps)


def indices_within(
    view: View, corner: Sequence[int], shape: IndexTuple, region: Region
) -> list[tuple[IndexTuple, IndexTuple]]:
    """Return the indices whose coordinates lie in a region, as firsts and extents [k]. An axis of
    several indices is cut as a range of digits is: [07, 32) is 0 and 7:10, then 1:3 and 0:10, then
    3 and 0:2."""
    regions: list[tuple[list[int], list[int]]] = [([0] * len(shape), list(shape))]
    for axis, (low, stop, start) in enumerate(zip(region.offset, region.stop, corner, strict=True)):
        numbers = [
            number
            for number, (of, step) in enumerate(view.steps)
            if of == axis and step and shape[number] > 1
        ]
        numbers.sort(key=lambda number: -view.steps[number][1])
        digits = [(shape[number], view.steps[number][1]) for number in numbers]
        if low <= start and start + sum((count - 1) * step for count, step in digits) < stop:
            continue
        ranges = list(_digit_ranges(digits, low - start, stop - start))
        cut = []
        for (first, extents), some in product(regions, ranges):
            first, extents = list(first), list(extents)
            for number, (begin, count) in zip(numbers, some, strict=True):
                first[number], extents[number] = begin, count
            cut.append((first, extents))
        regions = cut
    return [(tuple(first), tuple(extents)) for first, extents in regions]


def _digit_ranges(
    digits: Sequence[tuple[int, int]], low: int, stop: int
) -> Iterator[list[tuple[int, int]]]:
    """Yield ranges, a first and a count for each digit, that have the sums in ``[low, stop)``."""
    if not digits:
        if low <= 0 < stop:
            yield []
        return
    (extent, step), rest = digits[0], digits[1:]
    reach = sum((count - 1) * step for count, step in rest)
    # The digits with which a sum can lie within, and among these, those with which all do.
    begin, end = max(0, -(-(low - reach) // step)), min(extent, -(-stop // step))
    whole, past = max(begin, -(-low // step)), min(end, (stop - 1 - reach) // step + 1)
    if whole >= past:
        whole = past = end
    for digit in range(begin, whole):
        for some in _digit_ranges(rest, low - digit * step, stop - digit * step):
            yield [(digit, 1), *some]
    if whole < past:
        yield [(whole, past - whole), *((0, count) for count, _ in rest)]
    for digit in range(past, end):
        for some in _digit_ranges(rest, low - digit * step, stop - digit * step):
            yield [(digit, 1), *some]


def lattices_of(piece: Piece, view: View, slices: SliceTable, rows: Ints) -> list[Lattice]:
    """Return the parts of a piece in some stored slices of a tensor; ``view`` is the tensor's."""
    if 0 in piece.shape:
        return []
    zeros, rank = (0,) * len(piece.shape), len(view.start)
    low, stop = bounds_of(view, zeros, piece.shape)
    offsets, shapes = slices.offset[rows, :rank], slices.shape[rows, :rank]
    meets = ((offsets < stop) & (offsets + shapes > low)).all(axis=1)
    lattices = []
    for row in rows[meets].tolist():
        region = slices.region(row)
        strides = row_strides(region.shape)
        place = sum(
            (a - b) * stride
            for a, b, stride in zip(view.start, region.offset, strides, strict=True)
        )
        whole = Lattice(row, piece, zeros, piece.shape, place, strides_along(view, strides))
        for first, shape in indices_within(view, view.start, piece.shape, region):
            lattices.append(whole.part(first, shape))
    return lattices


def factor_lattices(
    extents: Sequence[int], factor: View, slices: SliceTable, rows: Ints
) -> list[Lattice]:
    """Return the parts of a factor in stored slices; targets are the factor's indices."""
    shape = tuple(
        extent if axis >= 0 else 1 for extent, (axis, _) in zip(extents, factor.steps, strict=True)
    )
    indices = View("", (0,) * len(shape), tuple((axis, 1) for axis in range(len(shape))))
    return lattices_of(Piece(0, shape, factor, indices), factor, slices, rows)


def is_dense(lattice: Lattice) -> bool:
    low, stop = lattice.target_bounds()
    return prod(lattice.shape) == prod(b - a for a, b in zip(low, stop, strict=True))


Cell = tuple[IndexTuple, IndexTuple, Ints]
"""A region of a target, as first coordinates and stops [rank], and the lattices in it."""


def cells(
    low: Ints, stop: Ints, first: IndexTuple, last: IndexTuple, numbers: Ints
) -> Iterator[Cell]:
    """Cut a region of a target into cells, so that each of some regions in it lies in one cell:
    along one axis after the other, wherever that cuts none of them."""
    if len(numbers):
        for axis in range(len(first)):
            order = numbers[np.argsort(low[numbers, axis], kind="stable")]
            begins, reach = low[order, axis], np.maximum.accumulate(stop[order, axis])
            apart = np.flatnonzero(begins[1:] >= reach[:-1]) + 1
            groups = np.split(order, apart)
            cuts = [
                (int(low[group, axis].min()), int(stop[group, axis].max()), group)
                for group in groups
            ]
            if len(cuts) == 1 and cuts[0][:2] == (first[axis], last[axis]):
                continue
            place = first[axis]
            for begin, end, group in (*cuts, (last[axis], last[axis], numbers[:0])):
                for a, b, some in ((place, begin, numbers[:0]), (begin, end, group)):
                    if a < b:
                        yield from cells(
                            low, stop, _with(first, axis, a), _with(last, axis, b), some
                        )
                place = end
            return
    yield first, last, numbers


def _with(index: IndexTuple, axis: int, value: int) -> IndexTuple:
    return (*index[:axis], value, *index[axis + 1 :])


_TILE_ROWS, _TILE_COLUMNS = 256, 128
"""Extents that are copied at a time, along the axis that is written in order and the axis that is
read in order. A tile is first copied as it lies, and then out of there, since it stays in the
cache."""

_LINE_NBYTES = 64
"""Bytes of a line of the cache. The rows of a tile lie one apart: rows at a distance of a power of
two would share few lines of the cache."""

_LEAST_TILE = 4096
"""Elements of a plane of two axes below which NumPy copies all planes in one call."""


@frozen
class Strided:
    shape: Shape  # [k] the extents
    place: int  # The first element, in bytes of the payload that is read
    strides: Shape  # [k] bytes from one index to the next there
    into: int  # the first element, in bytes of the buffer that is filled
    into_strides: Shape  # [k] bytes from one index to the next there
    itemsize: int  # bytes of an element

    @property
    def span(self) -> int:
        return self.itemsize + sum(
            (n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)
        )

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.itemsize

    @property
    def is_range(self) -> bool:
        return not self.shape or (
            len(self.shape) == 1 and self.strides == self.into_strides == (self.itemsize,)
        )

    def merged(self) -> "Strided":
        axes = [axis for axis in self._axes() if axis[0] > 1]
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
        """Return the same copy with neighbours as one word, which NumPy copies faster."""
        axes, size = self._axes(), self.itemsize
        if axes and axes[-1][1:] == (size, size):
            nbytes = axes[-1][0] * size
            word = max(word for word in WORDS if nbytes % word == 0)
            if word > size:
                axes[-1:] = [(nbytes // word, word, word)] if nbytes > word else []
                size = word
        return self._of(axes, size)

    def _axes(self) -> list[tuple[int, int, int]]:
        return list(zip(self.shape, self.strides, self.into_strides, strict=True))

    def _of(self, axes: Sequence[tuple[int, int, int]], itemsize: int) -> "Strided":
        shape, strides, into_strides = zip(*axes, strict=True) if axes else ((), (), ())
        return Strided(shape, self.place, strides, self.into, into_strides, itemsize)

    def bands(self, most: int) -> Iterator["Strided"]:
        """Yield parts with spans of at most ``most`` bytes, or of one element, in reading order."""
        if self.span <= max(most, self.itemsize):
            yield self
            return
        axis = max(
            range(len(self.shape)), key=lambda axis: (self.shape[axis] > 1, self.strides[axis])
        )
        extent, step = self.shape[axis], self.strides[axis]
        inner = self.span - (extent - 1) * step
        count = max(1, (most - inner) // step + 1 if inner <= most else 1)
        for begin in range(0, extent, count):
            part = replace(
                self,
                shape=_with(self.shape, axis, min(count, extent - begin)),
                place=self.place + begin * step,
                into=self.into + begin * self.into_strides[axis],
            )
            yield from part.bands(most)

    def copy(self, payload: memoryview, buffer: memoryview) -> None:
        word = word_of(self.itemsize)
        out = np.ndarray(self.shape, word, buffer, self.into, self.into_strides)
        read = np.ndarray(self.shape, word, payload, self.place, self.strides)
        # The last axis is written in order, and this one is read in order.
        last = read.ndim - 1
        across = min(range(read.ndim), key=lambda axis: read.strides[axis], default=last)
        if across == last or read.shape[across] * read.shape[last] < _LEAST_TILE:
            out[...] = read
            return
        axes: list[Sequence[Any]] = [
            [slice(None)] if axis in (across, last) else range(extent)
            for axis, extent in enumerate(read.shape)
        ]
        for index in product(*axes):
            _copy_tiles(read[index], out[index])


def _copy_tiles(read: Array, out: Array) -> None:
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


_PANEL_NBYTES = 8 * BLOCK_NBYTES
"""Bytes of a panel: two of them are 64 MiB, a quarter of what a process may take."""

_MOST_PANELS = 2  # Panels that are kept

_SPARSE = 2  # a block is sparse if its sources extend over more than so many times its bytes


@frozen
class PanelPart:
    span: int  # bytes of its source from the first element to the last
    work: Callable[[], object]


@frozen
class Panels:
    """The panels that were made last, by the number of an entry and their first byte."""

    made: "OrderedDict[tuple[int, int], tuple[memoryview, Together]]" = field(
        default_factory=OrderedDict
    )
    """The bytes of each, and the work that fills them."""
    lock: RLock = field(default_factory=new_lock)  # Guards ``made``

    def clear(self) -> None:
        self.made.clear()

    def make(
        self,
        number: int,
        start: int,
        nbytes: int,
        parts: Callable[[int, memoryview], Sequence[PanelPart]],
    ) -> None:
        """Begin the panel of an entry of ``nbytes`` that holds a byte, if it is not there.

        ``parts`` gives the work that fills a buffer from a byte of the entry on.
        """
        first = start // _PANEL_NBYTES * _PANEL_NBYTES
        with self.lock:
            if (number, first) in self.made:
                return
            # Zeros would cost as much as a copy.
            buffer = np.empty(min(_PANEL_NBYTES, nbytes - first), np.uint8).data
            work = Together([part.work for part in parts(first, buffer)])
            self.made[number, first] = buffer, work
            while len(self.made) > _MOST_PANELS:
                self.made.popitem(last=False)

    def copy(self, number: int, start: int, buffer: memoryview) -> bool:
        first = start // _PANEL_NBYTES * _PANEL_NBYTES
        made = self.made.get((number, first))
        if made is None or start - first + len(buffer) > len(made[0]):
            return False
        panel, work = made
        work.finish()
        buffer[:] = panel[start - first : start - first + len(buffer)]
        return True


def is_sparse(parts: Sequence[PanelPart], nbytes: int, most: int) -> bool:
    """Return True if a panel is worth it for a block of ``nbytes`` of an entry of ``most``."""
    if nbytes < BLOCK_NBYTES or nbytes >= most:
        return False
    return sum(part.span for part in parts) > _SPARSE * nbytes


def bands_of(
    lattice: Lattice, there: tuple[int, Sequence[int]], itemsize: int
) -> Iterator[Strided]:
    """Yield the copies of a lattice to a place in a buffer, with strides, in elements."""
    into, strides = there
    copy = Strided(
        lattice.shape,
        lattice.place * itemsize,
        tuple(step * itemsize for step in lattice.strides),
        into * itemsize,
        tuple(step * itemsize for step in strides),
        itemsize,
    )
    yield from copy.merged().in_words().bands(BLOCK_NBYTES)
