"""Tables of slices: columns say what their rows say, whatever the ranks."""

import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import InconsistentTensor, LayoutError, MalformedCheckpoint
from shardvar.layout import Region
from shardvar.layout.dtypes import numpy_dtype
from shardvar.planning.slices import (
    SliceTable,
    TensorSlice,
    TensorTable,
    are_grids,
    concatenate,
    pad,
    widen,
)
from spec_tests.helpers.hypothesis_strategies import (
    shapes,
    slice_tables,
    table_of,
    tensor_tables,
)


def rows_of(slices: SliceTable) -> list[TensorSlice]:
    return [slices[row] for row in range(len(slices))]


@given(st.lists(shapes(4), max_size=6), st.integers(0, 1))
def test_padding_is_taken_off_again(rows: list[tuple[int, ...]], fill: int) -> None:
    ranks, matrix = pad(rows, fill)
    assert [tuple(row[:rank].tolist()) for rank, row in zip(ranks, matrix, strict=True)] == rows
    assert all((row[rank:] == fill).all() for rank, row in zip(ranks, matrix, strict=True))
    assert matrix.shape == (len(rows), max(map(len, rows), default=0))


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [((1,) * 65, "65 axes"), ((2**63,), "64 bits"), ((3, 2**200), "64 bits")],
)
def test_shapes_that_no_array_can_have_are_refused(shape: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(MalformedCheckpoint, match=complaint):
        pad([(2,), shape], fill=1)


def test_a_claim_of_too_many_bytes_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(LayoutError, match="too large"):
        TensorTable.of([("t", "float64", (2**60,))]).whole()


@given(tensor_tables())
def test_a_tensor_table_says_what_it_was_made_of(tensors: TensorTable) -> None:
    """And the whole of it is one whole slice a tensor."""
    again = TensorTable.of(
        [(key, tensors.dtype(n), tensors.shape(n)) for n, key in enumerate(tensors.keys)]
    )
    assert list(again.keys) == list(tensors.keys)
    for name in ("codes", "ranks", "shapes"):
        np.testing.assert_array_equal(getattr(again, name), getattr(tensors, name))
    assert tensors.rows() == {key: n for n, key in enumerate(tensors.keys)}
    whole = tensors.whole()
    assert whole.is_whole().all()
    for row, slice_ in enumerate(rows_of(whole)):
        assert slice_.is_whole
        assert (slice_.key, slice_.dtype) == (tensors.keys[row], tensors.dtype(row))
        if slice_.dtype != "string":
            assert slice_.nbytes == slice_.region.size * numpy_dtype(slice_.dtype).itemsize


@given(slice_tables(), st.data())
def test_taking_rows_takes_those_rows(slices: SliceTable, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(slices) - 1), max_size=8)) if len(slices) else []
    taken = slices.take(np.array(rows, np.int64))
    assert rows_of(taken) == [slices[row] for row in rows]
    assert [taken.key(n) for n in range(len(taken))] == [slices.key(row) for row in rows]
    for row in rows:
        tensors = slices.tensors.take(slices.tensor[[row]])
        one = SliceTable.of_region(tensors, slices.region(row), slices.nbytes[[row]])
        assert (
            rows_of(one) == [slices[row]]
            and one.shape.shape == one.offset.shape == tensors.shapes.shape
        )
    assert taken.is_whole().tolist() == [slices[row].is_whole for row in rows]


@given(st.data())
def test_tables_of_different_tensors_follow_each_other(data: st.DataObject) -> None:
    tables = data.draw(st.lists(slice_tables(2), max_size=3))
    names = [key for table in tables for key in table.tensors.keys]
    if len(set(names)) == len(names):
        joined = concatenate(tables)
        assert rows_of(joined) == [row for table in tables for row in rows_of(table)]
        assert list(joined.tensors.keys) == names


@given(slice_tables(), st.data())
def test_a_table_cut_in_pieces_is_put_together_again(
    slices: SliceTable, data: st.DataObject
) -> None:
    """Tensors that several tables name become one."""
    at = sorted(data.draw(st.lists(st.integers(0, len(slices)), max_size=3)))
    pieces = [
        slices.take(np.arange(a, b)) for a, b in zip([0, *at], [*at, len(slices)], strict=True)
    ]
    joined = concatenate(pieces)
    assert rows_of(joined) == rows_of(slices)
    assert list(joined.tensors.keys) == list(slices.tensors.keys)


@pytest.mark.parametrize(
    "other", [("k", "float64", (3,)), ("k", "float32", (4,)), ("k", "float32", (3, 1))]
)
def test_tables_that_disagree_about_a_tensor_do_not_become_one(
    other: tuple[str, str, tuple[int, ...]],
) -> None:
    a, b = TensorTable.of([("j", "int8", ()), ("k", "float32", (3,))]), TensorTable.of([other])
    with pytest.raises(InconsistentTensor, match="'k'"):
        concatenate([a.whole(), b.whole()])


def test_nothing_is_a_table() -> None:
    assert len(concatenate([])) == 0
    assert len(TensorTable.of([]).whole()) == 0
    assert rows_of(table_of(TensorTable.of([]), [])) == []


@given(st.integers(0, 3), st.integers(0, 5))
def test_widening_adds_columns_and_takes_none(have: int, want: int) -> None:
    matrix = np.arange(2 * have).reshape(2, have)
    wide = widen(matrix, want, 7)
    np.testing.assert_array_equal(wide[:, :have], matrix)
    assert (wide[:, have:] == 7).all()
    assert wide.shape[1] == max(have, want)


@given(slice_tables())
def test_rows_of_a_tensor_keep_their_order_unless_offsets_are_asked_for(slices: SliceTable) -> None:
    """Grouped by tensor: ascending rows, or the regions in C order; boxes of different tensors
    never meet. A table and its rows are values."""
    offset, shape = slices.regions_by_tensor(slices.shape.shape[1] + 1)
    np.testing.assert_array_equal(offset[:, 0], slices.tensor)
    assert (shape[:, [0, -1]] == 1).all() and (offset[:, -1] == 0).all()
    assert rows_of(pickle.loads(pickle.dumps(slices))) == rows_of(slices)
    assert pickle.loads(pickle.dumps(rows_of(slices))) == rows_of(slices)
    for by_offset in (False, True):
        order, bounds = slices.by_tensor(by_offset=by_offset)
        assert slices.by_tensor()[0].tolist() == slices.by_tensor(by_offset=False)[0].tolist()
        assert bounds[0] == 0 and bounds[-1] == len(slices) == len(set(order.tolist()))
        for tensor in range(len(slices.tensors)):
            rows = order[bounds[tensor] : bounds[tensor + 1]].tolist()
            assert all(slices.tensor[row] == tensor for row in rows)
            places = [slices.region(row).offset for row in rows]
            assert places == sorted(places) if by_offset else rows == sorted(rows)


def is_grid(full: tuple[int, ...], parts: list[Region]) -> bool:
    """Return True if some extents cut a tensor into these parts: any on axis 0, divisors on the others."""
    filled = [part for part in parts if part.size]
    choices = [range(1, max(extent, 1) + 1) for extent in full]
    for step in product(*choices):
        if any(extent % n for extent, n in zip(full[1:], step[1:], strict=True)):
            continue
        starts = product(*(range(0, extent, n) for extent, n in zip(full, step, strict=True)))
        grid = {
            (at, tuple(min(n, extent - a) for a, n, extent in zip(at, step, full, strict=True)))
            for at in starts
        }
        if {(part.offset, part.shape) for part in filled} <= grid and len(filled) == len(grid):
            return True
    return not filled


@given(slice_tables())
def test_a_grid_is_what_some_extents_cut(slices: SliceTable) -> None:
    rows = rows_of(slices)
    for tensor, found in enumerate(are_grids(slices)):
        parts = [row.region for row, of in zip(rows, slices.tensor, strict=True) if of == tensor]
        if parts:
            assert found == is_grid(slices.tensors.shape(tensor), parts)
