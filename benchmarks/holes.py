"""Native checkpoints whose data files are holes: valid, every checksum that of zeros, and as large
as one likes."""

import os
from pathlib import Path

import numpy as np

from shardvar.formats.native import FORMAT
from shardvar.formats.native.index import RUN_NBYTES
from shardvar.formats.protocol import FileChecksums
from shardvar.planning.index import Metadata
from shardvar.planning.slices import Assignment, SliceTable, TensorTable
from shardvar.storage.local import LocalStorage
from shardvar.wire.crc import CRC32C


def write_holes(prefix: Path, slices: SliceTable, num_files: int = 1) -> None:
    """Write a checkpoint of zeros: the slices in order, about as many in each file."""
    file = np.arange(len(slices)) * num_files // max(1, len(slices))
    assignment = Assignment(slices, file, num_files)
    sink = FORMAT.create(
        LocalStorage(str(prefix.parent)), prefix.name, assignment, Metadata(), "holes"
    )
    for name, nbytes in zip(sink.asides, sink.overview.file_nbytes.tolist(), strict=True):
        path = prefix.parent / name
        path.touch()
        os.truncate(path, nbytes)
    sink.commit([_checksums(slices.nbytes[file == number]) for number in range(num_files)])


def one_tensor(rows: int, count: int) -> SliceTable:
    """A float32 [rows, 64] tensor in ``count`` slices of whole rows."""
    bounds = np.arange(count + 1) * rows // count
    offset = np.column_stack([bounds[:-1], np.zeros(count, np.int64)])
    shape = np.column_stack([np.diff(bounds), np.full(count, 64)])
    return SliceTable.of(
        TensorTable.of([("table", "float32", (rows, 64))]), np.zeros(count, np.int64), offset, shape
    )


def _checksums(nbytes: np.ndarray) -> FileChecksums:
    sizes, which = np.unique(nbytes, return_inverse=True)
    each = [_of_zeros(size) for size in sizes.tolist()]
    runs = np.concatenate([np.zeros(0, np.uint32), *(each[number][1] for number in which.tolist())])
    return FileChecksums(np.array([payload for payload, _ in each], np.int64)[which], runs)


def _of_zeros(nbytes: int) -> tuple[int, np.ndarray]:
    """The checksum of a payload of zeros, and those of its runs."""
    whole, rest = divmod(nbytes, RUN_NBYTES)
    runs = np.full(whole, CRC32C.compute(bytes(RUN_NBYTES)), np.uint32)
    last = CRC32C.compute(bytes(rest))
    payload = CRC32C.combine(_of_equal_runs(whole), last, rest)
    return payload, np.append(runs, np.uint32(last)) if rest else runs


def _of_equal_runs(count: int) -> int:
    """The checksum of ``count`` runs of zeros, by doubling: all of them are equal, so their order
    does not matter."""
    total, power, nbytes = 0, CRC32C.compute(bytes(RUN_NBYTES)), RUN_NBYTES
    while count:
        if count & 1:
            total = CRC32C.combine(total, power, nbytes)
        power = CRC32C.combine(power, power, nbytes)
        count, nbytes = count >> 1, 2 * nbytes
    return total
