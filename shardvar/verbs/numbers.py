"""Numbers of every dtype in the few dtypes of arithmetic, and in the forms of JSON."""

from math import isfinite
from typing import Any

import numpy as np

from shardvar.layout.dtypes import STRING, Array, is_opaque

Number = int | float
_SMALL_INTEGERS = ("int2", "int4", "uint2", "uint4")
"""Integers of ml_dtypes: their ``dtype.kind`` "V" does not show that they are integers."""


def is_number(dtype: str) -> bool:
    """Return True if the elements of the dtype are numbers; False for strings and opaque elements.

    >>> is_number("bfloat16"), is_number("bool"), is_number("string")
    (True, True, False)
    """
    return dtype != STRING and not is_opaque(dtype)


def is_floating(dtype: str) -> bool:
    """Return True if the elements of the dtype are real floating-point numbers of any size.

    >>> is_floating("bfloat16"), is_floating("float8_e5m2"), is_floating("int8"), is_floating("complex64")
    (True, True, False, False)
    """
    return dtype.startswith(("float", "bfloat"))


def widen_numbers(array: Array) -> Array:
    """Return the values as uint64, int64, float64 or complex128, which hold them exactly."""
    # All integers of up to 63 bits fit int64, and all of 64 bits without a sign fit uint64. Every
    # smaller float fits float64: bfloat16 and float8 have fewer bits of exponent and of fraction.
    kind = array.dtype.kind
    if kind == "u" and array.itemsize == 8:
        return array.astype(np.uint64, copy=False)
    if kind in "iub" or (kind == "V" and array.dtype.name in _SMALL_INTEGERS):
        return array.astype(np.int64)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return array.astype(np.complex128 if kind == "c" else np.float64)


def python_number(value: Any) -> Number:
    """Return a NumPy scalar as a Python number: int for integers and bools, else float."""
    return int(value) if value.dtype.kind in "iub" else float(value)


def json_number(value: Number | None) -> Number | str | None:
    """Return the number, or its name where JSON cannot hold it: JSON has neither infinity nor NaN.

    >>> json_number(0.5), json_number(float("-inf")), json_number(float("nan"))
    (0.5, '-inf', 'nan')
    """
    return value if value is None or isinstance(value, int) or isfinite(value) else repr(value)
