"""What layers share: variables that are created once, a value with its gradient, and a plain form.

A layer is built under the strategy under whose scope it was made, even if it is first called after that scope was left;
its variables have names that begin with its own. ``layer.vjp(x)`` gives the value and its pullback, as ``sv.nn.vjp``
does: the pullback takes the gradient of a scalar by the value, and returns pairs (gradient, variable), as an optimizer
takes them, and the gradient by ``x``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.nn.gradients import Gradient
from shardvar.training.module import Module
from shardvar.training.serialization import check_config, deserialize
from shardvar.training.strategies.scope import current_scope
from shardvar.variables import Variable, initializers, name_scope

Pairs = list[tuple[Gradient | None, Variable]]
Pullback = Callable[[Any], tuple[Pairs, Array | None]]
"""upstream -> gradients by the variables, and by the input; None where the input has no gradient, as ids have none."""


class Layer(Module):
    """The base class: a subclass writes ``vjp`` and ``get_config``."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._scope = current_scope()

    def __call__(self, inputs: Any) -> Array:
        value, _ = self.vjp(inputs)
        return value

    def vjp(self, inputs: Any) -> tuple[Array, Pullback]:
        """The layer's value for the inputs, and its pullback."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer; not the values of its variables."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """A fresh layer, of the strategy in whose scope this is called."""
        return cls(**check_config(cls, config))

    @contextmanager
    def building(self) -> Iterator[None]:
        """Create variables inside: under the layer's strategy and name."""
        with name_scope(self.name):
            if self._scope is None:
                yield
            else:
                with self._scope.enter():
                    yield


_SHORT_NAMES = {"uniform": "RandomUniform", "normal": "RandomNormal"}


def read_initializer(given: Any) -> Any:
    """The initializer that is given, named as in Keras (``"glorot_uniform"``), or given in its plain form.

    >>> read_initializer("zeros")
    Zeros()
    """
    if isinstance(given, dict):
        return deserialize(given)
    if not isinstance(given, str):
        return given
    name = _SHORT_NAMES.get(given) or "".join(word.capitalize() for word in given.split("_"))
    kind = getattr(initializers, name, None) if name in initializers.__all__ else None
    if kind is None or name == "Initializer":
        raise ArgumentError(f"There is no initializer {given!r}.", "Give one of sv.initializers, or its name.")
    return kind()
