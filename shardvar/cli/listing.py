"""The tensors of an open checkpoint as rows for people and programs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from shardvar.checkpoint.reader import Reader
from shardvar.engine.evidence import ReadError
from shardvar.errors import ArgumentError
from shardvar.planning.index import NO_CHECKSUM, EntryTable

_MARKS = {
    "OverlappingSlices": "overlapping",
    "IncompleteCheckpoint": "incomplete",
    "MissingFile": "file missing",
    "OutOfBounds": "out of bounds",
    "InconsistentTensor": "inconsistent",
    "CorruptCheckpoint": "corrupt",
}


@dataclass(frozen=True, slots=True)
class Slice:
    """A stored slice."""

    offset: tuple[int, ...]
    """Its first index along each axis of the whole tensor."""
    shape: tuple[int, ...]
    """Its extents."""
    file: str
    """The data file that holds it."""
    start: int
    """Where its payload begins in the file, for formats that store payloads as they are."""
    nbytes: int
    """The bytes of the payload."""
    checksum: str | None
    """The payload's checksum as eight hexadecimal digits; None where the index has none."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that a checkpoint names."""

    key: str
    """Its name."""
    dtype: str | None
    """Its dtype; None where the index does not tell it."""
    shape: tuple[int, ...] | None
    """Its full shape; None where the index does not tell it."""
    nbytes: int
    """The bytes of its payloads."""
    num_slices: int
    """The slices that it is stored as."""
    files: tuple[str, ...]
    """The data files that hold them."""
    fault: ReadError | None
    """Why it cannot be read; None where it can."""
    rows: tuple[int, ...]
    """Its rows in the reader's entries."""

    @property
    def mark(self) -> str:
        """A word for the fault; empty where there is none."""
        return "" if self.fault is None else _MARKS.get(type(self.fault).__name__, "unreadable")

    def to_json(self) -> dict[str, Any]:
        """The tensor as a JSON object with stable keys."""
        fault = self.fault and {"kind": type(self.fault).__name__, "message": str(self.fault)}
        return {
            "key": self.key,
            "dtype": self.dtype,
            "shape": None if self.shape is None else list(self.shape),
            "nbytes": self.nbytes,
            "num_slices": self.num_slices,
            "files": list(self.files),
            "fault": fault,
        }


def list_tensors(reader: Reader, globs: Sequence[str] | None = None) -> list[Tensor]:
    """The tensors whose keys match one of the globs, in the order of the index."""
    entries, faults = reader.entries(), reader.faults
    tensors, files = entries.slices.tensors, reader.index.files
    order = np.argsort(entries.slices.tensor, kind="stable")
    bounds = np.searchsorted(entries.slices.tensor[order], np.arange(len(tensors) + 1)).tolist()
    order_list, nbytes, file = order.tolist(), entries.slices.nbytes.tolist(), entries.file.tolist()
    row_of = tensors.rows()
    listed = []
    for key in reader:
        if globs and not any(fnmatchcase(key, glob) for glob in globs):
            continue
        row = row_of.get(key)
        if row is None:
            listed.append(Tensor(key, None, None, 0, 0, (), faults.get(key), ()))
            continue
        rows = tuple(order_list[bounds[row] : bounds[row + 1]])
        names = tuple(files[number] for number in sorted({file[entry] for entry in rows}))
        total = sum(nbytes[entry] for entry in rows)
        dtype, shape = tensors.dtype(row), tensors.shape(row)
        listed.append(Tensor(key, dtype, shape, total, len(rows), names, faults.get(key), rows))
    if globs and not listed and reader.keys():
        raise ArgumentError(
            f"No tensor matches {' or '.join(globs)}.", "`shardvar inspect` without --filter lists all."
        )
    return listed


def list_slices(reader: Reader, tensor: Tensor) -> list[Slice]:
    """The slices of one tensor, in the order of their offsets."""
    entries, files = reader.entries(), reader.index.files
    return sorted((_slice(entries, files, row) for row in tensor.rows), key=lambda each: each.offset)


def slice_json(each: Slice) -> dict[str, Any]:
    """The slice as a JSON object with stable keys."""
    return asdict(each) | {"offset": list(each.offset), "shape": list(each.shape)}


def _slice(entries: EntryTable, files: Sequence[str], row: int) -> Slice:
    slices = entries.slices
    rank = int(slices.tensors.ranks[slices.tensor[row]])
    checksum = int(entries.checksum[row])
    return Slice(
        tuple(slices.offset[row, :rank].tolist()),
        tuple(slices.shape[row, :rank].tolist()),
        files[int(entries.file[row])],
        int(entries.start[row]),
        int(slices.nbytes[row]),
        None if checksum == NO_CHECKSUM else f"{checksum:08x}",
    )
