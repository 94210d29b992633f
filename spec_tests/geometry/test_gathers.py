"""Any index of NumPy as regions to read and what to pick of them: NumPy on the whole array is the
oracle."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import OutOfRange
from shardvar.layout.indexing import Gather, plan_gather
from shardvar.layout.region import Region
from spec_tests.helpers.hypothesis_strategies import any_indexes


def read(gather: Gather, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements of the regions, one region after the other, by NumPy alone."""
    regions = map(Region, gather.offset.tolist(), gather.shape.tolist())
    parts = [array[region.slices].ravel() for region in regions]
    return np.concatenate([array.ravel()[:0], *parts]).reshape(gather.full)


@given(st.data(), st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple))
def test_regions_and_a_pick_are_the_index(data: st.DataObject, shape: tuple[int, ...]) -> None:
    """No element is read twice, and the shape is known before anything is read."""
    array = np.arange(int(np.prod(shape))).reshape(shape)
    key = data.draw(any_indexes(shape))
    try:
        expected = np.asarray(array[key])
    except IndexError:
        with pytest.raises(OutOfRange):
            plan_gather(key, shape)
        return
    try:
        gather = plan_gather(key, shape)
    except OutOfRange:
        # Stricter than NumPy: rows are also checked where another array selects nothing.
        assert expected.size == 0
        return
    elements = read(gather, array)
    np.testing.assert_array_equal(gather.take(elements), expected, strict=True)
    assert gather.picked_shape == expected.shape
    if not any(isinstance(item, slice) and (item.step or 1) != 1 for item in _items(key)):
        assert np.isin(elements, expected).all()
    assert len(np.unique(elements)) == elements.size
    if gather.is_direct:
        assert elements.ravel().tolist() == expected.ravel().tolist()
    inside = gather.around
    assert np.isin(elements, array[inside.slices]).all()


def _items(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def test_rows_that_follow_each_other_are_one_region() -> None:
    gather = plan_gather([5, 3, 4, 9, 5], (13, 4))
    assert list(zip(gather.offset.tolist(), gather.shape.tolist(), strict=True)) == [
        ([3, 0], [3, 4]),
        ([9, 0], [1, 4]),
    ]
    # Columns do not: the elements of two columns lie in another order.
    assert plan_gather((slice(None), [1, 2]), (13, 4)).shape.tolist() == [[13, 1], [13, 1]]
    assert plan_gather((7, [1, 2]), (13, 4)).shape.tolist() == [[1, 2]]
    # Nor does the end of a row and the begin of the next.
    assert plan_gather(([0, 1], [3, 0]), (13, 4)).shape.tolist() == [[1, 1], [1, 1]]
