"""Simulated devices, what fits on them, and what crosses between them.

A device is a name and a memory whose limit is enforced. It is an identity, not a value: two devices
of one name are two memories. Its only mutable state is the count of bytes in use, which a lock
guards.

1. ``account`` counts an array when it comes to live on a device, and attaches a finalizer to it.
2. The bytes are given back when the array is garbage-collected. A view keeps the array that owns
   the memory alive, so views are covered.
3. Finalizers may run at any point, even while this thread holds the lock. So a finalizer only
   appends its bytes to a deque, and the next count subtracts them under the lock.

Names are TensorFlow's: ``/job:ps/replica:0/task:1/device:CPU:0`` or short ``ps:1``,
``worker:0/GPU:1``, ``GPU:0``. A ``Cluster`` holds the devices of parameter servers, of workers, and
of the replicas of each worker.

A ledger counts the bytes that cross from one device to another, as they are copied. It is open from
``track_transfers()`` until the end of its ``with`` statement. It counts the moves of the thread
that opened it, nested ledgers included, and the moves of threads that have not opened one. Rows are
totals by operation, source and target, so a long program takes no more memory than a short one.

An operation is what the user called: the outermost ``operation_scope`` gives its name to all moves
beneath it.

Example: a worker looks up 100 rows of 16 float32 on two servers, 60 on one and 40 on the other. The
ledger gets two rows: ("sparse_read", ps:0, worker:0) of 60 * 16 * 4 = 3,840 bytes and one of 2,560,
each with one message.

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

import gc
import os
import re
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from math import prod
from threading import RLock
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, DeviceFull, ScopeError
from shardvar.forks import new_lock
from shardvar.layout.dtypes import Array, Ints
from shardvar.limits import MAX_DEVICES
from shardvar.records import entity, field, frozen, mutable

# Every part of a full name may be missing: "/job:ps/task:3", "/device:GPU:0" and "/GPU:0" are also
# names.
_FULL_NAME = re.compile(
    r"(?:/job:(?P<job>\w+))?(?:/replica:(?P<replica>\d+))?(?:/task:(?P<task>\d+))?"
    r"(?:/(?:device:)?(?P<kind>[A-Za-z]+):(?P<index>\d+))?",
    re.ASCII,
)
_SHORT_NAME = re.compile(
    r"(?P<job>[A-Za-z_]\w*):(?P<task>\d+)(?:/(?P<kind>[A-Za-z]+):(?P<index>\d+))?", re.ASCII
)
_LOCAL_NAME = re.compile(r"(?P<kind>[CGT]PU):(?P<index>\d+)", re.ASCII | re.IGNORECASE)


@mutable
class _Memory:
    used: int = 0
    peak: int = 0
    lock: RLock = field(default_factory=new_lock)
    released: deque[int] = field(default_factory=deque)

    def drain(self) -> int:
        """Subtract the bytes of finalizers; return the bytes in use. The caller has the lock."""
        while self.released:
            self.used -= self.released.popleft()
        return self.used

    def reserve(self, nbytes: int, limit: int | None) -> bool:
        """Count ``nbytes`` as used, or return False and change nothing if they do not fit."""
        with self.lock:
            fits = limit is None or self.drain() + nbytes <= limit
            if fits:
                self.used = self.drain() + nbytes
                self.peak = max(self.peak, self.used)
            return fits


@entity(weakref_slot=True)
class Device:
    """One memory with a name.

    >>> Device("ps:1", memory_limit=1 << 20)
    Device(name='/job:ps/replica:0/task:1/device:CPU:0', memory_limit=1048576)
    """

    name: str
    """The full name; a short one is completed."""
    memory_limit: int | None = None
    """The bytes that it can hold, or None for no limit."""
    _memory: _Memory = field(init=False, repr=False, default_factory=_Memory)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", full_name(self.name))
        if self.memory_limit is not None and self.memory_limit < 0:
            raise ArgumentError(
                f"{self.name} cannot have a memory limit of {self.memory_limit} bytes.",
                "Give 0 bytes or more, or None for no limit.",
            )

    @property
    def short_name(self) -> str:
        """``ps:1``, ``worker:0/GPU:1``; the full name where the replica is not 0."""
        _, job, replica, task, device = (part.partition(":")[2] for part in self.name.split("/"))
        if replica != "0":
            return self.name
        return f"{job}:{task}" if device == "CPU:0" else f"{job}:{task}/{device}"

    @property
    def host_name(self) -> str:
        """The full name of the CPU of its task, which for a CPU is its own name."""
        return self.name.rpartition("/")[0] + "/device:CPU:0"

    @property
    def used(self) -> int:
        """The bytes of the arrays that live here now."""
        with self._memory.lock:
            return self._memory.drain()

    @property
    def peak(self) -> int:
        """The most bytes that were ever in use at once."""
        return self._memory.peak

    def account(self, array: Array) -> "weakref.finalize[[int], Array]":
        """Count an array until it is garbage-collected or the returned finalizer is called."""
        # At exit the finalizer is skipped: the process gives its memory back by itself.
        nbytes = value_nbytes(array)
        self.reserve(nbytes)
        finalizer = weakref.finalize(array, self._memory.released.append, nbytes)
        finalizer.atexit = False
        return finalizer

    def reserve(self, nbytes: int) -> None:
        """Count bytes as used; ``DeviceFull`` if they do not fit after a garbage collection."""
        if self._memory.reserve(nbytes, self.memory_limit):
            return
        # Arrays in reference cycles keep their bytes until the collector runs; only then is the
        # device really full.
        gc.collect()
        if not self._memory.reserve(nbytes, self.memory_limit):
            raise DeviceFull(
                f"{self.name} has a memory limit of {self.memory_limit} bytes, {self.used} are "
                f"used and {nbytes} were requested.",
                "Spread the variable over more shards, or give the device more memory.",
            )

    def check_room(self, nbytes: int) -> None:
        """Raise ``DeviceFull`` if an array of so many bytes would not fit."""
        # Reserve and give back at once: the array's own `account` counts it, and `peak` sees the
        # bytes either way.
        self.reserve(nbytes)
        self._memory.released.append(nbytes)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __str__(self) -> str:
        return self.name


def full_name(name: str) -> str:
    """Return the full form of a device's name; ``ArgumentError`` if it does not name a device.

    >>> full_name("ps:1"), full_name("GPU:1")
    ('/job:ps/replica:0/task:1/device:CPU:0', '/job:localhost/replica:0/task:0/device:GPU:1')
    >>> full_name("/job:ps/task:3")
    '/job:ps/replica:0/task:3/device:CPU:0'
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"Invalid device name {name!r}.", "Give a text such as 'ps:1'.")
    # "GPU:1" has the form of a short name too, job "GPU" and task 1, so the local form is tried
    # first.
    found = _LOCAL_NAME.fullmatch(name) or _SHORT_NAME.fullmatch(name) or _FULL_NAME.fullmatch(name)
    if not (name and found):
        raise ArgumentError(
            f"Invalid device name {name!r}.",
            "Write '/job:ps/replica:0/task:1/device:CPU:0' or 'ps:1'.",
        )
    # Defaults are TensorFlow's: "/job:ps/task:3" is replica 0, and its CPU 0.
    part = {key: value for key, value in found.groupdict().items() if value}
    job, kind = part.get("job", "localhost"), part.get("kind", "CPU").upper()
    replica, task, index = (int(part.get(key, 0)) for key in ("replica", "task", "index"))
    return f"/job:{job}/replica:{replica}/task:{task}/device:{kind}:{index}"


def value_nbytes(array: Array) -> int:
    """Return the bytes of an array's elements; a string counts its own bytes.

    >>> value_nbytes(np.zeros((3, 2), np.float32)), value_nbytes(np.array([b"abc", b""], object))
    (24, 3)
    """
    return sum(map(len, array.flat)) if array.dtype == np.object_ else array.nbytes


_DEFAULT = Device("localhost:0")
_current: ContextVar[Device] = ContextVar("device", default=_DEFAULT)


def current_device() -> Device:
    """Return the device on which plain arrays live: the device of the innermost ``device_scope``,
    else one without limit."""
    return _current.get()


@contextmanager
def device_scope(device: Device) -> Iterator[Device]:
    """Compute on this device: new arrays live there, and other devices' buffers are moved."""
    if not isinstance(device, Device):
        raise ArgumentTypeError(
            f"A device scope is given {device!r}.", "Give a shardvar.reference.devices.Device."
        )
    token = _current.set(device)
    try:
        yield device
    finally:
        _current.reset(token)


@entity
class Cluster:
    """Devices by their names.

    >>> cluster = make_cluster(num_ps=2, num_workers=1, replicas_per_worker=2)
    >>> [device.short_name for device in cluster]
    ['ps:0', 'ps:1', 'worker:0', 'worker:0/GPU:0', 'worker:0/GPU:1']
    >>> cluster["ps:1"] is cluster.servers[1]
    True
    """

    devices: tuple[Device, ...]
    """All devices; their names differ."""

    def __post_init__(self) -> None:
        # Devices are found by name, so a second one of that name could not be reached.
        names = [device.name for device in self.devices]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ArgumentError(
                f"The cluster has two devices of the name {twice}.", "Number the tasks."
            )

    @property
    def servers(self) -> tuple[Device, ...]:
        """The parameter servers, in the order of their tasks."""
        return tuple(device for device in self.devices if device.name.startswith("/job:ps/"))

    @property
    def hosts(self) -> tuple[Device, ...]:
        """The CPUs of the workers."""
        return tuple(device for device in self._workers() if device.host_name == device.name)

    @property
    def replicas(self) -> tuple[Device, ...]:
        """The accelerators of the workers, or the hosts themselves where workers have none."""
        return (
            tuple(device for device in self._workers() if device.host_name != device.name)
            or self.hosts
        )

    def __getitem__(self, name: str) -> Device:
        wanted = full_name(name)
        for device in self.devices:
            if device.name == wanted:
                return device
        known = ", ".join(device.short_name for device in self.devices)
        raise ArgumentError(
            f"The cluster has no device {wanted}.", f"Its devices are {known or 'none'}."
        )

    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def _workers(self) -> Iterator[Device]:
        return (device for device in self.devices if device.name.startswith("/job:worker/"))


def make_cluster(
    num_ps: int = 0,
    num_workers: int = 1,
    replicas_per_worker: int = 0,
    *,
    ps_memory_limit: int | None = None,
    host_memory_limit: int | None = None,
    replica_memory_limit: int | None = None,
) -> Cluster:
    """Return a cluster of ``num_ps`` parameter servers and ``num_workers`` hosts; memory limits are
    in bytes.

    Each host has ``replicas_per_worker`` accelerators.
    """
    counts = {
        "num_ps": num_ps,
        "num_workers": num_workers,
        "replicas_per_worker": replicas_per_worker,
    }
    for name, count in counts.items():
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise ArgumentTypeError(f"{name} is {count!r}.", "Give a count of zero or more.")
        if count < 0:
            raise ArgumentError(f"{name} is {count}.", "Give a count of zero or more.")
    # As Python's integers: NumPy's may overflow.
    if (total := int(num_ps) + int(num_workers) * (1 + int(replicas_per_worker))) > MAX_DEVICES:
        raise ArgumentError(
            f"A cluster of {total} devices is asked for.", f"At most {MAX_DEVICES} are supported."
        )
    devices = [Device(f"ps:{task}", ps_memory_limit) for task in range(num_ps)]
    for task in range(num_workers):
        devices.append(Device(f"worker:{task}", host_memory_limit))
        devices += [
            Device(f"worker:{task}/GPU:{i}", replica_memory_limit)
            for i in range(replicas_per_worker)
        ]
    return Cluster(tuple(devices))


_Route = tuple[str, str, str]


@frozen
class Transfer:
    """The bytes that one operation moved from one device to another."""

    operation: str
    """The operation that the user called."""
    source: str
    """The full name of the device that the bytes left."""
    target: str
    """The full name of the device that they reached."""
    nbytes: int
    """The bytes that crossed."""
    messages: int
    """The number of moves that carried them."""


@frozen
class Traffic:
    """The totals of several transfers."""

    nbytes: int
    """The bytes that crossed between devices."""
    messages: int
    """The number of moves that carried them."""


@entity
class Ledger:
    """The moves that were counted while it was open. It may be read at any time, also while threads
    still move.

    >>> with track_transfers() as ledger:
    ...     with operation_scope("assign"):
    ...         record_transfer(Device("worker:0"), Device("ps:1"), 80)
    >>> ledger.operations
    {'assign': Traffic(nbytes=80, messages=1)}
    """

    _nbytes: Counter[_Route] = field(init=False, repr=False, default_factory=Counter)
    _messages: Counter[_Route] = field(init=False, repr=False, default_factory=Counter)
    _lock: RLock = field(init=False, repr=False, default_factory=new_lock)

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """One row for each operation, source and target, in the order of their first moves."""
        with self._lock:
            return tuple(
                Transfer(*route, nbytes, self._messages[route])
                for route, nbytes in self._nbytes.items()
            )

    @property
    def operations(self) -> dict[str, Traffic]:
        """The totals of each operation."""
        return {row.operation: self.total(row.operation) for row in self.transfers}

    @property
    def nbytes(self) -> int:
        """All bytes that crossed."""
        return self.total().nbytes

    @property
    def messages(self) -> int:
        """All moves that crossed."""
        return self.total().messages

    def total(self, operation: str | None = None) -> Traffic:
        """Return the totals of one operation, or of all; zeros where nothing moved."""
        rows = [row for row in self.transfers if operation in (None, row.operation)]
        return Traffic(sum(row.nbytes for row in rows), sum(row.messages for row in rows))

    def __repr__(self) -> str:
        total = self.total()
        return f"<Ledger of {total.nbytes:,} bytes in {total.messages:,} messages>"

    def _repr_html_(self) -> str:
        """The totals and a row for each route, for notebooks."""
        # Imported on use, so that programs outside notebooks do not pay for the drawings.
        from shardvar.pictures.drawings import ledger_html

        total, rows = self.total(), self.transfers
        short = {name: Device(name).short_name for row in rows for name in (row.source, row.target)}
        routes = [
            (row.operation, short[row.source], short[row.target], row.nbytes, row.messages)
            for row in rows
        ]
        return ledger_html(total.nbytes, total.messages, routes)

    def add(self, route: _Route, nbytes: int, messages: int) -> None:
        """Count moves along a route: operation, source, target."""
        with self._lock:
            self._nbytes[route] += nbytes
            self._messages[route] += messages


_open: list[Ledger] = []
_open_lock = new_lock()
_own: ContextVar[tuple[Ledger, ...]] = ContextVar("ledgers", default=())
_operation: ContextVar[str | None] = ContextVar("operation", default=None)


@contextmanager
def track_transfers() -> Iterator[Ledger]:
    """Open a ledger of the moves between devices until the end of the ``with`` statement.

    Law: a nested ledger's totals are a part of the outer one's.

    Yields
    ------
    Ledger
        Counts bytes and messages while it is open: ``nbytes``, ``messages``, ``operations`` and
        ``transfers``.
    """
    # A thread with open ledgers counts in all of these (`_own`). A thread without any counts in the
    # ledgers of all threads (`_open`): a pool that moves on behalf of the opener is counted, and
    # two tests in two threads stay apart.
    ledger = Ledger()
    token = _own.set((*_own.get(), ledger))
    with _open_lock:
        _open.append(ledger)
    try:
        yield ledger
    finally:
        with _open_lock:
            _open.remove(ledger)
        _own.reset(token)


@contextmanager
def operation_scope(name: str) -> Iterator[None]:
    """Attribute the moves inside to this operation, unless an enclosing scope has named them."""
    # A strategy's reduction opens "reduce", and the reads inside it open "read_value": the outer
    # name stays.
    token = _operation.set(_operation.get() or name)
    try:
        yield
    finally:
        _operation.reset(token)


def record_transfer(source: Device, target: Device, nbytes: int, messages: int = 1) -> None:
    """Count a move, right after its bytes were copied; within one device nothing crosses."""
    if source is target:
        return
    with _open_lock:
        ledgers = _own.get() or tuple(_open)
    for ledger in ledgers:
        ledger.add((_operation.get() or "move", source.name, target.name), nbytes, messages)


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


@entity
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
    # Move, and count the bytes that were copied.
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
    combine: np.ufunc | None,
) -> None:
    """``out[...] = values``, or ``combine(out, values)``, for all ``regions`` as one message."""
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
    ``rows`` [n] must be in range, and ``split`` deals them to the parts.
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
    """Write the rows of all portions, and add the bytes that each part gave to ``moved``."""
    # scratch holds the rows part after part; out[i] is its row sources[i]. Two parts that hold the
    # places [1] and [0, 2] give sources = [1, 0, 2].
    filled, sources = 0, np.empty(len(out), np.int64)
    for part, local, places in portions:
        taken = out if places is None else scratch[filled : filled + len(local)]
        _take(parts[part].array, local, taken)
        moved[part] += value_nbytes(taken)
        if places is not None:
            sources[places] = np.arange(filled, filled + len(local))
            filled += len(local)
    if filled:
        _take(scratch, sources, out)


@contextmanager
def _scratch(count: int, like: Array) -> Iterator[Array]:
    """Provide rows like ``like``'s in memory that the thread keeps, since new pages are slow."""
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
    """Return the results of ``work(start, stop)`` for the rows of ``out``, on two threads if many."""
    is_much = out.nbytes >= _MUCH_NBYTES and not out.dtype.hasobject
    half = len(out) // 2 if is_much else 0
    # NumPy copies without the interpreter's lock, so another thread does one half.
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
