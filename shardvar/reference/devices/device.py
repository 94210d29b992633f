"""Simulated devices and clusters of them: a device is a name and a memory whose limit is enforced.

A device is an identity, not a value: two devices of one name are two memories. Its only mutable
state is the count of bytes in use, which a lock guards.

1. ``account`` counts an array when it comes to live on a device, and attaches a finalizer to it.
2. The bytes are given back when the array is garbage-collected. A view keeps the array that owns
   the memory alive, so views are covered.
3. Finalizers may run at any point, even while this thread holds the lock. So a finalizer only
   appends its bytes to a deque, and the next count subtracts them under the lock.

Names are TensorFlow's: ``/job:ps/replica:0/task:1/device:CPU:0`` or short ``ps:1``,
``worker:0/GPU:1``, ``GPU:0``. A ``Cluster`` holds the devices of parameter servers, of workers, and
of the replicas of each worker.
"""

import gc
import re
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import RLock
from typing import Self

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, DeviceFull
from shardvar.forks import new_lock
from shardvar.layout.dtypes import Array
from shardvar.limits import MAX_DEVICES

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


@dataclass(slots=True)
class _Memory:
    """The bytes in use on one device."""

    used: int = 0
    peak: int = 0
    lock: RLock = field(default_factory=new_lock)
    released: deque[int] = field(default_factory=deque)

    def drain(self) -> int:
        """Subtract what finalizers gave back; return the bytes in use. The caller has the lock."""
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


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
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
        """Count an array as living here, from now until it is garbage-collected or the returned
        finalizer is called."""
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
    # What a name leaves out is TensorFlow's default: "/job:ps/task:3" is replica 0, and its CPU 0.
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


@dataclass(frozen=True, slots=True, eq=False)
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
