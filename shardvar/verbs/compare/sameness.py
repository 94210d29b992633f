"""Large tensors whose bytes are the same on both sides, found by several threads before any value
is looked at.

Most of what is compared is equal. What is unlike or damaged is left to the comparison of values,
which reads it again and says how it differs.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing

import numpy as np

from shardvar.engine.pool import Progress, map_ahead
from shardvar.layout.dtypes import Array
from shardvar.verbs.compare.pairs import ReadStretch, SideError, Sides, Stretch


def rows_of_same_bytes(sides: Mapping[int, Sides], progress: Progress) -> set[int]:
    """Return the tensors whose bytes equal the other side's, both verified; each is of one dtype on
    both.

    ``progress`` is called with the bytes of both sides.
    """
    nbytes = dict.fromkeys(sides, 0)
    same, unlike = set[int](), set[int]()

    def portions() -> Iterator[tuple[int, ReadStretch | None]]:
        for row, each in sides.items():
            try:
                for read in each.portions():
                    # Another thread has found a difference: the rest need not be read.
                    if row in unlike:
                        break
                    yield row, read
            except SideError:
                unlike.add(row)
            yield row, None

    def compare(portion: tuple[int, ReadStretch | None]) -> tuple[int, int | None]:
        row, read = portion
        if read is None or row in unlike:
            return row, None
        stretch = _read(read)
        if stretch is None or not _are_same(stretch):
            unlike.add(row)
            return row, None
        return row, stretch.nbytes

    with closing(map_ahead(compare, portions())) as compared:
        for row, count in compared:
            if count is not None:
                nbytes[row] += count
            elif row not in unlike and _is_whole(sides[row]):
                same.add(row)
                progress(nbytes[row])
    return same


def _read(read: ReadStretch) -> Stretch | None:
    """Return the portion; None if one side of it cannot be read."""
    try:
        return read()
    except SideError:
        return None


def _are_same(stretch: Stretch) -> bool:
    return np.array_equal(_words(stretch.a), _words(stretch.b))


def _words(array: Array) -> Array:
    """The bytes of a flat array, eight at a time where that is possible: comparing takes a bool for
    each element."""
    return array.view(np.uint64 if array.nbytes % 8 == 0 else np.uint8)


def _is_whole(sides: Sides) -> bool:
    """Return True if what was read of both has the checksums that the indexes give."""
    try:
        sides.check()
    except SideError:
        return False
    return True
