"""Compressed payloads, and checksums by their names. No other module imports zstandard, xxhash and
blake3, and this one does when the first one is needed.

Deltas of other programs have them (``verbs.delta.dialects``), and nodes of databases of Orbax
(``zarr.database``). A stream is read a portion at a time.

One frame of Zstandard (RFC 8878):

    frame    magic | header | block, block, ... | checksum (4, by the header)
    header   descriptor (1) | window (1, or none) | dictionary (0, 1, 2 or 4) | size of the content
             (0, 1, 2, 4 or 8)
    block    is it the last (1 bit) | kind (2 bits) | size (21 bits) | bytes

A decoder stops at the end of a frame, even if bytes follow, and of a frame that is cut it returns the
bytes that there are. So a pass over the structure finds the end before, without decoding: one frame must be all
there is. It also finds the bytes of the content, before a decoder allocates any.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from shardvar.errors import MissingExtra
from shardvar.extras import missing_extra
from shardvar.wire.damage import invalid, malformed, past_limit

MAGIC = b"\x28\xb5\x2f\xfd"
MAX_WINDOW_NBYTES = 1 << 27
"""The most memory of a decoder, as the decoder of the real library allows by default."""
_MAX_HEADER_NBYTES = 18
_BLOCK_NBYTES = 1 << 17
"""The most bytes that a block becomes."""
_DICTIONARY, _CONTENT = (0, 1, 2, 4), (0, 2, 4, 8)
"""The bytes of these two fields, by two bits of the descriptor."""
_RAW, _RLE, _COMPRESSED = 0, 1, 2
_READ_NBYTES = 1 << 16

ReadPayload = Callable[[int, int], bytes]
LEVEL = 1
"""The level of zstd of the programs that write deltas."""
_SKIPPED_NBYTES = 1 << 20


class StreamChecksum(Protocol):
    def update(self, data: bytes | memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


class _Adler32:
    def __init__(self) -> None:
        self._value = 1

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = zlib.adler32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


CHECKSUMS: dict[str, tuple[int, str]] = {
    "adler32": (8, ""),
    "sha256": (64, ""),
    "xxh3-128": (32, "xxhash"),
    "blake3": (64, "blake3"),
}
"""The checksums by name: their hexadecimal digits, and the package that they need."""


def new_checksum(name: str) -> StreamChecksum:
    """Return a new checksum of a name in ``CHECKSUMS``; ``MissingExtra`` without its package.

    >>> checksum = new_checksum("adler32")
    >>> checksum.update(b"abc")
    >>> checksum.hexdigest()
    '024d0127'
    """
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
    try:
        import zstandard
    except ImportError:
        raise _missing("Zstandard", "zstandard", extra) from None
    return zstandard


def _missing(what: str, package: str, extra: str = "deltas") -> MissingExtra:
    return missing_extra(f"{what} needs the package {package}, which is not installed.", extra)


def check_installed() -> None:
    _zstandard()


def read_frame(read: ReadPayload, nbytes: int) -> int | None:
    """Return the bytes of the content of the frame that fills a payload, or None if its header
    does not have them.

    >>> data = MAGIC + bytes([0b00100000, 3, 0b00011001, 0, 0]) + b"abc"
    >>> read_frame(lambda start, count: data[start : start + count], len(data))
    3
    """
    head = read(0, min(_MAX_HEADER_NBYTES, nbytes))
    if not head.startswith(MAGIC) or len(head) < len(MAGIC) + 2:
        raise malformed(f"It does not begin as a frame of Zstandard: {head[:4].hex()}.")
    descriptor, at = head[4], 5
    if descriptor & 0b1000:
        raise malformed("The frame has a bit that no version of Zstandard uses.")
    is_single = bool(descriptor & 0b100000)
    window = 0
    if not is_single:
        power, fraction = head[at] >> 3, head[at] & 7
        window, at = (1 << (10 + power)) + (1 << (10 + power)) // 8 * fraction, at + 1
    dictionary = _DICTIONARY[descriptor & 3]
    if any(head[at : at + dictionary]):
        raise invalid("The frame needs a dictionary, which is not with it.")
    at += dictionary
    size = _CONTENT[descriptor >> 6] or int(is_single)
    field = head[at : at + size]
    at += size
    if len(field) < size or at >= nbytes:
        raise malformed("The header of the frame is cut.")
    content = int.from_bytes(field, "little") + (256 if size == 2 else 0) if size else None
    window = window if content is None or not is_single else content
    if window > MAX_WINDOW_NBYTES:
        raise invalid(
            f"The frame needs a window of {window} bytes; {MAX_WINDOW_NBYTES} are allowed."
        )
    at, most = _pass_blocks(read, at, nbytes)
    at += 4 if descriptor & 0b100 else 0
    if at > nbytes:
        raise malformed("The frame is cut in its checksum.")
    if at < nbytes:
        raise invalid(f"{nbytes - at} bytes follow the frame.")
    if content is not None and content > most:
        raise invalid(f"The frame claims {content} bytes, and its blocks have at most {most}.")
    return content


def _pass_blocks(read: ReadPayload, at: int, nbytes: int) -> tuple[int, int]:
    """Return the first byte behind the blocks, and the most bytes that they become."""
    start, data, most, is_last = at, b"", 0, False
    while not is_last:
        # Frames of zeros have blocks of four bytes: one read has many.
        if not start <= at <= start + len(data) - 3:
            start, data = at, read(at, min(_READ_NBYTES, nbytes - at)) if at < nbytes else b""
        place = at - start
        head = data[place : place + 3]
        if len(head) < 3:
            raise malformed("The frame is cut: its last block is missing.")
        word = int.from_bytes(head, "little")
        is_last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
        if kind not in (_RAW, _RLE, _COMPRESSED) or size > _BLOCK_NBYTES:
            raise malformed("A block of the frame is of no known kind, or too large.")
        stored = 1 if kind == _RLE else size
        most += _BLOCK_NBYTES if kind == _COMPRESSED else size
        at += 3 + stored
        if at > nbytes:
            raise malformed("The frame is cut in a block.")
    return at, most


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
        while nbytes:
            nbytes -= len(self.read(min(nbytes, _SKIPPED_NBYTES)))

    def finish(self) -> None:
        """Raise ``InvalidCheckpoint`` if there are more bytes."""
        if self._some(1):
            raise invalid("A frame unpacks to more bytes than are due.")

    def portions(self) -> Iterator[bytes]:
        while part := self._some(_SKIPPED_NBYTES):
            yield part

    def _some(self, nbytes: int) -> bytes:
        try:
            data: bytes = self._reader.read(nbytes)
        except self._errors as error:
            raise malformed(f"A frame of Zstandard cannot be unpacked ({error}).") from None
        return data


def unpack_frame(octets: bytes, most: int) -> bytes:
    """Return the content of a frame in a database of Orbax, of at most ``most`` bytes."""

    def read(start: int, nbytes: int) -> bytes:
        return octets[start : start + nbytes]

    claim, parts = read_frame(read, len(octets)), list[bytes]()
    if claim is None or claim <= most:
        room = most
        for part in Stream(read, len(octets), "orbax").portions():
            parts.append(part)
            room -= len(part)
            if room < 0:
                break
        else:
            return b"".join(parts)
    raise past_limit(f"A frame unpacks to more than {most} bytes", "MAX_NODE_EXPANSION")


class _File:
    def __init__(self, read: ReadPayload, nbytes: int) -> None:
        self._read, self._nbytes, self._at = read, nbytes, 0

    def read(self, nbytes: int) -> bytes:
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
        self._write(self._packer.compress(data))

    def finish(self) -> None:
        self._write(self._packer.flush())
