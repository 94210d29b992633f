"""The element types that a payload may have, by the names that NumPy, ``ml_dtypes`` and TensorFlow
share.

A dtype crosses the layers as its name (``"float32"``, ``"bfloat16"``, ``"string"``).
Only ``parse_dtype`` reads the dtypes of callers, in every spelling of NumPy. The kinds differ in
their use:

    plain      has a NumPy dtype; elements have a fixed size; slices may be cut anywhere
    string     a NumPy object array of ``bytes``; the payload tells its own size; never cut
    opaque     ``variant``, the quantized types of TensorFlow, types of PyTorch that NumPy lacks:
               listed and carried, their values refused
    packed     elements of 4 or 6 bits that share bytes: carried whole, and 4 bits are read as
               ``float4_e2m1fn``, a byte each

Only ``slice_nbytes`` computes the bytes of a slice.
"""

from functools import cache
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentTypeError, LayoutError, UnsupportedError
from shardvar.limits import MAX_NBYTES
from shardvar.pictures.words import similar

Array = npt.NDArray[Any]
"""An array of any dtype."""
DType = np.dtype[Any]
Shape = tuple[int, ...]
Ints = npt.NDArray[np.int64]  # a column or matrix of 64-bit integers: ids, offsets, shapes, sizes
Bools = npt.NDArray[np.bool]  # a mask

_NATIVE = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 "
    "complex128"
).split()
_EXTENDED = (
    "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz "
    "float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu float6_e2m3fn float6_e3m2fn float4_e2m1fn int2 int4 uint2 uint4"
).split()
_SIZES = {name: np.dtype(name).itemsize for name in _NATIVE} | dict.fromkeys(_EXTENDED, 1)
_SIZES["bfloat16"] = 2
# Neither NumPy nor ml_dtypes has these types. The sizes are for TensorFlow's payloads.
_QUANTIZED = {"qint8": 1, "quint8": 1, "qint16": 2, "quint16": 2, "qint32": 4}
# Neither NumPy nor ml_dtypes has these types of PyTorch.
TORCH_ONLY = {"complex32": 4, "float4_e2m1fn_x2": 1, "bits8": 1, "bits16": 2}
"""Bytes of an element of the types that only PyTorch has."""
_FIXED = _QUANTIZED | TORCH_ONLY
PACKED_BITS = {
    "float4_e2m1fn_packed": 4,
    "float6_e2m3fn_packed": 6,
    "float6_e3m2fn_packed": 6,
}
"""Bits of an element of the dtypes whose elements share bytes."""
HALVES = "float4_e2m1fn_packed"
"""The packed dtype whose values are read: two elements a byte, the first in the low half."""

STRING = "string"
VARIANT = "variant"

NAMES: tuple[str, ...] = (*_SIZES, STRING, VARIANT, *_FIXED, *PACKED_BITS)
"""Every dtype name, in the order of its code: ``code(NAMES[i]) == i``. Codes live in memory only,
never on disk."""

_SHORT = {
    "bf16": "bfloat16", "f16": "float16", "fp16": "float16", "f32": "float32", "fp32": "float32", "f64": "float64",
    "fp64": "float64", "f8_e4m3": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2",
    "fp8_e5m2": "float8_e5m2", "i16": "int16", "i32": "int32", "i64": "int64", "u16": "uint16", "u32": "uint32",
    "u64": "uint64",
}  # fmt: skip
"""Names as people type them. ``f8`` and ``i8`` are NumPy's, of 8 bytes; its ``f16``, of 16 bytes,
cannot be stored."""

_CODES = {name: index for index, name in enumerate(NAMES)}
_BITS = np.array([PACKED_BITS.get(name, 0) for name in NAMES], np.int64)
_NAME_OF = {np.dtype(name): name for name in _NATIVE}
ITEMSIZES = np.array([(_SIZES | _FIXED).get(name, 0) for name in NAMES], np.int64)
"""Bytes of one element by code; 0 where the payload tells its own size (strings, variants), and
where elements share bytes."""
OWN_SIZE: Bools = (ITEMSIZES == 0) & (_BITS == 0)
"""True by code where a payload tells its own size: strings and variants."""


def code(name: str) -> int:
    """The position of a dtype's name in ``NAMES``; ``UnsupportedError`` if it is not there."""
    try:
        return _CODES[name]
    except KeyError:
        raise UnsupportedError(
            f"The dtype {name!r} is not known.", f"Known are {', '.join(NAMES)}."
        ) from None


@cache
def numpy_dtype(name: str) -> DType:
    """The NumPy dtype of the elements, little-endian where it matters; ``object`` for strings."""
    if name == STRING:
        return np.dtype(object)
    if name in _NATIVE:
        return np.dtype(name)
    if name in _EXTENDED or name == HALVES:
        import ml_dtypes  # few checkpoints have its types

        kind: type = getattr(ml_dtypes, name.removesuffix("_packed"))
        return np.dtype(kind)
    # An unknown name gets the error of ``code``; a known one without a NumPy type gets the error
    # below.
    code(name)
    raise UnsupportedError(
        f"The values of dtype {name} are not readable: NumPy has no such type.",
        "The tensor can be listed, verified and carried to another checkpoint that holds this "
        "dtype.",
    )


def dtype_name(dtype: DType) -> str:
    """The name of a NumPy dtype in any byte order; bytes (``S``) and object arrays are strings."""
    name = _NAME_OF.get(dtype)
    # NumPy's variable-width text has no byte order to ask for.
    if name is None and dtype.kind != "T":
        name = _NAME_OF.get(dtype.newbyteorder("="))
    if name is None and dtype.type.__module__ == "ml_dtypes" and dtype.name in _EXTENDED:
        name = dtype.name
    if name is not None:
        return name
    if dtype.kind in "SO":
        return STRING
    remedy = (
        "Encode it as an object array of bytes."
        if dtype.kind in "UT"
        else "Convert it to a numeric dtype first."
    )
    raise UnsupportedError(f"Arrays of NumPy dtype {dtype} cannot be stored.", remedy)


def parse_dtype(given: Any) -> str:
    """Return the name of a dtype: given by any name, code or type of NumPy, or a NumPy dtype."""
    # A byte order is not part of a dtype: ``">f4"`` is float32, because values have the machine's
    # order in memory, and each format its own on disk.
    # Own names first: NumPy has no "string", and knows "bfloat16" only once ml_dtypes is imported.
    if isinstance(given, str) and (given in _CODES or given in _SHORT):
        return _SHORT.get(given, given)
    # NumPy takes None for float64. Here None means that the dtype was forgotten.
    dtype = None
    if given is not None:
        try:
            dtype = np.dtype(given)
        except (TypeError, ValueError):
            if isinstance(given, str):
                near = "".join(
                    f"Did you mean {each!r}? " for each in similar(given, [*_CODES, *_SHORT])
                )
                remedy = f"{near}Known are {', '.join(NAMES)}."
                raise UnsupportedError(f"The dtype {given!r} is not known.", remedy) from None
    if dtype is None:
        raise ArgumentTypeError(
            f"Invalid dtype {given!r}.", "Give a name such as 'float32', or a NumPy dtype."
        )
    # A type of text means strings: texts become bytes, and strings have no fixed width.
    return STRING if dtype.kind == "U" else dtype_name(dtype)


def is_whole(name: str) -> bool:
    """True where a tensor is never cut: for its own size, or since a slice could begin in a byte."""
    return name in (STRING, VARIANT) or name in PACKED_BITS


def is_opaque(name: str) -> bool:
    """True where the payload is carried and compared as bytes: NumPy cannot read it as it is."""
    return name == VARIANT or name in _FIXED or name in PACKED_BITS


def has_values(name: str) -> bool:
    return name in _SIZES or name in (STRING, HALVES)


def to_round_once(values: Array, dtype: DType) -> Array:
    """Return values that NumPy rounds to a dtype as the given values should be: to nearest, once."""
    # By itself it takes float64 to bfloat16 and smaller floats by way of float32, which rounds
    # twice, and PyTorch also to float16. 1 + 2**-8 is halfway between two bfloat16, and 2**-40 more
    # is not.
    if dtype.name == "float8_e8m0fnu" != values.dtype.name:
        # All that is between its two smallest numbers, 2**-127 and 2**-126, would become the
        # larger.
        values = np.where(values < 1.5 * 2.0**-127, np.minimum(values, 2.0**-127), values)
    is_small = dtype.itemsize <= 2 and "float" in dtype.name
    if values.dtype != np.float64 or not is_small:
        return values
    # Keep 10 significant bits, two more than bfloat16 has, or 13 for float16, and let the last one
    # be 1 if any after it was: 1 + 2**-8 + 2**-40 becomes 1 + 2**-8 + 2**-9. So float32 holds the
    # value exactly, and it lies on the same side of each halfway point.
    bits = values.view(np.int64)
    cut = np.int64((1 << (40 if dtype == np.float16 else 43)) - 1)
    odd = bits & cut
    odd += cut
    odd |= bits
    odd &= ~cut
    return odd.view(np.float64)


def unpack_halves(packed: npt.NDArray[np.uint8]) -> Array:
    """Return the elements of ``HALVES``, two of each byte."""
    halves = np.stack([packed & 0xF, packed >> 4], axis=-1)
    return halves.reshape(-1).view(numpy_dtype(HALVES))


def slice_nbytes(codes: Ints, shapes: Ints) -> Ints:
    """The bytes of each slice of dtype codes [n] and shapes [n, rank]; 0 for strings, variants."""
    itemsizes, bits = ITEMSIZES[codes], _BITS[codes]
    widths = itemsizes + bits / 8
    # Shapes come from files, and a product of int64 wraps silently: 2**32 * 2**32 would be 0.
    # Floats do not wrap, so they decide if the size is possible. Shapes with a 0 are set apart,
    # because inf * 0 is NaN.
    with np.errstate(over="ignore", invalid="ignore"):
        estimate = np.where(
            (shapes == 0).any(axis=1), 0, widths * np.prod(shapes, axis=1, dtype=np.float64)
        )
    if estimate.size and not estimate.max() <= MAX_NBYTES:
        row = int(np.argmax(estimate))
        extents = tuple(map(int, shapes[row]))
        raise LayoutError(f"A {NAMES[codes[row]]} slice of shape {extents} is too large to exist.")
    # Exact now: the rounding of an estimate of at most 2**62 is far smaller than the way to 2**63.
    counts = np.prod(shapes, axis=1, dtype=np.int64)
    # Eight elements of n bits have n bytes; the last ones end within their last byte.
    return np.asarray(itemsizes * counts + counts // 8 * bits + -(-(counts % 8 * bits) // 8))


Number = int | float
_SMALL_INTEGERS = ("int2", "int4", "uint2", "uint4")
"""Integers of ml_dtypes: their ``dtype.kind`` "V" does not show that they are integers."""


def is_number(dtype: str) -> bool:
    """Return True if the elements of the dtype are numbers; False for strings and opaque elements.

    >>> is_number("bfloat16"), is_number("bool"), is_number("string")
    (True, True, False)
    """
    return dtype != STRING and not is_opaque(dtype)


def is_floating(dtype: str) -> bool:
    """Return True if the elements of the dtype are real floating-point numbers of any size.

    >>> is_floating("bfloat16"), is_floating("float8_e5m2"), is_floating("int8"), is_floating("complex64")
    (True, True, False, False)
    """
    return dtype.startswith(("float", "bfloat"))


_EXPONENTS: dict[str, tuple[DType, int]] = {
    "float16": (np.dtype(np.uint16), 0x7C00),
    "bfloat16": (np.dtype(np.uint16), 0x7F80),
    "float32": (np.dtype(np.uint32), 0x7F80_0000),
    "float64": (np.dtype(np.uint64), 0x7FF0_0000_0000_0000),
}
"""Integers of the same size, and their bits that are the exponent: all 1 in NaNs and infinities."""
_COMPONENTS = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}
_ODD_PORTION = 1 << 16
"""Bytes that are looked at together, and stay in the cache."""


def odd_values(payload: memoryview, name: str) -> int:
    """Return 1 if some elements are NaN, 2 if some are infinite, 3 for both; 0 otherwise.

    >>> odd_values(memoryview(np.array([1, np.nan], np.float32)).cast("B"), "float32")
    1
    """
    name = _COMPONENTS.get(name, name)
    if name not in _EXPONENTS:
        # Of elements of one byte there are only 256.
        if not is_floating(name) or not has_values(name) or numpy_dtype(name).itemsize > 1:
            return 0
        numbers = np.arange(256, dtype=np.uint8).view(numpy_dtype(name)).astype(np.float32)
        kinds = np.isnan(numbers) + 2 * np.isinf(numbers).astype(np.uint8)
        return int(np.bitwise_or.reduce(kinds[np.frombuffer(payload, np.uint8)], initial=0))
    dtype, mask = _EXPONENTS[name]
    # Integers: comparisons of floats are slower, and NumPy has none for most small ones.
    values, flags = np.frombuffer(payload, dtype), 0
    step = _ODD_PORTION // dtype.itemsize
    for first in range(0, len(values), step):
        some = values[first : first + step]
        if (exponents := some & mask).max() == mask:
            fractions = some[exponents == mask] & ((mask & -mask) - 1)
            flags |= bool(fractions.any()) | 2 * (not fractions.all())
    return flags


def widen_numbers(array: Array) -> Array:
    """Return the values as uint64, int64, float64 or complex128, which hold them exactly."""
    # All integers of up to 63 bits fit int64, and all of 64 bits without a sign fit uint64. Every
    # smaller float fits float64: bfloat16 and float8 have fewer bits of exponent and of fraction.
    kind = array.dtype.kind
    if kind == "u" and array.itemsize == 8:
        return array.astype(np.uint64, copy=False)
    if kind in "iub" or (kind == "V" and array.dtype.name in _SMALL_INTEGERS):
        return array.astype(np.int64)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return array.astype(np.complex128 if kind == "c" else np.float64)


def python_number(value: Any) -> Number:
    """Return a NumPy scalar as a Python number: int for integers and bools, else float."""
    return int(value) if value.dtype.kind in "iub" else float(value)


def json_number(value: Number | None) -> Number | str | None:
    """Return the number, or its name where JSON cannot hold it: JSON has neither infinity nor NaN.

    >>> json_number(0.5), json_number(float("-inf")), json_number(float("nan"))
    (0.5, '-inf', 'nan')
    """
    return value if value is None or isinstance(value, int) or isfinite(value) else repr(value)
