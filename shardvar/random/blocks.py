"""A region of a tensor as blocks of bounded size, so that values addressed by flat index are drawn a piece at a time.

A block's span is the run of flat indices from its first element to its last. Whoever draws in sequence draws the whole
span and picks the block from it by strides. Small gaps are drawn and dropped, since that costs less than a jump; large
ones are jumped over.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice, product
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, LayoutError
from shardvar.layout import Region

Array = npt.NDArray[Any]

BLOCK = 1 << 15
"""Elements of a span: 256 KiB of 64-bit words, which stay in the processor's second cache."""

_LARGEST_GAP = 1 << 13
"""Elements: to make and drop as many takes about as long as to make a generator for the place behind them."""

_THREADS = 4
_WORTH_THREADS = 1 << 18
"""Elements, half a millisecond of work. What is addressed by index may be drawn in any order, and so by threads."""


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

    >>> [str(block) for block in spans((3, 50_000), (50_000, 1))][:3]
    ['[0:1, 0:32768]', '[0:1, 32768:50000]', '[1:2, 0:32768]']
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


def draw_blocks(
    shape: tuple[int, ...], region: Region | None, dtype: np.dtype[Any], draw: Callable[[int, int], Array]
) -> Array:
    """The region of a tensor whose element at flat index ``start + i`` is ``draw(start, count)[i]``, for any counts."""
    region, strides = read_region(shape, region), row_strides(shape)
    out = np.empty(region.shape, dtype)
    base = _flat(region.offset, strides)

    def draw_every(step: int, first: int) -> None:
        for block in islice(spans(region.shape, strides), first, None, step):
            count = 1 + _flat([extent - 1 for extent in block.shape], strides)
            values = draw(base + _flat(block.offset, strides), count)
            steps = [step * values.itemsize for step in strides]
            out[block.slices] = np.lib.stride_tricks.as_strided(values, block.shape, steps, writeable=False)

    if out.size < _WORTH_THREADS:
        draw_every(1, 0)
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(partial(draw_every, _THREADS), range(_THREADS)))
    return out


def _flat(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * step for i, step in zip(index, strides, strict=True))
