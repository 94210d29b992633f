"""Which entries do the targets of a map have, and how is each made?

    what a target has of a stored slice                      becomes
    all of it, in the slice's own order                      an entry in the slice's file, as it is
    a region whose elements lie otherwise in the slice       an entry that is copied out of it
    elements between elements of other slices                an entry that is copied out of all of
                                                             these: the smallest such region

So renamed, stacked and joined tensors are read as any stored ones, and a payload that must be
decoded is asked for by few entries.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from shardvar.engine.lattices import (
    Lattice,
    c_strides,
    cells,
    factor_lattices,
    is_dense,
    lattices_of,
)
from shardvar.engine.moves import integers_of_ranges
from shardvar.errors import UnsupportedError
from shardvar.layout.dtypes import ITEMSIZES, Ints
from shardvar.maps.plan import Piece, Target
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.planning.slices import SliceTable, TensorTable, pad


@dataclass(frozen=True, slots=True)
class Recipe:
    """The way to make an entry that is copied."""

    pieces: tuple[Piece, ...]
    """[n] the pieces whose elements it has."""
    rows: tuple[int, ...]
    """[n] the stored slice that has its elements of each piece."""
    factors: tuple[int, ...]
    """The stored slices of tensors that elements are multiplied by."""
    fill: bytes | None
    """The bytes of an element that no piece covers; None if they cover all."""

    @property
    def used(self) -> tuple[int, ...]:
        """The stored slices that are read."""
        return tuple(dict.fromkeys((*self.rows, *self.factors)))


@dataclass(frozen=True, slots=True, eq=False)
class Recipes:
    """The ways to make the entries of targets, each with its number."""

    origin: Ints
    """[m] the row of the stored entry that each is, as it is; -1 for the ones that are copied."""
    copied: Mapping[int, Recipe]
    """The recipes of entries that are copied, by number."""


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
        self.number: list[int] = []
        """The targets of the other entries."""
        self.low: list[Sequence[int]] = []
        """Their first coordinates."""
        self.extents: list[Sequence[int]] = []
        """Their extents."""
        self.made: list[int | Recipe] = []
        """The stored rows that they are, or how they are made."""
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
