"""Strategies: what becomes of a variable, where it lives, and whose word counts."""

import re
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest

from shardvar.errors import ArgumentError, ArgumentTypeError, DeviceFull, LayoutError, ScopeError
from shardvar.layout.partition import PartitionSpec
from shardvar.layout.shard_counts import FixedShardsPartitioner, min_max_variable_partitioner
from shardvar.reference.devices import Device, make_cluster, track_transfers
from shardvar.reference.training.strategies import (
    Choice,
    CollectiveAllReduceStrategy,
    Hints,
    HybridStrategy,
    MirroredStrategy,
    ParameterServerStrategy,
    Strategy,
    Workload,
    choose_host_or_device,
    choose_mirror_or_shard,
    choose_sparse_or_dense,
)
from shardvar.reference.variables import (
    AggregatingVariable,
    IndexedSlices,
    MirroredVariable,
    PerReplica,
    ResourceVariable,
    ShardedVariable,
    SyncOnReadVariable,
    Variable,
    initializers,
    variable_creator_scope,
)
from shardvar.reference.variables.interface import VariableInterface
from spec_tests.helpers.distribution_strategies import arange, assert_equal_copies, places, two_gpus


def test_a_part_that_cannot_be_made_gives_its_turns_back() -> None:
    strategy = ParameterServerStrategy(3, FixedShardsPartitioner(3), ps_memory_limit=16)
    with strategy.scope():
        Variable(np.float32(0))
        with pytest.raises(DeviceFull):
            Variable(arange(30))
        assert places(Variable(np.float32(0))) == ["ps:1"]


def test_the_local_case_keeps_variables_where_the_program_computes() -> None:
    with ParameterServerStrategy(0, FixedShardsPartitioner(2)).scope():
        assert places(Variable(arange(4))) == ["localhost:0"] * 2


def test_what_may_change_its_size_is_not_cut() -> None:
    with (
        ParameterServerStrategy(2, FixedShardsPartitioner(2)).scope(),
        pytest.raises(ArgumentTypeError, match="size"),
    ):
        Variable(arange(4), shape=[None])
    with ParameterServerStrategy(2).scope():
        assert Variable(arange(4), shape=[None]).assign(arange(5)).shape == (5,)


def test_several_replicas_update_a_variable_that_aggregates() -> None:
    """R-PSS-4: "AggregatingVariable with a underlying ShardedVariable"; each aggregation by its
    name."""
    cluster = make_cluster(num_ps=2, num_workers=1, replicas_per_worker=2)
    strategy = ParameterServerStrategy(cluster, FixedShardsPartitioner(2))
    deltas = PerReplica([np.full(4, 1.0, np.float32), np.full(4, 3.0, np.float32)])
    for aggregation, added in [("sum", 4.0), ("mean", 2.0), ("only_first_replica", 1.0)]:
        with strategy.scope():
            variable = Variable(np.zeros(4, np.float32), aggregation=aggregation)
        assert isinstance(variable, AggregatingVariable) and isinstance(
            variable.variable, ShardedVariable
        )
        variable.assign_add(deltas)
        assert variable.numpy().tolist() == [added] * 4
    with strategy.scope():
        assert isinstance(Variable(np.zeros(4, np.float32)), ShardedVariable)


@pytest.mark.parametrize("make", [lambda: ParameterServerStrategy(3), two_gpus])
def test_partition_devices_are_obeyed(make: Callable[[], Strategy]) -> None:
    strategy = make()
    chosen = [Device("worker:7"), Device("worker:8")]
    with strategy.variable_partitioning_scope(FixedShardsPartitioner(3), partition_devices=chosen):
        assert places(Variable(arange(6))) == ["worker:7", "worker:8", "worker:7"]


def test_what_a_partitioning_scope_does_not_cut_is_mirrored() -> None:
    """R-MIRROR-3. A layer's bias stays on every replica, where its kernel is cut."""
    strategy = two_gpus()
    with strategy.variable_partitioning_scope(min_max_variable_partitioner(2, min_slice_size=16)):
        kernel, bias, count = Variable(arange(8, 2)), Variable(arange(2)), Variable(0)
    with strategy.variable_partitioning_scope(None):
        whole = Variable(arange(8, 2))
    kinds = [type(variable) for variable in (kernel, bias, count, whole)]
    assert kinds == [ShardedVariable, MirroredVariable, MirroredVariable, MirroredVariable]


def test_creators_inside_see_the_whole_and_those_outside_the_parts() -> None:
    seen: list[tuple[str, str]] = []

    def noting(where: str) -> Callable[..., Any]:
        def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
            seen.append((where, kwargs["name"]))
            return next_creator(**kwargs)

        return creator

    strategy = ParameterServerStrategy(2, FixedShardsPartitioner(2))
    with (
        variable_creator_scope(noting("out")),
        strategy.scope(),
        variable_creator_scope(noting("in")),
    ):
        Variable(arange(4), name="w")
    assert seen == [("in", "w"), ("out", "w/part_0"), ("out", "w/part_1")]


def test_scopes_nest_in_themselves_not_in_others_and_end_with_errors() -> None:
    first, second = ParameterServerStrategy(1), two_gpus()
    with first.scope(), first.scope():
        assert places(Variable(arange(2))) == ["ps:0"]
        with pytest.raises(ScopeError, match="HybridStrategy"), second.scope():
            pass
        assert places(Variable(arange(2))) == ["ps:0"]
    with pytest.raises(KeyError), first.scope():
        raise KeyError
    assert places(Variable(arange(2))) == ["localhost:0"]


def test_a_scope_does_not_follow_a_context_into_another_thread() -> None:
    """The stack of creators does not either: what enters the scope there is asked for there."""
    strategy = ParameterServerStrategy(2, FixedShardsPartitioner(2))
    made: list[Any] = []

    def create() -> None:
        made.append(Variable(arange(2)))
        with strategy.scope():
            made.append(Variable(arange(2)))

    with strategy.scope():
        thread = threading.Thread(target=copy_context().run, args=(create,))
        thread.start()
        thread.join()
    assert [type(variable) for variable in made] == [ResourceVariable, ShardedVariable]


def test_threads_that_create_at_once_share_the_round() -> None:
    """No turn is lost or given twice."""
    strategy = ParameterServerStrategy(4, FixedShardsPartitioner(2))
    made: list[Any] = []

    def create() -> None:
        with strategy.scope():
            made.extend(Variable(arange(4)) for _ in range(20))

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    homes = sorted(place for variable in made for place in places(variable))
    assert homes == sorted(f"ps:{turn % 4}" for turn in range(160))


# Sharded by name.
def test_create_sharded_variable_uses_the_strategys_partitioner_or_what_is_given() -> None:
    """R-CREATESHARDED-1: "from its constructor or partitions". R-CREATESHARDED-2: "override the
    partitioner"."""
    strategy = ParameterServerStrategy(2, FixedShardsPartitioner(2))
    create = strategy.experimental_create_sharded_variable
    sizes, ones = PartitionSpec(splits=[[6, 1]]), initializers.Ones()
    made = (
        create("t", (7, 2), "float32"),
        create("t", (7, 2), "int64", partitions=sizes, initializer=ones),
        ParameterServerStrategy(2).experimental_create_sharded_variable("t", (7, 2), "float32"),
    )
    heights = [[part.shape[0] for part in variable.variables] for variable in made]
    assert heights == [[4, 3], [6, 1], [7]]
    assert all(isinstance(variable, ShardedVariable) and variable.name == "t" for variable in made)
    assert not np.any(made[0]) and np.array_equal(made[1], np.ones((7, 2), np.int64))
    assert made[1].dtype == np.int64
    with pytest.raises(ArgumentError, match="scalar"):
        create("s", (), "float32")
    with pytest.raises(LayoutError):
        create("t", (7, 2), "float32", [1, 2])


def test_what_a_creator_makes_that_is_no_variable_of_this_package_is_not_wrapped() -> None:
    """A shard is an ``sv.Variable``; another kind of interface may be sharded in its own way, and
    is given as it is."""

    members = dict.fromkeys(VariableInterface.__abstractmethods__)
    made = type("Elsewhere", (VariableInterface,), {**members, "shape": (7, 2)})()
    with variable_creator_scope(lambda next_creator, **kwargs: made):
        assert (
            ParameterServerStrategy(1).experimental_create_sharded_variable("t", (7, 2), "float32")
            is made
        )


# Hybrid.
def test_a_hybrid_asks_its_chooser_once_a_variable_with_name_shape_and_dtype() -> None:
    """R-HYBRID-1: "takes variable name, variable shape and variable dtype and returns which
    strategy to apply"."""
    servers, replicas = ParameterServerStrategy(2, FixedShardsPartitioner(2)), two_gpus()
    asked: list[Any] = []
    calls: list[None] = []

    def chooser(name: str | None, shape: tuple[int, ...], dtype: Any) -> Strategy | None:
        asked.append((name, shape, np.dtype(dtype)))
        return servers if shape and shape[0] > 4 else None

    def made_once() -> np.ndarray[Any, Any]:
        calls.append(None)
        return arange(8, 2)

    hybrid = HybridStrategy(replicas, servers, chooser)
    with hybrid.scope():
        table, bias = Variable(made_once, name="table"), Variable(arange(2), name="bias")
        slot = Variable(np.zeros(2, np.float32), colocated_with=bias)
    assert isinstance(table, ShardedVariable) and places(table) == ["ps:0", "ps:1"]
    assert isinstance(bias, MirroredVariable) and isinstance(slot, MirroredVariable)
    assert asked == [("table", (8, 2), np.dtype("float32")), ("bias", (2,), np.dtype("float32"))]
    assert len(calls) == 1
    with hybrid.variable_partitioning_scope(FixedShardsPartitioner(3)):
        assert len(Variable(arange(9), name="t").variables) == 3
    undecided = HybridStrategy(replicas, servers, lambda *_: "the second")  # type: ignore[arg-type,return-value]
    with undecided.scope(), pytest.raises(ArgumentError, match="'the second'"):
        Variable(arange(3))


def test_replicas_that_give_a_value_and_nothing_are_refused() -> None:
    strategy = two_gpus()
    none = strategy.reduce("SUM", PerReplica([None, None]))
    assert none is None
    with pytest.raises(ArgumentError, match="Some replicas give a value and some give none"):
        strategy.reduce("SUM", PerReplica([np.ones(2), None]))


@pytest.mark.parametrize(("rows", "nbytes"), [(1, 16), (2, 8), (0, 0)])
def test_a_step_moves_the_rows_that_it_touches(rows: int, nbytes: int) -> None:
    """Of a variable of 16 bytes, one row of it: a row of half of them where there are two."""
    workload = Workload(
        shape=(rows, 4 // max(1, rows)), dtype="float32", num_replicas=1, rows_a_step=1
    )
    assert workload.step_nbytes == nbytes


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


@pytest.mark.parametrize(
    "strategy",
    [CollectiveAllReduceStrategy(2, 2), MirroredStrategy(make_cluster(0, 2, 2))],
    ids=str,
)
def test_hints_are_obeyed_and_change_no_value(strategy: Strategy) -> None:
    """R-HINT-1: "whether to mirror the variable on host or not, whether to cast its updates to
    dense tensors". What an inner scope does not say is as the outer one says."""
    update = IndexedSlices(np.ones((3, 4), np.float32), np.array([1, 1, 5]))

    def trained(outer: Hints, inner: Hints) -> tuple[Any, int]:
        with strategy.hint_scope(outer), strategy.hint_scope(inner):
            variable = Variable(np.zeros((100, 4), np.float32))
        with track_transfers() as ledger:
            variable.scatter_add(update)
            variable.scatter_update(update)
        assert_equal_copies(variable)
        return variable, ledger.total("scatter_add").nbytes

    none, cast, on_host = Hints(), Hints(cast_updates_to_dense=True), Hints(mirror_on_host=True)
    neither = Hints(mirror_on_host=False, cast_updates_to_dense=False)
    hosts, rows, whole = ["worker:0", "worker:1"], 3 * 16, 100 * 16
    replicas = [f"{host}/GPU:{number}" for host in hosts for number in (0, 1)]
    for outer, inner, homes, nbytes in [
        (none, none, replicas, 4 * rows),
        (cast, none, replicas, 4 * whole),
        (none, on_host, hosts, 2 * rows),
        (cast, on_host, hosts, 2 * whole),
        (on_host, cast, hosts, 2 * whole),
        (cast | on_host, neither, replicas, 4 * rows),
    ]:
        variable, moved = trained(outer, inner)
        assert (places(variable), moved) == (homes, nbytes)
        assert variable.numpy()[[0, 1, 5]].tolist() == [[0] * 4, [1] * 4, [1] * 4]


def test_what_is_synchronized_on_read_has_a_copy_on_each_replica_whatever_is_said() -> None:
    """``run`` gives each replica its own value of what is per replica, and the whole of all else."""
    strategy = two_gpus()
    with (
        strategy.hint_scope(Hints(mirror_on_host=True)),
        strategy.variable_partitioning_scope(FixedShardsPartitioner(2)),
    ):
        count = Variable(arange(2), synchronization="ON_READ", aggregation="SUM")
    assert isinstance(count, SyncOnReadVariable)
    assert places(count) == [device.short_name for device in strategy.replica_devices]
    strategy.run(
        lambda each, all_: count.assign(each * all_),
        PerReplica([np.float32(3), np.float32(5)]),
        np.array([1, 10], np.float32),
    )
    assert count.numpy().tolist() == [8, 80]


def test_a_strategy_must_say_where_and_how_it_creates() -> None:
    strategy = Strategy()
    asks: list[Callable[[], object]] = [
        lambda: strategy.host_devices,
        lambda: strategy.replica_devices,
        lambda: strategy.experimental_create_sharded_variable("w", [2], "float32"),
        strategy.get_config,
    ]
    for ask in asks:
        with pytest.raises(NotImplementedError):
            ask()


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
def test_a_heuristic_names_the_bytes_that_it_compared() -> None:
    """Of 1000 rows of 64 bytes, a step touches 64 on each of 4 replicas. They come to the device
    and go back; to be gathered each has an id of 8 bytes more, and goes to 3 others."""
    load = Workload((1000, 16), "float32", 64, 4)
    choices: list[tuple[Choice, tuple[int, ...]]] = [
        (choose_mirror_or_shard(load, 1 << 10, 1 << 20), (64_000, 1 << 19)),
        (choose_mirror_or_shard(load, 1 << 10, 1 << 10), (64_000, 1 << 9)),
        (choose_host_or_device(load, 1 << 20), (64_000, 1 << 19)),
        (choose_host_or_device(load, 1 << 10), (64_000, 1 << 9, 2 * 64 * 64)),
        (choose_sparse_or_dense(load), (3 * 64 * (64 + 8), 64, 2 * 3 * 64_000 // 4)),
    ]
    for choice, compared in choices:
        assert tuple(map(int, re.findall(r"\d+", choice.reason))) == compared


def test_one_replica_exchanges_nothing() -> None:
    assert choose_sparse_or_dense(Workload((10, 1), "float32", 10, 1)).decision == "sparse"
    with pytest.raises(ArgumentError, match="Invalid workload"):
        Workload((10, 1), "float32", 10, 0)
