"""Copies that are no single run of bytes: boxes cut across the inner axes of a payload.

A box in a payload is read by the span from its first element to its last, where that span is not much larger than
the box; otherwise the box is halved until it is. So memory stays bounded whatever the shapes are, and a column of a
wide matrix does not read the matrix at once.

Columns of a matrix lie interleaved in it: read one after the other, each would read all of it. So boxes that are wanted
at the same time are read together (``read_boxes``): one walk over the payload, block by block, gives each box its part.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.evidence import BLOCK_NBYTES, Evidence
from shardvar.formats.protocol import Source
from shardvar.layout.region import Region, regions_of_range
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.planning.plan import Copy

_DENSE = 4
"""A span at most this many times larger than its box is read in one go."""

_SMALL_NBYTES = 64 << 10
"""A span of at most these bytes is read in one go however sparse it is: a read costs about as much as these bytes."""

_WORDS: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
"""Elements are moved as words of their size, which NumPy does several times faster than it moves raw bytes."""

Wanted = tuple[int, Region, npt.NDArray[Any]]
"""(row of the entry, box in its slice's own coordinates, array of the box's shape that is to be filled)."""


def read_box(
    source: Source, entries: EntryTable, row: int, box: Region, out: npt.NDArray[Any], evidence: Evidence
) -> None:
    """Fill ``out`` [*box.shape] with a box of one payload; the box is in the slice's own coordinates.

    ``out`` has a dtype of the payload's item size and may have any strides. What was read goes into ``evidence``
    without a checksum that could be compared, so that the payload is checked afterwards.
    """
    itemsize = out.dtype.itemsize
    shape = entries.slices.region(row).shape
    strides = _strides(shape)
    stack = [(box, out)]
    while stack:
        box, out = stack.pop()
        first = _dot(box.offset, strides)
        nbytes = (_last(box, strides) - first + 1) * itemsize
        if nbytes > _SMALL_NBYTES and nbytes > min(BLOCK_NBYTES, _DENSE * box.size * itemsize):
            stack.extend(reversed(_halves(box, out)))
            continue
        span = bytearray(nbytes)
        source.read_into(entries, row, first * itemsize, memoryview(span))
        evidence.add([(row, first * itemsize, nbytes, NO_CHECKSUM)])
        out[...] = np.ndarray(box.shape, out.dtype, span, strides=[stride * itemsize for stride in strides])


def read_boxes(source: Source, entries: EntryTable, wanted: Sequence[Wanted], evidence: Evidence) -> None:
    """Fill the arrays, reading what several of them want once. What was read goes into ``evidence``.

    Law: the arrays are what ``read_box`` makes of them one by one. Memory: a block.
    """
    for row, group in groupby(sorted(wanted, key=itemgetter(0)), key=itemgetter(0)):
        _walk(source, entries, row, list(group), evidence)


def boxes_in_range(
    entries: EntryTable, target: Region, copies: Sequence[Copy], start: int, buffer: memoryview, itemsize: int
) -> Iterator[Wanted]:
    """What fills ``buffer`` with the bytes of a target's payload from byte ``start`` on: the copies that meet them."""
    dtype = _word(itemsize)
    position = 0
    for box in regions_of_range(target.shape, start // itemsize, (start + len(buffer)) // itemsize):
        out = np.ndarray(box.shape, dtype, buffer, position)
        position += out.nbytes
        absolute = Region((a + b for a, b in zip(box.offset, target.offset, strict=True)), box.shape)
        for copy in copies:
            common = copy.region.intersect(absolute)
            if common is not None:
                inside = common.relative_to(entries.slices.region(copy.source))
                yield copy.source, inside, out[common.relative_to(absolute).slices]


def _walk(source: Source, entries: EntryTable, row: int, wanted: list[Wanted], evidence: Evidence) -> None:
    """Fill boxes of one payload: blocks of which most is wanted are read whole, of the others the boxes alone."""
    shape, itemsize = entries.slices.region(row).shape, wanted[0][2].dtype.itemsize
    strides = _strides(shape)
    crc = source.crc if entries.plain[row] and entries.checksum[row] != NO_CHECKSUM else None
    for begin, end in _blocks(strides, [box for _, box, _ in wanted], itemsize):
        parts = [
            (at, common, out[common.relative_to(box).slices])
            for at in regions_of_range(shape, begin, end)
            for _, box, out in wanted
            if (common := box.intersect(at)) is not None
        ]
        if sum(_cost(common, strides, itemsize) for _, common, _ in parts) < (end - begin) * itemsize:
            for _, common, out in parts:
                read_box(source, entries, row, common, out, evidence)
            continue
        block = memoryview(bytearray((end - begin) * itemsize))
        source.read_into(entries, row, begin * itemsize, block)
        evidence.add([(row, begin * itemsize, len(block), NO_CHECKSUM if crc is None else crc.compute(block))])
        for at, common, out in parts:
            held = np.ndarray(at.shape, out.dtype, block, (_dot(at.offset, strides) - begin) * itemsize)
            out[...] = held[common.relative_to(at).slices]


def _blocks(strides: Sequence[int], boxes: Sequence[Region], itemsize: int) -> Iterator[tuple[int, int]]:
    """Ranges of elements from the first of the boxes to the last, of whole first indices where a block holds any."""
    first = min(_dot(box.offset, strides) for box in boxes)
    stop = max(_last(box, strides) for box in boxes) + 1
    step = BLOCK_NBYTES // itemsize
    if strides[0] <= step:  # then a block is one region, and blocks read by others meet these without a gap
        step -= step % strides[0]
        first, stop = first - first % strides[0], -(-stop // strides[0]) * strides[0]
    for begin in range(first, stop, step):
        yield begin, min(begin + step, stop)


def _cost(box: Region, strides: Sequence[int], itemsize: int) -> int:
    """About the bytes that ``read_box`` reads: its span, or its runs where they lie far from each other."""
    span = (_last(box, strides) - _dot(box.offset, strides) + 1) * itemsize
    run = 1
    for extent, stride in zip(reversed(box.shape), reversed(strides), strict=True):
        if stride != run:
            break
        run *= extent
    return min(span, box.size // run * max(run * itemsize, _SMALL_NBYTES))


def _last(box: Region, strides: Sequence[int]) -> int:
    """The place of a box's last element."""
    return _dot([stop - 1 for stop in box.stop], strides)


def _word(itemsize: int) -> np.dtype[Any]:
    return _WORDS.get(itemsize, np.dtype((np.void, itemsize)))


def _halves(box: Region, out: npt.NDArray[Any]) -> list[tuple[Region, npt.NDArray[Any]]]:
    """The two halves of a box along its first axis that has more than one index, with their places in ``out``."""
    axis = next(axis for axis, extent in enumerate(box.shape) if extent > 1)
    middle = box.shape[axis] // 2
    halves = []
    for start, stop in ((0, middle), (middle, box.shape[axis])):
        offset, shape = list(box.offset), list(box.shape)
        offset[axis] += start
        shape[axis] = stop - start
        halves.append((Region(offset, shape), out[(*(slice(None) for _ in range(axis)), slice(start, stop))]))
    return halves


def _strides(shape: Sequence[int]) -> list[int]:
    """Elements from one index to the next along each axis of a C-order payload."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return strides


def _dot(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * stride for i, stride in zip(index, strides, strict=True))
