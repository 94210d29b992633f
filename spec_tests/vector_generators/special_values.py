"""Elements of each dtype that ports get wrong: not finite, signed zeros, extremes, and numbers that
need all digits of the dtype."""

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

REAL = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
DTYPES = (*REAL, *COMPLEX, *INTEGERS)


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def elements(dtype: str) -> Array:
    """The elements, twelve of each dtype."""
    made = numpy_dtype(dtype)
    if dtype in COMPLEX:
        halves = elements("float32" if dtype == "complex64" else "float64")
        pairs = np.empty(12, made)
        pairs.real, pairs.imag = halves, halves[[1, 3, 0, 2, 4, 6, 8, 7, 5, 9, 11, 10]]
        return pairs
    if dtype in INTEGERS:
        low, high = np.iinfo(made).min, np.iinfo(made).max
        # From 2^24 and from 2^53 on, float32 and float64 leave integers out.
        wide = [2**24 + 1, 2**53 + 1, 2**63 + 1]
        odd = [number if number <= high else high - 4 - place for place, number in enumerate(wide)]
        return np.array([low, high, 0, 1, 2, high - 1, low + 1, *odd, 3, 100], made)
    facts = ml_dtypes.finfo(made)
    numbers = [np.nan, np.inf, -np.inf, -0.0, 0.0, facts.max, -facts.max, facts.smallest_subnormal]
    found = np.array([*numbers, 0, 0, 0, 3], made)
    one = np.array([1, 0.1, -0.3], made)
    one[0] += facts.eps
    found[8:11] = one
    return found


def table(dtype: str, turn: int = 0) -> Array:
    """The elements as six rows of two, beginning with another one at each turn."""
    return np.roll(elements(dtype), -turn).reshape(6, 2)


def finite(dtype: str, turn: int = 0) -> Array:
    """The same with small numbers in the place of those that are not finite, zero or extreme: what
    may be multiplied and divided in any order of rounding."""
    plain = {0: 2, 1: 4, 2: 0.5, 3: 8, 4: 1, 5: 2, 6: 4, 7: 0.25, 8: 16, 9: 0.5, 10: 32, 11: 3}
    numbers = np.array([*plain.values()])
    if dtype in INTEGERS:
        numbers = np.maximum(numbers, 1)
    made = numbers.astype(numpy_dtype(dtype))
    if dtype in COMPLEX:
        made[1::2] *= 1j
    return np.roll(made, -turn).reshape(6, 2)
