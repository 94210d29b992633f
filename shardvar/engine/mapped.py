"""A source whose tensors a map makes of the tensors of another source.

Entries that lie in a file as they are are read as any stored ones. The others are copied, a range
of bytes at a time:

    a range of a target      some regions of it
    a region                 some lattices: regular parts of stored slices, on both sides
    a lattice                copied out of the bytes that hold it, if these have little else; else
                             out of a map of the file, whose memory is given back, or out of a
                             payload that is kept (``engine.pieces``)

What is copied is verified before its first element is moved. ``engine.lattices`` makes several
ranges at once where that reads less.

Arithmetic is done in float64, a portion of elements at a time, rounded to the target's dtype once.

Products of two float32, or of smaller floats, are exact in float64, so one operation on float32
gives the bits of float32 arithmetic.

``w * scale`` where a scale is for a block of 128 x 128 elements: the scale has indices for the
blocks, and none for what is in a block, so its values are repeated there by NumPy's broadcasting.

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
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.arrays import integers_of_ranges
from shardvar.engine.cast import convert_into
from shardvar.engine.lattices import (
    Lattice,
    PanelPart,
    Panels,
    Strided,
    bands_of,
    c_strides,
    cells,
    factor_lattices,
    is_dense,
    is_sparse,
    lattices_of,
)
from shardvar.engine.pieces import KeptPayloads, Scratch, VerifiedRows
from shardvar.engine.pool import bytes_of
from shardvar.engine.write import shrink_entries
from shardvar.errors import ReadError, UnsupportedError
from shardvar.formats.protocol import Source, WrappedSource
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints, is_whole, numpy_dtype
from shardvar.layout.region import Region, regions_of_range
from shardvar.maps.plan import Arithmetic, MapPlan, Piece, Target, View
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex
from shardvar.planning.slices import SliceTable, TensorTable, pad, widen
from shardvar.storage.scratch import HeldPages

PORTION = 1 << 17  # elements that are computed at a time; in float64 they take 1 MiB


def compute(
    arithmetic: Arithmetic,
    values: npt.NDArray[Any],
    factors: Sequence[npt.NDArray[Any]],
    dtype: str,
    key: str,
) -> npt.NDArray[Any]:
    """Return what arithmetic makes of some elements, in the target's dtype."""
    with np.errstate(all="ignore"):
        found = values.astype(np.float64)
        for factor in factors:
            found *= factor.astype(np.float64)
        if arithmetic.times != 1:
            found *= arithmetic.times
        # Adding 0 would make 0 of -0.
        if arithmetic.plus != 0:
            found += arithmetic.plus
        lost = ~np.isfinite(found)
        if lost.any():
            for operand in (values, *factors):
                lost &= np.isfinite(operand)
    if lost.any():
        value = values[np.unravel_index(np.argmax(lost), lost.shape)]
        cause = f"The arithmetic makes an infinite number of the value {value} for {key!r}."
        raise UnsupportedError(cause, "Choose smaller constants, or leave the tensor as it is.")
    rounded = np.empty(found.shape, numpy_dtype(dtype))
    convert_into(rounded.reshape(-1), found.reshape(-1), key)
    return rounded


@dataclass(frozen=True, slots=True)
class Recipe:
    """The way to make an entry that is copied."""

    pieces: tuple[Piece, ...]  # [n] the pieces whose elements it has
    rows: tuple[int, ...]  # [n] the stored slice that has its elements of each piece
    factors: tuple[int, ...]  # the stored slices of tensors that elements are multiplied by
    fill: bytes | None  # the bytes of an element that no piece covers; None if they cover all

    @property
    def used(self) -> tuple[int, ...]:
        """The stored slices that are read."""
        return tuple(dict.fromkeys((*self.rows, *self.factors)))


@dataclass(frozen=True, slots=True, eq=False)
class Recipes:
    """The ways to make the entries of targets, each with its number."""

    origin: Ints
    """[m] the row of the stored entry that each is, as it is; -1 for the ones that are copied."""
    copied: Mapping[int, Recipe]  # the recipes of entries that are copied, by number


def renamed_entries(stored: EntryTable, names: Sequence[str]) -> tuple[EntryTable, Recipes]:
    """Return what ``DraftEntries`` makes of tensors that all only get new names, in their order."""
    every, slices = np.arange(len(stored)), stored.slices
    slices = replace(slices, tensors=replace(slices.tensors, keys=names))
    start = np.where(stored.plain, stored.start, every)
    return replace(stored, slices=slices, start=start), Recipes(every, {})


class DraftEntries:
    """The entries of targets, while they are planned."""

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
            lattices += lattices_of(
                piece, piece.source, self.stored.slices, self.rows_of(piece.source.key)
            )
        zeros = (0,) * len(target.shape)
        if 0 in target.shape:
            rows = [
                (piece, row) for piece in pieces for row in self.rows_of(piece.source.key).tolist()
            ]
            self._add(number, zeros, target.shape, self._recipe(rows, target.fill))
        elif len(lattices) == 1 and prod(lattices[0].shape) == prod(target.shape):
            self._add_cell(number, target, zeros, target.shape, lattices)
        else:
            bounds = [lattice.target_bounds() for lattice in lattices]
            low = np.array([each[0] for each in bounds], np.int64).reshape(len(bounds), len(zeros))
            stop = np.array([each[1] for each in bounds], np.int64).reshape(len(bounds), len(zeros))
            every = np.arange(len(lattices))
            for first, last, numbers in cells(low, stop, zeros, target.shape, every):
                self._add_cell(number, target, first, last, [lattices[n] for n in numbers.tolist()])
        factors = (
            factor.key
            for piece in pieces
            if piece.arithmetic is not None
            for factor in piece.arithmetic.factors
        )
        return tuple(dict.fromkeys((*(piece.source.key for piece in pieces), *factors)))

    def rows_of(self, key: str) -> Ints:
        """The rows of a stored tensor."""
        tensor = self.row_of[key]
        return self.order[self.bounds[tensor] : self.bounds[tensor + 1]]

    def _has_whole(self, target: Target) -> bool:
        """Return True if a target consists of whole stored tensors, each in its own order."""
        if target.fill is not None or not target.pieces:
            return False
        for piece in target.pieces:
            source, tensor = piece.source, self.row_of[piece.source.key]
            shape = self.stored_shapes[tensor][: self.stored_ranks[tensor]]
            if (
                piece.arithmetic is not None
                or source.steps != piece.target.steps
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
        there = lattice.target_strides(c_strides(extents))
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
        for piece in dict.fromkeys(each for each in pieces if each.arithmetic is not None):
            for factor in piece.arithmetic.factors if piece.arithmetic else ():
                rows_of = self.rows_of(factor.key)
                found = factor_lattices(piece, factor, self.stored.slices, rows_of)
                factors |= dict.fromkeys(lattice.row for lattice in found)
        return Recipe(pieces, rows, tuple(factors), fill)

    def table(self) -> tuple[EntryTable, Recipes]:
        """Return the entries of all targets in order, and how each is made."""
        # The tensors that stay in their order are columns: there may be a million of them.
        stored, rank = self.stored, self.tensors.shapes.shape[1]
        numbers, tensors = np.array(self.whole, np.int64).reshape(-1, 2).T
        counts = self.bounds[tensors + 1] - self.bounds[tensors]
        rows = self.order[integers_of_ranges(self.bounds[tensors], self.bounds[tensors + 1])]
        origins = np.array([each if isinstance(each, int) else -1 for each in self.made], np.int64)
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
        return self._entries(tensor[order], offset[order], shape[order], origin, copied), Recipes(
            origin, copied
        )

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
            file[number] = stored.file[recipe.rows[0]] if recipe.rows else 0
        # Runs are one table for all entries, so one that is copied drops them for all.
        runs = stored.runs
        if runs is not None:
            runs = replace(runs, first=runs.first[of]) if through.all() else None
        return EntryTable(slices, file, start, checksum, plain, runs)


_MOST_PLANNED = 64  # Entries whose lattices are kept


@dataclass(frozen=True, slots=True, eq=False)
class MappedSource(WrappedSource):
    """Another source whose tensors became the targets of a map. An entry that is not plain has its
    number as its start, whichever rows a caller gave it since."""

    verified: VerifiedRows
    """The source of the payloads, its entries as stored, and which were verified."""
    recipes: Recipes  # the ways to make entries
    index: TableIndex = field()  # the table of contents of the targets
    sources_of: Mapping[str, tuple[str, ...]]
    """The stored tensors that each target is made of, by key."""
    kept: Mapping[str, str]  # the stored tensors that only have other names, by these
    payloads: KeptPayloads  # the payloads that elements are copied out of
    planned: dict[int, list[Lattice]] = field(default_factory=dict)
    """The lattices of entries that were read last, by number."""
    panels: Panels = field(default_factory=Panels)  # the panels that were made last
    pages: HeldPages = field(default_factory=HeldPages)  # the parts of maps that were read

    renamed: Mapping[str, str] = field(default_factory=dict)
    """The keys of objects that the map renames, by their new names."""

    @property
    def inner(self) -> Source:
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
        numbers = entries.start[~entries.plain]
        origins = self.recipes.origin[numbers]
        copied = (self.recipes.copied[each].used for each in numbers[origins < 0].tolist())
        rows = np.unique([*origins[origins >= 0].tolist(), *chain.from_iterable(copied)])
        plain = self.inner.files_read(entries.take(np.flatnonzero(entries.plain)))
        return np.union1d(plain, self.inner.files_read(self.stored.take(rows.astype(np.int64))))

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return True for payloads that are best read in order. What is copied is read in
        the target's order, and its payloads are kept if that would be slow. Payloads that a bucket
        sends are read one after the other, each by many requests at once: all at once would need a
        temporary file each."""
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
        origin = int(self.recipes.origin[entries.start[row]])
        return None if origin < 0 else self.inner.decode(self.stored, origin)

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
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
        return all(map(self._is_guarded, self._sources(key)))

    def _is_guarded(self, key: str) -> bool | None:
        """Return True if checksums cover a stored tensor."""
        answer = self.inner.is_guarded(key)
        if answer is None:
            answer = bool((self.inner.index.find(key).checksum != NO_CHECKSUM).all())
        return answer

    def compare_bytes(self, key: str) -> bool:
        return all(map(self.inner.compare_bytes, self._sources(key)))

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, ReadError]:
        wanted = set(chain.from_iterable(map(self._sources, keys)))
        found = self.inner.storage_errors(wanted, only_read)
        if not found:
            return found
        return {key: found[each] for key in keys for each in self._sources(key) if each in found}

    def is_part(self, key: str) -> bool:
        return any(map(self.inner.is_part, self._sources(key)))

    def encodings(self) -> Mapping[str, str]:
        known = self.inner.encodings()
        if not known:
            return known
        kinds = {
            key: {known.get(each, "") for each in self._sources(key)}
            for key in (*self.kept, *self.sources_of)
        }
        return {key: each.pop() for key, each in kinds.items() if len(each) == 1 and any(each)}

    def dequantized(self) -> Source:
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
    """Return the entries of a map's targets, and the source that reads them."""
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


@dataclass(frozen=True, slots=True, eq=False)
class MapPart:
    """A part of a map, as a value that can be pickled."""

    stored: EntryTable  # the stored entries that it copies
    recipes: Recipes  # the ways to make entries
    entries: EntryTable  # the entries of targets

    def source(self, inner: Source, map_scratch: Scratch) -> MappedSource:
        """Return the source that reads the entries."""
        index = TableIndex(self.entries, inner.index.files)
        verified = VerifiedRows(inner, self.stored)
        payloads = KeptPayloads(verified, map_scratch)
        return MappedSource(verified, self.recipes, index, {}, {}, payloads)


def map_parts(source: Source, entries: EntryTable) -> tuple[MapPart, ...]:
    """Return the parts of maps that some entries of a source need, the last map's first. A map may
    be of what another map makes, as a transpose of mapped tensors is."""
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
