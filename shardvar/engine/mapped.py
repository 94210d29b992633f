"""A source whose tensors a map makes of the tensors of another source.

``engine.map_entries`` plans the entries of the targets. The ones that lie in a file as they are are
read as any stored ones. The others are copied, a range of bytes at a time:

    a range of a target      some regions of it
    a region                 some lattices: regular parts of stored slices, on both sides
    a lattice                copied out of the bytes that hold it, if these have little else; else
                             out of a map of the file, whose memory is given back, or out of a
                             payload that is kept (``engine.kept``)

What is copied is verified before its first element is moved. ``engine.panels`` makes several ranges
at once where that reads less.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.arithmetic import PORTION, compute
from shardvar.engine.kept import KeptPayloads, Scratch
from shardvar.engine.lattices import Lattice, c_strides, factor_lattices, lattices_of
from shardvar.engine.map_entries import DraftEntries, Recipe, Recipes, renamed_entries
from shardvar.engine.panels import PanelPart, Panels, bands_of, is_sparse
from shardvar.engine.pool import bytes_of
from shardvar.engine.strides import Strided
from shardvar.engine.verified import VerifiedRows
from shardvar.errors import ReadError
from shardvar.formats.protocol import Source, WrappedSource
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints, is_whole, numpy_dtype
from shardvar.layout.region import Region, regions_of_range
from shardvar.maps.plan import MapPlan, View
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex
from shardvar.planning.slices import TensorTable, widen
from shardvar.storage.scratch import HeldPages

_MOST_PLANNED = 64
"""Entries whose lattices are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class MappedSource(WrappedSource):
    """Another source whose tensors became the targets of a map.

    An entry that is not plain has its number as its start, whichever rows a caller gave it since.
    """

    verified: VerifiedRows
    """The source of the payloads, its entries as stored, and which were verified."""
    recipes: Recipes
    """The ways to make entries."""
    index: TableIndex = field()
    """The table of contents of the targets."""
    sources_of: Mapping[str, tuple[str, ...]]
    """The stored tensors that each target is made of, by key."""
    kept: Mapping[str, str]
    """The stored tensors that only have other names, by these."""
    payloads: KeptPayloads
    """The payloads that elements are copied out of."""
    planned: dict[int, list[Lattice]] = field(default_factory=dict)
    """The lattices of entries that were read last, by number."""
    panels: Panels = field(default_factory=Panels)
    """The panels that were made last."""
    pages: HeldPages = field(default_factory=HeldPages)
    """The parts of maps that were read."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """The keys of objects that the map renames, by their new names."""

    @property
    def inner(self) -> Source:
        """The source of the payloads."""
        return self.verified.source

    @property
    def stored(self) -> EntryTable:
        """The entries as they are stored."""
        return self.verified.entries

    def digest(self) -> bytes:
        """Return a digest of what the map makes of the stored entries."""
        slices = self.index.entries.slices
        digest = hashlib.sha256("\0".join(slices.tensors.keys).encode("utf-8", "surrogateescape"))
        for column in (self.recipes.origin, slices.tensor, slices.offset, slices.shape):
            digest.update(np.ascontiguousarray(column).tobytes())
        for number, recipe in sorted(self.recipes.copied.items()):
            digest.update(repr((number, recipe)).encode("utf-8", "surrogateescape"))
        return digest.digest()

    # Reading.

    def files_read(self, entries: EntryTable) -> Ints:
        """Return the files of the stored payloads that targets are made of."""
        numbers = entries.start[~entries.plain]
        origins = self.recipes.origin[numbers]
        copied = (self.recipes.copied[each].used for each in numbers[origins < 0].tolist())
        rows = np.unique([*origins[origins >= 0].tolist(), *chain.from_iterable(copied)])
        plain = self.inner.files_read(entries.take(np.flatnonzero(entries.plain)))
        return np.union1d(plain, self.inner.files_read(self.stored.take(rows.astype(np.int64))))

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return True for payloads that are best read in order.

        What is copied is read in the target's order, and its payloads are kept if that would be
        slow. Payloads that a bucket sends are read one after the other, each by many requests at
        once: all at once would need a temporary file each.
        """
        found = np.zeros(len(rows), np.bool)
        at = np.flatnonzero(~entries.plain[rows])
        numbers = entries.start[rows[at]]
        origins = self.recipes.origin[numbers]
        through = origins >= 0
        if through.any():
            found[at[through]] = self.inner.in_order(self.stored, origins[through])
        if self.traits is not None:
            for place, number in zip(at[~through], numbers[~through].tolist(), strict=True):
                stored = np.array(self.recipes.copied[number].used, np.int64)
                is_fetched = self.stored.plain[stored] & ~self.verified.is_held(stored)
                found[place] = is_fetched.any()
        return found

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        """Prepare for reads of what is copied, and of entries that the inner source decodes."""
        stored: dict[int, None] = {}
        for number in entries.start[rows[~entries.plain[rows]]].tolist():
            origin = int(self.recipes.origin[number])
            if origin >= 0:
                stored[origin] = None
            else:
                # A payload that is decoded is kept when it is asked for, so it is not decoded
                # ahead.
                stored |= {
                    row: None for row in self.recipes.copied[number].rows if self.stored.plain[row]
                }
        self.verified.expect(np.fromiter(stored, np.int64, len(stored)))

    def decode(self, entries: EntryTable, row: int) -> memoryview | None:
        """Let the inner source decode an entry that is not copied."""
        origin = int(self.recipes.origin[entries.start[row]])
        return None if origin < 0 else self.inner.decode(self.stored, origin)

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from a payload of a target, from byte ``start`` of it on."""
        if entries.plain[row]:
            self.read_span(int(entries.file[row]), int(entries.start[row]) + start, buffer)
            return
        number = int(entries.start[row])
        origin = int(self.recipes.origin[number])
        if origin >= 0:
            self.inner.read_into(self.stored, origin, start, buffer)
            return
        nbytes = int(entries.slices.nbytes[row])
        if self.panels.copy(number, start, buffer):
            return
        parts = self._parts(entries, row, start, buffer)
        if is_sparse(parts, len(buffer), nbytes):
            self.panels.make(number, start, nbytes, partial(self._parts, entries, row))
            if self.panels.copy(number, start, buffer):
                return
        for part in parts:
            part.work()

    def _parts(
        self, entries: EntryTable, row: int, start: int, buffer: memoryview
    ) -> list[PanelPart]:
        """Fill a buffer with what no piece covers, and return the work that fills the rest."""
        number = int(entries.start[row])
        recipe, region = self.recipes.copied[number], entries.slices.region(row)
        itemsize, parts = int(ITEMSIZES[entries.slices.codes(row)]), list[PanelPart]()
        if recipe.fill is not None:
            np.frombuffer(buffer, np.dtype((np.void, itemsize)))[:] = np.void(recipe.fill)
        if not region.size:
            for stored in recipe.used:
                if self.payloads.payload(stored, len(recipe.used)) is None:
                    self.verified.verify(stored)
        first, last = start // itemsize, (start + len(buffer)) // itemsize
        strides = c_strides(region.shape)
        for part in regions_of_range(region.shape, first, last):
            corner = [a + b for a, b in zip(part.offset, region.offset, strict=True)]
            for lattice in self._lattices(number, recipe):
                for mine in lattice.within(Region(corner, part.shape)):
                    at = zip(mine.target_corner(), region.offset, strides, strict=True)
                    into = sum((a - b) * stride for a, b, stride in at) - first
                    there = into, mine.target_strides(strides)
                    if mine.piece.arithmetic is None:
                        for band in bands_of(mine, there, itemsize):
                            work = partial(self._copy, mine.row, len(recipe.used), band, buffer)
                            parts.append(PanelPart(band.span, work))
                    else:
                        names = entries.slices.key(row), entries.slices.dtype(row)
                        for some in mine.portions(PORTION):
                            work = partial(self._compute, some, mine, recipe, there, names, buffer)
                            parts.append(PanelPart(some.span * itemsize, work))
        return parts

    def close(self) -> None:
        """Close the inner source and the temporary files."""
        self.payloads.clear()
        self.panels.clear()
        self.inner.close()

    def _lattices(self, number: int, recipe: Recipe) -> list[Lattice]:
        """The lattices of an entry."""
        found = self.planned.get(number)
        if found is None:
            found = []
            for piece, row in zip(recipe.pieces, recipe.rows, strict=True):
                found += lattices_of(piece, piece.source, self.stored.slices, np.array([row]))
            if len(self.planned) >= _MOST_PLANNED:
                self.planned.clear()
            self.planned[number] = found
        return found

    def _copy(self, row: int, count: int, band: Strided, buffer: memoryview) -> None:
        """Copy elements of a stored payload to their places in the buffer."""
        payload = self.payloads.payload(row, count)
        if payload is not None:
            band.copy(payload, buffer)
            return
        into = buffer[band.into : band.into + band.nbytes] if band.is_range else None
        part = self.verified.read(row, band.place, band.place + band.span, band.nbytes, into)
        if part is not None:
            if part is not into:
                replace(band, place=0).copy(part, buffer)
            return
        self.verified.verify(row)
        file = self.inner.map(int(self.stored.file[row]))
        replace(band, place=int(self.stored.start[row]) + band.place).copy(file, buffer)
        self.pages.add(file, band.span)

    def _compute(
        self,
        some: Lattice,
        lattice: Lattice,
        recipe: Recipe,
        there: tuple[int, Sequence[int]],
        names: tuple[str, str],
        buffer: memoryview,
    ) -> None:
        """Fill places in the buffer with what arithmetic makes of a portion of a lattice."""
        arithmetic, count = lattice.piece.arithmetic, len(recipe.used)
        if arithmetic is None:
            return
        (key, dtype), (into, into_strides) = names, there
        values = np.empty(some.shape, numpy_dtype(self.stored.slices.dtype(some.row)))
        self._gather(some, c_strides(some.shape), 0, count, values)
        factors = [self._factor(some, factor, recipe) for factor in arithmetic.factors]
        found = compute(arithmetic, values, factors, dtype, key)
        skip = zip(some.first, lattice.first, into_strides, strict=True)
        place = into + sum((a - b) * stride for a, b, stride in skip)
        out = np.ndarray(
            found.shape,
            found.dtype,
            buffer,
            place * found.itemsize,
            tuple(step * found.itemsize for step in into_strides),
        )
        out[...] = found

    def _factor(self, lattice: Lattice, factor: View, recipe: Recipe) -> npt.NDArray[Any]:
        """The elements of a factor for the indices of a lattice, with an extent of 1 where it has
        no index."""
        slices = self.stored.slices
        rows = [row for row in recipe.factors if slices.key(row) == factor.key]
        has_index = [axis >= 0 for axis, _ in factor.steps]
        first = [n if has else 0 for n, has in zip(lattice.first, has_index, strict=True)]
        shape = tuple(n if has else 1 for n, has in zip(lattice.shape, has_index, strict=True))
        values = np.empty(shape, numpy_dtype(slices.dtype(rows[0])))
        strides, region = c_strides(shape), Region(first, shape)
        for found in factor_lattices(lattice.piece, factor, slices, np.array(rows)):
            for some in found.within(region):
                at = zip(some.first, first, strides, strict=True)
                place = sum((a - b) * stride for a, b, stride in at)
                self._gather(some, strides, place, len(recipe.used), values)
        return values

    def _gather(
        self,
        lattice: Lattice,
        strides: Sequence[int],
        place: int,
        count: int,
        values: npt.NDArray[Any],
    ) -> None:
        """Copy the elements of a lattice into an array, with strides from a place on."""
        for band in bands_of(lattice, (place, strides), values.itemsize):
            self._copy(lattice.row, count, band, bytes_of(values))

    # What ``verify`` asks, by keys of targets.

    def _sources(self, key: str) -> tuple[str, ...]:
        """The stored tensors that a target is made of."""
        return (self.kept[key],) if key in self.kept else self.sources_of.get(key, ())

    def is_guarded(self, key: str) -> bool | None:
        """Return True if checksums cover all that a target is made of."""
        return all(map(self._is_guarded, self._sources(key)))

    def _is_guarded(self, key: str) -> bool | None:
        """Return True if checksums cover a stored tensor."""
        answer = self.inner.is_guarded(key)
        if answer is None:
            answer = bool((self.inner.index.find(key).checksum != NO_CHECKSUM).all())
        return answer

    def compare_bytes(self, key: str) -> bool:
        """Compare the checksums of all that a target is made of."""
        return all(map(self.inner.compare_bytes, self._sources(key)))

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, ReadError]:
        """Return the errors of targets that are made of parts of damaged storages."""
        wanted = set(chain.from_iterable(map(self._sources, keys)))
        found = self.inner.storage_errors(wanted, only_read)
        if not found:
            return found
        return {key: found[each] for key in keys for each in self._sources(key) if each in found}

    def is_part(self, key: str) -> bool:
        """Return True if a target is made of a part of a storage."""
        return any(map(self.inner.is_part, self._sources(key)))

    def encodings(self) -> Mapping[str, str]:
        """Return the encodings of targets that are made of tensors of one encoding."""
        known = self.inner.encodings()
        if not known:
            return known
        kinds = {
            key: {known.get(each, "") for each in self._sources(key)}
            for key in (*self.kept, *self.sources_of)
        }
        return {key: each.pop() for key, each in kinds.items() if len(each) == 1 and any(each)}

    def dequantized(self) -> Source:
        """Return this source: a map is made for tensors of one form, so numbers are asked for
        before it."""
        return self

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes] | None:
        """Return the objects among keys, under the names that the map gives them."""
        tensors = self.index.entries.slices.tensors
        # A plain object is listed as a tensor, of text or of bytes, and a map only renames it.
        plain = {key for row, key in enumerate(tensors.keys) if is_whole(tensors.dtype(row))}
        asked = [key for key in keys if key in plain or not self._sources(key)]
        pairs = [((*self._sources(key), self.renamed.get(key, key))[0], key) for key in asked]
        found = self.inner.objects([old for old, _ in pairs], form)
        return None if found is None else {new: found[old] for old, new in pairs if old in found}


def mapped(
    source: Source, stored: EntryTable, plan: MapPlan, map_scratch: Scratch
) -> tuple[EntryTable, MappedSource]:
    """Return the entries of a map's targets, and the source that reads them.

    ``stored`` has the entries of the source's tensors, under the keys that the plan knows.
    """
    sources_of = dict[str, tuple[str, ...]]()
    kept = dict(zip(plan.names.values(), plan.names, strict=True))
    if not plan.targets and [*plan.names] == [*stored.slices.tensors.keys]:
        entries, recipes = renamed_entries(stored, [*kept])
    else:
        tensors, made, renamed = _tensors_of(stored.slices.tensors, plan)
        draft = DraftEntries(stored, tensors)
        draft.keep(renamed, plan.names)
        for number, target in zip(made.tolist(), plan.targets, strict=True):
            sources_of[target.key] = draft.add(number, target)
        entries, recipes = draft.table()
    index = TableIndex(entries, source.index.files, source.index.metadata)
    verified = VerifiedRows(source, stored)
    payloads = KeptPayloads(verified, map_scratch)
    return entries, MappedSource(verified, recipes, index, sources_of, kept, payloads)


def _tensors_of(stored: TensorTable, plan: MapPlan) -> tuple[TensorTable, Ints, Ints]:
    """The table of all that a plan makes, and the rows in it of its targets and of its names."""
    made = TensorTable.of((each.key, each.dtype, each.shape) for each in plan.targets)
    if not plan.names:
        return made, np.arange(len(made)), np.zeros(0, np.int64)
    row_of = stored.rows()
    rows = np.fromiter(map(row_of.__getitem__, plan.names), np.int64, len(plan.names))
    kept = replace(stored.take(rows), keys=[*plan.names.values()])
    first = [
        min((row_of[each.source.key] for each in target.pieces), default=0)
        for target in plan.targets
    ]
    order = np.argsort(np.concatenate([np.array(first, np.int64), rows]), kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    rank = max(made.shapes.shape[1], kept.shapes.shape[1])
    tensors = TensorTable(
        [*made.keys, *kept.keys],
        np.concatenate([made.codes, kept.codes]),
        np.concatenate([made.ranks, kept.ranks]),
        np.concatenate([widen(made.shapes, rank, 1), widen(kept.shapes, rank, 1)]),
    )
    return tensors.take(order), place[: len(made)], place[len(made) :]
