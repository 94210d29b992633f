"""The bytes of one tensor in C order, in any range, whichever slices hold it.

A digest, a delta and a comparison count the bytes of a tensor in C order. Slices that are rows hold
ranges of these bytes, and columns hold parts of each row. So a range is lowered like a target of a
write: to byte ranges of payloads where it can be, else to regions.

Any thread may read, and each checksum on the way is compared: at the latest by ``check``.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from shardvar.engine.evidence import Evidence
from shardvar.engine.moves import MoveTable, copies_in_range, lower
from shardvar.engine.pieces import Reading, read_moves
from shardvar.engine.read import check_bool
from shardvar.engine.regions import read_regions, wanted_regions
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import ITEMSIZES
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import Plan, plan_copies


@dataclass(frozen=True, slots=True, eq=False)
class FlatTensor:
    """A tensor whose bytes are read in C order."""

    evidence: Evidence
    """The source, and the entries of only this tensor."""
    nbytes: int
    """The bytes of the tensor."""
    plan: Plan | None
    """The copies that fill the whole tensor; None if one payload is the tensor."""
    moves: MoveTable | None
    """The byte ranges that fill it; None if regions do."""

    @classmethod
    def of(cls, source: Source, entries: EntryTable) -> Self:
        """The tensor of some entries, which are all of that tensor and no others."""
        evidence, tensors = Evidence(source, entries), entries.slices.tensors
        if len(entries) == 1:
            return cls(evidence, int(entries.slices.nbytes[0]), None, None)
        plan = plan_copies(entries.slices, tensors.whole())
        moves, is_range = lower(plan)
        nbytes = int(plan.targets.nbytes[0])
        return cls(evidence, nbytes, plan, moves if is_range.all() else None)

    @property
    def key(self) -> str:
        """The name of the tensor."""
        return self.evidence.entries.slices.tensors.keys[0]

    @property
    def is_ordered(self) -> bool:
        """True if it is best read from its beginning to its end, by one thread."""
        entries = self.evidence.entries
        if entries.plain.all():
            return False
        return bool(self.evidence.source.in_order(entries, np.arange(len(entries))).any())

    def read(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from byte ``start`` of the tensor on; whole elements."""
        if self.plan is None:
            self.evidence.read(0, start, buffer)
        else:
            reading = Reading(self.evidence, in_threads=False, use="flat")
            if self.moves is not None:
                places = self.moves.target_start - start
                read_moves(reading, self.moves.clip(places, len(buffer)), {0: buffer})
            else:
                self._read_regions(reading, self.plan, start, buffer)
        entries = self.evidence.entries
        if entries.slices.tensors.dtype(0) == "bool":
            check_bool(np.frombuffer(buffer, np.bool), self.key, self.evidence.source, entries)

    def _read_regions(self, reading: Reading, plan: Plan, start: int, buffer: memoryview) -> None:
        itemsize = int(ITEMSIZES[plan.targets.codes()[0]])
        first, stop = start // itemsize, (start + len(buffer)) // itemsize
        copies = copies_in_range(plan.targets, plan.copies, first, stop)
        wanted = wanted_regions(reading.entries, plan.targets, copies)
        # From the coordinates of the tensor to the ones of the buffer.
        read_regions(
            reading, replace(wanted, target_start=wanted.target_start - start), {0: buffer}
        )

    def check(self) -> None:
        """Raise unless what was read has the checksums that the index gives."""
        self.evidence.check()
