"""Large tensors whose bytes are the same on both sides, found by several threads before any value is looked at.

Most of what is compared is equal. A tensor that both sides have in one payload, as it is in the file, is read in blocks
of both by whichever thread is free, several tensors at a time. What is unlike, damaged, or stored in another way is
left to the comparison of values, which reads it again and says how it differs.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing

import numpy as np

from shardvar.checkpoint.blocks import Blocks
from shardvar.engine.evidence import Evidence
from shardvar.engine.pool import BLOCK_NBYTES, Progress, block_ranges, map_ahead, thread_buffer
from shardvar.errors import READ_ERRORS

_PORTION = BLOCK_NBYTES // 4
"""Bytes of either side that are compared at a time; both are in the cache then."""

_Sides = tuple[Evidence, Evidence]


def rows_of_same_bytes(a: Blocks, b: Blocks, pairs: Mapping[int, int], progress: Progress) -> set[int]:
    """Return the tensors of ``a`` whose bytes are those of their partners in ``b``, both verified.

    Partners are of one dtype and shape. ``progress`` is called with the bytes of both sides.
    """
    sides: dict[int, _Sides] = {}
    same, unlike = set[int](), set[int]()
    is_remote = any(getattr(each.source, "traits", None) is not None for each in (a, b))

    def portions() -> Iterator[tuple[int, int, int]]:
        for row, other in pairs.items():
            first, second = a.payload(row), b.payload(other)
            if first is not None and second is not None:
                sides[row] = first, second
                for start, stop in block_ranges(0, int(a.nbytes[row]), BLOCK_NBYTES if is_remote else _PORTION):
                    if row not in unlike:
                        yield row, start, stop

    def compare(portion: tuple[int, int, int]) -> tuple[int, int]:
        row, start, stop = portion
        if row not in unlike and not _are_same(sides[row], start, stop):
            unlike.add(row)
        return row, stop

    with closing(map_ahead(compare, portions())) as compared:
        for row, stop in compared:
            if stop == a.nbytes[row] and row not in unlike and all(map(_is_whole, sides.pop(row))):
                same.add(row)
                progress(2 * stop)
    return same


def _are_same(sides: _Sides, start: int, stop: int) -> bool:
    """Return True if both have the same bytes in ``[start, stop)``; False also if one of them cannot be read."""
    blocks = [thread_buffer(stop - start, use) for use in ("unit", "span")]
    try:
        for evidence, block in zip(sides, blocks, strict=True):
            evidence.read(0, start, block)
    except READ_ERRORS:
        return False
    first, second = (np.frombuffer(block, np.uint8) for block in blocks)
    return np.array_equal(first, second)


def _is_whole(evidence: Evidence) -> bool:
    """Return True if what was read of a payload has the checksum that the index gives."""
    try:
        evidence.check()
    except READ_ERRORS:
        return False
    return True
