"""Draws of a region of a tensor, block by block, and the checks of all streams' arguments.

A value block is a part of the region, of bounded size, whose values are addressed by flat index.
Its span is the range of flat indices from its first element to its last.

1. ``blocks_of`` tiles the region with blocks whose spans are at most ``BLOCK_SIZE`` elements.
2. A block that fills its span is drawn where it belongs in the result.
3. Of other blocks the whole span is drawn, and the block is picked from it by strides. Small gaps
   are drawn and dropped, since that costs less than a jump of the generator; large gaps are jumped
   over, by smaller blocks.
4. Large regions are drawn by two threads; each takes the next blocks when it is done.

Only the result and one span per thread are held.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from math import isfinite
from operator import index
from threading import Lock

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout import Region
from shardvar.layout.dtypes import Array, DType, Shape, numpy_dtype, parse_dtype
from shardvar.layout.region import row_strides

FLOATS = "float16", "bfloat16", "float32", "float64"
INTEGERS = "int32", "int64", "uint32", "uint64"

TRUNCATED_AT = 2
"""Standard deviations beyond which a truncated normal value is drawn again, as in TensorFlow."""


def read_dtype(dtype: npt.DTypeLike, allowed: Sequence[str]) -> DType:
    name = parse_dtype(dtype)
    if name not in allowed:
        raise ArgumentError(
            f"Values of dtype {name} cannot be drawn here.", f"Draw one of {', '.join(allowed)}."
        )
    return numpy_dtype(name)


def read_seed(seed: object) -> Array:
    """Return two integers: an array in its dtype, others as int64, or uint64 if needed."""
    # The dtype of an array matters: `split` returns new seeds of the same one.
    if isinstance(seed, np.ndarray) and seed.shape == (2,) and seed.dtype.kind in "iu":
        return seed
    try:
        # Anything else than a pair is refused below.
        first, second = (index(part) for part in seed)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        first, second = 2**64, 2**64
    if not all(-(2**63) <= part < 2**64 for part in (first, second)):
        raise ArgumentError(
            f"Invalid seed {seed!r}.", "Give two integers of at most 64 bits, such as [7, 0]."
        )
    # One array holds both, so a large part makes the other unsigned too: -1 becomes 2**64 - 1,
    # which is the same word.
    if max(first, second) < 2**63:
        return np.array([first, second], np.int64)
    return np.array([first % 2**64, second % 2**64], np.uint64)


def read_integer_limits(
    minval: npt.ArrayLike, maxval: npt.ArrayLike, dtype: DType
) -> tuple[int, int]:
    """Return ``minval`` and the number of integers in [minval, maxval)."""
    limits = np.iinfo(dtype)
    try:
        # Others are refused below.
        low, high = index(minval), index(maxval)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentTypeError(
            f"The limits {minval!r} and {maxval!r} of {dtype} values are not both integers.",
            "Give two integers.",
        ) from None
    # int32 values in [-5, 3) are -5 + (word % 8): the minimum and the count 8 are what a draw
    # needs.
    if not limits.min <= low < high <= limits.max:
        raise ArgumentError(
            f"Invalid limits minval={low} and maxval={high} of {dtype} values.",
            f"Give limits from {limits.min} to {limits.max}, the lower one first.",
        )
    return low, high - low


def read_limits(minval: npt.ArrayLike, maxval: npt.ArrayLike) -> tuple[float, float]:
    """Return two finite numbers, the lower one first."""
    try:
        # Others are refused below.
        low, high = float(minval), float(maxval)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"The limits {minval!r} and {maxval!r} are not both numbers.", "Give two numbers."
        ) from None
    if not (isfinite(low) and isfinite(high) and low <= high):
        raise ArgumentError(
            f"Invalid limits minval={low} and maxval={high}.",
            "Give finite numbers, the lower one first.",
        )
    return low, high


def scaled(values: Array, factor: npt.ArrayLike, summand: npt.ArrayLike) -> Array:
    """Compute ``values * factor + summand`` in place, each operation rounded to their dtype."""
    # In place, so that factors that would broadcast the values to another shape raise instead.
    try:
        values *= np.asarray(factor).astype(values.dtype)
        values += np.asarray(summand).astype(values.dtype)
    except ValueError:
        raise ArgumentError(
            f"Limits of shape {np.shape(factor)} and {np.shape(summand)} do not broadcast to "
            f"{values.shape}.",
            "Give numbers, or arrays that broadcast to the shape.",
        ) from None
    return values


DrawFunction = Callable[[int, Array], None]
"""(start, out): writes the values at the flat indices from ``start`` on to ``out`` [count], which
is contiguous."""

BLOCK_SIZE = 1 << 17
"""Elements of a span: half a MiB of float32, which stays in the processor's second cache while it
is computed on."""

_LARGEST_GAP = 1 << 13
"""Elements that take as long to drop as a new generator behind them takes to make."""

_TAKEN = 4
"""Blocks that a thread takes at a time: 2 MiB of float32, so that two threads seldom meet in one
page of memory, which the system would clear for each of them."""

_WORTH_A_THREAD = 1 << 20
"""Elements, some milliseconds of work, from which two threads draw. Values that are addressed by
index may be drawn in any order. More than two threads would wait for the interpreter's lock, which
every step of a block takes briefly."""


def check_region(shape: Shape, region: Region | None) -> Region:
    """Return the region, by default the whole, which must lie in the shape."""
    whole = Region.whole(shape)
    if whole.size >= 2**63:
        raise ArgumentError(
            f"A tensor of shape {shape} has more elements than there are indices of 64 bits.",
            "Give a smaller shape.",
        )
    if region is None:
        return whole
    if region.rank != whole.rank or not whole.covers(region):
        raise LayoutError(
            f"The region {region} reaches out of the shape {shape}.", "Give one within it."
        )
    return region


def blocks_of(shape: Sequence[int], strides: Sequence[int]) -> Iterator[Region]:
    """Yield the blocks of at most ``BLOCK_SIZE`` that tile a region; the strides are the tensor's."""
    if 0 in shape:
        return
    # An axis of one, so that rank 0 needs no case by itself.
    extents, steps = (1, *shape), (1, *strides)
    # inner[d] is the span of one index of axis d, all of the axes behind it included. A region of
    # shape (2, 3, 4) in a tensor of strides (100, 10, 1) has the spans 1 for an element, 1 + 3 * 1
    # = 4 for a row, 4 + 2 * 10 = 24 for one index of the first axis, and 24 + 1 * 100 = 124 for
    # all: inner is [124, 24, 4, 1], the axis of one in front.
    inner = [1]
    for extent, step in zip(reversed(extents[1:]), reversed(steps[1:]), strict=True):
        inner.append(inner[-1] + (extent - 1) * step)
    inner.reverse()
    # Cut along the outermost axis whose single index fits a block. `count` indices span inner +
    # (count - 1) * step, which is at most BLOCK_SIZE for count = (BLOCK_SIZE - inner) // step + 1.
    # Where the elements between two indices are too many to draw and drop, each index is a block.
    axis = next(d for d, span in enumerate(inner) if span <= BLOCK_SIZE)
    is_jump = steps[axis] - inner[axis] > _LARGEST_GAP
    count = 1 if is_jump else (BLOCK_SIZE - inner[axis]) // steps[axis] + 1
    rest = extents[axis + 1 :]
    for outer in product(*map(range, extents[:axis])):
        for start in range(0, extents[axis], count):
            offset = (*outer, start, *(0 for _ in rest))
            block = (*(1 for _ in outer), min(count, extents[axis] - start), *rest)
            yield Region(offset[1:], block[1:])


def draw_blocks(shape: Shape, region: Region | None, dtype: DType, draw: DrawFunction) -> Array:
    """Return the region of a tensor whose elements ``draw`` writes, block by block."""
    # Plan.
    region = check_region(shape, region)
    out = np.empty(region.shape, dtype)
    blocks, lock = blocks_of(region.shape, row_strides(shape)), Lock()

    def draw_rest() -> None:
        while True:
            # Each thread takes the next blocks when it is done, so none waits for the other.
            with lock:
                taken = list(islice(blocks, _TAKEN))
            if not taken:
                return
            for block in taken:
                _draw_block(out, block, row_strides(shape), region, draw)

    # Draw.
    if out.size < _WORTH_A_THREAD:
        draw_rest()
    else:
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(draw_rest)
            draw_rest()
            other.result()
    return out


def _draw_block(
    out: Array, block: Region, strides: Sequence[int], region: Region, draw: DrawFunction
) -> None:
    """Draw a block of ``out``, which is the region of a tensor that has these strides."""
    # The block's offset is in the region's coordinates, the region's in the tensor's; flat indices
    # add up.
    start = _flat(region.offset, strides) + _flat(block.offset, strides)
    count = 1 + _flat([extent - 1 for extent in block.shape], strides)
    if count == block.size:
        first = _flat(block.offset, row_strides(region.shape))
        draw(start, out.reshape(-1)[first : first + count])
        return
    # Two rows of 3 in a tensor of 10 columns span 13 values; the places 0-2 and 10-12 are picked.
    values = np.empty(count, out.dtype)
    draw(start, values)
    steps = [step * values.itemsize for step in strides]
    out[block.slices] = np.lib.stride_tricks.as_strided(values, block.shape, steps, writeable=False)


def _flat(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * step for i, step in zip(index, strides, strict=True))
