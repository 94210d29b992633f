"""What moves where: plans are values, made from metadata alone, and proven before anything moves.

    save     slices in memory -> targets in files
    restore  stored slices    -> slices in memory
    reshard  stored slices    -> targets in files

are one question: which region of which source slice fills which target slice. ``plan_copies`` answers it by searching
overlaps; a ``Plan`` owns its targets and can only be constructed if its copies cover every target exactly, so a
missing slice is an error here and never zeros later.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from shardvar.errors import IncompleteCheckpoint, InconsistentTensor
from shardvar.layout.dtypes import Ints
from shardvar.layout.overlap import overlapping_pairs
from shardvar.layout.region import Region, intersect
from shardvar.planning.faults import missing
from shardvar.planning.index import unknown_key
from shardvar.planning.slices import SliceTable, TensorTable, widen


@dataclass(frozen=True, slots=True)
class Copy:
    """One region that moves from a source slice to a target slice."""

    source: int
    """The row of the source slice."""
    target: int
    """The row of the target slice."""
    region: Region
    """What moves, in the coordinates of the whole tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class CopyTable:
    """Columns of copies, ordered by target and, within a target, by offset."""

    source: Ints
    """[c] rows of the sources."""
    target: Ints
    """[c] rows of the targets."""
    offset: Ints
    """[c, rank] first indices in the whole tensor."""
    shape: Ints
    """[c, rank] extents."""

    def __len__(self) -> int:
        return len(self.source)

    def take(self, rows: Ints) -> Self:
        """The table of some of the rows, in the given order."""
        return type(self)(self.source[rows], self.target[rows], self.offset[rows], self.shape[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Copies that fill every target exactly; constructed only if they do."""

    sources: SliceTable
    """Where elements come from."""
    targets: SliceTable
    """What is to be filled."""
    copies: CopyTable
    """What moves."""

    def __post_init__(self) -> None:
        check_covers(self.targets, self.copies)

    def copy(self, row: int) -> Copy:
        """One copy as a value, without the padding of the columns."""
        target = int(self.copies.target[row])
        rank = self.targets.tensors.ranks[self.targets.tensor[target]]
        offset, shape = self.copies.offset[row, :rank], self.copies.shape[row, :rank]
        return Copy(int(self.copies.source[row]), target, Region(offset.tolist(), shape.tolist()))

    def _repr_html_(self) -> str:
        """What moves, as a drawing and a table, for notebooks."""
        from shardvar.pictures.drawings import MOST_MOVES, plan_html

        copies = [self.copy(row) for row in range(min(len(self.copies), MOST_MOVES + 1))]
        named = [(_name(self.sources, copy.source), _name(self.targets, copy.target), copy.region) for copy in copies]
        moves = [(source, target, str(region), region.size) for source, target, region in named]
        return plan_html(len(self.sources), len(self.targets), moves, len(self.copies))

    def bounds(self) -> Ints:
        """[m + 1] where each target's copies begin in ``copies``."""
        return np.searchsorted(self.copies.target, np.arange(len(self.targets) + 1))


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """What a policy's answer becomes: the slices to write and the file that each goes to."""

    slices: SliceTable
    """The slices, in the order in which they are written."""
    file: Ints
    """[m] the number of the file of each."""
    num_files: int
    """The number of files."""
    description: str = ""
    """The policy's own sentence about itself."""


def plan_copies(sources: SliceTable, targets: SliceTable) -> Plan:
    """The plan that fills the targets from the sources, matching tensors by key.

    Sources must not overlap (``find_faults``). ``UnknownKey`` where no source has a target's key,
    ``InconsistentTensor`` where the two disagree on dtype or full shape, ``IncompleteCheckpoint`` where a region of a
    target is in no source. Linear in slices plus copies, but for sorting.
    """
    tensor_of = _match(sources.tensors, targets.tensors)
    rank = max(sources.shape.shape[1], targets.shape.shape[1])
    offset_a, shape_a = sources.boxes(rank)
    offset_b, shape_b = targets.boxes(rank)
    offset_b[:, 0] = tensor_of[targets.tensor]
    pairs = list(overlapping_pairs(offset_b, shape_b, offset_a, shape_a))
    target = np.concatenate([np.zeros(0, np.int64), *(i for i, _ in pairs)])
    source = np.concatenate([np.zeros(0, np.int64), *(j for _, j in pairs)])
    offset, shape = intersect(offset_a[source, 1:], shape_a[source, 1:], offset_b[target, 1:], shape_b[target, 1:])
    order = np.lexsort((*offset.T[::-1], target))
    return Plan(sources, targets, CopyTable(source, target, offset, shape).take(order))


def check_covers(targets: SliceTable, copies: CopyTable) -> None:
    """Raise ``IncompleteCheckpoint``, naming key and regions, unless the copies hold every element of every target.

    The copies are intersections of disjoint sources with a target, so they cover it if their sizes add up to its own.
    """
    filled = np.zeros(len(targets), dtype=np.int64)
    np.add.at(filled, copies.target, np.prod(copies.shape, axis=1, dtype=np.int64))
    short = np.flatnonzero(filled != np.prod(targets.shape, axis=1, dtype=np.int64))
    if not len(short):
        return
    row = int(short[0])
    mine = copies.take(np.flatnonzero(copies.target == row))
    rank = targets.tensors.ranks[targets.tensor[row]]
    found = [
        Region(offset.tolist(), shape.tolist())
        for offset, shape in zip(mine.offset[:, :rank], mine.shape[:, :rank], strict=True)
    ]
    error = missing(targets.key(row), targets.region(row), found)
    more = f" {len(short) - 1} more slices are incomplete." if len(short) > 1 else ""
    raise IncompleteCheckpoint(error.cause + more, error.remedy)


def _match(sources: TensorTable, targets: TensorTable) -> Ints:
    """[n] the source tensor of each target tensor; both must agree on dtype and full shape."""
    rows = sources.rows()
    try:
        found = np.fromiter((rows[key] for key in targets.keys), np.int64, len(targets))
    except KeyError as error:
        raise unknown_key(error.args[0], rows) from None
    rank = max(sources.shapes.shape[1], targets.shapes.shape[1])
    same = (widen(sources.shapes, rank, 1)[found] == widen(targets.shapes, rank, 1)).all(axis=1)
    same &= (sources.codes[found] == targets.codes) & (sources.ranks[found] == targets.ranks)
    if not same.all():
        differences = [
            f"{targets.keys[row]!r} is {_described(sources, int(found[row]))} in the checkpoint "
            f"and {_described(targets, row)} where it is to go"
            for row in np.flatnonzero(~same).tolist()
        ]
        raise InconsistentTensor(f"{'; '.join(differences)}.", "Shapes and dtypes are never changed unasked.")
    return found


def _name(slices: SliceTable, row: int) -> tuple[int, str, int]:
    """A slice's row, what a person calls it, and its number of elements."""
    region = slices.region(row)
    return row, f"{slices.key(row)}{region}", region.size


def _described(tensors: TensorTable, row: int) -> str:
    return f"{tensors.dtype(row)}{list(tensors.shape(row))}"
