"""Rows that move from one device to another, or from several to one: what lookups cost.

A processor waits for rows that lie anywhere in a large array, so much of them is gathered by two threads, each a half.
Rows of several parts are gathered a block at a time: those of each part behind one another, and then, from the
processor's cache, all of them in the order that was asked for. Nothing is written to far places one row after another.

    gather_into     rows of one array into memory that lives on the target already
    gather_parts    the same from arrays that each live on a device of their own, as if they were one
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import numpy as np

from shardvar.devices.device import Device, value_nbytes
from shardvar.devices.ledger import record_transfer
from shardvar.devices.moves import Buffer
from shardvar.layout.dtypes import Array, Ints

T = TypeVar("T")
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
