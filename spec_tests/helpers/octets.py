"""Files in memory that are read in ranges."""

from collections.abc import Callable


def reads_of(
    octets: bytes,
    start: int = 0,
    stop: int | None = None,
    seen: list[tuple[int, int]] | None = None,
) -> Callable[[int, int], bytes]:
    """Return what reads a range of a file, and fails for one that reaches out of it, or out of the
    part that is given. Each (start, bytes) is noted in ``seen``."""
    last = len(octets) if stop is None else stop

    def read(begin: int, nbytes: int) -> bytes:
        assert start <= begin <= begin + nbytes <= last
        if seen is not None:
            seen.append((begin, nbytes))
        return octets[begin : begin + nbytes]

    return read
