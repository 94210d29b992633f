"""Layers: values and gradients against NumPy and finite differences, plain form, RFC 000's model in
few lines."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, LayoutError
from shardvar.layout.partition import PartitionSpec
from shardvar.layout.shard_counts import FixedShardsPartitioner, min_max_variable_partitioner
from shardvar.reference.nn import plan_shuffled_rows
from shardvar.reference.objects.checkpoint import Checkpoint
from shardvar.reference.training import Module, deserialize, layers, serialize
from shardvar.reference.training.optimizers import Adam
from shardvar.reference.training.strategies import MirroredStrategy, ParameterServerStrategy
from shardvar.reference.variables import (
    IndexedSlices,
    ShardedVariable,
    initializers,
    variable_creator_scope,
)
from spec_tests.helpers.distribution_strategies import arange, places

ACTIVATIONS = [None, "linear", "relu", "sigmoid", "tanh"]


def plain_activation(name: str | None, x: Any) -> Any:
    return {
        "relu": lambda: np.maximum(x, 0),
        "sigmoid": lambda: 1 / (1 + np.exp(-x)),
        "tanh": lambda: np.tanh(x),
    }.get(name or "", lambda: x)()


def total(pairs: Any, variable: Any) -> np.ndarray[Any, Any]:
    """The gradient of a whole variable, put together from those of its shards."""
    shards = variable.variables if isinstance(variable, ShardedVariable) else [variable]
    parts = []
    for shard in shards:
        (part,) = [part for part, owner in pairs if owner is shard]
        parts.append(part.to_dense() if isinstance(part, IndexedSlices) else part)
    return np.concatenate(parts)


@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(sum),
    ids=st.lists(st.integers(0, 99), max_size=6),
)
def test_an_embedding_gives_rows_and_their_gradient_for_every_layout(
    sizes: list[int], ids: list[int]
) -> None:
    """``value[i] == table[ids[i]]``; the gradient adds the upstream of equal ids, shard by
    shard."""
    rows = sum(sizes)
    chosen = np.array(ids, np.int64).reshape(-1, 1) % rows
    with ParameterServerStrategy(2, lambda shape, dtype: PartitionSpec(splits=[sizes])).scope():
        layer = layers.Embedding(rows, 3, initializers.Constant(arange(rows, 3)))
    value, pullback = layer.vjp(chosen)
    assert np.array_equal(value, arange(rows, 3)[chosen]) and np.array_equal(value, layer(chosen))
    upstream = arange(*value.shape) + 1
    pairs, of_ids = pullback(upstream)
    expected = np.zeros((rows, 3), np.float32)
    np.add.at(expected, chosen, upstream)
    assert of_ids is None and np.array_equal(total(pairs, layer.embeddings), expected)
    assert [shard for _, shard in pairs] == [*layer.trainable_variables]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_dense_layer_is_numpys_and_its_gradient_that_of_finite_differences(
    activation: str | None, shards: int
) -> None:
    rng = np.random.default_rng(3)
    kernel, bias = rng.normal(size=(5, 4)), rng.normal(size=4)
    x, upstream = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 3, 4))
    with ParameterServerStrategy(2, FixedShardsPartitioner(shards)).scope():
        draws = initializers.Constant(kernel), initializers.Constant(bias)
        layer = layers.Dense(4, activation, True, *draws, dtype="float64")
    value, pullback = layer.vjp(x)
    assert np.allclose(value, plain_activation(activation, x @ kernel + bias), rtol=1e-12)
    pairs, of_x = pullback(upstream)
    step = 1e-6
    for array, found in [
        (x, of_x),
        (kernel, total(pairs, layer.kernel)),
        (bias, total(pairs, layer.bias)),
    ]:
        slopes = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            around = []
            for sign in (1, -1):
                array[place] += sign * step
                around.append(np.sum(upstream * plain_activation(activation, x @ kernel + bias)))
                array[place] -= sign * step
            slopes[place] = (around[0] - around[1]) / (2 * step)
        assert np.allclose(found, slopes, rtol=1e-5, atol=1e-7)


def test_the_model_of_rfc_000_is_a_few_lines() -> None:
    """R-LAYER-1: its names, layouts and sizes; below the strategy a creator makes small parts of
    the large ones."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.user_embedding = layers.Embedding(
                vocab_size=600000, embedding_size=1000, name="user_embedding"
            )
            self.item_embedding = layers.Embedding(
                vocab_size=60000, embedding_size=1000, name="item_embedding"
            )
            self.dense_0 = layers.Dense(100, activation="sigmoid", name="dense_0", input_dim=2000)
            self.logits = layers.Dense(1, activation=None, input_dim=100)

        def __call__(self, user: Any, item: Any) -> Any:
            x = np.concatenate([self.user_embedding(user), self.item_embedding(item)], axis=-1)
            return self.logits(self.dense_0(x))

    def thin(next_creator: Any, **kwargs: Any) -> Any:
        shape = kwargs["shape"]
        if len(shape) == 2 and shape[1] == 1000:
            shape = (2, 1000)
        return next_creator(
            **kwargs | {"shape": shape, "initial_value": np.ones(shape, np.float32)}
        )

    strategy = ParameterServerStrategy(
        3, min_max_variable_partitioner(max_partitions=10, min_slice_size=64 << 20)
    )
    with variable_creator_scope(thin), strategy.scope():
        model = Model()
    assert len(model.user_embedding.embeddings.variables) == 10
    assert len(model.item_embedding.embeddings.variables) == 3
    assert not isinstance(model.dense_0.kernel, ShardedVariable)
    assert model.user_embedding.embeddings.variables[0].name == "user_embedding/embeddings/part_0"
    assert len(model.trainable_variables) == 10 + 3 + 4
    assert model([0, 19], [5, 1]).shape == (2, 1)


def test_a_layer_is_built_under_the_strategy_that_it_was_made_under() -> None:
    """Even after the scope was left, and in another partitioning scope of the same strategy's."""
    strategy = ParameterServerStrategy(2, FixedShardsPartitioner(2))
    with strategy.scope():
        outside, inside = layers.Dense(3, name="a"), layers.Dense(3, name="b")
        with strategy.variable_partitioning_scope(None):
            whole = layers.Dense(3, name="c")
    outside(arange(2, 4))
    with strategy.variable_partitioning_scope(None):
        inside(arange(2, 4))
    whole(arange(2, 4))
    free = layers.Dense(3)
    free(arange(2, 4))
    assert [places(layer.kernel) for layer in (outside, inside)] == [
        ["ps:0", "ps:1"],
        ["ps:0", "ps:1"],
    ]
    assert len(places(whole.kernel)) == 1 and places(free.kernel) == ["localhost:0"]
    assert [v.name for v in outside.variables] == [
        f"a/{v}/part_{p}" for v in ("bias", "kernel") for p in (0, 1)
    ]
    assert [v.name for v in free.variables] == ["dense/bias", "dense/kernel"]


@pytest.mark.parametrize(
    "layer",
    [
        layers.Embedding(
            9, 2, initializers.RandomUniform(seed=4, seed_mode="global"), max_norm=1.5, name="table"
        ),
        layers.Embedding(9, 2, dtype="bfloat16"),
        layers.Dense(2, "tanh", kernel_initializer=initializers.HeNormal(seed=1), input_dim=3),
        layers.Dense(2, use_bias=False, kernel_initializer=initializers.Constant([1.0, 2.0])),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_is_rebuilt_from_what_json_holds(layer: Any) -> None:
    data = json.loads(json.dumps(serialize(layer)))
    again = deserialize(data)
    assert serialize(again) == data
    assert [(v.name, v.shape, v.dtype) for v in again.variables] == [
        (v.name, v.shape, v.dtype) for v in layer.variables
    ]


def test_an_embedding_is_rebuilt_with_another_number_of_servers() -> None:
    """R-SERIAL-2: the same plain data, two servers or five; with seed_mode="global" the same values
    too."""
    strategy = ParameterServerStrategy(2, FixedShardsPartitioner(5))
    draw = initializers.RandomUniform(seed=4, seed_mode="global")
    with strategy.scope():
        layer = layers.Embedding(11, 2, draw, name="table")
    data = json.loads(json.dumps([serialize(strategy), serialize(layer)]))
    larger = deserialize(data[0], num_ps=5)
    with larger.scope():
        again = deserialize(data[1])
    assert places(again.embeddings) == [f"ps:{task}" for task in range(5)]
    assert again.name == "table" and np.array_equal(layer.embeddings, again.embeddings)
    with MirroredStrategy(["GPU:0", "GPU:1"]).scope():
        assert np.array_equal(deserialize(data[1]).embeddings, layer.embeddings)


# Rebalancing, in the layer.


SHUFFLED: dict[str, Any] = {"rebalance": True}
BALANCED: dict[str, Any] = {"frequencies": [1, 1, 1, 1, 5, 5, 9]}
BY_MAP: dict[str, Any] = {"rebalance": True, "frequencies": {6: 9, 4: 5, 5: 5}}


def made_of(strategy: Any, **more: Any) -> Any:
    """The layer of a strategy, whose draws do not depend on its shards."""
    with strategy.scope():
        draw = initializers.RandomUniform(seed=5, seed_mode="global")
        return layers.Embedding(7, 2, draw, max_norm=0.06, name="table", **more)


STRATEGIES: dict[str, Any] = {
    "two servers": lambda: ParameterServerStrategy(2, FixedShardsPartitioner(2)),
    "uneven": lambda: ParameterServerStrategy(
        2, lambda shape, dtype: PartitionSpec(splits=[[1, 0, 4, 2]])
    ),
    "one server": lambda: ParameterServerStrategy(1),
    "mirrored": lambda: MirroredStrategy(["GPU:0", "GPU:1"]),
}


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize(
    "how", [SHUFFLED, BALANCED, BY_MAP], ids=["shuffled", "balanced", "by a map"]
)
def test_a_rebalanced_embedding_answers_and_learns_as_one_that_is_not(
    strategy: str, how: Any
) -> None:
    """R-BALANCE-1 (RFC 002): "remember the mapping in a variable": an id finds its vector, wherever
    its row is."""
    plain, balanced = made_of(STRATEGIES[strategy]()), made_of(STRATEGIES[strategy](), **how)
    ids = np.arange(7)
    rows = np.asarray(balanced.rows_of(ids))
    assert sorted(rows.tolist()) == list(range(7)) and rows.tolist() != ids.tolist()
    assert np.asarray(plain.rows_of(ids)).tolist() == ids.tolist()
    if how is SHUFFLED:
        assert rows.tolist() == plan_shuffled_rows(7, seed=0).tolist()
    assert np.array_equal(np.asarray(balanced.embeddings)[rows], np.asarray(plain.embeddings))
    optimizers = Adam(0.1), Adam(0.1)
    for batch in ([[0, 6], [3, 3]], [[2, 2], [2, 5]]):
        for layer, optimizer in zip((plain, balanced), optimizers, strict=True):
            value, pull = layer.vjp(batch)
            assert np.array_equal(value, layer(batch))
            optimizer.apply_gradients(pull(np.ones_like(value))[0])
        assert np.array_equal(plain(ids), balanced(ids))
    assert np.asarray(balanced.rows_of(ids)).tolist() == rows.tolist(), "the mapping is not trained"
    assert {variable.name.split("/")[1] for variable in balanced.non_trainable_variables} == {
        "row_of_id"
    }


def test_the_mapping_is_saved_with_the_table_and_restored_to_another_number_of_shards(
    tmp_path: Path,
) -> None:
    layer = made_of(STRATEGIES["two servers"](), **BALANCED)
    wanted = layer(np.arange(7))
    Checkpoint(model=layer).write(tmp_path / "model")
    for name in sorted(STRATEGIES):
        other = made_of(STRATEGIES[name](), rebalance=True)
        Checkpoint(model=other).read(tmp_path / "model").assert_consumed()
        assert np.array_equal(other(np.arange(7)), wanted)


def test_initializers_are_named_as_in_keras() -> None:
    kinds = {
        "uniform": "RandomUniform",
        "glorot_uniform": "GlorotUniform",
        "zeros": "Zeros",
        "he_normal": "HeNormal",
    }
    for name, kind in kinds.items():
        config = layers.Embedding(2, 2, name).get_config()
        assert config["embeddings_initializer"]["class_name"] == kind
    assert layers.Embedding(input_dim=3, output_dim=2).embeddings.shape == (3, 2)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: layers.Embedding(3),
        lambda: layers.Embedding(3, 2, input_dim=3),
        lambda: layers.Embedding(-1, 2),
        lambda: layers.Embedding(2.5, 2),
        lambda: layers.Embedding(3, 2, "initializer"),
        lambda: layers.Embedding(3, 2, "nonesuch"),
        lambda: layers.Embedding(3, 2)([3]),
        lambda: layers.Embedding(3, 2)([0.5]),
        lambda: layers.Dense(0),
        lambda: layers.Dense(True),
        lambda: layers.Dense(2, "swish"),
        lambda: layers.Dense(2)([1.0, 2.0]),
        lambda: layers.Dense(2, input_dim=3)([[1.0, 2.0]]),
        lambda: layers.Dense(2).vjp([[1.0]])[1]([[1.0]]),
        lambda: layers.Embedding(3, 2).vjp([1])[1]([[1.0]]),
        lambda: layers.Embedding(3, 2, frequencies=[1.0]),
        lambda: layers.Embedding(3, 2, frequencies={3: 1}),
        lambda: layers.Embedding(3, 2, frequencies="abc"),
        lambda: layers.Dense.from_config({"units": 2, "unit": 3}),
    ],
)
def test_what_cannot_be_meant_is_refused(attempt: Any) -> None:
    with pytest.raises((ArgumentError, LayoutError)):
        attempt()


def test_a_layer_must_define_its_value_and_its_arguments() -> None:
    layer = layers.Layer()
    with pytest.raises(NotImplementedError):
        layer.vjp(np.ones(2))
    with pytest.raises(NotImplementedError):
        layer.get_config()
