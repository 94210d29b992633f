"""RFC 000's recommendation model, three times: on sharded variables, by hand on NumPy's arrays, and
in TensorFlow.

Users and items have embeddings; both, side by side, go through a hidden layer of 100 sigmoids to
one logit, which says whether the user takes the item. All begin with the same numbers, and a step
is all of training: lookups, the loss, its gradients, and the optimizer's update of the rows that
were looked up and of the two dense layers.

NumPy's is written as a good user of NumPy would: ``np.take``, BLAS products, sums of the rows that
come several times by sorting and ``np.add.reduceat``, which is faster than ``np.add.at`` and as
exact.
"""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import shardvar as sv

HIDDEN = 100
"""Units of the hidden layer, as in the RFC."""
RATE = 0.05
"""The learning rate."""
NUM_SERVERS = 3

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Values = Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch of one training step."""

    users: Ints
    """[batch]"""
    items: Ints
    """[batch]"""
    taken: Floats
    """1 where the user took the item, 0 elsewhere, [batch]."""


class Recommender(Protocol):
    """The model, with its optimizer."""

    def step(self, batch: Batch) -> Any:
        """Train on a batch, and return the loss."""

    def values(self) -> Values:
        """Its parameters by name."""


def initial_values(users: int, items: int, dim: int) -> Values:
    """The initial values that all three share."""
    draws = np.random.default_rng(0)
    shapes = {
        "user": (users, dim),
        "item": (items, dim),
        "kernel_0": (2 * dim, HIDDEN),
        "kernel_1": (HIDDEN, 1),
    }
    kernels = {
        name: draws.uniform(-0.1, 0.1, shape).astype(np.float32) for name, shape in shapes.items()
    }
    return kernels | {"bias_0": np.zeros(HIDDEN, np.float32), "bias_1": np.zeros(1, np.float32)}


def draw_batches(users: int, items: int, size: int, count: int) -> list[Batch]:
    """Users come alike, and a few items much oftener than others: a law of Zipf."""
    draws = np.random.default_rng(1)
    return [
        Batch(
            draws.integers(0, users, size),
            np.minimum(draws.zipf(1.2, size), items) - 1,
            (draws.random(size) < 0.3).astype(np.float32),
        )
        for _ in range(count)
    ]


def loss_of(logits: Floats, taken: Floats) -> tuple[float, Floats]:
    """The mean cross entropy, and its gradient by the logits [batch, 1]."""
    flat = logits[:, 0]
    decay = np.exp(-np.abs(flat))
    loss = np.mean(np.maximum(flat, 0) - flat * taken + np.log1p(decay))
    chance = np.where(flat >= 0, 1, decay) / (1 + decay)
    return float(loss), ((chance - taken) / np.float32(len(taken)))[:, None]


class Sharded:
    """shardvar's layers and optimizers, under a parameter server strategy that cuts the embeddings
    and nothing else.

    With ``num_servers=0`` nothing is distributed and no variable is cut.
    """

    def __init__(self, first: Values, optimizer: str, num_servers: int = NUM_SERVERS) -> None:
        strategy = sv.ParameterServerStrategy(num_servers)
        cut = strategy.variable_partitioning_scope(sv.FixedShardsPartitioner(num_servers or 1))
        with cut if num_servers else nullcontext():
            self.user = sv.layers.Embedding(*first["user"].shape, first["user"], name="user")
            self.item = sv.layers.Embedding(*first["item"].shape, first["item"], name="item")
        with strategy.scope() if num_servers else nullcontext():
            self.hidden = self._dense("0", "sigmoid", first)
            self.logits = self._dense("1", None, first)
            self.optimizer: sv.optimizers.Optimizer = getattr(sv.optimizers, optimizer)(RATE)

    @staticmethod
    def _dense(number: str, activation: str | None, first: Values) -> sv.layers.Dense:
        kernel, bias = first[f"kernel_{number}"], first[f"bias_{number}"]
        return sv.layers.Dense(
            kernel.shape[1],
            activation,
            kernel_initializer=kernel,
            bias_initializer=bias,
            name=f"dense_{number}",
            input_dim=len(kernel),
        )

    def step(self, batch: Batch) -> float:
        x, pull_user, pull_item = self._embedded(batch)
        hidden, pull_hidden = self.hidden.vjp(x)
        logits, pull_logits = self.logits.vjp(hidden)
        loss, upstream = loss_of(logits, batch.taken)
        of_logits, upstream = pull_logits(upstream)
        of_hidden, upstream = pull_hidden(upstream)
        dim = self.user.embedding_size
        of_tables = pull_user(upstream[:, :dim])[0] + pull_item(upstream[:, dim:])[0]
        self.optimizer.apply_gradients(of_logits + of_hidden + of_tables)
        return loss

    def _embedded(self, batch: Batch) -> tuple[Floats, Any, Any]:
        """The vectors of users and items side by side [batch, 2 dim], and the pullbacks of both."""
        of_user, pull_user = self.user.vjp(batch.users)
        of_item, pull_item = self.item.vjp(batch.items)
        return np.concatenate([of_user, of_item], axis=1), pull_user, pull_item

    def values(self) -> Values:
        return {
            "user": self.user.embeddings.numpy(),
            "item": self.item.embeddings.numpy(),
            "kernel_0": self.hidden.kernel.numpy(),
            "bias_0": self.hidden.bias.numpy(),
            "kernel_1": self.logits.kernel.numpy(),
            "bias_1": self.logits.bias.numpy(),
        }


class Plain:
    """The same by hand."""

    def __init__(self, first: Values, optimizer: str) -> None:
        self.value = {name: value.copy() for name, value in first.items()}
        self.optimizer, self.steps = optimizer, 0
        start = np.float32(0.1 if optimizer == "Adagrad" else 0.0)
        self.squares = {
            name: np.full_like(value, start) for name, value in first.items() if optimizer != "SGD"
        }
        self.means = {
            name: np.zeros_like(value) for name, value in first.items() if optimizer == "Adam"
        }

    def step(self, batch: Batch) -> float:
        value = self.value
        dim = value["user"].shape[1]
        x = np.concatenate(
            [
                np.take(value["user"], batch.users, axis=0),
                np.take(value["item"], batch.items, axis=0),
            ],
            axis=1,
        )
        hidden = 1 / (1 + np.exp(-(x @ value["kernel_0"] + value["bias_0"])))
        loss, of_logits = loss_of(hidden @ value["kernel_1"] + value["bias_1"], batch.taken)
        of_hidden = (of_logits @ value["kernel_1"].T) * (hidden * (1 - hidden))
        of_x = of_hidden @ value["kernel_0"].T
        self.steps += 1
        self._dense("kernel_1", hidden.T @ of_logits)
        self._dense("bias_1", of_logits.sum(axis=0))
        self._dense("kernel_0", x.T @ of_hidden)
        self._dense("bias_0", of_hidden.sum(axis=0))
        self._sparse("user", batch.users, of_x[:, :dim])
        self._sparse("item", batch.items, of_x[:, dim:])
        return loss

    def values(self) -> Values:
        return self.value

    def _sparse(self, name: str, ids: Ints, gradient: Floats) -> None:
        order = np.argsort(ids, kind="stable")
        ascending = ids[order]
        starts = np.flatnonzero(np.append(True, ascending[1:] != ascending[:-1]))
        rows, sums = ascending[starts], np.add.reduceat(gradient[order], starts, axis=0)
        if self.optimizer == "SGD":
            self.value[name][rows] -= np.float32(RATE) * sums
        elif self.optimizer == "Adagrad":
            squares = self.squares[name][rows] + sums * sums
            self.squares[name][rows] = squares
            self.value[name][rows] -= (
                np.float32(RATE) * sums / (np.sqrt(squares) + np.float32(1e-7))
            )
        else:
            dense = np.zeros_like(self.value[name])
            dense[rows] = sums
            self._dense(name, dense)

    def _dense(self, name: str, gradient: Floats) -> None:
        value = self.value[name]
        if self.optimizer == "SGD":
            value -= np.float32(RATE) * gradient
        elif self.optimizer == "Adagrad":
            squares = self.squares[name]
            squares += gradient * gradient
            value -= np.float32(RATE) * gradient / (np.sqrt(squares) + np.float32(1e-7))
        else:
            one, by_1, by_2 = np.float32(1), np.float32(0.9), np.float32(0.999)
            step = np.float32(self.steps)
            means, squares = self.means[name], self.squares[name]
            means += (gradient - means) * (one - by_1)
            squares += (gradient * gradient - squares) * (one - by_2)
            rate = np.float32(RATE) * (np.sqrt(one - by_2**step) / (one - by_1**step))
            value -= rate * means / (np.sqrt(squares) + np.float32(1e-7))


class TensorFlow:
    """Keras's layers and optimizers in a ``tf.function``, on one device."""

    def __init__(self, first: Values, optimizer: str) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        import keras
        import tensorflow

        def filled(layer: Any, input_shape: tuple[int | None, ...], *names: str) -> Any:
            layer.build(input_shape)
            layer.set_weights([first[name] for name in names])
            return layer

        tables = {
            name: filled(keras.layers.Embedding(*first[name].shape), (None,), name)
            for name in ("user", "item")
        }
        wide = first["kernel_0"].shape[0]
        self.layers = tables | {
            "0": filled(keras.layers.Dense(HIDDEN, "sigmoid"), (None, wide), "kernel_0", "bias_0"),
            "1": filled(keras.layers.Dense(1), (None, HIDDEN), "kernel_1", "bias_1"),
        }
        self.optimizer = getattr(keras.optimizers, optimizer)(RATE)
        variables = [
            variable for layer in self.layers.values() for variable in layer.trainable_variables
        ]
        self.optimizer.build(variables)

        def train(users: Any, items: Any, taken: Any) -> Any:
            with tensorflow.GradientTape() as tape:
                x = tensorflow.concat(
                    [self.layers["user"](users), self.layers["item"](items)], axis=1
                )
                logits = self.layers["1"](self.layers["0"](x))[:, 0]
                loss = tensorflow.reduce_mean(
                    tensorflow.nn.sigmoid_cross_entropy_with_logits(labels=taken, logits=logits)
                )
            found = tape.gradient(loss, [variable.value for variable in variables])
            self.optimizer.apply(found, variables)
            return loss

        self.train = tensorflow.function(train)

    def step(self, batch: Batch) -> float:
        return float(self.train(batch.users, batch.items, batch.taken))

    def values(self) -> Values:
        names = {
            "user": ["user"],
            "item": ["item"],
            "0": ["kernel_0", "bias_0"],
            "1": ["kernel_1", "bias_1"],
        }
        return {
            name: value
            for layer, own in names.items()
            for name, value in zip(own, self.layers[layer].get_weights(), strict=True)
        }
