"""TensorFlow's stateless random numbers: ``tf.random.stateless_*`` from the words of ``PhiloxStream``.

Values are a function of seed and shape alone. Uniform values and integers are TensorFlow's bit for bit; normal ones are
within 4 units in the last place, since logarithm and sine differ by as much between libraries. ``docs/random.md``
gives the streams word by word.

    float32     the LOW 23 bits of a word are the fraction of a number in [1, 2); 1 is subtracted
    float64     words (a, b): the low 20 bits of a, then all of b, are the fraction
    float16     the low 10 bits of a word; bfloat16 the low 7
    integers    a word (two for 64 bits, the low one first) modulo the range, plus the minimum
    normals     Box and Muller: two uniform values give a sine and then a cosine
    truncated   as many pairs as it takes until |z| < 2, from a piece of the stream kept for a few values
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.random.arguments import (
    FLOATS,
    INTEGERS,
    TRUNCATED_AT,
    read_dtype,
    read_integer_limits,
    read_seed,
    read_shape,
    scaled,
)

# Philox4x32-10 (Salmon et al., 2011) in NumPy, and the stream of words that TensorFlow makes of a seed.
#
# Four 32-bit counters and two 32-bit keys give four words; ten rounds of two 32x32->64 multiplications each. A seed,
# two
# 64-bit integers, is scrambled by one call of the same function into a key and the upper half of the counter. Block
# ``j``
# of the stream is the function at that counter plus ``j``, a 128-bit sum; word ``i`` of the stream is word ``i % 4`` of
# block ``i // 4``. Any word can be had alone.


Words = npt.NDArray[np.uint32]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
"""The golden ratio and the square root of three less one, as fractions of 2**32: added to the key at every round."""
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_SCRAMBLE_KEY = 0x3EC8F720, 0x02461E29
"""TensorFlow's: the key under which a seed is scrambled."""

CHUNK = 1 << 13
"""Blocks computed at a time: 64 KiB a column of 64-bit values, so that all of them stay in the processor's cache."""


def philox4x32(counter: npt.NDArray[np.uint64], key: tuple[int, int]) -> Words:
    """Counters [4, n] of 32-bit values -> words [n, 4].

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the example is one of
    its authors' test vectors.

    >>> [hex(word) for word in philox4x32(np.zeros((4, 1), np.uint64), (0, 0))[0].tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low, high = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (high >> _HALF) ^ c1, (low >> _HALF) ^ c3
        c0 ^= np.uint64(k0)
        c2 ^= np.uint64(k1)
        c1, c3 = high & _LOW, low & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    words = np.empty((counter.shape[1], 4), np.uint32)
    for column, values in enumerate((c0, c1, c2, c3)):
        words[:, column] = values
    return words


@dataclass(frozen=True, slots=True)
class PhiloxStream:
    """The words that TensorFlow draws from a seed.

    >>> PhiloxStream.of([7, 0]).words(0, 3).tolist() == PhiloxStream.of([7, 0]).words(0, 9)[:3].tolist()
    True
    """

    key: tuple[int, int]
    """Two 32-bit words."""
    counter: int
    """The 128-bit counter of block 0."""

    @classmethod
    def of(cls, seed: npt.ArrayLike) -> "PhiloxStream":
        """The stream of a seed of two integers, each taken modulo 2**64."""
        parts = [int(part) for part in read_seed(seed)]
        halves = [part >> shift & 0xFFFFFFFF for part in parts for shift in (0, 32)]
        words = philox4x32(np.array(halves, np.uint64).reshape(4, 1), _SCRAMBLE_KEY)[0].tolist()
        return cls((words[0], words[1]), words[2] << 64 | words[3] << 96)

    def blocks(self, start: int, count: int) -> Words:
        """Blocks ``start`` to ``start + count`` as words [count, 4]."""
        return self.blocks_at(start, np.arange(count, dtype=np.uint64))

    def blocks_at(self, start: int, further: npt.NDArray[np.uint64]) -> Words:
        """Blocks ``start + further[i]``, words [n, 4]; ``further`` is below 2**63."""
        upper, lower = (self.counter + start >> shift & 0xFFFFFFFFFFFFFFFF for shift in (64, 0))
        low = further + np.uint64(lower)  # wraps around where the sum carries into the upper half
        high = np.where(low < further, np.uint64((upper + 1) & 0xFFFFFFFFFFFFFFFF), np.uint64(upper))
        return philox4x32(np.stack([low & _LOW, low >> _HALF, high & _LOW, high >> _HALF]), self.key)

    def words(self, start: int, count: int) -> Words:
        """Words ``start`` to ``start + count`` [count]."""
        first, stop = start // 4, -(-(start + count) // 4)
        return self.blocks(first, stop - first).reshape(-1)[start - 4 * first :][:count]


_RESERVED_BLOCKS = 64
"""Blocks of the stream that TensorFlow keeps for each truncated value: 256 for four float32, 128 for two float64."""
_SMALLEST_UNIFORM = 1e-7
"""TensorFlow's floor under the logarithm, which keeps normal values within 5.7 standard deviations."""

_Transform = Callable[[Words], Array]
"""Words [n, 4] of n blocks -> values [n, k]."""


def stateless_uniform(
    shape: Sequence[int],
    seed: npt.ArrayLike,
    minval: npt.ArrayLike | None = 0,
    maxval: npt.ArrayLike | None = None,
    dtype: npt.DTypeLike = "float32",
) -> Array:
    """Values in [minval, maxval), by default [0, 1); integers take both limits, or None twice for the full range.

    >>> stateless_uniform([5], [7, 0], 0, 10, "int32").tolist()
    [3, 2, 8, 2, 1]
    """
    extents, kind = read_shape(shape), read_dtype(dtype, (*FLOATS, *INTEGERS))
    if kind.name in INTEGERS:
        return _integers(extents, seed, minval, maxval, kind)
    low = np.asarray(0 if minval is None else minval).astype(kind)
    high = np.asarray(1 if maxval is None else maxval).astype(kind)
    return scaled(_draw(extents, seed, kind, _uniform_of(kind)), high - low, low)


def stateless_normal(
    shape: Sequence[int],
    seed: npt.ArrayLike,
    mean: npt.ArrayLike = 0.0,
    stddev: npt.ArrayLike = 1.0,
    dtype: npt.DTypeLike = "float32",
) -> Array:
    """Normal values.

    >>> stateless_normal([2], [7, 0], dtype="float64").round(3).tolist()
    [0.051, -0.211]
    """
    extents, kind = read_shape(shape), read_dtype(dtype, FLOATS)
    return scaled(_draw(extents, seed, kind, _normal_of(kind)), stddev, mean)


def stateless_truncated_normal(
    shape: Sequence[int],
    seed: npt.ArrayLike,
    mean: npt.ArrayLike = 0.0,
    stddev: npt.ArrayLike = 1.0,
    dtype: npt.DTypeLike = "float32",
) -> Array:
    """Normal values within two standard deviations of the mean: those beyond are drawn again."""
    extents, kind = read_shape(shape), read_dtype(dtype, FLOATS)
    transform, group = _normal_of(kind), 2 if kind.name == "float64" else 4
    stream, out = PhiloxStream.of(seed), np.empty(extents, kind)
    flat = out.reshape(-1)
    for start in range(0, flat.size, group * CHUNK):
        chunk = flat[start : start + group * CHUNK]
        first = np.arange(start, start + chunk.size, group, dtype=np.uint64) * np.uint64(_RESERVED_BLOCKS)
        chunk[:] = _accepted(stream, first, transform, group).reshape(-1)[: chunk.size]
    return scaled(out, stddev, mean)


def split(seed: npt.ArrayLike, num: int = 2) -> Array:
    """``num`` new seeds [num, 2] of the seed's dtype.

    >>> split(np.array([7, 0], np.int32)).tolist()
    [[-60841913, 232131072], [-1643682478, -2066582124]]
    """
    pair = read_seed(seed)
    dtype = pair.dtype if pair.dtype.name in INTEGERS else np.dtype(np.int64)
    return stateless_uniform([num, 2], pair, None, None, dtype)


def fold_in(seed: npt.ArrayLike, data: int | np.integer[Any]) -> Array:
    """A new seed [2] from a seed and an integer, of the integer's dtype (the seed's for a Python integer).

    >>> fold_in(np.array([7, 0], np.int32), 5).tolist()
    [-60841913, 5]
    """
    pair = read_seed(seed)
    kind = getattr(data, "dtype", pair.dtype)
    dtype = read_dtype(kind, INTEGERS)
    return np.stack([stateless_uniform([], pair, None, None, dtype), np.asarray(data, dtype)])


def _draw(extents: tuple[int, ...], seed: npt.ArrayLike, kind: np.dtype[Any], transform: _Transform) -> Array:
    """The stream's values in C order, a chunk of blocks at a time."""
    stream, out = PhiloxStream.of(seed), np.empty(extents, kind)
    flat = out.reshape(-1)
    per_block = transform(np.zeros((1, 4), np.uint32)).shape[1]
    for start in range(0, flat.size, per_block * CHUNK):
        chunk = flat[start : start + per_block * CHUNK]
        words = stream.blocks(start // per_block, -(-chunk.size // per_block))
        chunk[:] = transform(words).reshape(-1)[: chunk.size]
    return out


def _integers(
    extents: tuple[int, ...],
    seed: npt.ArrayLike,
    minval: npt.ArrayLike | None,
    maxval: npt.ArrayLike | None,
    kind: np.dtype[Any],
) -> Array:
    if (minval is None) != (maxval is None):
        raise ArgumentError(f"{kind} values were asked for with minval={minval!r}, maxval={maxval!r}.", "Give both.")
    unsigned = np.dtype(f"u{kind.itemsize}")
    words = _draw(extents, seed, unsigned, _words32 if kind.itemsize == 4 else _words64)
    if minval is not None and maxval is not None:
        low, count = read_integer_limits(minval, maxval, kind)
        words %= unsigned.type(count)
        words += unsigned.type(low % (1 << 8 * kind.itemsize))
    return words.view(kind)


def _words32(words: Words) -> Array:
    return words


def _words64(words: Words) -> Array:
    return words[:, 0::2] | words[:, 1::2].astype(np.uint64) << np.uint64(32)


def _uniform_of(kind: np.dtype[Any]) -> _Transform:
    """Words -> values in [0, 1) of the dtype."""
    if kind.name == "float64":
        return _uniform64
    if kind.name == "float32":
        return _uniform32
    fraction, one = (0x3FF, 15 << 10) if kind.name == "float16" else (0x7F, 127 << 7)
    return lambda words: (words & fraction | one).astype(np.uint16).view(kind) - kind.type(1)


def _uniform32(words: Words) -> Array:
    return (words & np.uint32(0x7FFFFF) | np.uint32(127 << 23)).view(np.float32) - np.float32(1)


def _uniform64(words: Words) -> Array:
    upper = (words[:, 0::2] & np.uint32(0xFFFFF) | np.uint32(1023 << 20)).astype(np.uint64)
    return (upper << np.uint64(32) | words[:, 1::2]).view(np.float64) - 1


def _normal_of(kind: np.dtype[Any]) -> _Transform:
    """Words -> normal values, in float32 for the dtypes that are narrower.

    Logarithm, sine and cosine of float32 are those of float64, rounded: as near to TensorFlow's as can be.
    """
    uniform = _uniform64 if kind.name == "float64" else _uniform32

    def normal(words: Words) -> Array:
        values = uniform(words)
        floor, double = values.dtype.type(_SMALLEST_UNIFORM), np.dtype(np.float64)
        logarithm = np.log(np.maximum(values[:, 0::2], floor), dtype=double).astype(values.dtype)
        radius = np.sqrt(-2 * logarithm)
        angle = (2 * np.pi * values[:, 1::2].astype(double)).astype(values.dtype)
        values[:, 0::2] = radius * np.sin(angle, dtype=double).astype(values.dtype)
        values[:, 1::2] = radius * np.cos(angle, dtype=double).astype(values.dtype)
        return values

    return normal


def _accepted(stream: PhiloxStream, first: npt.NDArray[np.uint64], transform: _Transform, group: int) -> Array:
    """For each block number the first ``group`` values within the limit, from that block on: [n, group]."""
    values = np.empty((len(first), group), transform(np.zeros((1, 4), np.uint32)).dtype)
    filled = np.zeros(len(first), np.int64)
    active = np.arange(len(first))
    block = 0
    while len(active):
        drawn = transform(stream.blocks_at(block, first[active]))
        keep = np.abs(drawn) < TRUNCATED_AT
        at = filled[active, np.newaxis] + np.cumsum(keep, axis=1) - 1
        keep &= at < group
        row, column = np.nonzero(keep)
        values[active[row], at[row, column]] = drawn[row, column]
        filled[active] += keep.sum(axis=1)
        active = active[filled[active] < group]
        block += 1
    return values
