"""Sparse lookups: what their plain rule in `shardvar.spec` does not say."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.reference.devices import track_transfers
from shardvar.reference.nn import (
    SparseTensor,
    embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from shardvar.reference.variables import Variable
from spec_tests.helpers.embedding_tables import Table, shard, tables

COMBINERS = st.sampled_from(["sum", "mean", "sqrtn"])


@st.composite
def bags(
    draw: st.DrawFn, rows: int, low: int = 0
) -> tuple[list[list[int]], list[list[float]] | None]:
    """Rows of ids, some empty, and weights beside them or None."""
    ids = draw(st.lists(st.lists(st.integers(low, rows - 1), max_size=4), max_size=6))
    weight = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 3.0])
    weights = [[draw(weight) for _ in row] for row in ids] if draw(st.booleans()) else None
    return ids, weights


def sparse(
    ids: list[list[Any]], weights: list[list[Any]] | None
) -> tuple[SparseTensor, SparseTensor | None]:
    return SparseTensor.from_rows(ids), None if weights is None else SparseTensor.from_rows(
        weights, np.float32
    )


@settings(deadline=None)
@given(tables(row_shape=(2,)), COMBINERS, st.data())
def test_safe_lookups_prune_and_fill(table: Table, combiner: str, data: st.DataObject) -> None:
    ids, weights = data.draw(bags(table.rows, low=-2))
    default = data.draw(st.one_of(st.none(), st.integers(0, table.rows - 1)))
    found = safe_embedding_lookup_sparse(table.sharded, *sparse(ids, weights), combiner, default)
    given_weights = weights or [[1.0] * len(row) for row in ids]
    kept = [
        [(i, x) for i, x in zip(row, w, strict=True) if i >= 0 and (combiner == "sum" or x > 0)]
        for row, w in zip(ids, given_weights, strict=True)
    ]
    ids, weights = ([[pair[k] for pair in row] for row in kept] for k in (0, 1))
    expected = embedding_lookup_sparse(table.sharded, *sparse(ids, weights), combiner)
    if default is not None:
        expected[[not row for row in kept]] = table.full[default]
    assert np.allclose(found, expected, atol=1e-5)


@settings(deadline=None)
@given(tables(row_shape=(2,)), COMBINERS, st.data())
def test_the_layout_does_not_change_a_bit(table: Table, combiner: str, data: st.DataObject) -> None:
    """With ``compat="tf"``, rows of ids behind the last that has any are left out."""
    ids, weights = data.draw(bags(table.rows))
    arguments = (*sparse(ids, weights), combiner)
    found = embedding_lookup_sparse(table.sharded, *arguments)
    assert np.array_equal(found, embedding_lookup_sparse(Variable(table.full), *arguments))
    shorter = embedding_lookup_sparse(table.sharded, *arguments, compat="tf")
    assert np.array_equal(shorter, found[: len(shorter)])
    assert len(shorter) == max((i + 1 for i, row in enumerate(ids) if row), default=0)


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
@pytest.mark.parametrize("default", [None, 2])
def test_an_entry_of_weight_0_is_no_entry_of_a_safe_lookup(
    combiner: str, default: int | None
) -> None:
    """A row of ids with nothing else gets the default, as an empty one does; the "sum" keeps it,
    and is zero."""
    table = Variable(np.arange(1, 9, dtype=np.float32).reshape(4, 2))
    ids, weights = sparse([[1], [], [1, 3]], [[0.0], [], [0.0, 2.0]])
    found = safe_embedding_lookup_sparse(table, ids, weights, combiner, default)
    filled = [0.0, 0.0] if default is None else [5.0, 6.0]
    assert found.tolist() == [filled, filled, [7.0, 8.0]]
    summed = safe_embedding_lookup_sparse(table, ids, weights, "sum", default)
    assert summed.tolist() == [[0.0, 0.0], filled, [14.0, 16.0]]


def test_ids_of_three_axes_keep_all_but_the_last() -> None:
    ids = SparseTensor([[0, 0, 0], [0, 1, 1], [1, 1, 0]], [1, 3, 2], [2, 2, 2])
    table = Variable(np.arange(8, dtype=np.float32).reshape(4, 2))
    found = safe_embedding_lookup_sparse(table, ids, combiner="sum")
    assert found.tolist() == [[[2.0, 3.0], [6.0, 7.0]], [[0.0, 0.0], [4.0, 5.0]]]


def test_a_row_that_many_bags_hold_moves_once() -> None:
    table = shard(np.ones((6, 4), np.float32), [3, 3])
    with track_transfers() as ledger:
        embedding_lookup_sparse(
            table, SparseTensor.from_rows([[0, 0, 5], [0], [5, 5]]), None, "sum"
        )
    assert ledger.nbytes == 2 * 4 * 4


def test_rows_of_few_bits_are_combined_in_float32() -> None:
    table = Variable(np.full((1, 1), 2048, np.float16))
    bag = SparseTensor.from_rows([[0] * 64])
    assert embedding_lookup_sparse(table, bag, None, "mean").tolist() == [
        [2048.0]
    ]  # the sum is beyond float16


def test_integers_are_summed_and_not_divided() -> None:
    table = Variable(np.array([[1], [2]], np.int64))
    assert embedding_lookup_sparse(
        table, SparseTensor.from_rows([[0, 1, 1]]), None, "sum"
    ).tolist() == [[5]]
    with pytest.raises(ArgumentError, match="mean"):
        embedding_lookup_sparse(table, SparseTensor.from_rows([[0]]), None, "mean")


def test_what_cannot_be_meant_is_refused() -> None:
    table, ids = Variable([[1.0], [2.0]]), SparseTensor.from_rows([[0, 1]])
    with pytest.raises(ArgumentError, match="combiner"):
        embedding_lookup_sparse(table, ids, None, "max")
    with pytest.raises(ArgumentTypeError, match="weights"):
        embedding_lookup_sparse(table, ids, [1.0, 2.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="ids"):
        embedding_lookup_sparse(table, [[0]], None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="2 ids and 1 weights"):
        embedding_lookup_sparse(table, ids, SparseTensor.from_rows([[1.0]]))
    with pytest.raises(ArgumentError, match="is in row 0"):
        embedding_lookup_sparse(table, SparseTensor([[1, 0], [0, 0]], [0, 1], [2, 1]), None)
    with pytest.raises(OutOfRange, match="Index 2"):
        embedding_lookup_sparse(table, SparseTensor.from_rows([[0, 2]]), None)
    with pytest.raises(OutOfRange, match="-1"):
        embedding_lookup_sparse(table, SparseTensor.from_rows([[-1]]), None)
    with pytest.raises(OutOfRange, match="7"):
        safe_embedding_lookup_sparse(table, SparseTensor.from_rows([[]]), default_id=7)
    with pytest.raises(ArgumentError, match="have no rows"):
        safe_embedding_lookup_sparse(table, SparseTensor([[0]], [1], [1]))
    with pytest.raises(ArgumentError, match="float64"):
        safe_embedding_lookup_sparse(table, ids, SparseTensor.from_rows([[1.0, 1.0]], np.float64))
    with pytest.raises(ArgumentError, match="compat"):
        embedding_lookup_sparse(table, ids, None, compat="torch")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="float"):
        embedding_lookup_sparse(table, SparseTensor.from_rows([[0.5]]), None)


def test_a_sparse_tensor_is_valid_once_it_exists() -> None:
    with pytest.raises(OutOfRange, match="outside"):
        SparseTensor([[0, 3]], [1], [1, 3])
    with pytest.raises(ArgumentError, match="1 indices"):
        SparseTensor([[0, 0]], [1, 2], [1, 3])
    with pytest.raises(ArgumentError, match="rank"):
        SparseTensor([[0]], [1], [1, 3])
    with pytest.raises(ArgumentError, match="lengths"):
        SparseTensor([[0], [1, 2]], [1, 2], [2, 2])
    with pytest.raises(ArgumentTypeError, match="extents"):
        SparseTensor([[0, 0]], [1], ["a", 2])
    with pytest.raises(ArgumentTypeError, match="lists"):
        SparseTensor.from_rows([1, 2])  # type: ignore[list-item]
    empty = SparseTensor([], [], [4, 0])
    assert empty.indices.shape == (0, 2) and empty.values.shape == (0,)
