"""One model, unchanged, under every strategy."""

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from shardvar.errors import ArgumentError
from shardvar.layout.partition import PartitionSpec
from shardvar.layout.shard_counts import FixedShardsPartitioner
from shardvar.reference.devices import track_transfers
from shardvar.reference.nn import gradient
from shardvar.reference.training import Module, layers, optimizers
from shardvar.reference.training.strategies import (
    CollectiveAllReduceStrategy,
    Hints,
    HybridStrategy,
    MirroredStrategy,
    ParameterServerStrategy,
    Strategy,
)
from shardvar.reference.variables import (
    MirroredVariable,
    PerReplica,
    initializers,
)
from spec_tests.helpers.distribution_strategies import Tall, assert_equal_copies, places, two_gpus


class Recommender(Module):
    """RFC 000's model, small."""

    def __init__(self) -> None:
        super().__init__()
        self.user = layers.Embedding(
            11, 3, initializers.RandomUniform(seed=1, seed_mode="global"), name="user"
        )
        self.item = layers.Embedding(
            7, 3, initializers.RandomUniform(seed=2, seed_mode="global"), name="item"
        )
        draw = initializers.GlorotUniform(seed=3, seed_mode="global")
        self.hidden = layers.Dense(
            4, "sigmoid", kernel_initializer=draw, name="dense_0", input_dim=6
        )
        self.logits = layers.Dense(1, kernel_initializer=draw, name="dense_1", input_dim=4)

    def loss(self, user: Any, item: Any, wanted: Any) -> tuple[float, list[Any]]:
        """Half the squared error, and its gradients."""
        of_user, pull_user = self.user.vjp(user)
        of_item, pull_item = self.item.vjp(item)
        hidden, pull_hidden = self.hidden.vjp(np.concatenate([of_user, of_item], axis=1))
        logits, pull_logits = self.logits.vjp(hidden)
        error = logits[:, 0] - wanted
        pairs, upstream = pull_logits(error[:, None])
        more, upstream = pull_hidden(upstream)
        both = [pull_user(upstream[:, :3])[0], pull_item(upstream[:, 3:])[0]]
        return float(np.sum(error * error) / 2), [*pairs, *more, *both[0], *both[1]]


def train(
    strategy: Strategy | None, make_optimizer: Callable[[], Any], steps: int = 3
) -> tuple[list[float], list[Any]]:
    """Losses, and the variables by name, sharded ones concatenated."""
    rng = np.random.default_rng(0)
    batch = rng.integers(0, 11, 6), rng.integers(0, 7, 6), rng.random(6).astype(np.float32)
    with nullcontext() if strategy is None else strategy.scope():
        model, optimizer = Recommender(), make_optimizer()
    losses = [optimizer.minimize(lambda: model.loss(*batch), model) for _ in range(steps)]
    tables = [
        model.user.embeddings,
        model.item.embeddings,
        model.hidden.kernel,
        model.hidden.bias,
        model.logits.kernel,
    ]
    for table in tables:
        if isinstance(table, MirroredVariable):
            assert_equal_copies(table)
    return losses, [np.asarray(table) for table in tables]


def strategies() -> list[Strategy]:
    return [
        ParameterServerStrategy(3),
        ParameterServerStrategy(3, FixedShardsPartitioner(3)),
        ParameterServerStrategy(2, lambda shape, dtype: PartitionSpec(splits=[[1, shape[0] - 1]])),
        ParameterServerStrategy(0, FixedShardsPartitioner(2)),
        MirroredStrategy(["GPU:0", "GPU:1"]),
        CollectiveAllReduceStrategy(2, 2),
        HybridStrategy(two_gpus(), ParameterServerStrategy(2, FixedShardsPartitioner(4)), Tall()),
    ]


@pytest.mark.parametrize(
    "make_optimizer",
    [optimizers.Adagrad, optimizers.Adam],
    ids=lambda o: o.__name__,
)
def test_one_model_unchanged_trains_alike_under_every_strategy(
    make_optimizer: Callable[[], Any],
) -> None:
    """R-STRATEGY-1 (RFC 002): "resistant to changes when we switch between distribution
    strategies".

    RFC 000: "without requiring users to rewrite their model code". Of shards, sums differ in their
    order alone.
    """
    losses, tables = train(None, make_optimizer)
    for strategy in strategies():
        other_losses, other_tables = train(strategy, make_optimizer)
        assert np.allclose(losses, other_losses, rtol=1e-6), strategy
        for one, other in zip(tables, other_tables, strict=True):
            assert np.allclose(one, other, rtol=1e-5, atol=1e-6), strategy


def test_a_copy_of_a_module_shares_its_strategy() -> None:
    strategy = ParameterServerStrategy(2)
    with strategy.scope():
        layer = layers.Dense(2)
    twin = deepcopy(layer)
    twin([[1.0]])
    assert places(twin.kernel) == ["ps:0"] and deepcopy(strategy) is strategy


def test_replicas_that_share_a_batch_train_as_one_that_has_it_all() -> None:
    """``run`` on parts of the batch, ``reduce`` their gradients, apply the sum: the step of the
    whole batch."""
    rng = np.random.default_rng(1)
    users, items, wanted = (
        rng.integers(0, 11, 8),
        rng.integers(0, 7, 8),
        rng.random(8).astype(np.float32),
    )
    strategy = CollectiveAllReduceStrategy(2, 2)
    with strategy.scope():
        shared, alone = Recommender(), Recommender()
        optimizer = optimizers.SGD(0.1)
    optimizer.minimize(lambda: alone.loss(users, items, wanted), alone)

    def gradients(rows: slice) -> list[Any]:
        loss, pairs = shared.loss(users[rows], items[rows], wanted[rows])
        return [np.float32(loss), gradient(pairs, shared.trainable_variables)]

    parts = PerReplica([slice(start, start + 2) for start in range(0, 8, 2)])
    with track_transfers() as ledger:
        per_replica = strategy.run(gradients, parts)
        assert ledger.transfers == ()  # every replica reads its own copy
        loss, reduced = strategy.reduce("sum", per_replica)
    assert np.isclose(loss, alone_loss(users, items, wanted)) and ledger.messages > 0
    assert {row.operation for row in ledger.transfers} == {"reduce"}
    optimizer.apply_gradients(zip(reduced, shared.trainable_variables, strict=True))
    for one, other in zip(shared.variables, alone.variables, strict=True):
        assert np.allclose(one, other, rtol=1e-5, atol=1e-6)
        assert_equal_copies(one)


def alone_loss(*batch: Any) -> float:
    """What a fresh model loses."""
    return Recommender().loss(*batch)[0]


def test_what_replicas_cannot_agree_on_is_refused() -> None:
    strategy = two_gpus()
    assert strategy.reduce("mean", PerReplica([[None, 1.0], [None, 3.0]])) == [None, 2.0]
    for values in ([None, 1.0], [[1.0], [1.0, 2.0]]):
        with pytest.raises(ArgumentError):
            strategy.reduce("sum", PerReplica(values))


SAID: dict[str, Callable[[Strategy], Any]] = {
    "cut over the replicas": lambda s: s.variable_partitioning_scope(FixedShardsPartitioner(3)),
    "cut over the hosts": lambda s: s.variable_partitioning_scope(
        FixedShardsPartitioner(3), s.host_devices
    ),
    "copies on the hosts": lambda s: s.hint_scope(Hints(mirror_on_host=True)),
    "updates cast to dense": lambda s: s.hint_scope(Hints(cast_updates_to_dense=True)),
}


@pytest.mark.parametrize("said", sorted(SAID))
def test_what_is_said_to_a_strategy_changes_where_variables_are_and_not_what_they_learn(
    said: str,
) -> None:
    losses, tables = train(None, optimizers.SGD)
    for strategy in strategies():
        with SAID[said](strategy):
            other_losses, other_tables = train(strategy, optimizers.SGD)
        assert np.allclose(losses, other_losses, rtol=1e-6), strategy
        for one, other in zip(tables, other_tables, strict=True):
            assert np.allclose(one, other, rtol=1e-5, atol=1e-6), strategy
