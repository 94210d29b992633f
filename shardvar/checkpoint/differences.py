"""How far two arrays of values are apart, in pieces that can be put together.

Elements of one dtype are the same if their bits are. So a NaN is the same as a NaN of the same bits and as no other,
and 0.0 is not -0.0, though at a distance of 0: what a resharding must give back is bits. Elements of different dtypes
are the same if their values are, with every NaN the same; integers beyond 2**53 lose digits beside floats.

The distance of two elements is ``|a - b|``, exact for integers, and their relative distance is that over
``max(|a|, |b|)``. Both are symmetric. A NaN has no distance, so elements without one are counted apart.

    difference(a, b) = difference(a[:k], b[:k]) merged with difference(a[k:], b[k:], start=k)
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardvar.checkpoint.numbers import Number, is_number, python_number, widened
from shardvar.layout.dtypes import ITEMSIZES, Array, code, dtype_name

_SUB_BYTE = {"int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}

Mask = npt.NDArray[np.bool]


@dataclass(frozen=True, slots=True)
class Difference:
    """How two flat arrays of the same length differ."""

    count: int = 0
    """Elements that differ."""
    first: int | None = None
    """The flat index of the first one that does."""
    max_absolute: Number | None = None
    """The largest distance; None where no differing elements have one."""
    max_relative: float | None = None
    """The largest relative distance."""
    num_without_distance: int = 0
    """Differing elements that have no distance, because a NaN is among them."""

    def merge(self, later: "Difference") -> Self:
        """The difference of the two stretches together; ``later`` comes after this one."""
        return type(self)(
            self.count + later.count,
            later.first if self.first is None else self.first,
            _larger(self.max_absolute, later.max_absolute),
            _larger(self.max_relative, later.max_relative),
            self.num_without_distance + later.num_without_distance,
        )


def are_comparable(dtype_a: str, dtype_b: str) -> bool:
    """True where elements of the two dtypes can be the same: the dtypes are the same, or both are numbers.

    >>> are_comparable("float32", "bfloat16"), are_comparable("string", "int8"), are_comparable("string", "string")
    (True, False, True)
    """
    return dtype_a == dtype_b or (is_number(dtype_a) and is_number(dtype_b))


def difference(a: Array, b: Array, start: int = 0) -> Difference:
    """How two arrays of one shape differ; ``start`` is the flat index of their first element.

    >>> difference(np.array([1, 2, 3]), np.array([1, 2, 5]), start=10)
    Difference(count=1, first=12, max_absolute=2, max_relative=0.4, num_without_distance=0)
    """
    a, b = a.reshape(-1), b.reshape(-1)
    where = np.flatnonzero(_differ(a, b))
    if not len(where):
        return Difference()
    first = start + int(where[0])
    if a.dtype.kind == "O":
        return Difference(len(where), first)
    return Difference(len(where), first, *_distances(*_in_common(a[where], b[where])))


def only_bytes(found: Difference, dtype: str) -> Difference:
    """The difference without distances, for elements that are no numbers: what is opaque is compared as its bytes."""
    return Difference(found.count, found.first) if ITEMSIZES[code(dtype)] else Difference(found.count)


def _differ(a: Array, b: Array) -> Mask:
    """[k] whether two elements differ."""
    mask: Mask
    if a.dtype.kind == "O":
        mask = a != b
        return mask
    if a.dtype == b.dtype and dtype_name(a.dtype) in _SUB_BYTE:
        a, b = widened(a), widened(b)  # the bits of an element, without those that only fill its byte
    if a.dtype != b.dtype:
        a, b = _in_common(a, b)
        mask = (a != b) & ~((a != a) & (b != b))
    elif a.itemsize == 16:
        mask = (a.view(np.uint64).reshape(-1, 2) != b.view(np.uint64).reshape(-1, 2)).any(axis=1)
    else:
        word = np.dtype(f"u{a.itemsize}")
        mask = a.view(word) != b.view(word)
    return mask


def _in_common(a: Array, b: Array) -> tuple[Array, Array]:
    """Both arrays as one type that holds the values of each, but for integers that float64 cannot hold."""
    a, b = widened(a), widened(b)
    if a.dtype == b.dtype:
        return a, b
    common = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    return a.astype(common), b.astype(common)


def _distances(a: Array, b: Array) -> tuple[Number | None, float | None, int]:
    """The largest distance, the largest relative distance, and the number of pairs that have none."""
    if a.dtype.kind in "iu":
        # Modulo 2**64, which is exact: the smaller is taken from the larger.
        distance = np.maximum(a, b).view(np.uint64) - np.minimum(a, b).view(np.uint64)
        scale = np.maximum(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
        return int(distance.max()), float((distance / scale).max()), 0
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(a - b)
        scale = np.maximum(np.abs(a), np.abs(b))
        relative = np.divide(distance, scale, out=np.zeros_like(distance), where=scale > 0)
    relative[np.isinf(distance)] = np.inf
    has_one = ~np.isnan(distance)
    if not has_one.any():
        return None, None, len(distance)
    missing = len(distance) - int(np.count_nonzero(has_one))
    return python_number(distance[has_one].max()), float(relative[has_one].max()), missing


def _larger(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else max(a, b)
