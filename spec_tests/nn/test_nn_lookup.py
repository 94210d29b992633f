"""embedding_lookup moves the rows that it returns and no others; tables cut by mod."""

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, OutOfRange
from shardvar.reference.devices import Device, track_transfers
from shardvar.reference.nn import (
    SparseTensor,
    embedding_lookup,
    embedding_lookup_sparse,
    mod_to_div,
    safe_embedding_lookup_sparse,
)
from shardvar.reference.nn.lookup import clip_rows
from shardvar.reference.nn.rebalance import mod_sizes
from shardvar.reference.variables import Variable
from spec_tests.helpers.embedding_tables import Table, ids_for, shard, tables


@pytest.mark.parametrize("name", sv.nn.__all__)
def test_no_function_takes_a_partition_strategy(name: str) -> None:
    """R-SPARSE-1 (RFC 002): "remove partition_strategy from all v2 symbols"; the variable knows its
    own layout."""
    assert "partition_strategy" not in inspect.signature(getattr(sv.nn, name)).parameters


def test_a_scalar_id_gives_one_row_and_a_plain_variable_is_looked_up_alike() -> None:
    variable = Variable([[1.0, 2.0], [3.0, 4.0]])
    assert embedding_lookup(variable, 1).tolist() == [3.0, 4.0]
    assert embedding_lookup(Variable([5.0, 6.0]), [1, 0]).tolist() == [6.0, 5.0]
    row = embedding_lookup(Variable([5.0, 6.0]), 1)
    assert row.shape == () and row == 6.0


@given(tables(), st.data())
def test_only_the_rows_that_are_returned_cross_between_devices(
    table: Table, data: st.DataObject
) -> None:
    """R-MOVE-1, read off the ledger: the bytes are those of the answer, the messages one a shard
    that holds some."""
    remote = shard(table.full, [variable.shape[0] for variable in table.sharded.variables])
    ids = np.array(data.draw(ids_for(table.rows)), np.int64)
    bounds = np.cumsum([variable.shape[0] for variable in remote.variables])
    with track_transfers() as ledger:
        rows = embedding_lookup(remote, ids)
    assert ledger.nbytes == rows.nbytes
    assert ledger.messages == len(set(np.searchsorted(bounds, ids, side="right").tolist()))
    assert set(ledger.operations) <= {"embedding_lookup"}


@given(tables(), st.data())
def test_an_id_out_of_range_is_named_and_nothing_moves(table: Table, data: st.DataObject) -> None:
    wrong = data.draw(st.one_of(st.integers(-(2**40), -1), st.integers(table.rows, 2**40)))
    ids = data.draw(ids_for(table.rows))
    place = data.draw(st.integers(0, len(ids)))
    with (
        track_transfers() as ledger,
        pytest.raises(OutOfRange, match=rf"Index {wrong} at \({place},\)"),
    ):
        embedding_lookup(table.sharded, [*ids[:place], wrong, *ids[place:]])
    assert ledger.nbytes == 0


def test_max_norm_of_rows_of_few_bits_is_computed_in_float32() -> None:
    rows = np.array([[300.0, 400.0]], np.float16)  # the squares' sum is beyond float16
    assert clip_rows(rows, 5.0, 1).tolist() == [[3.0, 4.0]]
    assert clip_rows(rows.astype(ml_dtypes.bfloat16), 5.0, 1).dtype == ml_dtypes.bfloat16
    assert clip_rows(np.zeros((1, 2), np.float32), 0.0, 1).tolist() == [[0.0, 0.0]]
    short = np.float32([[0.1, 0.2], [3.0, 4.0]])
    assert clip_rows(short, 5.0, 1).tobytes() == short.tobytes()


@pytest.mark.parametrize(
    ("params", "error"),
    [([], ArgumentError), (None, ArgumentTypeError), (np.zeros((2, 2)), ArgumentTypeError)],
)
def test_what_is_no_table_is_refused(params: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        embedding_lookup(params, [0])


def test_a_list_of_shards_is_refused_since_it_does_not_say_how_rows_are_numbered() -> None:
    """R-LOOKUP-1 (RFC 002): "a tf.Variable or a ShardedVariable rather than a list of
    variables"."""
    with pytest.raises(ArgumentTypeError, match="mod_to_div"):
        embedding_lookup([Variable([1.0]), Variable([2.0])], [0])
    with pytest.raises(ArgumentError, match="is a scalar and has no rows"):
        embedding_lookup(Variable(1.0), [0])


@pytest.mark.parametrize(
    "look_up",
    [
        lambda table: embedding_lookup(table, [0]),
        lambda table: sv.nn.embedding_lookup_sparse(table, [[0]], None),
        lambda table: sv.nn.safe_embedding_lookup_sparse(table, [[0]]),
        lambda table: sv.nn.plan_balanced_rows([1], table),
    ],
)
def test_every_lookup_asks_for_a_table_with_an_axis(look_up: Callable[[Variable], object]) -> None:
    """Before anything is read: the remedy is that of a lookup, not of a read."""
    with pytest.raises(ArgumentError) as refused:
        look_up(Variable(1.0, name="w"))
    assert refused.value.cause == "w is a scalar and has no rows."
    assert refused.value.remedy == "Give a variable with at least one axis."


@pytest.mark.parametrize("ids", [[0.5], ["a"], [None], [True], [[0], [0, 0]], "abc", object()])
def test_ids_that_are_no_integers_are_refused(ids: object) -> None:
    with pytest.raises(ArgumentError):
        embedding_lookup(Variable([1.0]), ids)


@pytest.mark.parametrize("max_norm", [float("nan"), "long"])
def test_a_max_norm_that_is_no_number_is_refused(max_norm: object) -> None:
    with pytest.raises(ArgumentError, match="max_norm"):
        embedding_lookup(Variable([1.0]), [0], max_norm)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="clipped"):
        embedding_lookup(Variable([1]), [0], 1.0)


def test_shards_that_were_not_cut_by_mod_are_refused() -> None:
    """And those that were keep their devices."""
    rows = [[0.0], [3.0]], [[1.0], [4.0]], [[2.0]]
    shards = [Variable(some, device=Device(f"ps:{n}")) for n, some in enumerate(rows)]
    table = mod_to_div(shards)
    assert table.numpy().tolist() == [[0], [1], [2], [3], [4]]
    assert list(table.devices) == [shard.device for shard in shards]
    with pytest.raises(LayoutError, match=r"\[1, 2\]"):
        mod_to_div([Variable([1.0]), Variable([2.0, 3.0])])
    with pytest.raises(LayoutError):
        mod_to_div([Variable([1.0]), Variable([2])])
    with pytest.raises(ArgumentError):
        mod_to_div([])
    with pytest.raises(ArgumentTypeError):
        mod_to_div([Variable(1.0)])


def test_numbers_of_rows_and_shards_that_no_table_has_are_refused() -> None:
    assert mod_sizes(3, 1) == (3,)
    assert sum(mod_sizes(np.uint8(200), np.uint8(100))) == 200
    with pytest.raises(ArgumentTypeError, match="3.5"):
        mod_sizes(3.5, 2)  # type: ignore[arg-type]
    for num_shards in (0, -1):
        with pytest.raises(ArgumentError, match="into .* shards"):
            mod_sizes(13, num_shards)


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
    with pytest.raises(ArgumentError):
        embedding_lookup_sparse(
            table, SparseTensor([[0, 0]], [0], [3, 3]), SparseTensor([[1, 0]], [1.0], [3, 3])
        )
    with pytest.raises(ArgumentError, match="2 ids and 1 weights"):
        embedding_lookup_sparse(table, ids, SparseTensor.from_rows([[1.0]]))
    with pytest.raises(ArgumentError, match="is in row 0"):
        embedding_lookup_sparse(table, SparseTensor([[1, 0], [0, 0]], [0, 1], [2, 1]), None)
    with pytest.raises(OutOfRange, match="Index 2"):
        embedding_lookup_sparse(table, SparseTensor.from_rows([[0, 2]]), None)
    with pytest.raises(OutOfRange, match="-1"):
        embedding_lookup_sparse(table, SparseTensor.from_rows([[-1]]), None)
    for default in (7, -1):
        with pytest.raises(OutOfRange, match=str(default)):
            safe_embedding_lookup_sparse(table, SparseTensor.from_rows([[]]), default_id=default)
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
