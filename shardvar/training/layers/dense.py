"""Dense: a matrix product, a bias and an activation."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.nn import matmul, vjp
from shardvar.nn.gradients import check_upstream, dense_gradients
from shardvar.training.layers.layer import Layer, Pairs, Pullback, read_initializer
from shardvar.training.serialization import serializable, serialize
from shardvar.variables import Variable, VariableInterface
from shardvar.variables.values import as_dtype, as_value

_Activation = tuple[Callable[[Array], Array], Callable[[Array], Array]]


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):  # where exp is infinite the value is 0, as it should be
        return np.asarray(1 / (1 + np.exp(-x)))


_ACTIVATIONS: dict[str | None, _Activation] = {
    None: (lambda x: x, lambda y: np.ones((), y.dtype)),
    "linear": (lambda x: x, lambda y: np.ones((), y.dtype)),
    "relu": (lambda x: np.maximum(x, 0), lambda y: (y > 0).astype(y.dtype)),
    "sigmoid": (_sigmoid, lambda y: np.asarray(y * (1 - y))),
    "tanh": (np.tanh, lambda y: np.asarray(1 - y * y)),
}
"""The function of x, and its derivative as a function of its value y."""


@serializable
class Dense(Layer):
    """``activation(x @ kernel + bias)``: [*batch, n] becomes [*batch, units].

    The kernel [n, units] and the bias [units] are created when n is known: at the first call, or from ``input_dim``.

    >>> Dense(2, kernel_initializer="ones", input_dim=3)([[1.0, 2.0, 3.0]]).tolist()
    [[6.0, 6.0]]
    """

    kernel: VariableInterface
    bias: VariableInterface

    other_names: ClassVar[Mapping[str, str]] = {"kernel": "_kernel"}
    """Keras 3's."""

    def __init__(
        self,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        dtype: Any = "float32",
        name: str | None = None,
        input_dim: int | None = None,
    ) -> None:
        super().__init__(name)
        if isinstance(units, bool) or not hasattr(units, "__index__") or units < 1:
            raise ArgumentError(f"units is {units!r}.", "Give a positive integer.")
        if activation not in _ACTIVATIONS:
            known = ", ".join(filter(None, _ACTIVATIONS))
            raise ArgumentError(f"There is no activation {activation!r}.", f"Give None or one of {known}.")
        self.units = int(units)
        self.activation = activation
        self.use_bias = bool(use_bias)
        self._initializers = (read_initializer(kernel_initializer), read_initializer(bias_initializer))
        self._dtype = as_dtype(dtype)
        if input_dim is not None:
            self.build(input_dim)

    def build(self, input_dim: int) -> None:
        """Create the variables for inputs of so many columns."""
        of_kernel, of_bias = self._initializers
        with self.building():
            self.kernel = Variable(of_kernel, name="kernel", shape=(int(input_dim), self.units), dtype=self._dtype)
            if self.use_bias:
                self.bias = Variable(of_bias, name="bias", shape=(self.units,), dtype=self._dtype)

    def vjp(self, inputs: Any) -> tuple[Array, Pullback]:
        x = as_value(inputs)
        if "kernel" not in vars(self):
            if x.ndim < 2:
                raise ArgumentError(f"A dense layer is called with shape {x.shape}.", "Give [*batch, columns].")
            self.build(x.shape[-1])
        function, slope = _ACTIVATIONS[self.activation]
        product, pullback = vjp(matmul, x, self.kernel)
        value = function(product + self.bias.read_value() if self.use_bias else product)

        def pull(upstream: Any) -> tuple[Pairs, Array]:
            inner = check_upstream(upstream, value) * slope(value)
            of_inputs, of_kernel = pullback(inner)
            pairs: Pairs = list(of_kernel)
            if self.use_bias:
                pairs += dense_gradients(self.bias, inner.reshape(-1, self.units).sum(axis=0))
            return pairs, of_inputs

        return value, pull

    def get_config(self) -> dict[str, Any]:
        of_kernel, of_bias = self._initializers
        built = {"input_dim": self.kernel.shape[0]} if "kernel" in vars(self) else {}
        return {
            "units": self.units,
            "activation": self.activation,
            "use_bias": self.use_bias,
            "kernel_initializer": serialize(of_kernel),
            "bias_initializer": serialize(of_bias),
            "dtype": self._dtype.name,
            "name": self.name,
            **built,
        }
