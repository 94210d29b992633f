"""Sparse writes: a plain loop over the slices, bit for bit, in every layout."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError
from shardvar.reference.variables import Variable
from shardvar.reference.variables.rows import RowLayout
from shardvar.reference.variables.values import (
    ADD,
    DIV,
    MAX,
    MIN,
    MUL,
    REPLACE,
    SUB,
    scatter_sorted,
    sort_rows,
    sum_sorted,
)
from shardvar.spec.variables import scatter
from spec_tests.helpers.sharded_variables import sharded_of

UPDATES = {
    "add": ADD,
    "sub": SUB,
    "mul": MUL,
    "div": DIV,
    "min": MIN,
    "max": MAX,
    "update": REPLACE,
}


def by_loop(array: Any, rows: Any, values: Any, verb: str) -> Any:
    """The plain rule, on one shard."""
    with np.errstate(all="ignore"):
        return scatter([array], verb, list(map(int, rows)), np.asarray(values, array.dtype))[0]


DTYPES = [np.float32, np.float64, np.float16, np.int32, np.int8, np.complex64, ml_dtypes.bfloat16]


@given(
    st.sampled_from(sorted(UPDATES)),
    st.sampled_from(DTYPES),
    st.sampled_from([(), (1,), (2,), (5,), (2, 2)]),
    st.integers(0, 2**32),
    st.integers(1, 6),
    st.integers(0, 60),
)
def test_the_kernel_is_a_plain_loop_bit_for_bit(
    verb: str, dtype: Any, row_shape: tuple[int, ...], seed: int, num_rows: int, count: int
) -> None:
    """Duplicates one after another in their order: sums of floats are not associative, so order is
    seen in the bits."""
    if verb in ("min", "max") and dtype is np.complex64:
        return
    rng = np.random.default_rng(seed)
    update = UPDATES[verb]

    def draw(*shape: int) -> Any:
        numbers = (
            rng.integers(1, 60, shape) * rng.choice([-1, 1], shape)
            if np.dtype(dtype).kind == "i"
            else rng.normal(size=shape) * 10.0**3
        )
        return np.asarray(numbers).astype(dtype)

    array, values = draw(num_rows, *row_shape), draw(count, *row_shape)
    rows = rng.integers(0, num_rows, count)
    wanted = by_loop(array, rows, values, verb)
    ascending, order = sort_rows(rows)
    with np.errstate(all="ignore"):
        scatter_sorted(array, ascending, values[order], update)
    assert array.tobytes() == wanted.tobytes()


def test_a_row_that_comes_very_often_is_folded_in_order_and_many_rows_in_blocks() -> None:
    rng = np.random.default_rng(1)
    often = np.concatenate([np.ones(990, int), np.zeros(10, int)])
    few = product([often], ((), (1,), (3,), (64,)), UPDATES)
    for rows, row_shape, verb in (*few, (rng.integers(0, 5000, 9000), (40,), "add")):
        array = (rng.normal(size=(rows.max() + 2, *row_shape)) + 2).astype(np.float32)
        values = (rng.normal(size=(len(rows), *row_shape)) * 0.01 + 1).astype(np.float32)
        wanted = by_loop(array, rows, values, verb)
        ascending, order = sort_rows(rows)
        scatter_sorted(array, ascending, values[order], UPDATES[verb])
        assert array.tobytes() == wanted.tobytes(), (row_shape, verb)


@given(
    st.sampled_from([np.float32, np.float64, np.float16, np.int8, ml_dtypes.bfloat16]),
    st.sampled_from([(), (1,), (2,), (2, 2)]),
    st.integers(0, 2**32),
    st.integers(1, 6),
    st.integers(0, 60),
)
def test_sums_of_rows_are_a_plain_loop_over_zeros_bit_for_bit(
    dtype: Any, row_shape: tuple[int, ...], seed: int, num_rows: int, count: int
) -> None:
    """The fast path of ``scatter_sorted`` to zeros: the same rows, the same order of additions."""
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=(count, *row_shape)) * 100).astype(dtype)
    rows = rng.integers(0, num_rows, count)
    with np.errstate(all="ignore"):
        ascending, order = sort_rows(rows)
        distinct, sums = sum_sorted(ascending, values, order)
        wanted = by_loop(np.zeros((num_rows, *row_shape), dtype), rows, values, "add")
    assert np.array_equal(distinct, np.unique(rows)) and sums.dtype == values.dtype
    assert np.array_equal(sums, wanted[distinct])


def test_indexed_slices_say_which_rows_are_not_zero() -> None:
    slices = sv.IndexedSlices([[1.0, 2.0], [3.0, 4.0]], [3, 3], dense_shape=[5, 2])
    assert slices.to_dense()[3].tolist() == [4, 6] and slices.to_dense().sum() == 10
    assert (slices.dense_shape, slices.shape, slices.dtype) == ((5, 2), (5, 2), np.float32)
    assert sv.IndexedSlices(np.zeros((0, 2)), [], (5, 2)).to_dense().shape == (5, 2)
    with pytest.raises(ArgumentError, match="one row of values for each index"):
        sv.IndexedSlices([[1.0]], [0, 1])
    with pytest.raises(ArgumentError, match="without a dense_shape"):
        sv.IndexedSlices([1.0], [0]).to_dense()
    with pytest.raises(ArgumentError, match=r"outside \[0, 2\)"):
        sv.IndexedSlices([1.0], [2], (2,)).to_dense()


def test_concurrent_writers_of_many_shards_lose_nothing_and_never_wait_for_each_other() -> None:
    """Mutexes are taken in one order by all; whoever reads sees each write in all shards or in
    none."""
    sharded = sharded_of(np.zeros((40, 3)), [10, 0, 20, 10])
    backwards = sv.ShardedVariable([Variable(np.zeros((1, 3))) for _ in range(3)])
    whole = sv.IndexedSlices(np.ones((40, 3)), np.arange(40)[::-1])
    torn = []

    def work(_: int) -> None:
        for _ in range(30):
            sharded.scatter_add(whole)
            sharded.assign_add(np.ones((40, 3)))
            backwards.assign_add(np.ones((3, 3)))
            value = sharded.read_value()
            if not (value == value[0, 0]).all():
                torn.append(value)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert (
        (sharded.numpy() == 6 * 30 * 2).all() and (backwards.numpy() == 6 * 30).all() and torn == []
    )


@given(st.integers(1, 40), st.data())
def test_rows_are_sorted_stably_up_to_the_largest_number(count: int, data: st.DataObject) -> None:
    """Row and place share 64 bits where both fit; at the limit, where they do not, rows are sorted
    without that."""
    limit = 1 << (63 - count.bit_length())
    near = st.integers(-2, 2).map(lambda step: limit + step)
    drawn = data.draw(
        st.lists(near | st.integers(0, 3) | st.just(2**63 - 1), min_size=count, max_size=count)
    )
    rows = np.array(drawn, np.int64)
    ascending, order = sort_rows(rows)
    assert order.tolist() == np.argsort(
        rows, kind="stable"
    ).tolist() and ascending.tolist() == sorted(drawn)


def test_runs_cover_a_range_once() -> None:
    """Exhaustively: every slice of a small axis, in shards with and without rows."""
    ends = [None, *range(-5, 6)]
    for sizes in ([4], [1, 3], [0, 4], [2, 0, 2], [1, 1, 1, 1], [0]):
        layout = RowLayout.of_sizes(sizes)
        bounds = layout.bounds
        for start, stop, step in product(ends, ends, [1, 2, 3, -1, -2, -3]):
            rows = range(layout.num_rows)[start:stop:step]
            found = [0] * len(rows)
            for shard, run, places in layout.split_range(rows):
                own = range(bounds[shard], bounds[shard + 1])[run]
                assert list(own) == list(rows[places]) and len(own) > 0
                for place in range(len(rows))[places]:
                    found[place] += 1
            assert found == [1] * len(rows), (sizes, rows)
