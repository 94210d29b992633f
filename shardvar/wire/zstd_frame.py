"""The structure of one frame of Zstandard (RFC 8878), without decoding its blocks.

    frame    magic | header | block, block, ... | checksum (4, if the header says so)
    header   descriptor (1) | window (1, or none) | dictionary (0, 1, 2 or 4) | size of the content
             (0, 1, 2, 4 or 8)
    block    is it the last (1 bit) | kind (2 bits) | size (21 bits) | bytes

A decoder stops at the end of a frame and does not say what follows, and of a frame that is cut it
returns what there is. So this pass finds the end: one frame must be all there is. It also says how
many bytes the content has, before a decoder allocates any.
"""

from collections.abc import Callable

from shardvar.wire.damage import invalid, malformed

MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of a frame."""
MAX_WINDOW_NBYTES = 1 << 27
"""The memory of a decoder, at most, as the decoder of the real library allows by default."""
_MAX_HEADER_NBYTES = 18
_BLOCK_NBYTES = 1 << 17
"""The bytes that a block becomes, at most."""
_DICTIONARY, _CONTENT = (0, 1, 2, 4), (0, 2, 4, 8)
"""The bytes of these two fields, by two bits of the descriptor."""
_RAW, _RLE, _COMPRESSED = 0, 1, 2
_READ_NBYTES = 1 << 16

ReadPayload = Callable[[int, int], bytes]
"""Returns bytes of a payload by offset and count."""


def read_frame(read: ReadPayload, nbytes: int) -> int | None:
    """Return the bytes of the content of the one frame that a payload of ``nbytes`` is, None if its
    header does not have them; an error if it is not one.

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
        raise invalid(f"The frame says {content} bytes, and its blocks have at most {most}.")
    return content


def _pass_blocks(read: ReadPayload, at: int, nbytes: int) -> tuple[int, int]:
    """Return the first byte behind the blocks, and the bytes that they become at most."""
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
