"""Arrays whose values are read when they are needed, and how they are saved.

What a save gets is a value that announces a shape and a dtype: a lazy tensor of an open checkpoint,
an array of Zarr, HDF5, Dask or TensorStore, or a function of the caller's (``lazy``). It becomes a
``LazyPayload``, which the engine makes when it is its turn. The result is compared with the
announcement.

    value                                             how it is made
    read by slices of its first axis (Zarr, HDF5)     some rows at a time, whole chunks of them
    a function of rows (``lazy(by_rows=True)``)       likewise
    computed as a whole (Dask, JAX, ``lazy``)         whole
    on a device (PyTorch)                             copied to the host, whole
"""

import sys
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.arrays import LazyPayload
from shardvar.errors import ArgumentError, ArgumentTypeError, ShardvarError, StorageError
from shardvar.formats.files import State
from shardvar.layout.dtypes import STRING, Array, Shape, dtype_name, numpy_dtype, parse_dtype
from shardvar.layout.region import read_shape
from shardvar.records import entity, field
from shardvar.verbs.arguments import as_array, without_torch
from shardvar.verbs.reader import LazyArray

PORTION_NBYTES = 16 << 20
"""Rows that are made at a time take about so much: as four blocks, of which each is read at once."""


@entity
class ComputedArray(LazyArray):
    """An array that a function computes each time that it is read."""

    shape: Shape = field()
    dtype: np.dtype[Any]
    function: Callable[..., npt.ArrayLike] = field(repr=False)
    arguments: tuple[Any, ...] = field(repr=False)
    by_rows: bool
    """True if the function is also given the rows to compute."""

    def numpy(self) -> Array:
        if self.by_rows:
            return self.rows(slice(0, self.shape[0]))
        return _values_of(self.function(*self.arguments))

    def rows(self, rows: slice) -> Array:
        return _values_of(self.function(rows, *self.arguments))


def lazy(
    shape: Any,
    dtype: npt.DTypeLike,
    function: Callable[..., npt.ArrayLike],
    *arguments: Any,
    by_rows: bool = False,
) -> LazyArray:
    """Return an array that a function computes when its values are needed.

    ``sv.save`` and ``sv.save_shards`` compute such arrays one after the other, and keep none.

    Parameters
    ----------
    shape : iterable of int
        The shape of what the function returns.
    dtype : dtype_like
        The dtype of what the function returns, also by its name, such as ``'bfloat16'``.
    function : callable
        The function. It returns an array, or a tensor of a framework.
    *arguments : Any
        The arguments of the function.
    by_rows : bool, default False
        Call the function for some rows of the first axis at a time, about 16 MiB of them. It gets a
        slice as its first argument, and returns these rows.

    Returns
    -------
    LazyArray
        The array, which ``np.asarray`` computes.

    Raises
    ------
    ArgumentTypeError
        If the function cannot be called, or the dtype is not one.
    ArgumentError
        If an array without axes is to be computed by rows.
    UnsupportedError
        If no checkpoint can hold the dtype.

    Notes
    -----
    Pass a variable of a loop as an argument. A function that uses it sees its last value.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> folder = tempfile.mkdtemp()
    >>> _ = sv.save(f"{folder}/model", {"a": np.ones((2, 3)), "b": np.zeros(4)})
    >>> with sv.open_checkpoint(f"{folder}/model") as reader:
    ...     tensors = [reader[key] for key in reader]
    ...     doubled = {
    ...         t.key: sv.lazy(t.shape, t.dtype, lambda rows, t: t[rows] * 2, t, by_rows=True)
    ...         for t in tensors
    ...     }
    ...     sv.save(f"{folder}/doubled", doubled).nbytes
    80
    >>> sv.load(f"{folder}/doubled")["a"].max()
    np.float64(2.0)
    """
    if not callable(function):
        raise ArgumentTypeError(
            f"{function!r} is not a function.", "Give a function that returns the array."
        )
    extents = read_shape(shape)
    if by_rows and not extents:
        raise ArgumentError(
            "An array without axes has no rows to compute.", "Leave by_rows out for it."
        )
    return ComputedArray(extents, numpy_dtype(parse_dtype(dtype)), function, arguments, by_rows)


def as_values(key: str, value: Any) -> Array | LazyPayload:
    """Return a value as an array, or as it is if it is lazy, to be made when it is written."""
    if isinstance(value, LazyPayload):
        return value
    announced = _announced(value)
    if announced is None:  # an array in memory, strings, or a value without a shape or dtype
        return as_array(key, value)
    shape, dtype = announced
    step = _rows_at_a_time(value, shape, dtype)

    def make(start: int, stop: int) -> Array:
        array = _evaluate(key, value, slice(start, stop) if step else None)
        expected = (stop - start, *shape[1:]) if shape else shape
        if array.shape != expected or _name_of(array.dtype) != _name_of(dtype):
            part = "" if expected == shape else f" as its rows {start} to {stop}"
            raise ArgumentError(
                f"{key!r} is announced as {_name_of(dtype)}{list(shape)}, and gives "
                f"{_name_of(array.dtype)}{list(array.shape)}{part}.",
                f"Announce the shape and the dtype that it gives. {State.OLD.value}",
            )
        return array

    if 0 in shape:
        make(0, shape[0])  # there are no bytes for which it would be made
    return LazyPayload(shape, dtype, make, step)


def _announced(value: Any) -> tuple[Shape, np.dtype[Any]] | None:
    if isinstance(value, np.ndarray | np.generic | type) or _is_in_memory(value):
        return None
    # Without these, the value is not lazy, or NumPy makes no array of it.
    if not (hasattr(value, "__array__") or hasattr(value, "__getitem__")):
        return None
    given, kind = getattr(value, "shape", None), getattr(value, "dtype", None)
    if given is None or kind is None:
        return None
    # TensorFlow and TensorStore have dtypes of their own; PyTorch's name is all that tells them.
    for name in ("as_numpy_dtype", "numpy_dtype"):
        kind = getattr(kind, name, kind)
    if _is_torch(value):
        kind = str(kind).removeprefix("torch.")
    try:
        dtype = parse_dtype(kind)
        shape = tuple(map(index, given))
    except (ArgumentError, TypeError):  # a dtype of another kind, or unknown extents
        return None
    return None if dtype == STRING or min(shape, default=0) < 0 else (shape, numpy_dtype(dtype))


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_in_memory(value: Any) -> bool:
    """True for values that become arrays at once, since nothing is gained later."""
    if _is_torch(value):
        torch = sys.modules["torch"]
        is_plain = type(value) in (torch.Tensor, torch.nn.Parameter)
        return not is_plain or value.layout != torch.strided or value.device.type in ("cpu", "meta")
    # Sparse arrays, tables of pandas, and arrays of JAX that other processes hold a part of.
    return (
        hasattr(value, "todense")
        or hasattr(value, "iloc")
        or not getattr(value, "is_fully_addressable", True)
    )


def _rows_at_a_time(value: Any, shape: Shape, dtype: np.dtype[Any]) -> int:
    """0 for a value that is made whole. Whole chunks are read, so that none is decoded twice."""
    graph = getattr(value, "__dask_graph__", None)
    is_whole = _is_torch(value) or isinstance(value, LazyArray)
    if isinstance(value, ComputedArray) and value.by_rows:
        is_whole = False
    # What two portions of a graph need would be computed for both. Arrays of JAX and TensorFlow are
    # in memory, or on a device.
    is_whole = is_whole or (callable(graph) and graph() is not None)
    is_whole = is_whole or hasattr(value, "addressable_shards")
    is_whole = is_whole or hasattr(value.dtype, "as_numpy_dtype")
    has_rows = isinstance(value, ComputedArray) or hasattr(value, "__getitem__")
    if is_whole or not shape or not has_rows:
        return 0
    row_nbytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    rows = max(PORTION_NBYTES // max(row_nbytes, 1), 1)
    chunks = getattr(value, "shards", None) or getattr(value, "chunks", None)
    if isinstance(chunks, tuple) and chunks and isinstance(chunks[0], int):
        rows = max(rows // chunks[0], 1) * chunks[0]
    return rows


def _evaluate(key: str, value: Any, rows: slice | None) -> Array:
    """Return the values of a lazy value, or some rows of it; an error has the key."""
    try:
        if rows is not None and isinstance(value, ComputedArray):
            array = value.rows(rows)
        elif rows is not None:
            array = _values_of(value[rows])
        elif isinstance(value, LazyArray):
            array = value.numpy()
        else:
            array = _values_of(value if hasattr(value, "__array__") else value[...])
    except StorageError as error:
        raise error.at(repr(key)) from error  # the write tells the state
    except ShardvarError as error:
        remedy = f"{error.remedy} {State.OLD.value}".strip()
        raise type(error)(f"{key!r}: {error.cause}", remedy) from error
    except Exception as error:
        raise ArgumentError(
            f"{key!r}: its values cannot be made: {type(error).__name__}: {error}".rstrip(".")
            + ".",
            f"That error is the cause of this one. {State.OLD.value}",
        ) from error
    return as_array(key, array)


def _values_of(given: Any) -> Array:
    """Return a result as an array; masked arrays as they are, since the caller refuses them."""
    given = without_torch(given)
    return given if isinstance(given, np.ndarray) else np.asarray(given)


def _name_of(dtype: np.dtype[Any]) -> str:
    try:
        return dtype_name(dtype)
    except ArgumentError:
        return str(dtype)
