"""Values of expressions of tensors: the same bits on every machine, in any portions.

The definition:

1  Everything is computed in float64, and rounded once, to the dtype of the target.
2  Sums and products go from left to right, one operation each. A product has its tensors first, then
   the one number that its numbers make, by one multiplication, or one division if it is 1 over an
   integer.
3  A sum over an index ascends, from its first term on; over several, the last one is the fastest.
   Indices of keys come before indices of axes.
4  ``exp`` and ``log`` are made of additions, multiplications and exponents, in a stated order: the
   routines of NumPy and of C differ between processors.
5  A finite number that becomes infinite or NaN is refused.

So an element depends only on its operands. A block of the target is computed by itself, from
the elements of each tensor that it needs:

    bound indices, then the indices of the piece          an array, with extent 1 for an index that
                                                          an operand does not have
    a sum over an index                                   in portions, each term added in order
    a sum that ``sum`` or ``mean`` asks for               once for all blocks, if it is small

To change the order of anything here changes results: nothing may be added by NumPy's ``sum``,
``einsum`` or ``matmul``.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from math import factorial, prod
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.forks import new_lock
from shardvar.layout.dtypes import Bools
from shardvar.maps.expressions import TermTree, float_of
from shardvar.maps.plan import Arithmetic, View
from shardvar.records import field, frozen

Float64s = npt.NDArray[np.float64]
_MOST_HELD = 1 << 18
"""Elements of an operand that are held at a time, of as many values of an index as that has."""
_MOST_KEPT = 1 << 16
"""Elements of a sum that is computed once for all blocks."""
_MOST_SUMS = 64
"""Sums that are kept: at most 32 MiB."""

_LN2 = 0.6931471805599453
_LN2_HIGH = 0.6931471803691238
"""ln 2, with 21 zero bits at its end, so that its multiples by exponents are exact."""
_LN2_LOW = 1.9082149292705877e-10
_EXP = tuple(1 / factorial(n) for n in range(13, 1, -1))
"""The series of exp from its highest power down: |x| <= 0.35, so that the next term is below 2**-57."""
_LOG = tuple(2 / n for n in range(25, 1, -2))
"""2 / (2 k + 1), of the series of log from its highest power down: s**2 <= 0.03."""


def exp(x: Float64s) -> Float64s:
    """e**x: x = k ln 2 + r, |r| <= ln 2 / 2, and e**r = 1 + (r + r**2 (1/2 + r (1/6 + ...)))."""
    near = np.where(x > 710, 710.0, np.where(x < -746, -746.0, x))
    k = np.rint(near / _LN2)
    high, low = near - k * _LN2_HIGH, k * _LN2_LOW
    r = high - low
    lost = (high - r) - low
    series = np.full_like(r, _EXP[0])
    for each in _EXP[1:]:
        series = series * r + each
    result = 1 + (r + (r * r * series + lost))
    with np.errstate(all="ignore"):
        scaled = np.ldexp(result, np.where(np.isnan(k), 0, k).astype(np.int32))
    return np.where(x > 710, np.inf, np.where(x < -746, 0.0, scaled))


def log(x: Float64s) -> Float64s:
    """ln x: x = 2**k (1 + f), and ln(1 + f) = f - (f**2/2 - s (f**2/2 + R)), with s = f / (2 + f) and
    R = 2 s**2 / 3 + 2 s**4 / 5 + ..."""
    usual = (x > 0) & (x < np.inf)
    m, k = np.frexp(np.where(usual, x, 1.0))
    small = m < 0.7071067811865476
    f = np.where(small, 2 * m, m) - 1
    k = (k - small).astype(np.float64)
    s = f / (2 + f)
    z, half = s * s, 0.5 * f * f
    series = np.full_like(z, _LOG[0])
    for each in _LOG[1:]:
        series = series * z + each
    result = k * _LN2_HIGH - ((half - (s * (half + series * z) + k * _LN2_LOW)) - f)
    return np.where(usual, result, np.where(x == 0, -np.inf, np.where(x < 0, np.nan, x)))


def clip(x: Float64s, low: Float64s, high: Float64s) -> Float64s:
    above = np.where(x < low, low, x)
    return np.where(above > high, high, above)


def power(x: Float64s, exponent: Any) -> Any:
    """x**n by repeated squares: an integer, or a half."""
    if isinstance(exponent, float):
        return np.sqrt(x)
    result, square, n = np.ones_like(x), x, abs(exponent)
    is_first = True
    while n:
        if n & 1:
            result = square if is_first else result * square
            is_first = False
        n >>= 1
        square = square * square if n else square
    return 1 / result if exponent < 0 else result


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": exp,
    "log": log,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "clip": clip,
    "**": power,
}

BlockRange = tuple[tuple[int, ...], tuple[int, ...]]
"""The first of each index, bound ones first, and the counts."""
ReadElements = Callable[[View, Sequence[int], Sequence[int]], npt.NDArray[Any]]
"""Gives the elements of a view, from some indices on, as many as there are."""


@frozen
class KeptSums:
    """The sums of expressions that were computed last, by the sum and its window."""

    made: "OrderedDict[tuple[int, BlockRange], Any]" = field(default_factory=OrderedDict)
    lock: RLock = field(default_factory=new_lock)  # Guards ``made``


@frozen
class Evaluation:
    """An expression of a piece with some extents, and how its tensors are read."""

    arithmetic: Arithmetic
    extents: tuple[int, ...]
    gather: ReadElements
    sums: KeptSums

    def block(self, first: Sequence[int], counts: Sequence[int]) -> Any:
        """Return the values of some elements of the piece."""
        window = self.window(first, counts)
        with np.errstate(all="ignore"):
            found = self.value(self.arithmetic.tree, window)
        return np.broadcast_to(found, window[1]).reshape(tuple(counts))

    def are_finite(self, first: Sequence[int], counts: Sequence[int]) -> Bools:
        """Return True for elements whose operands are finite, with all that are summed."""
        window, bound = self.window(first, counts), range(len(self.arithmetic.bound))
        finite = np.ones(counts, np.bool)
        for place_of_view, view in enumerate(self.arithmetic.views):
            summed = [place for place in bound if view.steps[place][0] >= 0]
            leaf = ("leaf", place_of_view)
            for some, _ in self.portions(leaf, summed, window) if view.key else ():
                finite &= np.isfinite(self.leaf(view, some)).all(axis=(*bound,))
        return finite

    def window(self, first: Sequence[int], counts: Sequence[int]) -> BlockRange:
        bound = self.arithmetic.bound
        return (*(0 for _ in bound), *first), (*(1 for _ in bound), *counts)

    def value(self, tree: TermTree, window: BlockRange) -> Any:
        word = tree[0]
        if word == "leaf":
            return self.leaf(self.arithmetic.views[tree[1]], window)
        if word == "number":
            return np.float64(tree[1])
        if word == "table":
            values, is_part = self.table(tree[1], window)
            return np.where(is_part, 1 / values, values)
        if word in ("sum", "mean"):
            return self.sum(tree, window)
        if word == "*":
            return self.scaled(self.product(tree, window), tree[3], window)
        if word == "+":
            return self.joined(tree[1], window, np.add, np.subtract, np.negative)
        values = [self.value(part, window) for part in tree[1:] if isinstance(part, tuple)]
        exponents = [part for part in tree[1:] if not isinstance(part, tuple)]
        return _FUNCTIONS[word](*values, *exponents)

    def leaf(self, view: View, window: BlockRange) -> Any:
        first, counts = (
            tuple(n if axis >= 0 else fixed for n, (axis, _) in zip(part, view.steps, strict=True))
            for part, fixed in zip(window, (0, 1), strict=True)
        )
        return self.gather(view, first, counts).astype(np.float64)

    def joined(self, terms: Any, window: BlockRange, plus: Any, minus: Any, first_one: Any) -> Any:
        """Combine terms from left to right, each with its sign."""
        (sign, part), *others = terms
        total = self.value(part, window)
        total = first_one(total) if sign < 0 else total
        for sign, part in others:
            total = (plus if sign > 0 else minus)(total, self.value(part, window))
        return total

    def product(self, tree: TermTree, window: BlockRange) -> Any:
        """The tensors of a product, summed over its bound indices."""
        _, terms, bound, _ = tree
        total, scratch = None, None
        for factors in terms:
            if not bound:
                value = self.joined(factors, window, np.multiply, np.divide, np.reciprocal)
                total = value if total is None else self.added(total, value)
            for some, rows in self.portions(factors, bound, window) if bound else ():
                values = [(sign, self.value(part, some)) for sign, part in factors]
                for row in range(rows):
                    parts = [(sign, _row(value, bound[-1], row)) for sign, value in values]
                    term = self.multiplied(parts, scratch)
                    total = term if total is None else self.added(total, term)
                    scratch = np.empty_like(term) if scratch is None else scratch
        return np.zeros((1,) * len(window[1])) if total is None else total

    def multiplied(self, parts: Sequence[tuple[int, Any]], scratch: Any) -> Any:
        """The product of factors, in an array that is there already, of the shape of another row's."""
        (sign, term), *others = parts
        term = 1 / term if sign < 0 else term
        for place, (sign, part) in enumerate(others, 1):
            operation = np.multiply if sign > 0 else np.divide
            out = scratch if place == len(others) else None
            term = operation(term, part, out=out)
        return term

    def added(self, total: Any, term: Any) -> Any:
        is_own = isinstance(total, np.ndarray) and total.base is None
        if is_own and total.shape == np.shape(term):
            total += term
            return total
        return total + term

    def portions(self, tree: TermTree, bound: Sequence[int], window: BlockRange) -> Any:
        """Yield windows with some values of bound indices, ascending, and how many of the last one,
        as many as the operands of a tree may be held."""
        if not bound:
            yield window, 1
            return
        extents = [self.arithmetic.bound[place] for place in bound]
        views = (self.arithmetic.views[place] for place in view_places(tree))
        sizes = [
            prod(n for n, (axis, _) in zip(window[1], view.steps, strict=True) if axis >= 0)
            for view in views
        ]
        most = max(1, min(256, _MOST_HELD // max(1, *sizes)))
        for outer in product(*map(range, extents[:-1])):
            for begin in range(0, extents[-1], most):
                first, counts = [*window[0]], [*window[1]]
                rows = min(most, extents[-1] - begin)
                for place, at in zip(bound, (*outer, begin), strict=True):
                    first[place], counts[place] = at, 1
                counts[bound[-1]] = rows
                yield (tuple(first), tuple(counts)), rows

    def sum(self, tree: TermTree, window: BlockRange) -> Any:
        """A sum that the text asks for: all of it at once if it is small, and kept."""
        used = [self.arithmetic.views[place].steps for place in view_places(tree)]
        place, bound = tree[1], len(self.arithmetic.bound)
        first, counts, whole = [0] * len(window[0]), [1] * len(window[0]), [1] * len(window[0])
        for axis in range(len(window[0])):
            if axis != place and any(steps[axis][0] >= 0 for steps in used):
                first[axis], counts[axis] = window[0][axis], window[1][axis]
                whole[axis] = self.extents[axis - bound] if axis >= bound else counts[axis]
        own: BlockRange = tuple(first), tuple(counts)
        wide: BlockRange = own
        if prod(whole) <= _MOST_KEPT:
            wide = tuple(n if axis < bound else 0 for axis, n in enumerate(first)), tuple(whole)
        if prod(wide[1]) > _MOST_KEPT:
            return self.ascending(tree, wide)
        name = id(tree), wide
        with self.sums.lock:
            if name not in self.sums.made:
                self.sums.made[name] = self.ascending(tree, wide)
                while len(self.sums.made) > _MOST_SUMS:
                    self.sums.made.popitem(last=False)
            found = self.sums.made[name]
        cut = [
            slice(a - b, a - b + n) if size > 1 else slice(None)
            for a, b, n, size in zip(first, wide[0], counts, np.shape(found), strict=True)
        ]
        return found[tuple(cut)]

    def ascending(self, tree: TermTree, window: BlockRange) -> Any:
        word, place, inner, count = tree
        total = None
        for some, rows in self.portions(inner, (place,), window):
            values = self.value(inner, some)
            for row in range(rows):
                term = _row(values, place, row)
                total = term if total is None else self.added(total, term)
        total = np.zeros((1,) * len(window[1])) if total is None else total
        return total / np.float64(count) if word == "mean" else total

    def scaled(self, total: Any, number: Any, window: BlockRange) -> Any:
        if number is None:
            return total
        if number[0] == "table":
            values, is_part = self.table(number[1], window)
            with np.errstate(all="ignore"):
                return np.where(is_part, total / values, total * values)
        return total / np.float64(number[1]) if number[0] == "/" else total * np.float64(number[1])

    def table(self, tree: TermTree, window: BlockRange) -> tuple[Any, Any]:
        """Numbers of a tree that depends on indices; where it is 1 over an integer, the integer."""
        places = sorted(set(view_places(tree)))
        columns = []
        for place in places:
            view = self.arithmetic.views[place]
            at = np.full((1,) * len(view.steps), view.start[0], np.int64)
            for axis, (own, step) in enumerate(view.steps):
                if own >= 0:
                    along = [1] * len(view.steps)
                    along[axis] = window[1][axis]
                    at = at + step * (window[0][axis] + np.arange(window[1][axis])).reshape(along)
            columns.append(at)
        grid = np.broadcast_arrays(*columns)
        values, is_part = np.empty(grid[0].shape), np.empty(grid[0].shape, np.bool)
        for index in np.ndindex(grid[0].shape):
            at_index = {p: int(each[index]) for p, each in zip(places, grid, strict=True)}
            number: Fraction = float_of(tree, list, at_index)  # type: ignore[arg-type]
            is_part[index] = number.numerator == 1 and number.denominator != 1
            values[index] = float(number.denominator if is_part[index] else number)
        return values, is_part


def _row(value: Any, place: int, row: int) -> Any:
    """One value of an index; the only one, if an operand does not have it."""
    if np.ndim(value) == 0 or value.shape[place] == 1:
        return value
    return value[(*(slice(None),) * place, slice(row, row + 1))]


def view_places(tree: TermTree) -> list[int]:
    if not isinstance(tree, tuple):
        return []
    if tree and tree[0] in ("leaf", "index"):
        return [tree[1]]
    if tree and tree[0] == "item":
        return [tree[2]]
    return [place for part in tree for place in view_places(part)]
