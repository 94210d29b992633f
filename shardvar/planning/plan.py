"""Plans: what moves where. A plan is a value, made only from metadata, and proven before anything
moves.

    save     slices in memory -> targets in files
    restore  stored slices    -> slices in memory
    reshard  stored slices    -> targets in files

are one question: which region of which source slice fills which target slice?

``plan_copies`` matches tensors by key and searches overlaps. A ``Plan`` can only be constructed if
its copies cover every target exactly, so a missing slice is an error here and never zeros later.

Merging. The slices of several processes become the entries of one checkpoint (``merge_entries``),
and are proven to be whole:

1. Processes agree on the dtype and the full shape of each tensor.
2. Slices of the same region are replicas: the process of the lowest number is taken. Their
   checksums must agree, unless the caller lets the first one count.
3. The slices that are left are disjoint and cover every tensor (``find_faults``).

Each error names the processes that it is about.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    IncompleteCheckpoint,
    InconsistentTensor,
    OverlappingSlices,
)
from shardvar.layout.dtypes import Bools, Ints
from shardvar.layout.region import Region, intersect, overlapping_pairs
from shardvar.planning.index import (
    EntryTable,
    concatenate_entries,
    find_faults,
    incomplete_key,
    unknown_key,
)
from shardvar.planning.slices import Columns, SliceTable, TensorTable, sum_by, widen
from shardvar.records import entity, frozen

_NAMED = 8  # Processes that an error names; the others it counts


# Values.


@frozen
class Copy:
    """One region that moves from a source slice to a target slice."""

    source: int  # the row of the source slice
    target: int  # the row of the target slice
    region: Region  # the region that moves, in the coordinates of the whole tensor


@entity
class CopyTable(Columns):
    """Columns of copies, ordered by target and, within a target, by offset."""

    source: Ints  # [c] rows of the sources
    target: Ints  # [c] rows of the targets
    offset: Ints  # [c, rank] first indices in the whole tensor
    shape: Ints  # [c, rank] extents


@entity
class Plan:
    """Copies that fill every target exactly; it can only be constructed if they do."""

    sources: SliceTable  # the slices that elements come from
    targets: SliceTable  # the slices to fill
    copies: CopyTable  # the regions that move

    def __post_init__(self) -> None:
        check_covers(self.targets, self.copies)

    def copy(self, row: int) -> Copy:
        target = int(self.copies.target[row])
        rank = self.targets.tensors.ranks[self.targets.tensor[target]]
        offset, shape = self.copies.offset[row, :rank], self.copies.shape[row, :rank]
        return Copy(int(self.copies.source[row]), target, Region(offset.tolist(), shape.tolist()))

    def bounds(self) -> Ints:
        """[m + 1] where the copies of each target begin in ``copies``."""
        # Copies are sorted by target, so bisection finds the first one of each.
        return np.searchsorted(self.copies.target, np.arange(len(self.targets) + 1))

    def _repr_html_(self) -> str:
        """The copies as a drawing and a table, for notebooks."""
        from shardvar.pictures.drawings import MOST_MOVES, plan_html

        copies = [self.copy(row) for row in range(min(len(self.copies), MOST_MOVES + 1))]
        named = [
            (_name(self.sources, copy.source), _name(self.targets, copy.target), copy.region)
            for copy in copies
        ]
        moves = [(source, target, str(region), region.size) for source, target, region in named]
        return plan_html(len(self.sources), len(self.targets), moves, len(self.copies))


# Copies.


def plan_copies(sources: SliceTable, targets: SliceTable) -> Plan:
    """The plan that fills the targets from disjoint sources, matching tensors by key."""
    # Match: the source tensor of each target tensor.
    tensor_of = _match(sources.tensors, targets.tensors)
    rank = max(sources.shape.shape[1], targets.shape.shape[1])
    offset_a, shape_a = sources.regions_by_tensor(rank)
    offset_b, shape_b = targets.regions_by_tensor(rank)
    # Search: both sides number tensors as the sources do, so that one search serves all tensors.
    offset_b[:, 0] = tensor_of[targets.tensor]
    none = np.zeros(0, np.int64)
    pairs = [(none, none), *overlapping_pairs(offset_b, shape_b, offset_a, shape_a)]
    target, source = map(np.concatenate, zip(*pairs, strict=True))
    offset, shape = intersect(
        offset_a[source, 1:], shape_a[source, 1:], offset_b[target, 1:], shape_b[target, 1:]
    )
    # Order: copies are moved target by target in C order, so that both sides are read and written
    # forwards. lexsort takes its last key first, hence the reversed columns: for rank 2 the keys
    # are (column 1, column 0, target).
    order = np.lexsort((*offset.T[::-1], target))
    return Plan(sources, targets, CopyTable(source, target, offset, shape).take(order))


def check_covers(targets: SliceTable, copies: CopyTable) -> None:
    """Raise unless the copies hold every element of every target. Copies from disjoint sources
    cover a target if their sizes add up to its size."""
    filled = sum_by(copies.target, np.prod(copies.shape, axis=1, dtype=np.int64), len(targets))
    sizes = np.prod(targets.shape, axis=1, dtype=np.int64)
    if (filled > sizes).any():
        row = int(np.argmax(filled > sizes))
        raise OverlappingSlices(
            f"Several slices of {targets.key(row)!r} hold the same elements of "
            f"{targets.region(row)}.",
            "Give sources that do not overlap, or write the checkpoint again.",
        )
    short = np.flatnonzero(filled != sizes)
    if not len(short):
        return
    row = int(short[0])
    own = copies.where(copies.target == row)
    rank = targets.tensors.ranks[targets.tensor[row]]
    columns = own.offset[:, :rank].tolist(), own.shape[:, :rank].tolist()
    error = incomplete_key(targets.key(row), targets.region(row), [*map(Region, *columns)])
    more = f" {len(short) - 1} more slices are incomplete." if len(short) > 1 else ""
    raise IncompleteCheckpoint(error.cause + more, error.remedy)


def _match(sources: TensorTable, targets: TensorTable) -> Ints:
    """[n] the source tensor of each target tensor; both must agree on dtype and full shape."""
    rows = sources.rows()
    try:
        tensor_of = np.fromiter(map(rows.__getitem__, targets.keys), np.int64, len(targets))
    except KeyError as error:
        raise unknown_key(error.args[0], rows) from None
    rank = max(sources.shapes.shape[1], targets.shapes.shape[1])
    wide = widen(sources.shapes, rank, 1)[tensor_of], widen(targets.shapes, rank, 1)
    same = (wide[0] == wide[1]).all(axis=1)
    # Ranks too: padded with 1, the shapes (3,) and (3, 1) are equal.
    same &= (sources.codes[tensor_of] == targets.codes) & (
        sources.ranks[tensor_of] == targets.ranks
    )
    if not same.all():
        differences = [
            f"{targets.keys[row]!r} is {_described(sources, int(tensor_of[row]))} in the "
            f"checkpoint and {_described(targets, row)} in the target"
            for row in np.flatnonzero(~same).tolist()
        ]
        raise InconsistentTensor(
            f"{'; '.join(differences)}.", "Shapes and dtypes are never changed unasked."
        )
    return tensor_of


def _name(slices: SliceTable, row: int) -> tuple[int, str, int]:
    region = slices.region(row)
    return row, f"{slices.key(row)}{region}", region.size


def _described(tensors: TensorTable, row: int) -> str:
    return f"{tensors.dtype(row)}{list(tensors.shape(row))}"


REPLICAS = ("equal", "first")
"""Ways to treat replicas: they must be equal, or only the first one is read."""


def check_replicas(replicas: str) -> None:
    if replicas not in REPLICAS:
        cause = f"replicas={replicas!r} is not a way to choose among replicas."
        raise ArgumentError(
            cause, "Give 'equal' (they must agree) or 'first' (the lowest process counts)."
        )


def merge_entries(tables: Sequence[EntryTable], replicas: str, *, is_part: bool) -> EntryTable:
    """Return the entries of one checkpoint, one table a process; unless it is a part, they cover every
    tensor."""
    check_replicas(replicas)
    firsts: dict[str, tuple[int, str, tuple[int, ...]]] = {}
    for number, table in enumerate(tables):
        for key, fact in table.slices.tensors.facts().items():
            own = number, *fact
            first = firsts.setdefault(key, own)
            if first[1:] != own[1:]:
                raise InconsistentTensor(
                    f"{key!r} is {first[1]}{list(first[2])} in process {first[0]} and "
                    f"{own[1]}{list(own[2])} in process {number}.",
                    "Give one dtype and one full shape in all processes.",
                )
    merged = concatenate_entries(tables)
    process = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    merged, process = _without_replicas(merged, process, replicas)
    faults = {} if is_part else find_faults(merged.slices)
    _raise_first(faults, merged.slices, process)
    return merged


def check_share(entries: EntryTable, process: int) -> None:
    """Raise ``OverlappingSlices`` if slices meet that are not replicas; holes are allowed."""
    kept, owner = _without_replicas(entries, np.full(len(entries), process), "first")
    _raise_first(find_faults(kept.slices, is_part=True), kept.slices, owner)


def _raise_first(faults: Mapping[str, CheckpointError], slices: SliceTable, process: Ints) -> None:
    """Raise the first fault of slices [m], with the processes that hold the tensor."""
    for key, error in faults.items():
        holders = np.unique(process[slices.tensor == slices.tensors.rows()[key]]).tolist()
        more = f" {len(faults) - 1} more tensors are at fault." if len(faults) > 1 else ""
        held = f" It is held by {name_processes(holders)}.{more}"
        raise type(error)(
            error.cause + held,
            "Compare the offsets and full shapes that these processes give, and save again, "
            "under a new run.",
        )


def name_processes(processes: Sequence[int]) -> str:
    texts = [str(process) for process in processes[:_NAMED]]
    if len(processes) > _NAMED:
        texts.append(f"{len(processes) - _NAMED} more")
    if len(texts) == 1:
        return f"process {texts[0]}"
    return f"processes {', '.join(texts[:-1])} and {texts[-1]}"


def _without_replicas(entries: EntryTable, process: Ints, replicas: str) -> tuple[EntryTable, Ints]:
    """The entries with one slice a region, from the first process, and the process of each."""
    slices = entries.slices
    # Replicas are neighbours, that of the first process first.
    order = slices.by_region()
    columns = np.column_stack([slices.tensor, slices.offset, slices.shape])[order]
    is_replica: Bools = np.zeros(len(order), np.bool)
    is_replica[1:] = (columns[1:] == columns[:-1]).all(axis=1)
    # Of replicas in the order 5, 2, 9 the first is 5: at each place, the last place that is not a
    # replica.
    first = order[np.maximum.accumulate(np.where(is_replica, 0, np.arange(len(order))))]
    if replicas == "equal":
        differs = (entries.checksum[order] != entries.checksum[first]) | (
            slices.nbytes[order] != slices.nbytes[first]
        )
        for place in np.flatnonzero(differs).tolist()[:1]:
            row, kept = int(order[place]), int(first[place])
            raise InconsistentTensor(
                f"The slice {slices.region(row)} of {slices.key(row)!r} has other values in "
                f"process {process[row]} than in process {process[kept]}.",
                "Save it from one of them, or give replicas='first' to take the process of the "
                "lowest number.",
            )
    rows = np.sort(order[~is_replica])
    return entries.take(rows), process[rows]
