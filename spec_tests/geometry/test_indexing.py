"""One grammar of NumPy's index: the oracle is NumPy on the whole array, and every caller has the
same errors."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import shardvar as sv
from shardvar.cli.usage import parse_index_text
from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.indexing import (
    Gather,
    cut_steps,
    expand_index,
    plan_gather,
    plan_region,
    select_basic,
    slice_of,
)
from shardvar.layout.region import Region
from spec_tests.helpers.hypothesis_strategies import any_indexes, filled_shapes

BASIC: list[Any] = [
    0, -1, 2, -4, slice(None), slice(1, 3), slice(None, None, -2), slice(2, 2), slice(9, -9, -1), None, Ellipsis,
]  # fmt: skip
ADVANCED: list[Any] = [
    True,
    False,
    [0, 2],
    [],
    [5],
    np.array([[1], [0]]),
    np.array([True, False, True]),
    np.array(1),
]


def counted(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape)


def answer(call: Callable[[], Any]) -> np.ndarray[Any, Any] | None:
    """The array that NumPy gives, or None where it refuses."""
    try:
        return np.asarray(call())
    except (IndexError, ValueError):
        return None


@pytest.mark.parametrize("shape", [(), (3,), (3, 1), (0, 2), (3, 2, 2)])
def test_every_key_of_up_to_three_items_is_as_in_numpy(shape: tuple[int, ...]) -> None:
    """Exhaustively: ``x[key]`` is ``x[expanded]``, and what NumPy refuses is refused, but for
    arrays of no axis."""
    array = counted(shape)
    for count in (1, 2, 3) if len(shape) < 3 else (1, 2):
        for key in product([*BASIC, *ADVANCED], repeat=count):
            wanted = answer(lambda key=key: array[key])
            try:
                found = answer(lambda key=key: array[tuple(expand_index(key, shape))])
            except ArgumentError:
                found = None
            if wanted is None:
                assert found is None, key
            elif (
                found is None
            ):  # arrays of the first axis are checked even where they broadcast to nothing
                assert wanted.size == 0, key
            else:
                assert found.shape == wanted.shape and np.array_equal(found, wanted), key


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (3, 2)])
def test_every_basic_key_is_a_region_and_a_pick(shape: tuple[int, ...]) -> None:
    """Exhaustively: ``x[key]`` is ``x[region.slices][pick]``, for every small key."""
    array = counted(shape)
    for count in (1, 2, 3):
        for key in product(BASIC, repeat=count):
            wanted = answer(lambda key=key: array[key])
            if wanted is None:
                with pytest.raises(ArgumentError):
                    plan_region(key, shape)
                continue
            region, pick = plan_region(key, shape)
            found = array[region.slices][(*pick, ...)]
            assert found.shape == wanted.shape and np.array_equal(found, wanted), key


@given(filled_shapes(max_rank=3, max_extent=9), st.integers(1, 40), st.data())
def test_the_law_of_regions_and_picks(
    shape: tuple[int, ...], most: int, data: st.DataObject
) -> None:
    array = counted(shape)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    region, pick = plan_region((None,) if key is None else key, shape)
    assert np.array_equal(array[region.slices][(*pick, ...)], np.asarray(array[key]))
    parts, axis = cut_steps(region, pick, most)
    picked = [np.asarray(array[part.slices][(*some, ...)]) for part, some in parts]
    assert np.array_equal(
        picked[0] if len(parts) == 1 else np.concatenate(picked, axis), np.asarray(array[key])
    )
    assert len(parts) == 1 or all(part.size <= most or 1 in part.shape for part, _ in parts)


@given(st.integers(0, 9), st.data())
def test_a_range_of_positions_comes_back_from_its_slice(length: int, data: st.DataObject) -> None:
    indices = range(length)[data.draw(st.slices(length))]
    assert list(range(length)[slice_of(indices)]) == list(indices)


@pytest.mark.parametrize(
    ("key", "text", "error", "cause"),
    [
        (5, "5", OutOfRange, "Index 5 is out of range for axis 0 of length 5."),
        ((0, -3), "0, -3", OutOfRange, "Index -3 is out of range for axis 1 of length 2."),
        ((0, 0, 0), "0, 0, 0", OutOfRange, "3 indices are too many for the shape (5, 2)."),
        ((..., ...), "..., ...", OutOfRange, "An index has more than one ellipsis."),
        (slice(0, 5, 0), "0:5:0", ArgumentError, "A slice has step 0."),
        ("a", None, ArgumentTypeError, "Invalid index 'a'."),
        (1.5, None, ArgumentTypeError, "Invalid index 1.5."),
        (slice(0.5, 2), None, ArgumentTypeError, "Invalid index slice(0.5, 2, None)."),
    ],
)
def test_the_same_mistake_has_the_same_error_everywhere(
    key: Any, text: str | None, error: type[ArgumentError], cause: str, tmp_path: Path
) -> None:
    """Variables, readers, lazy slices and the command line."""
    value = np.zeros((5, 2), np.float32)
    lazy: list[Any] = []

    class Keep(sv.ShardingCallback):
        description = "Keeps the lazy slices."

        def __call__(self, tensors: Any, /) -> Any:
            lazy.extend(tensors)
            return [{each.checkpoint_key: {each.slice_spec: each.tensor}} for each in tensors]

    sv.save(tmp_path / "m", {"w": value}, policy=Keep())
    with sv.open_checkpoint(tmp_path / "m") as reader:
        calls: list[Callable[[], Any]] = [
            lambda: sv.Variable(value)[key],
            lambda: reader["w"][key],
            lambda: lazy[0].tensor[key],
            lambda: select_basic(key, (5, 2)),
        ]
        calls += [lambda: parse_index_text(str(text), (5, 2))] if text else []
        for call in calls:
            with pytest.raises(ArgumentError) as refused:
                call()
            assert (
                type(refused.value) is error
                and refused.value.cause == cause
                and refused.value.remedy
            )


@pytest.mark.parametrize("key", [[0, 1], np.array([0]), np.ones(5, bool), True, np.True_])
def test_a_basic_index_has_neither_arrays_nor_booleans(key: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="Invalid index"):
        select_basic(key, (5, 2))


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_refused_position_is_told_the_ones_that_there_are(length: int) -> None:
    for number in (length, -length - 1):
        with pytest.raises(OutOfRange) as caught:
            plan_region((slice(None), number), (2, length))
        assert f"Index {number} is out of range for axis 1 of length {length}" in caught.value.cause
        wanted = f"from {-length} to {length - 1}." if length else "The axis has no index."
        assert caught.value.remedy.endswith(wanted)


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
    items = key if isinstance(key, tuple) else (key,)
    if not any(isinstance(item, slice) and (item.step or 1) != 1 for item in items):
        assert np.isin(elements, expected).all()
    assert len(np.unique(elements)) == elements.size
    if gather.is_direct:
        assert elements.ravel().tolist() == expected.ravel().tolist()
    inside = gather.around
    assert np.isin(elements, array[inside.slices]).all()


MASK = np.array([[True, False], [False, True], [True, True]])


@pytest.mark.parametrize(
    "key",
    [
        MASK,
        (MASK, 1),
        (MASK, ...),
        (MASK, ..., 0),
        (..., MASK.T),
        (0, MASK.T),
        (slice(None), [0, 1], ..., [1, 0]),
        (slice(None), [0, 1], [1, 0]),
        ([0, 2], slice(None), [1, 0]),
        (..., [0, 1], [2, 0]),
        (None, [0, 2], ..., None, [1, 0]),
    ],
    ids=repr,
)
def test_masks_of_several_axes_and_what_parts_arrays_are_as_in_numpy(key: Any) -> None:
    """An ellipsis of no axes parts the arrays around it too."""
    array = counted((3, 2, 3))
    expected = np.asarray(array[key])
    gather = plan_gather(key, array.shape)
    np.testing.assert_array_equal(gather.take(read(gather, array)), expected, strict=True)


def test_a_region_is_an_index_if_it_lies_in_the_shape() -> None:
    inside = Region((1, 0), (2, 3))
    assert plan_region(inside, (3, 3)) == (inside, ())
    with pytest.raises(ArgumentError, match=r"reaches out of the shape \(3, 2\)"):
        plan_region(inside, (3, 2))


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
