"""Values of variables: NumPy arrays of a dtype that shardvar knows; strings are objects of type
``bytes``.

``as_value`` takes anything that means an array, ``cast_value`` fits it to a variable. Plain Python
numbers get TensorFlow's dtypes (float32, int32); arrays keep theirs. A value is cast where its kind
allows: of bool, integer, real, complex each may become a later one, never an earlier one. Integers
that do not fit the dtype are refused.
"""

from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import STRING, Array, dtype_name, numpy_dtype, parse_dtype

_KINDS = (("bool",), ("int", "uint"), ("float", "bfloat"), ("complex",))
"""Prefixes of dtype names, by rank: a value may be cast to its own rank or a later one."""


def as_value(value: Any, dtype: Any = None) -> Array:
    """Return the array that ``value`` means, of ``dtype`` if one is given. It may be ``value``
    itself.

    >>> as_value([1, 2]).dtype, as_value(1.5).dtype, as_value(np.float64(1.5)).dtype, as_value("a")
    (dtype('int32'), dtype('float32'), dtype('float64'), array(b'a', dtype=object))
    """
    # With a dtype, Python numbers are cast from their 64 bits: 0.1 as float64 would lose digits if
    # narrowed first.
    array = _array(value)
    if dtype is not None:
        return cast_value(array, as_dtype(dtype), "The value")
    if _is_python(value):
        array = _narrowed(array)
    # A dtype is known by its name, so big-endian arrays become native, and unknown dtypes are
    # refused here.
    return array.astype(numpy_dtype(dtype_name(array.dtype)), copy=False)


def cast_value(value: Any, dtype: np.dtype[Any], what: str) -> Array:
    """Return ``value`` as an array of ``dtype``; the message of an ``ArgumentError`` begins with
    ``what``.

    R-VAR-1 (RFC 000): "users' model code doesn't need to change w.r.t whether the variable is
    sharded or not": there is one rule for plain and sharded variables, and it is the plain one's.
    """
    array = _array(value)
    if array.dtype == dtype:
        return array
    source, target = _rank(array.dtype), _rank(dtype)
    if source is None or target is None or source > target:
        raise ArgumentError(
            f"{what} has dtype {dtype_name(array.dtype)}, and the variable {dtype_name(dtype)}.",
            f"Convert it first, by value.astype({dtype_name(dtype)!r}).",
        )
    # A real that does not fit becomes infinite, as in any cast.
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    # Integers wrap around in a cast: 300 as int8 is 44. Comparing with the original finds every one
    # that did.
    if source == target == 1 and not np.array_equal(cast, array):
        raise ArgumentError(
            f"{what} holds integers that do not fit {dtype_name(dtype)}.", "Use a wider dtype."
        )
    return cast


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy dtype that a name, a code, a type or a dtype means.

    >>> as_dtype("bfloat16"), as_dtype(np.float32), as_dtype("string"), as_dtype(">f4")
    (dtype(bfloat16), dtype('float32'), dtype('O'), dtype('float32'))
    """
    return numpy_dtype(parse_dtype(dtype))


def check_shape(shape: tuple[int, ...], expected: tuple[int | None, ...], what: str) -> None:
    """Raise ``ArgumentError`` unless ``shape`` is the expected one, in which None stands for any
    extent.

    R-VAR-2: shapes are equal, nothing is broadcast and nothing is cropped.
    """
    fits = len(shape) == len(expected) and all(
        e in (None, s) for s, e in zip(shape, expected, strict=True)
    )
    if not fits:
        raise ArgumentError(
            f"{what} has shape {shape}. Expected {expected}.", "Give a value of that shape."
        )


def _array(value: Any) -> Array:
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"A {type(value).__name__} cannot be converted to an array: {error}.", "Give an array."
        ) from error
    # Texts and bytes of fixed width have lost their trailing zeros by now: np.asarray([b"a\0"])
    # holds b"a". Arrays of objects keep them.
    if array.dtype.kind == "U":
        return np.char.encode(array, "utf-8").astype(object)
    if array.dtype.kind == "S":
        return array.astype(object)
    if array.dtype.kind == "O":
        return _strings(array)
    return array


def _strings(array: Array) -> Array:
    """Return an array of ``bytes`` for an array of texts and bytes, and refuse others."""
    encoded = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
    if not all(isinstance(item, bytes) for item in encoded):
        raise ArgumentTypeError(
            "A variable cannot hold an array of Python objects.",
            "Give numbers, or strings of bytes.",
        )
    strings = np.empty(len(encoded), object)
    strings[:] = encoded
    return strings.reshape(array.shape)


def _is_python(value: Any) -> bool:
    """Return True if the first leaf of nested lists is a plain Python number."""
    # [[1.5, 2.0]] -> [1.5, 2.0] -> 1.5. An empty list counts as Python numbers, as in TensorFlow.
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, bool | int | float | list | tuple) and not isinstance(
        value, np.generic
    )


def _narrowed(array: Array) -> Array:
    """Return float64 as float32, and int64 as int32 if it fits, as TensorFlow does."""
    if array.dtype == np.float64:
        return array.astype(np.float32)
    # 2**40 does not fit int32 and stays int64.
    limits = np.iinfo(np.int32)
    if array.dtype == np.int64 and (
        array.size == 0 or (limits.min <= array.min() and array.max() <= limits.max)
    ):
        return array.astype(np.int32)
    return array


def _rank(dtype: np.dtype[Any]) -> int | None:
    """Return the place of a dtype's kind in ``_KINDS``, or None for strings."""
    name = dtype_name(dtype)
    if name == STRING:
        return None
    return next(rank for rank, prefixes in enumerate(_KINDS) if name.startswith(prefixes))
