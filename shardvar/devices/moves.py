"""Buffers, and the only functions that move bytes from one device to another.

A plain array lives where the program computes: on ``current_device()``, unless a function says ``source``. A ``Buffer``
is an array that lives on a device for as long as anything refers to it. Each move copies, and what it copied is what
the ledger counts. Moves within one device copy where the caller asked for a copy, and are not counted.

    allocate        zeros on a device
    adopt           an array that was made on the device and belongs to nobody else: no copy
    place           a copy of a value, on a device
    move            a buffer's value on another device
    move_array      the same for an array, with source and target named
    copy_into       values into memory that lives on the target already

``devices.gather`` moves rows.
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

from shardvar.devices.device import Device, current_device, value_nbytes
from shardvar.devices.ledger import record_transfer
from shardvar.errors import ScopeError
from shardvar.layout.dtypes import Array


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """An array that lives on a device and counts against its limit.

    The array may be written in place. Its bytes are given back when the last view of it is gone, or on ``release()``.
    """

    device: Device
    """Where it lives."""
    _array: Array
    _finalizer: "weakref.finalize[[int], Array]" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_finalizer", self.device.account(self._array))

    @property
    def array(self) -> Array:
        """The memory itself, not a copy; ``ScopeError`` after ``release()``."""
        if not self._finalizer.alive:
            raise ScopeError(f"A buffer on {self.device} was used after its release.", "Read it before releasing it.")
        return self._array

    @property
    def nbytes(self) -> int:
        """The bytes that it holds."""
        return value_nbytes(self._array)

    def release(self) -> None:
        """Give its bytes back now. A second release does nothing."""
        self._finalizer()

    def __deepcopy__(self, memo: object) -> Self:
        return type(self)(self.device, _copy_for(self.device, self.array))


def allocate(
    shape: Sequence[int], dtype: npt.DTypeLike, device: Device | None = None, *, is_zeroed: bool = True
) -> Buffer:
    """Zeros (empty strings for objects) on a device, the current one by default; the limit is checked first.

    ``is_zeroed=False`` is for callers that write every element next: their values are anything until then.
    """
    device = device or current_device()
    dtype = np.dtype(dtype)
    if dtype == np.object_:
        return Buffer(device, np.full(shape, b"", object))
    device.check_room(prod(shape) * dtype.itemsize)
    return Buffer(device, np.zeros(shape, dtype) if is_zeroed else np.empty(shape, dtype))


def adopt(array: Array, device: Device | None = None) -> Buffer:
    """A buffer around an array that was made on the device and to which nobody else holds a reference.

    It is copied only where it cannot be a buffer: where it is a view, read-only or not in C order.
    """
    device = device or current_device()
    is_own = array.flags.owndata and array.flags.writeable and array.flags.c_contiguous
    return Buffer(device, array if is_own else _copy_for(device, array))


def place(value: npt.ArrayLike, device: Device | None = None, *, source: Device | None = None) -> Buffer:
    """A copy of a value on a device; it moves there from ``source``, by default the current device."""
    here = current_device()
    device, source = device or here, source or here
    array = np.asarray(value)
    buffer = Buffer(device, _copy_for(device, array))
    record_transfer(source, device, value_nbytes(array))
    return buffer


def move(buffer: Buffer, target: Device | None = None) -> Buffer:
    """The buffer's value on another device, by default the current one; the same buffer where it lives there."""
    target = target or current_device()
    return buffer if buffer.device is target else place(buffer.array, target, source=buffer.device)


def move_array(array: Array, source: Device, target: Device) -> Array:
    """The array on the target, where it counts as used until it is dropped; the same array where it is there."""
    return array if source is target else place(array, target, source=source).array


def copy_into(out: Array, values: npt.ArrayLike, source: Device, target: Device) -> None:
    """Write values that live on ``source`` to ``out``, memory that lives on ``target``: ``out[...] = values``."""
    array = np.asarray(values)
    out[...] = array
    record_transfer(source, target, value_nbytes(array))


def _copy_for(device: Device, array: Array) -> Array:
    """A copy in C order that owns its memory, once it is known to fit."""
    device.check_room(value_nbytes(array))
    copy: np.ndarray[Any, Any] = np.empty(array.shape, array.dtype.newbyteorder("="))
    copy[...] = array
    return copy


# Rows that move from one device to another, or from several to one: what lookups cost.
#
# A processor waits for rows that lie anywhere in a large array, so much of them is gathered by two threads, each a
# half.
# Rows of several parts are gathered a block at a time: those of each part behind one another, and then, from the
# processor's cache, all of them in the order that was asked for. Nothing is written to far places one row after
# another.
#
#     gather_into     rows of one array into memory that lives on the target already
#     gather_parts    the same from arrays that each live on a device of their own, as if they were one


T = TypeVar("T")
Ints = npt.NDArray[np.int64]
Split = Callable[[Ints], Iterable[tuple[int, Ints, Ints | None]]]
"""Rows of the whole -> for each part that holds some of them: the part, their numbers in it, their places among the
rows that were given; None for the places where it holds all of them."""

_MUCH_NBYTES = 1 << 22
"""From so many bytes on a gather is shared by two threads: it takes ten times as long as to wake the second."""
_BLOCK_NBYTES = 1 << 21
_BLOCK_ROWS = 1 << 14
"""A block is that of them which is less: what lies between source and target stays in the processor's cache."""

_of_thread = threading.local()
"""The memory that each thread keeps between gathers, a block of it."""


def gather_into(out: Array, array: Array, rows: Ints, source: Device, target: Device, at: Ints | None = None) -> None:
    """``out[at] = array[rows]``, where ``array`` lives on ``source`` and ``out`` on ``target``: one message.

    ``rows`` and ``at`` [n] must be in range, which is the caller's to check; without ``at`` it is ``out[:] = ...``.
    """
    is_direct = at is None and out.flags.c_contiguous
    taken = out if is_direct else np.empty((len(rows), *array.shape[1:]), array.dtype)

    def gather(start: int, stop: int) -> None:
        _take(array, rows[start:stop], taken[start:stop])

    _shared(gather, taken)
    if not is_direct:
        out[slice(None) if at is None else at] = taken
    record_transfer(source, target, value_nbytes(taken), messages=int(len(rows) > 0))


def gather_parts(out: Array, parts: Sequence[Buffer], rows: Ints, split: Split, target: Device) -> None:
    """``out[:] = np.concatenate(parts)[rows]``, where ``out`` lives on ``target``: one message a part that holds some.

    ``out`` is in C order, ``rows`` [n] must be in range, and ``split`` says which part holds which of them.
    """
    step = max(1, min(_BLOCK_ROWS, _BLOCK_NBYTES // max(1, out[:1].nbytes)))

    def gather(start: int, stop: int) -> Counter[int]:
        moved: Counter[int] = Counter()
        with _scratch(min(step, stop - start), out) as scratch:
            for first in range(start, stop, step):
                block = slice(first, min(first + step, stop))
                _gather_block(out[block], parts, split(rows[block]), scratch, moved)
        return moved

    total: Counter[int] = Counter()
    for moved in _shared(gather, out):
        total.update(moved)  # unlike a sum of counters it keeps zeros: rows without elements are a message, too
    for part in sorted(total):
        record_transfer(parts[part].device, target, total[part])


def _gather_block(
    out: Array,
    parts: Sequence[Buffer],
    pieces: Iterable[tuple[int, Ints, Ints | None]],
    scratch: Array,
    moved: Counter[int],
) -> None:
    """The rows of all pieces, each in its place; ``moved`` counts the bytes that each part gave."""
    filled, found = 0, np.empty(len(out), np.int64)
    for part, local, places in pieces:
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
    """So many rows like those of ``like``, in memory that the thread keeps: new pages would cost as much as the work.

    Whoever comes in between, such as a finalizer in this very thread, finds none kept and takes memory of its own.
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
    # Rows are in range, so nothing is clipped: this mode is the one that writes to `out` without a buffer.
    array.take(rows, axis=0, out=out, mode="clip")


def _shared(work: Callable[[int, int], T], out: Array) -> list[T]:
    """What ``work(start, stop)`` gives for the rows of ``out``: all at once, or the halves at the same time."""
    is_much = out.nbytes >= _MUCH_NBYTES and not out.dtype.hasobject
    half = len(out) // 2 if is_much else 0
    # NumPy copies without the interpreter's lock, so another thread does one half meanwhile.
    other = _helper_of(os.getpid()).submit(work, 0, half) if half else None
    results = [work(half, len(out))]
    return results if other is None else [*results, other.result()]


@cache
def _helper_of(process: int) -> ThreadPoolExecutor:
    """One thread that lives as long as the process; a process that was forked makes its own."""
    return ThreadPoolExecutor(1, thread_name_prefix="shardvar-gather")
