"""JAX's uniform numbers under its partitionable threefry, bit for bit: the default of
``jax.random`` since 0.5.

The bits of element ``i`` are a function of the key and of ``i``, the flat index in the full array:
threefry2x32 of the counter (high 32 bits of i, low 32 bits of i). Any region can be drawn by
itself, as JAX does on every device.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout import Region
from shardvar.layout.dtypes import Array
from shardvar.layout.region import read_shape
from shardvar.reference.random.arguments import FLOATS, read_dtype, read_limits
from shardvar.reference.random.value_blocks import draw_blocks

_Words = npt.NDArray[np.uint32]

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_MASK = 0xFFFFFFFF

_FORMS = {"float16": (16, 10), "bfloat16": (8, 7), "float32": (32, 23), "float64": (64, 52)}
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
    """Return two words for two words of counter: twenty rounds of threefry (Salmon et al., 2011).

    >>> [hex(int(word[0])) for word in threefry2x32((0, 0), np.zeros(1, np.uint32), np.zeros(1, np.uint32))]
    ['0x6b200159', '0x99ba4efe']
    """
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
    pair, kind = _read_key(key), np.dtype(f"u{bits // 8}")

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

    Otherwise as ``jax_bits``.

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
    drawn_bits, fraction_bits = _FORMS[kind.name]
    words = jax_bits(key, shape, drawn_bits, region).astype(f"u{kind.itemsize}", copy=False)
    # The high bits become the fraction of a number in [1, 2), under the exponent bits of 1.0. For
    # float32 the word 0xC0000000 gives 0xC0000000 >> 9 | 0x3F800000 = 0x3FE00000, which is 1.75,
    # and so 0.75.
    words >>= words.dtype.type(drawn_bits - fraction_bits)
    words |= np.ones((), kind).view(words.dtype)
    values: np.ndarray[Any, Any] = words.view(kind)
    values -= kind.type(1)
    if kind == np.float32:
        values = _fused(values, high - low, low)
    else:
        values *= high - low
        values += low
    # Rounding may fall below the minimum, which JAX prevents in the same way.
    return np.asarray(np.maximum(values, low, out=values))


def _fused(values: Array, factor: Array, summand: Array) -> Array:
    """Return ``values * factor + summand`` in float32, rounded once.

    The product of two float32 is exact in float64, which has more than twice as many bits. The sum
    may be inexact; it is then rounded to odd, to the neighbour whose last bit is 1. So the rounding
    to float32 sees on which side of a tie the true sum lies. With decimal digits: 0.1250 + 0.00004
    kept as 0.1250 would round to 0.12, a tie to even, and the true 0.12504 rounds to 0.13; kept as
    0.1251 it does too.
    """
    # Knuth's TwoSum: `error` is exactly what the rounded `total` lacks of product + low, and 0
    # where it is exact.
    product, low = values.astype(np.float64) * np.float64(factor), np.float64(summand)
    total = product + low
    part = total - product
    error = (product - (total - part)) + (low - part)
    is_even = total.view(np.int64) & 1 == 0
    odd = np.where((error != 0) & is_even, np.nextafter(total, np.copysign(np.inf, error)), total)
    return np.asarray(odd.astype(np.float32))


def _read_key(key: tuple[int, int] | Sequence[int]) -> tuple[int, int]:
    array = np.asarray(key)
    if array.shape != (2,) or array.dtype.kind not in "iu":
        raise ArgumentTypeError(
            f"Invalid key {key!r}.", "Give two 32-bit integers, such as jax_key(seed)."
        )
    return int(array[0]) & _MASK, int(array[1]) & _MASK
