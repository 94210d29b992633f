"""Layers: values and gradients against NumPy and finite differences, plain form, RFC 000's model in few lines."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.devices import track_transfers
from shardvar.errors import ArgumentError, LayoutError
from shardvar.layout.partition import PartitionSpec
from shardvar.layout.shard_counts import FixedShardsPartitioner, min_max_variable_partitioner
from shardvar.training import Module, deserialize, layers, serialize
from shardvar.training.strategies import MirroredStrategy, ParameterServerStrategy
from shardvar.variables import IndexedSlices, ShardedVariable, initializers, variable_creator_scope
from spec_tests.helpers.distribution_strategies import arange, places

ACTIVATIONS = [None, "linear", "relu", "sigmoid", "tanh"]


def plain_activation(name: str | None, x: Any) -> Any:
    return {"relu": lambda: np.maximum(x, 0), "sigmoid": lambda: 1 / (1 + np.exp(-x)), "tanh": lambda: np.tanh(x)}.get(
        name or "", lambda: x
    )()


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
def test_an_embedding_gives_rows_and_their_gradient_for_every_layout(sizes: list[int], ids: list[int]) -> None:
    """``value[i] == table[ids[i]]``; the gradient adds the upstream of equal ids, shard by shard."""
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
    for array, found in [(x, of_x), (kernel, total(pairs, layer.kernel)), (bias, total(pairs, layer.bias))]:
        slopes = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            around = []
            for sign in (1, -1):
                array[place] += sign * step
                around.append(np.sum(upstream * plain_activation(activation, x @ kernel + bias)))
                array[place] -= sign * step
            slopes[place] = (around[0] - around[1]) / (2 * step)
        assert np.allclose(found, slopes, rtol=1e-5, atol=1e-7)


def test_a_lookup_moves_the_rows_that_it_gives_and_no_others() -> None:
    with ParameterServerStrategy(4, FixedShardsPartitioner(4)).scope():
        table = layers.Embedding(1000, 8)
    with track_transfers() as ledger:
        table([3, 999])
    assert (ledger.nbytes, ledger.messages) == (2 * 8 * 4, 2)


def test_the_model_of_rfc_000_is_a_few_lines() -> None:
    """R-LAYER-1: its names, layouts and sizes; below the strategy a creator makes small parts of the large ones."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.user_embedding = layers.Embedding(vocab_size=600000, embedding_size=1000, name="user_embedding")
            self.item_embedding = layers.Embedding(vocab_size=60000, embedding_size=1000, name="item_embedding")
            self.dense_0 = layers.Dense(100, activation="sigmoid", name="dense_0", input_dim=2000)
            self.logits = layers.Dense(1, activation=None, input_dim=100)

        def __call__(self, user: Any, item: Any) -> Any:
            x = np.concatenate([self.user_embedding(user), self.item_embedding(item)], axis=-1)
            return self.logits(self.dense_0(x))

    def thin(next_creator: Any, **kwargs: Any) -> Any:
        shape = kwargs["shape"]
        if len(shape) == 2 and shape[1] == 1000:
            shape = (2, 1000)
        return next_creator(**kwargs | {"shape": shape, "initial_value": np.ones(shape, np.float32)})

    strategy = ParameterServerStrategy(3, min_max_variable_partitioner(max_partitions=10, min_slice_size=64 << 20))
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
    assert [places(layer.kernel) for layer in (outside, inside)] == [["ps:0", "ps:1"], ["ps:0", "ps:1"]]
    assert len(places(whole.kernel)) == 1 and places(free.kernel) == ["localhost:0"]
    assert [v.name for v in outside.variables] == [f"a/{v}/part_{p}" for v in ("bias", "kernel") for p in (0, 1)]
    assert [v.name for v in free.variables] == ["dense/bias", "dense/kernel"]


@pytest.mark.parametrize(
    "layer",
    [
        layers.Embedding(9, 2, initializers.RandomUniform(seed=4, seed_mode="global"), max_norm=1.5, name="table"),
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
    """R-SERIAL-2: the same plain data, two servers or five; with seed_mode="global" the same values too."""
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


def test_initializers_are_named_as_in_keras() -> None:
    kinds = {"uniform": "RandomUniform", "glorot_uniform": "GlorotUniform", "zeros": "Zeros", "he_normal": "HeNormal"}
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
        lambda: layers.Dense.from_config({"units": 2, "unit": 3}),
    ],
)
def test_what_cannot_be_meant_is_refused(attempt: Any) -> None:
    with pytest.raises((ArgumentError, LayoutError)):
        attempt()
