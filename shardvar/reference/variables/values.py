"""Values of variables, and the writes that change them: planned one by one, committed together.

Values are NumPy arrays of a dtype that shardvar knows; strings are objects of type ``bytes``.
``as_value`` takes anything that means an array, ``cast_value`` fits it to a variable. Plain Python
numbers get TensorFlow's dtypes (float32, int32); arrays keep theirs. A value is cast where its kind
allows: of bool, integer, real, complex each may become a later one, never an earlier one. Integers
that do not fit the dtype are refused.

Dense and sparse writes share one table of updates, ``new = combine(old, value)``. A sparse write
applies duplicates one after another in the order in which they were given, so sums, products and
the last of several replacements equal a plain loop's, bit for bit.

The kernel of sparse writes takes rows in ascending order, equal rows side by side. They are sorted
stably, so the values for one row keep the order in which they were given. The kernel reads and
writes each row of the array once:

1. Combine the first value of every distinct row, all at once; then the second value of the rows
   that have one, and so on ("rounds").
2. Fold the few rows that occur very often one by one, because late rounds would hold a handful of
   rows each.

Rows 3, 7, 7, 7 take three rounds: {3, 7}, {7}, {7}. The result equals a plain loop over all rows,
bit for bit.

R-RES-1 (RFC 003): "What's stored in the device's resource manager is a pair of a Tensor and a
mutex." Here the tensor is a buffer on a simulated device, which no caller outside of this package
sees. Reads copy out of it and writes change it in place. This is what RFC 003 calls copy-on-read,
and as it asks, "no mutation is done to the Tensor returned by a read_variable_op after it's been
read".

A write is planned, then committed. Planning does everything that may fail: casting, comparing
shapes, moving operands to the device. Committing holds the mutexes of all resources that are
written, in one order for all threads, and cannot fail. So a write to many shards happens whole or
not at all, and concurrent writes lose nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.forks import new_lock, unforked
from shardvar.layout.dtypes import (
    STRING,
    Array,
    DType,
    Ints,
    Shape,
    dtype_name,
    numpy_dtype,
    parse_dtype,
)
from shardvar.records import frozen
from shardvar.reference.devices import Buffer, Device, adopt, place

_KINDS = (("bool",), ("int", "uint"), ("float", "bfloat"), ("complex",))
"""Prefixes of dtype names, by rank: a value may be cast to its own rank or a later one."""


def as_value(value: Any, dtype: Any = None) -> Array:
    """Return the array that ``value`` means, of ``dtype`` if one is given; maybe ``value`` itself."""
    # With a dtype, Python numbers are cast from their 64 bits: 0.1 as float64 would lose digits if
    # narrowed first.
    array = _array(value)
    if dtype is not None:
        return cast_value(array, as_dtype(dtype), "The value")
    # Plain Python numbers are narrowed, as in TensorFlow: float64 to float32, and int64 to int32 if
    # it fits. The first leaf of nested lists decides: [[1.5, 2.0]] -> [1.5, 2.0] -> 1.5. An empty
    # list counts as Python numbers.
    leaf = value
    while isinstance(leaf, list | tuple) and leaf:
        leaf = leaf[0]
    if isinstance(leaf, bool | int | float | list | tuple) and not isinstance(leaf, np.generic):
        limits = np.iinfo(np.int32)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        elif array.dtype == np.int64 and (
            array.size == 0 or (limits.min <= array.min() and array.max() <= limits.max)
        ):
            array = array.astype(np.int32)
    # A dtype is known by its name, so big-endian arrays become native, and unknown dtypes are
    # refused here.
    return array.astype(numpy_dtype(dtype_name(array.dtype)), copy=False)


def cast_value(value: Any, dtype: DType, what: str) -> Array:
    """Return ``value`` as an array of ``dtype``; the message of an error begins with ``what``."""
    # R-VAR-1 (RFC 000): "users' model code doesn't need to change w.r.t whether the variable is
    # sharded or not": sharded variables have the rule of plain ones.
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


def as_dtype(dtype: Any) -> DType:
    return numpy_dtype(parse_dtype(dtype))


def check_shape(shape: Shape, expected: tuple[int | None, ...], what: str) -> None:
    """Raise ``ArgumentError`` unless ``shape`` is as expected; None stands for any extent."""
    # R-VAR-2: shapes are equal, nothing is broadcast and nothing is cropped.
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
    if array.dtype.kind != "O":
        return array
    encoded = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
    if not all(isinstance(item, bytes) for item in encoded):
        raise ArgumentTypeError(
            "A variable cannot hold an array of Python objects.",
            "Give numbers, or strings of bytes.",
        )
    strings = np.empty(len(encoded), object)
    strings[:] = encoded
    return strings.reshape(array.shape)


def _rank(dtype: DType) -> int | None:
    """Return the place of a dtype's kind in ``_KINDS``, or None for strings."""
    name = dtype_name(dtype)
    if name == STRING:
        return None
    return next(rank for rank, prefixes in enumerate(_KINDS) if name.startswith(prefixes))


@frozen
class UpdateKind:
    """One way of combining old elements with given ones."""

    verb: str
    """The verb in messages and in the ledger."""
    combine: Callable[[Array, Array], Array]
    fold: Callable[[Array], Array] | None = None
    """``fold(stack)`` applies ``combine`` to [n, *row] in order, if there is a fast form."""
    is_arithmetic: bool = True
    """True if it needs numbers; strings and booleans can only be replaced."""

    def apply(self, array: Array, value: Array) -> None:
        """Combine all elements of an array with a value of its shape, in place."""
        if isinstance(self.combine, np.ufunc):
            self.combine(array, value, out=array)
        else:
            array[...] = self.combine(array, value)


def truncated_quotient(old: Array, value: Array) -> Array:
    """Return ``old / value``; integers are divided towards zero, as in TensorFlow and C."""
    if old.dtype.kind not in "iu":
        return np.asarray(np.divide(old, value))
    # NumPy divides towards minus infinity: -7 = 2 * -4 + 1. Where something remains and the signs
    # differ, the quotient towards zero is one more: -3.
    quotient, remainder = np.divmod(old, value)
    return np.asarray(
        quotient + ((remainder != 0) & ((old < 0) != (value < 0))).astype(quotient.dtype)
    )


def _fold(ufunc: np.ufunc) -> Callable[[Array], Array]:
    """Return a fold from left to right along axis 0."""

    def fold(stack: Array) -> Array:
        # `reduce` goes row by row, except for rows of one element: these it adds in pairs, ((a + b)
        # + (c + d)), whose rounding differs from a loop's; `accumulate` adds one element after
        # another.
        if stack[0].size == 1:
            return np.asarray(ufunc.accumulate(stack, axis=0)[-1])
        return np.asarray(ufunc.reduce(stack, axis=0))

    return fold


REPLACE = UpdateKind("update", lambda _, new: new, lambda stack: stack[-1], is_arithmetic=False)
ADD = UpdateKind("add", np.add, _fold(np.add))
SUB = UpdateKind("sub", np.subtract, _fold(np.subtract))
MUL = UpdateKind("mul", np.multiply, _fold(np.multiply))
DIV = UpdateKind("div", truncated_quotient)
MIN = UpdateKind("min", np.minimum, _fold(np.minimum))
MAX = UpdateKind("max", np.maximum, _fold(np.maximum))


def check_update(update: UpdateKind, dtype: DType, values: Array) -> None:
    """Raise ``ArgumentError`` if the dtype has no such arithmetic, or a divisor is zero."""
    if update.is_arithmetic and dtype.kind in "Ob":
        raise ArgumentError(
            f"A variable of dtype {dtype_name(dtype)} cannot {update.verb} values.",
            "Assign new values instead.",
        )
    if update is DIV and not np.all(values):
        # As TensorFlow does, for floats too: a model that fills with infinities would go unseen.
        raise ArgumentError(
            "The values to divide by hold a zero.", "Divide by numbers other than 0."
        )


_BLOCK_NBYTES = 1 << 18
"""Distinct rows are combined in row blocks of so many bytes, which stay in the processor's cache
between rounds."""

_OFTEN = 8
"""A row that occurs more often is folded by itself: later rounds have few rows."""


def sort_rows(rows: Ints) -> tuple[Ints, Ints]:
    """Return the rows ascending, and the place where each was; equal rows keep their order."""
    bits = len(rows).bit_length()
    if len(rows) == 0 or int(rows.max()) >= 1 << (63 - bits):
        order = np.argsort(rows, kind="stable")
        return rows[order], order
    # Row and place in one integer sort several times faster than a stable argsort. Four rows need 3
    # bits for the place: row 7 at place 2 is 7 << 3 | 2 = 58, and 58 >> 3, 58 & 7 are row and place
    # again.
    keys = np.sort((rows << bits) | np.arange(len(rows)))
    return keys >> bits, keys & ((1 << bits) - 1)


def ascending(rows: Ints) -> tuple[Ints, Ints | None]:
    """Return ``sort_rows``, with None for the places if the rows ascend already."""
    return (rows, None) if np.all(rows[1:] >= rows[:-1]) else sort_rows(rows)


def scatter_sorted(array: Array, rows: Ints, values: Array, update: UpdateKind) -> None:
    """``array[rows[i]] = update.combine(array[rows[i]], values[i])`` in order; ``rows`` [n] ascend."""
    starts, counts = _groups(rows)
    if update is REPLACE:
        # Of several values for one row the last stays.
        array[rows[starts]] = values[starts + counts - 1]
        return
    for block in row_blocks(len(starts), array):
        distinct = rows[starts[block]]
        new = update.combine(array[distinct], values[starts[block]])
        array[distinct] = _folded(new, starts[block], counts[block], values, None, update)


def sum_sorted(rows: Ints, values: Array, order: Ints) -> tuple[Ints, Array]:
    """Return the distinct rows and the sums of their values ``values[order[i]]``, in order."""
    # Equal to ``scatter_sorted`` to zeros, except that nothing is added to a zero: a row that
    # occurs once keeps the sign of its zeros.
    starts, counts = _groups(rows)
    sums = np.empty((len(starts), *values.shape[1:]), values.dtype)
    for block in row_blocks(len(starts), sums):
        np.take(values, order[starts[block]], axis=0, out=sums[block], mode="clip")
        _folded(sums[block], starts[block], counts[block], values, order, ADD)
    return rows[starts], sums


def _groups(rows: Ints) -> tuple[Ints, Ints]:
    """Return starts and sizes of groups of equal ascending rows: [3, 7, 7] -> [0, 1], [1, 2]."""
    is_first = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
    starts = is_first.nonzero()[0]
    counts = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=counts[:-1])
    counts[-1:] = len(rows) - starts[-1:]  # slices, so that no rows at all give no groups
    return starts, counts


def row_blocks(count: int, array: Array, most: int = _BLOCK_NBYTES) -> Iterator[slice]:
    """Return slices of ``count`` rows, each of at most so many bytes of the array's rows, or one row."""
    # Rows of 100 float32 take 400 bytes: 262144 // 400 = 655 rows a block. A row may be empty, hence
    # max(1, ...).
    step = max(1, most // max(1, array[:1].nbytes))
    return (slice(first, first + step) for first in range(0, count, step))


def _folded(
    new: Array, starts: Ints, counts: Ints, values: Array, order: Ints | None, update: UpdateKind
) -> Array:
    """Combine ``new[i]``, in place, with ``values[order][starts[i] + 1 : starts[i] + counts[i]]``."""
    if counts.max() == 1:
        return new
    # Groups of 1, 3 and 20 values with a fold: the last is `often`, so there are two more rounds
    # for the first two.
    often = counts > _OFTEN if update.fold is not None else np.zeros(len(counts), np.bool_)
    rounds = int(counts[~often].max(initial=1))
    for turn in range(1, rounds):
        left = np.flatnonzero((counts > turn) & ~often)
        places = starts[left] + turn
        new[left] = update.combine(new[left], values[places if order is None else order[places]])
    if update.fold is not None:
        for i in np.flatnonzero(often):
            rest = slice(starts[i] + 1, starts[i] + counts[i])
            new[i] = update.fold(
                np.concatenate([new[i : i + 1], values[rest if order is None else order[rest]]])
            )
    return new


_serials = count()
_serial_of = attrgetter("serial")


class Resource:
    """A buffer and its mutex. Two resources never share a buffer."""

    __slots__ = ("__weakref__", "buffer", "mutex", "serial")

    def __init__(
        self,
        value: Array,
        device: Device | None = None,
        *,
        source: Device | None = None,
        owns_value: bool = False,
    ) -> None:
        self.buffer: Buffer = (
            adopt(value, device) if owns_value else place(value, device, source=source)
        )
        """The tensor. Writes change it in place, and replace it only where its size changes."""
        # Reentrant: a kind of variable may read and assign its own resources inside a commit that
        # holds them.
        self.mutex = new_lock()
        """Held by a thread while it reads or writes the buffer."""
        self.serial = next(_serials)
        """The place in the order in which all threads take mutexes, so that two writers never wait
        for each other."""

    @property
    def device(self) -> Device:
        return self.buffer.device

    @property
    def array(self) -> Array:
        """The memory itself; the caller holds the mutex."""
        return self.buffer.array


@frozen
class Write:
    """A planned write. Nothing that can fail is left to do."""

    resources: tuple[Resource, ...]
    apply: Callable[[], Any]
    """A function that performs the write; its caller holds the mutexes."""


@contextmanager
def holding(resources: Sequence[Resource]) -> Iterator[None]:
    """Hold the mutexes of all resources."""
    # Sorted by serial, all threads take mutexes in one order. Without that, one thread could hold A
    # and wait for B while another holds B and waits for A. A resource may be given twice, by two
    # writes of one commit, and is locked once. What was locked is released even where an interrupt
    # comes between two of them.
    held = []
    try:
        for resource in sorted(set(resources), key=_serial_of):
            resource.mutex.acquire()
            held.append(resource.mutex)
        yield
    finally:
        for mutex in reversed(held):
            mutex.release()


def commit(writes: Sequence[Write]) -> None:
    """Perform all the writes; no other thread reads or writes their resources in between."""
    # Floating-point errors are ignored. If the caller has NumPy raise them, an overflow in the
    # second write would leave the first one done. A process that another thread forks in between
    # would have parts of the writes.
    resources = [resource for write in writes for resource in write.resources]
    with holding(resources), np.errstate(all="ignore"), unforked:
        for write in writes:
            write.apply()
