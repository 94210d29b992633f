"""Chapter 5. Initial values: what each shard begins with, when every shard is drawn by itself.

Two functions matter: ``calls`` shows how an initializer is called for the parts of a variable, and
``initial_value`` the result. The rest are the streams that it draws from. Read them only to
repeat a framework's numbers bit by bit.

A draw returns a list of values in C order. TensorFlow rounds each step to the dtype, and computes
normals of float16 and bfloat16 in float32 before it scales them. The stream by index computes both
dtypes in float32, and rounds once at the end.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from math import prod, sqrt
from typing import Any

import numpy as np

from shardvar.spec import decimals
from shardvar.spec.partitions import Region, indices
from shardvar.spec.random_words import halves, indexed_word, jax_words, tensorflow_words
from shardvar.spec.variables import Array

__all__ = [
    "DRAWS",
    "INDEXED",
    "SCALED",
    "TENSORFLOW",
    "Draw",
    "calls",
    "distribution_of",
    "flat_indices",
    "indexed_normal",
    "indexed_truncated",
    "indexed_uniform",
    "initial_value",
    "jax_bits",
    "jax_uniform",
    "part_seed",
    "tensorflow_full_range",
    "tensorflow_normal",
    "tensorflow_truncated",
    "tensorflow_uniform",
]

_FRACTION_BITS = {"float16": 10, "bfloat16": 7, "float32": 23}
"""The bits of a mantissa, which the low bits of a word fill."""
_TRUNCATED = 0.87962566103423978
"""The standard deviation of a normal distribution that is truncated at 2."""


# R-INIT-2 (RFC 000): "we will inspect the initializer to see if it accepts the `partition` argument."
# R-INIT-3 (RFC 000): "If not, this initializer is not partition aware and we will go ahead creating
# the entire value and do slicing, otherwise we will pass in the `partition` argument, create initial
# values on each sharding device."
# R-INIT-7 (RFC 000): "Layout is a map from device string to the shard assigned to that device"
def calls(
    accepts: Collection[str], parts: Sequence[Region], devices: Sequence[str]
) -> list[dict[str, Any]]:
    """Return what each call of an initializer is given, from the names of its parameters.

    A call without a partition makes the entire value. A layout has one part a device: the second
    parts of devices are made by a second call.

    >>> parts, devices = [([0], [2]), ([2], [1]), ([3], [1])], ["ps:0", "ps:1", "ps:0"]
    >>> calls(["partition"], parts, devices)
    [{'partition': ([0], [2])}, {'partition': ([2], [1])}, {'partition': ([3], [1])}]
    >>> calls(["layout"], parts, devices)
    [{'layout': {'ps:0': ([0], [2]), 'ps:1': ([2], [1])}}, {'layout': {'ps:0': ([3], [1])}}]
    """
    if "partition" in accepts:
        return [{"partition": part} for part in parts]
    if "layout" not in accepts:
        return [{}]
    layouts: list[dict[str, Region]] = [{} for _ in parts]
    for part, device in zip(parts, devices, strict=True):
        next(layout for layout in layouts if device not in layout)[device] = part
    return [{"layout": layout} for layout in layouts if layout]


# R-INIT-4 (RFC 000): "`__call__(shape, dtype, partition)` returns the initial value of the
# partition." R-INIT-8 (RFC 000): '"partition" is a namedtuple of two fields: shape and offset.'
def initial_value(
    name: str,
    numbers: Sequence[float],
    seed: int,
    shape: Sequence[int],
    partition: Region,
    dtype: Any = np.float32,
    by_index: bool = False,
) -> Array:
    """Return an initializer's values for one part of a variable.

    >>> whole, rows = [([0, 0], [4, 2]), ([2, 0], [2, 2])]
    >>> one, other = (initial_value("RandomUniform", [0, 1], 7, [4, 2], part) for part in (whole, rows))
    >>> np.array_equal(one[2:], other)
    False
    """
    distribution, first, second = distribution_of(name, numbers, shape)
    draw = (INDEXED if by_index else TENSORFLOW)[distribution]
    where = flat_indices(shape, partition) if by_index else range(prod(partition[1]))
    seeds = seed if by_index else [part_seed(seed, partition[0]), 0]
    return np.array(draw(where, seeds, first, second, dtype), np.dtype(dtype)).reshape(partition[1])


# R-INIT-5 (RFC 000): "For seeded initializers, the seed must be changed deterministically for each
# shard, otherwise each shard will use the same values. This can be achieved by adding offset to the
# seed."
def part_seed(seed: int, offset: Sequence[int]) -> int:
    """Return the seed of a part.

    >>> part_seed(7, [3, 0])
    10
    """
    return seed + offset[0]


# shardvar's other mode: an element's value depends on the seed and on its own number only.
def flat_indices(shape: Sequence[int], partition: Region) -> list[int]:
    """Return the C order numbers, in the full tensor, of the elements of a part.

    >>> flat_indices([4, 2], ([2, 1], [2, 1]))
    [5, 7]
    """
    return [sum(i * prod(shape[d + 1 :]) for d, i in enumerate(at)) for at in indices(partition)]


# R-INIT-6 (RFC 000): "`partition.shape` is the shape of the partition, `shape` is the full combined
# shape"
def distribution_of(
    name: str, numbers: Sequence[float], shape: Sequence[int]
) -> tuple[str, float, float]:
    """Return an initializer's distribution and its two numbers, from the full combined shape.

    >>> distribution_of("GlorotUniform", (), [2, 4])
    ('uniform', -1.0, 1.0)
    """
    if name in DRAWS:
        return DRAWS[name], numbers[0], numbers[1]
    scale, mode, distribution = SCALED[name]
    receptive = prod(shape[:-2])
    fan_in, fan_out = (
        (shape[-2] * receptive, shape[-1] * receptive) if len(shape) > 1 else (prod(shape),) * 2
    )
    variance = scale / max(1.0, fan_in if mode == "fan_in" else (fan_in + fan_out) / 2)
    if distribution == "uniform":
        return "uniform", -sqrt(3 * variance), sqrt(3 * variance)
    return "truncated", 0.0, sqrt(variance) / _TRUNCATED


DRAWS = {"RandomUniform": "uniform", "RandomNormal": "normal", "TruncatedNormal": "truncated"}
"""Initializers whose two numbers are given: limits, or mean and standard deviation."""
SCALED: dict[str, tuple[float, str, str]] = {
    "GlorotUniform": (1.0, "fan_avg", "uniform"),
    "GlorotNormal": (1.0, "fan_avg", "truncated"),
    "HeUniform": (2.0, "fan_in", "uniform"),
    "LecunNormal": (1.0, "fan_in", "truncated"),
}
"""Initializers of variance scale / fan: scale, fan and distribution."""


# TensorFlow's stateless functions. A draw takes the numbers 0 to n - 1 of the elements.


# TensorFlow, tf.random.stateless_uniform.
def tensorflow_uniform(
    where: Sequence[int], seed: Any, low: float, high: float, dtype: Any
) -> list[Any]:
    """Draw from TensorFlow's stream: numbers in [low, high).

    >>> tensorflow_uniform(range(3), [7, 0], 0, 10, "int32")
    [3, 2, 8]
    """
    words, dtype = tensorflow_words(seed), np.dtype(dtype)
    if dtype.kind == "i":
        found = _wide_words(words, dtype.itemsize // 4)
        return [int(low) + word % (int(high) - int(low)) for word in islice(found, len(where))]
    fractions = islice(_fractions(words, dtype), len(where))
    return [_scaled(dtype.type, each, low, high) for each in fractions]


# TensorFlow, tf.random.stateless_uniform of integers without limits.
def tensorflow_full_range(count: int, seed: Sequence[int], dtype: Any) -> list[int]:
    """Draw integers over the dtype's whole range.

    >>> tensorflow_full_range(1, [7, 0], "int32")
    [-60841913]
    """
    bits = 8 * np.dtype(dtype).itemsize
    found = islice(_wide_words(tensorflow_words(seed), bits // 32), count)
    return [each - (1 << bits) if each >> (bits - 1) else each for each in found]


# TensorFlow, tf.random.stateless_normal.
def tensorflow_normal(
    where: Sequence[int], seed: Any, mean: float, stddev: float, dtype: Any
) -> list[Any]:
    """Draw from TensorFlow's stream: pairs of Box and Muller, the sine first.

    >>> [round(float(z), 4) for z in tensorflow_normal(range(2), [7, 0], 0, 1, "float32")]
    [-0.6742, -0.3587]
    """
    return _moved(islice(_normals(tensorflow_words(seed), dtype), len(where)), mean, stddev, dtype)


# TensorFlow, tf.random.stateless_truncated_normal.
def tensorflow_truncated(
    where: Sequence[int], seed: Any, mean: float, stddev: float, dtype: Any
) -> list[Any]:
    """Draw normals within two deviations: groups of four, or of two for float64.

    >>> [round(float(z), 4) for z in tensorflow_truncated(range(2), [7, 0], 0, 1, "float32")]
    [-0.6742, -0.3587]
    """
    size = 2 if np.dtype(dtype) == np.float64 else 4
    found: list[Any] = []
    for group in range(-(-len(where) // size)):
        # Each group has its own stretch of blocks, so one that rejects much shifts no other.
        words = tensorflow_words(seed, group * 64 * size)
        found.extend(islice((value for value in _normals(words, dtype) if abs(value) < 2), size))
    return _moved(found[: len(where)], mean, stddev, dtype)


# The stream by index. A draw takes the C order numbers of elements in the full tensor.


# shardvar, docs/random.md: uniform values by index.
def indexed_uniform(
    where: Sequence[int], seed: int, low: float, high: float, dtype: Any
) -> list[Any]:
    """Draw by index: numbers in [low, high).

    >>> indexed_uniform([5, 6], 7, 0, 10, "int32") == indexed_uniform(range(7), 7, 0, 10, "int32")[5:]
    True
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "i":
        return [int(low) + indexed_word(seed, i) % (int(high) - int(low)) for i in where]
    low, high = dtype.type(low), dtype.type(high)
    # Computed in at least float32, and rounded once. If that reaches ``high``, the value is the
    # largest below it.
    found = [_scaled(_wide(dtype), _indexed_fraction(seed, i, dtype), low, high) for i in where]
    return [min(dtype.type(each), np.nextafter(high, low)) for each in found]


# shardvar, docs/random.md: normal values by index.
def indexed_normal(
    where: Sequence[int], seed: int, mean: float, stddev: float, dtype: Any
) -> list[Any]:
    """Draw by index: normal values.

    >>> indexed_normal([3], 7, 0, 1, "float32") == indexed_normal(range(4), 7, 0, 1, "float32")[3:]
    True
    """
    found = [_indexed_normal(seed, i, dtype, 0) for i in where]
    return _rounded(_moved(found, mean, stddev, _wide(dtype)), dtype)


# shardvar, docs/random.md: truncated normal values by index.
def indexed_truncated(
    where: Sequence[int], seed: int, mean: float, stddev: float, dtype: Any
) -> list[Any]:
    """Draw by index: of each element the first attempt within two deviations.

    >>> all(abs(z) < 2 for z in indexed_truncated(range(50), 7, 0, 1, "float32"))
    True
    """
    found = []
    for i in where:
        attempt = 0
        while abs(_indexed_normal(seed, i, dtype, attempt)) >= 2:
            attempt += 1
        found.append(_indexed_normal(seed, i, dtype, attempt))
    return _rounded(_moved(found, mean, stddev, _wide(dtype)), dtype)


Draw = Callable[[Sequence[int], Any, float, float, Any], list[Any]]
TENSORFLOW: dict[str, Draw] = {
    "uniform": tensorflow_uniform,
    "normal": tensorflow_normal,
    "truncated": tensorflow_truncated,
}
INDEXED: dict[str, Draw] = {
    "uniform": indexed_uniform,
    "normal": indexed_normal,
    "truncated": indexed_truncated,
}


# JAX's stream.


# JAX, jax.random.bits.
def jax_bits(count: int, seed: int) -> list[int]:
    """Return JAX's words of 32 bits, one for each element.

    >>> jax_bits(1, 0)
    [4070199207]
    """
    return [x0 ^ x1 for x0, x1 in (jax_words(seed, i) for i in range(count))]


# JAX, jax.random.uniform.
def jax_uniform(count: int, seed: int) -> list[Any]:
    """Return JAX's float32 values in [0, 1), from the high bits of the words.

    >>> jax_uniform(1, 0)
    [np.float32(0.947667)]
    """
    return [np.float32((word >> 9) / 2**23) for word in jax_bits(count, seed)]


# From words to values.


def _wide(dtype: Any) -> Any:
    return np.float64 if np.dtype(dtype) == np.float64 else np.float32


def _wide_words(words: Iterator[int], count: int) -> Iterator[int]:
    while True:
        yield sum(next(words) << 32 * place for place in range(count))


def _fractions(words: Iterator[int], dtype: Any) -> Iterator[float]:
    while True:
        if dtype == np.float64:
            upper = next(words) & 0xFFFFF
            yield (upper << 32 | next(words)) / 2**52
        else:
            bits = _FRACTION_BITS[np.dtype(dtype).name]
            yield (next(words) & ((1 << bits) - 1)) / 2**bits


def _scaled(kind: Callable[[Any], Any], fraction: float, low: float, high: float) -> Any:
    return kind(kind(kind(fraction) * kind(kind(high) - kind(low))) + kind(low))


def _normals(words: Iterator[int], dtype: Any) -> Iterator[Any]:
    kind = _wide(dtype)
    fractions = _fractions(words, kind)
    while True:
        u, v = max(kind(next(fractions)), kind(1e-7)), kind(next(fractions))
        radius = np.sqrt(kind(-2) * kind(decimals.log(float(u))))
        angle = float(kind(2 * np.pi * float(v)))
        yield radius * kind(decimals.sin(angle))
        yield radius * kind(decimals.cos(angle))


def _indexed_fraction(seed: int, i: int, dtype: Any, attempt: int = 0) -> float:
    if np.dtype(dtype) == np.float64:
        return (indexed_word(seed, i, attempt) >> 12) / 2**52
    return (halves(indexed_word(seed, i // 2, attempt))[i % 2] >> 9) / 2**23


def _indexed_normal(seed: int, i: int, dtype: Any, attempt: int) -> Any:
    kind, first = _wide(dtype), i // 2 * 2
    u, v = (kind(_indexed_fraction(seed, k, dtype, attempt)) for k in (first, first + 1))
    radius = np.sqrt(kind(-2) * kind(decimals.log(float(kind(1) - u))))
    angle = float(kind(2 * np.pi) * v)
    return radius * kind(decimals.sin(angle) if i % 2 else decimals.cos(angle))


def _rounded(values: Iterable[Any], dtype: Any) -> list[Any]:
    return [np.dtype(dtype).type(value) for value in values]


def _moved(values: Iterable[Any], mean: float, stddev: float, dtype: Any) -> list[Any]:
    kind = np.dtype(dtype).type
    return [kind(kind(kind(value) * kind(stddev)) + kind(mean)) for value in values]
