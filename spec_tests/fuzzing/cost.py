"""Cost as the oracle: reading may take time and memory in proportion to the bytes, and no more.

The first byte of an input chooses the reader, and the others are what it reads. An input that takes
too long is read again, since other programs of the machine may have been in the way.
"""

import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

from shardvar.errors import ShardvarError

FREE_SECONDS, SECONDS_PER_BYTE = 0.5, 5e-5
"""CPU seconds: a reader takes about a microsecond a byte, and ten times that while its branches are
counted."""
FREE_NBYTES, NBYTES_PER_BYTE = 8 << 20, 300
"""Memory, as SECURITY.md states it."""
ATTEMPTS = 3


def read_within_budget(readers: list[Callable[[bytes], object]], data: bytes) -> None:
    """Read the input, and raise ``AssertionError`` if that takes more than its size allows."""
    read, content = readers[(data[0] if data else 0) % len(readers)], data[1:]
    allowed = FREE_SECONDS + SECONDS_PER_BYTE * len(content)
    times = []
    while not times or (times[-1] > allowed and len(times) < ATTEMPTS):
        times.append(_seconds(read, content))
    if min(times) > allowed:
        raise AssertionError(
            f"{len(content)} bytes take {min(times):.1f} s of CPU, and {allowed:.1f} s are allowed"
        )
    peak, most = _peak(read, content), FREE_NBYTES + NBYTES_PER_BYTE * len(content)
    if peak > most:
        raise AssertionError(
            f"{len(content)} bytes take {peak} bytes of memory, and {most} are allowed"
        )


def _seconds(read: Callable[[bytes], object], content: bytes) -> float:
    start = time.process_time()
    with suppress(ShardvarError):
        read(content)
    return time.process_time() - start


def _peak(read: Callable[[bytes], object], content: bytes) -> int:
    tracemalloc.start()
    try:
        with suppress(ShardvarError):
            read(content)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
