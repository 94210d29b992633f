"""Panels: several blocks of a target that are made together, since each of them would pass over
much more of its sources.

    a matrix [32768, 32768] of bfloat16, transposed      a block of the target is 64 columns of the
                                                         source: 128 bytes of each row of 64 KiB
    a panel of eight blocks                              1 KiB of each row, in the same passes

Threads that need a panel make it together, part by part. Two panels are kept: blocks are asked for
in order, and one thread may still be at the end of the last one.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import RLock

import numpy as np

from shardvar.engine.lattices import Lattice
from shardvar.engine.pool import BLOCK_NBYTES, Together
from shardvar.engine.strides import Strided
from shardvar.forks import new_lock

_PANEL_NBYTES = 8 * BLOCK_NBYTES
"""Bytes of a panel: two of them are 64 MiB, a quarter of what a process may take."""

_MOST_PANELS = 2
"""Panels that are kept."""

_SPARSE = 2
"""A block is sparse if its sources extend over more than so many times its bytes."""


@dataclass(frozen=True, slots=True)
class PanelPart:
    """A part of the work that fills a block or a panel."""

    span: int
    """Bytes of its source from the first element to the last."""
    work: Callable[[], object]
    """The work."""


@dataclass(frozen=True, slots=True)
class Panels:
    """The panels that were made last, by the number of an entry and their first byte."""

    made: "OrderedDict[tuple[int, int], tuple[memoryview, Together]]" = field(
        default_factory=OrderedDict
    )
    """The bytes of each, and the work that fills them."""
    lock: RLock = field(default_factory=new_lock)
    """Guards ``made``."""

    def clear(self) -> None:
        """Drop all of them."""
        self.made.clear()

    def make(
        self,
        number: int,
        start: int,
        nbytes: int,
        parts: Callable[[int, memoryview], Sequence[PanelPart]],
    ) -> None:
        """Begin the panel of an entry of ``nbytes`` that holds a byte, if it is not there.

        ``parts`` gives the work that fills a buffer from a byte of the entry on.
        """
        first = start // _PANEL_NBYTES * _PANEL_NBYTES
        with self.lock:
            if (number, first) in self.made:
                return
            # Zeros would cost as much as a copy.
            buffer = np.empty(min(_PANEL_NBYTES, nbytes - first), np.uint8).data
            work = Together([part.work for part in parts(first, buffer)])
            self.made[number, first] = buffer, work
            while len(self.made) > _MOST_PANELS:
                self.made.popitem(last=False)

    def copy(self, number: int, start: int, buffer: memoryview) -> bool:
        """Fill a buffer from a panel that holds all of it, and return True, or return False."""
        first = start // _PANEL_NBYTES * _PANEL_NBYTES
        found = self.made.get((number, first))
        if found is None or start - first + len(buffer) > len(found[0]):
            return False
        panel, work = found
        work.finish()
        buffer[:] = panel[start - first : start - first + len(buffer)]
        return True


def is_sparse(parts: Sequence[PanelPart], nbytes: int, most: int) -> bool:
    """Return True if a panel is worth it for a block of ``nbytes`` of an entry of ``most``."""
    if nbytes < BLOCK_NBYTES or nbytes >= most:
        return False
    return sum(part.span for part in parts) > _SPARSE * nbytes


def bands_of(
    lattice: Lattice, there: tuple[int, Sequence[int]], itemsize: int
) -> Iterator[Strided]:
    """Yield the copies of a lattice to a place in a buffer, with strides, in elements."""
    into, strides = there
    copy = Strided(
        lattice.shape,
        lattice.place * itemsize,
        tuple(step * itemsize for step in lattice.strides),
        into * itemsize,
        tuple(step * itemsize for step in strides),
        itemsize,
    )
    yield from copy.merged().in_words().bands(BLOCK_NBYTES)
