"""Layers: how one creates its variables, and the layers that models are made of.

A layer belongs to the strategy in whose scope it was made: its variables are created under that
strategy, even if the first call comes after the scope was left. Their names begin with the layer's
name.

``layer.vjp(x)`` returns the value and its pullback, as ``sv.nn.vjp`` does. The pullback takes the
gradient of a scalar by the value, and returns pairs (gradient, variable), as an optimizer takes
them, and the gradient by ``x``.

``other_names`` are the names of a layer's variables in Keras 3, under which its checkpoints have
them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, Ints
from shardvar.reference.nn import (
    embedding_lookup,
    matmul,
    permute_rows,
    plan_balanced_rows,
    plan_shuffled_rows,
    vjp,
)
from shardvar.reference.nn.gradients import Gradient, dense_gradients, upstream_check
from shardvar.reference.nn.rebalance import Frequencies, read_frequencies
from shardvar.reference.training.module import (
    Module,
    check_config,
    deserialize,
    serializable,
    serialize,
)
from shardvar.reference.training.strategies.strategy import current_scope
from shardvar.reference.variables import Variable, VariableInterface, initializers, name_scope
from shardvar.reference.variables.values import as_dtype, as_value

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
        """Return the arguments of an equal layer as plain data, without the values of variables."""
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
    """Return an initializer that is given itself, by Keras's name (``"zeros"``), or in plain form."""
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


__all__ = ["Dense", "Embedding", "Layer"]


# Dense: a matrix product, a bias and an activation.


_Activation = tuple[Callable[[Array], Array], Callable[[Array], Array]]


def _sigmoid(x: Array) -> Array:
    # exp(1000) is infinite, and 1 / (1 + inf) = 0 is the right value.
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


_ACTIVATIONS: dict[str | None, _Activation] = {
    None: (lambda x: x, lambda y: np.ones((), y.dtype)),
    "linear": (lambda x: x, lambda y: np.ones((), y.dtype)),
    "relu": (lambda x: np.maximum(x, 0), lambda y: (y > 0).astype(y.dtype)),
    "sigmoid": (_sigmoid, lambda y: np.asarray(y * (1 - y))),
    "tanh": (np.tanh, lambda y: np.asarray(1 - y * y)),
}
"""The function of x, and its derivative as a function of the value y, which a pullback has at hand:
tanh' = 1 - y^2."""


@serializable
class Dense(Layer):
    """``activation(x @ kernel + bias)``: [*batch, n] becomes [*batch, units].

    The kernel [n, units] and the bias [units] are created when n is known: at the first call, or
    from `input_dim`.

    Parameters
    ----------
    units : int
        The number of columns of the result.
    activation : {"linear", "relu", "sigmoid", "tanh"}, optional
        The function that is applied to each element; None for none.
    use_bias : bool, default True
        False leaves the bias out.
    kernel_initializer : Initializer or str, default "glorot_uniform"
        The initial value of the kernel, one of ``sv.initializers`` or its name in Keras.
    bias_initializer : Initializer or str, default "zeros"
        The initial value of the bias.
    dtype : dtype_like, default "float32"
        The dtype of both.
    name : str, optional
        The name; by default "dense".
    input_dim : int, optional
        The number of columns of the inputs, to create the variables now.

    Raises
    ------
    ArgumentError
        If `units` is not a positive integer, or the activation or an initializer is not known.

    Examples
    --------
    >>> Dense(2, kernel_initializer="ones", input_dim=3)([[1.0, 2.0, 3.0]]).tolist()
    [[6.0, 6.0]]
    """

    kernel: VariableInterface
    bias: VariableInterface

    other_names: ClassVar[Mapping[str, str]] = {"kernel": "_kernel"}

    def __init__(
        self,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        dtype: npt.DTypeLike = "float32",
        name: str | None = None,
        input_dim: int | None = None,
    ) -> None:
        super().__init__(name)
        if isinstance(units, bool) or not hasattr(units, "__index__") or units < 1:
            raise ArgumentError(f"units is {units!r}.", "Give a positive integer.")
        if activation not in _ACTIVATIONS:
            known = ", ".join(filter(None, _ACTIVATIONS))
            raise ArgumentError(
                f"Unknown activation {activation!r}.", f"Give None or one of {known}."
            )
        self.units = int(units)
        self.activation = activation
        self.use_bias = bool(use_bias)
        self._initializers = (
            read_initializer(kernel_initializer),
            read_initializer(bias_initializer),
        )
        self._dtype = as_dtype(dtype)
        if input_dim is not None:
            self.build(input_dim)

    def build(self, input_dim: int) -> None:
        """Create the variables.

        Parameters
        ----------
        input_dim : int
            The number of columns of the inputs.
        """
        of_kernel, of_bias = self._initializers
        with self.building():
            self.kernel = Variable(
                of_kernel, name="kernel", shape=(int(input_dim), self.units), dtype=self._dtype
            )
            if self.use_bias:
                self.bias = Variable(of_bias, name="bias", shape=(self.units,), dtype=self._dtype)

    def vjp(self, inputs: npt.ArrayLike) -> tuple[Array, LayerPullback]:
        x = as_value(inputs)
        if "kernel" not in vars(self):
            if x.ndim < 2:
                raise ArgumentError(
                    f"A dense layer is called with shape {x.shape}.", "Give [*batch, columns]."
                )
            self.build(x.shape[-1])
        function, slope = _ACTIVATIONS[self.activation]
        product, pullback = vjp(matmul, x, self.kernel)
        value = function(product + self.bias.read_value() if self.use_bias else product)
        check = upstream_check(value)

        def pull(upstream: Any) -> tuple[GradientPairs, Array]:
            # The chain rule from the outside in: activation, bias (one row that is added to every
            # row), product.
            inner = check(upstream) * slope(value)
            of_inputs, of_kernel = pullback(inner)
            pairs: GradientPairs = list(of_kernel)
            if self.use_bias:
                pairs += dense_gradients(self.bias, inner.reshape(-1, self.units).sum(axis=0))
            return pairs, of_inputs

        return value, pull

    def get_config(self) -> dict[str, Any]:
        of_kernel, of_bias = self._initializers
        # A layer that is built has variables of a known shape, so its copy is built at once too.
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


# Embedding: rows of a table by their ids.


@serializable
class Embedding(Layer):
    """A table [vocab_size, embedding_size]; ids [*batch] become vectors [*batch, embedding_size].

    R-LAYER-1 (RFC 000): the table is created by ``sv.Variable``, and "the model can be used in
    unmodified training code": the scope decides whether it is sharded.

    With `rebalance`, shards are read about equally often: R-BALANCE-1 (RFC 002): "we can rebalance
    embeddings in the Keras Embedding layer, optionally given a frequency map/list, and remember the
    mapping in a variable". The variable is ``row_of_id``. Each id begins with the vector that it
    has without rebalancing, so the rows of a new table move once, which takes the memory of one
    copy of it.

    Parameters
    ----------
    vocab_size : int, optional
        The number of ids; either this or `input_dim` is given.
    embedding_size : int, optional
        The size of a vector; either this or `output_dim` is given.
    embeddings_initializer : Initializer or str, default "uniform"
        The initial value of the table, one of ``sv.initializers`` or its name in Keras.
    max_norm : float, optional
        Vectors with a larger l2 norm are scaled down to it.
    rebalance : bool, default False
        True permutes the rows of the table: by `frequencies`, or without them as
        ``sv.nn.plan_shuffled_rows`` does with the seed 0.
    frequencies : array_like or mapping, optional
        The number of reads of each id: one for each id, or a map from ids. Implies `rebalance`.
    dtype : dtype_like, default "float32"
        The dtype of the table.
    name : str, optional
        The name; by default "embedding".
    input_dim : int, optional
        Keras's name of `vocab_size`.
    output_dim : int, optional
        Keras's name of `embedding_size`.

    Raises
    ------
    ArgumentError
        If a size is missing, given twice or not an integer from 0 on, the frequencies do not fit,
        or the initializer is not known.

    Examples
    --------
    >>> table = Embedding(4, 2, embeddings_initializer="ones")
    >>> table([[3, 0]]).tolist()
    [[[1.0, 1.0], [1.0, 1.0]]]
    """

    embeddings: VariableInterface
    row_of_id: VariableInterface

    other_names: ClassVar[Mapping[str, str]] = {"embeddings": "_embeddings"}

    def __init__(
        self,
        vocab_size: int | None = None,
        embedding_size: int | None = None,
        embeddings_initializer: Any = "uniform",
        *,
        max_norm: float | None = None,
        rebalance: bool = False,
        frequencies: Frequencies | None = None,
        dtype: npt.DTypeLike = "float32",
        name: str | None = None,
        input_dim: int | None = None,
        output_dim: int | None = None,
    ) -> None:
        super().__init__(name)
        self.vocab_size = _one_of(vocab_size=vocab_size, input_dim=input_dim)
        self.embedding_size = _one_of(embedding_size=embedding_size, output_dim=output_dim)
        self.max_norm = max_norm
        self.rebalance = bool(rebalance) or frequencies is not None
        self._frequencies = (
            None if frequencies is None else read_frequencies(frequencies, self.vocab_size)
        )
        self._initializer = read_initializer(embeddings_initializer)
        shape = (self.vocab_size, self.embedding_size)
        with self.building():
            self.embeddings = Variable(
                self._initializer, name="embeddings", shape=shape, dtype=as_dtype(dtype)
            )
            if self.rebalance:
                rows = self._plan_rows()
                permute_rows(self.embeddings, rows)
                self.row_of_id = Variable(rows, trainable=False, name="row_of_id")

    def rows_of(self, ids: npt.ArrayLike) -> Any:
        """Return the rows of the table that hold the vectors of ids.

        Parameters
        ----------
        ids : array_like of int
            Ids of any shape.

        Returns
        -------
        array_like of int
            The ids themselves unless the table is rebalanced.

        Raises
        ------
        OutOfRange
            If the table is rebalanced and an id is outside of it.
        """
        return embedding_lookup(self.row_of_id, ids, name="row_of_id") if self.rebalance else ids

    def __call__(self, inputs: npt.ArrayLike) -> Array:
        # Without the pullback, which would keep the rows that were read alive.
        return embedding_lookup(self.embeddings, self.rows_of(inputs), self.max_norm)

    def vjp(self, inputs: npt.ArrayLike) -> tuple[Array, LayerPullback]:
        value, pullback = vjp(
            embedding_lookup, self.embeddings, self.rows_of(inputs), self.max_norm
        )

        def pull(upstream: Any) -> tuple[GradientPairs, None]:
            return list(pullback(upstream)[0]), None

        return value, pull

    def get_config(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab_size,
            "embedding_size": self.embedding_size,
            "embeddings_initializer": serialize(self._initializer),
            "max_norm": self.max_norm,
            "rebalance": self.rebalance,
            "frequencies": None if self._frequencies is None else self._frequencies.tolist(),
            "dtype": np.dtype(self.embeddings.dtype).name,
            "name": self.name,
        }

    def _plan_rows(self) -> Ints:
        if self._frequencies is None:
            return plan_shuffled_rows(self.vocab_size, seed=0)
        return plan_balanced_rows(self._frequencies, self.embeddings)


def _one_of(**sizes: int | None) -> int:
    """Return the size that is given under one of two names."""
    given = [size for size in sizes.values() if size is not None]
    if (
        len(given) != 1
        or isinstance(given[0], bool)
        or not hasattr(given[0], "__index__")
        or given[0] < 0
    ):
        raise ArgumentError(
            f"Invalid size {sizes}.", f"Give {' or '.join(sizes)}, an integer >= 0."
        )
    return int(given[0])
