"""A region of a tensor as blocks of bounded size, so that values addressed by flat index are drawn a piece at a time.

A block's span is the run of flat indices from its first element to its last. A block that is its span is drawn where it
belongs. Of others the whole span is drawn and the block picked from it by strides: small gaps are drawn and dropped,
since that costs less than a jump; large ones are jumped over.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from threading import Lock
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, LayoutError
from shardvar.layout import Region
from shardvar.layout.dtypes import Array

Draw = Callable[[int, Array], None]
"""(start, out): writes the values at the flat indices from ``start`` on to ``out`` [count], which is contiguous."""

BLOCK = 1 << 17
"""Elements of a span: half a MiB of float32, which stays in the processor's second cache while it is computed on."""

_LARGEST_GAP = 1 << 13
"""Elements: to make and drop as many takes about as long as to make a generator for the place behind them."""

_TAKEN = 4
"""Blocks that a thread takes at a time: 2 MiB of float32, so that two threads seldom meet in one page of memory, which
the system would clear for each of them."""

_WORTH_A_THREAD = 1 << 20
"""Elements, some milliseconds of work. What is addressed by index may be drawn in any order, and so by two threads; of
more, each would wait for the interpreter's lock, which every step of a block takes for a moment."""


def row_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from one index to the next along each axis, in C order.

    >>> row_strides((5, 3, 4))
    (12, 4, 1)
    """
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))[: len(shape)] if shape else ()


def read_region(shape: tuple[int, ...], region: Region | None) -> Region:
    """The region, the whole tensor by default; errors where it reaches out, or where indices pass 64 bits."""
    whole = Region.whole(shape)
    if whole.size >= 2**63:
        raise ArgumentError(f"A tensor of shape {shape} has more elements than there are indices of 64 bits.")
    if region is None:
        return whole
    if region.rank != whole.rank or not whole.covers(region):
        raise LayoutError(f"The region {region} reaches out of the shape {shape}.", "Give one within it.")
    return region


def spans(shape: Sequence[int], strides: Sequence[int]) -> Iterator[Region]:
    """Blocks, in order, that tile a box of this shape; each spans at most ``BLOCK`` of the strides' elements.

    >>> [str(block) for block in spans((3, 200_000), (200_000, 1))][:3]
    ['[0:1, 0:131072]', '[0:1, 131072:200000]', '[1:2, 0:131072]']
    """
    if 0 in shape:
        return
    extents, steps = (1, *shape), (1, *strides)  # an axis of one, so that rank 0 needs no case of its own
    inner = [1]  # from the innermost axis outwards: the span of one index of it
    for extent, step in zip(reversed(extents[1:]), reversed(steps[1:]), strict=True):
        inner.append(inner[-1] + (extent - 1) * step)
    inner.reverse()
    axis = next(d for d, span in enumerate(inner) if span <= BLOCK)
    is_jump = steps[axis] - inner[axis] > _LARGEST_GAP
    count = 1 if is_jump else (BLOCK - inner[axis]) // steps[axis] + 1
    rest = extents[axis + 1 :]
    for outer in product(*map(range, extents[:axis])):
        for start in range(0, extents[axis], count):
            offset = (*outer, start, *(0 for _ in rest))
            block = (*(1 for _ in outer), min(count, extents[axis] - start), *rest)
            yield Region(offset[1:], block[1:])


def draw_blocks(shape: tuple[int, ...], region: Region | None, dtype: np.dtype[Any], draw: Draw) -> Array:
    """The region of a tensor whose elements ``draw`` writes, in blocks of any bounds and in any order."""
    region = read_region(shape, region)
    out = np.empty(region.shape, dtype)
    blocks, lock = spans(region.shape, row_strides(shape)), Lock()

    def draw_rest() -> None:
        while True:
            with lock:  # each thread takes what is next when it is done: neither waits for the other
                taken = list(islice(blocks, _TAKEN))
            if not taken:
                return
            for block in taken:
                _draw_block(out, block, row_strides(shape), region, draw)

    if out.size < _WORTH_A_THREAD:
        draw_rest()
    else:
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(draw_rest)
            draw_rest()
            other.result()
    return out


def _draw_block(out: Array, block: Region, strides: tuple[int, ...], region: Region, draw: Draw) -> None:
    """Draw a block of ``out``, the region of a tensor that has these strides."""
    start = _flat(region.offset, strides) + _flat(block.offset, strides)
    count = 1 + _flat([extent - 1 for extent in block.shape], strides)
    if count == block.size:
        first = _flat(block.offset, row_strides(region.shape))
        draw(start, out.reshape(-1)[first : first + count])
        return
    values = np.empty(count, out.dtype)
    draw(start, values)
    steps = [step * values.itemsize for step in strides]
    out[block.slices] = np.lib.stride_tricks.as_strided(values, block.shape, steps, writeable=False)


def _flat(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * step for i, step in zip(index, strides, strict=True))
