"""Files in memory, all of whose bytes the fuzzer decides: as much of a ``Storage`` as readers ask
for."""

from dataclasses import dataclass, field

from shardvar.errors import IncompleteCheckpoint, InvalidCheckpoint, MissingFile
from shardvar.storage.protocol import FileStatus

SEPARATOR = b"\0<next file>\0"
"""Stands between the files of one input: the index, then the data files in the order in which they
are asked for."""


@dataclass(frozen=True)
class MemoryFile:
    """A file of some bytes."""

    name: str
    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def stamp(self) -> str:
        return self.name

    def read(self, start: int, nbytes: int) -> bytes:
        if start < 0 or nbytes < 0:
            raise ValueError(f"{nbytes} bytes at {start} are asked for")
        if start + nbytes > len(self.content):
            raise IncompleteCheckpoint(f"{self.name} ends before.", "")
        return self.content[start : start + nbytes]

    def read_into(self, start: int, buffer: memoryview) -> None:
        octets = buffer.cast("B")
        octets[:] = self.read(start, len(octets))

    def map(self) -> memoryview:
        return memoryview(self.content)

    def close(self) -> None:
        pass


@dataclass
class MemoryFolder:
    """A folder of a storage in memory."""

    storage: "MemoryStorage"
    prefix: str

    def open(self, name: str) -> MemoryFile:
        return self.storage.open_listed(self.prefix + name)

    def folder(self, name: str) -> "MemoryFolder":
        return MemoryFolder(self.storage, f"{self.prefix}{name}/")

    def status(self, name: str) -> FileStatus | None:
        try:
            return FileStatus(self.open(name).size, None, "")
        except MissingFile:
            return None


@dataclass
class MemoryStorage:
    """The files of one input: the first under a name of its own, the others under those that a
    reader asks for."""

    first: str
    content: bytes
    path: str = "/fuzz"
    local_path: str = "/fuzz"
    traits: None = None
    _names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pieces = self.content.split(SEPARATOR)
        self._names.append(self.first)

    def open(self, name: str) -> MemoryFile:
        if not name or set(name) & {"/", "\0"} or name in (".", ".."):
            raise InvalidCheckpoint(f"{name!r} is no bare name.", "")  # as LocalStorage does
        if name not in self._names and len(self._names) < len(self._pieces):
            self._names.append(name)
        return self.open_listed(name)

    def open_listed(self, path: str) -> MemoryFile:
        """Open a file of ``tree`` by its path."""
        if path not in self._names:
            raise MissingFile(f"There is no {path}.", "")
        return MemoryFile(f"{self.path}/{path}", self._pieces[self._names.index(path)])

    def names(self) -> list[str]:
        return sorted(self._names)

    def refreshed(self) -> "MemoryStorage":
        return self

    def status(self, name: str) -> FileStatus | None:
        try:
            return FileStatus(self.open(name).size, None, "")
        except MissingFile:
            return None

    def stamp(self, name: str) -> str | None:
        """The stamp of a file; no file of an input is ever replaced."""
        return f"{self.path}/{name}" if name in self._names else None

    def tree(self) -> dict[str, FileStatus]:
        """The files of an array of Zarr: its description, and then chunks, in folders below it."""
        found = (
            [*self._names, "t/.zarray", "t/0", "t/1"]
            if self.first == "_METADATA"
            else [*self._names, "c/0", "c/1"]
        )
        self._names = found[: len(self._pieces)]
        sizes = {name: len(self._pieces[position]) for position, name in enumerate(self._names)}
        return {name: FileStatus(size, None, f"{self.path}/{name}") for name, size in sizes.items()}

    def folder(self, name: str) -> "MemoryFolder":
        return MemoryFolder(self, f"{name}/")
