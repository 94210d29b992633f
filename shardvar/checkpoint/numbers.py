"""Elements of every numeric dtype as the few types that arithmetic needs, and numbers as JSON can hold them."""

from math import isfinite
from typing import Any

import numpy as np

from shardvar.layout.dtypes import STRING, Array, is_opaque

Number = int | float
_SMALL_INTEGERS = ("int2", "int4", "uint2", "uint4")


def is_number(dtype: str) -> bool:
    """True where the elements of the dtype are numbers; False for strings and what is opaque.

    >>> is_number("bfloat16"), is_number("bool"), is_number("string")
    (True, True, False)
    """
    return dtype != STRING and not is_opaque(dtype)


def widened(array: Array) -> Array:
    """The same values as uint64, int64, complex128 or float64, whichever holds the dtype's values exactly."""
    kind = array.dtype.kind
    if kind == "u" and array.itemsize == 8:
        return array.astype(np.uint64, copy=False)
    if kind in "iub" or array.dtype.name in _SMALL_INTEGERS:
        return array.astype(np.int64)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return array.astype(np.complex128 if kind == "c" else np.float64)


def python_number(value: Any) -> Number:
    """A NumPy scalar as a Python number: integers exact, everything else as a float."""
    return int(value) if value.dtype.kind in "iub" else float(value)


def json_number(value: Number | None) -> Number | str | None:
    """The number, or its name where JSON has no such number.

    >>> json_number(0.5), json_number(float("-inf")), json_number(float("nan"))
    (0.5, '-inf', 'nan')
    """
    return value if value is None or isinstance(value, int) or isfinite(value) else repr(value)
