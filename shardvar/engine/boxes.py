"""Copies that are no single run of bytes: boxes cut across the inner axes of a payload.

A box in a payload is read by the span from its first element to its last, where that span is not much larger than
the box; otherwise the box is halved until it is. So memory stays bounded whatever the shapes are, and a column of a
wide matrix does not read the matrix at once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.evidence import BLOCK_NBYTES, Evidence
from shardvar.formats.protocol import Source
from shardvar.layout.region import Region, boxes_of_range
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.planning.plan import Copy

_DENSE = 4
"""A span at most this many times larger than its box is read in one go."""

_SMALL_NBYTES = 64 << 10
"""A span of at most these bytes is read in one go however sparse it is: a read costs about as much as these bytes."""


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
        first, last = (_dot(index, strides) for index in (box.offset, [stop - 1 for stop in box.stop]))
        nbytes = (last - first + 1) * itemsize
        if nbytes > _SMALL_NBYTES and nbytes > min(BLOCK_NBYTES, _DENSE * box.size * itemsize):
            stack.extend(reversed(_halves(box, out)))
            continue
        span = bytearray(nbytes)
        source.read_into(entries, row, first * itemsize, memoryview(span))
        evidence.add([(row, first * itemsize, nbytes, NO_CHECKSUM)])
        out[...] = np.ndarray(box.shape, out.dtype, span, strides=[stride * itemsize for stride in strides])


def fill_range(
    source: Source,
    entries: EntryTable,
    target: Region,
    copies: Sequence[Copy],
    start: int,
    buffer: memoryview,
    itemsize: int,
    evidence: Evidence,
) -> None:
    """Fill ``buffer`` with the bytes of a target's payload from byte ``start`` on, from the copies that meet them."""
    dtype = np.dtype((np.void, itemsize))
    position = 0
    for box in boxes_of_range(target.shape, start // itemsize, (start + len(buffer)) // itemsize):
        out = np.ndarray(box.shape, dtype, buffer, position)
        position += out.nbytes
        absolute = Region((a + b for a, b in zip(box.offset, target.offset, strict=True)), box.shape)
        for copy in copies:
            common = copy.region.intersect(absolute)
            if common is not None:
                inside = common.relative_to(entries.slices.region(copy.source))
                read_box(source, entries, copy.source, inside, out[common.relative_to(absolute).slices], evidence)


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
