"""A file that is read mostly forwards, a few bytes at a time."""

from dataclasses import dataclass

from shardvar.storage.protocol import ReadableFile

WINDOW_NBYTES = 1 << 16
"""The bytes of one read: many headers of small members at once, or one header of a large member."""


@dataclass(slots=True)
class Window:
    """A file, and the bytes of it that were read last."""

    file: ReadableFile
    """The file."""
    most: int = WINDOW_NBYTES
    """The bytes that are read at once, unless more are asked for."""
    start: int = 0
    """The first byte that is held, in bytes of the file."""
    data: bytes = b""
    """The bytes that are held."""

    def read(self, start: int, nbytes: int) -> bytes:
        """Return the bytes [start, start + nbytes) of the file."""
        begin = start - self.start
        if begin < 0 or begin + nbytes > len(self.data):
            # Not past the end of the file, unless the caller asks for bytes there: only then is a
            # lack of bytes an error.
            room = max(self.file.size - start, 0)
            self.data = self.file.read(start, max(min(room, self.most), nbytes))
            self.start, begin = start, 0
        return self.data[begin : begin + nbytes]
