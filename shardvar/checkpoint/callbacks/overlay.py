"""A source of which some values are others now: those that a callback changed lie over those that it was given.

The changed values are arrays, "files" and entries behind those of the source, so that rows and files of the source keep
their numbers. Which value fills which slice is a plan like any other.
"""

from dataclasses import dataclass, replace

import numpy as np

from shardvar.checkpoint.callbacks.call import Decision
from shardvar.engine.arrays import ArraySource
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import EntryTable, Index, TableIndex, concatenate_entries
from shardvar.planning.plan import CopyTable, Plan, plan_copies
from shardvar.planning.slices import SliceTable
from shardvar.wire.crc import Checksum


@dataclass(frozen=True, slots=True, eq=False)
class OverlaidSource:
    """Another source with arrays behind its files."""

    inner: Source
    """Where the values come from that nobody changed."""
    arrays: ArraySource
    """The values that were changed."""
    num_files: int
    """The number of the first array; lower ones are files of the other source."""

    @property
    def index(self) -> Index:
        """The table of contents of the other source."""
        return self.inner.index

    @property
    def crc(self) -> Checksum | None:
        """The checksum of the other source; arrays have none."""
        return self.inner.crc

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Bytes of a file, or of an array."""
        if file < self.num_files:
            self.inner.read_span(file, start, buffer)
        else:
            self.arrays.read_span(file - self.num_files, start, buffer)

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry."""
        if entries.file[row] < self.num_files:
            self.inner.read_into(entries, row, start, buffer)
        else:
            self.read_span(int(entries.file[row]), start, buffer)

    def map(self, file: int) -> memoryview:
        """A file, or an array, as a map."""
        return self.inner.map(file) if file < self.num_files else self.arrays.map(file - self.num_files)

    def close(self) -> None:
        """Close the other source."""
        self.inner.close()


def overlay_entries(entries: EntryTable, arrays: ArraySource) -> EntryTable:
    """The entries of a source, and behind them those of the arrays."""
    mine = arrays.index.entries
    return concatenate_entries([entries, replace(mine, file=mine.file + _num_files(entries))])


def overlay(source: Source, entries: EntryTable, arrays: ArraySource) -> Source:
    """The source that entries of ``overlay_entries`` are read from; arrays over arrays are one source of arrays."""
    count = len(arrays.arrays)
    num_files = int(entries.file[-1]) + 1 - count
    if isinstance(source, ArraySource):
        values = [*source.arrays[:num_files], *arrays.arrays]
        return ArraySource(values, TableIndex(entries, ["memory"] * len(values)))
    return OverlaidSource(source, arrays, num_files)


def plan_substituted(entries: EntryTable, targets: SliceTable, decision: Decision) -> Plan:
    """The plan that fills the slices that a policy changed from its arrays, and the others from the source."""
    if decision.substitutes is None:
        return plan_copies(entries.slices, targets)
    merged = overlay_entries(entries, decision.substitutes).slices
    is_changed = np.zeros(len(targets), dtype=np.bool)
    is_changed[decision.changed] = True
    kept = np.flatnonzero(~is_changed)
    parts = [
        _renumbered(plan_copies(entries.slices, targets.take(kept)).copies, 0, kept),
        _renumbered(
            plan_copies(decision.substitutes.index.entries.slices, targets.take(decision.changed)).copies,
            len(entries),
            decision.changed,
        ),
    ]
    columns = ([getattr(part, name) for part in parts] for name in ("source", "target", "offset", "shape"))
    copies = CopyTable(*map(np.concatenate, columns))
    # Both parts are ordered by target, and no target is in both.
    return Plan(merged, targets, copies.take(np.argsort(copies.target, kind="stable")))


def _renumbered(copies: CopyTable, first_source: int, targets: Ints) -> CopyTable:
    return CopyTable(copies.source + first_source, targets[copies.target], copies.offset, copies.shape)


def _num_files(entries: EntryTable) -> int:
    return int(entries.file.max(initial=-1)) + 1
