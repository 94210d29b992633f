"""Optimizers: change variables by their gradients, dense and sparse, shard by shard.

An optimizer is a rule, elementwise and in place, and the slots that the rule needs.
``apply_gradients`` has four steps: check the pairs, create slots that are missing, plan every
variable's write, commit all of them.

R-OPT-3 (RFC 000): "Hyperparameters and slots in optimizer are variables. Hyperparameters creation
will be subject to the parameter strategy scope and partitioner." They are created by
``sv.Variable`` when the optimizer is.

``compat`` chooses the formulas where TensorFlow has had several: "keras_legacy" (RFC 000's
``tf.keras.optimizers``, the default), "v1" (``tf.compat.v1.train``) or "keras3".

Several replicas give one gradient each, as ``PerReplica``. R-OPT-8 (RFC 002): replicas exchange
their updates, and each copy gets the same. The variable's ``aggregation`` is the rule: the sum, the
mean, or only the first replica's. A variable that was created without one gets the sum, as
TensorFlow's optimizers always take it: where each replica has a part of the batch, gradients of a
loss that is a sum add up.

The class of a rule names the hyperparameters and slots, returns True from ``_touches_all_rows`` if
rows without a gradient also change, because a slot decays, and has the formula in ``_update``.

``other_names`` are the names of the slots in Keras 3, under which its checkpoints have them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import isfinite
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array, DType
from shardvar.reference.devices import operation_scope
from shardvar.reference.nn.gradients import Gradient, check_sources, gradient
from shardvar.reference.nn.lookup import exact_dtype
from shardvar.reference.tracking import Trackable
from shardvar.reference.training.steps import Slots, SlotTable, Square, plan_steps
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.mirrored import PerReplica, aggregate
from shardvar.reference.variables.rows import IndexedSlices
from shardvar.reference.variables.sharded import ShardedVariable
from shardvar.reference.variables.values import Write, as_value, check_shape, commit
from shardvar.reference.variables.variable import Variable, VariableAggregation

__all__ = ["SGD", "Adagrad", "Adam", "Momentum", "Optimizer", "RMSprop"]

Compat = Literal["keras_legacy", "v1", "keras3"]
Pair = tuple[Gradient | PerReplica | None, Variable]
_PAIRS = "Give pairs (gradient, variable), as zip(gradients, variables) makes them."
Loss = Callable[[], tuple[Any, Iterable[Pair]]]
"""Returns the loss, and its gradients as pullbacks give them; a variable may come several times."""
Numbers = Mapping[str, Any]
"""Hyperparameters of one step, as scalars of the dtype that the rule computes in."""


class Optimizer(Trackable):
    """The base class: a subclass names its hyperparameters and slots, and writes the rule.

    Parameters
    ----------
    name : str
        The name of the optimizer, with which the names of its hyperparameters begin.
    compat : {"keras_legacy", "v1", "keras3"}
        The formulas, where TensorFlow has had several: the formulas of RFC 000's
        ``tf.keras.optimizers``, of ``tf.compat.v1.train``, or of Keras 3.
    hyperparameters : mapping of str to float
        The hyperparameters, which become variables.

    Raises
    ------
    ArgumentError
        If `compat` is another text, or a hyperparameter is not a finite number.
    """

    other_names: ClassVar[Mapping[str, str]] = {
        "iterations": "_iterations",
        "learning_rate": "_learning_rate",
    }
    """Names in Keras 3, in whose checkpoints slots are also found; a subclass adds its slots'."""

    def __init__(self, name: str, compat: Compat, hyperparameters: Mapping[str, float]) -> None:
        if compat not in get_args(Compat):
            raise ArgumentError(
                f"compat is {compat!r}.", f"It is one of {', '.join(get_args(Compat))}."
            )
        self._name, self._compat = name, compat
        self._hyperparameters = {
            key: self._create(key, value) for key, value in hyperparameters.items()
        }
        self._slots = SlotTable(self)
        self.iterations: Variable = self.track(
            "iterations", Variable(np.int64(0), trainable=False, name=f"{name}/iterations")
        )
        """The number of steps that were applied."""

    @property
    def name(self) -> str:
        """The name of the optimizer, with which the names of its hyperparameters begin."""
        return self._name

    @property
    def learning_rate(self) -> VariableInterface:
        """The variable with the learning rate; ``learning_rate.assign`` changes later steps."""
        return self.hyperparameter("learning_rate")

    def hyperparameter(self, name: str) -> VariableInterface:
        """Return the scalar variable that holds a hyperparameter; assigning it changes later steps.

        Parameters
        ----------
        name : str
            The name, as in the constructor.

        Raises
        ------
        ArgumentError
            If the optimizer does not have it.
        """
        if name not in self._hyperparameters:
            names = ", ".join(self._hyperparameters)
            raise ArgumentError(f"{self._name} has no hyperparameter {name!r}.", f"It has {names}.")
        return self._hyperparameters[name]

    # For subclasses to override.

    def _slot_values(self) -> Mapping[str, float]:
        """Return the slots that the rule needs, and their first values."""
        return {}

    def _touches_all_rows(self) -> bool:
        """Return True if rows without a gradient also change, because a slot decays."""
        return False

    def _numbers(self, step: int, dtype: DType) -> Numbers:
        """Return the hyperparameters as scalars, and as "step" the number of the step, from 1."""
        numbers = {
            name: variable.read_value().astype(dtype)[()]
            for name, variable in self._hyperparameters.items()
        }
        return numbers | {"step": dtype.type(step)}

    def _update(
        self, value: Array, gradient: Array, square: Square, slots: Slots, numbers: Numbers
    ) -> None:
        raise NotImplementedError

    # Training.

    def apply_gradients(self, grads_and_vars: Iterable[Pair], name: str | None = None) -> None:
        """Apply each gradient to its variable; on an error no variable and no slot has changed.

        R-OPT-4 (RFC 000): "grads_and_vars contains a pair of (gradient, component variable)".
        R-OPT-5 (RFC 000): "Optimizer lazily creates slots in the first call of
        apply_gradients(grads_and_vars)".

        Parameters
        ----------
        grads_and_vars : iterable of tuple
            Pairs (gradient, variable), each variable once and none of them sharded. A gradient is
            an array of the variable's shape, an ``IndexedSlices``, None for none, or
            ``PerReplica``, as ``strategy.run`` gives it: the variable's ``aggregation`` makes one
            of it.
        name : str, optional
            The operation's name in the transfer ledger.

        Raises
        ------
        ArgumentTypeError
            If an item is not such a pair.
        ArgumentError
            If a variable comes twice, there are no gradients, or one does not fit its variable.
        """
        with operation_scope(name or "apply_gradients"):
            # Check.
            pairs = _check_pairs(grads_and_vars)
            # Plan. Hyperparameters are read once a dtype. Slots that are missing are created here:
            # should a later variable fail, a new slot has its first value, and the next step finds
            # it unused.
            step = int(self.iterations) + 1
            dtypes = {variable.dtype for _, variable in pairs}
            numbers = {dtype: self._numbers(step, exact_dtype(dtype)) for dtype in dtypes}
            writes = [
                write
                for part, variable in pairs
                for write in self._plan(part, variable, numbers[variable.dtype])
            ]
            # Commit. Constraints see the new values; they are the user's functions, and may fail
            # after the step.
            commit(writes)
            self.iterations.assign_add(1)
            for _, variable in pairs:
                constraint = getattr(variable, "constraint", None)
                if constraint is not None:
                    variable.assign(constraint(variable.read_value()))

    def minimize(self, loss: Loss, var_list: Any = None) -> Any:
        """Take one step down a loss.

        R-OPT-6 (RFC 003): "The Optimizer.minimize method will no longer work if it's passed a
        Tensor and no list of variables." Nothing is collected globally.

        Parameters
        ----------
        loss : callable
            Returns the loss and its gradients, as pairs of pullbacks; a variable may come several
            times.
        var_list : sequence of Variable or Module, optional
            The variables to train, or an object with ``trainable_variables``. Variables that the
            loss does not depend on stay.

        Returns
        -------
        any
            The loss.

        Raises
        ------
        ArgumentTypeError
            If `loss` is not a function that returns two values, or `var_list` holds a sharded
            variable or other objects.
        ArgumentError
            If `var_list` is empty, or ``apply_gradients`` refuses the gradients.
        """
        given: Any = loss
        if var_list is None:
            raise ArgumentTypeError(
                "minimize was called without variables, and no variables are collected globally.",
                "Give a list of variables, or an object with trainable_variables."
                if callable(given)
                else "Give a function that returns (loss, gradients), and a list of variables.",
            )
        variables = trainable_variables(var_list)
        if not callable(given):
            raise ArgumentTypeError(
                f"The loss is a value, {type(loss).__name__}, and not a function that computes it.",
                "Give a function without arguments that returns (loss, gradients).",
            )
        computed: Any = loss()
        if not isinstance(computed, tuple) or len(computed) != 2:
            raise ArgumentTypeError(
                f"The loss returns {type(computed).__name__}.", "Return (loss, gradients)."
            )
        value, contributions = computed
        self.apply_gradients(zip(gradient(contributions, variables), variables, strict=True))
        return value

    def _plan(self, part: Gradient, variable: Variable, numbers: Numbers) -> list[Write]:
        # A constraint looks at the whole value, and would change rows that have no gradient, as
        # Keras refuses too.
        if getattr(variable, "constraint", None) is not None and not isinstance(part, np.ndarray):
            raise ArgumentError(
                f"{variable.name} has a constraint and a sparse gradient.",
                "Constrain only dense gradients.",
            )
        slots = {
            key: self.add_slot(variable, key, first) for key, first in self._slot_values().items()
        }
        return plan_steps(
            partial(self._update, numbers=numbers),
            part,
            variable,
            slots,
            touches_all_rows=self._touches_all_rows(),
            sum_squares=self._compat == "keras3",
        )

    # Slots.

    def add_slot(self, var: Any, slot_name: str, initializer: Any = 0.0) -> Any:
        """Return the slot of a variable, and create it if it does not exist.

        Parameters
        ----------
        var : Variable or ShardedVariable
            The variable.
        slot_name : str
            The name of the slot.
        initializer : float or callable, default 0.0
            The first value of each element, or a function that makes the value.

        Returns
        -------
        Variable or ShardedVariable
            The slot, sharded and mirrored as the variable.

        Raises
        ------
        ArgumentTypeError
            If `var` is not a variable.
        """
        return self._slots.add(var, slot_name, initializer)

    def get_slot(self, var: Any, slot_name: str) -> Any:
        """Return the slot of a variable. See ``add_slot`` for the parameters.

        Returns
        -------
        Variable or ShardedVariable
            The slot; for a sharded variable the sharded variable of its shards' slots.

        Raises
        ------
        UnknownKey
            If the slot does not exist.
        """
        return self._slots.get(var, slot_name)

    def get_slot_names(self) -> list[str]:
        """Return the names of all existing slots."""
        return self._slots.names

    def _create(self, name: str, value: float) -> VariableInterface:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ArgumentTypeError(f"{name} is {value!r}.", "Give a number.") from None
        if not isfinite(number):
            raise ArgumentError(f"{name} is {number}.", "Give a finite number.")
        # float32 as in TensorFlow, for variables of any dtype: 0.001 of a checkpoint is then the
        # same bits here and there.
        variable: VariableInterface = Variable(
            np.float32(number), trainable=False, name=f"{self._name}/{name}"
        )
        return self.track(name, variable)


def trainable_variables(var_list: Any) -> list[Variable]:
    """Return the variables of a list, or of an object with ``trainable_variables``."""
    listed = getattr(var_list, "trainable_variables", var_list)
    variables = check_sources(list(listed) if isinstance(listed, list | tuple) else [listed])
    if not variables:
        raise ArgumentError("var_list has no variables.", "Give a list of variables, or a module.")
    return variables


def _check_pairs(grads_and_vars: Iterable[Pair]) -> list[tuple[Gradient, Variable]]:
    """Return the pairs that have a gradient, aggregated over replicas, each variable once."""
    try:
        pairs: list[tuple[Any, Any]] = [(part, variable) for part, variable in grads_and_vars]
    except (TypeError, ValueError):
        raise ArgumentTypeError("grads_and_vars holds no pairs.", _PAIRS) from None
    # A variable that came twice would be stepped twice, where a step along the sum of its gradients
    # is meant.
    seen: set[int] = set()
    for number, (_, variable) in enumerate(pairs):
        # RFC 000 writes apply_gradients((gradients, v.variables)): two lists, where it means their
        # pairs.
        if not isinstance(variable, Variable):
            kind = type(variable).__name__
            raise ArgumentTypeError(
                f"Item {number} of grads_and_vars has no variable, but a second {kind}.", _PAIRS
            )
        if isinstance(variable, ShardedVariable):
            raise ArgumentTypeError(
                f"A gradient is applied to the sharded variable {variable.name!r}.",
                "Apply one to each shard: zip(gradients, sharded.variables).",
            )
        if id(variable) in seen:
            raise ArgumentError(
                f"{variable.name} comes with two gradients.", "Add them with sv.nn.gradient."
            )
        seen.add(id(variable))
    aggregated = [(aggregate_gradient(part, variable), variable) for part, variable in pairs]
    given = [(part, variable) for part, variable in aggregated if part is not None]
    if not given:
        raise ArgumentError("grads_and_vars has no gradient.", _PAIRS)
    return given


def aggregate_gradient(part: Gradient | PerReplica | None, variable: Variable) -> Gradient | None:
    """Return the gradient of all replicas on the current device; None where no replica has one."""
    if not isinstance(part, PerReplica):
        return part
    if all(value is None for value in part.values):
        return None
    # Shapes are checked for each replica: NumPy would broadcast them.
    for number, value in enumerate(part.values):
        what = f"Replica {number}'s gradient of {variable.name}"
        if value is None:
            raise ArgumentError(
                f"{what} is None, and another replica's is not.",
                "Give zeros, or IndexedSlices of no rows.",
            )
        if isinstance(value, IndexedSlices):
            row_shape = value.values.shape[value.indices.ndim :]
            check_shape(row_shape, variable.shape[1:], f"A row of {what}")
        else:
            check_shape(as_value(value).shape, variable.shape, what)
    mode = getattr(variable, "aggregation", VariableAggregation.NONE)
    made: Gradient = aggregate(
        part, VariableAggregation.SUM if mode is VariableAggregation.NONE else mode
    )
    return made


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

    See ``SGD`` for the other parameters.

    Parameters
    ----------
    momentum : float, default 0.9
        The factor of the earlier steps.
    name : str, default "Momentum"
        The name of the optimizer.
    **more : any
        Further arguments of ``SGD``: ``compat``.
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
        epsilon, is_inside = numbers["epsilon"], self._compat == "keras3"
        divisor = np.sqrt(squares + epsilon) if is_inside else np.sqrt(squares) + epsilon
        value -= numbers["learning_rate"] * gradient / divisor


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

    def _numbers(self, step: int, dtype: DType) -> Numbers:
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
