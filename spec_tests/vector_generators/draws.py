"""Values made of words, element by element, as docs/random.md says: every step rounded to the
dtype."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np

from spec_tests.vector_generators import precise
from spec_tests.vector_generators.words import halves, indexed_word, jax_words, tensorflow_words

FLOAT = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}
_FRACTION_BITS = {"float16": 10, "bfloat16": 7, "float32": 23}
_FULL_TURN = 2 * 3.141592653589793


def tensorflow_uniform(
    count: int, seed: Sequence[int], low: float, high: float, dtype: str
) -> list[Any]:
    """The first values of the stream."""
    words = tensorflow_words(seed)
    if dtype in ("int32", "int64"):
        return list(islice(_integers(words, int(low), int(high), dtype), count))
    kind = FLOAT[dtype]
    return [_scaled(kind, each, low, high) for each in islice(_fractions(words, dtype), count)]


def tensorflow_full_range(count: int, seed: Sequence[int], dtype: str) -> list[int]:
    """Integers over the dtype's whole range."""
    words, bits = tensorflow_words(seed), int(dtype[-2:])
    found = [next(words) | (next(words) << 32 if bits == 64 else 0) for _ in range(count)]
    return [each - (1 << bits) if each >> (bits - 1) else each for each in found]


def tensorflow_normal(
    count: int, seed: Sequence[int], mean: float, stddev: float, dtype: str
) -> list[Any]:
    """The first values of the stream; narrow dtypes are computed in float32."""
    return _moved(islice(_normals(tensorflow_words(seed), dtype), count), mean, stddev, dtype)


def tensorflow_truncated(
    count: int, seed: Sequence[int], mean: float, stddev: float, dtype: str
) -> list[Any]:
    """Groups of four, or of two for float64, each from a stretch of blocks of its own."""
    size = 2 if dtype == "float64" else 4
    found: list[Any] = []
    for group in range(-(-count // size)):
        words = tensorflow_words(seed, group * 64 * size)
        found.extend(islice((value for value in _normals(words, dtype) if abs(value) < 2), size))
    return _moved(found[:count], mean, stddev, dtype)


def indexed_uniform(
    indices: Sequence[int], seed: int, low: float, high: float, dtype: str
) -> list[Any]:
    """The values at flat indices of the full tensor."""
    if dtype in ("int32", "int64"):
        return [int(low) + indexed_word(seed, i) % (int(high) - int(low)) for i in indices]
    wide = np.float64 if dtype == "float64" else np.float32
    below = np.nextafter(wide(high), wide(low))
    found = [_scaled(wide, _indexed_fraction(seed, i, dtype), low, high) for i in indices]
    return [FLOAT[dtype](min(each, below)) for each in found]


def indexed_normal(
    indices: Sequence[int], seed: int, mean: float, stddev: float, dtype: str
) -> list[Any]:
    """The values at flat indices of the full tensor."""
    return _moved([_indexed_normal(seed, i, dtype, 0) for i in indices], mean, stddev, dtype)


def indexed_truncated(
    indices: Sequence[int], seed: int, mean: float, stddev: float, dtype: str
) -> list[Any]:
    """The values at flat indices: of each the first attempt within two deviations."""
    found = []
    for i in indices:
        attempt = 0
        while abs(_indexed_normal(seed, i, dtype, attempt)) >= 2:
            attempt += 1
        found.append(_indexed_normal(seed, i, dtype, attempt))
    return _moved(found, mean, stddev, dtype)


def jax_bits(count: int, seed: int) -> list[int]:
    """The first words of 32 bits."""
    return [x0 ^ x1 for x0, x1 in (jax_words(seed, i) for i in range(count))]


def jax_uniform(count: int, seed: int) -> list[Any]:
    """float32 in [0, 1)."""
    return [np.float32((word >> 9) / 2**23) for word in jax_bits(count, seed)]


def _integers(words: Iterator[int], low: int, high: int, dtype: str) -> Iterator[int]:
    while True:
        word = next(words)
        if dtype == "int64":
            word |= next(words) << 32
        yield low + word % (high - low)


def _fractions(words: Iterator[int], dtype: str) -> Iterator[float]:
    """Numbers in [0, 1), exact in a float64."""
    while True:
        if dtype == "float64":
            upper = next(words) & 0xFFFFF
            yield (upper << 32 | next(words)) / 2**52
        else:
            bits = _FRACTION_BITS[dtype]
            yield (next(words) & ((1 << bits) - 1)) / 2**bits


def _scaled(kind: Callable[[Any], Any], fraction: float, low: float, high: float) -> Any:
    return kind(kind(kind(fraction) * kind(kind(high) - kind(low))) + kind(low))


def _wide(dtype: str) -> Any:
    return np.float64 if dtype == "float64" else np.float32


def _normals(words: Iterator[int], dtype: str) -> Iterator[Any]:
    """Pairs of Box and Muller: the sine first."""
    kind = _wide(dtype)
    fractions = _fractions(words, kind.__name__)
    while True:
        u, v = max(kind(next(fractions)), kind(1e-7)), kind(next(fractions))
        radius = np.sqrt(kind(-2) * kind(precise.log(float(u))))
        angle = float(kind(_FULL_TURN * float(v)))
        yield radius * kind(precise.sin(angle))
        yield radius * kind(precise.cos(angle))


def _indexed_fraction(seed: int, i: int, dtype: str, attempt: int = 0) -> float:
    if dtype == "float64":
        return (indexed_word(seed, i, attempt) >> 12) / 2**52
    return (halves(indexed_word(seed, i // 2, attempt))[i % 2] >> 9) / 2**23


def _indexed_normal(seed: int, i: int, dtype: str, attempt: int) -> Any:
    kind, first = _wide(dtype), i // 2 * 2
    u, v = (kind(_indexed_fraction(seed, k, dtype, attempt)) for k in (first, first + 1))
    radius = np.sqrt(kind(-2) * kind(precise.log(float(kind(1) - u))))
    angle = float(kind(_FULL_TURN) * v)
    return radius * kind(precise.sin(angle) if i % 2 else precise.cos(angle))


def _moved(values: Any, mean: float, stddev: float, dtype: str) -> list[Any]:
    """Rounded to the dtype, times the deviation, plus the mean."""
    kind = FLOAT[dtype]
    return [kind(kind(kind(value) * kind(stddev)) + kind(mean)) for value in values]
