"""Rounding to nearest, ties to even, by its definition: among all numbers of a dtype."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@cache
def grid(dtype: np.dtype[Any]) -> tuple[Floats, npt.NDArray[np.bool]]:
    """The finite numbers of a dtype of at most 16 bits, ascending, and if their last bit is 0."""
    codes = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
    with np.errstate(all="ignore"):
        numbers, rows = np.unique(codes.view(dtype).astype(np.float64), return_index=True)
    is_finite = np.isfinite(numbers)
    # float8_e8m0fnu has no fraction, so 1.5 lies between the odd 1 and the even 2, of one bit each.
    is_even = codes[rows] % 2 == 0 if dtype.name != "float8_e8m0fnu" else np.zeros(len(rows), bool)
    return numbers[is_finite], is_even[is_finite]


def halfway(dtype: np.dtype[Any]) -> Floats:
    """Numbers of a dtype, the points halfway between them, and what lies next to all of these."""
    numbers, _ = grid(dtype)
    points = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2])
    close = [points * (1 + sign * 2.0**-bits) for sign in (1, -1) for bits in (24, 25, 40)]
    near = [np.nextafter(points, np.inf), np.nextafter(points, -np.inf)]
    found = np.unique(np.concatenate([points, *near, *close]))
    return found[(found >= numbers[0]) & (found <= numbers[-1])]


def nearest(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return float64 in another dtype; what its largest number is too far from becomes infinite."""
    if dtype.itemsize > 2:
        return np.asarray(values).astype(dtype)
    numbers, is_even = grid(dtype)
    low = np.clip(np.searchsorted(numbers, values, side="right") - 1, 0, len(numbers) - 2)
    middle = (numbers[low] + numbers[low + 1]) / 2
    is_up = (values > middle) | ((values == middle) & ~is_even[low])
    found = np.copysign(numbers[low + is_up], values)
    limit = numbers[-1] + (numbers[-1] - numbers[-2]) / 2
    with np.errstate(all="ignore"):
        found = np.where(np.abs(values) >= limit, np.copysign(np.inf, values), found)
        return np.where(np.isnan(values), np.nan, found).astype(dtype)
