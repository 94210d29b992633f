"""The algebra of regions, held against sets of indices."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import LayoutError
from shardvar.layout import Region, intersect, regions_of_range, subtract_all
from spec_tests.helpers.hypothesis_strategies import filled_shapes, regions, regions_in, shapes

Index = tuple[int, ...]


def indices(region: Region | None) -> set[Index]:
    """The definition of a region: the set of its indices."""
    return set() if region is None else set(product(*map(range, region.offset, region.stop)))


@st.composite
def groups(draw: st.DrawFn, count: int, limit: int = 4) -> list[Region]:
    rank = draw(st.integers(0, 3))
    return [draw(regions(rank, limit)) for _ in range(count)]


@given(
    st.lists(groups(2), min_size=1, max_size=8).filter(
        lambda pairs: len({p[0].rank for p in pairs}) == 1
    )
)
def test_columns_intersect_as_their_rows_do(pairs: list[list[Region]]) -> None:
    """One intersection in the whole program: a column of regions and a single pair give the
    same."""
    rank = pairs[0][0].rank
    columns = [
        np.array([getattr(pair[side], name) for pair in pairs], np.int64).reshape(len(pairs), rank)
        for side in (0, 1)
        for name in ("offset", "shape")
    ]
    offset, shape = intersect(*columns)
    for row, (a, b) in enumerate(pairs):
        common = a.intersect(b)
        assert bool((shape[row] > 0).all()) == (common is not None)
        assert common is None or Region(offset[row].tolist(), shape[row].tolist()) == common


@given(groups(2))
def test_covers_is_to_hold_every_index(pair: list[Region]) -> None:
    a, b = pair
    if b.size:
        assert a.covers(b) == (indices(b) <= indices(a))
    elif a.covers(b):
        assert all(
            o <= i and i + n <= s
            for o, i, n, s in zip(a.offset, b.offset, b.shape, a.stop, strict=True)
        )
    if not b.covers(a):
        with pytest.raises(LayoutError, match="reaches out of"):
            a.relative_to(b)


@given(groups(5, limit=3))
def test_a_region_less_many_is_what_none_of_them_holds(group: list[Region]) -> None:
    region, *others = group
    pieces = subtract_all(region, others)
    held = set().union(*map(indices, others))
    assert sum(map(len, map(indices, pieces))) == len(indices(region) - held)
    assert set().union(*map(indices, pieces)) == indices(region) - held
    assert all(piece.size for other in others for piece in region.subtract(other))


@given(st.data())
def test_a_slice_of_a_slice_is_the_slice(data: st.DataObject) -> None:
    """``x[outer][inner relative to outer]`` is ``x[inner]``: the only change of coordinates there
    is."""
    shape = data.draw(shapes())
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    outer = data.draw(regions_in(shape))
    inner = data.draw(regions_in(outer.shape))
    inner = Region((a + b for a, b in zip(inner.offset, outer.offset, strict=True)), inner.shape)
    found = x[outer.slices][inner.relative_to(outer).slices]
    np.testing.assert_array_equal(found, x[inner.slices])
    assert inner.relative_to(Region.whole(shape)) == inner


@given(filled_shapes(max_rank=4, max_extent=4), st.data())
def test_the_boxes_of_a_range_are_the_range(shape: tuple[int, ...], data: st.DataObject) -> None:
    size = int(np.prod(shape, dtype=int))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    x = np.arange(size).reshape(shape)
    regions = regions_of_range(shape, start, stop)
    found = [x[region.slices].ravel() for region in regions]
    np.testing.assert_array_equal(np.concatenate([[], *found]), np.arange(start, stop))
    assert len(regions) <= max(2 * len(shape) - 1, 1)
    for region, run in zip(regions, found, strict=True):
        assert x[region.slices].flags.c_contiguous or run.size == 1
        assert run[-1] - run[0] + 1 == run.size


@pytest.mark.parametrize(
    ("offset", "shape", "complaint"),
    [
        ((0,), (1, 2), "differ in rank"),
        ((-1,), (2,), "negative"),
        ((0,), (-2,), "negative"),
        ((0.0,), (1,), "sequence of integers"),
        (("0",), (1,), "sequence of integers"),
        ((0,), (2**63,), "2\\*\\*63"),
        ((2**62, 0), (2**62, 1), "2\\*\\*63"),
        ((2**200,), (0,), "2\\*\\*63"),
    ],
)
def test_what_is_no_box_of_indices_is_refused(offset: Any, shape: Any, complaint: str) -> None:
    with pytest.raises(LayoutError, match=complaint):
        Region(offset, shape)


def test_the_largest_box_is_one() -> None:
    largest = Region((0,), (2**63 - 1,))
    assert largest.intersect(Region((2**63 - 2,), (1,))) == Region((2**63 - 2,), (1,))
    assert largest.covers(Region((2**63 - 1,), (0,)))


@pytest.mark.parametrize("verb", ["intersect", "covers", "subtract", "relative_to"])
def test_boxes_of_different_rank_do_not_compare(verb: str) -> None:
    with pytest.raises(LayoutError, match="differ in rank"):
        getattr(Region.whole((2,)), verb)(Region.whole((2, 2)))


def test_numpy_integers_are_integers() -> None:
    assert Region(np.array([1, 2]), np.array([3, 4])) == Region((1, 2), (3, 4))
    assert {type(i) for i in Region(np.array([1]), [np.uint8(2)]).offset} == {int}


def test_regions_sort_by_offset_and_print_as_numpy_indexes() -> None:
    assert sorted([Region((1, 0), (1, 1)), Region((0, 5), (1, 1))])[0].offset == (0, 5)
    assert str(Region((1, 2), (3, 4))) == "[1:4, 2:6]"
    assert str(Region((), ())) == "[]"
