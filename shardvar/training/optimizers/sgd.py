"""Gradient descent, with and without momentum."""

from collections.abc import Mapping
from typing import Any, ClassVar

from shardvar.layout.dtypes import Array
from shardvar.training.optimizers.optimizer import Compat, Numbers, Optimizer
from shardvar.training.optimizers.step import Slots, Square


class SGD(Optimizer):
    """``w -= lr g``; with momentum mu ``m = mu m - lr g`` and then ``w += m``, with Nesterov's ``w += mu m - lr g``.

    "v1" keeps the gradients' sum instead, ``m = mu m + g`` and ``w -= lr m``. Rows without a gradient keep value and
    momentum; in "keras3" their momentum moves them on.
    """

    other_names: ClassVar[Mapping[str, str]] = {**Optimizer.other_names, "momentum": "momentums"}
    """Keras 3's."""

    def __init__(
        self,
        learning_rate: float = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        *,
        compat: Compat = "keras_legacy",
    ) -> None:
        super().__init__(name, compat, {"learning_rate": learning_rate, "momentum": momentum})
        self._nesterov, self._has_momentum = bool(nesterov), momentum != 0

    def _slot_values(self) -> Mapping[str, float]:
        return {"momentum": 0.0} if self._has_momentum else {}

    def _touches_all_rows(self) -> bool:
        return self._has_momentum and self._compat == "keras3"

    def _update(self, value: Array, gradient: Array, square: Square, slots: Slots, numbers: Numbers) -> None:
        rate, decay = numbers["learning_rate"], numbers["momentum"]
        if not self._has_momentum:
            value -= rate * gradient
            return
        sums = slots["momentum"]
        sums *= decay
        if self._compat == "v1":
            sums += gradient
            value -= rate * gradient + rate * (decay * sums) if self._nesterov else rate * sums
        else:
            down = rate * gradient
            sums -= down
            value += decay * sums - down if self._nesterov else sums


class Momentum(SGD):
    """``SGD`` that has momentum, under the name and in the order of arguments of TensorFlow 1."""

    def __init__(
        self, learning_rate: float = 0.01, momentum: float = 0.9, nesterov: bool = False, name: str = "Momentum",
        **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, momentum, nesterov, name, **more)
        self._has_momentum = True
