"""The base class of layers: a module with a gradient and a plain form."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy.typing as npt

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.reference.nn.gradients import Gradient
from shardvar.reference.training.module import Module
from shardvar.reference.training.serialization import (
    check_config,
    deserialize,
)
from shardvar.reference.training.strategies.scope import current_scope
from shardvar.reference.variables import Variable, initializers, name_scope

_SHORT_NAMES = {"uniform": "RandomUniform", "normal": "RandomNormal"}

GradientPairs = list[tuple[Gradient | None, Variable]]
LayerPullback = Callable[[Any], tuple[GradientPairs, Array | None]]
"""upstream -> gradients by the variables, and by the input; None where the input has no gradient,
as ids have none."""


class Layer(Module):
    """The base class: a subclass writes ``vjp`` and ``get_config``.

    Calling a layer gives its value for the inputs.

    Parameters
    ----------
    name : str, optional
        The name, with which the names of its variables begin; by default the class's name in snake
        case.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        # A layer may create variables at its first call, outside of the scope.
        self._scope = current_scope()

    def __call__(self, inputs: npt.ArrayLike) -> Array:
        value, _ = self.vjp(inputs)
        return value

    def vjp(self, inputs: npt.ArrayLike) -> tuple[Array, LayerPullback]:
        """Return the layer's value for inputs, and its pullback.

        Parameters
        ----------
        inputs : array_like
            The inputs.

        Returns
        -------
        value : ndarray
            The value.
        pullback : callable
            Takes the gradient of a scalar by the value, and returns a list of pairs (gradient,
            variable) and the gradient by the inputs, None where they have none.

        Raises
        ------
        ArgumentError
            If the inputs do not fit the layer.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make an equal layer, without the values of its variables.

        Returns
        -------
        dict
            Plain data.
        """
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Create a new layer, of the strategy in whose scope this is called.

        Parameters
        ----------
        config : dict
            The arguments of the class, as ``get_config`` returns them.

        Raises
        ------
        ArgumentError
            If the class does not take an entry of `config`.
        """
        return cls(**check_config(cls, config))

    @contextmanager
    def building(self) -> Iterator[None]:
        """Enter the layer's strategy and name scope, to create its variables."""
        with name_scope(self.name):
            if self._scope is None:
                yield
            else:
                with self._scope.enter():
                    yield


def read_initializer(given: Any) -> Any:
    """Return the initializer that is given, named as in Keras (``"glorot_uniform"``), or given in
    its plain form.

    >>> read_initializer("zeros")
    Zeros()
    """
    if isinstance(given, dict):
        return deserialize(given)
    if not isinstance(given, str):
        return given
    # Keras's names are the classes' names in snake case: "glorot_uniform" for GlorotUniform.
    name = _SHORT_NAMES.get(given) or "".join(word.capitalize() for word in given.split("_"))
    kind = getattr(initializers, name, None) if name in initializers.__all__ else None
    if kind is None or name == "Initializer":
        raise ArgumentError(
            f"Unknown initializer {given!r}.", "Give one of sv.initializers, or its name."
        )
    return kind()
