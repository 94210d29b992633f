"""Rules: gradient descent, momentum, Adagrad, RMSprop and Adam.

A rule is elementwise and in place. Its class names the hyperparameters and slots, says whether rows
without a gradient change too (because a slot decays), and writes the formula in ``_update``;
``Optimizer`` does the rest. ``compat`` chooses among TensorFlow's formulas where it has had
several.

``other_names`` are the names of the slots in Keras 3, under which its checkpoints have them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.reference.training.optimizers.optimizer import Compat, Numbers, Optimizer
from shardvar.reference.training.optimizers.step import Slots, Square


class SGD(Optimizer):
    """``w -= lr g``; with momentum mu ``m = mu m - lr g`` and then ``w += m``, with Nesterov's ``w
    += mu m - lr g``.

    "v1" keeps the gradients' sum instead, ``m = mu m + g`` and ``w -= lr m``. Rows without a
    gradient keep value and momentum; in "keras3" their momentum moves them on.

    Parameters
    ----------
    learning_rate : float, default 0.01
        The rate lr.
    momentum : float, default 0.0
        The factor mu of the earlier steps; without one, the rule has no slot.
    nesterov : bool, default False
        True: Nesterov's momentum.
    name : str, default "SGD"
        The name of the optimizer.
    compat : {"keras_legacy", "v1", "keras3"}, default "keras_legacy"
        The formulas, where TensorFlow has had several.

    Raises
    ------
    ArgumentError
        If a number is not finite, or `compat` is another text.
    """

    other_names: ClassVar[Mapping[str, str]] = {**Optimizer.other_names, "momentum": "momentums"}

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

    def _update(
        self, value: Array, gradient: Array, _square: Square, slots: Slots, numbers: Numbers
    ) -> None:
        rate, decay = numbers["learning_rate"], numbers["momentum"]
        if not self._has_momentum:
            value -= rate * gradient
            return
        sums = slots["momentum"]
        sums *= decay
        if self._compat == "v1":
            # The slot holds gradients, and the rate of now applies to all of them. In the other
            # forms the slot holds steps, each with the rate of its time; with a constant rate both
            # move alike.
            sums += gradient
            value -= rate * gradient + rate * (decay * sums) if self._nesterov else rate * sums
        else:
            down = rate * gradient
            sums -= down
            value += decay * sums - down if self._nesterov else sums


class Momentum(SGD):
    """``SGD`` with momentum, under the name and in the order of arguments of TensorFlow 1.

    Parameters
    ----------
    learning_rate : float, default 0.01
        The rate.
    momentum : float, default 0.9
        The factor of the earlier steps.
    nesterov : bool, default False
        True: Nesterov's momentum.
    name : str, default "Momentum"
        The name of the optimizer.
    **more : any
        Further arguments of ``SGD``: ``compat``.

    Raises
    ------
    ArgumentError
        If a number is not finite, or ``compat`` is another text.
    """

    def __init__(
        self, learning_rate: float = 0.01, momentum: float = 0.9, nesterov: bool = False, name: str = "Momentum",
        **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, momentum, nesterov, name, **more)
        self._has_momentum = True  # also for momentum=0.0, which may be assigned later


class Adagrad(Optimizer):
    """``a += g^2`` and ``w -= lr g / (sqrt(a) + eps)``; "v1" has no eps, "keras3" takes ``sqrt(a +
    eps)``.

    Each element has a learning rate that falls with the squares that it has seen.

    See ``SGD`` for the other parameters.

    Parameters
    ----------
    learning_rate : float, default 0.001
        The rate lr.
    initial_accumulator_value : float, default 0.1
        The first value of a, from 0 on.
    epsilon : float, default 1e-07
        The number eps.
    name : str, default "Adagrad"
        The name of the optimizer.
    """

    other_names: ClassVar[Mapping[str, str]] = {
        **Optimizer.other_names,
        "accumulator": "_accumulators",
    }

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
            raise ArgumentError(
                f"initial_accumulator_value is {initial_accumulator_value}.", "It is at least 0."
            )
        super().__init__(name, compat, {"learning_rate": learning_rate, "epsilon": epsilon})
        self._first = float(initial_accumulator_value)

    def _slot_values(self) -> Mapping[str, float]:
        return {"accumulator": self._first}

    def _update(
        self, value: Array, gradient: Array, square: Square, slots: Slots, numbers: Numbers
    ) -> None:
        squares, epsilon = slots["accumulator"], numbers["epsilon"]
        squares += square()
        if self._compat == "keras3":
            divisor = np.sqrt(squares + epsilon)
        else:
            divisor = np.sqrt(squares) + (epsilon if self._compat == "keras_legacy" else 0)
        value -= numbers["learning_rate"] * gradient / divisor


class RMSprop(Optimizer):
    """``s = rho s + (1 - rho) g^2`` and ``w -= lr g / (sqrt(s) + eps)``; the squares of all rows
    decay.

    See ``SGD`` for the other parameters.

    Parameters
    ----------
    learning_rate : float, default 0.001
        The rate lr.
    rho : float, default 0.9
        The factor by which the squares decay.
    epsilon : float, default 1e-07
        The number eps; in "keras3" the root is taken of ``s + eps``.
    name : str, default "RMSprop"
        The name of the optimizer.
    """

    other_names: ClassVar[Mapping[str, str]] = {**Optimizer.other_names, "rms": "_velocities"}

    def __init__(
        self,
        learning_rate: float = 0.001,
        rho: float = 0.9,
        epsilon: float = 1e-7,
        name: str = "RMSprop",
        *,
        compat: Compat = "keras_legacy",
    ) -> None:
        super().__init__(
            name, compat, {"learning_rate": learning_rate, "rho": rho, "epsilon": epsilon}
        )

    def _slot_values(self) -> Mapping[str, float]:
        return {"rms": 0.0}

    def _touches_all_rows(self) -> bool:
        return True

    def _update(
        self, value: Array, gradient: Array, square: Square, slots: Slots, numbers: Numbers
    ) -> None:
        squares, rho = slots["rms"], numbers["rho"]
        squares *= rho
        squares += (1 - rho) * square()
        if self._compat == "keras3":
            value -= numbers["learning_rate"] * gradient / np.sqrt(squares + numbers["epsilon"])
        else:
            value -= numbers["learning_rate"] * gradient / (np.sqrt(squares) + numbers["epsilon"])


class Adam(Optimizer):
    """Step t: ``m += (1 - b1) (g - m)``, ``v += (1 - b2) (g^2 - v)``, ``w -= rate m / (sqrt(v) +
    eps)``.

    ``rate = lr sqrt(1 - b2^t) / (1 - b1^t)``. Sparse gradients move every row: those without one
    decay, as if their gradient were zero.

    See ``SGD`` for the other parameters.

    Parameters
    ----------
    learning_rate : float, default 0.001
        The rate lr.
    beta_1 : float, default 0.9
        The factor b1 by which the mean decays.
    beta_2 : float, default 0.999
        The factor b2 by which the squares decay.
    epsilon : float, optional
        The number eps, by default 1e-7, in "v1" 1e-8.
    name : str, default "Adam"
        The name of the optimizer.
    """

    other_names: ClassVar[Mapping[str, str]] = {
        **Optimizer.other_names,
        "m": "_momentums",
        "v": "_velocities",
    }

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
        given = {
            "learning_rate": learning_rate,
            "beta_1": beta_1,
            "beta_2": beta_2,
            "epsilon": small,
        }
        super().__init__(name, compat, given)

    def _slot_values(self) -> Mapping[str, float]:
        return {"m": 0.0, "v": 0.0}

    def _touches_all_rows(self) -> bool:
        return True

    def _numbers(self, step: int, dtype: np.dtype[Any]) -> Numbers:
        # Both means begin at 0 and are too small at first: after step 1 of a constant gradient g, m
        # = (1 - b1) g. The weights of the gradients add up to 1 - b^t, so m / (1 - b1^t) and v / (1
        # - b2^t) are free of that bias. Both divisors are the same for all elements, and so they go
        # into the rate. With b1 = 0.9, b2 = 0.999 and t = 1: rate = lr sqrt(0.001) / 0.1, and w
        # moves by rate * 0.1 g / sqrt(0.001 g^2) = lr, for any size of g.
        numbers = dict(super()._numbers(step, dtype))
        one, t = dtype.type(1), numbers["step"]
        unbiased = np.sqrt(one - numbers["beta_2"] ** t) / (one - numbers["beta_1"] ** t)
        return numbers | {"rate": numbers["learning_rate"] * unbiased}

    def _update(
        self, value: Array, gradient: Array, square: Square, slots: Slots, numbers: Numbers
    ) -> None:
        mean, squares = slots["m"], slots["v"]
        mean += (gradient - mean) * (1 - numbers["beta_1"])
        squares += (square() - squares) * (1 - numbers["beta_2"])
        value -= numbers["rate"] * mean / (np.sqrt(squares) + numbers["epsilon"])
