"""Adam: momentum over the root of the squares' decaying mean, both freed of their bias towards their beginning."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from shardvar.layout.dtypes import Array
from shardvar.training.optimizers.optimizer import Compat, Numbers, Optimizer
from shardvar.training.optimizers.step import Slots, Square


class Adam(Optimizer):
    """Step t: ``m += (1 - b1) (g - m)``, ``v += (1 - b2) (g^2 - v)``, ``w -= rate m / (sqrt(v) + eps)``.

    ``rate = lr sqrt(1 - b2^t) / (1 - b1^t)``.
    Sparse gradients move every row: those without one decay, as if their gradient were zero. ``epsilon`` is by default
    1e-7, in "v1" 1e-8.
    """

    other_names: ClassVar[Mapping[str, str]] = {**Optimizer.other_names, "m": "_momentums", "v": "_velocities"}
    """Keras 3's."""

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = None,
        name: str = "Adam",
        *,
        compat: Compat = "keras_legacy",
    ) -> None:
        small = (1e-8 if compat == "v1" else 1e-7) if epsilon is None else epsilon
        given = {"learning_rate": learning_rate, "beta_1": beta_1, "beta_2": beta_2, "epsilon": small}
        super().__init__(name, compat, given)

    def _slot_values(self) -> Mapping[str, float]:
        return {"m": 0.0, "v": 0.0}

    def _touches_all_rows(self) -> bool:
        return True

    def _numbers(self, step: int, dtype: np.dtype[Any]) -> Numbers:
        numbers = dict(super()._numbers(step, dtype))
        one, t = dtype.type(1), dtype.type(step)
        unbiased = np.sqrt(one - numbers["beta_2"] ** t) / (one - numbers["beta_1"] ** t)
        return numbers | {"rate": numbers["learning_rate"] * unbiased}

    def _update(self, value: Array, gradient: Array, square: Square, slots: Slots, numbers: Numbers) -> None:
        mean, squares = slots["m"], slots["v"]
        mean += (gradient - mean) * (1 - numbers["beta_1"])
        squares += (square() - squares) * (1 - numbers["beta_2"])
        value -= numbers["rate"] * mean / (np.sqrt(squares) + numbers["epsilon"])
