"""Every form of an update rule is its formula, whatever kinds of slots a variable has."""

from collections.abc import Callable, Sequence
from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import pytest

from shardvar.layout.dtypes import Array
from shardvar.reference.training.optimizers import (
    SGD,
    Adagrad,
    Adam,
    Momentum,
    Optimizer,
    RMSprop,
)
from shardvar.reference.training.steps import plan_steps
from shardvar.reference.variables import IndexedSlices, MirroredVariable, Variable
from shardvar.reference.variables.values import commit
from spec_tests.helpers.optimizer_steps import COMPATS

Formula = Callable[[float, float, dict[str, float], int], float]
"""(value, gradient, slots, step) -> the next value; the slots change in place."""

RATE, FACTOR, SECOND, EPSILON, FIRST = 0.25, 0.5, 0.75, 0.3125, 0.375


def momentum(is_nesterov: bool, compat: str) -> Formula:
    def step(w: float, g: float, slots: dict[str, float], _t: int) -> float:
        if compat == "v1":
            slots["momentum"] = FACTOR * slots["momentum"] + g
            return w - RATE * (
                (g + FACTOR * slots["momentum"]) if is_nesterov else slots["momentum"]
            )
        slots["momentum"] = FACTOR * slots["momentum"] - RATE * g
        return w + (FACTOR * slots["momentum"] - RATE * g if is_nesterov else slots["momentum"])

    return step


def root(square: float, compat: str, has_epsilon: bool = True) -> float:
    """The divisor; Keras 3 takes the root of the sum."""
    return sqrt(square + EPSILON) if compat == "keras3" else sqrt(square) + EPSILON * has_epsilon


def adagrad(compat: str) -> Formula:
    def step(w: float, g: float, slots: dict[str, float], _t: int) -> float:
        slots["accumulator"] += g * g
        return w - RATE * g / root(slots["accumulator"], compat, compat != "v1")

    return step


def rmsprop(compat: str) -> Formula:
    def step(w: float, g: float, slots: dict[str, float], _t: int) -> float:
        slots["rms"] = FACTOR * slots["rms"] + (1 - FACTOR) * g * g
        return w - RATE * g / root(slots["rms"], compat)

    return step


def adam(w: float, g: float, slots: dict[str, float], t: int) -> float:
    slots["m"] = FACTOR * slots["m"] + (1 - FACTOR) * g
    slots["v"] = SECOND * slots["v"] + (1 - SECOND) * g * g
    m, v = slots["m"] / (1 - FACTOR**t), slots["v"] / (1 - SECOND**t)
    # Epsilon is added to the root of the biased mean, as both TensorFlows do.
    return w - RATE * m / (sqrt(v) + EPSILON / sqrt(1 - SECOND**t))


@pytest.mark.parametrize("compat", COMPATS)
@pytest.mark.parametrize(
    "name", ["sgd", "sgd with momentum", "momentum", "nesterov", "adagrad", "rmsprop", "adam"]
)
def test_every_form_of_a_rule_is_its_formula(name: str, compat: Any) -> None:
    """With numbers of which none is too small to be seen: values and slots, three steps."""
    made: dict[str, tuple[Optimizer, Formula, dict[str, float]]] = {
        "sgd": (SGD(RATE, compat=compat), lambda w, g, _slots, _t: w - RATE * g, {}),
        "sgd with momentum": (
            SGD(RATE, FACTOR, compat=compat), momentum(False, compat), {"momentum": 0.0},
        ),
        "momentum": (
            Momentum(RATE, FACTOR, compat=compat), momentum(False, compat), {"momentum": 0.0},
        ),
        "nesterov": (
            Momentum(RATE, FACTOR, nesterov=True, compat=compat),
            momentum(True, compat), {"momentum": 0.0},
        ),
        "adagrad": (
            Adagrad(RATE, FIRST, EPSILON, compat=compat), adagrad(compat), {"accumulator": FIRST},
        ),
        "rmsprop": (RMSprop(RATE, FACTOR, EPSILON, compat=compat), rmsprop(compat), {"rms": 0.0}),
        "adam": (Adam(RATE, FACTOR, SECOND, EPSILON, compat=compat), adam, {"m": 0.0, "v": 0.0}),
    }  # fmt: skip
    optimizer, formula, slots = made[name]
    variable, w = Variable(np.array([1.5])), 1.5
    for t, g in enumerate((2.0, -0.5, 3.0), 1):
        optimizer.apply_gradients([(np.array([g]), variable)])
        w = formula(w, g, slots, t)
        assert variable.numpy().tolist() == pytest.approx([w], rel=1e-12)
        for slot, value in slots.items():
            assert optimizer.get_slot(variable, slot).numpy() == pytest.approx([value], rel=1e-12)


def plain(value: Array) -> Any:
    return Variable(value)


def mirrored(value: Array) -> Any:
    return MirroredVariable([Variable(value), Variable(value)])


def copies_of(variable: Any) -> Sequence[Any]:
    return variable.copies if isinstance(variable, MirroredVariable) else [variable]


@pytest.mark.parametrize(
    "kinds",
    [*product((plain, mirrored), repeat=3)],
    ids=lambda kinds: "-".join(each.__name__ for each in kinds),
)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_slots_of_any_kind_serve_a_variable_of_any_kind(kinds: Any, is_sparse: bool) -> None:
    """A mirrored variable may have a slot that is not, and a plain one a mirrored slot: values and
    slots end as if all were plain, in every copy."""

    def rule(value: Array, gradient: Array, _square: Any, slots: Any) -> None:
        slots["a"] += gradient
        slots["b"] += slots["a"]
        value -= slots["b"]

    made = [kind(np.full(3, first)) for kind, first in zip(kinds, (8.0, 1.0, 0.5), strict=True)]
    variable, slots = made[0], {"a": made[1], "b": made[2]}
    dense = np.array([1.0, 0.0, 2.0])
    gradient = IndexedSlices(dense[[0, 2]], [0, 2], (3,)) if is_sparse else dense
    for _ in range(2):
        commit(plan_steps(rule, gradient, variable, slots, touches_all_rows=True))
    wanted = [np.full(3, 8.0), np.full(3, 1.0), np.full(3, 0.5)]
    for _ in range(2):
        rule(wanted[0], dense, None, {"a": wanted[1], "b": wanted[2]})
    for each, value in zip(made, wanted, strict=True):
        for copy in copies_of(each):
            assert copy.numpy().tolist() == value.tolist()
