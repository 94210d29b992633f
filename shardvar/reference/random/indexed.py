"""Streams of random numbers that are addressed by index: the library's own, and JAX's; the checks of
all streams' arguments, and draws of a region, block by block.

An element depends only on the seed and its flat index in the full tensor. So any region can be
drawn by itself, and the parts of any partition, put together, are bit for bit the whole. The words
come from Philox4x64-10, as ``numpy.random.Philox`` gives them by ``random_raw``, which NEP 19 keeps
stable. ``docs/random.md`` gives the stream word by word; in short, with 64-bit words ``w[k]`` and
fractions in [0, 1) made of the HIGH bits of a word:

    float32     element i is the low half of w[i // 2] for even i, the high half for odd i; 23 bits
    float64     element i is w[i]; 52 bits
    integers    w[i] modulo the range, plus the minimum
    normals     a pair i // 2 has two fractions z0 and z1, from the halves of one word (float32) or
                from two words: sqrt(-2 log(1 - z0)) times cos(2 pi z1) for even i, times sin(2 pi
                z1) for odd i
    truncated   the normal of the first attempt 0, 1, ... that lies within the limit; each attempt
                is another stream
    narrower    float16 and bfloat16 are computed in float32 and rounded

A value block is a part of the region, of bounded size, whose values are addressed by flat index.
Its span is the range of flat indices from its first element to its last.

1. ``blocks_of`` tiles the region with blocks whose spans are at most ``BLOCK_SIZE`` elements.
2. A block that fills its span is drawn where it belongs in the result.
3. Of other blocks the whole span is drawn, and the block is picked from it by strides. Small gaps
   are drawn and dropped, since that costs less than a jump of the generator; large gaps are jumped
   over, by smaller blocks.
4. Large regions are drawn by two threads; each takes the next blocks when it is done.

Only the result and one span per thread are held in memory.

JAX's uniform numbers come from its partitionable threefry, the default of ``jax.random`` since
0.5. The bits of element ``i`` are threefry2x32 of the key and the counter (high 32 bits of i, low
32 bits of i).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from math import isfinite
from operator import index
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout import Region
from shardvar.layout.dtypes import Array, DType, Ints, Shape, numpy_dtype, parse_dtype
from shardvar.layout.region import read_shape, row_strides
from shardvar.records import frozen

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


_Words64 = npt.NDArray[np.uint64]

_FORMS: dict[int, tuple[Any, Any, Any]] = {
    4: (np.uint32(9), np.uint32(127 << 23), np.float32(1)),
    8: (np.uint64(12), np.uint64(1023 << 52), np.float64(1)),
}
"""By the bytes of a word: the bits to drop for a fraction, the exponent bits of 1.0, 1.0."""

_WORDS_AT_ONCE = 1 << 14
"""Words that are drawn at a time: 128 KiB, which stays in the processor's cache."""


@frozen
class IndexedStream:
    """The words of a seed, an integer or two of them (an integer s is the pair s, 0)."""

    key: tuple[int, int]
    """Two 64-bit words: the seed modulo 2**64."""

    @classmethod
    def of(cls, seed: npt.ArrayLike) -> "IndexedStream":
        first, second = read_seed([seed, 0] if np.ndim(seed) == 0 else seed).tolist()
        return cls((first % 2**64, second % 2**64))

    def words(self, start: int, count: int, attempt: int = 0) -> _Words64:
        """Return words ``start`` to ``start + count`` of an attempt."""
        return np.concatenate([np.empty(0, np.uint64), *self.iter_words(start, count, attempt)])

    def iter_words(self, start: int, count: int, attempt: int = 0) -> Iterator[_Words64]:
        """Yield the same words in order, at most ``_WORDS_AT_ONCE`` at a time."""
        # Words 4 b to 4 b + 4 are Philox4x64-10 at the counter (b + 1, 0, 0, attempt), least word
        # first: NumPy's generator counts before it computes. Word 6 is word 2 of counter block 1:
        # start at counter 6 // 4 = 1 and skip 6 % 4 = 2 words.
        counter = np.array([start // 4, 0, 0, attempt], np.uint64)
        generator = np.random.Philox(key=np.array(self.key, np.uint64), counter=counter)
        generator.random_raw(start % 4)
        for first in range(0, count, _WORDS_AT_ONCE):
            yield np.asarray(generator.random_raw(min(_WORDS_AT_ONCE, count - first)))

    def uniform(self, start: int, out: Array) -> Iterator[Array]:
        """Write fractions in [0, 1) to ``out``; yield each portion while it is in the cache."""
        # Two float32 share a word: elements 3 to 8 need words 1 to 4 (elements 2 to 8), and element
        # 2 is skipped.
        first, stop, done = start // _in_a_word(out), -(-(start + len(out)) // _in_a_word(out)), 0
        skipped = start % _in_a_word(out)
        for words in self.iter_words(first, stop - first):
            bits = _halves(words, out)[skipped:][: len(out) - done]
            yield _fractions(bits, out[done : done + len(bits)])
            done, skipped = done + len(bits), 0

    def normal(self, start: int, out: Array) -> None:
        """Write standard normal values to ``out``, float32 or float64."""
        # Values come in pairs (2k, 2k + 1). Elements 3 to 6 are in pairs 1 to 3, which are elements
        # 2 to 6; whole pairs are written to `out` itself, others to memory from which the right
        # part is copied.
        first, stop = start // 2, (start + len(out) + 1) // 2
        is_pairs = start % 2 == len(out) % 2 == 0
        pairs = out.reshape(-1, 2) if is_pairs else np.empty((stop - first, 2), out.dtype)
        done = 0
        for words in self.iter_words(
            first * 2 // _in_a_word(out), (stop - first) * 2 // _in_a_word(out)
        ):
            # Box and Muller: two fractions make the radius and the angle of two normal values,
            # which are its cosine and its sine.
            fractions = _fractions(_halves(words, out)).reshape(-1, 2)
            radius, angle = _polar(fractions[:, 0].copy(), fractions[:, 1].copy())
            np.multiply(radius, np.cos(angle), out=pairs[done : done + len(angle), 0])
            np.multiply(radius, np.sin(angle), out=pairs[done : done + len(angle), 1])
            done += len(angle)
        if not is_pairs:
            out[:] = pairs.reshape(-1)[start % 2 :][: len(out)]

    def truncated_normal(self, start: int, out: Array) -> None:
        """Write standard normal values within the limit to ``out``."""
        # 4.6 % of normal values lie beyond two standard deviations. Only these are drawn again,
        # attempt by attempt.
        self.normal(start, out)
        attempt, again = 0, _beyond(out)
        while len(again):
            attempt += 1
            out[again] = self._normal_at(start + again, out.dtype, attempt)
            again = again[_beyond(out[again])]

    def _normal_at(self, indices: Ints, kind: DType, attempt: int) -> Array:
        """Return an attempt's values at ascending indices: only these are computed."""
        pairs, fractions = indices // 2, np.empty((len(indices), 2), kind)
        pair, stop = int(pairs[0]), int(pairs[-1]) + 1
        for words in self.iter_words(
            pair * 2 // _in_a_word(fractions), (stop - pair) * 2 // _in_a_word(fractions), attempt
        ):
            drawn = _fractions(_halves(words, fractions)).reshape(-1, 2)
            # `drawn` has the pairs from `pair` on; the requested ones are pairs[low:high], because
            # pairs ascend.
            low, high = np.searchsorted(pairs, [pair, pair + len(drawn)])
            fractions[low:high] = drawn[pairs[low:high] - pair]
            pair += len(drawn)
        radius, angle = _polar(fractions[:, 0].copy(), fractions[:, 1].copy())
        return np.asarray(radius * np.where(indices % 2 == 0, np.cos(angle), np.sin(angle)))


def indexed_uniform(
    shape: Sequence[int],
    seed: npt.ArrayLike,
    minval: float = 0,
    maxval: float = 1,
    dtype: npt.DTypeLike = "float32",
    region: Region | None = None,
) -> Array:
    """Return values in [minval, maxval), each a function of the seed and its index in the full
    array.

    Parameters
    ----------
    shape : sequence of int
        The full shape.
    seed : int or array_like of int
        An integer, or two, of at most 64 bits; one integer s is the pair ``[s, 0]``.
    minval : float, default 0
        The lower limit, which is rounded to the dtype first.
    maxval : float, default 1
        The upper limit, which is outside the range. Equal limits give that value.
    dtype : dtype_like, default "float32"
        One of float16, bfloat16, float32, float64, int32, int64, uint32 and uint64.
    region : Region, optional
        The part to draw; by default everything. Law: a part is bit for bit that part of the whole.

    Returns
    -------
    ndarray
        Of the shape of `region`, or of `shape`.

    Raises
    ------
    ArgumentError
        If `seed` is not one integer or two, the dtype cannot be drawn, the limits are not finite or
        in the wrong order, or their range is too large for the dtype.
    LayoutError
        If `region` reaches out of the shape.

    Examples
    --------
    >>> whole = indexed_uniform((13, 4), 7)
    >>> bool((indexed_uniform((13, 4), 7, region=Region((9, 1), (2, 2))) == whole[9:11, 1:3]).all())
    True
    """
    extents, kind = read_shape(shape), read_dtype(dtype, (*FLOATS, *INTEGERS))
    stream = IndexedStream.of(seed)
    if kind.name not in INTEGERS:
        draw = _uniform(stream, *read_limits(minval, maxval), kind)
        return draw_blocks(extents, region, kind, draw)
    low, count = read_integer_limits(minval, maxval, kind)

    def integers(start: int, out: Array) -> None:
        words = stream.words(start, len(out))
        # Sums wrap around, so a negative minimum is added as its complement; the cast keeps the low
        # bits, which are the value's. The modulo favours small values by one part in 2**64 / count:
        # too little to notice, and reproducible.
        words %= np.uint64(count)
        words += np.uint64(low % 2**64)
        out[:] = words.astype(kind, copy=False)

    return draw_blocks(extents, region, kind, integers)


def indexed_normal(
    shape: Sequence[int],
    seed: npt.ArrayLike,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: npt.DTypeLike = "float32",
    region: Region | None = None,
) -> Array:
    """Return normal values, each a function of the seed and its index in the full array.

    See ``indexed_uniform`` for the other parameters.

    Parameters
    ----------
    mean : float, default 0.0
        The mean.
    stddev : float, default 1.0
        The standard deviation.
    dtype : {"float16", "bfloat16", "float32", "float64"}, default "float32"
        The dtype.

    Raises
    ------
    ArgumentError
        If `seed` is not one integer or two, or the dtype cannot be drawn.
    """
    return _scaled_draw(IndexedStream.normal, shape, seed, mean, stddev, dtype, region)


def indexed_truncated_normal(
    shape: Sequence[int],
    seed: npt.ArrayLike,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: npt.DTypeLike = "float32",
    region: Region | None = None,
) -> Array:
    """Return normal values within two standard deviations of the mean; others are drawn again.

    See ``indexed_normal`` for the parameters.
    """
    return _scaled_draw(IndexedStream.truncated_normal, shape, seed, mean, stddev, dtype, region)


def _scaled_draw(
    draw: Callable[[IndexedStream, int, Array], None],
    shape: Sequence[int],
    seed: npt.ArrayLike,
    mean: float,
    stddev: float,
    dtype: npt.DTypeLike,
    region: Region | None,
) -> Array:
    extents, kind, stream = read_shape(shape), read_dtype(dtype, FLOATS), IndexedStream.of(seed)
    wide = np.promote_types(kind, np.float32)
    factor, summand = wide.type(stddev), wide.type(mean)

    # float16 and bfloat16 are drawn and scaled in float32, and rounded once at the end.
    def values(start: int, out: Array) -> None:
        drawn = out if kind == wide else np.empty(len(out), wide)
        draw(stream, start, drawn)
        drawn *= factor
        drawn += summand
        if kind != wide:
            out[:] = drawn

    return draw_blocks(extents, region, kind, values)


def _uniform(stream: IndexedStream, minval: float, maxval: float, kind: DType) -> DrawFunction:
    wide = np.promote_types(kind, np.float32)
    low, high = (np.asarray(limit).astype(kind) for limit in (minval, maxval))
    # The range from -3e38 to 3e38 overflows float32. It is refused below, without NumPy's warning
    # before.
    with np.errstate(over="ignore"):
        factor, summand = high.astype(wide) - low.astype(wide), low.astype(wide)
    if not np.isfinite(factor):
        raise ArgumentError(
            f"The range from {minval} to {maxval} is too large for {kind}.", "Draw it as float64."
        )
    # A product or a rounding may reach the upper limit, which is not in the range: in bfloat16,
    # whose steps at 100 are 0.5, the value 100.9 rounds to 101. No step of the arithmetic turns a
    # greater fraction into a smaller value, so it is enough to look at the greatest fraction, once;
    # values are then cut to the largest below the limit.
    largest = np.nextafter(high, low)
    is_reached = ((1 - np.finfo(wide).eps) * factor + summand).astype(kind) > largest
    is_unit = factor == 1 and summand == 0

    def values(start: int, out: Array) -> None:
        drawn = out if kind == wide else np.empty(len(out), wide)
        for portion in stream.uniform(start, drawn):
            if not is_unit:
                portion *= factor
                portion += summand
        if kind != wide:
            out[:] = drawn
        if is_reached:
            np.minimum(out, largest, out=out)

    return values


def _in_a_word(values: Array) -> int:
    return 8 // values.itemsize


def _halves(words: _Words64, values: Array) -> Array:
    """Return the words as integers of the values' size: of each the low half, then the high half."""
    if values.itemsize == 8:
        return words
    return words.astype("<u8", copy=False).view("<u4").astype(np.uint32, copy=False)


def _fractions(words: Array, out: Array | None = None) -> Array:
    """Return the high 23 or 52 bits of each word as a number in [0, 1), in ``out`` or in place."""
    # The bits become the fraction of a number in [1, 2), and subtracting 1 is exact. The 32-bit
    # word 0x80000000 gives 0x80000000 >> 9 | 0x3F800000 = 0x3FC00000, which is 1.5 as float32, and
    # so 0.5.
    shift, exponent, one = _FORMS[words.itemsize]
    words >>= shift
    words |= exponent
    fractions = words.view(one.dtype)
    values: Array = np.subtract(fractions, one, out=fractions if out is None else out)
    return values


def _polar(z0: Array, z1: Array) -> tuple[Array, Array]:
    """Return radius and angle of two independent normal values (Box and Muller), in place."""
    np.subtract(1, z0, out=z0)  # in (0, 1]: the logarithm is finite
    np.log(z0, out=z0)
    z0 *= z0.dtype.type(-2)
    np.sqrt(z0, out=z0)
    z1 *= z1.dtype.type(2 * np.pi)
    return z0, z1


def _beyond(values: Array) -> Ints:
    return np.flatnonzero(np.abs(values) >= TRUNCATED_AT)


_Words = npt.NDArray[np.uint32]

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_MASK = 0xFFFFFFFF

_JAX_FORMS = {"float16": (16, 10), "bfloat16": (8, 7), "float32": (32, 23), "float64": (64, 52)}
"""By dtype: the random bits that JAX draws for a value, and how many of them, the high ones, become
its fraction."""


def jax_key(seed: int) -> tuple[int, int]:
    """Return the key that ``jax.random.key(seed)`` has while 64-bit types are off, JAX's default.

    Parameters
    ----------
    seed : int
        The seed.

    Examples
    --------
    >>> jax_key(-1)
    (0, 4294967295)
    """
    return 0, int(seed) & _MASK


def threefry2x32(key: tuple[int, int], x0: _Words, x1: _Words) -> tuple[_Words, _Words]:
    """Return two words for two words of counter: twenty rounds of threefry (Salmon et al., 2011)."""
    # Five groups of four rounds; after group g the keys (g + 1) % 3 and (g + 2) % 3 are injected,
    # and the number of the group, so that no two groups are alike. Sums of 32-bit words wrap
    # around.
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    x0, x1 = x0 + np.uint32(keys[0]), x1 + np.uint32(keys[1])
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x0 += x1
            # Rotated left: 0x80000001 by 1 is 3.
            x1 = x1 << np.uint32(rotation) | x1 >> np.uint32(32 - rotation)
            x1 ^= x0
        x0 += np.uint32(keys[(group + 1) % 3])
        x1 += np.uint32((keys[(group + 2) % 3] + group + 1) & _MASK)
    return x0, x1


def jax_bits(
    key: tuple[int, int] | Sequence[int],
    shape: Sequence[int] = (),
    bits: int = 32,
    region: Region | None = None,
) -> Array:
    """Return ``jax.random.bits(key, shape)``: random unsigned integers.

    Parameters
    ----------
    key : sequence of int
        Two 32-bit integers, such as ``jax_key(seed)``.
    shape : sequence of int, default ()
        The full shape.
    bits : {8, 16, 32, 64}, default 32
        The bits of each integer.
    region : Region, optional
        The part to draw; by default everything. Law: a part is bit for bit that part of the whole.

    Raises
    ------
    ArgumentError
        If `bits` is another number.
    ArgumentTypeError
        If `key` is not two integers.
    LayoutError
        If `region` reaches out of the shape.
    """
    if bits not in (8, 16, 32, 64):
        raise ArgumentError(f"Invalid number of bits {bits}.", "Ask for 8, 16, 32 or 64.")
    array = np.asarray(key)
    if array.shape != (2,) or array.dtype.kind not in "iu":
        raise ArgumentTypeError(
            f"Invalid key {key!r}.", "Give two 32-bit integers, such as jax_key(seed)."
        )
    pair = int(array[0]) & _MASK, int(array[1]) & _MASK
    kind = np.dtype(f"u{bits // 8}")

    def values(start: int, out: Array) -> None:
        # The two words of an element are one value of 64 bits; for fewer bits JAX folds them
        # together.
        index = np.arange(start, start + len(out), dtype=np.uint64)
        high, low = threefry2x32(
            pair, (index >> np.uint64(32)).astype(np.uint32), index.astype(np.uint32)
        )
        out[:] = high.astype(np.uint64) << np.uint64(32) | low if bits == 64 else high ^ low

    return draw_blocks(read_shape(shape), region, kind, values)


def jax_uniform(
    key: tuple[int, int] | Sequence[int],
    shape: Sequence[int] = (),
    dtype: npt.DTypeLike = "float32",
    minval: float = 0.0,
    maxval: float = 1.0,
    region: Region | None = None,
) -> Array:
    """Return ``jax.random.uniform(key, shape, dtype, minval, maxval)``.

    JAX's compiler fuses the product with the sum, so float32 is also rounded once here. Float64
    with limits is rounded twice, and may differ from JAX's in the last place. So may float16:
    JAX itself rounds once on processors with half-precision arithmetic, and twice on others.

    See ``jax_bits`` for the other parameters.

    Parameters
    ----------
    dtype : {"float16", "bfloat16", "float32", "float64"}, default "float32"
        The dtype.
    minval : float, default 0.0
        The lower limit.
    maxval : float, default 1.0
        The upper limit, which is outside the range.

    Raises
    ------
    ArgumentError
        If the dtype cannot be drawn, or the limits are not finite or in the wrong order.
    """
    kind = read_dtype(dtype, FLOATS)
    low, high = (np.asarray(limit).astype(kind) for limit in read_limits(minval, maxval))
    drawn_bits, fraction_bits = _JAX_FORMS[kind.name]
    words = jax_bits(key, shape, drawn_bits, region).astype(f"u{kind.itemsize}", copy=False)
    # The high bits become the fraction of a number in [1, 2), under the exponent bits of 1.0. For
    # float32 the word 0xC0000000 gives 0xC0000000 >> 9 | 0x3F800000 = 0x3FE00000, which is 1.75,
    # and so 0.75.
    words >>= words.dtype.type(drawn_bits - fraction_bits)
    words |= np.ones((), kind).view(words.dtype)
    values: np.ndarray[Any, Any] = words.view(kind)
    values -= kind.type(1)
    factor = high - low
    if kind == np.float32:
        # The product of two float32 is exact in float64, which has more than twice as many bits.
        # The sum may be inexact; it is then rounded to odd, to the neighbour whose last bit is 1.
        # So the rounding to float32 sees on which side of a tie the true sum lies. With decimal
        # digits: 0.1250 + 0.00004 kept as 0.1250 would round to 0.12, a tie to even, and the true
        # 0.12504 rounds to 0.13; kept as 0.1251 it does too. Knuth's TwoSum: `error` is exactly
        # what the rounded `total` lacks of the sum, and 0 where it is exact.
        wide, summand = values.astype(np.float64) * np.float64(factor), np.float64(low)
        total = wide + summand
        part = total - wide
        error = (wide - (total - part)) + (summand - part)
        is_even = total.view(np.int64) & 1 == 0
        odd = np.nextafter(total, np.copysign(np.inf, error))
        values = np.where((error != 0) & is_even, odd, total).astype(np.float32)
    else:
        values *= factor
        values += low
    # Rounding may fall below the minimum, which JAX prevents in the same way.
    return np.asarray(np.maximum(values, low, out=values))
