"""Variables in NumPy expressions: whoever wants the value gets it, concatenated from its shards.

R-CONCAT-1 (RFC 000): a "tensor conversion function that concats shards to the full value. This allows any Python op to
accept sharded variable objects." The conversion is ``__array__``; ufuncs, the other functions of NumPy and Python's
operators convert their arguments with it and go on with plain arrays. Results are arrays; nothing is written through
``out=``, because a variable is written by its own methods alone.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array
from shardvar.variables.values import as_dtype

_Operator = Callable[[Any, Any], Any]


def _binary(ufunc: np.ufunc) -> _Operator:
    def operator(self: Any, other: Any) -> Any:
        if getattr(other, "__array_ufunc__", True) is None:
            return NotImplemented  # the other side wants to do it itself, and says so in NumPy's way
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


class NumpyProtocol:
    """Everything that NumPy and Python's operators ask of an array, from ``read_value`` alone.

    There are no in-place operators: ``variable += 1`` makes the name mean an array, as in TensorFlow.
    """

    def read_value(self) -> Array:
        """The value as an array that nobody else holds."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ArgumentError("A variable's value is always a copy.", "Ask for it without copy=False.")
        value = self.read_value()
        return value if dtype is None else value.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "at" or any(isinstance(target, NumpyProtocol) for target in kwargs.get("out", ())):
            raise ArgumentTypeError(
                f"{ufunc.__name__} would write to a variable.", "Use its assign and scatter methods."
            )
        return getattr(ufunc, method)(*map(_plain, inputs), **{name: _plain(value) for name, value in kwargs.items()})

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(kwargs.get("out"), NumpyProtocol) or (func in _WRITERS and isinstance(args[0], NumpyProtocol)):
            raise ArgumentTypeError(
                f"{func.__name__} would write to a variable.", "Use its assign and scatter methods."
            )
        if func in _METADATA and len(args) == 1 and not kwargs:
            return _METADATA[func](args[0])
        return func(*_plain(args), **{name: _plain(value) for name, value in kwargs.items()})

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
        # R-SV-EQ: elementwise, as for arrays and TensorFlow's variables; who is who is asked with `is`.
        return self.read_value() == _plain(other)

    def __ne__(self, other: object) -> Any:
        return self.read_value() != _plain(other)

    __hash__ = object.__hash__

    def astype(self, dtype: Any) -> Array:
        """The value as another dtype."""
        return self.read_value().astype(as_dtype(dtype))


_WRITERS = {np.copyto, np.put, np.put_along_axis, np.place, np.putmask, np.fill_diagonal}
_METADATA: dict[Any, Callable[[Any], Any]] = {
    np.shape: lambda variable: variable.shape,
    np.ndim: lambda variable: len(variable.shape),
    np.size: lambda variable: prod(variable.shape),
}
"""Questions that the variable itself answers: nothing need move."""


def _plain(value: Any) -> Any:
    """``value`` with arrays in the place of variables, in lists and tuples too."""
    if isinstance(value, NumpyProtocol):
        return np.asarray(value)
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    return value
