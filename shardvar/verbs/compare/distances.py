"""The difference of two arrays, in portions that can be put together.

Elements of one dtype are the same if their bits are. So a NaN equals a NaN of the same bits and no
other, and 0.0 differs from -0.0, though at a distance of 0: resharding must give back bits.
Elements of different dtypes are the same if their values are, with every NaN the same; integers
beyond 2**53 lose digits when compared with floats.

The distance of two elements is ``|a - b|``, exact for integers, and their relative distance is that
over ``max(|a|, |b|)``. Both are symmetric. A NaN has no distance, so elements without one are
counted apart.

    compare_arrays(a, b) = compare_arrays(a[:k], b[:k]) merged with compare_arrays(a[k:], b[k:], start=k)

``checkpoint.products`` has the figures of whole tensors, to which the elements that are the same
also belong.

Only a few elements have the largest distances of a tensor. Portions of floats of up to 32 bits are
therefore looked through in float32 first, and judged exactly only where they may hold a larger
distance than was found so far.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from shardvar.layout.dtypes import ITEMSIZES, Array, Bools, Ints, code, dtype_name, to_round_once
from shardvar.verbs.compare.products import Products
from shardvar.verbs.compare.tolerance import Tolerance
from shardvar.verbs.numbers import Number, is_floating, is_number, python_number, widen_numbers

_SUB_BYTE = {"int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}

_PORTION = 1 << 15
"""Elements that are judged at a time: as float64 they take 256 KiB, so that three such arrays fit
in a core's cache."""

_ROUNDING = 1 + 2.0**-20
"""More than the factor by which a distance in float32, whose fractions have 24 bits, is off the
exact one."""

_LEAST_RELATIVE = 1e-30
"""Relative distances below it are judged exactly: tiny float32 numbers have fewer bits."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two flat arrays of one length."""

    count: int = 0
    """Elements that differ."""
    first: int | None = None
    """The flat index of the first one that does."""
    absolute: tuple[Number, int] | None = None
    """The largest distance, and the flat index of its first element; None if none has one."""
    relative: tuple[float, int] | None = None
    """The largest relative distance, and the flat index of the first element that has it."""
    num_without_distance: int = 0
    """Differing elements that have no distance, because a NaN is among them."""
    num_zeros: int = 0
    """Differing elements that are zero on both sides: they differ only in the sign."""
    num_nans: int = 0
    """Differing elements that are NaN on both sides: they differ only in the other bits."""
    num_rounded: int = 0
    """Differing elements of two dtypes that are the same once the wider ones are rounded to the
    other dtype."""
    products: Products | None = field(default=None, compare=False)
    """The sums of products of all elements, equal ones included; None where nothing differs."""

    def merge(self, later: "Difference") -> Self:
        """The difference of the two stretches together; ``later`` comes after this one."""
        products = later.products if self.products is None else self.products
        if self.products is not None and later.products is not None:
            products = self.products + later.products
        return type(self)(
            self.count + later.count,
            later.first if self.first is None else self.first,
            _larger(self.absolute, later.absolute),
            _larger(self.relative, later.relative),
            self.num_without_distance + later.num_without_distance,
            self.num_zeros + later.num_zeros,
            self.num_nans + later.num_nans,
            self.num_rounded + later.num_rounded,
            products,
        )


@dataclass(slots=True)
class Highest:
    """The largest distances of a tensor that any of its portions had so far; shared by threads that
    judge them.

    An update that another thread overwrites only makes a portion be judged that need not have been.
    """

    absolute: float = -1.0
    """The largest distance."""
    relative: float = -1.0
    """The largest relative distance."""

    def note(self, found: Difference) -> None:
        """Note the distances of a portion."""
        if found.absolute is not None:
            self.absolute = max(self.absolute, float(found.absolute[0]))
        if found.relative is not None:
            self.relative = max(self.relative, found.relative[0])


def are_comparable(dtype_a: str, dtype_b: str) -> bool:
    """Return True if elements of the two dtypes can be the same: the dtypes are equal, or both are
    of numbers.

    >>> are_comparable("float32", "bfloat16"), are_comparable("string", "int8"), are_comparable("string", "string")
    (True, False, True)
    """
    return dtype_a == dtype_b or (is_number(dtype_a) and is_number(dtype_b))


def compare_arrays(
    a: Array,
    b: Array,
    start: int = 0,
    tolerance: Tolerance | None = None,
    highest: Highest | None = None,
) -> Difference:
    """Return the difference of two arrays of one shape; ``start`` is the flat index of their first
    element.

    Numbers within the ``tolerance`` are the same. Distances below the ``highest`` of a tensor may
    be left out, since they are not its largest.

    >>> found = compare_arrays(np.array([1, 2, 3]), np.array([1, 2, 5]), start=10)
    >>> found.count, found.first, found.absolute, found.relative
    (1, 12, (2, 12), (0.4, 12))
    """
    a, b = a.reshape(-1), b.reshape(-1)
    is_near = tolerance is not None and a.dtype.kind != "O"
    mask = tolerance.beyond(a, b) if tolerance and is_near else _differ(a, b)
    count = int(np.count_nonzero(mask))
    if not count:
        return Difference()
    if a.dtype.kind == "O":
        return Difference(count, start + int(mask.argmax()))
    found, highest = Difference(), highest or Highest()
    for begin in range(0, len(a), _PORTION):
        portion = slice(begin, begin + _PORTION)
        judged = _judge(a[portion], b[portion], mask[portion], start + begin, highest)
        highest.note(judged)
        found = found.merge(judged)
    return replace(found, num_rounded=_num_rounded(a, b, mask))


def only_bytes(found: Difference, dtype: str) -> Difference:
    """Return the difference of elements other than numbers, without distances."""
    return (
        Difference(found.count, found.first) if ITEMSIZES[code(dtype)] else Difference(found.count)
    )


def products_of_same(array: Array) -> Products:
    """Return the products of elements that are the same on both sides."""
    total = Products()
    flat = array.reshape(-1)
    for begin in range(0, len(flat), _PORTION):
        portion = _compact(flat[begin : begin + _PORTION])
        total += Products.of(portion, portion)
    return total


def _differ(a: Array, b: Array) -> Bools:
    """[k] True where two elements differ."""
    mask: Bools
    if a.dtype.kind == "O":
        mask = a != b
        return mask
    if a.dtype == b.dtype and dtype_name(a.dtype) in _SUB_BYTE:
        # The bits of an element, without the padding of its byte.
        a, b = (
            widen_numbers(a),
            widen_numbers(b),
        )
    if a.dtype != b.dtype:
        a, b = _in_common(a, b)
        # x != x is True only for NaNs, so two NaNs count as the same value.
        mask = (a != b) & ~((a != a) & (b != b))
    elif a.itemsize == 16:
        # complex128: NumPy has no integer of 16 bytes, so the bits are compared as two of 8.
        mask = (a.view(np.uint64).reshape(-1, 2) != b.view(np.uint64).reshape(-1, 2)).any(axis=1)
    else:
        # As integers: as floats, 0.0 would equal -0.0, and a NaN would differ from itself.
        word = np.dtype(f"u{a.itemsize}")
        mask = a.view(word) != b.view(word)
    return mask


def _num_rounded(a: Array, b: Array, mask: Bools) -> int:
    """Return how many elements in the mask are the same once the wider dtype is rounded to the
    other."""
    if a.dtype == b.dtype or not (is_floating(a.dtype.name) and is_floating(b.dtype.name)):
        return 0
    wide, narrow = (a, b) if a.itemsize >= b.itemsize else (b, a)
    with np.errstate(all="ignore"):
        rounded = to_round_once(wide, narrow.dtype).astype(narrow.dtype)
    return int(np.count_nonzero(mask & ~_differ(rounded, narrow)))


def _in_common(a: Array, b: Array) -> tuple[Array, Array]:
    """Both arrays as one type that holds the values of each, except for large integers."""
    a, b = widen_numbers(a), widen_numbers(b)
    if a.dtype == b.dtype:
        return a, b
    common = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    return a.astype(common), b.astype(common)


def _compact(array: Array) -> Array:
    """The same values as float32 if that holds them, else as by ``widen_numbers``."""
    return array.astype(np.float32, copy=False) if _fits_float32(array) else widen_numbers(array)


def _fits_float32(array: Array) -> bool:
    return array.itemsize <= 4 and is_floating(array.dtype.name)


def _judge(a: Array, b: Array, mask: Bools, start: int, highest: Highest) -> Difference:
    """The difference of two portions whose elements in the mask [k] differ."""
    is_compact = _fits_float32(a) and _fits_float32(b)
    a, b = (_compact(a), _compact(b)) if is_compact else _in_common(a, b)
    products = Products.of(a, b)
    count = int(np.count_nonzero(mask))
    if not count:
        return Difference(products=products)
    if is_compact and _are_below(a, b, len(mask) - count, highest):
        return Difference(count, start + int(mask.argmax()), products=products)
    a, b = _in_common(a, b)
    where = None
    if count < len(mask):
        where = np.flatnonzero(mask)
        a, b = a[where], b[where]
    first = start + (0 if where is None else int(where[0]))
    distance, relative = _distances(a, b)
    absolute = _largest(distance, where, start)
    num_without = num_nans = 0
    if absolute is None:
        has_none = np.isnan(distance)
        num_without, num_nans = (
            int(np.count_nonzero(has_none)),
            int(np.count_nonzero((a != a) & (b != b))),
        )
        if num_without == count:
            return Difference(count, first, None, None, num_without, 0, num_nans, products=products)
        # Less than any distance.
        distance[has_none] = relative[has_none] = -1.0
        absolute = _largest(distance, where, start)
    num_zeros = 0
    largest_relative = _largest(relative, where, start)
    if largest_relative is None:
        # 0 / 0 of two zeros, and inf / inf where one side is an infinity.
        is_zero = distance == 0
        num_zeros = int(np.count_nonzero(is_zero))
        relative[is_zero] = 0.0
        relative[np.isinf(distance)] = np.inf
        largest_relative = _largest(relative, where, start)
    return Difference(
        count,
        first,
        absolute,
        largest_relative,
        num_without,
        num_zeros,
        num_nans,
        products=products,
    )


def _are_below(a: Array, b: Array, num_same: int, highest: Highest) -> bool:
    """Return True if float32 shows that no element of two portions reaches the highest distances.

    False also if an element has no distance, or if some differ only in the sign of zero.
    """
    with np.errstate(all="ignore"):
        distance = np.abs(a - b)
        # A NaN is the largest, and compares as False.
        if (
            not float(distance[distance.argmax()]) * _ROUNDING < highest.absolute
            or highest.relative < _LEAST_RELATIVE
        ):
            return False
        if np.count_nonzero(distance == 0) != num_same:
            return False
        # 0 / 0 of elements that are the same is NaN, and reaches nothing.
        relative = distance / np.maximum(np.abs(a), np.abs(b))
    return not (relative >= np.float32(highest.relative / _ROUNDING)).any()


def _largest(values: Array, where: Ints | None, start: int) -> tuple[Any, int] | None:
    """The largest of the values, and the flat index of its element; None if a NaN is among them."""
    at = int(values.argmax())
    value = values[at]
    if value != value:
        return None
    return python_number(value), start + (at if where is None else int(where[at]))


def _distances(a: Array, b: Array) -> tuple[Array, Array]:
    """The distances of elements, and these over the larger magnitudes.

    Both are NaN where a NaN is among the two elements; the second too where both are zero, or one
    is an infinity.
    """
    if a.dtype.kind in "iu":
        # Modulo 2**64, which is exact: the smaller is taken from the larger. For int64 the largest
        # distance, from -2**63 to 2**63 - 1, is 2**64 - 1, which fits uint64.
        distance = np.maximum(a, b).view(np.uint64) - np.minimum(a, b).view(np.uint64)
        # As float64, since the absolute value of -2**63 does not fit int64. The elements differ, so
        # the scale is not 0.
        scale = np.maximum(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
        return distance, distance / scale
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(a - b)
        return distance, distance / np.maximum(np.abs(a), np.abs(b))


def _larger(a: Any, b: Any) -> Any:
    """The larger of two pairs of a value and a place, the first one if the values are equal."""
    return b if a is None else a if b is None or a[0] >= b[0] else b
