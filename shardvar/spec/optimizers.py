"""Chapter 9. Optimizers and their slots: one element at a time, in float64.

A rule takes an element's value, its gradient, its slots, the hyperparameters and the number of the
step from 1. It changes the slots in place and returns the new value.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

import numpy as np

from shardvar.spec.gradients import Gradient, densified
from shardvar.spec.variables import Array, Shards

__all__ = [
    "RULES",
    "Rule",
    "Slots",
    "adagrad",
    "adam",
    "add_slot",
    "apply_gradients",
    "momentum",
    "nesterov",
    "rmsprop",
    "sgd",
]

Slots = dict[str, float]
Rule = Callable[[float, float, Slots, Mapping[str, float], int], float]


# Keras, legacy.SGD.
def sgd(w: float, g: float, slots: Slots, hyper: Mapping[str, float], step: int) -> float:
    """Move against the gradient.

    >>> sgd(1.0, 4.0, {}, {"learning_rate": 0.25}, 1)
    0.0
    """
    return w - hyper["learning_rate"] * g


# Keras, legacy.SGD with momentum.
def momentum(w: float, g: float, slots: Slots, hyper: Mapping[str, float], step: int) -> float:
    """Keep a part of the last move.

    >>> momentum(1.0, 4.0, {"momentum": 2.0}, {"learning_rate": 0.25, "momentum": 0.5}, 1)
    1.0
    """
    slots["momentum"] = hyper["momentum"] * slots["momentum"] - hyper["learning_rate"] * g
    return w + slots["momentum"]


# Keras, legacy.SGD with nesterov=True.
def nesterov(w: float, g: float, slots: Slots, hyper: Mapping[str, float], step: int) -> float:
    """Move by where momentum will have led after this step.

    >>> nesterov(1.0, 4.0, {"momentum": 2.0}, {"learning_rate": 0.25, "momentum": 0.5}, 1)
    0.0
    """
    after = momentum(w, g, slots, hyper, step) - w
    return w + hyper["momentum"] * after - hyper["learning_rate"] * g


# Keras, legacy.Adagrad.
def adagrad(w: float, g: float, slots: Slots, hyper: Mapping[str, float], step: int) -> float:
    """Divide the rate by the root of the sum of squares so far.

    >>> adagrad(1.0, 4.0, {"accumulator": 9.0}, {"learning_rate": 1.0, "epsilon": 0.0}, 1)
    0.19999999999999996
    """
    slots["accumulator"] += g * g
    return w - hyper["learning_rate"] * g / (sqrt(slots["accumulator"]) + hyper["epsilon"])


# Keras, legacy.Adam.
def adam(w: float, g: float, slots: Slots, hyper: Mapping[str, float], step: int) -> float:
    """Move by the mean of gradients over the root of the mean of squares, both without bias.

    >>> hyper = {"learning_rate": 0.5, "beta_1": 0.5, "beta_2": 0.75, "epsilon": 0.0}
    >>> adam(1.0, 4.0, {"m": 0.0, "v": 0.0}, hyper, 1)  # the first step is the rate, for any g
    0.5
    """
    b1, b2 = hyper["beta_1"], hyper["beta_2"]
    slots["m"] = b1 * slots["m"] + (1 - b1) * g
    slots["v"] = b2 * slots["v"] + (1 - b2) * g * g
    # The means begin at 0. After t steps the weights of the gradients add up to 1 - b^t.
    first = second = 1.0
    for _ in range(step):
        first, second = first * b1, second * b2
    rate = hyper["learning_rate"] * sqrt(1 - second) / (1 - first)
    return w - rate * slots["m"] / (sqrt(slots["v"]) + hyper["epsilon"])


# Keras, legacy.RMSprop.
def rmsprop(w: float, g: float, slots: Slots, hyper: Mapping[str, float], step: int) -> float:
    """Divide the rate by the root of a mean of squares that forgets.

    >>> rmsprop(1.0, 4.0, {"rms": 0.0}, {"learning_rate": 0.5, "rho": 0.75, "epsilon": 0.0}, 1)
    0.0
    """
    slots["rms"] = hyper["rho"] * slots["rms"] + (1 - hyper["rho"]) * g * g
    return w - hyper["learning_rate"] * g / (sqrt(slots["rms"]) + hyper["epsilon"])


RULES: dict[str, tuple[Rule, tuple[str, ...], bool]] = {
    "SGD": (sgd, (), False),
    "Momentum": (momentum, ("momentum",), False),
    "Nesterov": (nesterov, ("momentum",), False),
    "Adagrad": (adagrad, ("accumulator",), False),
    "Adam": (adam, ("m", "v"), True),
    "RMSprop": (rmsprop, ("rms",), True),
}
"""The rule, the names of its slots, and whether it moves rows that have no gradient."""


# R-SLOT-1 (RFC 000): "If `var` is a `ShardedVariable`, `add_slot` will iterate its underlying
# component variables and create a slot for each of them" "Slot variable is partitioned in exactly
# the same way as the original variable."
def add_slot(shards: Shards, first: float) -> list[Array]:
    """Return a new slot: for each shard an array of its shape.

    >>> add_slot([np.zeros(2), np.zeros(1)], 0.5)
    [array([0.5, 0.5]), array([0.5])]
    """
    return [np.full(each.shape, first) for each in shards]


# R-OPT-2, R-OPT-4, R-OPT-5 (RFC 000): "gradient computation and update are always performed at the
# component variable level"
def apply_gradients(
    optimizer: str,
    shards: Shards,
    gradients: Sequence[Gradient],
    slots: Mapping[str, Shards],
    hyper: Mapping[str, float],
    step: int,
) -> tuple[list[Array], dict[str, list[Array]]]:
    """Take one step of every shard. Return the shards and the slots after it.

    >>> after, _ = apply_gradients("SGD", [np.ones(2)], [([1], np.ones(1))], {}, {"learning_rate": 0.5}, 1)
    >>> after
    [array([1. , 0.5])]
    """
    values, after = [], {name: list[Array]() for name in slots}
    for number, (value, gradient) in enumerate(zip(shards, gradients, strict=True)):
        own = {name: slot[number] for name, slot in slots.items()}
        new, slots_of_shard = _step(optimizer, value, gradient, own, hyper, step)
        values.append(new)
        for name, slot in slots_of_shard.items():
            after[name].append(slot)
    return values, after


def _step(
    optimizer: str,
    value: Array,
    gradient: Gradient,
    slots: Mapping[str, Array],
    hyper: Mapping[str, float],
    step: int,
) -> tuple[Array, dict[str, Array]]:
    rule, _, moves_all = RULES[optimizer]
    new, own = value.astype(np.float64), {name: slot.copy() for name, slot in slots.items()}
    dense = densified(gradient, value.shape)
    for index in np.ndindex(value.shape):
        # Without a gradient, a row of SGD, Momentum and Adagrad stays; in Adam and RMSprop it is 0.
        if isinstance(gradient, tuple) and not moves_all and index[0] not in gradient[0]:
            continue
        of_element = {name: float(slot[index]) for name, slot in own.items()}
        new[index] = rule(float(new[index]), float(dense[index]), of_element, hyper, step)
        for name, number in of_element.items():
            own[name][index] = number
    return new, own
