"""Memory that is given back: scratch files, and read pages of mapped files.

A scratch file holds data that is too large for memory and is needed again at once, in no order. It
has no name, and its room is free again once it is closed, also after a kill.

The system counts the parts of maps that were read as the process's memory until they are given back
(``HeldPages``).
"""

import mmap
import os
import tempfile
from collections.abc import Iterable
from threading import RLock

from shardvar.forks import new_lock
from shardvar.records import field, mutable
from shardvar.storage.posix import reading, writing


def temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory()


def shareable_pages(nbytes: int) -> int:
    """Return the descriptor of a file without a name, which the system removes with its last process."""
    if hasattr(os, "memfd_create"):  # whose size no mounted file system limits
        descriptor = os.memfd_create("shardvar")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, nbytes)
    return descriptor


def map_pages(descriptor: int, nbytes: int) -> mmap.mmap:
    """Map the pages of such a file, which all processes that have it share."""
    return mmap.mmap(descriptor, nbytes)


def map_scratch(blocks: Iterable[memoryview]) -> memoryview:
    """Return a memory map of a temporary file with the bytes of the blocks, at least one."""
    with tempfile.TemporaryFile() as file:
        for block in blocks:
            file.write(block)
        file.flush()
        # The map keeps the file after its descriptor is closed.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class ScratchFile:
    """A temporary file that is written and read at any place."""

    def __init__(self) -> None:
        # Without a buffer, so that threads that read do not meet in one.
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by close

    def write(self, start: int, data: bytes) -> None:
        rest = memoryview(data)
        with writing(tempfile.gettempdir()):
            while rest:
                written = os.pwrite(self._file.fileno(), rest, start)
                rest, start = rest[written:], start + written

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from a place on; what was never written is left as it is."""
        with reading(tempfile.gettempdir()):
            while buffer and (count := os.preadv(self._file.fileno(), [buffer], start)):
                buffer, start = buffer[count:], start + count

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "ScratchFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_MOST_HELD = 64 << 20  # bytes of maps that may be held

_LEAST_NBYTES = 128 << 10
"""Bytes that a read holds at least: the system maps the pages around it too."""


@mutable
class HeldPages:
    """The maps that were read, whose memory is given back in time."""

    nbytes: int = 0  # bytes that may be held
    files: dict[int, mmap.mmap] = field(default_factory=dict)  # the maps, by their identity
    lock: RLock = field(default_factory=new_lock)  # Guards both

    def add(self, view: memoryview, nbytes: int) -> None:
        """Note that bytes of a map were read; give the memory of all maps back if that is much."""
        file = view.obj
        if not isinstance(file, mmap.mmap):
            return
        with self.lock:
            self.files[id(file)] = file
            self.nbytes += max(nbytes, _LEAST_NBYTES)
            if self.nbytes < _MOST_HELD:
                return
            files, self.files, self.nbytes = self.files, {}, 0
        if hasattr(mmap, "MADV_DONTNEED"):
            for file in files.values():
                file.madvise(mmap.MADV_DONTNEED)
