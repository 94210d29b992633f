"""RMSprop: steps divided by the root of the squares' decaying mean."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from shardvar.layout.dtypes import Array
from shardvar.training.optimizers.optimizer import Compat, Numbers, Optimizer
from shardvar.training.optimizers.step import Slots, Square


class RMSprop(Optimizer):
    """``s = rho s + (1 - rho) g^2`` and ``w -= lr g / (sqrt(s) + eps)``; the squares of all rows decay."""

    other_names: ClassVar[Mapping[str, str]] = {**Optimizer.other_names, "rms": "_velocities"}
    """Keras 3's."""

    def __init__(
        self,
        learning_rate: float = 0.001,
        rho: float = 0.9,
        epsilon: float = 1e-7,
        name: str = "RMSprop",
        *,
        compat: Compat = "keras_legacy",
    ) -> None:
        super().__init__(name, compat, {"learning_rate": learning_rate, "rho": rho, "epsilon": epsilon})

    def _slot_values(self) -> Mapping[str, float]:
        return {"rms": 0.0}

    def _touches_all_rows(self) -> bool:
        return True

    def _update(self, value: Array, gradient: Array, square: Square, slots: Slots, numbers: Numbers) -> None:
        squares, rho = slots["rms"], numbers["rho"]
        squares *= rho
        squares += (1 - rho) * square()
        if self._compat == "keras3":
            value -= numbers["learning_rate"] * gradient / np.sqrt(squares + numbers["epsilon"])
        else:
            value -= numbers["learning_rate"] * gradient / (np.sqrt(squares) + numbers["epsilon"])
