"""Blocks of entries of a native index, as columns in memory. Nothing is believed.

A block of entries describes n tensors and their m entries, at least one each, in the order of the
keys (``Entries``):

    key                 packed strings [n], strictly rising as byte strings
    dtype_name, dtype   packed strings: the names in use; u8 [n]: the number of each tensor's name
                        among them
    rank, shape         u8 [n]; u64: the extents of every full shape, one shape after the other
    count               u32 [n]: the number of entries of each tensor
    offset, extent      u64: the region of every entry, one after the other, as many numbers each as
                        its tensor has axes
    file, start, nbytes u32, u64, u64 [m]: the place of the payload
    crc                 u32 [m]: the CRC32C of the payload
    digest              optional, 32 bytes [m]: the SHA-256 of the SHA-256 of each MiB of the payload;
                        zeros where it is not known
    run_crc             u32: the CRC32C of every run of every payload that is longer than one run

Columns that disagree with each other are the block's fault, and raised. A checksum guards every
block, so impossible values come from a faulty or hostile writer. They are the fault of one tensor,
which is left out of the table and listed as broken; every other can be read. Values that pass are
safe to compute with in 64 bits. Slices that overlap or leave holes are not looked for here
(``planning``).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import lt

import numpy as np
import numpy.typing as npt

from shardvar.errors import CheckpointError, InvalidCheckpoint, OutOfBounds
from shardvar.formats.native.overview import Overview, decode_text
from shardvar.layout.dtypes import ITEMSIZES, NAMES, OWN_SIZE, Ints, code, slice_nbytes
from shardvar.limits import (
    MAX_KEY_NBYTES,
    MAX_NBYTES,
    MAX_RANK,
    MAX_SHARED_NBYTES,
)
from shardvar.planning.index import DIGEST_NBYTES, EntryTable, RunChecksums
from shardvar.planning.slices import SliceTable, TensorTable
from shardvar.wire.block_file import IndexBlock
from shardvar.wire.damage import WRITE_AGAIN, check_key_nbytes, invalid


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The content of one block of entries."""

    first_key: bytes
    """The first key, as it is stored."""
    last_key: bytes
    """The last key, as it is stored."""
    table: EntryTable
    """The entries of the tensors that are possible."""
    broken: dict[str, CheckpointError]
    """The other tensors, each with its error."""
    rows: dict[str, int]
    """The row of each key among the tensors of ``table``."""

    def find(self, key: str) -> EntryTable | None:
        """Return the entries of one key, over a table of only it; None if the block lacks it."""
        row = self.rows.get(key)
        if row is None:
            return None
        first, last = np.searchsorted(self.table.slices.tensor, [row, row + 1]).tolist()
        return select_entries(self.table, row, row + 1, first, last)


def select_entries(
    table: EntryTable, tensor: int, tensor_stop: int, first: int, last: int
) -> EntryTable:
    """Return the rows ``[first, last)`` of the tensors ``[tensor, tensor_stop)``, over a table of
    only these."""
    slices, tensors = table.slices, table.slices.tensors
    some, rows = slice(tensor, tensor_stop), slice(first, last)
    kept = TensorTable(
        tensors.keys[some], tensors.codes[some], tensors.ranks[some], tensors.shapes[some]
    )
    runs = table.runs and RunChecksums(
        table.runs.run_nbytes, table.runs.values, table.runs.first[rows]
    )
    return EntryTable(
        SliceTable(
            kept,
            slices.tensor[rows] - tensor,
            slices.offset[rows],
            slices.shape[rows],
            slices.nbytes[rows],
        ),
        table.file[rows],
        table.start[rows],
        table.checksum[rows],
        table.plain[rows],
        runs,
        None if table.digests is None else table.digests[rows],
    )


def decode_entries(block: IndexBlock, nbytes: int, overview: Overview) -> Entries:
    """Return the entries of a block that has ``nbytes`` bytes in the index."""
    file = block.numbers("file", "<u4").astype(np.int64)
    if nbytes > MAX_SHARED_NBYTES and len(file) != 1:
        raise invalid(
            f"{len(file)} entries share a block of {nbytes} bytes, more than {MAX_SHARED_NBYTES}."
        )
    keys, first_key, last_key = _read_keys(block)
    slices, unknown = _read_slices(block, keys, len(file))
    table = EntryTable(
        slices,
        file,
        _read_wide(block, "start", len(file)),
        block.numbers("crc", "<u4", len(file)).astype(np.int64),
        np.ones(len(file), np.bool),
        _read_runs(block, slices.nbytes, overview.run_nbytes),
    )
    if "digest" in block.values:  # which an index may have
        octets = block.numbers("digest", "u1", len(file) * DIGEST_NBYTES)
        table = replace(table, digests=octets.reshape(-1, DIGEST_NBYTES))
    errors: dict[str, CheckpointError] = {}
    broken = _find_broken(table, unknown, overview)
    if broken:
        table = _without(table, np.array(list(broken), np.int64))
        errors = {keys[tensor]: error for tensor, error in broken.items()}
    return Entries(first_key, last_key, table, errors, table.slices.tensors.rows())


def _read_keys(block: IndexBlock) -> tuple[list[str], bytes, bytes]:
    """Return the keys, and the first and the last of them as they are stored."""
    octets, bounds = block.octets("key"), block.bounds("key").tolist()
    if len(bounds) < 2:
        raise invalid("A block has no entries.")
    if len(octets) > MAX_KEY_NBYTES:
        check_key_nbytes(max(stop - start for start, stop in pairwise(bounds)))
    first, last = octets[: bounds[1]], octets[bounds[-2] :]
    if octets.isascii():
        # One character is one byte, so the text is decoded once and cut and compared at the same
        # offsets.
        text = octets.decode("ascii")
        keys = [text[start:stop] for start, stop in pairwise(bounds)]
        is_rising = all(map(lt, keys, keys[1:]))
    else:
        stored = block.strings("key")
        keys = list(map(decode_text, stored))
        # Keys rise as bytes, which is not the order of texts.
        is_rising = all(map(lt, stored, stored[1:]))
    if not is_rising:
        raise invalid("The keys of a block do not rise.")
    return keys, first, last


def _read_slices(block: IndexBlock, keys: list[str], m: int) -> tuple[SliceTable, dict[int, str]]:
    """Return the slices as stored, and the tensors of unknown dtypes with their names."""
    n = len(keys)
    # The counts divide the entries among the tensors. They have 32 bits, so their sum cannot
    # overflow 64.
    count = block.numbers("count", "<u4", n).astype(np.int64)
    if count.min() < 1 or count.sum() != m:
        raise invalid(
            f"The counts of {n} tensors, each at least 1, are {count.sum()} together for {m} "
            "entries."
        )
    ranks = block.numbers("rank", "u1", n).astype(np.int64)
    if ranks.max() > MAX_RANK:
        raise invalid(f"A tensor has {ranks.max()} axes; at most {MAX_RANK} are allowed.")
    names, which = (
        list(map(decode_text, block.strings("dtype_name"))),
        block.numbers("dtype", "u1", n),
    )
    if which.max() >= len(names):
        raise invalid(f"A tensor has dtype number {which.max()} of {len(names)}.")
    codes = np.array([code(name) if name in NAMES else -1 for name in names], np.int64)[which]
    unknown = {tensor: names[which[tensor]] for tensor in np.flatnonzero(codes < 0).tolist()}
    tensors = TensorTable(keys, np.maximum(codes, 0), ranks, _read_matrix(block, "shape", ranks, 1))
    tensor = np.repeat(np.arange(n), count)
    offset = _read_matrix(block, "offset", ranks[tensor], 0)
    shape = _read_matrix(block, "extent", ranks[tensor], 1)
    return SliceTable(tensors, tensor, offset, shape, _read_wide(block, "nbytes", m)), unknown


def _read_wide(block: IndexBlock, name: str, count: int) -> Ints:
    """Return a column of 64-bit numbers, at most ``MAX_NBYTES + 1``, so that sums of two fit."""
    column: Ints = np.minimum(block.numbers(name, "<u8", count), np.uint64(MAX_NBYTES + 1)).astype(
        np.int64
    )
    return column


def _read_matrix(block: IndexBlock, name: str, ranks: Ints, fill: int) -> Ints:
    """Return [rows, rank] a column's numbers in rows of ``ranks``, padded on the right."""
    flat = _read_wide(block, name, int(ranks.sum()))
    rank = int(ranks.max())
    if (ranks == rank).all():
        return flat.reshape(len(ranks), rank)
    # For ranks [2, 1] the mask is [[1, 1], [1, 0]], and its ones are filled row by row from the
    # flat numbers.
    matrix = np.full((len(ranks), rank), fill, np.int64)
    matrix[np.arange(rank) < ranks[:, None]] = flat
    return matrix


def _read_runs(block: IndexBlock, nbytes: Ints, run_nbytes: int) -> RunChecksums:
    """Return the checksums of all runs: stored ones, or the payload's own if it is one run."""
    counts = -(-nbytes // run_nbytes)
    many = counts > 1
    stored = block.numbers("run_crc", "<u4")
    # Compare the largest count first: the sum of hostile ones could overflow to the right number.
    if counts.max() > max(len(stored), 1) or counts[many].sum() != len(stored):
        raise invalid(
            f"The block has {len(stored)} checksums of runs, which is not one for each run."
        )
    # For counts [1, 3, 0, 1]: first = [0, 1, 4, 4]. Rows 0 and 3 are single runs with values at 0
    # and 4; the repeated mask is [0, 1, 1, 1, 0], and its ones take the three stored checksums of
    # row 1.
    first = np.cumsum(counts) - counts
    one = np.flatnonzero(counts == 1)
    values = np.empty(len(stored) + len(one), np.uint32)
    values[first[one]] = block.numbers("crc", "<u4", len(nbytes))[one]
    values[np.repeat(many, counts)] = stored
    return RunChecksums(run_nbytes, values, first)


def _without(table: EntryTable, tensors: Ints) -> EntryTable:
    """Return the table without some of its tensors."""
    kept = np.ones(len(table.slices.tensors), np.bool)
    kept[tensors] = False
    rest = table.take(np.flatnonzero(kept[table.slices.tensor]))
    position = np.cumsum(kept) - 1  # the new row of each tensor that is kept
    slices = replace(
        rest.slices,
        tensors=rest.slices.tensors.take(np.flatnonzero(kept)),
        tensor=position[rest.slices.tensor],
    )
    return replace(rest, slices=slices)


# --- Impossible tensors, found for all entries of a block at once

_Violation = tuple[npt.NDArray[np.bool], Callable[[int], CheckpointError]]
"""[m] the entries that break a law, and the error of one of them."""


def _find_broken(
    table: EntryTable, unknown: dict[int, str], overview: Overview
) -> dict[int, CheckpointError]:
    """Return the tensors that break a law, each with its error; ``unknown`` dtypes included."""
    broken: dict[int, CheckpointError] = {}
    for tensor, name in unknown.items():
        broken[tensor] = InvalidCheckpoint(
            f"The dtype {name!r} of {table.slices.tensors.keys[tensor]!r} is unknown.",
            "Install a newer release.",
        )
    for is_wrong, error in _Laws(table, overview).violations():
        for row in np.flatnonzero(is_wrong).tolist():
            broken.setdefault(int(table.slices.tensor[row]), error(row))
    return broken


@dataclass(frozen=True, slots=True)
class _Laws:
    """The laws for each entry of a block: possible sizes, and a payload within its file."""

    table: EntryTable
    """The entries."""
    overview: Overview
    """The sizes of the data files."""

    def violations(self) -> Iterator[_Violation]:
        """The violations of each law; the laws that others depend on come first."""
        slices = self.table.slices
        full, itemsize = slices.tensors.shapes[slices.tensor], ITEMSIZES[slices.codes()]
        is_huge = (
            _is_huge(full, itemsize)
            | _is_huge(slices.shape, itemsize)
            | (slices.offset > MAX_NBYTES).any(axis=1)
        )
        yield is_huge, self._huge
        # The product may overflow only for huge slices, which are reported already and count as 0
        # here. Elements of dtypes without a fixed size (strings, variants) take a byte at least.
        shape = np.where(is_huge[:, None], 0, slices.shape)
        nbytes, least = slice_nbytes(slices.codes(), shape), np.prod(shape, axis=1, dtype=np.int64)
        yield (itemsize == 0) & (slices.shape != full).any(axis=1), self._cut
        own = OWN_SIZE[slices.codes()]
        yield np.where(own, slices.nbytes < least, slices.nbytes != nbytes), self._other_size
        # A number beyond the last file selects the appended size -1, which no payload fits in.
        file_nbytes = np.append(self.overview.file_nbytes, -1)
        available = file_nbytes[np.minimum(self.table.file, len(file_nbytes) - 1)]
        yield self.table.start + slices.nbytes > available, self._outside

    def _huge(self, row: int) -> CheckpointError:
        return invalid(f"{self._slice(row)} is too large to exist.")

    def _cut(self, row: int) -> CheckpointError:
        return invalid(f"{self._slice(row)} is a part of a tensor whose payload cannot be divided.")

    def _other_size(self, row: int) -> CheckpointError:
        return invalid(
            f"{self._slice(row)} has {self.table.slices.nbytes[row]} bytes, which is not its size."
        )

    def _outside(self, row: int) -> CheckpointError:
        table = self.table
        return OutOfBounds(
            f"{self._slice(row)} of {table.slices.nbytes[row]} bytes at offset {table.start[row]} "
            f"reaches out of data file {table.file[row]} of {len(self.overview.file_nbytes)}.",
            WRITE_AGAIN,
        )

    def _slice(self, row: int) -> str:
        slices = self.table.slices
        tensor = int(slices.tensor[row])
        shape = slices.shape[row, : slices.tensors.ranks[tensor]].tolist()
        return (
            f"The {slices.dtype(row)} slice {shape} of {slices.key(row)!r}, a "
            f"{slices.tensors.shape(tensor)} tensor,"
        )


def _is_huge(shape: Ints, itemsize: Ints) -> npt.NDArray[np.bool]:
    """Return [m] True where an extent, or the size of all elements, is larger than any machine can
    hold.

    The size is computed in floating point, which is inexact and cannot overflow to a small number.
    """
    nbytes = np.prod(shape, axis=1, dtype=np.float64) * np.maximum(itemsize, 1)
    huge: npt.NDArray[np.bool] = (shape > MAX_NBYTES).any(axis=1) | (nbytes > MAX_NBYTES)
    return huge
