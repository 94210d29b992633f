"""Mirroring: copies stay equal, hints are obeyed, heuristics say why."""

from typing import Any

import numpy as np
import pytest

from shardvar.errors import ArgumentError
from shardvar.layout.shard_counts import FixedShardsPartitioner
from shardvar.reference.devices import track_transfers
from shardvar.reference.training.strategies import (
    Choice,
    CollectiveAllReduceStrategy,
    Hints,
    Workload,
    choose_host_or_device,
    choose_mirror_or_shard,
    choose_sparse_or_dense,
    hints_for,
)
from shardvar.reference.variables import (
    IndexedSlices,
    MirroredVariable,
    PerReplica,
    ResourceVariable,
    Variable,
)
from spec_tests.helpers.distribution_strategies import arange, assert_equal_copies, places, two_gpus


# Mirroring.
def test_copies_of_a_value_drawn_by_chance_are_one_value_made_once() -> None:
    """R-MIRROR-3 (RFC 002): "we will start with mirroring everything"."""
    calls: list[None] = []

    def chance() -> np.ndarray[Any, Any]:
        calls.append(None)
        return np.random.default_rng().random((4, 2))

    strategy = two_gpus()
    with strategy.scope(), track_transfers() as ledger:
        variable = Variable(chance, name="w")
    assert len(calls) == 1 and isinstance(variable, MirroredVariable)
    assert places(variable) == ["worker:0/GPU:0", "worker:0/GPU:1"]
    assert [copy.name for copy in variable.copies] == ["w", "w/replica_1"]
    assert_equal_copies(variable)
    assert ledger.nbytes == 4 * 2 * 8  # from the first replica to the second


def test_each_replica_reads_its_own_copy() -> None:
    strategy = two_gpus()
    with strategy.scope():
        variable = Variable(arange(4))
    with track_transfers() as ledger:
        sums = strategy.run(
            lambda x, y: float(np.sum(variable.read_value()) + x + y), PerReplica([10, 20]), 1
        )
    assert sums.values == (17.0, 27.0) and sums.devices == strategy.replica_devices
    assert ledger.nbytes == 0


def test_what_is_beside_a_mirrored_variable_is_mirrored_too_and_a_plain_one_plain() -> None:
    strategy = two_gpus()
    with strategy.scope():
        variable = Variable(arange(4), name="w")
        slot = Variable(np.zeros(4, np.float32), name="w/m", colocated_with=variable)
        with strategy.variable_partitioning_scope(FixedShardsPartitioner(2)):
            sharded = Variable(arange(4), name="s")
            beside = Variable(np.zeros(2, np.float32), colocated_with=sharded.variables[1])
    assert isinstance(slot, MirroredVariable) and places(slot) == places(variable)
    assert isinstance(beside, ResourceVariable) and places(beside) == ["worker:0/GPU:1"]


def test_hints_are_obeyed_and_change_no_value() -> None:
    """R-HINT-1: "whether to mirror the variable on host or not, whether to cast its updates to
    dense tensors"."""
    strategy = CollectiveAllReduceStrategy(num_workers=2, replicas_per_worker=2)
    update = IndexedSlices(np.ones((3, 4), np.float32), np.array([1, 1, 5]))

    def trained(hints: Hints) -> tuple[Any, int]:
        with strategy.scope(), strategy.hint_scope(hints):
            variable = Variable(np.zeros((100, 4), np.float32))
        with track_transfers() as ledger:
            variable.scatter_add(update)
            variable.scatter_update(update)
        assert_equal_copies(variable)
        return variable, ledger.total("scatter_add").nbytes

    sparse, sparse_nbytes = trained(Hints())
    dense, dense_nbytes = trained(Hints(cast_updates_to_dense=True))
    on_host, host_nbytes = trained(Hints(mirror_on_host=True))
    assert np.array_equal(sparse, dense) and np.array_equal(sparse, on_host)
    assert (sparse_nbytes, dense_nbytes, host_nbytes) == (4 * 3 * 16, 4 * 100 * 16, 2 * 3 * 16)
    assert places(on_host) == ["worker:0", "worker:1"]


def test_updates_of_replicas_are_cast_where_they_are() -> None:
    """R-HINT-2 (RFC 002): "Updates can be casted to dense tensors"."""
    strategy = two_gpus()
    results = []
    for cast in (False, True):
        with strategy.scope(), strategy.hint_scope(Hints(cast_updates_to_dense=cast)):
            variable = Variable(np.zeros((10, 2), np.float32), aggregation="sum")
        updates = strategy.run(
            lambda row: IndexedSlices(np.ones((1, 2), np.float32), [row]), PerReplica([3, 3])
        )
        with track_transfers() as ledger:
            variable.scatter_sub(updates)
        results.append((variable.numpy(), ledger))
    (sparse, few), (dense, many) = results
    assert np.array_equal(sparse, dense) and sparse[3].tolist() == [-2.0, -2.0]
    assert few.nbytes == 2 * 8 + 2 * 16  # a row from each replica, two rows to each
    assert many.nbytes == 4 * 80


# Heuristics.
def test_each_heuristic_says_what_and_why() -> None:
    """R-HEUR-1, R-HEUR-2, R-HEUR-3, R-HEUR-4, R-HEUR-5, R-HEUR-6."""
    small, large = (
        Workload((1000, 16), "float32", 64, 4),
        Workload((10**8, 256), "float32", 4096, 4),
    )
    memory = {"device_memory": 16 << 30, "host_memory": 64 << 30}
    assert choose_mirror_or_shard(small, **memory).decision == "mirror"
    assert choose_mirror_or_shard(large, **memory).decision == "shard"
    assert choose_host_or_device(small, 16 << 30).decision == "device"
    assert choose_host_or_device(Workload((10**7, 256), "float32"), 16 << 30).decision == "host"
    assert choose_sparse_or_dense(small).decision == "sparse"
    assert choose_sparse_or_dense(Workload((1000, 16), "float32", None, 4)).decision == "dense"
    assert hints_for(large, 16 << 30) == Hints(mirror_on_host=True, cast_updates_to_dense=False)
    for choice in (choose_mirror_or_shard(small, **memory), choose_sparse_or_dense(small)):
        assert isinstance(choice, Choice)
        assert str(small.nbytes) in choice.reason or "bytes" in choice.reason


def test_one_replica_exchanges_nothing() -> None:
    assert choose_sparse_or_dense(Workload((10, 1), "float32", 10, 1)).decision == "sparse"
    with pytest.raises(ArgumentError, match="Invalid workload"):
        Workload((10, 1), "float32", 10, 0)
