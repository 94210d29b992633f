"""The behaviour of variables in expressions of Python and NumPy: the hash of the array that is
their value.

R-CONCAT-1 (RFC 000): a "tensor conversion function that concats shards to the full value. This
allows any Python op to accept sharded variable objects." The conversion is ``__array__``. Ufuncs,
the other functions of NumPy and Python's operators convert their arguments with it and continue
with plain arrays. Results are arrays. Nothing is written through ``out=``, because only the methods
of a variable write to it. What NumPy refuses is an error of the tree, which is also the builtin
that NumPy raises.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from operator import eq, index, ne
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange, ShardvarError
from shardvar.layout.dtypes import Array
from shardvar.reference.variables.values import as_dtype

_Operator = Callable[[Any, Any], Any]
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def _binary(ufunc: np.ufunc) -> _Operator:
    def operator(self: Any, other: Any) -> Any:
        if getattr(other, "__array_ufunc__", True) is None:
            # NumPy's protocol: the other operand computes the result by its own reflected operator.
            return NotImplemented
        return ufunc(self, other)

    return operator


def _reflected(ufunc: np.ufunc) -> _Operator:
    def operator(self: Any, other: Any) -> Any:
        return ufunc(other, self)

    return operator


def _unary(ufunc: np.ufunc) -> Callable[[Any], Any]:
    def operator(self: Any) -> Any:
        return ufunc(self)

    return operator


_Method = TypeVar("_Method", bound=Callable[..., Any])


def abstract(method: _Method) -> _Method:
    """Mark a method that a kind of variable must define, as ``abc.abstractmethod`` does.

    Type checkers do not know this decorator. They would otherwise refuse ``sv.Variable(...)``,
    which asks a factory and constructs another class.
    """
    return abstractmethod(method)


class NumpyProtocol(metaclass=ABCMeta):  # noqa: B024 - `abstract` is not known to ruff
    """The operators and conversions of an array, all derived from ``read_value``.

    In-place operators are left out: ``variable += 1`` binds the name to a new array, as in
    TensorFlow.
    """

    @abstract
    def read_value(self) -> Array:
        """Return the value as a new array."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        # The value is always a new array, so a request without a copy cannot be met. NumPy makes it
        # in np.asarray(x, copy=False), and expects an error where that is so.
        if copy is False:
            raise ArgumentError(
                "A variable's value is always a copy.", "Ask for it without copy=False."
            )
        value = self.read_value()
        return value if dtype is None else value.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # np.add.at(variable, ...) and out=variable would write past the mutex and the ledger.
        if method == "at" or any(
            isinstance(target, NumpyProtocol) for target in kwargs.get("out", ())
        ):
            raise ArgumentTypeError(
                f"{ufunc.__name__} would write to a variable.",
                "Use its assign and scatter methods.",
            )
        return _computed(getattr(ufunc, method), ufunc.__name__, [*map(_plain, inputs)], kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(kwargs.get("out"), NumpyProtocol) or (
            func in _WRITERS and isinstance(args[0], NumpyProtocol)
        ):
            raise ArgumentTypeError(
                f"{func.__name__} would write to a variable.", "Use its assign and scatter methods."
            )
        # np.shape and its like need no value: nothing is read or moved.
        if func in _METADATA and len(args) == 1 and not kwargs:
            return _METADATA[func](args[0])
        return _computed(func, func.__name__, _plain(args), kwargs)

    __add__, __radd__ = _binary(np.add), _reflected(np.add)
    __sub__, __rsub__ = _binary(np.subtract), _reflected(np.subtract)
    __mul__, __rmul__ = _binary(np.multiply), _reflected(np.multiply)
    __truediv__, __rtruediv__ = _binary(np.true_divide), _reflected(np.true_divide)
    __floordiv__, __rfloordiv__ = _binary(np.floor_divide), _reflected(np.floor_divide)
    __mod__, __rmod__ = _binary(np.remainder), _reflected(np.remainder)
    __divmod__, __rdivmod__ = _binary(np.divmod), _reflected(np.divmod)
    __pow__, __rpow__ = _binary(np.power), _reflected(np.power)
    __matmul__, __rmatmul__ = _binary(np.matmul), _reflected(np.matmul)
    __and__, __rand__ = _binary(np.bitwise_and), _reflected(np.bitwise_and)
    __or__, __ror__ = _binary(np.bitwise_or), _reflected(np.bitwise_or)
    __xor__, __rxor__ = _binary(np.bitwise_xor), _reflected(np.bitwise_xor)
    __lshift__, __rlshift__ = _binary(np.left_shift), _reflected(np.left_shift)
    __rshift__, __rrshift__ = _binary(np.right_shift), _reflected(np.right_shift)
    __lt__, __le__ = _binary(np.less), _binary(np.less_equal)
    __gt__, __ge__ = _binary(np.greater), _binary(np.greater_equal)
    __neg__, __pos__ = _unary(np.negative), _unary(np.positive)
    __abs__, __invert__ = _unary(np.absolute), _unary(np.invert)

    def __eq__(self, other: object) -> Any:
        # R-SV-EQ: elementwise, as for arrays and TensorFlow's variables; `is` compares identities.
        return _computed(eq, "equal", [self.read_value(), _plain(other)])

    def __ne__(self, other: object) -> Any:
        return _computed(ne, "not_equal", [self.read_value(), _plain(other)])

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows of a snapshot, as over an array's.

        R-VAR-1 (RFC 000): "users' model code doesn't need to change w.r.t whether the variable is
        sharded or not", so a sharded variable also gives rows. Its shards are ``variables``.
        """
        value = self.read_value()
        if value.ndim == 0:
            raise ArgumentTypeError(
                "A variable without axes has no rows to iterate over.", "Read it by .numpy()."
            )
        return iter(value)

    # Conversions of a variable with one element, as of an array.

    def __bool__(self) -> bool:
        return bool(_computed(bool, "bool", [self.read_value()]))

    def __int__(self) -> int:
        return int(_computed(int, "int", [self.read_value()]))

    def __float__(self) -> float:
        return float(_computed(float, "float", [self.read_value()]))

    def __complex__(self) -> complex:
        return complex(_computed(complex, "complex", [self.read_value()]))

    def __index__(self) -> int:
        return int(_computed(index, "index", [self.read_value()]))

    def astype(self, dtype: Any) -> Array:
        """Return the value converted to ``dtype``."""
        return self.read_value().astype(as_dtype(dtype))


_WRITERS = {np.copyto, np.put, np.put_along_axis, np.place, np.putmask, np.fill_diagonal}
_METADATA: dict[Any, Callable[[Any], Any]] = {
    np.shape: lambda variable: variable.shape,
    np.ndim: lambda variable: len(variable.shape),
    np.size: lambda variable: prod(variable.shape),
}
"""Functions that a variable answers from its shape, without moving its value."""


def _computed(
    function: Callable[..., Any],
    name: str,
    operands: Sequence[Any],
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> Any:
    """Return the function of operands without variables; NumPy's errors are translated."""
    try:
        return function(*operands, **{key: _plain(value) for key, value in options.items()})
    except ShardvarError:
        raise
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        given = " and ".join(map(_described, operands))
        cause, remedy = (
            f"{name} of {given} fails: {str(error).rstrip('.')}.",
            "Give operands that NumPy accepts.",
        )
        if isinstance(error, TypeError):
            raise ArgumentTypeError(cause, remedy) from error
        # NumPy's AxisError is an IndexError and a ValueError, as OutOfRange is.
        raise (OutOfRange if isinstance(error, IndexError) else ArgumentError)(
            cause, remedy
        ) from error


def _described(operand: Any) -> str:
    if isinstance(operand, np.ndarray):
        return f"an array {operand.shape} of {operand.dtype}"
    return f"a {type(operand).__name__}"


def _plain(value: Any) -> Any:
    """Return ``value`` with arrays in place of variables, also inside lists and tuples."""
    if isinstance(value, NumpyProtocol):
        return np.asarray(value)
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    return value
