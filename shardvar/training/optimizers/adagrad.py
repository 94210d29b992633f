"""Adagrad: a learning rate for each element, which falls with the squares that it has seen."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.training.optimizers.optimizer import Compat, Numbers, Optimizer
from shardvar.training.optimizers.step import Slots, Square


class Adagrad(Optimizer):
    """``a += g^2`` and ``w -= lr g / (sqrt(a) + eps)``; "v1" has no eps, "keras3" takes ``sqrt(a + eps)``."""

    other_names: ClassVar[Mapping[str, str]] = {**Optimizer.other_names, "accumulator": "_accumulators"}
    """Keras 3's."""

    def __init__(
        self,
        learning_rate: float = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        name: str = "Adagrad",
        *,
        compat: Compat = "keras_legacy",
    ) -> None:
        if not initial_accumulator_value >= 0:
            raise ArgumentError(f"initial_accumulator_value is {initial_accumulator_value}.", "It is at least 0.")
        super().__init__(name, compat, {"learning_rate": learning_rate, "epsilon": epsilon})
        self._first = float(initial_accumulator_value)

    def _slot_values(self) -> Mapping[str, float]:
        return {"accumulator": self._first}

    def _update(self, value: Array, gradient: Array, square: Square, slots: Slots, numbers: Numbers) -> None:
        squares, epsilon = slots["accumulator"], numbers["epsilon"]
        squares += square()
        if self._compat == "keras3":
            divisor = np.sqrt(squares + epsilon)
        else:
            divisor = np.sqrt(squares) + (epsilon if self._compat == "keras_legacy" else 0)
        value -= numbers["learning_rate"] * gradient / divisor
