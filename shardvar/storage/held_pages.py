"""Parts of maps of files that were read: the system counts them as the process's memory until they
are given back."""

import mmap
from dataclasses import dataclass, field
from threading import RLock

from shardvar.forks import new_lock

_MOST_HELD = 64 << 20
"""Bytes of maps that may be held."""

_LEAST_NBYTES = 128 << 10
"""Bytes that a read holds at least: the system maps the pages around it too."""


@dataclass(slots=True)
class HeldPages:
    """The maps that were read, whose memory is given back in time."""

    nbytes: int = 0
    """Bytes that may be held."""
    files: dict[int, mmap.mmap] = field(default_factory=dict)
    """The maps, by their identity."""
    lock: RLock = field(default_factory=new_lock)
    """Guards both."""

    def add(self, view: memoryview, nbytes: int) -> None:
        """Note that bytes of a map were read; give the memory of all maps back if that is much.

        Bytes that are read again come from the system's cache of files.
        """
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
