"""One pair of methods plans every write of every kind of variable, and planning changes nothing."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardvar.layout.dtypes import Array
from shardvar.reference.devices import Device, device_scope
from shardvar.reference.variables import (
    AggregatingVariable,
    MirroredVariable,
    ShardedVariable,
    SyncOnReadVariable,
    UnreadVariable,
    Variable,
    VariableInterface,
    replica_scope,
)
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
from spec_tests.helpers.sharded_variables import UserVariable

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
    with replica_scope(1):
        writes = (
            variable.plan_writes(update, values)
            if is_dense
            else variable.plan_row_writes(update, *with_order(rows, values))
        )
        np.testing.assert_array_equal(variable.read_value(), before, "planning changes nothing")
        commit(writes)
        np.testing.assert_array_equal(variable.read_value(), expected)


def with_order(rows: Array, values: Array) -> tuple[Array, Array, Array | None]:
    ordered, order = ascending(rows)
    return ordered, values, order


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
