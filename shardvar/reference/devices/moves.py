"""Buffers, and the only functions that move bytes from one device to another.

A plain array lives where the program computes: on ``current_device()``, unless a function names its
``source``. A ``Buffer`` is an array that lives on a device while anything refers to it. Each move
copies, and the ledger counts what was copied. Moves within one device copy where the caller asked
for a copy, and are not counted.

    allocate        zeros on a device
    adopt           an array that was made on the device and has no other reference: no copy
    place           a copy of a value, on a device
    move            a buffer's value on another device
    move_array      the same for an array, with source and target named
    copy_into       values into memory that lives on the target already
    copy_all        several regions, as one message
    gather_into     rows of an array into memory that lives on the target already
    gather_parts    the same from arrays that each live on a device, as if they were one

Lookups are gathers, and memory limits their speed: a processor waits for rows that lie anywhere in
a large array. So many rows are gathered by two threads, each half of them. Rows of several parts
are gathered in row blocks: first the rows of each part, one part after another, into memory that
stays in the processor's cache; from there all of them in the order that was asked for. Writing
single rows to distant places, which is slow, never happens.
"""

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from shardvar.errors import ScopeError
from shardvar.layout.dtypes import Array, Ints
from shardvar.reference.devices.device import Device, current_device, value_nbytes
from shardvar.reference.devices.ledger import record_transfer

T = TypeVar("T")
Split = Callable[[Ints], Iterable[tuple[int, Ints, Ints | None]]]
"""A function of rows of the whole that yields, for each part that holds some of them: the part,
their numbers in it, and their places among the rows that were given, or None for all places."""

_MUCH_NBYTES = 1 << 22
"""From so many bytes on two threads share a gather: ten times the cost of waking one."""
_BLOCK_NBYTES = 1 << 21
_BLOCK_ROWS = 1 << 14
"""The limits of a row block, whichever is reached first: what lies between source and target stays
in the cache."""

_of_thread = threading.local()
"""The memory of one row block, which each thread keeps between gathers."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """An array that lives on a device and counts against its limit.

    The array may be written in place. Its bytes are given back when the last view of it is gone, or
    on ``release()``.
    """

    device: Device
    """The device on which it lives."""
    _array: Array
    _finalizer: "weakref.finalize[[int], Array]" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_finalizer", self.device.account(self._array))

    @property
    def array(self) -> Array:
        """The memory itself, not a copy; ``ScopeError`` after ``release()``."""
        if not self._finalizer.alive:
            raise ScopeError(
                f"A buffer on {self.device} was used after its release.",
                "Read it before releasing it.",
            )
        return self._array

    @property
    def nbytes(self) -> int:
        """The bytes of its elements; a string counts its own bytes."""
        return value_nbytes(self._array)

    def release(self) -> None:
        """Give its bytes back now. A second release does nothing."""
        self._finalizer()

    def __deepcopy__(self, memo: object) -> Self:
        return type(self)(self.device, _copy_for(self.device, self.array))


def allocate(
    shape: Sequence[int],
    dtype: npt.DTypeLike,
    device: Device | None = None,
    *,
    is_zeroed: bool = True,
) -> Buffer:
    """Return zeros (empty strings for objects) on a device, the current one by default; the limit
    is checked first.

    ``is_zeroed=False`` is for callers that write every element next: the elements are undefined
    until then.
    """
    device = device or current_device()
    dtype = np.dtype(dtype)
    # Strings count their own bytes, so an array of empty ones uses none and always fits.
    if dtype == np.object_:
        return Buffer(device, np.full(shape, b"", object))
    device.check_room(prod(shape) * dtype.itemsize)
    return Buffer(device, np.zeros(shape, dtype) if is_zeroed else np.empty(shape, dtype))


def adopt(array: Array, device: Device | None = None) -> Buffer:
    """Return a buffer around an array that was made on the device and to which nothing else refers.

    It is copied only where it cannot be a buffer: where it is a view, read-only or not in C order.
    """
    # A view would keep its owner's memory alive without counting it, and a buffer must be writeable
    # in place.
    device = device or current_device()
    can_be_buffer = array.flags.owndata and array.flags.writeable and array.flags.c_contiguous
    return Buffer(device, array if can_be_buffer else _copy_for(device, array))


def place(
    value: npt.ArrayLike, device: Device | None = None, *, source: Device | None = None
) -> Buffer:
    """Return a copy of a value on a device, moved from ``source``, by default the current one."""
    here = current_device()
    device, source = device or here, source or here
    # Check and plan: the copy raises DeviceFull before a byte is counted.
    array = np.asarray(value)
    buffer = Buffer(device, _copy_for(device, array))
    # Move: what was copied is what is counted.
    record_transfer(source, device, value_nbytes(array))
    return buffer


def move(buffer: Buffer, target: Device | None = None) -> Buffer:
    """Return the buffer's value on another device, by default the current one, or the buffer if it
    lives there."""
    target = target or current_device()
    return buffer if buffer.device is target else place(buffer.array, target, source=buffer.device)


def move_array(array: Array, source: Device, target: Device) -> Array:
    """Return the array on the target, where it counts as used, or itself if it is there."""
    return array if source is target else place(array, target, source=source).array


def copy_into(out: Array, values: npt.ArrayLike, source: Device, target: Device) -> None:
    """``out[...] = values``, where the values live on ``source`` and ``out`` on ``target``."""
    array = np.asarray(values)
    out[...] = array
    record_transfer(source, target, value_nbytes(array))


def copy_all(
    regions: Iterable[tuple[Array, Array]],
    source: Device,
    target: Device,
    combine: np.ufunc | None = None,
) -> None:
    """``out[...] = values`` for each pair of ``regions``, or ``combine(out, values)``: one message
    for all of them."""
    nbytes = 0
    for out, values in regions:
        if combine is None:
            out[...] = values
        else:
            combine(out, values, out=out)
        nbytes += value_nbytes(values)
    record_transfer(source, target, nbytes)


def gather_into(
    out: Array, array: Array, rows: Ints, source: Device, target: Device, at: Ints | None = None
) -> None:
    """``out[at] = array[rows]``, where ``array`` lives on ``source`` and ``out`` on ``target``: one
    message.

    ``rows`` and ``at`` [n] must be in range, which the caller checks; without ``at`` it is ``out[:]
    = array[rows]``.
    """
    # Plan. Rows that go to scattered places are gathered in memory of their own first.
    is_direct = at is None and out.flags.c_contiguous
    taken = out if is_direct else np.empty((len(rows), *array.shape[1:]), array.dtype)

    def gather(start: int, stop: int) -> None:
        _take(array, rows[start:stop], taken[start:stop])

    # Move.
    _shared(gather, taken)
    if not is_direct:
        out[slice(None) if at is None else at] = taken
    record_transfer(source, target, value_nbytes(taken), messages=int(len(rows) > 0))


def gather_parts(
    out: Array, parts: Sequence[Buffer], rows: Ints, split: Split, target: Device
) -> None:
    """``out[:] = np.concatenate(parts)[rows]``, where ``out`` lives on ``target``.

    One message is counted for each part that holds some of the rows. ``out`` is in C order,
    ``rows`` [n] must be in range, and ``split`` says which part holds which of them.
    """
    # Plan. Rows of 1 MiB come two at a time, rows of 64 bytes 16,384 at a time.
    step = max(1, min(_BLOCK_ROWS, _BLOCK_NBYTES // max(1, out[:1].nbytes)))

    def gather(start: int, stop: int) -> Counter[int]:
        moved: Counter[int] = Counter()
        with _scratch(min(step, stop - start), out) as scratch:
            for first in range(start, stop, step):
                block = slice(first, min(first + step, stop))
                _gather_block(out[block], parts, split(rows[block]), scratch, moved)
        return moved

    # Move. Two threads may have gathered from one part, which is one message all the same.
    total: Counter[int] = Counter()
    for moved in _shared(gather, out):
        # Unlike a sum of counters it keeps zeros: rows without elements are a message too.
        total.update(moved)
    for part in sorted(total):
        record_transfer(parts[part].device, target, total[part])


def _gather_block(
    out: Array,
    parts: Sequence[Buffer],
    portions: Iterable[tuple[int, Ints, Ints | None]],
    scratch: Array,
    moved: Counter[int],
) -> None:
    """Write the rows of all portions to their places in ``out``, and add the bytes that each part
    gave to ``moved``."""
    # scratch holds the rows part after part, and found[i] says where in it the row of out[i] is.
    # Two parts that hold the places [1] and [0, 2] give found = [1, 0, 2].
    filled, found = 0, np.empty(len(out), np.int64)
    for part, local, places in portions:
        taken = out if places is None else scratch[filled : filled + len(local)]
        _take(parts[part].array, local, taken)
        moved[part] += value_nbytes(taken)
        if places is not None:
            found[places] = np.arange(filled, filled + len(local))
            filled += len(local)
    if filled:
        _take(scratch, found, out)


@contextmanager
def _scratch(count: int, like: Array) -> Iterator[Array]:
    """Provide ``count`` rows with the shape and dtype of the rows of ``like``, in memory that the
    thread keeps.

    New pages would cost as much as the work itself. The memory is taken out of the thread's keeping
    meanwhile, so code that runs in between in the same thread, such as a finalizer, allocates other
    memory.
    """
    shape, nbytes = (count, *like.shape[1:]), count * like[:1].nbytes
    if like.dtype.hasobject or nbytes > _BLOCK_NBYTES:
        yield np.empty(shape, like.dtype)
        return
    kept = vars(_of_thread).pop("memory", None)
    memory = np.empty(_BLOCK_NBYTES, np.uint8) if kept is None else kept
    try:
        yield memory[:nbytes].view(like.dtype).reshape(shape)
    finally:
        _of_thread.memory = memory


def _take(array: Array, rows: Ints, out: Array) -> None:
    # Rows are in range, so nothing is clipped: this is the mode in which NumPy writes to `out`
    # without a buffer.
    array.take(rows, axis=0, out=out, mode="clip")


def _shared(work: Callable[[int, int], T], out: Array) -> list[T]:
    """Return the results of ``work(start, stop)`` for the rows of ``out``: all at once, or two
    halves at a time."""
    is_much = out.nbytes >= _MUCH_NBYTES and not out.dtype.hasobject
    half = len(out) // 2 if is_much else 0
    # NumPy copies without the interpreter's lock, so another thread does one half meanwhile.
    other = _helper_of(os.getpid()).submit(work, 0, half) if half else None
    results = [work(half, len(out))]
    return results if other is None else [*results, other.result()]


@cache
def _helper_of(_process: int) -> ThreadPoolExecutor:
    """Return one thread that lives as long as the process; a forked process makes another."""
    return ThreadPoolExecutor(1, thread_name_prefix="shardvar-gather")


def _copy_for(device: Device, array: Array) -> Array:
    """Return a copy in C order that owns its memory, once it is known to fit."""
    device.check_room(value_nbytes(array))
    copy: np.ndarray[Any, Any] = np.empty(array.shape, array.dtype.newbyteorder("="))
    copy[...] = array
    return copy
