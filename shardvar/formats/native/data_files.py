"""The data files of an open native checkpoint: opened when needed, checked to have the size that the index says.

A file of another size is not the file that was written, and nothing is read from it. Whoever reads from a file holds
it: one that is let go of, because many others were opened since, is closed once nobody does.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event, Lock

from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingFile,
    StorageError,
)
from shardvar.layout.dtypes import Ints
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import COPY_AGAIN

_KEPT = 64
"""Files held open; a process may often have no more than 256."""


@dataclass(frozen=True, slots=True, eq=False)
class DataFiles:
    """The data files of one checkpoint, by number; safe to use from several threads."""

    storage: Storage
    """Where they are."""
    names: Sequence[str]
    """What they are called."""
    nbytes: Ints
    """[files] the size that each must have."""
    _open: OrderedDict[int, ReadableFile] = field(init=False, default_factory=OrderedDict)
    _maps: dict[int, memoryview] = field(init=False, default_factory=dict)
    _faults: dict[int, CheckpointError | None] = field(init=False, default_factory=dict)
    _closed: Event = field(init=False, default_factory=Event)
    _lock: Lock = field(init=False, default_factory=Lock)

    def file(self, number: int) -> ReadableFile:
        """A data file, open."""
        with self._lock:
            if self._closed.is_set():
                raise ArgumentError("The checkpoint was closed.", "Open it again.")
            file = self._open.get(number)
            if file is None:
                file = self._open[number] = self._opened(number)
                while len(self._open) > _KEPT:
                    self._open.popitem(last=False)
            self._open.move_to_end(number)
            return file

    def map(self, number: int) -> memoryview:
        """A data file as a memory map, the same one each time."""
        file = self.file(number)
        with self._lock:
            if number not in self._maps:
                self._maps[number] = file.map()
            return self._maps[number]

    def fault(self, number: int) -> CheckpointError | None:
        """What is wrong with a file, looked at once; None too where the machine keeps it from being looked at."""
        if number not in self._faults:
            self._faults[number] = self._look(number)
        return self._faults[number]

    def hold(self) -> bool:
        """Open the files, as many as are held; False where one of them is gone.

        A file that is open stays what it is when a new commit removes it, so the checkpoint stays whole for its reader.
        """
        return not any(isinstance(self.fault(number), MissingFile) for number in range(min(len(self.names), _KEPT)))

    def close(self) -> None:
        """Give the files back. Maps that were handed out stay valid."""
        with self._lock:
            self._closed.set()
            for file in self._open.values():
                file.close()
            self._open.clear()
            self._maps.clear()

    def _look(self, number: int) -> CheckpointError | None:
        try:
            self.file(number)
        except CheckpointError as error:
            return error
        except StorageError:
            return None  # no fault of the checkpoint's; whoever reads the file is told
        return None

    def _opened(self, number: int) -> ReadableFile:
        file, expected = self.storage.open(self.names[number]), int(self.nbytes[number])
        if file.size != expected:
            file.close()
            error = IncompleteCheckpoint if file.size < expected else InvalidCheckpoint
            raise error(f"{file.name} has {file.size} bytes, and the index says {expected}.", COPY_AGAIN)
        return file
