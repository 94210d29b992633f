"""Sums of products of two tensors: the angle between them, and how far they are apart as vectors.

    a . b      ->  cosine similarity = a . b / (|a| |b|)
    |a - b|    ->  relative norm     = |a - b| / max(|a|, |b|)

The sums are of float64, and grow portion by portion. A square of 1e200 is no float64, so a sum is a
pair: a float in [0.5, 1) with a sign, and an exponent of 2. Elements that are NaN or infinite on
either side are left out of all sums: one of them would make every figure NaN. A complex number
counts as two real ones.
"""

from dataclasses import dataclass
from math import frexp, ldexp, sqrt
from typing import Any, Self

import numpy as np

from shardvar.layout.dtypes import Array

_Wide = tuple[float, int]
"""The number ``x * 2**e`` as (x, e) with 0.5 <= |x| < 1; (0.0, 0) for zero."""

_ZERO: _Wide = (0.0, 0)
_SAFE = 1e-200, 1e200
"""Sums of squares in this range lost nothing visible to underflow or overflow."""

_ROW = 1 << 13
"""Elements of one call of BLAS: from 10,000 on, OpenBLAS starts threads, which cost more than they
save here."""


@dataclass(frozen=True, slots=True)
class Products:
    """Sums over pairs of elements, both finite."""

    count: int = 0
    """Pairs that were summed."""
    squares_a: _Wide = _ZERO
    """The sum of the squares of the first."""
    squares_b: _Wide = _ZERO
    """The sum of the squares of the second."""
    products: _Wide = _ZERO
    """The sum of the products of both."""
    squares_of_difference: _Wide = _ZERO
    """The sum of the squares of their difference."""

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
        """The sums over finite numbers of any magnitude, each array divided by a power of two near
        its largest one."""
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
        """The sums over the pairs of both."""
        return type(self)(
            self.count + other.count,
            _add(self.squares_a, other.squares_a),
            _add(self.squares_b, other.squares_b),
            _add(self.products, other.products),
            _add(self.squares_of_difference, other.squares_of_difference),
        )

    @property
    def cosine(self) -> float | None:
        """The cosine of the angle between the two, in [-1, 1]; None if one of them is zero.

        >>> Products.of(np.array([1e300, 0.0]), np.array([1e-300, 1e-300])).cosine
        0.7071067811865475
        """
        if not (self.squares_a[0] and self.squares_b[0]):
            return None
        (a, exponent_a), (b, exponent_b), (p, exponent) = (
            self.squares_a,
            self.squares_b,
            self.products,
        )
        odd = (exponent_a + exponent_b) % 2
        cosine = ldexp(p / sqrt(ldexp(a * b, odd)), exponent - (exponent_a + exponent_b - odd) // 2)
        return max(-1.0, min(1.0, cosine))

    @property
    def relative_norm(self) -> float | None:
        """The norm of the difference over the larger of the two norms; None if no pair is finite.

        >>> Products.of(np.array([3e200, 0.0]), np.array([3e200, 4e200])).relative_norm
        0.8
        """
        if not self.count:
            return None
        (d, exponent_d), larger = (
            self.squares_of_difference,
            max(self.squares_a, self.squares_b, key=_order),
        )
        if not d:
            return 0.0
        exponent = exponent_d - larger[1]
        return ldexp(sqrt(ldexp(d / larger[0], exponent % 2)), exponent // 2)


def _reals(array: Array) -> Array:
    """Numbers as real ones; a complex one becomes two."""
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


def _order(wide: _Wide) -> tuple[bool, int, float]:
    """A key by which numbers that are not negative are ordered."""
    return bool(wide[0]), wide[1], wide[0]
