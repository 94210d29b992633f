"""The parts of maps that another process needs to make some entries.

A process gets the entries of targets, the ways to make them, and the stored entries that these use,
with new numbers. It opens the checkpoint by itself.
"""

from dataclasses import dataclass, replace

import numpy as np

from shardvar.engine.kept import KeptPayloads, Scratch
from shardvar.engine.map_entries import Recipes
from shardvar.engine.mapped import MappedSource
from shardvar.engine.subtasks import shrink_entries
from shardvar.engine.verified import VerifiedRows
from shardvar.formats.protocol import Source
from shardvar.planning.index import EntryTable, TableIndex


@dataclass(frozen=True, slots=True, eq=False)
class MapPart:
    """A part of a map, as a value that can be pickled."""

    stored: EntryTable
    """The stored entries that it copies."""
    recipes: Recipes
    """The ways to make entries."""
    entries: EntryTable
    """The entries of targets."""

    def source(self, inner: Source, map_scratch: Scratch) -> MappedSource:
        """Return the source that reads the entries."""
        index = TableIndex(self.entries, inner.index.files)
        verified = VerifiedRows(inner, self.stored)
        payloads = KeptPayloads(verified, map_scratch)
        return MappedSource(verified, self.recipes, index, {}, {}, payloads)


def map_parts(source: Source, entries: EntryTable) -> tuple[MapPart, ...]:
    """Return the parts of maps that some entries of a source need, the last map's first.

    A map may be of what another map makes, as a transpose of mapped tensors is.
    """
    parts: list[MapPart] = []
    while isinstance(source, MappedSource):
        part = _part_of(source, entries)
        if parts:
            parts[-1] = replace(parts[-1], stored=part.entries)
        parts.append(part)
        entries, source = part.stored, source.inner
    return tuple(parts)


def _part_of(source: MappedSource, entries: EntryTable) -> MapPart:
    """The part of one map that some entries need."""
    at = np.flatnonzero(~entries.plain)
    numbers = entries.start[at]
    origin = source.recipes.origin[numbers]
    copied = {
        new: source.recipes.copied[number]
        for new, number in enumerate(numbers.tolist())
        if origin[new] < 0
    }
    used = {*origin[origin >= 0].tolist()}.union(*(each.used for each in copied.values()))
    rows = np.array(sorted(used), np.int64)
    new_row = dict(zip(rows.tolist(), range(len(rows)), strict=True)).__getitem__
    moved = {
        number: replace(
            recipe,
            rows=tuple(map(new_row, recipe.rows)),
            factors=tuple(map(new_row, recipe.factors)),
        )
        for number, recipe in copied.items()
    }
    start = entries.start.copy()
    start[at] = np.arange(len(at))
    recipes = Recipes(np.where(origin >= 0, np.searchsorted(rows, origin), -1), moved)
    return MapPart(shrink_entries(source.stored, rows), recipes, replace(entries, start=start))
