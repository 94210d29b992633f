"""What one tensor of an index may say wrongly, found for all of them at once.

A checksum guards every block, so such things come from a writer that is wrong or hostile. They are that tensor's own
fault and keep no other from being read. What is in range here is safe to compute with in 64 bits everywhere else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardvar.errors import CheckpointError, InvalidCheckpoint, OutOfBounds
from shardvar.formats.native.overview import Overview
from shardvar.layout.dtypes import ITEMSIZES, MAX_NBYTES, Ints
from shardvar.planning.index import EntryTable
from shardvar.wire.damage import WRITE_AGAIN, invalid

Complaint = tuple[npt.NDArray[np.bool], Callable[[int], CheckpointError]]
"""[m] the entries that are wrong, and the error of one of them."""


def find_broken(table: EntryTable, unknown: dict[int, str], overview: Overview) -> dict[int, CheckpointError]:
    """The tensors that cannot be what they say, each with its error; ``unknown`` are those of unknown dtypes."""
    broken: dict[int, CheckpointError] = {
        tensor: InvalidCheckpoint(
            f"The dtype {name!r} of {table.slices.tensors.keys[tensor]!r} is not known.", "Install a newer release."
        )
        for tensor, name in unknown.items()
    }
    for is_wrong, error in _Claims(table, overview).complaints():
        for row in np.flatnonzero(is_wrong).tolist():
            broken.setdefault(int(table.slices.tensor[row]), error(row))
    return broken


@dataclass(frozen=True, slots=True)
class _Claims:
    """What the entries of a block claim."""

    table: EntryTable
    """The claims."""
    overview: Overview
    """What there really is."""

    def complaints(self) -> Iterator[Complaint]:
        """What is wrong with them, the first things first."""
        slices = self.table.slices
        full, itemsize = slices.tensors.shapes[slices.tensor], ITEMSIZES[slices.codes()]
        is_huge = _is_huge(full, itemsize) | _is_huge(slices.shape, itemsize) | (slices.offset > MAX_NBYTES).any(axis=1)
        yield is_huge, self._huge
        # Exact where it is not huge, which is said already; and without a size of its own, an element takes a byte.
        nbytes = np.where(is_huge, 0, np.prod(slices.shape, axis=1, dtype=np.int64) * np.maximum(itemsize, 1))
        yield (itemsize == 0) & (slices.shape != full).any(axis=1), self._cut
        yield np.where(itemsize == 0, slices.nbytes < nbytes, slices.nbytes != nbytes), self._other_size
        file_nbytes = np.append(self.overview.file_nbytes, -1)  # a file that there is not holds nothing
        there = file_nbytes[np.minimum(self.table.file, len(file_nbytes) - 1)]
        yield self.table.start + slices.nbytes > there, self._outside

    def _huge(self, row: int) -> CheckpointError:
        return invalid(f"{self._slice(row)} is too large to exist.")

    def _cut(self, row: int) -> CheckpointError:
        return invalid(f"{self._slice(row)} is a part of a tensor whose payload has no parts.")

    def _other_size(self, row: int) -> CheckpointError:
        return invalid(f"{self._slice(row)} has {self.table.slices.nbytes[row]} bytes, which is not its size.")

    def _outside(self, row: int) -> CheckpointError:
        table = self.table
        return OutOfBounds(
            f"{self._slice(row)} of {table.slices.nbytes[row]} bytes at offset {table.start[row]} reaches out of data "
            f"file {table.file[row]} of {len(self.overview.file_nbytes)}.",
            WRITE_AGAIN,
        )

    def _slice(self, row: int) -> str:
        slices = self.table.slices
        tensor = int(slices.tensor[row])
        shape = slices.shape[row, : slices.tensors.ranks[tensor]].tolist()
        return f"The {slices.dtype(row)} slice {shape} of {slices.key(row)!r}, a {slices.tensors.shape(tensor)} tensor,"


def _is_huge(shape: Ints, itemsize: Ints) -> npt.NDArray[np.bool]:
    """[m] True where an extent, or the bytes of all elements, are more than any machine's."""
    nbytes = np.prod(shape, axis=1, dtype=np.float64) * np.maximum(itemsize, 1)
    huge: npt.NDArray[np.bool] = (shape > MAX_NBYTES).any(axis=1) | (nbytes > MAX_NBYTES)
    return huge
