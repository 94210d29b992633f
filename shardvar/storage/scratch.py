"""Scratch files: data that is too large for memory and is needed again at once, in no order."""

import mmap
import tempfile
from collections.abc import Iterable


def map_scratch(blocks: Iterable[memoryview]) -> memoryview:
    """Return a memory map of a temporary file with the bytes of the blocks, at least one.

    The file has no name, and its room is free again once the last view of it is gone, also after a
    kill.

    >>> bytes(map_scratch([memoryview(b"ab"), memoryview(b"c")]))
    b'abc'
    """
    with tempfile.TemporaryFile() as file:
        for block in blocks:
            file.write(block)
        file.flush()
        # The map keeps the file after its descriptor is closed.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
