"""Variables that are synchronized on read: each replica's copy is its own, and they are one where
they are read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError
from shardvar.reference.devices import device_scope, track_transfers
from shardvar.reference.variables import PerReplica, SyncOnReadVariable, Variable

REPLICAS = 3


def created(aggregation: Any, value: Any = 0.0, **kwargs: Any) -> tuple[Any, Any]:
    strategy = sv.MirroredStrategy([f"GPU:{number}" for number in range(REPLICAS)])
    with strategy.scope():
        return strategy, sv.Variable(
            value, synchronization="ON_READ", aggregation=aggregation, name="count", **kwargs
        )


def copies_of(variable: Any) -> list[Any]:
    return [np.asarray(copy).tolist() for copy in variable.copies]


@given(
    st.lists(st.integers(-9, 9), min_size=REPLICAS, max_size=REPLICAS),
    st.sampled_from(["float32", "int32"]),
)
def test_a_read_from_outside_is_the_sum_the_mean_or_the_first_of_what_the_replicas_did(
    deltas: list[int], dtype: str
) -> None:
    mean = (
        np.trunc(sum(deltas) / REPLICAS) if dtype == "int32" else np.float32(sum(deltas)) / REPLICAS
    )
    wanted = {"SUM": sum(deltas), "MEAN": mean, "ONLY_FIRST_REPLICA": deltas[0]}
    for aggregation, value in wanted.items():
        strategy, variable = created(aggregation, np.zeros(2, dtype))
        given = PerReplica([np.full(2, delta, dtype) for delta in deltas])
        seen = strategy.run(lambda delta, own=variable: own.assign_add(delta).numpy(), given)
        assert [row.tolist() for row in seen.values] == [[delta] * 2 for delta in deltas], (
            "its own copy"
        )
        assert copies_of(variable) == [[delta] * 2 for delta in deltas]
        assert variable.dtype == dtype
        for read in (
            variable.numpy(),
            variable[:],
            variable.sparse_read([0, 1]),
            np.asarray(variable),
        ):
            np.testing.assert_allclose(read, [value] * 2, rtol=1e-6)


def test_nothing_crosses_between_replicas_until_it_is_read() -> None:
    strategy, variable = created("SUM", np.zeros(4, np.float32))
    assert isinstance(variable, SyncOnReadVariable) and variable.synchronization.name == "ON_READ"
    assert not variable.trainable and variable.name == "count"
    assert len({resource.buffer for resource in variable.resources}) == REPLICAS, (
        "each replica owns its buffer"
    )
    with track_transfers() as ledger:
        strategy.run(
            lambda: variable.assign_add(np.ones(4)).scatter_add(sv.IndexedSlices([1.0], [2]))
        )
    assert ledger.messages == 0
    with device_scope(strategy.replica_devices[0]), track_transfers() as ledger:
        assert variable.numpy().tolist() == [3, 3, 6, 3]
    assert ledger.total("read_value").nbytes == ledger.nbytes == (REPLICAS - 1) * 16


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
@pytest.mark.parametrize("value", [[7, -5, 0], [6.0, 4.5, -3.0]])
def test_what_is_assigned_from_outside_is_read_from_outside(
    aggregation: str, value: list[Any]
) -> None:
    _, variable = created(aggregation, np.zeros(3, np.asarray(value).dtype))
    assert variable.assign(value).numpy().tolist() == value
    if aggregation != "SUM":
        assert variable.assign_add(value).numpy().tolist() == [2 * one for one in value]


@given(st.integers(1, 6), st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=4))
def test_an_assigned_integer_is_shared_out_as_evenly_as_it_can(
    replicas: int, value: list[int]
) -> None:
    """The shares of a sum add up to the value, differ by one at most, and the larger come first."""
    variable = SyncOnReadVariable(
        [Variable(np.zeros(len(value), np.int32)) for _ in range(replicas)], "SUM"
    )
    variable.assign(value)
    shares = np.array(copies_of(variable))
    assert shares.sum(axis=0).tolist() == value
    assert (shares.max(axis=0) - shares.min(axis=0) <= 1).all()
    assert (np.diff(shares, axis=0) <= 0).all()


def test_what_does_not_say_which_copy_it_means_is_refused_and_changes_none() -> None:
    _, summed = created("SUM", np.ones(2, np.float32))
    for refused in (
        lambda: summed.assign_add([1.0, 1.0]),
        lambda: summed.assign_sub([1.0, 1.0]),
        lambda: summed.scatter_add(sv.IndexedSlices([1.0], [0])),
        lambda: summed.assign(PerReplica([[1.0, 1.0]])),
        lambda: summed.assign([1.0]),
        lambda: summed.assign(PerReplica([[2.0, 2.0], [3.0, 3.0], [4.0]])),
    ):
        with pytest.raises(ArgumentError):
            refused()
    assert copies_of(summed) == [[1, 1]] * REPLICAS
    _, untold = created("NONE", [1.0])
    with pytest.raises(
        ArgumentError, match="count is read from outside its replicas, and no aggregation"
    ):
        untold.read_value()


def test_what_is_saved_is_what_is_read_and_what_is_restored_reads_the_same(tmp_path: Path) -> None:
    strategy, variable = created("SUM", np.zeros(2, np.float32))
    strategy.run(variable.assign_add, PerReplica([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    sv.Checkpoint(v=variable).write(tmp_path / "model")
    plain = sv.Variable(np.zeros(2, np.float32))
    sv.Checkpoint(v=plain).read(tmp_path / "model").assert_consumed()
    assert plain.numpy().tolist() == [9, 12]
    _, other = created("SUM", np.zeros(2, np.float32))
    sv.Checkpoint(v=other).read(tmp_path / "model").assert_consumed()
    assert other.numpy().tolist() == [9, 12] and copies_of(other) == [[3, 4]] * REPLICAS
