"""The names of TensorFlow that the expressions of the vectors use, each meaning the function of
NumPy that it is.

A variable in the place of a tensor is converted by NumPy, which is what the vectors are about. A
name that is not here is NumPy's of that name, or of it without ``reduce_``.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from shardvar.reference.training import Module
from shardvar.reference.variables import IndexedSlices, ShardedVariable, Variable
from spec_tests.tensorflow_recordings import tf_functions

Array = np.ndarray[Any, Any]

_DTYPES = {
    name: np.dtype(name)
    for name in "float16 float32 float64 int32 int64 uint8 complex64 complex128".split()
}


def _flatten(value: Any, expand_composites: bool = False) -> list[Any]:
    if isinstance(value, ShardedVariable) and expand_composites:
        return value.variables
    return [value]


_RAW = {
    "AddV2": np.add,
    "BatchMatMulV2": np.matmul,
    "Mul": np.multiply,
    "Neg": np.negative,
    "RealDiv": np.divide,
}


class _RawOps:
    """``tf.raw_ops.Neg(x=...)`` is the function of that name, its operands in their order, its
    options by name."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = _RAW.get(name) or _lookup(name) or _lookup(f"reduce_{name}")
        operands = (
            "x",
            "y",
            "a",
            "b",
            "input",
            "params",
            "tensor",
            "features",
            "logits",
            "condition",
        )

        def call(**given: Any) -> Any:
            more = {
                key.replace("keep_dims", "keepdims"): given[key]
                for key in given
                if key not in operands
            }
            return function(*(value for key, value in given.items() if key in operands), **more)

        return call


def _lookup(name: str) -> Any:
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip(
        "_"
    )
    known = tf_functions.FUNCTIONS
    return known.get(words) or known.get(words.replace("_", "")) or getattr(np, name.lower(), None)


class _Names:
    """A name of TensorFlow; one that is not in the tables is NumPy's of that name, or of it without
    ``reduce_``."""

    def __init__(self, **known: Any) -> None:
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name.removeprefix("reduce_"))


def _embedding_lookup(params: Any, ids: Any, max_norm: float | None = None) -> Array:
    from shardvar.reference.nn import embedding_lookup

    return embedding_lookup(params, ids, max_norm)


def namespace() -> _Names:
    """Return the namespace that replaces `tf`."""
    functions = _Names(**tf_functions.FUNCTIONS, embedding_lookup=_embedding_lookup)
    return _Names(
        **tf_functions.FUNCTIONS,
        **_DTYPES,
        bitwise=np,
        bool=np.bool_,
        linalg=functions,
        math=functions,
        nest=SimpleNamespace(flatten=_flatten),
        newaxis=None,
        nn=functions,
        raw_ops=_RawOps(),
        IndexedSlices=IndexedSlices,
        TensorShape=lambda dims: None if dims is None else tuple(dims),
        is_tensor=lambda x: isinstance(x, np.ndarray),
        Module=Module,
        Variable=Variable,
    )
