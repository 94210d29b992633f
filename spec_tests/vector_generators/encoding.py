"""Values as JSON that every language reads without loss.

Integers up to 2^53 - 1 are numbers, larger ones decimal strings; those of int64 and uint64 arrays
are all strings, so that a list has one type. Real numbers are decimal numbers that a float64 holds
exactly; since every value of a narrower dtype is a float64, casting back is exact. The others are
"nan", "inf" and "-inf".
"""

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

SAFE = 2**53 - 1
"""The largest integer that JavaScript's numbers hold together with all below it."""

MOST_HEX_NBYTES = 64
"""Payloads up to this size stand in the vectors, of larger ones the digest."""


def integer(number: int) -> int | str:
    """One integer."""
    return int(number) if abs(int(number)) <= SAFE else str(int(number))


def integers(numbers: Any) -> Any:
    """Integers in nested lists or tuples."""
    return (
        [integers(each) for each in numbers]
        if isinstance(numbers, list | tuple)
        else integer(numbers)
    )


def real(number: float) -> float | str:
    """One real number."""
    number = float(number)
    if math.isnan(number):
        return "nan"
    return number if math.isfinite(number) else "inf" if number > 0 else "-inf"


def array(value: npt.ArrayLike, dtype: Any = None) -> dict[str, Any]:
    """An array: dtype, shape, and its elements in C order."""
    given = np.asarray(value, dtype)
    flat = given.ravel()
    if given.dtype.kind == "b":
        data: list[Any] = flat.tolist()
    elif given.dtype.kind in "iu":
        data = [str(each) if given.dtype.itemsize == 8 else each for each in flat.tolist()]
    elif given.dtype.kind == "c":
        data = [[real(each.real), real(each.imag)] for each in flat.tolist()]
    else:
        data = [real(each) for each in flat.astype(np.float64)]
    return {"dtype": given.dtype.name, "shape": list(given.shape), "data": data}


def tensor(key: str, dtype: str, shape: Any, **more: Any) -> dict[str, Any]:
    """One tensor of a checkpoint; a key that is not UTF-8 is given by its bytes."""
    try:
        key.encode()
        name = {"key": key}
    except UnicodeEncodeError:
        name = {"key_hex": key.encode("utf-8", "surrogateescape").hex()}
    return {**name, "dtype": dtype, "shape": list(shape), **more}


def of_payload(key: str, dtype: str, shape: Any, payload: bytes) -> dict[str, Any]:
    """A tensor whose elements, C order and little-endian, are known."""
    more: dict[str, Any] = {"nbytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    if len(payload) <= MOST_HEX_NBYTES:
        more["hex"] = payload.hex()
    return tensor(key, dtype, shape, **more)
