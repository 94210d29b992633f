"""Pieces of slices: what policies cut, and which slices they may cut."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shardvar.layout.dtypes import NAMES, Ints, code
from shardvar.layout.region import Region
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a slice that a policy is given."""

    row: int
    """The row of the slice."""
    region: Region | None
    """The part, in the coordinates of the whole tensor; None for all of the slice."""
    nbytes: int
    """The bytes of its payload."""


def cuttable_rows(slices: SliceTable, capabilities: Capabilities) -> npt.NDArray[np.bool]:
    """[m] True where the format can hold slices of the tensor; strings are never cut."""
    held = np.zeros(len(NAMES), dtype=np.bool)
    held[[code(name) for name in capabilities.slice_dtypes]] = True
    ranks = slices.tensors.ranks
    allowed: npt.NDArray[np.bool] = held[slices.tensors.codes] & (ranks > 0) & (ranks <= capabilities.max_slice_rank)
    return np.asarray(allowed[slices.tensor])


def recut(slices: SliceTable, pieces: Sequence[Piece]) -> SliceTable:
    """The table of the pieces."""
    rows = np.array([piece.row for piece in pieces], dtype=np.int64)
    regions = {position: piece.region for position, piece in enumerate(pieces) if piece.region is not None}
    return take_parts(slices, rows, regions)


def take_parts(slices: SliceTable, rows: Ints, regions: dict[int, Region]) -> SliceTable:
    """The table of some of the rows in the given order, of which those in ``regions``, by position, are in part."""
    table = slices.take(rows)
    if not regions:
        return table
    offset, shape = table.offset.copy(), table.shape.copy()
    for position, region in regions.items():
        offset[position, : region.rank] = region.offset
        shape[position, : region.rank] = region.shape
    sized = SliceTable.of(table.tensors, table.tensor, offset, shape, table.nbytes)
    return replace(sized, device=table.device, devices=table.devices)


def file_nbytes(assignment: Assignment) -> Ints:
    """[num_files] the payload bytes of each file."""
    totals = np.zeros(assignment.num_files, dtype=np.int64)
    np.add.at(totals, assignment.file, assignment.slices.nbytes)
    return totals
