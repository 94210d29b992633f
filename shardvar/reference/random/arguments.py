"""The arguments of random functions: dtypes, seeds, limits, checked."""

from collections.abc import Sequence
from math import isfinite
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array, numpy_dtype, parse_dtype

FLOATS = "float16", "bfloat16", "float32", "float64"
INTEGERS = "int32", "int64", "uint32", "uint64"

TRUNCATED_AT = 2
"""Standard deviations beyond which a truncated normal value is drawn again, as in TensorFlow."""


def read_dtype(dtype: npt.DTypeLike, allowed: Sequence[str]) -> np.dtype[Any]:
    """Return the dtype, one of the allowed ones.

    >>> read_dtype("bfloat16", FLOATS), read_dtype(np.float32, FLOATS)
    (dtype(bfloat16), dtype('float32'))
    """
    name = parse_dtype(dtype)
    if name not in allowed:
        raise ArgumentError(
            f"Values of dtype {name} cannot be drawn here.", f"Draw one of {', '.join(allowed)}."
        )
    return numpy_dtype(name)


def read_seed(seed: object) -> Array:
    """Return the seed as an array of two integers. An array keeps its dtype; others become int64,
    or uint64 if needed.

    >>> read_seed([7, 0]), read_seed([-1, 2**64 - 1])
    (array([7, 0]), array([18446744073709551615, 18446744073709551615], dtype=uint64))
    """
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
    minval: npt.ArrayLike, maxval: npt.ArrayLike, dtype: np.dtype[Any]
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
    """Return ``values * factor + summand``, computed in place, each operation rounded to the dtype
    of ``values``."""
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
