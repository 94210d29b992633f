"""The data files of an open checkpoint, few of them open at a time, and whether a writer replaced it meanwhile."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardvar.errors import ArgumentError, CorruptCheckpoint, MissingFile
from shardvar.storage.protocol import ReadableFile, Storage

OPEN_FILES = 64
"""Files that are held open at a time, of which a process may have 256 on some systems."""

ATTEMPTS = 16
"""Times that a checkpoint is opened, where each time a writer replaces it meanwhile, before that is called an error."""


def is_replaced(storage: Storage, name: str, file: ReadableFile) -> bool:
    """Whether another file than ``file``, which is open, has that name now; one that is gone is not replaced."""
    try:
        other = storage.open(name)
    except MissingFile:
        return False
    try:
        return other.stamp != file.stamp
    finally:
        other.close()


def replaced(name: str) -> CorruptCheckpoint:
    """What a reader is told who came between the files of two checkpoints."""
    return CorruptCheckpoint(f"{name} was replaced while the checkpoint was being read.", "Open the checkpoint again.")


@dataclass(slots=True)
class DataFiles:
    """Files by their number; safe to use from several threads."""

    storage: Storage
    """The directory that they are in."""
    names: Sequence[str]
    """Their bare names."""
    _open: OrderedDict[int, ReadableFile] = field(default_factory=OrderedDict)
    _stamps: dict[int, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_closed: bool = False

    def open(self, number: int) -> ReadableFile:
        """A file; ``CorruptCheckpoint`` where another has taken its place since it was opened first.

        The one that was asked for least recently makes room. It is let go of and not closed: a thread may be in it.
        """
        with self._lock:
            if self._is_closed:
                raise ArgumentError("The checkpoint was closed.", "Open it again.")
            file = self._open.pop(number, None) or self.storage.open(self.names[number])
            if self._stamps.setdefault(number, file.stamp) != file.stamp:
                raise replaced(file.name)
            self._open[number] = file
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
            return file

    def close(self) -> None:
        """Give all files back; maps of them stay valid."""
        with self._lock:
            self._is_closed = True
            while self._open:
                self._open.popitem()[1].close()
