"""The difference of two arrays, in portions that can be put together.

Elements of one dtype are the same if their bits are. So a NaN equals a NaN of the same bits and no
other, and 0.0 differs from -0.0, though at a distance of 0: resharding must give back bits.
Elements of different dtypes are the same if their values are, with every NaN the same; integers
beyond 2**53 lose digits when compared with floats.

The distance of two elements is ``|a - b|``, exact for integers, and their relative distance is that
over ``max(|a|, |b|)``. Both are symmetric. A NaN has no distance, so elements without one are
counted apart.

    compare_arrays(a, b) = compare_arrays(a[:k], b[:k]) merged with compare_arrays(a[k:], b[k:], start=k)

``Products`` has the figures of whole tensors, to which the elements that are the same
also belong.

Only a few elements have the largest distances of a tensor. Portions of floats of up to 32 bits are
therefore looked through in float32 first, and judged exactly only where they may hold a larger
distance than was found so far.

With a tolerance, two numbers are the same if

    |a - b| <= atol + rtol * |b|

NaN is as NaN, and an infinity as itself; strings and opaque elements are the same if their bytes
are. The defaults follow ``torch.testing.assert_close``, by the dtype of the less precise side.

Sums of products give the angle between two tensors, and how far they are apart as vectors.

    a . b      ->  cosine similarity = a . b / (|a| |b|)
    |a - b|    ->  relative norm     = |a - b| / max(|a|, |b|)

The sums are of float64, and grow portion by portion. A square of 1e200 is no float64, so a sum is a
pair: a float in [0.5, 1) with a sign, and an exponent of 2. Elements that are NaN or infinite on
either side are left out of all sums: one of them would make every figure NaN. A complex number
counts as two real ones.
"""

from contextlib import suppress
from math import frexp, ldexp, sqrt
from numbers import Real
from typing import Any, Self

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import (
    ITEMSIZES,
    Array,
    Bools,
    Ints,
    Number,
    code,
    dtype_name,
    is_floating,
    is_number,
    python_number,
    to_round_once,
    widen_numbers,
)
from shardvar.records import field, frozen, mutable, replace

_Wide = tuple[float, int]
"""The number ``x * 2**e`` as (x, e) with 0.5 <= |x| < 1; (0.0, 0) for zero."""

_ZERO: _Wide = (0.0, 0)
_SAFE = 1e-200, 1e200
"""Sums of squares in this range lost nothing visible to underflow or overflow."""

_ROW = 1 << 13
"""Elements of one call of BLAS: from 10,000 on, OpenBLAS starts threads, which cost more than they
save here."""


@frozen
class Products:
    count: int = 0
    squares_a: _Wide = _ZERO
    squares_b: _Wide = _ZERO
    products: _Wide = _ZERO
    squares_of_difference: _Wide = _ZERO

    @classmethod
    def of(cls, a: Array, b: Array) -> Self:
        """Return the sums over two flat arrays of one dtype, whose values float64 holds."""
        x, y = _reals(a), _reals(b)
        rows = np.empty((3, len(x)))
        with np.errstate(all="ignore"):
            rows[0], rows[1] = x, y
            np.subtract(rows[0], rows[1], out=rows[2])
            squares, product = _dots(rows, rows).tolist(), float(_dots(rows[0], rows[1]))
        # The fast way is right if all sums are finite, and too large to have lost squares that
        # underflowed; a difference of only zeros has lost nothing.
        if (
            _SAFE[0] < min(squares[:2])
            and max(squares[:2]) < _SAFE[1]
            and (_SAFE[0] < squares[2] or not rows[2].any())
        ):
            return cls(len(a), *map(frexp, (squares[0], squares[1], product, squares[2])))
        is_finite = np.isfinite(a) & np.isfinite(b)
        x, y = (_reals(array[is_finite]).astype(np.float64) for array in (a, b))
        return cls._scaled(x, y, int(np.count_nonzero(is_finite)))

    @classmethod
    def _scaled(cls, x: Array, y: Array, count: int) -> Self:
        """For any magnitude: each array is divided by a power of two near its largest number."""
        (x, power_x), (y, power_y) = _scale(x), _scale(y)
        power = max(power_x, power_y) + 1
        d, power_d = _scale(np.ldexp(x, power_x - power) - np.ldexp(y, power_y - power))
        pairs = (
            (x, x, 2 * power_x),
            (y, y, 2 * power_y),
            (x, y, power_x + power_y),
            (d, d, 2 * (power_d + power)),
        )
        sums = (_normal(float(_dots(p, q)), exponent) for p, q, exponent in pairs)
        return cls(count, *sums)

    def __add__(self, other: "Products") -> Self:
        names = "squares_a", "squares_b", "products", "squares_of_difference"
        sums = (_add(getattr(self, name), getattr(other, name)) for name in names)
        return type(self)(self.count + other.count, *sums)

    @property
    def cosine(self) -> float | None:
        """The cosine of the angle between the two, in [-1, 1]; None if one of them is zero."""
        if not (self.squares_a[0] and self.squares_b[0]):
            return None
        (a, exponent_a), (b, exponent_b) = self.squares_a, self.squares_b
        p, exponent = self.products
        odd = (exponent_a + exponent_b) % 2
        cosine = ldexp(p / sqrt(ldexp(a * b, odd)), exponent - (exponent_a + exponent_b - odd) // 2)
        return max(-1.0, min(1.0, cosine))

    @property
    def relative_norm(self) -> float | None:
        """The norm of the difference over the larger norm; None if no pair is finite."""
        if not self.count:
            return None
        d, exponent_d = self.squares_of_difference
        both = self.squares_a, self.squares_b
        larger = max(both, key=lambda wide: (bool(wide[0]), wide[1], wide[0]))
        if not d:
            return 0.0
        exponent = exponent_d - larger[1]
        return ldexp(sqrt(ldexp(d / larger[0], exponent % 2)), exponent // 2)


def _reals(array: Array) -> Array:
    if array.dtype.kind == "c":
        return np.ascontiguousarray(array).view(array.real.dtype)
    return array


def _dots(x: Array, y: Array) -> Array:
    """[...] the sums of the products along the last axis."""
    whole = x.shape[-1] // _ROW * _ROW
    rows = (*x.shape[:-1], whole // _ROW, _ROW)
    sums = np.vecdot(x[..., :whole].reshape(rows), y[..., :whole].reshape(rows)).sum(axis=-1)
    total: Array = sums + np.vecdot(x[..., whole:], y[..., whole:])
    return total


def _scale(x: Array) -> tuple[Array, int]:
    """The array scaled to a largest element of about 1, and the exponent of two that undoes it."""
    power = frexp(float(np.abs(x).max(initial=0.0)))[1]
    scaled: Any = np.ldexp(x, -power)
    return scaled, power


def _normal(value: float, exponent: int) -> _Wide:
    part, more = frexp(value)
    return (part, more + exponent) if part else _ZERO


def _add(a: _Wide, b: _Wide) -> _Wide:
    if not (a[0] and b[0]):
        return a if a[0] else b
    exponent = max(a[1], b[1])
    return _normal(ldexp(a[0], a[1] - exponent) + ldexp(b[0], b[1] - exponent), exponent)


_CLOSE = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}  # fmt: skip
"""The relative and the absolute tolerance of a dtype; of all others, which are integers or have few
bits, (0, 0)."""


@frozen
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
        """Return the relative and the absolute tolerance of elements of two dtypes."""
        defaults = [_CLOSE.get(name, (0.0, 0.0)) for name in (a, b)]
        rtol, atol = (max(values) for values in zip(*defaults, strict=True))
        return rtol if self.rtol is None else self.rtol, atol if self.atol is None else self.atol

    def beyond(self, a: Array, b: Array) -> Bools:
        """[k] True where two numbers are further apart than allowed."""
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
    if value is None:
        return None
    if not isinstance(value, bool) and isinstance(value, Real):
        with suppress(OverflowError):  # of an integer that no float holds
            number = float(value)
            if 0 <= number < float("inf"):
                return number
    raise ArgumentError(f"Invalid {name}={value!r}.", "Give a finite number >= 0.")


_SUB_BYTE = {"int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}

_PORTION = 1 << 15
"""Elements that are judged at a time: as float64 they take 256 KiB, so that three such arrays fit
in a core's cache."""

_ROUNDING = 1 + 2.0**-20
"""More than the factor by which a distance in float32, whose fractions have 24 bits, is off the
exact one."""

_LEAST_RELATIVE = 1e-30
"""Relative distances below it are judged exactly: tiny float32 numbers have fewer bits."""


@frozen
class Difference:
    count: int = 0
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


@mutable
class Highest:
    """Largest distances so far, shared by threads: a lost update only judges a portion too many."""

    absolute: float = -1.0
    relative: float = -1.0

    def note(self, found: Difference) -> None:
        if found.absolute is not None:
            self.absolute = max(self.absolute, float(found.absolute[0]))
        if found.relative is not None:
            self.relative = max(self.relative, found.relative[0])


def are_comparable(dtype_a: str, dtype_b: str) -> bool:
    """True for equal dtypes, and for any two dtypes of numbers."""
    return dtype_a == dtype_b or (is_number(dtype_a) and is_number(dtype_b))


def compare_arrays(
    a: Array,
    b: Array,
    start: int = 0,
    tolerance: Tolerance | None = None,
    highest: Highest | None = None,
) -> Difference:
    """``start`` is the first flat index. Distances below ``highest`` may be left out."""
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
    if a.dtype == b.dtype or not (is_floating(a.dtype.name) and is_floating(b.dtype.name)):
        return found
    wide, narrow = (a, b) if a.itemsize >= b.itemsize else (b, a)
    with np.errstate(all="ignore"):
        rounded = to_round_once(wide, narrow.dtype).astype(narrow.dtype)
    num_rounded = int(np.count_nonzero(mask & ~_differ(rounded, narrow)))
    return replace(found, num_rounded=num_rounded)


def only_bytes(found: Difference, dtype: str) -> Difference:
    return (
        Difference(found.count, found.first) if ITEMSIZES[code(dtype)] else Difference(found.count)
    )


def products_of_same(array: Array) -> Products:
    total = Products()
    flat = array.reshape(-1)
    for begin in range(0, len(flat), _PORTION):
        portion = _compact(flat[begin : begin + _PORTION])
        total += Products.of(portion, portion)
    return total


def _differ(a: Array, b: Array) -> Bools:
    mask: Bools
    if a.dtype.kind == "O":
        mask = a != b
        return mask
    if a.dtype == b.dtype and dtype_name(a.dtype) in _SUB_BYTE:
        # The bits of an element, without the padding of its byte.
        a, b = widen_numbers(a), widen_numbers(b)
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
        num_without = int(np.count_nonzero(has_none))
        num_nans = int(np.count_nonzero((a != a) & (b != b)))
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
    """True if float32 shows that no element reaches the highest distances; False in doubt."""
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
    """The largest value and the flat index of its element; None if a NaN is among them."""
    at = int(values.argmax())
    value = values[at]
    if value != value:
        return None
    return python_number(value), start + (at if where is None else int(where[at]))


def _distances(a: Array, b: Array) -> tuple[Array, Array]:
    """Distances, also over the larger magnitudes; NaN of a NaN, of 0 / 0, and of inf / inf."""
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
    """The larger of two pairs of a value and a place; the first if they are equal."""
    return b if a is None else a if b is None or a[0] >= b[0] else b
