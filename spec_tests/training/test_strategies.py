"""Strategies: what becomes of a variable, where it lives, and whose word counts."""

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, ArgumentTypeError, DeviceFull, LayoutError, ScopeError
from shardvar.layout.partition import PartitionSpec, div
from shardvar.layout.shard_counts import FixedShardsPartitioner, min_max_variable_partitioner
from shardvar.reference.devices import Device, make_cluster, track_transfers
from shardvar.reference.training.strategies import (
    CollectiveAllReduceStrategy,
    HybridStrategy,
    MirroredStrategy,
    ParameterServerStrategy,
    Strategy,
)
from shardvar.reference.training.strategies.strategy import Workload
from shardvar.reference.variables import (
    AggregatingVariable,
    MirroredVariable,
    PerReplica,
    ResourceVariable,
    ShardedVariable,
    Variable,
    initializers,
    variable_creator_scope,
)
from shardvar.reference.variables.interface import VariableInterface
from spec_tests.helpers.distribution_strategies import arange, places, two_gpus


# Parameter servers.
def test_the_worked_example_of_rfc_000() -> None:
    """R-PSS-1, R-PART-3: "user_embedding is partitioned to 10 shards", the dense layers are not
    partitioned."""
    partitioner = min_max_variable_partitioner(max_partitions=10, min_slice_size=64 << 20)
    made: list[tuple[tuple[int, ...], int]] = []

    def without_memory(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Stands below the strategy: notes each part, and makes a small one in its place."""
        made.append((kwargs["shape"], kwargs["device"]))
        small = (1,) * len(kwargs["shape"])
        return next_creator(
            **kwargs | {"shape": small, "initial_value": np.zeros(small, np.float32)}
        )

    strategy = ParameterServerStrategy(3, partitioner)
    with variable_creator_scope(without_memory), strategy.scope():
        user = Variable(
            initializers.Zeros(), shape=(600000, 1000), dtype="float32", name="user_embedding"
        )
        item = Variable(
            initializers.Zeros(), shape=(60000, 1000), dtype="float32", name="item_embedding"
        )
        dense = Variable(initializers.Zeros(), shape=(2000, 100), dtype="float32", name="dense_0")
    assert [len(v.variables) for v in (user, item)] == [10, 3]
    assert not isinstance(dense, ShardedVariable)
    sizes = [shape[0] * 1000 * 4 for shape, _ in made[:13]]
    assert sizes == [240_000_000] * 10 + [80_000_000] * 3


@given(
    num_ps=st.integers(1, 4),
    shards=st.integers(1, 5),
    extents=st.lists(st.one_of(st.none(), st.integers(0, 7)), max_size=8),
)
def test_the_round_goes_on_over_parts_and_variables(
    num_ps: int, shards: int, extents: list[int | None]
) -> None:
    """R-PSS-2 (RFC 000): "always partitions variables among parameter servers".

    Turn t is on server t mod num_ps; a part is a turn, a plain variable is a turn; None is a
    scalar.
    """
    strategy = ParameterServerStrategy(num_ps, FixedShardsPartitioner(shards))
    with strategy.scope():
        variables = [
            Variable(np.float32(0) if n is None else arange(n), name=f"v{i}")
            for i, n in enumerate(extents)
        ]
    homes = [place for variable in variables for place in places(variable)]
    assert homes == [f"ps:{turn % num_ps}" for turn in range(len(homes))]
    for i, (n, variable) in enumerate(zip(extents, variables, strict=True)):
        parts = 1 if n is None else max(1, min(n, shards))
        if parts == 1:
            assert isinstance(variable, ResourceVariable) and variable.name == f"v{i}"
        else:
            assert [part.name for part in variable.variables] == [
                f"v{i}/part_{p}" for p in range(parts)
            ]
            cuts = [(part.shape[0]) for part in variable.variables]
            assert cuts == [stop - start for start, stop in div(n or 0, parts)]


def test_a_part_that_cannot_be_made_gives_its_turns_back() -> None:
    strategy = ParameterServerStrategy(3, FixedShardsPartitioner(3), ps_memory_limit=16)
    with strategy.scope():
        Variable(np.float32(0))
        with pytest.raises(DeviceFull):
            Variable(arange(30))
        assert places(Variable(np.float32(0))) == ["ps:1"]


def test_what_is_colocated_is_whole_where_the_other_is_and_takes_no_turn() -> None:
    """R-CREATE-3: "created as normal variables residing in the same device as the colocated_with
    variable"."""
    strategy = ParameterServerStrategy(3, FixedShardsPartitioner(2))
    with strategy.scope():
        a = Variable(arange(4), name="a")
        b = Variable(arange(4), name="b", colocated_with=a.variables[1])
        c = Variable(np.float32(0), name="c")
    assert isinstance(b, ResourceVariable)
    assert (places(a), places(b), places(c)) == (["ps:0", "ps:1"], ["ps:1"], ["ps:2"])


@pytest.mark.parametrize(("num_ps", "offered"), [(0, 1), (1, 1), (4, 4)])
def test_partitioners_of_three_arguments_get_the_number_of_servers(
    num_ps: int, offered: int
) -> None:
    """R-PSS-3: "The number of shards is the number of ps in multi-worker case and 1 in local case." """
    asked = []

    def partitioner(num_shards: int, shape: tuple[int, ...], dtype: Any) -> list[int]:
        asked.append((num_shards, shape, np.dtype(dtype)))
        return [num_shards, 1]

    with ParameterServerStrategy(num_ps, partitioner).scope():
        variable = Variable(arange(8, 2))
    assert asked == [(offered, (8, 2), np.dtype(np.float32))]
    assert len(variable.resources) == offered


def test_the_local_case_keeps_variables_where_the_program_computes() -> None:
    with ParameterServerStrategy(0, FixedShardsPartitioner(2)).scope():
        assert places(Variable(arange(4))) == ["localhost:0"] * 2


def test_each_part_is_made_where_it_will_live_and_the_whole_never_is() -> None:
    """R-INIT-3: a limit that no whole value would fit, and nothing crosses."""
    strategy = ParameterServerStrategy(4, FixedShardsPartitioner(4), ps_memory_limit=2 * 25 * 8 * 4)
    with track_transfers() as ledger, strategy.scope():
        variable = Variable(initializers.RandomUniform(seed=1), shape=(100, 8), dtype="float32")
    assert ledger.nbytes == 0 and len(variable.variables) == 4


@pytest.mark.parametrize("answer", [[1, 2], [0, 1], [], (2, 2), [2.0, 1], "21", None, 2, [2, 1, 1]])
def test_an_answer_that_is_no_layout_is_refused_and_named(answer: Any) -> None:
    strategy = ParameterServerStrategy(2, lambda shape, dtype: answer)
    with strategy.scope(), pytest.raises(LayoutError) as refused:
        Variable(arange(4, 2))
    assert repr(answer) in refused.value.cause


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


# Scopes.
def test_a_partitioning_scope_overrides_and_ends() -> None:
    """R-PARTSCOPE-1: "Per-layer partitioner overwrites strategy-level partitioner." """
    strategy = ParameterServerStrategy(2, FixedShardsPartitioner(2))
    with strategy.scope():
        with strategy.variable_partitioning_scope(FixedShardsPartitioner(3)):
            inner = Variable(arange(6))
            with strategy.variable_partitioning_scope(None):
                whole = Variable(arange(6))
        outer = Variable(arange(6))
    with strategy.variable_partitioning_scope(lambda shape, dtype: PartitionSpec(splits=[[1, 5]])):
        alone = Variable(arange(6))
    plain = Variable(arange(6))
    found = [
        [resource.array.shape[0] for resource in v.resources]
        for v in (inner, whole, outer, alone, plain)
    ]
    assert found == [[2, 2, 2], [6], [3, 3], [1, 5], [6]]


@pytest.mark.parametrize("make", [lambda: ParameterServerStrategy(3), two_gpus])
def test_partition_devices_are_obeyed(make: Callable[[], Strategy]) -> None:
    strategy = make()
    chosen = [Device("worker:7"), Device("worker:8")]
    with strategy.variable_partitioning_scope(FixedShardsPartitioner(3), partition_devices=chosen):
        assert places(Variable(arange(6))) == ["worker:7", "worker:8", "worker:7"]


def test_mirroring_strategies_partition_on_replicas_by_default_or_on_hosts() -> None:
    """R-PARTSCOPE-2: "Defaults to replica devices"; R-MIRROR-4: "on hosts of each worker, or on the
    replicas"."""
    strategy = CollectiveAllReduceStrategy(num_workers=2, replicas_per_worker=2)
    offered = []

    def by_devices(num_shards: int, shape: tuple[int, ...], dtype: Any) -> list[int]:
        offered.append(num_shards)
        return [num_shards]

    with strategy.scope(), strategy.variable_partitioning_scope(by_devices):
        replicas = Variable(arange(8), name="w")
    with strategy.scope(), strategy.variable_partitioning_scope(by_devices, strategy.host_devices):
        hosts = Variable(arange(8), name="w")
    assert isinstance(replicas, ShardedVariable) and isinstance(hosts, ShardedVariable)
    assert places(replicas) == [
        "worker:0/GPU:0",
        "worker:0/GPU:1",
        "worker:1/GPU:0",
        "worker:1/GPU:1",
    ]
    assert places(hosts) == ["worker:0", "worker:1"]
    with strategy.variable_partitioning_scope(by_devices, ["worker:1", "worker:0/GPU:1"]):
        named = Variable(arange(8))
    assert (
        places(named) == ["worker:1", "worker:0/GPU:1"]
        and named.devices[0] is strategy.host_devices[1]
    )
    assert offered == [4, 2, 2]
    assert [shard.name for shard in hosts.variables] == ["w/part_0", "w/part_1"]


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


def test_a_scope_is_a_threads_own() -> None:
    made: list[Any] = []
    with ParameterServerStrategy(1).scope():
        thread = threading.Thread(target=lambda: made.append(Variable(arange(2))))
        thread.start()
        thread.join()
    assert places(made[0]) == ["localhost:0"]


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
    by_strategy = strategy.experimental_create_sharded_variable("t", (7, 2), "float32")
    given_counts = strategy.experimental_create_sharded_variable("t", (7, 2), "float32", [3, 1])
    given_sizes = strategy.experimental_create_sharded_variable(
        "t",
        (7, 2),
        "int64",
        partitions=PartitionSpec(splits=[[6, 1]]),
        initializer=initializers.Ones(),
    )
    with strategy.variable_partitioning_scope(FixedShardsPartitioner(4)):
        by_scope = strategy.experimental_create_sharded_variable("t", (7, 2), "float32")
        given_in_scope = strategy.experimental_create_sharded_variable(
            "t", (7, 2), "float32", [2, 1]
        )
    one = ParameterServerStrategy(2).experimental_create_sharded_variable("t", (7, 2), "float32")
    made = (by_strategy, given_counts, given_sizes, by_scope, given_in_scope, one)
    heights = [[part.shape[0] for part in variable.variables] for variable in made]
    assert heights == [[4, 3], [3, 2, 2], [6, 1], [2, 2, 2, 1], [4, 3], [7]]
    assert all(isinstance(variable, ShardedVariable) and variable.name == "t" for variable in made)
    assert np.array_equal(by_strategy, np.zeros((7, 2))) and np.array_equal(
        given_sizes, np.ones((7, 2))
    )
    assert given_sizes.dtype == np.int64
    with pytest.raises(ArgumentError, match="scalar"):
        strategy.experimental_create_sharded_variable("s", (), "float32")
    with pytest.raises(LayoutError):
        strategy.experimental_create_sharded_variable("t", (7, 2), "float32", [1, 2])


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: MirroredStrategy(2),
        lambda: MirroredStrategy(None),
        lambda: MirroredStrategy(2.5),
        lambda: MirroredStrategy([2]),
        lambda: CollectiveAllReduceStrategy(2.5),
        lambda: CollectiveAllReduceStrategy(None),
        lambda: CollectiveAllReduceStrategy(2, "a"),
        lambda: ParameterServerStrategy(None),
    ],
)
def test_a_strategy_of_what_is_not_devices_or_a_number_is_refused(make: Any) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        make()
    assert caught.value.remedy


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
