"""A file that is read mostly forwards, a few bytes at a time."""

from dataclasses import dataclass

from shardvar.storage.protocol import ReadableFile, Traits

WINDOW_NBYTES = 1 << 16
"""The bytes of one read: many headers of small members at once, or one header of a large member."""

_FEW_NBYTES = 1 << 12
"""The bytes that are read after a jump: more than most headers have."""


@dataclass(slots=True)
class Window:
    """A file, and the bytes of it that were read last."""

    file: ReadableFile
    """The file."""
    most: int = WINDOW_NBYTES
    """The bytes that are read at once, unless more are asked for."""
    near: int | None = None
    """The longest jump after which so many are read; after a longer one only a few are. None if all
    jumps count as short."""
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
            jump = start - (self.start + len(self.data))
            is_far = self.near is not None and not 0 <= jump <= self.near
            most = min(self.most, _FEW_NBYTES) if is_far else self.most
            self.data = self.file.read(start, max(min(room, most), nbytes))
            self.start, begin = start, 0
        return self.data[begin : begin + nbytes]


def structure_of(file: ReadableFile, traits: Traits | None) -> Window:
    """Return a window for one pass over the structure of a file that skips payloads.

    A payload that takes no longer to read than a request is read and dropped, so that structures
    with many small payloads take few requests, one after the other; large payloads are jumped over.
    """
    most = WINDOW_NBYTES if traits is None else traits.small_nbytes
    return Window(file, most, most)
