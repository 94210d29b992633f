"""Plain data: strategies are rebuilt from it, perhaps for another cluster, and nothing else is ever
made of it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

import shardvar as sv
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.shard_counts import FixedShardsPartitioner, MinSizePartitioner
from shardvar.reference.devices import Device, make_cluster
from shardvar.reference.training import deserialize, serialize
from shardvar.reference.training.strategies import (
    CollectiveAllReduceStrategy,
    HybridStrategy,
    MirroredStrategy,
    ParameterServerStrategy,
)
from shardvar.reference.variables import PerReplica, Variable
from spec_tests.helpers.distribution_strategies import Tall, arange, places, two_gpus


@pytest.mark.parametrize(
    "strategy",
    [
        ParameterServerStrategy(2, MinSizePartitioner(8, 3), ps_memory_limit=1 << 20),
        ParameterServerStrategy(0),
        two_gpus(),
        CollectiveAllReduceStrategy(2, 2),
        HybridStrategy(two_gpus(), ParameterServerStrategy(2, FixedShardsPartitioner(3)), Tall()),
        ParameterServerStrategy(3, sv.fixed_size_partitioner(3)),
        ParameterServerStrategy(
            3, sv.min_max_variable_partitioner(max_partitions=4, min_slice_size=8)
        ),
        ParameterServerStrategy(3, sv.variable_axis_size_partitioner(16, axis=0)),
    ],
    ids=str,
)
def test_a_strategy_is_rebuilt_from_what_json_holds(strategy: Any) -> None:
    """R-SERIAL-2 (RFC 002): "we have plans to serialize `Embedding` layers and Distribution
    Strategies". The partitioners that the RFCs name have a plain form."""
    data = json.loads(json.dumps(serialize(strategy)))
    again = deserialize(data)
    assert serialize(again) == data and type(again) is type(strategy)
    with strategy.scope():
        first = Variable(arange(9, 2), name="w")
    with again.scope():
        second = Variable(arange(9, 2), name="w")
    assert type(first) is type(second) and places(first) == places(second)


def test_a_strategy_is_rebuilt_for_another_number_of_servers() -> None:
    """R-SERIAL-1: "a cluster of different number of parameter servers"."""
    config = ParameterServerStrategy(2, FixedShardsPartitioner(5)).get_config()
    with ParameterServerStrategy.from_config(config | {"num_ps": 5}).scope():
        assert places(Variable(arange(5))) == [f"ps:{task}" for task in range(5)]


def test_what_has_no_plain_form_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="no plain form"):
        ParameterServerStrategy(2, lambda shape, dtype: [1]).get_config()
    with pytest.raises(ArgumentTypeError, match="no plain form"):
        HybridStrategy(two_gpus(), two_gpus(), lambda *_: None).get_config()
    uneven = (*make_cluster(num_ps=1).devices[:1], Device("ps:1", 10))
    with pytest.raises(ArgumentError, match="memory limits"):
        ParameterServerStrategy(type(make_cluster())(uneven)).get_config()


@pytest.mark.parametrize(
    "data",
    [
        3,
        "os.system",
        {"class_name": "FixedShardsPartitioner"},
        {"class_name": "system", "config": {}},
        {"class_name": ["x"], "config": {}},
        {"class_name": "FixedShardsPartitioner", "config": [3]},
        {"class_name": "FixedShardsPartitioner", "config": {"num_shards": 3, "command": "x"}},
        {"class_name": "ParameterServerStrategy", "config": {"num_ps": "two"}},
    ],
)
def test_plain_data_makes_registered_classes_alone(data: Any) -> None:
    with pytest.raises(ArgumentError):
        deserialize(data)


def test_wrong_arguments_are_refused_when_they_are_given() -> None:
    servers: Any = ParameterServerStrategy(2)
    attempts: list[Callable[[], Any]] = [
        lambda: ParameterServerStrategy(-1),
        lambda: ParameterServerStrategy("two"),  # type: ignore[arg-type]
        lambda: ParameterServerStrategy(True),
        lambda: ParameterServerStrategy(2, [2, 1]),  # type: ignore[arg-type]
        lambda: ParameterServerStrategy(make_cluster(2), ps_memory_limit=3),
        lambda: MirroredStrategy([]),
        lambda: MirroredStrategy(["GPU:0", "GPU:0"]),
        lambda: MirroredStrategy(["nonsense"]),
        lambda: MirroredStrategy([3]),  # type: ignore[list-item]
        *(lambda wrong=wrong: MirroredStrategy(wrong) for wrong in (2, None, 2.5)),  # type: ignore[misc]
        *(lambda wrong=wrong: CollectiveAllReduceStrategy(wrong) for wrong in (2.5, None)),  # type: ignore[misc]
        lambda: CollectiveAllReduceStrategy(2, "a"),  # type: ignore[arg-type]
        lambda: ParameterServerStrategy(None),  # type: ignore[arg-type]
        lambda: HybridStrategy(two_gpus(), None, lambda *_: None),  # type: ignore[arg-type]
        lambda: HybridStrategy(two_gpus(), two_gpus(), None),  # type: ignore[arg-type]
        lambda: two_gpus().hint_scope({}).__enter__(),  # type: ignore[arg-type]
        lambda: two_gpus().run(print, PerReplica([1])),
        lambda: two_gpus().experimental_create_sharded_variable("w", 3, "float32"),  # type: ignore[arg-type]
        lambda: servers.experimental_create_sharded_variable("w", [None, 2], "float32"),
        lambda: two_gpus().variable_partitioning_scope(3).__enter__(),  # type: ignore[arg-type]
        lambda: two_gpus().variable_partitioning_scope(None, []).__enter__(),
        lambda: two_gpus().variable_partitioning_scope(None, ["GPU:0"]).__enter__(),
        lambda: two_gpus().variable_partitioning_scope(None, [3]).__enter__(),  # type: ignore[list-item]
        lambda: two_gpus().variable_partitioning_scope(None, "GPU:0").__enter__(),
    ]
    for attempt in attempts:
        with pytest.raises(ArgumentError) as caught:
            attempt()
        assert caught.value.remedy
    assert places(Variable(arange(1))) == ["localhost:0"]
