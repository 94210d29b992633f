"""Writes to resources: planned one by one, committed together. A resource is "a pair of a Tensor
and a mutex".

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
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np

from shardvar.forks import new_lock, unforked
from shardvar.layout.dtypes import Array
from shardvar.reference.devices import Buffer, Device, adopt, place

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
        """The device on which the buffer lives."""
        return self.buffer.device

    @property
    def array(self) -> Array:
        """The memory itself; the caller holds the mutex."""
        return self.buffer.array


@dataclass(frozen=True, slots=True)
class Write:
    """A planned write. Nothing that can fail is left to do."""

    resources: tuple[Resource, ...]
    """The resources that it writes."""
    apply: Callable[[], Any]
    """A function that performs the write; its caller holds the mutexes."""


@contextmanager
def holding(resources: Sequence[Resource]) -> Iterator[None]:
    """Hold the mutexes of all resources, in any order here.

    Sorted by serial, all threads take mutexes in one order. Without that, one thread could hold A
    and wait for B while another holds B and waits for A.
    """
    # A resource may be given twice, by two writes of one commit, and is locked once. What was
    # locked is released even where an interrupt comes between two of them.
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
    # second write would leave the first one done. A process that another thread forked meanwhile
    # would have parts of the writes.
    resources = [resource for write in writes for resource in write.resources]
    with holding(resources), np.errstate(all="ignore"), unforked:
        for write in writes:
            write.apply()
