"""Three steps of each optimizer, dense and sparse, on a variable in shards."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardvar.spec.gradients import Gradient
from shardvar.spec.optimizers import RULES, add_slot, apply_gradients
from spec_tests.vector_generators.case import Case, Group, numbered
from spec_tests.vector_generators.encoding import array

_SETTINGS: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "SGD": ({"learning_rate": 0.125}, {}),
    "Momentum": ({"learning_rate": 0.125, "momentum": 0.75}, {"momentum": 0.0}),
    "Adagrad": ({"learning_rate": 0.25, "epsilon": 2.0**-20}, {"accumulator": 0.125}),
    "Adam": (
        {"learning_rate": 0.125, "beta_1": 0.875, "beta_2": 0.96875, "epsilon": 2.0**-20},
        {"m": 0.0, "v": 0.0},
    ),
    "RMSprop": ({"learning_rate": 0.125, "rho": 0.875, "epsilon": 2.0**-20}, {"rms": 0.0}),
}
"""The numbers of each optimizer (powers of two, which no dtype rounds), and its first slots."""

Step = tuple[Sequence[int] | None, np.ndarray[Any, Any]]
"""The rows of a gradient (None for all) and their values."""


def run(name: str, initial: np.ndarray[Any, Any], steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Value and slots after each step, in float64."""
    hyper, first = _SETTINGS[name]
    shards = [initial.astype(np.float64)]
    slots = {key: add_slot(shards, start) for key, start in first.items()}
    found, kind = [], initial.dtype
    for step, (rows, values) in enumerate(steps, start=1):
        gradient: Gradient = values if rows is None else (list(rows), values)
        shards, slots = apply_gradients(name, shards, [gradient], slots, hyper, step)
        after = {key: array(slot.astype(kind)) for key, (slot,) in slots.items()}
        found.append({"value": array(shards[0].astype(kind)), "slots": after})
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
    for name, (hyper, first) in _SETTINGS.items():
        moves_all = RULES[name][2]
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
