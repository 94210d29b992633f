"""Tolerances: the distance at which two numbers count as the same.

    |a - b| <= atol + rtol * |b|

NaN is as NaN, and an infinity as itself; strings and opaque elements are the same if their bytes
are. The defaults follow ``torch.testing.assert_close``, by the dtype of the less precise side.
"""

from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from typing import Any, Self

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, Bools
from shardvar.verbs.numbers import widen_numbers

_CLOSE = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}  # fmt: skip
"""The relative and the absolute tolerance of a dtype; of all others, which are integers or have few
bits, (0, 0)."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The distance at which elements count as the same; by default their dtypes'."""

    rtol: float | None = None
    """The part of the second value's magnitude."""
    atol: float | None = None
    """The distance that is allowed at any magnitude."""

    @classmethod
    def of(cls, rtol: float | None, atol: float | None, close: bool) -> Self | None:
        """Return the tolerance that a caller asks for; None for bits.

        With ``close``, a value that is not given follows from the dtypes; without it, 0.
        """
        given = cls(_finite("rtol", rtol), _finite("atol", atol))
        if close:
            return given
        return None if rtol is None and atol is None else cls(given.rtol or 0.0, given.atol or 0.0)

    def __str__(self) -> str:
        texts = [
            f"{name}={value:g}"
            for name, value in (("rtol", self.rtol), ("atol", self.atol))
            if value is not None
        ]
        return ", ".join(texts) or "the tolerances of the dtypes"

    def of_dtypes(self, a: str, b: str) -> tuple[float, float]:
        """Return the relative and the absolute tolerance of elements of two dtypes.

        >>> Tolerance().of_dtypes("float32", "bfloat16"), Tolerance(atol=1.0).of_dtypes("float64", "float64")
        ((0.016, 1e-05), (1e-07, 1.0))
        """
        defaults = [_CLOSE.get(name, (0.0, 0.0)) for name in (a, b)]
        rtol, atol = (max(values) for values in zip(*defaults, strict=True))
        return rtol if self.rtol is None else self.rtol, atol if self.atol is None else self.atol

    def beyond(self, a: Array, b: Array) -> Bools:
        """[k] Return True where two numbers are further apart than allowed.

        >>> Tolerance(rtol=0.5, atol=0.0).beyond(np.array([1.0, 3.0, np.nan]), np.array([2.0, 1.0, np.nan]))
        array([False,  True, False])
        """
        rtol, atol = self.of_dtypes(a.dtype.name, b.dtype.name)
        x, y = widen_numbers(a), widen_numbers(b)
        same: Bools = (x == y) | ((x != x) & (y != y))
        # As floats: integers beyond 2**53 that differ by less than their rounding are beyond a
        # tolerance of 0 only.
        with np.errstate(invalid="ignore", over="ignore"):
            p, q = (v if v.dtype.kind == "c" else v.astype(np.float64) for v in (x, y))
            allowed = atol + rtol * np.abs(q)
            near = (np.abs(p - q) <= allowed) & (allowed > 0) & np.isfinite(q)
        return ~(same | near)


def _finite(name: str, value: Any) -> float | None:
    """Return a tolerance of Python or NumPy as a float; None if it is not given."""
    if value is None:
        return None
    if not isinstance(value, bool) and isinstance(value, Real):
        with suppress(OverflowError):  # of an integer that no float holds
            number = float(value)
            if 0 <= number < float("inf"):
                return number
    raise ArgumentError(f"Invalid {name}={value!r}.", "Give a finite number >= 0.")
