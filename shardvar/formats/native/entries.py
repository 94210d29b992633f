"""A block of entries, decoded: columns on disk become columns in memory, and nothing in them is believed.

For n tensors and the m entries that each of them has at least one of, in the order of the keys:

    key                 packed strings [n], strictly rising as byte strings
    dtype_name, dtype   packed strings: the names in use; u8 [n]: which of them each tensor has
    rank, shape         u8 [n]; u64: the extents of every full shape, one shape after the other
    count               u32 [n]: how many of the entries are the tensor's
    offset, extent      u64: the region of every entry, one after the other, as many numbers each as its tensor has axes
    file, start, nbytes u32, u64, u64 [m]: where the payload lies
    crc                 u32 [m]: the CRC32C of the payload
    run_crc             u32: the CRC32C of every run of every payload that is longer than one run

What breaks the columns themselves is the block's fault, and raised. What one tensor says wrongly is that tensor's fault
alone: it is left out of the table and listed as broken. Whether its slices overlap or leave holes is not asked here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import lt
from typing import Self

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, CheckpointError, InvalidCheckpoint, OutOfBounds, UnsupportedError
from shardvar.formats.native.names import MAX_FILES, is_generation
from shardvar.layout.dtypes import ITEMSIZES, MAX_NBYTES, MAX_RANK, NAMES, Ints, code
from shardvar.planning.index import EntryTable, Metadata, RunChecksums
from shardvar.planning.slices import SliceTable, TensorTable
from shardvar.wire.block_file import IndexBlock, encode_index_block, pack_strings
from shardvar.wire.damage import WRITE_AGAIN, invalid

# What a native index says about the checkpoint as a whole: its metadata block.
#
# description, writer     texts
# generation              the text that the data files' names have in them: 1 to 64 letters and digits
# run_nbytes              the bytes of a run that has a checksum of its own
# file_nbytes             u64 for each data file: its exact size
# user_name, user_value   packed strings: what the user keeps with the checkpoint


RUN_NBYTES = 1 << 18
"""The run of this writer: a 2.4 MB slice reads at most half a MiB more, and 4 bytes guard each 256 KiB."""

MAX_RUN_NBYTES = 1 << 30
"""The largest run that a reader takes: it reads that much to verify one byte."""


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """The metadata block of a native index."""

    metadata: Metadata
    """What the checkpoint says about itself."""
    generation: str
    """What tells the data files of one commit from those of another."""
    file_nbytes: Ints
    """[files] the exact size of each data file."""
    run_nbytes: int = RUN_NBYTES
    """The bytes of a run."""

    def encode(self) -> bytes:
        """The metadata block."""
        user = sorted((encode_text(name), encode_text(value)) for name, value in self.metadata.user.items())
        return encode_index_block(
            {
                "description": self.metadata.description,
                "writer": self.metadata.writer,
                "generation": self.generation,
                "run_nbytes": self.run_nbytes,
                "file_nbytes": self.file_nbytes.astype("<u8"),
                **pack_strings("user_name", [name for name, _ in user]),
                **pack_strings("user_value", [value for _, value in user]),
            }
        )

    @classmethod
    def decode(cls, block: IndexBlock) -> Self:
        """What the metadata block says; ``InvalidCheckpoint`` where it breaks a law."""
        generation = block.text("generation")
        if not is_generation(generation):
            raise invalid(f"The generation {generation!r} is not made of 1 to 64 letters and digits.")
        sizes = block.numbers("file_nbytes", "<u8")
        if len(sizes) > MAX_FILES or int(sizes.max(initial=0)) > MAX_NBYTES:
            raise invalid(f"There are {len(sizes)} data files, of up to {sizes.max(initial=0)} bytes.")
        names = block.strings("user_name")
        values = block.strings("user_value", len(names))
        user = {decode_text(name): decode_text(value) for name, value in zip(names, values, strict=True)}
        metadata = Metadata(block.text("description"), block.text("writer"), user)
        run_nbytes = block.integer("run_nbytes", MAX_RUN_NBYTES)
        if not run_nbytes:
            raise invalid("Runs of no bytes guard nothing.")
        return cls(metadata, generation, sizes.astype(np.int64), run_nbytes)


def encode_text(text: str) -> bytes:
    """The bytes of a key or of a user's text: UTF-8, and for surrogate escapes the bytes that they stand for."""
    try:
        octets = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{text!r} is no valid Unicode.", "Choose another name.") from error
    if not text.isascii() and decode_text(octets) != text:
        raise UnsupportedError(f"{text!r} has escapes for bytes that are valid UTF-8.", "Write the characters.")
    return octets


def decode_text(octets: bytes) -> str:
    """The text that the bytes are; those that are no UTF-8 become surrogate escapes."""
    return octets.decode("utf-8", "surrogateescape")


# What one tensor of an index may say wrongly, found for all of them at once.
#
# A checksum guards every block, so such things come from a writer that is wrong or hostile. They are that tensor's own
# fault and keep no other from being read. What is in range here is safe to compute with in 64 bits everywhere else.


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


MAX_SHARED_NBYTES = 1 << 20
"""A block of more bytes holds one entry: a row becomes up to 1.5 KiB of columns in memory, whatever it is on disk."""


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """What one block says."""

    first_key: bytes
    """The first key, as it is stored."""
    last_key: bytes
    """The last one."""
    table: EntryTable
    """The entries of the tensors that make sense."""
    broken: dict[str, CheckpointError]
    """The other tensors."""
    rows: dict[str, int]
    """The row of each key among the tensors of ``table``."""

    def find(self, key: str) -> EntryTable | None:
        """The entries of one key, over a table of that tensor alone."""
        row = self.rows.get(key)
        if row is None:
            return None
        first, last = np.searchsorted(self.table.slices.tensor, [row, row + 1]).tolist()
        return select(self.table, row, row + 1, first, last)


def select(table: EntryTable, tensor: int, tensor_stop: int, first: int, last: int) -> EntryTable:
    """The rows ``[first, last)``, which are those of the tensors ``[tensor, tensor_stop)``, over these alone."""
    slices, tensors = table.slices, table.slices.tensors
    some, rows = slice(tensor, tensor_stop), slice(first, last)
    kept = TensorTable(tensors.keys[some], tensors.codes[some], tensors.ranks[some], tensors.shapes[some])
    runs = table.runs and RunChecksums(table.runs.run_nbytes, table.runs.values, table.runs.first[rows])
    return EntryTable(
        SliceTable(kept, slices.tensor[rows] - tensor, slices.offset[rows], slices.shape[rows], slices.nbytes[rows]),
        table.file[rows],
        table.start[rows],
        table.checksum[rows],
        table.plain[rows],
        runs,
    )


def decode_entries(block: IndexBlock, nbytes: int, overview: Overview) -> Entries:
    """The entries of a block of ``nbytes`` bytes."""
    file = block.numbers("file", "<u4").astype(np.int64)
    if nbytes > MAX_SHARED_NBYTES and len(file) != 1:
        raise invalid(f"{len(file)} entries share a block of {nbytes} bytes; {MAX_SHARED_NBYTES} are the most.")
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
    broken = find_broken(table, unknown, overview)
    if broken:
        table = _without(table, np.array(list(broken), np.int64))
    errors = {keys[tensor]: error for tensor, error in broken.items()}
    return Entries(first_key, last_key, table, errors, table.slices.tensors.rows())


def _read_keys(block: IndexBlock) -> tuple[list[str], bytes, bytes]:
    """The keys, and the first and the last of them as they are stored."""
    octets, bounds = block.octets("key"), block.bounds("key").tolist()
    if len(bounds) < 2:
        raise invalid("A block has no entries.")
    first, last = octets[: bounds[1]], octets[bounds[-2] :]
    if octets.isascii():  # where characters are bytes, texts are cut and compared as these are
        text = octets.decode("ascii")
        keys = [text[start:stop] for start, stop in pairwise(bounds)]
        is_rising = all(map(lt, keys, keys[1:]))
    else:
        stored = block.strings("key")
        keys = list(map(decode_text, stored))
        is_rising = all(map(lt, stored, stored[1:]))
    if not is_rising:
        raise invalid("The keys of a block do not rise.")
    return keys, first, last


def _read_slices(block: IndexBlock, keys: list[str], m: int) -> tuple[SliceTable, dict[int, str]]:
    """The slices as they stand there, and the tensors whose dtype is not known, with its name."""
    n = len(keys)
    count = block.numbers("count", "<u4", n).astype(np.int64)
    if count.min() < 1 or count.sum() != m:
        raise invalid(f"{n} tensors have {count.sum()} entries, one at least each; {m} are there.")
    ranks = block.numbers("rank", "u1", n).astype(np.int64)
    if ranks.max() > MAX_RANK:
        raise invalid(f"A tensor has {ranks.max()} axes; {MAX_RANK} are the most.")
    names, which = list(map(decode_text, block.strings("dtype_name"))), block.numbers("dtype", "u1", n)
    if which.max() >= len(names):
        raise invalid(f"A tensor has dtype number {which.max()} of {len(names)}.")
    codes = np.array([code(name) if name in NAMES else -1 for name in names], np.int64)[which]
    unknown = {tensor: names[which[tensor]] for tensor in np.flatnonzero(codes < 0).tolist()}
    tensors = TensorTable(keys, np.maximum(codes, 0), ranks, _read_matrix(block, "shape", ranks, 1))
    tensor = np.repeat(np.arange(n), count)
    offset, shape = (_read_matrix(block, name, ranks[tensor], fill) for name, fill in (("offset", 0), ("extent", 1)))
    return SliceTable(tensors, tensor, offset, shape, _read_wide(block, "nbytes", m)), unknown


def _read_wide(block: IndexBlock, name: str, count: int) -> Ints:
    """A column of 64-bit numbers; those past any use become ``MAX_NBYTES + 1``, so that sums of two fit in 64 bits."""
    column: Ints = np.minimum(block.numbers(name, "<u8", count), np.uint64(MAX_NBYTES + 1)).astype(np.int64)
    return column


def _read_matrix(block: IndexBlock, name: str, ranks: Ints, fill: int) -> Ints:
    """[rows, rank] rows of several lengths, padded on the right."""
    flat = _read_wide(block, name, int(ranks.sum()))
    rank = int(ranks.max())
    if (ranks == rank).all():
        return flat.reshape(len(ranks), rank)
    matrix = np.full((len(ranks), rank), fill, np.int64)
    matrix[np.arange(rank) < ranks[:, None]] = flat
    return matrix


def _read_runs(block: IndexBlock, nbytes: Ints, run_nbytes: int) -> RunChecksums:
    """The checksums of all runs: those stored, and those of payloads that are one run."""
    counts = -(-nbytes // run_nbytes)
    many = counts > 1
    stored = block.numbers("run_crc", "<u4")
    # The largest first: a sum of large ones might come out right by overflowing.
    if counts.max() > max(len(stored), 1) or counts[many].sum() != len(stored):
        raise invalid(f"There are {len(stored)} checksums of runs, which is not one for each.")
    first = np.cumsum(counts) - counts
    one = np.flatnonzero(counts == 1)
    values = np.empty(len(stored) + len(one), np.uint32)
    values[first[one]] = block.numbers("crc", "<u4", len(nbytes))[one]
    values[np.repeat(many, counts)] = stored
    return RunChecksums(run_nbytes, values, first)


def _without(table: EntryTable, tensors: Ints) -> EntryTable:
    """The table without some of its tensors."""
    kept = np.ones(len(table.slices.tensors), np.bool)
    kept[tensors] = False
    rest = table.take(np.flatnonzero(kept[table.slices.tensor]))
    position = np.cumsum(kept) - 1
    slices = replace(
        rest.slices, tensors=rest.slices.tensors.take(np.flatnonzero(kept)), tensor=position[rest.slices.tensor]
    )
    return replace(rest, slices=slices)
