"""Parts of maps of files that were read: the system counts them as the process's memory until they
are given back."""

import mmap
from dataclasses import dataclass, field
from threading import RLock

from shardvar.forks import new_lock

_MOST_HELD = 64 << 20
"""Bytes of maps that may be held."""


@dataclass(slots=True)
class HeldPages:
    """The parts of maps that are held, and are given back in time."""

    nbytes: int = 0
    """Bytes that may be held."""
    spans: list[tuple[mmap.mmap, int, int]] = field(default_factory=list)
    """The maps, the first bytes and the stops of the parts that were read."""
    lock: RLock = field(default_factory=new_lock)
    """Guards both."""

    def add(self, view: memoryview, start: int, stop: int) -> None:
        """Note that bytes of a map were read; give all back if they are many.

        Bytes that are read again come from the system's cache of files.
        """
        if not isinstance(view.obj, mmap.mmap):
            return
        with self.lock:
            self.spans.append((view.obj, start, stop))
            self.nbytes += stop - start
            if self.nbytes < _MOST_HELD:
                return
            spans, self.spans, self.nbytes = self.spans, [], 0
        if hasattr(mmap, "MADV_DONTNEED"):
            for file, begin, end in spans:
                begin = begin // mmap.PAGESIZE * mmap.PAGESIZE
                file.madvise(mmap.MADV_DONTNEED, begin, end - begin)
