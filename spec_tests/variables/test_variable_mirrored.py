"""Mirrored and aggregating variables: copies stay equal, own their buffers, and may be sharded."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array
from shardvar.reference.devices import Device, device_scope, track_transfers
from shardvar.reference.variables import (
    AggregatingVariable,
    MirroredVariable,
    PerReplica,
    ShardedVariable,
    SyncOnReadVariable,
    UnreadVariable,
    Variable,
    VariableAggregation,
    VariableInterface,
    replica_scope,
)
from shardvar.reference.variables.mirrored import aggregate
from shardvar.reference.variables.operations import plan_replacements
from shardvar.reference.variables.values import (
    ADD,
    MAX,
    MUL,
    REPLACE,
    SUB,
    UpdateKind,
    ascending,
    commit,
)
from spec_tests.helpers.sharded_variables import UserVariable, counting

REPLICAS = [Device("GPU:0"), Device("GPU:1")]


def mirrored(value: Any, aggregation: Any = None) -> Any:
    return MirroredVariable(
        [Variable(value, name="w", device=device) for device in REPLICAS], aggregation
    )


def test_a_read_is_from_the_copy_on_the_current_device() -> None:
    variable = mirrored(counting((4, 2)))
    for device in REPLICAS:
        with device_scope(device), track_transfers() as ledger:
            assert variable.device is device
            _ = variable.read_value(), variable[1:], variable.sparse_read([0])
        assert ledger.nbytes == 0
    parts = [Variable(counting((2, 2)), device=device) for device in (*REPLICAS, *REPLICAS[1:] * 2)]
    pair = MirroredVariable([ShardedVariable(parts[:2]), ShardedVariable(parts[2:])])
    for device, nearest in ((REPLICAS[0], 0), (REPLICAS[1], 1), (Device("worker:0"), 0)):
        with device_scope(device):
            assert pair.nearest is pair.copies[nearest], "all of its shards are there, or the first"
    with device_scope(Device("worker:0")), track_transfers() as ledger:
        assert variable.device is REPLICAS[0]
        variable.read_value()
        variable.assign(counting((4, 2)))
    assert (
        ledger.operations["read_value"].nbytes == 32
        and ledger.operations["assign"].nbytes == 2 * 32
    )


def test_slices_of_replicas_stay_slices() -> None:
    each = [sv.IndexedSlices(np.full((1, 2), float(row)), [row], (4, 2)) for row in (1, 2)]
    variable = mirrored(np.zeros((4, 2)), "MEAN")
    variable.scatter_add(PerReplica(each))
    assert variable.numpy()[:, 0].tolist() == [0, 0.5, 1, 0]
    first = mirrored(np.zeros((4, 2)), "ONLY_FIRST_REPLICA")
    first.scatter_update(PerReplica(each))
    assert first.numpy()[:, 0].tolist() == [0, 1, 0, 0]
    with pytest.raises(ArgumentError, match="cannot be aggregated to update them"):
        variable.scatter_update(PerReplica(each))
    with pytest.raises(ArgumentTypeError, match="some arrays"):
        variable.assign_add(PerReplica([each[0], np.zeros((4, 2))]))


def test_values_of_replicas_cross_from_where_they_lie() -> None:
    variable = AggregatingVariable(Variable(np.zeros(4, np.float32), device=Device("ps:0")), "SUM")
    with device_scope(REPLICAS[0]), track_transfers() as ledger:
        variable.assign_add(PerReplica([np.ones(4, np.float32)] * 2, REPLICAS))
    assert ledger.nbytes == 16 + 16, "one from the other replica, the sum to the server"
    assert list(ledger.operations) == ["assign_add"], (
        "each move bears the name of what the user called"
    )
    assert variable.numpy().tolist() == [2] * 4


@pytest.mark.parametrize(
    ("one", "other", "mean"),
    [(2**60 + 2, 2**60 + 5, 2**60 + 3), (-(2**60), -(2**60) - 1, -(2**60))],
)
def test_the_mean_of_large_integers_keeps_every_digit(one: int, other: int, mean: int) -> None:
    """It is rounded towards zero; float64 has 53 bits and would round it before."""
    found = aggregate(PerReplica([np.array([one]), np.array([other])]), VariableAggregation.MEAN)
    assert found.tolist() == [mean] and found.dtype == np.int64


SHAPE = (5, 2)


def sharded(value: Array) -> ShardedVariable:
    return ShardedVariable([Variable(value[:2]), Variable(value[2:2]), Variable(value[2:])])


KINDS: dict[str, Callable[[Array], VariableInterface]] = {
    "resource": Variable,
    "least": UserVariable,
    "unread": lambda value: UnreadVariable(Variable(value)),
    "sharded": sharded,
    "mirrored": lambda value: MirroredVariable([Variable(value), Variable(value)]),
    "mirrored sharded": lambda value: MirroredVariable([sharded(value), sharded(value)]),
    "sharded mirrored": lambda value: ShardedVariable(
        [MirroredVariable([Variable(part), Variable(part)]) for part in np.split(value, [3])]
    ),
    "aggregating": lambda value: AggregatingVariable(sharded(value), "SUM"),
    "on read, in a replica": lambda value: SyncOnReadVariable(
        [Variable(value), Variable(value)], "MEAN"
    ),
}


@settings(max_examples=20)
@given(
    st.sampled_from([REPLACE, ADD, SUB, MUL, MAX]),
    st.lists(st.integers(0, SHAPE[0] - 1), min_size=1),
    st.booleans(),
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_plans_its_writes_alike(
    kind: str, update: UpdateKind, ids: list[int], is_dense: bool
) -> None:
    """The law of ``plan_writes`` and ``plan_row_writes``: what is committed is a plain loop over
    the rows."""
    before = np.arange(10, dtype=np.float32).reshape(SHAPE)
    rows = np.arange(SHAPE[0]) if is_dense else np.array(ids)
    values = (
        np.full((len(rows), SHAPE[1]), 2.0, np.float32)
        + np.arange(len(rows), dtype=np.float32)[:, np.newaxis]
    )
    expected = before.copy()
    for row, value in zip(rows, values, strict=True):
        expected[row] = update.combine(expected[row], value)

    variable = KINDS[kind](before)
    ordered, order = ascending(rows)
    with replica_scope(1):
        writes = (
            variable.plan_writes(update, values)
            if is_dense
            else variable.plan_row_writes(update, ordered, values, order)
        )
        np.testing.assert_array_equal(variable.read_value(), before, "planning changes nothing")
        commit(writes)
        np.testing.assert_array_equal(variable.read_value(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reads_what_a_write_returns(kind: str) -> None:
    """A write returns a variable that reads the new value, and rows are read in any order."""
    value, rows = counting(SHAPE), np.array([4, 0, 3, 4])
    update = sv.IndexedSlices(np.full((4, 2), 3, np.float32), rows)
    with replica_scope(1):
        variable: Any = KINDS[kind](value)
        for verb, combine in {"add": np.add, "sub": np.subtract, "mul": np.multiply}.items():
            combine.at(value, rows, update.values)
            written = getattr(variable, f"scatter_{verb}")(update)
            assert np.array_equal(written.read_value(), value), verb
            assert np.array_equal(written.sparse_read(rows), value[rows])
            assert np.array_equal(variable[rows, 1], value[rows, 1])
        for verb, sign in {"assign_add": 1, "assign_sub": -1}.items():
            value = value + sign
            assert np.array_equal(getattr(variable, verb)(np.ones(SHAPE)).read_value(), value)
        assert np.array_equal(variable.assign(2 * value), 2 * value)
        nothing = variable if isinstance(variable, ShardedVariable) else None
        assert variable.assign(value, read_value=False) is nothing
        assert np.array_equal(variable, value)


@pytest.mark.parametrize("rows", [10, 40_000])
@pytest.mark.parametrize("has_limit", [False, True])
def test_replacing_a_value_takes_no_more_memory_of_a_device_than_it_has(
    rows: int, has_limit: bool
) -> None:
    """A device with room for the old value alone takes the new one, large or small; the caller's
    array then belongs to a device without a limit only."""
    nbytes = 4 * rows
    device = Device("ps:0", memory_limit=nbytes if has_limit else None)
    with device_scope(device):
        variable = Variable(np.zeros(rows, np.float32))
        new = np.arange(rows, dtype=np.float32)
        commit(plan_replacements(variable.resources, [new]))
    assert np.array_equal(variable.numpy(), np.arange(rows))
    assert device.used == nbytes
    if has_limit:
        assert device.peak == nbytes
