"""Compressed payloads, and checksums by their names: the one module that imports zstandard, xxhash and
blake3, when the first one is needed.

Deltas of other programs have them (``verbs.delta.dialects``), and nodes of databases of Orbax
(``zarr.database``). A stream is read a portion at a time.
Its structure is passed over before (``wire.zstd_frame``), since the decoder says neither that a
frame is cut nor that something follows it.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from shardvar.errors import MalformedCheckpoint, MissingExtra, UnsupportedError
from shardvar.extras import missing_extra
from shardvar.wire.damage import invalid, malformed, past_limit
from shardvar.wire.zstd_frame import MAX_WINDOW_NBYTES, ReadPayload, read_frame

LEVEL = 1
"""The level of zstd, as the programs have it that write deltas."""
_SKIPPED_NBYTES = 1 << 20


class StreamChecksum(Protocol):
    """A checksum of bytes that come one portion after the other."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Take more bytes."""

    def hexdigest(self) -> str:
        """Return the checksum of all bytes so far."""


class _Adler32:
    """Adler-32 in eight digits."""

    def __init__(self) -> None:
        self._value = 1

    def update(self, data: bytes | memoryview, /) -> None:
        """Take more bytes."""
        self._value = zlib.adler32(data, self._value)

    def hexdigest(self) -> str:
        """Return the checksum of all bytes so far."""
        return f"{self._value:08x}"


CHECKSUMS: dict[str, tuple[int, str]] = {
    "adler32": (8, ""),
    "sha256": (64, ""),
    "xxh3-128": (32, "xxhash"),
    "blake3": (64, "blake3"),
}
"""The checksums by name: their hexadecimal digits, and the package that they need."""


def new_checksum(name: str) -> StreamChecksum:
    """Return a new checksum of that name; ``MissingExtra`` without its package.

    >>> checksum = new_checksum("adler32")
    >>> checksum.update(b"abc")
    >>> checksum.hexdigest()
    '024d0127'
    """
    if name not in CHECKSUMS:
        raise UnsupportedError(
            f"The checksum {name!r} is not known: {', '.join(CHECKSUMS)} are.", "Update shardvar."
        )
    package = CHECKSUMS[name][1]
    if not package:
        return _Adler32() if name == "adler32" else hashlib.sha256()
    made: StreamChecksum
    try:
        if package == "xxhash":
            import xxhash

            made = xxhash.xxh3_128()
        else:
            import blake3

            made = blake3.blake3()
    except ImportError:
        raise _missing(f"The checksum {name}", package) from None
    return made


def _zstandard(extra: str = "deltas") -> Any:
    """Return the module; ``MissingExtra`` if it is not installed."""
    try:
        import zstandard
    except ImportError:
        raise _missing("Zstandard", "zstandard", extra) from None
    return zstandard


def _missing(what: str, package: str, extra: str = "deltas") -> MissingExtra:
    return missing_extra(f"{what} needs the package {package}, which is not installed.", extra)


def check_installed() -> None:
    """Raise ``MissingExtra`` unless frames of Zstandard can be read and written."""
    _zstandard()


class Stream:
    """The content of one frame of Zstandard, from its beginning on."""

    def __init__(self, read: ReadPayload, nbytes: int, extra: str = "deltas") -> None:
        self.content_nbytes = read_frame(read, nbytes)
        """The bytes of the content, if the frame tells them."""
        module = _zstandard(extra)
        self._errors = module.ZstdError
        decoder = module.ZstdDecompressor(max_window_size=MAX_WINDOW_NBYTES)
        self._reader = decoder.stream_reader(_File(read, nbytes))

    def read(self, nbytes: int) -> bytes:
        """Return the next bytes, exactly so many."""
        parts, missing = [], nbytes
        while missing:
            part = self._some(missing)
            if not part:
                raise invalid(f"A frame unpacks to {missing} bytes fewer than are due.")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def skip(self, nbytes: int) -> None:
        """Pass over the next bytes."""
        while nbytes:
            nbytes -= len(self.read(min(nbytes, _SKIPPED_NBYTES)))

    def finish(self) -> None:
        """Raise ``InvalidCheckpoint`` if there are more bytes."""
        if self._some(1):
            raise invalid("A frame unpacks to more bytes than are due.")

    def portions(self) -> Iterator[bytes]:
        """Yield the rest."""
        while part := self._some(_SKIPPED_NBYTES):
            yield part

    def _some(self, nbytes: int) -> bytes:
        try:
            data: bytes = self._reader.read(nbytes)
        except self._errors as error:
            raise _damaged(error) from None
        return data


def unpack_frame(octets: bytes, most: int) -> bytes:
    """Return the content of a frame in a database of Orbax; an error if it has more than ``most``
    bytes."""

    def read(start: int, nbytes: int) -> bytes:
        return octets[start : start + nbytes]

    said, parts = read_frame(read, len(octets)), list[bytes]()
    if said is None or said <= most:
        room = most
        for part in Stream(read, len(octets), "orbax").portions():
            parts.append(part)
            room -= len(part)
            if room < 0:
                break
        else:
            return b"".join(parts)
    raise past_limit(f"A frame unpacks to more than {most} bytes", "MAX_NODE_EXPANSION")


def _damaged(error: Exception) -> MalformedCheckpoint:
    return malformed(f"A frame of Zstandard cannot be unpacked ({error}).")


class _File:
    """The bytes of a frame, as a file for the decoder."""

    def __init__(self, read: ReadPayload, nbytes: int) -> None:
        self._read, self._nbytes, self._at = read, nbytes, 0

    def read(self, nbytes: int) -> bytes:
        """Return the next bytes; none at the end."""
        count = min(nbytes, self._nbytes - self._at)
        data = self._read(self._at, count) if count > 0 else b""
        self._at += len(data)
        return data


class Compressor:
    """One frame of Zstandard that is written; its header has the bytes of the content."""

    def __init__(self, nbytes: int, write: Callable[[bytes], None]) -> None:
        packer = _zstandard().ZstdCompressor(level=LEVEL)
        self._packer, self._write = packer.compressobj(size=nbytes), write

    def add(self, data: bytes | memoryview) -> None:
        """Pack more bytes."""
        self._write(self._packer.compress(data))

    def finish(self) -> None:
        """End the frame."""
        self._write(self._packer.flush())
