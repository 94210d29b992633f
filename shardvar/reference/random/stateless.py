"""TensorFlow's stateless random numbers: ``tf.random.stateless_*`` from the words of
``PhiloxStream``.

Values are a function of only seed and shape. Uniform values and integers equal TensorFlow's bit for
bit. Normal values are within 4 units in the last place, since logarithm and sine differ by as much
between libraries. ``docs/random.md`` gives the streams word by word.

The words come from Philox4x32-10 (Salmon et al., 2011): four 32-bit counters and two 32-bit keys
give four words, by ten rounds of two multiplications 32x32 -> 64 bits. A seed, two 64-bit integers,
is scrambled by one call of the same function into a key and the upper half of the counter. Counter
block ``j`` of the stream is the function at that counter plus ``j``, a 128-bit sum; word ``i`` of
the stream is word ``i % 4`` of counter block ``i // 4``. So any word can be computed by itself.

    float32     the LOW 23 bits of a word are the fraction of a number in [1, 2); 1 is subtracted
    float64     words (a, b): the low 20 bits of a, then all of b, are the fraction
    float16     the low 10 bits of a word; bfloat16 the low 7
    integers    a word (two for 64 bits, the low one first) modulo the range, plus the minimum
    normals     Box and Muller: two uniform values give a sine and then a cosine
    truncated   as many pairs as it takes until |z| < 2, from counter blocks that are reserved for a
                few values
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, DType, Shape
from shardvar.layout.region import read_shape
from shardvar.records import frozen
from shardvar.reference.random.indexed import (
    FLOATS,
    INTEGERS,
    TRUNCATED_AT,
    read_dtype,
    read_integer_limits,
    read_seed,
    scaled,
)

Words = npt.NDArray[np.uint32]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
"""The golden ratio and the square root of three, each less one, as fractions of 2**32: added to the
key at every round. 0x9E3779B9 / 2**32 = 0.618..., 0xBB67AE85 / 2**32 = 0.732..."""
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_SCRAMBLE_KEY = 0x3EC8F720, 0x02461E29
"""The key under which TensorFlow scrambles a seed."""
_RESERVED_BLOCKS = 64
"""Counter blocks that TensorFlow keeps for each truncated value."""
_SMALLEST_UNIFORM = 1e-7
"""TensorFlow's floor under the logarithm, which keeps normal values within 5.7 standard deviations:
sqrt(-2 log(1e-7)) = 5.68."""
_BLOCKS_AT_ONCE = 1 << 13
"""Counter blocks computed at a time: 64 KiB a column, so that all stay in the cache."""

_FRACTIONS = {
    "float16": (0x3FF, 15 << 10),
    "bfloat16": (0x7F, 127 << 7),
    "float32": (0x7FFFFF, 127 << 23),
}
"""By dtype: the bits of a word that become a fraction, and the exponent bits of 1.0."""

_Transform = Callable[[Words], Array]
"""Words [n, 4] of n counter blocks -> values [n, k]."""


def philox4x32(counter: npt.NDArray[np.uint64], key: tuple[int, int]) -> Words:
    """Return the words [n, 4] of counters [4, n], whose values have 32 bits each."""
    # Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    c0, c1, c2, c3 = counter
    k0, k1 = key
    # Values of 32 bits in words of 64: a product fits, and `>> 32` and `& _LOW` are its halves.
    # With c0 = 2**31 the product 0xD2511F53 * 2**31 has the high half 0x69288FA9 and the low half
    # 0x80000000.
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


@frozen
class PhiloxStream:
    """The words that TensorFlow draws from a seed."""

    key: tuple[int, int]
    """Two 32-bit words."""
    counter: int
    """The 128-bit counter of counter block 0."""

    @classmethod
    def of(cls, seed: npt.ArrayLike) -> "PhiloxStream":
        """Return the stream of a seed of two integers, each taken modulo 2**64."""
        parts = [int(part) for part in read_seed(seed)]
        halves = [part >> shift & 0xFFFFFFFF for part in parts for shift in (0, 32)]
        words = philox4x32(np.array(halves, np.uint64).reshape(4, 1), _SCRAMBLE_KEY)[0].tolist()
        return cls((words[0], words[1]), words[2] << 64 | words[3] << 96)

    def counter_blocks(self, start: int, count: int) -> Words:
        """Return counter blocks ``start`` to ``start + count`` as words [count, 4]."""
        return self.counter_blocks_at(start, np.arange(count, dtype=np.uint64))

    def counter_blocks_at(self, start: int, further: npt.NDArray[np.uint64]) -> Words:
        """Return counter blocks ``start + further[i]`` as words [n, 4]."""
        # A 128-bit sum in two columns of 64 bits. The lower half wraps around where the sum
        # carries, and then it is smaller than what was added: in bytes, 0xF0 + 0x20 = 0x10 < 0x20,
        # and the upper half is one more.
        upper, lower = (self.counter + start >> shift & 0xFFFFFFFFFFFFFFFF for shift in (64, 0))
        low = further + np.uint64(lower)
        high = np.where(
            low < further, np.uint64((upper + 1) & 0xFFFFFFFFFFFFFFFF), np.uint64(upper)
        )
        return philox4x32(
            np.stack([low & _LOW, low >> _HALF, high & _LOW, high >> _HALF]), self.key
        )

    def words(self, start: int, count: int) -> Words:
        """Return words ``start`` to ``start + count`` [count]."""
        # Words 6 to 9 lie in counter blocks 1 and 2, which are words 4 to 11; 6 - 4 = 2 of them are
        # skipped.
        first, stop = start // 4, -(-(start + count) // 4)
        return self.counter_blocks(first, stop - first).reshape(-1)[start - 4 * first :][:count]


def stateless_uniform(
    shape: Sequence[int],
    seed: npt.ArrayLike,
    minval: npt.ArrayLike | None = 0,
    maxval: npt.ArrayLike | None = None,
    dtype: npt.DTypeLike = "float32",
) -> Array:
    """Return values in [minval, maxval), by default [0, 1), as ``tf.random.stateless_uniform``.

    Parameters
    ----------
    shape : sequence of int
        The shape.
    seed : array_like of int
        Two integers of at most 64 bits, such as ``[7, 0]``.
    minval : array_like or None, default 0
        The lower limit; an array is broadcast to the shape.
    maxval : array_like or None, optional
        The upper limit, which is outside the range; by default 1. Integers need both limits, or
        None twice for the full range of the dtype.
    dtype : dtype_like, default "float32"
        One of float16, bfloat16, float32, float64, int32, int64, uint32 and uint64.

    Returns
    -------
    ndarray
        Of the given shape and dtype.

    Raises
    ------
    ArgumentError
        If `seed` is not two integers, the dtype cannot be drawn, limits do not broadcast to the
        shape, or the limits of integers are not both given, do not fit the dtype, or are in the
        wrong order.

    Examples
    --------
    >>> stateless_uniform([5], [7, 0], 0, 10, "int32").tolist()
    [3, 2, 8, 2, 1]
    """
    extents, kind = read_shape(shape), read_dtype(dtype, (*FLOATS, *INTEGERS))
    if kind.name in INTEGERS:
        if (minval is None) != (maxval is None):
            raise ArgumentError(
                f"{kind} values were asked for with minval={minval!r}, maxval={maxval!r}.",
                "Give both.",
            )
        words = _draw(
            extents,
            seed,
            np.dtype(f"u{kind.itemsize}"),
            (lambda words: words)
            if kind.itemsize == 4
            else (lambda words: words[:, 0::2] | words[:, 1::2].astype(np.uint64) << np.uint64(32)),
        )
        if minval is not None and maxval is not None:
            minimum, count = read_integer_limits(minval, maxval, kind)
            # Unsigned sums wrap around, so a negative minimum is added as its complement: for int32
            # -5 is 2**32 - 5, and 3 + 2**32 - 5 is 2**32 - 2, which has the bits of -2.
            words %= words.dtype.type(count)
            words += words.dtype.type(minimum % (1 << 8 * kind.itemsize))
        return words.view(kind)
    # TensorFlow rounds the limits to the dtype first, then their difference, the product and the
    # sum.
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
    """Return normal values, as ``tf.random.stateless_normal``.

    See ``stateless_uniform`` for the other parameters.

    Parameters
    ----------
    mean : array_like, default 0.0
        The mean; an array is broadcast to the shape.
    stddev : array_like, default 1.0
        The standard deviation; an array is broadcast to the shape.
    dtype : {"float16", "bfloat16", "float32", "float64"}, default "float32"
        The dtype.

    Raises
    ------
    ArgumentError
        If `seed` is not two integers, the dtype cannot be drawn, or `mean` or `stddev` does not
        broadcast to the shape.

    Examples
    --------
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
    """Return normal values within two standard deviations of the mean; others are drawn again.

    See ``stateless_normal`` for the parameters.
    """
    extents, kind = read_shape(shape), read_dtype(dtype, FLOATS)
    transform, group = _normal_of(kind), 2 if kind.name == "float64" else 4
    stream, out = PhiloxStream.of(seed), np.empty(extents, kind)
    flat = out.reshape(-1)
    for start in range(0, flat.size, group * _BLOCKS_AT_ONCE):
        portion = flat[start : start + group * _BLOCKS_AT_ONCE]
        # Value i has the counter blocks from 64 i on; a group of four float32 shares the 256 of its
        # four values.
        first = np.arange(start, start + portion.size, group, dtype=np.uint64) * np.uint64(
            _RESERVED_BLOCKS
        )
        portion[:] = _accepted(stream, first, transform, group).reshape(-1)[: portion.size]
    return scaled(out, stddev, mean)


def split(seed: npt.ArrayLike, num: int = 2) -> Array:
    """Return new seeds made of one, as ``tf.random.split``.

    Parameters
    ----------
    seed : array_like of int
        Two integers of at most 64 bits, such as ``[7, 0]``.
    num : int, default 2
        The number of new seeds.

    Returns
    -------
    ndarray
        [num, 2], of the dtype of `seed` if that is an array, else int64 or uint64.

    Raises
    ------
    ArgumentError
        If `seed` is not two integers, or `num` is negative.

    Examples
    --------
    >>> split(np.array([7, 0], np.int32)).tolist()
    [[-60841913, 232131072], [-1643682478, -2066582124]]
    """
    pair = read_seed(seed)
    dtype = pair.dtype if pair.dtype.name in INTEGERS else np.dtype(np.int64)
    return stateless_uniform([num, 2], pair, None, None, dtype)


def fold_in(seed: npt.ArrayLike, data: int | np.integer[Any]) -> Array:
    """Return a new seed made of a seed and an integer, as ``tf.random.fold_in``.

    Parameters
    ----------
    seed : array_like of int
        Two integers of at most 64 bits, such as ``[7, 0]``.
    data : int or numpy.integer
        The integer.

    Returns
    -------
    ndarray
        [2], of the dtype of `data`; for a Python integer of the seed's.

    Raises
    ------
    ArgumentError
        If `seed` is not two integers, or the dtype of `data` is not one of int32, int64, uint32 and
        uint64.

    Examples
    --------
    >>> fold_in(np.array([7, 0], np.int32), 5).tolist()
    [-60841913, 5]
    """
    pair = read_seed(seed)
    kind = getattr(data, "dtype", pair.dtype)
    dtype = read_dtype(kind, INTEGERS)
    return np.stack([stateless_uniform([], pair, None, None, dtype), np.asarray(data, dtype)])


def _draw(extents: Shape, seed: npt.ArrayLike, kind: DType, transform: _Transform) -> Array:
    """Return the stream's values in C order, from ``_BLOCKS_AT_ONCE`` blocks at a time."""
    stream, out = PhiloxStream.of(seed), np.empty(extents, kind)
    flat = out.reshape(-1)
    per_block = transform(np.zeros((1, 4), np.uint32)).shape[1]
    for start in range(0, flat.size, per_block * _BLOCKS_AT_ONCE):
        portion = flat[start : start + per_block * _BLOCKS_AT_ONCE]
        words = stream.counter_blocks(start // per_block, -(-portion.size // per_block))
        portion[:] = transform(words).reshape(-1)[: portion.size]
    return out


def _uniform_of(kind: DType) -> _Transform:
    """Return the function of words that makes values in [0, 1) of the dtype."""

    # The fraction bits under the exponent of 1 are a number in [1, 2), and subtracting 1 is exact.
    # In float32 the word 0x00400000 has the bits 0x3F800000 | 0x00400000, which is 1.5, and gives
    # 0.5.
    def of_pairs(words: Words) -> Array:
        upper = (words[:, 0::2] & np.uint32(0xFFFFF) | np.uint32(1023 << 20)).astype(np.uint64)
        return (upper << np.uint64(32) | words[:, 1::2]).view(np.float64) - 1

    def of_words(words: Words) -> Array:
        bits = (words & np.uint32(fraction) | np.uint32(one)).astype(
            f"u{kind.itemsize}", copy=False
        )
        return np.asarray(bits.view(kind) - kind.type(1))

    if kind.name == "float64":
        return of_pairs
    fraction, one = _FRACTIONS[kind.name]
    return of_words


def _normal_of(kind: DType) -> _Transform:
    """Return the function of words that makes normal values, in float32 for narrower dtypes."""
    uniform = _uniform_of(np.promote_types(kind, np.float32))

    # Logarithm, sine and cosine of float32 are computed in float64 and rounded. Libraries differ in
    # the last bits of their float32 functions; rounding the wider result is as near to TensorFlow's
    # as can be.
    def normal(words: Words) -> Array:
        # Two fractions u, v give sqrt(-2 log u) times sin(2 pi v), then times cos(2 pi v), in their
        # places.
        values = uniform(words)
        floor, double = values.dtype.type(_SMALLEST_UNIFORM), np.dtype(np.float64)
        logarithm = np.log(np.maximum(values[:, 0::2], floor), dtype=double).astype(values.dtype)
        radius = np.sqrt(-2 * logarithm)
        angle = (2 * np.pi * values[:, 1::2].astype(double)).astype(values.dtype)
        values[:, 0::2] = radius * np.sin(angle, dtype=double).astype(values.dtype)
        values[:, 1::2] = radius * np.cos(angle, dtype=double).astype(values.dtype)
        return values

    return normal


def _accepted(
    stream: PhiloxStream, first: npt.NDArray[np.uint64], transform: _Transform, group: int
) -> Array:
    """Return the first ``group`` values within the limit from each counter block on: [n, group]."""
    values = np.empty((len(first), group), transform(np.zeros((1, 4), np.uint32)).dtype)
    filled = np.zeros(len(first), np.int64)
    active = np.arange(len(first))
    block = 0
    while len(active):
        drawn = transform(stream.counter_blocks_at(block, first[active]))
        keep = np.abs(drawn) < TRUNCATED_AT
        # Kept values go behind the values of earlier rounds. A group with 1 value that keeps [yes,
        # no, yes, yes] puts them at 1 + [1, 1, 2, 3] - 1 = [1, -, 2, 3]. What passes the end of the
        # group is dropped, as TensorFlow drops it.
        at = filled[active, np.newaxis] + np.cumsum(keep, axis=1) - 1
        keep &= at < group
        row, column = np.nonzero(keep)
        values[active[row], at[row, column]] = drawn[row, column]
        filled[active] += keep.sum(axis=1)
        active = active[filled[active] < group]
        block += 1
    return values
