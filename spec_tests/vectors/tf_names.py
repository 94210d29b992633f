"""The few names of TensorFlow that the expressions of the vectors use, each meaning the function of NumPy that it is.

A variable in their place of a tensor is converted by NumPy, which is what the vectors are about.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from shardvar.training import Module
from shardvar.variables import ShardedVariable, Variable

Array = np.ndarray[Any, Any]

_DTYPES = {name: np.dtype(name) for name in "float16 float32 float64 int32 int64 uint8 complex64 complex128".split()}


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis=None, keepdims=False: np.asarray(function(x, axis=axis, keepdims=keepdims))


def _gather_nd(params: Any, indices: Any) -> Any:
    return np.asarray(params)[tuple(np.moveaxis(np.asarray(indices), -1, 0))]


def _constant(value: Any, dtype: Any = None) -> Array:
    array = np.asarray(value)
    if dtype is None:
        dtype = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}.get(array.dtype, array.dtype)
    return array.astype(dtype)


def _flatten(value: Any, expand_composites: bool = False) -> list[Any]:
    if isinstance(value, ShardedVariable) and expand_composites:
        return value.variables
    return [value]


_RAW = {"Neg": np.negative, "AddV2": np.add, "Mul": np.multiply, "Sub": np.subtract, "MatMul": np.matmul}


class _RawOps:
    """``tf.raw_ops.Neg(x=...)`` is the ufunc of that name."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = _RAW.get(name) or getattr(np, name.lower())
        return lambda **operands: function(*operands.values())


_MATH: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "argmax": lambda x, axis=0: np.argmax(x, axis=axis),
    "ceil": np.ceil,
    "exp": np.exp,
    "floor": np.floor,
    "greater": np.greater,
    "less": np.less,
    "log": np.log,
    "matmul": np.matmul,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negative": np.negative,
    "reduce_all": _reduction(np.all),
    "reduce_any": _reduction(np.any),
    "reduce_max": _reduction(np.max),
    "reduce_mean": _reduction(np.mean),
    "reduce_min": _reduction(np.min),
    "reduce_prod": _reduction(np.prod),
    "reduce_sum": _reduction(np.sum),
    "sigmoid": lambda x: 1 / (1 + np.exp(-np.asarray(x))),
    "sign": np.sign,
    "sqrt": np.sqrt,
    "square": np.square,
    "subtract": np.subtract,
    "tanh": np.tanh,
}

_TENSORS: dict[str, Callable[..., Any]] = {
    "cast": lambda x, dtype: np.asarray(x).astype(dtype),
    "clip_by_value": lambda x, low, high: np.clip(x, np.float32(low), np.float32(high)),
    "concat": lambda values, axis: np.concatenate(values, axis=axis),
    "constant": _constant,
    "convert_to_tensor": _constant,
    "equal": np.equal,
    "expand_dims": np.expand_dims,
    "gather": lambda params, indices, axis=0: np.take(params, indices, axis=axis),
    "gather_nd": _gather_nd,
    "identity": np.asarray,
    "linspace": lambda a, b, n: np.linspace(a, b, n, dtype=np.float32),
    "not_equal": np.not_equal,
    "ones": lambda shape, dtype=np.float32: np.ones(shape, dtype),
    "ones_like": np.ones_like,
    "range": lambda *bounds: np.arange(*bounds, dtype=np.int32),
    "rank": lambda x: np.asarray(np.ndim(x), np.int32),
    "reshape": np.reshape,
    "shape": lambda x: np.asarray(np.shape(x), np.int32),
    "size": lambda x: np.asarray(np.size(x), np.int32),
    "split": lambda x, count, axis=0: np.split(x, count, axis=axis),
    "squeeze": np.squeeze,
    "stack": lambda values, axis=0: np.stack(values, axis=axis),
    "stop_gradient": np.asarray,
    "tile": np.tile,
    "transpose": np.transpose,
    "where": np.where,
    "zeros": lambda shape, dtype=np.float32: np.zeros(shape, dtype),
    "zeros_like": np.zeros_like,
}


def _relu(x: Any) -> Array:
    return np.maximum(x, np.float32(0))


class _Names:
    """A name of TensorFlow; one that is not in the tables is NumPy's of that name, or of it without ``reduce_``."""

    def __init__(self, **known: Any) -> None:
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name.removeprefix("reduce_"))


def _lookup(params: Any, ids: Any) -> Array:
    return params.sparse_read(ids) if isinstance(params, ShardedVariable) else np.asarray(params)[np.asarray(ids)]


def namespace() -> _Names:
    """What stands for ``tf``."""
    nn = _Names(
        embedding_lookup=_lookup,
        l2_loss=lambda x: np.asarray(np.sum(np.square(x)) / 2, np.asarray(x).dtype),
        relu=_relu,
    )
    math = _Names(**_MATH)
    return _Names(
        **_MATH,
        **_TENSORS,
        **_DTYPES,
        bool=np.bool_,
        linalg=math,
        math=math,
        nest=SimpleNamespace(flatten=_flatten),
        newaxis=None,
        nn=nn,
        raw_ops=_RawOps(),
        Module=Module,
        Variable=Variable,
    )
