"""Tilings: the proof that regions hold each element of a shape exactly once, or an element that
they do not.

The search for overlaps (``layout.overlap``) takes longer than linear time where regions interlock
along three axes, which a file may be made to do. This proof takes about n log n steps for any
arrangement:

1. Cut each axis at every first index and stop. Give each interval between neighbouring cuts a
   random weight modulo a prime, and each region the product, over its axes, of the sums of its
   weights.
2. If the regions tile the shape, their weights add up to the weight of the shape for any random
   numbers. If they do not, the sums agree only by chance: their difference is a polynomial in the
   random numbers, not 0, of degree 1 in each axis, and the lemma of Schwartz and Zippel bounds the
   share of its roots by ``rank / prime``. Two rounds make that less than 10^-14 for 64 axes. The
   numbers come from the operating system, so no file can be made to fit them.
3. If they disagree, they do so in one half of the shape or in the other. Halving goes on in such a
   half until a cell is left that no cut divides: it is a hole, or two regions hold it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardvar.layout.dtypes import Ints
from shardvar.layout.region import Region

_PRIME = np.uint64((1 << 31) - 1)
"""The product of two numbers below it fits 64 bits, and so does the sum of four billion of them."""

_ROUNDS = 2
"""Independent random numbers for each interval."""

_Weights = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Flaw:
    """A cell of a shape that the regions do not hold exactly once."""

    cell: Region
    """The cell, which no region holds in part."""
    rows: tuple[int, ...]
    """The rows of the regions that hold it: none, or two or more."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A part of the shape, in numbers of cuts, with the regions in it, clipped to it."""

    low: Ints  # [rank]
    high: Ints  # [rank]
    rows: Ints  # [count]
    first: Ints  # [count, rank]
    last: Ints  # [count, rank]

    def half(self, axis: int, upper: bool) -> "_Cell":
        """Return the lower or the upper half of the cell along an axis."""
        low, high = self.low.copy(), self.high.copy()
        (low if upper else high)[axis] = (self.low[axis] + self.high[axis]) // 2
        first, last = np.maximum(self.first, low), np.minimum(self.last, high)
        keep = (first < last).all(axis=1)
        return _Cell(low, high, self.rows[keep], first[keep], last[keep])


def find_flaw(offset: Ints, shape: Ints, full: Sequence[int]) -> Flaw | None:
    """Return a cell of ``full`` that is in no region or in several; None if the regions tile it.

    The regions must lie within ``full`` and have elements.

    >>> regions = np.array([[0, 0], [0, 2], [3, 0]]), np.array([[3, 2], [5, 2], [2, 3]])
    >>> flaw = find_flaw(*regions, (5, 4))
    >>> str(flaw.cell), flaw.rows
    ('[3:5, 2:3]', (1, 2))
    """
    if 0 in full:
        return None
    cuts, first, last = _cuts(offset, offset + shape, full)
    random = np.random.default_rng()
    # sums[axis][round, i] is the weight of the intervals before cut i.
    sums = [_sums(random, len(along)) for along in cuts]
    high = np.array([len(along) - 1 for along in cuts], dtype=np.int64)
    cell = _Cell(np.zeros_like(high), high, np.arange(len(offset)), first, last)
    if _is_even(sums, cell):
        return None
    # A cell without regions is a hole as it is.
    while len(cell.rows) and (cell.high - cell.low > 1).any():
        axis = int(np.argmax(cell.high - cell.low))
        lower, upper = cell.half(axis, upper=False), cell.half(axis, upper=True)
        cell = (
            upper
            if _is_even(sums, lower) or (_is_surplus(cuts, upper) and not _is_surplus(cuts, lower))
            else lower
        )
    corners = [
        (int(along[low]), int(along[high]))
        for along, low, high in zip(cuts, cell.low, cell.high, strict=True)
    ]
    region = Region(
        tuple(start for start, _ in corners), tuple(stop - start for start, stop in corners)
    )
    return Flaw(region, tuple(cell.rows.tolist()))


def _cuts(start: Ints, stop: Ints, full: Sequence[int]) -> tuple[list[Ints], Ints, Ints]:
    """The places where each axis is cut, and the regions as numbers of cuts."""
    cuts, first, last = [], np.empty_like(start), np.empty_like(stop)
    for axis, extent in enumerate(full):
        along, number = np.unique(
            np.concatenate([[0, extent], start[:, axis], stop[:, axis]]), return_inverse=True
        )
        first[:, axis], last[:, axis] = np.split(number[2:], 2)
        cuts.append(along)
    return cuts, first, last


def _sums(random: np.random.Generator, count: int) -> _Weights:
    """Sums of random weights [rounds, count], before each of ``count`` cuts."""
    weights = random.integers(1, int(_PRIME), (_ROUNDS, count), dtype=np.uint64)
    weights[:, 0] = 0
    return np.cumsum(weights, axis=1) % _PRIME


def _weight(sums: list[_Weights], first: Ints, last: Ints) -> _Weights:
    """The sum of the weights of regions, [rounds]."""
    product = np.ones((_ROUNDS, len(first)), dtype=np.uint64)
    for axis, before in enumerate(sums):
        # The prime is added first, since unsigned numbers have no negative differences.
        product = (
            product
            * ((before[:, last[:, axis]] + _PRIME - before[:, first[:, axis]]) % _PRIME)
            % _PRIME
        )
    return np.asarray(product.sum(axis=1) % _PRIME)


def _is_even(sums: list[_Weights], cell: _Cell) -> bool:
    """Return True if each element of the cell lies in exactly one region."""
    whole = _weight(sums, cell.low[None], cell.high[None])
    return bool((_weight(sums, cell.first, cell.last) == whole).all())


def _is_surplus(cuts: list[Ints], cell: _Cell) -> bool:
    """Return True if the regions have more elements than the cell, so that some overlap: an overlap
    is found first."""
    held, whole = np.ones(len(cell.rows)), 1.0
    for axis, along in enumerate(cuts):
        held *= along[cell.last[:, axis]] - along[cell.first[:, axis]]
        whole *= float(along[cell.high[axis]] - along[cell.low[axis]])
    return bool(held.sum() > whole * (1 + 1e-9))
