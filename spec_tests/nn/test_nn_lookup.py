"""embedding_lookup moves the rows that it returns and no others; tables cut by mod."""

import inspect
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, OutOfRange
from shardvar.layout.partition import div_owner
from shardvar.reference.devices import Device, track_transfers
from shardvar.reference.nn import embedding_lookup, mod_to_div
from shardvar.reference.nn.lookup import clip_rows
from shardvar.reference.nn.rebalance import mod_sizes
from shardvar.reference.variables import ShardedVariable, Variable, create_sharded_variable
from spec_tests.helpers.embedding_tables import Table, ids_for, shard, tables


@given(st.integers(1, 40), st.integers(1, 8), st.data())
def test_a_row_is_where_div_says(rows: int, num_shards: int, data: st.DataObject) -> None:
    """R-LOOKUP-3 (RFC 000): 'Therefore we will stick with "div" strategy'."""
    table = create_sharded_variable(np.arange(float(rows))[:, None], num_shards)
    id_ = data.draw(st.integers(0, rows - 1))
    shard_number, row = div_owner(id_, rows, min(rows, num_shards))
    shards = table.variables if isinstance(table, ShardedVariable) else [table]
    assert (
        embedding_lookup(table, id_).tolist()
        == shards[int(shard_number)][int(row)].tolist()
        == [float(id_)]
    )


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


@settings(deadline=None)
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


@settings(deadline=None)
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


@settings(deadline=None)
@given(tables(row_shape=(2, 2)), st.floats(0, 4), st.data())
def test_max_norm_shortens_the_rows_that_are_longer_and_keeps_the_bits_of_others(
    table: Table, max_norm: float, data: st.DataObject
) -> None:
    """R-LOOKUP-4: the norm is taken over all axes of a row."""
    ids = data.draw(ids_for(table.rows))
    rows = embedding_lookup(table.sharded, np.array(ids, np.int64), max_norm)
    for row, plain in zip(rows, table.full[ids], strict=True):
        norm = np.linalg.norm(plain.astype(np.float64))
        if norm <= max_norm * (1 - 1e-6):
            assert np.array_equal(row, plain)
        else:
            assert np.allclose(row, plain * (max_norm / norm), atol=1e-5)


def test_max_norm_of_rows_of_few_bits_is_computed_in_float32() -> None:
    rows = np.array([[300.0, 400.0]], np.float16)  # the squares' sum is beyond float16
    assert clip_rows(rows, 5.0, 1).tolist() == [[3.0, 4.0]]
    assert clip_rows(rows.astype(ml_dtypes.bfloat16), 5.0, 1).dtype == ml_dtypes.bfloat16
    assert clip_rows(np.zeros((1, 2), np.float32), 0.0, 1).tolist() == [[0.0, 0.0]]


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


@settings(deadline=None)
@given(st.integers(0, 20), st.integers(1, 6))
def test_a_table_cut_by_mod_is_the_same_table_once_converted(rows: int, num_shards: int) -> None:
    """R-MOD-1."""
    full = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    owner = np.arange(rows) % num_shards
    devices = [Device(f"ps:{i}") for i in range(num_shards)]
    by_mod = [Variable(full[owner == i], device=devices[i]) for i in range(num_shards)]
    assert tuple(variable.shape[0] for variable in by_mod) == mod_sizes(rows, num_shards)
    converted = mod_to_div(by_mod)
    assert np.array_equal(converted.numpy(), full)
    assert list(converted.devices) == devices


def test_shards_that_were_not_cut_by_mod_are_refused() -> None:
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


@pytest.mark.parametrize("counts", [[20_000], [7_000, 0, 13_000], [1_000] * 20])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_much_is_gathered_by_two_threads_and_is_the_same_rows(
    counts: list[int], dtype: str
) -> None:
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    full = np.arange(20_000 * 33).reshape(20_000, 33).astype(kind)
    table = shard(full, counts)
    ids = np.random.default_rng(7).integers(0, 20_000, 40_001)
    with track_transfers() as ledger:
        rows = embedding_lookup(table, ids)
    assert np.array_equal(rows, full[ids])
    assert ledger.nbytes == rows.nbytes and ledger.messages == sum(count > 0 for count in counts)
