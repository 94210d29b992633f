"""A resource, "a pair of a Tensor and a mutex", and the writes that may be done to it.

R-RES-1 (RFC 003): "What's stored in the device's resource manager is a pair of a Tensor and a mutex." Here the tensor
is a buffer on a simulated device, which nobody but these functions ever sees. Reads copy out of it, writes change it in
place: what RFC 003 calls copy-on-read, and as it asks, "no mutation is done to the Tensor returned by a
read_variable_op after it's been read".

A write is planned, then committed. Planning does everything that may fail: casting, comparing shapes, moving operands
to the device. Committing holds the mutexes of all resources that are written, in one order for all threads, and cannot
fail; so a write to many shards happens whole or not at all, and concurrent ones lose nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from threading import RLock
from typing import Any

import numpy as np

from shardvar.devices import Buffer, Device, adopt, place
from shardvar.layout.dtypes import Array

_serials = count()
_serial_of = attrgetter("serial")


class Resource:
    """The pair. Two resources never share a buffer."""

    __slots__ = ("__weakref__", "buffer", "mutex", "serial")

    def __init__(
        self, value: Array, device: Device | None = None, *, source: Device | None = None, is_own: bool = False
    ) -> None:
        self.buffer: Buffer = adopt(value, device) if is_own else place(value, device, source=source)
        """The tensor; writes replace it only where its size changes."""
        self.mutex = RLock()
        """Held by whoever reads or writes the buffer."""
        self.serial = next(_serials)
        """The order in which mutexes are taken, so that two writers of many resources never wait for each other."""

    @property
    def device(self) -> Device:
        """Where it lives."""
        return self.buffer.device

    @property
    def array(self) -> Array:
        """The memory itself: for whoever holds the mutex."""
        return self.buffer.array


@dataclass(frozen=True, slots=True)
class Write:
    """A write that is planned: nothing about it can fail any more."""

    resources: tuple[Resource, ...]
    """What it writes."""
    apply: Callable[[], Any]
    """Does it; the mutexes are held."""


@contextmanager
def holding(resources: Sequence[Resource]) -> Iterator[None]:
    """Hold the mutexes of all, whatever their order here."""
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
    """Do all the writes while nobody reads or writes in between."""
    with holding([resource for write in writes for resource in write.resources]), np.errstate(all="ignore"):
        for write in writes:
            write.apply()
