"""Files in memory, in the place of a directory."""

from shardvar.errors import MissingFile


class MemoryStorage:
    """The part of a storage that a format needs for reading, over a dictionary of files."""

    path = "memory"
    traits = None

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def names(self) -> list[str]:
        return sorted(self.files)

    def stamp(self, name: str) -> str | None:
        return "" if name in self.files else None

    def open(self, name: str) -> "MemoryFile":
        if name not in self.files:
            raise MissingFile(f"{name} is not there.", "Look for it.")
        return MemoryFile(name, self.files[name])


class MemoryFile:
    """One of these files; a read past its end is a bug of the format that asks for it."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.data, self.size, self.stamp = name, data, len(data), ""

    def read(self, start: int, nbytes: int) -> bytes:
        assert start >= 0 and start + nbytes <= self.size, (
            "refused by the format before the storage must"
        )
        return self.data[start : start + nbytes]

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = self.read(start, len(buffer))

    def map(self) -> memoryview:
        return memoryview(self.data)

    def close(self) -> None:
        pass
