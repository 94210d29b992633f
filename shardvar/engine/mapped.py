"""A source whose tensors a map makes of the tensors of another source.

Entries that lie in a file as they are are read as any stored ones. The others are copied, a range
of bytes at a time:

    a range of a target      some regions of it
    a region                 some lattices: regular parts of stored slices, on both sides
    a lattice                copied out of the bytes that hold it, if these have little else; else
                             out of a map of the file, whose memory is given back, or out of a
                             payload that is kept (``engine.pieces``)

A payload is verified before its first element is copied. ``engine.lattices`` makes several
ranges at once where that reads less.

Arithmetic (``engine.arithmetic``) is done in float64, a portion of elements at a time, rounded to the
target's dtype once. ``w * scale`` where a scale is for a block of 128 x 128 elements: the scale has
indices for the blocks, and none for elements of a block, so its values are repeated there.

Entries of the targets, and how each is made:

    what a target has of a stored slice                      becomes
    all of it, in the slice's own order                      an entry in the slice's file, as it is
    a region whose elements lie otherwise in the slice       an entry that is copied out of it
    elements between elements of other slices                an entry that is copied out of all of
                                                             these: the smallest such region

So renamed, stacked and joined tensors are read as any stored ones, and a payload that must be
decoded is asked for by few entries.

Another process gets the entries of targets, the ways to make them, and the stored entries that
these use, with new numbers. It opens the checkpoint by itself.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, product
from math import prod
from typing import Any

import numpy as np

from shardvar.engine.arithmetic import Evaluation, KeptSums, ReadElements
from shardvar.engine.arrays import integers_of_ranges
from shardvar.engine.cast import convert_into
from shardvar.engine.files import shrink_entries
from shardvar.engine.lattices import (
    Lattice,
    PanelPart,
    Panels,
    Strided,
    bands_of,
    cells,
    coordinates,
    factor_lattices,
    indices_within,
    is_dense,
    is_sparse,
    lattices_of,
)
from shardvar.engine.pieces import ComposedSource, KeptPayloads, Scratch, VerifiedRows
from shardvar.engine.pool import bytes_of, run_all
from shardvar.engine.read import Request, read_batch
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import (
    HALVES,
    ITEMSIZES,
    Array,
    Bools,
    Ints,
    Shape,
    is_whole,
    numpy_dtype,
)
from shardvar.layout.indexing import plan_gather
from shardvar.layout.region import Region, regions_of_range, row_strides
from shardvar.maps.plan import MapPlan, Piece, Target, View
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex, take_tensors
from shardvar.planning.slices import SliceTable, TensorTable, pad, widen
from shardvar.records import entity, field, frozen, replace
from shardvar.storage.scratch import HeldPages

PORTION = 1 << 16  # elements that are computed at a time; in float64 they stay in the cache


@frozen
class Recipe:
    pieces: tuple[Piece, ...]  # [n] the pieces whose elements it has
    rows: Shape  # [n] the stored slice that has its elements of each piece; -1: computed
    factors: Shape  # the stored slices of tensors that it computes with
    fill: bytes | None  # the bytes of an element that no piece covers; None if they cover all

    @property
    def used(self) -> Shape:
        """The stored slices that are read."""
        return tuple(dict.fromkeys(row for row in (*self.rows, *self.factors) if row >= 0))


Recipes = dict[int, Recipe]
"""The recipes of entries that are copied, by number."""


class DraftEntries:
    def __init__(self, stored: EntryTable, tensors: TensorTable) -> None:
        self.stored, self.tensors = stored, tensors
        self.row_of = stored.slices.tensors.rows()
        self.order, self.bounds = stored.slices.by_tensor()
        self.whole: list[tuple[int, int]] = []
        """Targets that have a stored tensor in its own order, each with the tensor."""
        self.begins: list[Sequence[int]] = []
        """The coordinates in the target of the first element of each; none for zeros."""
        self.number: list[int] = []  # the targets of the other entries
        self.low: list[Sequence[int]] = []  # their first coordinates
        self.extents: list[Sequence[int]] = []
        self.made: list[int | Recipe] = []  # the stored rows that they are, or how they are made
        self.stored_shapes = stored.slices.tensors.shapes.tolist()
        self.stored_ranks = stored.slices.tensors.ranks.tolist()

    def keep(self, numbers: Ints, keys: Iterable[str]) -> None:
        """Plan the entries of targets that are stored tensors as they are."""
        rows = map(self.row_of.__getitem__, keys)
        self.whole += zip(numbers.tolist(), rows, strict=True)
        self.begins += [()] * len(numbers)

    def add(self, number: int, target: Target) -> tuple[str, ...]:
        """Plan the entries of one target; return the tensors that it is made of."""
        pieces = target.pieces
        if self._has_whole(target):
            for piece in pieces:
                if 0 not in piece.shape or len(pieces) == 1:
                    self.whole.append((number, self.row_of[piece.source.key]))
                    self.begins.append(piece.target.start)
            return tuple(dict.fromkeys(piece.source.key for piece in pieces))
        lattices: list[Lattice] = []
        for piece in pieces:
            rows = self.rows_of(piece.source.key) if piece.arithmetic is None else _COMPUTED
            lattices += _lattices_of(piece, self.stored.slices, rows)
        zeros = (0,) * len(target.shape)
        if 0 in target.shape:
            pairs = [
                (piece, row)
                for piece in pieces
                if piece.arithmetic is None
                for row in self.rows_of(piece.source.key).tolist()
            ]
            self._add(number, zeros, target.shape, self._recipe(pairs, target.fill))
        elif len(lattices) == 1 and prod(lattices[0].shape) == prod(target.shape):
            self._add_cell(number, target, zeros, target.shape, lattices)
        else:
            bounds = [lattice.target_bounds() for lattice in lattices]
            low, stop = (
                np.array(bounds, np.int64).reshape(len(bounds), 2, len(zeros)).swapaxes(0, 1)
            )
            every = np.arange(len(lattices))
            for first, last, numbers in cells(low, stop, zeros, target.shape, every):
                self._add_cell(number, target, first, last, [lattices[n] for n in numbers.tolist()])
        return tuple(dict.fromkeys(key for piece in pieces for key in piece.keys))

    def rows_of(self, key: str) -> Ints:
        tensor = self.row_of[key]
        return self.order[self.bounds[tensor] : self.bounds[tensor + 1]]

    def _has_whole(self, target: Target) -> bool:
        """Return True if a target consists of whole stored tensors, each in its own order."""
        if target.fill is not None or not target.pieces:
            return False
        for piece in target.pieces:
            if piece.arithmetic is not None:
                return False
            source, tensor = piece.source, self.row_of[piece.source.key]
            shape = self.stored_shapes[tensor][: self.stored_ranks[tensor]]
            if (
                source.steps != piece.target.steps
                or any(source.start)
                or prod(piece.shape) != prod(shape)
                or len(shape) != len(target.shape)
            ):
                return False
        # A tensor without elements is one slice, all of it.
        return 0 not in target.shape or (len(target.pieces) == 1 and target.shape == tuple(shape))

    def _add_cell(
        self,
        number: int,
        target: Target,
        first: Sequence[int],
        last: Sequence[int],
        lattices: Sequence[Lattice],
    ) -> None:
        """Add the entries of a region of a target that holds some lattices."""
        if len(lattices) > 1 and all(map(is_dense, lattices)):
            filled = sum(prod(lattice.shape) for lattice in lattices)
            if filled == prod(b - a for a, b in zip(first, last, strict=True)):
                for lattice in lattices:
                    self._add_cell(number, target, *lattice.target_bounds(), [lattice])
                return
        extents = [b - a for a, b in zip(first, last, strict=True)]
        if len(lattices) == 1 and self._is_payload(lattices[0], extents):
            self._add(number, first, extents, lattices[0].row)
            return
        rows = dict.fromkeys((lattice.piece, lattice.row) for lattice in lattices)
        self._add(number, first, extents, self._recipe(rows, target.fill))

    def _is_payload(self, lattice: Lattice, extents: Sequence[int]) -> bool:
        """Return True if a region of a target has the bytes of a stored slice."""
        if lattice.piece.arithmetic is not None or lattice.place:
            return False
        size = prod(lattice.shape)
        if size != prod(extents) or size != prod(self.stored.slices.shape[lattice.row].tolist()):
            return False
        there = lattice.target_strides(row_strides(extents))
        return all(
            extent == 1 or a == b
            for extent, a, b in zip(lattice.shape, lattice.strides, there, strict=True)
        )

    def _add(
        self, number: int, first: Sequence[int], extents: Sequence[int], made: int | Recipe
    ) -> None:
        if not isinstance(made, int) and not ITEMSIZES[self.tensors.codes[number]]:
            cause = f"{self.tensors.keys[number]!r} is of dtype {self.tensors.dtype(number)}"
            raise UnsupportedError(f"{cause}, which is never cut or moved.", "Only rename it.")
        self.number.append(number)
        self.low.append(first)
        self.extents.append(extents)
        self.made.append(made)

    def _recipe(self, pairs: Iterable[tuple[Piece, int]], fill: bytes | None) -> Recipe:
        pieces, rows = zip(*pairs, strict=True) if (pairs := list(pairs)) else ((), ())
        factors: dict[int, None] = {}
        for piece in dict.fromkeys(piece for piece in pieces if piece.arithmetic):
            arithmetic = piece.arithmetic
            for view in arithmetic.views if arithmetic and 0 not in piece.shape else ():
                if view.key:
                    extents = (*arithmetic.bound, *piece.shape)
                    rows_of = self.rows_of(view.key)
                    lattices = factor_lattices(extents, view, self.stored.slices, rows_of)
                    factors |= dict.fromkeys(lattice.row for lattice in lattices)
        return Recipe(pieces, rows, tuple(factors), fill)

    def table(self) -> tuple[EntryTable, Ints, Recipes]:
        # The tensors that stay in their order are columns: there may be a million of them.
        stored, rank = self.stored, self.tensors.shapes.shape[1]
        numbers, tensors = np.array(self.whole, np.int64).reshape(-1, 2).T
        counts = self.bounds[tensors + 1] - self.bounds[tensors]
        rows = self.order[integers_of_ranges(self.bounds[tensors], self.bounds[tensors + 1])]
        origins = np.array([made if isinstance(made, int) else -1 for made in self.made], np.int64)
        origin = np.concatenate([rows, origins])
        tensor = np.concatenate([np.repeat(numbers, counts), np.array(self.number, np.int64)])
        offset = np.zeros((len(origin), rank), np.int64)
        shape = np.ones((len(origin), rank), np.int64)
        # Columns beyond the rank of all targets are padding in these rows.
        wide = min(rank, stored.slices.shape.shape[1])
        begins = pad(self.begins, 0)[1]
        offset[: len(rows), :wide] = stored.slices.offset[rows, :wide]
        offset[: len(rows), : begins.shape[1]] += np.repeat(begins, counts, axis=0)
        shape[: len(rows), :wide] = stored.slices.shape[rows, :wide]
        if self.number:
            for column, given, fill in ((offset, self.low, 0), (shape, self.extents, 1)):
                matrix = pad(given, fill)[1]
                column[len(rows) :, : matrix.shape[1]] = matrix

        order = np.argsort(tensor, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        copied = {
            int(place[len(rows) + at]): made
            for at, made in enumerate(self.made)
            if isinstance(made, Recipe)
        }
        origin = origin[order]
        entries = self._entries(tensor[order], offset[order], shape[order], origin, copied)
        return entries, origin, copied

    def _entries(
        self, tensor: Ints, offset: Ints, shape: Ints, origin: Ints, copied: Mapping[int, Recipe]
    ) -> EntryTable:
        """The entries with the columns of the stored ones, where they are these."""
        stored, through = self.stored, origin >= 0
        of = np.where(through, origin, 0)
        nbytes = stored.slices.nbytes[of] if len(stored) else np.zeros_like(of)
        slices = SliceTable.of(self.tensors, tensor, offset, shape, nbytes)
        file = stored.file[of] if len(stored) else np.zeros_like(of)
        plain, start, checksum = through.copy(), np.arange(len(of)), np.full_like(of, NO_CHECKSUM)
        plain[through] = stored.plain[origin[through]]
        start[plain] = stored.start[origin[plain]]
        checksum[through] = stored.checksum[origin[through]]
        for number, recipe in copied.items():
            file[number] = stored.file[recipe.used[0]] if recipe.used else 0
        # Runs are one table for all entries, so one that is copied drops them for all.
        runs = stored.runs
        if runs is not None:
            runs = replace(runs, first=runs.first[of]) if through.all() else None
        return EntryTable(slices, file, start, checksum, plain, runs)


def _distance(index: Sequence[int], corner: Sequence[int], strides: Sequence[int]) -> int:
    return sum((a - b) * step for a, b, step in zip(index, corner, strides, strict=True))


def _put(
    values: Array, shape: Sequence[int], place: int, strides: Sequence[int], buffer: memoryview
) -> None:
    """Copy values to the elements of a buffer from ``place`` on that have some strides."""
    size, dtype = values.itemsize, values.dtype
    steps = tuple(step * size for step in strides)
    np.ndarray(shape, dtype, buffer, place * size, steps)[...] = values


_PAGE_NBYTES = 4096  # Ranges that lie nearer than a page are read together
_MOST_COMPUTED = 1 << 22  # elements of a part that are computed at a time
_MOST_ROWS = 4096  # Rows of which some columns are read one by one
_MOST_PLANNED = 64  # Entries whose lattices are kept
_COMPUTED = np.array([-1])


def _lattices_of(piece: Piece, slices: SliceTable, rows: Ints) -> list[Lattice]:
    """The parts of a piece in some slices; of one that is computed, all of it."""
    if piece.arithmetic is None:
        return lattices_of(piece, piece.source, slices, rows)
    zeros = (0,) * len(piece.shape)
    return [] if 0 in piece.shape else [Lattice(-1, piece, zeros, piece.shape, 0, zeros)]


@entity
class MappedSource(ComposedSource):
    """Another source whose tensors became the targets of a map; ``start`` numbers its entries."""

    copied: Recipes
    index: TableIndex = field()  # the table of contents of the targets
    sources_of: Mapping[str, tuple[str, ...]]
    """The stored tensors that each target is made of, by key."""
    kept: Mapping[str, str]  # the stored tensors that only have other names, by these
    payloads: KeptPayloads  # the payloads that elements are copied out of
    planned: dict[int, list[Lattice]] = field(default_factory=dict)
    """The lattices of entries that were read last, by number."""
    sums: KeptSums = field(default_factory=KeptSums)  # sums of expressions that were computed last
    panels: Panels = field(default_factory=Panels)  # the panels that were made last
    pages: HeldPages = field(default_factory=HeldPages)  # the parts of maps that were read

    targets: Mapping[str, Target] = field(default_factory=dict)
    """The targets that are not only renamed, by key; none in another process."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The keys of objects that the map renames, by their new names."""

    def digest(self) -> bytes:
        """Return a digest of the targets and the ways to make them."""
        slices = self.index.entries.slices
        digest = hashlib.sha256("\0".join(slices.tensors.keys).encode("utf-8", "surrogateescape"))
        for column in (self.origin, slices.tensor, slices.offset, slices.shape):
            digest.update(np.ascontiguousarray(column).tobytes())
        for number, recipe in sorted(self.copied.items()):
            digest.update(repr((number, recipe)).encode("utf-8", "surrogateescape"))
        return digest.digest()

    # Reading.

    def _used(self, number: int) -> Iterable[int]:
        return self.copied[number].used

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return True for payloads that are best read in order, such as all in a bucket."""
        answer = np.zeros(len(rows), np.bool)
        at = np.flatnonzero(~entries.plain[rows])
        numbers = entries.start[rows[at]]
        origins = self.origin[numbers]
        through = origins >= 0
        if through.any():
            answer[at[through]] = self.inner.in_order(self.stored, origins[through])
        if self.traits is not None:
            for place, number in zip(at[~through], numbers[~through].tolist(), strict=True):
                stored = np.array(self.copied[number].used, np.int64)
                is_fetched = self.stored.plain[stored] & ~self.verified.is_held(stored)
                answer[place] = is_fetched.any()
        return answer

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        stored: dict[int, None] = {}
        for number in entries.start[rows[~entries.plain[rows]]].tolist():
            origin = int(self.origin[number])
            # A payload that is decoded is kept when it is asked for, so it is not decoded ahead.
            used = [origin] if origin >= 0 else self.copied[number].used
            stored |= {row: None for row in used if row == origin or self.stored.plain[row]}
        self.verified.expect(np.fromiter(stored, np.int64, len(stored)))

    def _make(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        number, nbytes = int(entries.start[row]), int(entries.slices.nbytes[row])
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
        recipe, region = self.copied[number], entries.slices.region(row)
        itemsize, parts = int(ITEMSIZES[entries.slices.codes(row)]), list[PanelPart]()
        if recipe.fill is not None:
            np.frombuffer(buffer, np.dtype((np.void, itemsize)))[:] = np.void(recipe.fill)
        if not region.size:
            for stored in recipe.used:
                if self.payloads.payload(stored, len(recipe.used)) is None:
                    self.verified.verify(stored)
        first, last = start // itemsize, (start + len(buffer)) // itemsize
        strides = row_strides(region.shape)
        for part in regions_of_range(region.shape, first, last):
            corner = [a + b for a, b in zip(part.offset, region.offset, strict=True)]
            for lattice in self._lattices(number, recipe):
                for cut in lattice.within(Region(corner, part.shape)):
                    into = _distance(cut.target_corner(), region.offset, strides) - first
                    there = into, cut.target_strides(strides)
                    if cut.piece.arithmetic is None:
                        for band in bands_of(cut, there, itemsize):
                            work = partial(self._copy, cut.row, len(recipe.used), band, buffer)
                            parts.append(PanelPart(band.span, work))
                    else:
                        names = entries.slices.key(row), entries.slices.dtype(row)
                        for some in cut.portions(PORTION):
                            gather = partial(self._elements, recipe)
                            work = partial(self.compute, some, cut, gather, there, names, buffer)
                            parts.append(PanelPart(some.span * itemsize, work))
        return parts

    def close(self) -> None:
        self.payloads.clear()
        self.panels.clear()
        self.inner.close()

    def _lattices(self, number: int, recipe: Recipe) -> list[Lattice]:
        lattices = self.planned.get(number)
        if lattices is None:
            lattices = []
            for piece, row in zip(recipe.pieces, recipe.rows, strict=True):
                lattices += _lattices_of(piece, self.stored.slices, np.array([row]))
            if len(self.planned) >= _MOST_PLANNED:
                self.planned.clear()
            self.planned[number] = lattices
        return lattices

    def _copy(self, row: int, count: int, band: Strided, buffer: memoryview) -> None:
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

    def compute(
        self,
        some: Lattice,
        lattice: Lattice,
        gather: ReadElements,
        there: tuple[int, Sequence[int]],
        names: tuple[str, str],
        buffer: memoryview,
    ) -> None:
        """Fill places in the buffer with what arithmetic makes of a portion of a lattice."""
        piece = lattice.piece
        if piece.arithmetic is None:
            return
        (key, dtype), (into, into_strides) = names, there
        made = Evaluation(piece.arithmetic, piece.shape, gather, self.sums)
        result = made.block(some.first, some.shape)
        lost = ~np.isfinite(result)
        if lost.any():
            lost &= made.are_finite(some.first, some.shape)
            if lost.any():
                self._refuse(made, some, lost, key)
        rounded = np.empty(result.shape, numpy_dtype(dtype))
        convert_into(rounded.reshape(-1), np.ascontiguousarray(result).reshape(-1), key)
        place = into + _distance(some.first, lattice.first, into_strides)
        _put(rounded, some.shape, place, into_strides, buffer)

    def _refuse(self, made: Evaluation, some: Lattice, lost: Bools, key: str) -> None:
        """Raise the error of a finite number that becomes infinite, with the numbers that it is made of."""
        at = np.unravel_index(int(np.argmax(lost)), lost.shape)
        first = tuple(int(a) + b for a, b in zip(at, some.first, strict=True))
        value = made.block(first, (1,) * len(first)).reshape(-1)[0]
        numbers = []
        for view in made.arithmetic.views:
            if view.key and all(axis < 0 for axis, _ in view.steps[: len(made.arithmetic.bound)]):
                bound = (0,) * len(made.arithmetic.bound)
                own = [
                    n if axis >= 0 else 0
                    for n, (axis, _) in zip((*bound, *first), view.steps, strict=True)
                ]
                number = made.gather(view, own, (1,) * len(own)).reshape(-1)[0]
                numbers.append(f"{number} of {view.key!r}")
        where = coordinates(some.piece.target, first)
        of = f", computed of {' and '.join(numbers[:3])}" if numbers else ""
        raise UnsupportedError(
            f"Element {where} of {key!r} is {value}{of}: the arithmetic makes no finite number.",
            "Choose smaller constants, 'clip' it, or leave the tensor as it is.",
        )

    def _elements(
        self, recipe: Recipe, view: View, first: Sequence[int], counts: Sequence[int]
    ) -> Array:
        """The elements of a tensor; an extent is 1 for an index that it does not have."""
        slices = self.stored.slices
        rows = [row for row in recipe.factors if slices.key(row) == view.key]
        values = np.empty(counts, numpy_dtype(slices.dtype(rows[0])))
        strides, region = row_strides(counts), Region(first, counts)
        extents = tuple(a + b for a, b in zip(first, counts, strict=True))
        for whole in factor_lattices(extents, view, slices, np.array(rows)):
            for some in whole.within(region):
                place = _distance(some.first, first, strides)
                for band in bands_of(some, (place, strides), values.itemsize):
                    self._copy(some.row, len(recipe.used), band, bytes_of(values))
        return values

    # What ``verify`` asks, by keys of targets.

    def _members(self, key: str) -> tuple[str, ...]:
        return (self.kept[key],) if key in self.kept else self.sources_of.get(key, ())

    def _is_guarded(self, key: str) -> bool | None:
        answer = self.inner.is_guarded(key)
        if answer is None:
            answer = bool((self.inner.index.find(key).checksum != NO_CHECKSUM).all())
        return answer

    def encodings(self) -> Mapping[str, str]:
        inner = self.inner.encodings()
        if not inner:
            return inner
        kinds = {
            key: {inner.get(member, "") for member in self._members(key)}
            for key in (*self.kept, *self.sources_of)
        }
        return {key: names.pop() for key, names in kinds.items() if len(names) == 1 and any(names)}

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes] | None:
        """Return the objects among keys, under the names that the map gives them."""
        tensors = self.index.entries.slices.tensors
        # A plain object is listed as a tensor, of text or of bytes, and a map only renames it.
        plain = {key for row, key in enumerate(tensors.keys) if is_whole(tensors.dtype(row))}
        asked = [key for key in keys if key in plain or not self._members(key)]
        pairs = [((*self._members(key), self.renamed.get(key, key))[0], key) for key in asked]
        objects = self.inner.objects([old for old, _ in pairs], form)
        return objects and {new: objects[old] for old, new in pairs if old in objects}


def mapped(
    source: Source, stored: EntryTable, plan: MapPlan, map_scratch: Scratch
) -> tuple[EntryTable, MappedSource]:
    sources_of = dict[str, tuple[str, ...]]()
    kept = dict(zip(plan.names.values(), plan.names, strict=True))
    if not plan.targets and [*plan.names] == [*stored.slices.tensors.keys]:
        every, slices = np.arange(len(stored)), stored.slices
        slices = replace(slices, tensors=replace(slices.tensors, keys=[*kept]))
        start = np.where(stored.plain, stored.start, every)
        entries, origin, copied = replace(stored, slices=slices, start=start), every, Recipes()
    else:
        tensors, made, renamed = _tensors_of(stored.slices.tensors, plan)
        draft = DraftEntries(stored, tensors)
        draft.keep(renamed, plan.names)
        for number, target in zip(made.tolist(), plan.targets, strict=True):
            sources_of[target.key] = draft.add(number, target)
        entries, origin, copied = draft.table()
    index = TableIndex(entries, source.index.files, source.index.metadata)
    verified = VerifiedRows(source, stored)
    payloads = KeptPayloads(verified, map_scratch)
    targets = {target.key: target for target in plan.targets}
    return entries, MappedSource(
        verified, origin, copied, index, sources_of, kept, payloads, targets=targets
    )


def read_mapped(
    source: MappedSource,
    requests: Sequence[Request],
    entries: EntryTable,
    *,
    is_full: bool,
    out: Any,
) -> tuple[list[Array], list[tuple[str, Region]]]:
    """As ``read_batch``; of the tensors that a target is made of, only the wanted elements are read."""
    if out is not None:
        raise ArgumentError("out= is given for tensors of a map.", "Leave it out.")
    unverified = list[tuple[str, Region]]()

    def read(request: Request) -> Array:
        key, wanted = request
        target = source.targets[key]
        asked, bare = plan_gather(wanted, target.shape), list[tuple[str, Region]]()
        elements = partial(_elements_of, source, is_full, bare)
        parts = [np.empty(0, numpy_dtype(target.dtype))]
        for offset, shape in zip(asked.offset.tolist(), asked.shape.tolist(), strict=True):
            array = np.empty(shape, parts[0].dtype)
            _fill_region(source, target, Region(offset, shape), elements, array)
            parts.append(array.reshape(-1))
        unverified.extend([(key, asked.around)] if bare else [])
        return asked.take(np.concatenate(parts).reshape(asked.full))

    made = [
        number
        for number, (key, _) in enumerate(requests)
        if key in source.targets
        and not (is_whole(source.targets[key].dtype) or source.targets[key].dtype == HALVES)
    ]
    arrays = dict(zip(made, run_all(read, [requests[number] for number in made]), strict=True))
    others = [number for number in range(len(requests)) if number not in arrays]
    asked = [requests[number] for number in others]
    stored = take_tensors(entries, {key for key, _ in asked})
    found, noted = read_batch(source, asked, stored, is_full=is_full)
    arrays |= zip(others, found, strict=True)
    return [arrays[number] for number in range(len(requests))], unverified + noted


def _fill_region(
    source: MappedSource, target: Target, region: Region, elements: ReadElements, array: Array
) -> None:
    buffer, strides = bytes_of(array), row_strides(region.shape)
    if target.fill is not None:
        array.reshape(-1).view(np.dtype((np.void, array.itemsize)))[:] = np.void(target.fill)
    for piece in target.pieces if 0 not in region.shape else ():
        view = piece.target
        for first, shape in indices_within(view, view.start, piece.shape, region):
            cut = Lattice(-1, piece, first, shape, 0, first)
            into = _distance(cut.target_corner(), region.offset, strides)
            there = into, cut.target_strides(strides)
            if piece.arithmetic is None:
                _put(elements(piece.source, first, shape), shape, *there, buffer)
                continue
            for some in cut.portions(_MOST_COMPUTED):
                names = target.key, target.dtype
                source.compute(some, cut, elements, there, names, buffer)


def _elements_of(
    source: MappedSource,
    is_full: bool,
    bare: list[tuple[str, Region]],
    view: View,
    first: Sequence[int],
    counts: Sequence[int],
) -> Array:
    """Read the elements of a view; the extent of an index that it does not have is 1.

    Along an axis (a b), a = 1:3 and b = 0:2 of 4 are the ranges 4:6 and 8:10. Ranges that lie nearer
    than a page are read together.
    """
    alone = take_tensors(source.stored, {view.key})
    tensors, digits = alone.slices.tensors, list[int]()
    extents, nbytes = tensors.shape(0), int(ITEMSIZES[tensors.codes[0]])
    own_counts = [n if axis >= 0 else 1 for n, (axis, _) in zip(counts, view.steps, strict=True)]
    if 0 in own_counts:
        return np.empty(own_counts, numpy_dtype(tensors.dtype(0)))
    bounds, picks = list[list[tuple[int, int]]](), list[Ints]()
    for axis in range(len(extents)):
        own = [number for number, (of, _) in enumerate(view.steps) if of == axis]
        own.sort(key=lambda number: -view.steps[number][1])
        places = np.array([view.start[axis]])
        for number in own:
            along = first[number] + np.arange(counts[number])
            places = np.add.outer(places, view.steps[number][1] * along).reshape(-1)
        apart = (np.diff(places) - 1) * nbytes * prod(extents[axis + 1 :])
        parts = np.split(places, np.flatnonzero((apart < 0) | (apart > _PAGE_NBYTES)) + 1)
        bounds.append([(int(part[0]), int(part[-1]) + 1) for part in parts])
        begins = accumulate((stop - start for start, stop in bounds[-1]), initial=0)
        moved = [part - part[0] + at for part, at in zip(parts, begins, strict=False)]
        picks.append(np.concatenate(moved))
        digits += own
    for axis in reversed(range(1, len(extents))):
        missing = extents[axis] - sum(stop - start for start, stop in bounds[axis])
        if missing * nbytes * prod(extents[axis + 1 :]) > _PAGE_NBYTES:
            # Some columns: each row is a range of bytes.
            rows = [[(n, n + 1) for each in some for n in range(*each)] for some in bounds[:axis]]
            if prod(map(len, rows)) <= _MOST_ROWS:
                bounds[:axis] = rows
            break
    lengths = [[*accumulate((b - a for a, b in some), initial=0)] for some in bounds]
    ranges = [zip(*each, strict=True) if each else ((), ()) for each in product(*bounds)]
    requests = [(view.key, Region(low, np.subtract(stop, low))) for low, stop in ranges]
    found, noted = read_batch(source.inner, requests, alone, is_full=is_full)
    bare.extend(noted)
    values = np.empty([each[-1] for each in lengths], found[0].dtype)
    places_of = (map(slice, each, each[1:]) for each in lengths)
    for place, array in zip(product(*places_of), found, strict=True):
        values[place] = array
    values = np.asarray(values[np.ix_(*picks)]).reshape([counts[number] for number in digits])
    return values.transpose(np.argsort(digits)).reshape(own_counts)


def _tensors_of(stored: TensorTable, plan: MapPlan) -> tuple[TensorTable, Ints, Ints]:
    """The table of all that a plan makes, and the rows in it of its targets and of its names."""
    made = TensorTable.of((target.key, target.dtype, target.shape) for target in plan.targets)
    if not plan.names:
        return made, np.arange(len(made)), np.zeros(0, np.int64)
    row_of = stored.rows()
    rows = np.fromiter(map(row_of.__getitem__, plan.names), np.int64, len(plan.names))
    kept = replace(stored.take(rows), keys=[*plan.names.values()])
    first = [
        min((row_of[key] for piece in target.pieces for key in piece.keys[:1]), default=len(stored))
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


@entity
class MapPart:
    """A part of a map, as a value that can be pickled."""

    stored: EntryTable  # the stored entries that it copies
    origin: Ints  # as of the source
    copied: Recipes
    entries: EntryTable  # the entries of targets

    def source(self, inner: Source, map_scratch: Scratch) -> MappedSource:
        index = TableIndex(self.entries, inner.index.files)
        verified = VerifiedRows(inner, self.stored)
        payloads = KeptPayloads(verified, map_scratch)
        return MappedSource(verified, self.origin, self.copied, index, {}, {}, payloads)


def map_parts(source: Source, entries: EntryTable) -> tuple[MapPart, ...]:
    parts: list[MapPart] = []
    while isinstance(source, MappedSource):
        at = np.flatnonzero(~entries.plain)
        numbers = entries.start[at]
        origin = source.origin[numbers]
        copied = {
            new: source.copied[number]
            for new, number in enumerate(numbers.tolist())
            if origin[new] < 0
        }
        used = {*origin[origin >= 0].tolist()}.union(*(recipe.used for recipe in copied.values()))
        rows = np.array(sorted(used), np.int64)
        new_row = dict(zip((-1, *rows.tolist()), range(-1, len(rows)), strict=True)).__getitem__
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
        origin = np.where(origin >= 0, np.searchsorted(rows, origin), -1)
        stored = shrink_entries(source.stored, rows)
        part = MapPart(stored, origin, moved, replace(entries, start=start))
        if parts:
            parts[-1] = replace(parts[-1], stored=part.entries)
        parts.append(part)
        entries, source = part.stored, source.inner
    return tuple(parts)
