"""Random numbers addressed by index: an element depends on the seed and its flat index in the full tensor alone.

Any region can therefore be drawn alone, and the concatenation of the parts of any partition is bit for bit the whole.
The words are those of Philox4x64-10 as ``numpy.random.Philox`` gives them by ``random_raw``, which NEP 19 keeps stable.
``docs/random.md`` gives the stream word by word; in short, with 64-bit words ``w[k]`` and fractions in [0, 1) made of
the HIGH bits of a word:

    float32     element i is the low half of w[i // 2] for even i, the high half for odd i; 23 bits
    float64     element i is w[i]; 52 bits
    integers    w[i] modulo the range, plus the minimum
    normals     a pair i // 2 has two fractions z0 and z1, from the halves of one word (float32) or from two words:
                sqrt(-2 log(1 - z0)) times cos(2 pi z1) for even i, times sin(2 pi z1) for odd i
    truncated   the normal of the first attempt 0, 1, ... that lies within the limit; an attempt is a stream of its own
    narrower    float16 and bfloat16 are computed in float32 and rounded

Nothing is held but the region and a block of words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError
from shardvar.layout import Region
from shardvar.random.arguments import (
    FLOATS,
    INTEGERS,
    TRUNCATED_AT,
    Array,
    read_dtype,
    read_integer_limits,
    read_limits,
    read_seed,
    read_shape,
)
from shardvar.random.blocks import draw_blocks

Words64 = npt.NDArray[np.uint64]
_Draw = Callable[[int, int], Array]
"""(start, count) -> the values at the flat indices from start on."""


@dataclass(frozen=True, slots=True)
class IndexedStream:
    """The words of a seed, an integer or two of them (an integer s is the pair s, 0)."""

    key: tuple[int, int]
    """Two 64-bit words: the seed modulo 2**64."""

    @classmethod
    def of(cls, seed: npt.ArrayLike) -> "IndexedStream":
        """The stream of a seed."""
        first, second = read_seed([seed, 0] if np.ndim(seed) == 0 else seed).tolist()
        return cls((first % 2**64, second % 2**64))

    def words(self, start: int, count: int, attempt: int = 0) -> Words64:
        """Words ``start`` to ``start + count`` of an attempt.

        Words ``4 b`` to ``4 b + 4`` are Philox4x64-10 at the counter (b + 1, 0, 0, attempt), least word first: NumPy's
        generator counts before it computes.
        """
        counter = np.array([start // 4, 0, 0, attempt], np.uint64)
        generator = np.random.Philox(key=np.array(self.key, np.uint64), counter=counter)
        return np.asarray(generator.random_raw(start % 4 + count)[start % 4 :])

    def uniform(self, start: int, count: int, wide: np.dtype[Any]) -> Array:
        """Fractions in [0, 1), float32 or float64."""
        if wide == np.float64:
            return _fractions64(self.words(start, count))
        words = self.words(start // 2, (start + count + 1) // 2 - start // 2)
        return _fractions32(_halves(words)[start % 2 :][:count])

    def normal(self, start: int, count: int, wide: np.dtype[Any]) -> Array:
        """Standard normal values, float32 or float64."""
        first, stop = start // 2, (start + count + 1) // 2
        pairs = np.empty((stop - first, 2), wide)
        radius, angle = _polar(*(part.copy() for part in self._fractions(first, stop, wide, attempt=0)))
        np.multiply(radius, np.cos(angle), out=pairs[:, 0])
        np.multiply(radius, np.sin(angle), out=pairs[:, 1])
        return pairs.reshape(-1)[start % 2 :][:count]

    def truncated_normal(self, start: int, count: int, wide: np.dtype[Any]) -> Array:
        """Standard normal values within the limit."""
        values = self.normal(start, count, wide)
        attempt, again = 0, _beyond(values)
        while len(again):
            attempt += 1
            values[again] = self._normal_at(start + again, wide, attempt)
            again = again[_beyond(values[again])]
        return values

    def _normal_at(self, indices: npt.NDArray[np.int64], wide: np.dtype[Any], attempt: int) -> Array:
        """An attempt's values at ascending indices: words are drawn through, only what is asked for is computed."""
        pairs = indices // 2
        first, stop = int(pairs[0]), int(pairs[-1]) + 1
        radius, angle = _polar(*(part[pairs - first] for part in self._fractions(first, stop, wide, attempt)))
        return np.asarray(radius * np.where(indices % 2 == 0, np.cos(angle), np.sin(angle)))

    def _fractions(self, first: int, stop: int, wide: np.dtype[Any], attempt: int) -> tuple[Array, Array]:
        """The two fractions of each of the pairs ``first`` to ``stop``."""
        if wide == np.float64:
            fractions = _fractions64(self.words(2 * first, 2 * (stop - first), attempt))
        else:
            fractions = _fractions32(_halves(self.words(first, stop - first, attempt)))
        return fractions[0::2], fractions[1::2]


def indexed_uniform(
    shape: Sequence[int],
    seed: npt.ArrayLike,
    minval: float = 0,
    maxval: float = 1,
    dtype: npt.DTypeLike = "float32",
    region: Region | None = None,
) -> Array:
    """Values in [minval, maxval); the limits are rounded to the dtype first, and equal limits give that value.

    Law, here and below: with ``region=r`` it is ``indexed_uniform(shape, seed)[r.slices]``, bit for bit.

    >>> whole = indexed_uniform((13, 4), 7)
    >>> bool((indexed_uniform((13, 4), 7, region=Region((9, 1), (2, 2))) == whole[9:11, 1:3]).all())
    True
    """
    extents, kind, stream = read_shape(shape), read_dtype(dtype, (*FLOATS, *INTEGERS)), IndexedStream.of(seed)
    if kind.name in INTEGERS:
        draw = _integers(stream, *read_integer_limits(minval, maxval, kind), kind)
    else:
        draw = _uniform(stream, *read_limits(minval, maxval), kind)
    return draw_blocks(extents, region, kind, draw)


def indexed_normal(
    shape: Sequence[int],
    seed: npt.ArrayLike,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: npt.DTypeLike = "float32",
    region: Region | None = None,
) -> Array:
    """Normal values."""
    return _scaled_draw(IndexedStream.normal, shape, seed, mean, stddev, dtype, region)


def indexed_truncated_normal(
    shape: Sequence[int],
    seed: npt.ArrayLike,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: npt.DTypeLike = "float32",
    region: Region | None = None,
) -> Array:
    """Normal values within two standard deviations of the mean: those beyond are drawn again."""
    return _scaled_draw(IndexedStream.truncated_normal, shape, seed, mean, stddev, dtype, region)


def _scaled_draw(
    draw: Callable[[IndexedStream, int, int, np.dtype[Any]], Array],
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

    def values(start: int, count: int) -> Array:
        drawn = draw(stream, start, count, wide)
        drawn *= factor
        drawn += summand
        return drawn.astype(kind, copy=False)

    return draw_blocks(extents, region, kind, values)


def _uniform(stream: IndexedStream, minval: float, maxval: float, kind: np.dtype[Any]) -> _Draw:
    wide = np.promote_types(kind, np.float32)
    low, high = (np.asarray(limit).astype(kind) for limit in (minval, maxval))
    with np.errstate(over="ignore"):
        factor, summand = high.astype(wide) - low.astype(wide), low.astype(wide)
    if not np.isfinite(factor):
        raise ArgumentError(f"The range from {minval} to {maxval} is too large for {kind}.", "Draw it as float64.")
    largest = np.nextafter(high, low)  # a product or a rounding may reach the upper limit, which is not in the range
    is_unit = factor == 1 and summand == 0

    def values(start: int, count: int) -> Array:
        drawn = stream.uniform(start, count, wide)
        if not is_unit:
            drawn *= factor
            drawn += summand
        narrow = drawn.astype(kind, copy=False)
        return narrow if is_unit and kind == wide else np.minimum(narrow, largest, out=narrow)

    return values


def _integers(stream: IndexedStream, low: int, count: int, kind: np.dtype[Any]) -> _Draw:
    def values(start: int, length: int) -> Array:
        words = stream.words(start, length)
        words %= np.uint64(count)
        words += np.uint64(low % 2**64)
        return words.astype(kind)

    return values


def _halves(words: Words64) -> npt.NDArray[np.uint32]:
    """The low half of each word, then its high half."""
    return words.astype("<u8", copy=False).view("<u4").astype(np.uint32, copy=False)


def _fractions32(words: npt.NDArray[np.uint32]) -> Array:
    """The high 23 bits of each word as a float32 in [0, 1); the words are used up."""
    words >>= np.uint32(9)
    words |= np.uint32(127 << 23)
    fractions = words.view(np.float32)
    fractions -= np.float32(1)
    return fractions


def _fractions64(words: Words64) -> Array:
    """The high 52 bits of each word as a float64 in [0, 1); the words are used up."""
    words >>= np.uint64(12)
    words |= np.uint64(1023 << 52)
    fractions = words.view(np.float64)
    fractions -= 1
    return fractions


def _polar(z0: Array, z1: Array) -> tuple[Array, Array]:
    """Box and Muller: the radius and the angle of two independent normal values; the fractions are used up."""
    np.subtract(1, z0, out=z0)  # in (0, 1]: the logarithm is finite
    np.log(z0, out=z0)
    z0 *= z0.dtype.type(-2)
    np.sqrt(z0, out=z0)
    z1 *= z1.dtype.type(2 * np.pi)
    return z0, z1


def _beyond(values: Array) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.abs(values) >= TRUNCATED_AT)
