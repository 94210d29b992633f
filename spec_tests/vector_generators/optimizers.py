"""Three steps of each optimizer, dense and sparse, on a variable in shards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from spec_tests.vector_generators.case import Case, Group, numbered
from spec_tests.vector_generators.encoding import array

Slots = dict[str, float]
Rule = Callable[[float, float, Slots, Mapping[str, float], int], float]
"""(value, gradient, slots, hyperparameters, step from 1) -> the new value; slots are changed in
place."""


def _sgd(
    value: float, gradient: float, slots: Slots, hyper: Mapping[str, float], step: int
) -> float:
    return value - hyper["learning_rate"] * gradient


def _momentum(
    value: float, gradient: float, slots: Slots, hyper: Mapping[str, float], step: int
) -> float:
    slots["momentum"] = hyper["momentum"] * slots["momentum"] - hyper["learning_rate"] * gradient
    return value + slots["momentum"]


def _adagrad(
    value: float, gradient: float, slots: Slots, hyper: Mapping[str, float], step: int
) -> float:
    slots["accumulator"] += gradient * gradient
    return value - hyper["learning_rate"] * gradient / (
        sqrt(slots["accumulator"]) + hyper["epsilon"]
    )


def _adam(
    value: float, gradient: float, slots: Slots, hyper: Mapping[str, float], step: int
) -> float:
    b1, b2 = hyper["beta_1"], hyper["beta_2"]
    slots["m"] = b1 * slots["m"] + (1 - b1) * gradient
    slots["v"] = b2 * slots["v"] + (1 - b2) * gradient * gradient
    first = second = 1.0
    for _ in range(step):
        first, second = first * b1, second * b2
    rate = hyper["learning_rate"] * sqrt(1 - second) / (1 - first)
    return value - rate * slots["m"] / (sqrt(slots["v"]) + hyper["epsilon"])


def _rmsprop(
    value: float, gradient: float, slots: Slots, hyper: Mapping[str, float], step: int
) -> float:
    slots["rms"] = hyper["rho"] * slots["rms"] + (1 - hyper["rho"]) * gradient * gradient
    return value - hyper["learning_rate"] * gradient / (sqrt(slots["rms"]) + hyper["epsilon"])


_RULES: dict[str, tuple[Rule, dict[str, float], Slots, bool]] = {
    "SGD": (_sgd, {"learning_rate": 0.125}, {}, False),
    "Momentum": (_momentum, {"learning_rate": 0.125, "momentum": 0.75}, {"momentum": 0.0}, False),
    "Adagrad": (
        _adagrad,
        {"learning_rate": 0.25, "epsilon": 2.0**-20},
        {"accumulator": 0.125},
        False,
    ),
    "Adam": (
        _adam,
        {"learning_rate": 0.125, "beta_1": 0.875, "beta_2": 0.96875, "epsilon": 2.0**-20},
        {"m": 0.0, "v": 0.0},
        True,
    ),
    "RMSprop": (
        _rmsprop,
        {"learning_rate": 0.125, "rho": 0.875, "epsilon": 2.0**-20},
        {"rms": 0.0},
        True,
    ),
}
"""The rule, its numbers (powers of two, which no dtype rounds), its slots, and whether rows without
gradient move."""

Step = tuple[Sequence[int] | None, np.ndarray[Any, Any]]
"""The rows of a gradient (None for all) and their values."""


def run(name: str, initial: np.ndarray[Any, Any], steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Value and slots after each step, element by element in float64."""
    rule, hyper, first, moves_all = _RULES[name]
    value = initial.astype(np.float64)
    slots = {key: np.full(value.shape, start) for key, start in first.items()}
    found = []
    for step, (rows, gradient) in enumerate(steps, start=1):
        dense = np.zeros(value.shape)
        for row, part in zip(range(len(value)) if rows is None else rows, gradient, strict=True):
            dense[row] += part
        for index in np.ndindex(value.shape):
            if rows is not None and not moves_all and index[0] not in rows:
                continue
            own = {key: float(slot[index]) for key, slot in slots.items()}
            value[index] = rule(float(value[index]), float(dense[index]), own, hyper, step)
            for key, new in own.items():
                slots[key][index] = new
        kind = initial.dtype
        after = {key: array(slot.astype(kind)) for key, slot in slots.items()}
        found.append({"value": array(value.astype(kind)), "slots": after})
    return found


def _cases() -> Iterator[Case]:
    dense: list[Step] = [
        (None, (np.arange(10).reshape(5, 2) - scale) / 4) for scale in (3.0, 5.0, 7.0)
    ]
    sparse: list[Step] = [
        ([4, 0, 4], np.array([[0.5, -1.0], [2.0, 0.25], [0.75, 3.0]])),
        ([1, 2], np.array([[1.0, -0.5], [-2.0, 0.5]])),
        ([0, 0, 3, 4], np.array([[0.5, 0.5], [1.5, -1.0], [1.0, 1.0], [-1.0, 2.0]])),
    ]
    for name, (_, hyper, first, moves_all) in _RULES.items():
        for kind, steps in (("dense", dense), ("sparse", sparse)):
            for dtype in ("float32", "float64"):
                initial = ((np.arange(10).reshape(5, 2) + 24) / 8).astype(dtype)
                gradients = [
                    {
                        "indices": None if rows is None else array(list(rows), "int64"),
                        "values": array(part.astype(dtype)),
                    }
                    for rows, part in steps
                ]
                inputs = {
                    "optimizer": name, "hyperparameters": hyper, "initial_slots": first, "value": array(initial),
                    "shards": [2, 2, 1], "gradients": gradients,
                }  # fmt: skip
                bug = (
                    "Slots or the count of steps belong to one shard, so that the others step as "
                    "if it were the first."
                )
                if kind == "sparse":
                    bug = "A row that comes twice steps twice, or is squared before it is summed"
                    bug += "; rows without a gradient do not decay." if moves_all else "."
                rule = "R-OPT-1" if kind == "sparse" else "R-GRAD-1"
                ulps = 0 if name in ("SGD", "Momentum") else 4
                yield Case(
                    f"{name}-{kind}-{dtype}",
                    rule,
                    "optimize",
                    inputs,
                    bug,
                    run(name, initial, steps),
                    ulps=ulps,
                )


GROUP = Group(
    "optimizers",
    "Value and slots of a sharded variable after each of three steps; README.md has the formulas.",
    "Element by element on the whole variable, in float64, rounded once a step is reported.",
    numbered(_cases()),
)
