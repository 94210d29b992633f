"""TensorFlow's functions in NumPy, under TensorFlow's names and with its arguments: what an
expression may call."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Any, axis: Any = None, keepdims: bool = False) -> Array:
        axes = tuple(axis) if isinstance(axis, list) else axis
        return np.asarray(
            function(np.asarray(x), axis=axes, keepdims=keepdims), np.asarray(x[:0]).dtype
        )

    return reduce


def _truth(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis=None, keepdims=False: np.asarray(
        function(np.asarray(x), axis=axis, keepdims=keepdims)
    )


def _logsumexp(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    top = np.max(x, axis=axis, keepdims=True)
    summed = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return summed if keepdims else np.squeeze(summed, axis)


def _norm(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    return np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims))


def _matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    left = np.swapaxes(a, -1, -2) if transpose_a else a
    return np.matmul(left, np.swapaxes(b, -1, -2) if transpose_b else b)


def _gather(params: Any, indices: Any, axis: int = 0) -> Array:
    array, ids = np.asarray(params), np.asarray(indices)
    if np.any((ids < 0) | (ids >= array.shape[axis])):
        raise ValueError(f"indices are not in [0, {array.shape[axis]})")
    return np.take(array, ids, axis=axis)


def _constant(value: Any, dtype: Any = None, **_: Any) -> Array:
    array = np.asarray(value)
    if (
        dtype is None
        and not isinstance(value, np.ndarray | np.generic)
        and not hasattr(value, "dtype")
    ):
        dtype = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}.get(
            array.dtype, array.dtype
        )
    return array.astype(dtype or array.dtype)


def _convert(value: Any, dtype: Any = None, **_: Any) -> Array:
    array = _constant(value)
    if dtype is not None and hasattr(value, "dtype") and array.dtype != dtype:
        raise ValueError(f"a tensor of dtype {array.dtype} is asked for as {np.dtype(dtype)}")
    return array.astype(dtype or array.dtype)


def _softmax(x: Any, axis: int = -1) -> Array:
    exponents = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return np.asarray(exponents / np.sum(exponents, axis=axis, keepdims=True))


def _l2_normalize(x: Any, axis: Any = None, epsilon: float = 1e-12) -> Array:
    squares = np.sum(np.square(x), axis=axis, keepdims=True)
    return np.asarray(x / np.sqrt(np.maximum(squares, epsilon)), np.float32)


def _clip_by_norm(x: Any, clip_norm: float, axes: Any = None) -> Array:
    norm = np.sqrt(np.sum(np.square(x), axis=axes, keepdims=True))
    return np.asarray(x * np.float32(clip_norm) / np.maximum(norm, np.float32(clip_norm)))


def _split(value: Any, num_or_size_splits: Any, axis: int = 0) -> list[Array]:
    cuts = (
        num_or_size_splits
        if isinstance(num_or_size_splits, int)
        else np.cumsum(num_or_size_splits)[:-1]
    )
    return np.split(np.asarray(value), cuts, axis=axis)


def _unique(x: Any) -> tuple[Array, Array]:
    values, first, where = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return values[order], np.argsort(order)[where].astype(np.int32)


def _segment_sum(data: Any, segment_ids: Sequence[int]) -> Array:
    sums = np.zeros((max(segment_ids) + 1, *np.shape(data)[1:]), np.asarray(data).dtype)
    np.add.at(sums, np.asarray(segment_ids), np.asarray(data))
    return sums


def _top_k(x: Any, k: int = 1) -> tuple[Array, Array]:
    order = np.argsort(-np.asarray(x), axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(np.asarray(x), order, -1), order.astype(np.int32)


def _strided_slice(
    x: Any, begin: Sequence[int], end: Sequence[int], strides: Sequence[int] | None = None
) -> Array:
    return np.asarray(x)[tuple(map(slice, begin, end, strides or [1] * len(begin)))]


def _range(*bounds: Any, dtype: Any = None) -> Array:
    return np.arange(
        *bounds,
        dtype=dtype or (np.int32 if all(isinstance(b, int) for b in bounds) else np.float32),
    )


def _scatter_nd(indices: Any, updates: Any, shape: Sequence[int]) -> Array:
    full = np.zeros(shape, np.asarray(updates).dtype)
    np.add.at(full, tuple(np.moveaxis(np.asarray(indices), -1, 0)), np.asarray(updates))
    return full


def _scattered(tensor: Any, indices: Any, updates: Any) -> Array:
    full = np.array(tensor)
    full[tuple(np.moveaxis(np.asarray(indices), -1, 0))] = updates
    return full


def _divide_no_nan(x: Any, y: Any) -> Array:
    divisor = np.asarray(y)
    return np.asarray(
        np.where(divisor == 0, 0, np.divide(x, np.where(divisor == 0, 1, divisor))), divisor.dtype
    )


def _each(function: Callable[[Any], Any], elements: Any) -> Array:
    return np.stack([function(element) for element in np.asarray(elements)])


def _cumulative(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis=0: np.asarray(function(x, axis=axis, dtype=np.asarray(x).dtype))


def _index_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis=0, **_: np.asarray(function(x, axis=axis))


_ERF = np.vectorize(math.erf, otypes=[np.float32])

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_all": _truth(np.all),
    "reduce_any": _truth(np.any),
    "reduce_euclidean_norm": _reduction(_norm),
    "reduce_logsumexp": _reduction(_logsumexp),
    "reduce_max": _reduction(np.max),
    "reduce_mean": _reduction(np.mean),
    "reduce_min": _reduction(np.min),
    "reduce_prod": _reduction(np.prod),
    "reduce_std": _reduction(np.std),
    "reduce_sum": _reduction(np.sum),
    "reduce_variance": _reduction(np.var),
    "norm": lambda x, ord=None, axis=None, **more: _reduction(_norm)(x, axis, **more),  # noqa: A006 - its name there
}

_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "clip_by_value": lambda x, low, high: np.clip(x, np.float32(low), np.float32(high)),
    "divide_no_nan": _divide_no_nan,
    "elu": lambda x: np.where(np.asarray(x) > 0, x, np.expm1(x)),
    "erf": lambda x: _ERF(np.asarray(x)),
    "erfc": lambda x: 1 - _ERF(np.asarray(x)),
    "floordiv": np.floor_divide,
    "floormod": np.mod,
    "is_finite": np.isfinite,
    "is_inf": np.isinf,
    "is_nan": np.isnan,
    "leaky_relu": lambda x, alpha=0.2: np.where(np.asarray(x) > 0, x, x * np.float32(alpha)),
    "multiply_no_nan": lambda x, y: np.where(np.asarray(y) == 0, 0, np.multiply(x, y)).astype(
        np.asarray(x).dtype
    ),
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "relu6": lambda x: np.clip(x, np.float32(0), np.float32(6)),
    "round": np.round,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-np.asarray(x))),
    "softplus": lambda x: np.logaddexp(x, np.float32(0)),
    "squared_difference": lambda x, y: np.square(np.subtract(x, y)),
    "truediv": np.true_divide,
}

_ARRAYS: dict[str, Callable[..., Any]] = {
    "add_n": lambda values: np.sum(np.stack(values), axis=0),
    "argmax": _index_of(np.argmax),
    "argmin": _index_of(np.argmin),
    "bias_add": lambda value, bias: np.asarray(value) + np.asarray(bias, np.asarray(value).dtype),
    "boolean_mask": lambda tensor, mask: np.asarray(tensor)[np.asarray(mask)],
    "cast": lambda x, dtype: np.asarray(x).astype(dtype),
    "clip_by_norm": _clip_by_norm,
    "concat": lambda values, axis: np.concatenate(values, axis=axis),
    "constant": _constant,
    "convert_to_tensor": _convert,
    "count_nonzero": lambda x, axis=None: np.asarray(
        np.count_nonzero(np.asarray(x), axis=axis), np.int64
    ),
    "cumprod": _cumulative(np.cumprod),
    "cumsum": _cumulative(np.cumsum),
    "diag_part": np.diagonal,
    "dynamic_partition": lambda data, partitions, num_partitions: (
        [np.asarray(data)[np.asarray(partitions) == number] for number in range(num_partitions)]
    ),
    "ensure_shape": lambda x, shape: np.asarray(x).reshape(shape),
    "eye": lambda rows, columns=None, dtype=np.float32: np.eye(rows, columns, dtype=dtype),
    "fill": lambda dims, value: _constant(np.full(dims, value).tolist()),
    "gather": _gather,
    "gather_nd": lambda params, indices: np.asarray(params)[
        tuple(np.moveaxis(np.asarray(indices), -1, 0))
    ],
    "identity": np.asarray,
    "identity_n": lambda values: [np.asarray(value) for value in values],
    "l2_loss": lambda x: np.asarray(np.sum(np.square(x)) / 2, np.asarray(x).dtype),
    "l2_normalize": _l2_normalize,
    "linspace": lambda start, stop, num: np.linspace(start, stop, num, dtype=np.float32),
    "log_softmax": lambda x, axis=-1: np.log(_softmax(x, axis)),
    "map_fn": _each,
    "matmul": _matmul,
    "mat_mul": _matmul,
    "matvec": lambda a, b: np.matmul(a, np.asarray(b, np.asarray(a).dtype)),
    "moments": lambda x, axes: (np.mean(x, axis=tuple(axes)), np.var(x, axis=tuple(axes))),
    "one_hot": lambda indices, depth: np.asarray(
        np.asarray(indices)[..., None] == np.arange(depth), np.float32
    ),
    "ones": lambda shape, dtype=np.float32: np.ones(shape, dtype),
    "range": _range,
    "rank": lambda x: np.asarray(np.ndim(x), np.int32),
    "reverse": lambda x, axis: np.flip(x, tuple(axis)),
    "scatter_nd": _scatter_nd,
    "segment_sum": _segment_sum,
    "shape": lambda x: np.asarray(np.shape(x), np.int32),
    "size": lambda x: np.asarray(np.size(x), np.int32),
    "slice": lambda x, begin, size: np.asarray(x)[
        tuple(slice(b, None if s < 0 else b + s) for b, s in zip(begin, size, strict=True))
    ],
    "softmax": _softmax,
    "split": _split,
    "stop_gradient": np.asarray,
    "strided_slice": _strided_slice,
    "tensor_scatter_nd_update": _scattered,
    "top_k": _top_k,
    "transpose": lambda a, perm=None: np.transpose(a, perm),
    "unique": _unique,
    "unstack": lambda value, num=None, axis=0: [*np.moveaxis(np.asarray(value), axis, 0)],
    "vectorized_map": _each,
    "zeros": lambda shape, dtype=np.float32: np.zeros(shape, dtype),
}

FUNCTIONS: dict[str, Callable[..., Any]] = {**_REDUCTIONS, **_ELEMENTWISE, **_ARRAYS}
"""By TensorFlow's name; what is not here has NumPy's name too."""
