"""Filling files in order up to a limit: what fits goes in, what does not is cut, or begins the next file.

``cut`` decides how: it is given a piece that does not fit what remains in the file, and answers with the piece in two,
or with nothing where the next file should be begun. Runs of slices that fit are found by bisection, so that a hundred
thousand small ones cost no more than the files that they fill.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shardvar.layout.dtypes import ITEMSIZES, Ints
from shardvar.layout.region import Region
from shardvar.planning.slices import SliceTable

Cut = Callable[[Region, int, int, int], "tuple[Region, Region] | None"]
"""(region, bytes of an element, bytes that remain in the file, limit) -> the region in two, or None."""


@dataclass(frozen=True, slots=True)
class Filling:
    """What is to be filled into files, and up to which size."""

    slices: SliceTable
    """All slices."""
    weights: Ints
    """[m] the bytes of each that count."""
    cuttable: npt.NDArray[np.bool]
    """[m] whether each may be cut."""
    limit: int
    """The bytes that count of a file."""


@dataclass(slots=True)
class Filled:
    """Files as they were filled: which rows, and which parts of them, in which file."""

    limit: int
    """The bytes of a file."""
    rows: list[Ints] = field(default_factory=list)
    """Runs of rows."""
    files: list[int] = field(default_factory=list)
    """The file of each run."""
    regions: dict[int, Region] = field(default_factory=dict)
    """The parts of what was cut, by the number of the run, which is one row."""
    file: int = 0
    """The file that is being filled."""
    remaining: int = field(init=False)
    """The bytes that remain in it."""

    def __post_init__(self) -> None:
        self.remaining = self.limit

    @property
    def num_files(self) -> int:
        """The files that hold something."""
        return max(self.files, default=-1) + 1

    def next_file(self) -> None:
        """Begin the next file."""
        self.file, self.remaining = self.file + 1, self.limit

    def put(self, rows: Ints, nbytes: int) -> None:
        """Put rows in the file; one that exceeds the limit fills it."""
        self.rows.append(rows)
        self.files.append(self.file)
        self.remaining = max(self.remaining - nbytes, 0)


def fill(work: Filling, rows: Ints, cut: Cut) -> Filled:
    """The rows in files, one after the other; those that no file can hold last, each in a file of its own."""
    filled = Filled(work.limit)
    weights = work.weights[rows]
    total = np.concatenate([[0], np.cumsum(weights)])
    aside: list[int] = []
    position = 0
    while position < len(rows):
        stop = int(np.searchsorted(total, total[position] + filled.remaining, side="right")) - 1
        if stop > position:
            filled.put(rows[position:stop], int(total[stop] - total[position]))
            position = stop
            continue
        if work.cuttable[rows[position]]:
            _fill_cut(work, filled, int(rows[position]), cut)
        elif weights[position] > work.limit:
            aside.append(position)
        else:
            filled.next_file()
            filled.put(rows[position : position + 1], int(weights[position]))
        position += 1
    # A file for tensors without elements alone would be one too many.
    first = 0 if _is_empty(work, filled) else filled.num_files
    for number, position in enumerate(aside):
        filled.file = first + number
        filled.put(rows[position : position + 1], work.limit)
    return filled


def _is_empty(work: Filling, filled: Filled) -> bool:
    """Whether nothing with an element is in a file yet."""
    return not any(work.slices.nbytes[rows].any() for rows in filled.rows)


def _fill_cut(work: Filling, filled: Filled, row: int, cut: Cut) -> None:
    """One slice, cut until each of its pieces is in a file."""
    itemsize = int(ITEMSIZES[work.slices.tensors.codes[work.slices.tensor[row]]])
    rest = [work.slices.region(row)]
    while rest:
        region = rest.pop()
        nbytes = region.size * itemsize
        if nbytes > filled.remaining:
            halves = cut(region, itemsize, filled.remaining, work.limit)
            if halves:
                rest.extend(reversed(halves))
                continue
            if filled.remaining < work.limit:
                filled.next_file()
                rest.append(region)
                continue
        filled.regions[len(filled.rows)] = region
        filled.put(np.array([row]), nbytes)


def fewest_files(work: Filling, rows: Ints) -> int:
    """The files that filling in order takes at least: as if every slice that may be cut were cut between any elements.

    Each file holds a run of the elements in order; the first file can hold no more than filling it up to its last whole
    element does, and so on: no other filling in order is ahead of this one after any file.
    """
    limit, weights = work.limit, work.weights[rows]
    items = ITEMSIZES[work.slices.codes()[rows]]
    total = np.concatenate([[0], np.cumsum(weights)])
    full, remaining, aside, position = 0, limit, 0, 0
    is_begun = False  # what has no elements begins no file
    while position < len(rows):
        stop = int(np.searchsorted(total, total[position] + remaining, side="right")) - 1
        if stop > position:
            remaining -= int(total[stop] - total[position])
            is_begun |= bool(work.slices.nbytes[rows[position:stop]].any())
            position = stop
            continue
        nbytes, item = int(weights[position]), int(items[position])
        if not work.cuttable[rows[position]]:
            if nbytes > limit:
                aside += 1
            else:
                full, remaining = full + 1, limit - nbytes
        else:
            is_begun_here = remaining < limit
            count = nbytes // item - remaining // item
            each = max(limit // item, 1)
            files = -(-count // each)
            full += files if is_begun_here or remaining >= item else files - 1
            remaining = max(limit - (count - (files - 1) * each) * item, 0)
            is_begun = True
        position += 1
    return full + is_begun + aside
