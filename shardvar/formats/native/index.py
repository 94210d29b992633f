"""A native index <-> values in memory: the metadata block, blocks of entries as columns, and the blocks
that are written. Nothing that is read is believed.

The file names of a native checkpoint, and the names that a person may type for one.

    PREFIX.svindex                          the table of contents
    PREFIX.svdata-GENERATION-00002-of-00005 data file 2 of 5; there are at most 99999, so five digits are enough
    PREFIX.svneeds-TOKEN, .svgone-TOKEN     marks of saves that refer to other checkpoints (``source``)

The index gives the generation and the number of files, and its own name gives the prefix. So an
index cannot lead to another directory, and a checkpoint is renamed by renaming its files. Several
processes that save into a bucket, where nothing can be renamed, give their files generations of
their own: then the index (version 3) gives the end of each name, after ``.svdata-``. A data file of
another checkpoint in the directory has the prefix of that one (version 4), which is a bare name.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import lt
from typing import Self

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    InvalidCheckpoint,
    OutOfBounds,
    UnsupportedError,
)
from shardvar.formats.protocol import FileChecksums
from shardvar.formats.unfinished import JOURNAL_ENDING, SHARE_MARK, is_share_file, share_files
from shardvar.layout.dtypes import ITEMSIZES, NAMES, OWN_SIZE, Ints, code, slice_nbytes
from shardvar.limits import (
    MAX_FILES,
    MAX_KEY_NBYTES,
    MAX_NBYTES,
    MAX_RANK,
    MAX_RUN_NBYTES,
    MAX_SHARED_NBYTES,
)
from shardvar.planning.index import (
    DIGEST_NBYTES,
    EntryTable,
    Metadata,
    RunChecksums,
    concatenate_entries,
    of_tensors,
)
from shardvar.planning.slices import Assignment, SliceTable, TensorTable
from shardvar.records import entity, frozen, replace
from shardvar.wire.block_file import (
    INDEX_VERSION,
    NAMED_VERSION,
    REFERRING_VERSION,
    IndexBlock,
    IndexValue,
    encode_block_file,
    encode_index_block,
    pack_strings,
)
from shardvar.wire.damage import WRITE_AGAIN, check_key_nbytes, invalid
from shardvar.wire.digests import DIGESTS, take_digests, with_digests

_INDEX_SUFFIX = ".svindex"

_GENERATION = r"[A-Za-z0-9]{1,64}"
_NAME_END = r"[A-Za-z0-9]{1,64}-[0-9]{5}-of-[0-9]{5}"
_DATA = r"(?s)(?P<prefix>.+)\.svdata-[A-Za-z0-9]{1,64}-\d{5}-of-\d{5}"
_ASIDE = (
    r"(?s)(?P<prefix>.+)\.(svdata-[A-Za-z0-9]{1,64}-\d{5}-of-\d{5}"
    + JOURNAL_ENDING
    + r"|svindex\.[A-Za-z0-9]{1,64}\.tmp|sv(?:needs|gone)-[A-Za-z0-9]{1,64})"
)
"""A data file, what may be next to one, an index under its temporary name, or a mark."""
_MARK = r"(?s)(?P<prefix>.+)\.sv(?P<kind>needs|gone)-[A-Za-z0-9]{1,64}"


def native_index_name(prefix: str) -> str:
    return prefix + _INDEX_SUFFIX


def aside_name(prefix: str, generation: str) -> str:
    """Return the temporary name under which the index is written before it replaces the old one."""
    return f"{native_index_name(prefix)}.{generation}.tmp"


def data_names(prefix: str, generation: str, count: int) -> list[str]:
    return [f"{prefix}.svdata-{generation}-{number:05}-of-{count:05}" for number in range(count)]


def native_data_name(prefix: str, end: str) -> str:
    return f"{prefix}.svdata-{end}"


def owner_of(name: str) -> str | None:
    """Return the prefix of the checkpoint that wrote a data file; None for any other file."""
    match = re.fullmatch(_DATA, name)
    return match["prefix"] if match else None


def has_neighbours(names: Iterable[str], prefix: str) -> bool:
    """Return True if a directory has indexes, data files or marks of other prefixes."""
    own = native_index_name(prefix)
    return any(
        name != own
        and (
            name.endswith(_INDEX_SUFFIX)
            or (".svdata-" in name and owner_of(name) not in (None, prefix))
            or has_marks([name])
        )
        for name in names
    )


def files_of_others(names: Iterable[str], prefix: str) -> dict[str, int]:
    owners = [owner for owner in map(owner_of, names) if owner not in (None, prefix)]
    return {owner: owners.count(owner) for owner in sorted({*filter(None, owners)})}


def has_marks(names: Iterable[str]) -> bool:
    return any(".svneeds-" in name or ".svgone-" in name for name in names)


def mark_name(prefix: str, kind: str, token: str) -> str:
    """Return the name of a mark: of the files that a save ``needs``, or that have ``gone``."""
    return f"{prefix}.sv{kind}-{token}"


def marks(names: Iterable[str], kind: str) -> list[tuple[str, str]]:
    found = [
        match
        for match in map(partial(re.fullmatch, _MARK), names)
        if match and match["kind"] == kind
    ]
    return [(match[0], match["prefix"]) for match in found]


def is_name_end(text: str) -> bool:
    return re.fullmatch(_NAME_END, text) is not None


def is_generation(text: str) -> bool:
    return re.fullmatch(_GENERATION, text) is not None


def check_generation(text: str) -> None:
    if not is_generation(text):
        raise ArgumentError(f"Invalid generation {text!r}.", "Give 1 to 64 letters and digits.")


def find_native(names: Iterable[str], name: str) -> list[str]:
    """Return the prefixes that a prefix, an index or a data file means; all for an empty name."""
    # An interpretation counts only if its index exists: data files without an index are not a
    # checkpoint.
    indexes = [file for file in names if file.endswith(_INDEX_SUFFIX) and file != _INDEX_SUFFIX]
    # The index of a share, which one process wrote, is not a checkpoint.
    indexes = [file for file in indexes if SHARE_MARK not in file or not is_share_file(file)]
    if not name:
        return [file.removesuffix(_INDEX_SUFFIX) for file in indexes]
    if native_index_name(name) in indexes:
        return [name]
    if name in indexes:
        return [name.removesuffix(_INDEX_SUFFIX)]
    data = re.fullmatch(_DATA, name)
    return [data["prefix"]] if data and native_index_name(data["prefix"]) in indexes else []


def leftovers(names: Iterable[str], prefix: str, named: Iterable[str]) -> list[str]:
    """Return the files of a prefix that its index, which names ``named``, does not name: of older
    generations, dead writers and shares. A copy of an index under another name is none of them."""
    names, kept = list(names), {native_index_name(prefix), *named}
    aside = [
        name
        for name in names
        if name not in kept and (match := re.fullmatch(_ASIDE, name)) and match["prefix"] == prefix
    ]
    return aside + share_files(names, prefix)


# The metadata block of a native index, which describes the checkpoint as a whole. Nothing is
# believed.
#
#     description, writer     texts
#     generation              the text that the data files' names contain: 1 to 64 letters and digits
#     run_nbytes              the size of a run of a payload; each run has a checksum
#     file_nbytes             u64 for each data file: its exact size
#     file_name               only in the versions 3 and 4, packed strings: of each data file, the
#                             end of its name, such as ``1f-00002-of-00005``
#     file_owner              only in version 4, packed strings: of each data file, the prefix of the
#                             checkpoint in the same directory that wrote it; empty for this one
#     user_name, user_value   packed strings: the user's metadata, and the digests of tensors as one
#                             text (``wire.digests``)

RUN_NBYTES = 1 << 18
"""The run of this writer: a slice reads at most half a MiB more, 4 bytes guard 256 KiB."""


@entity
class Overview:
    metadata: Metadata
    generation: str
    """The token that distinguishes the data files of one commit from the files of another."""
    file_nbytes: Ints
    run_nbytes: int = RUN_NBYTES
    file_names: Sequence[str] = ()
    """[files] the end of the name of each data file; empty if the generation gives all of them."""
    file_owners: Sequence[str] = ()
    """[files] the prefix of the checkpoint that wrote each data file, empty for this one; empty if it
    has written all of them."""

    @property
    def version(self) -> int:
        if self.file_owners:
            return REFERRING_VERSION
        return NAMED_VERSION if self.file_names else INDEX_VERSION

    def encode(self) -> bytes:
        texts, digests = self.metadata.user, self.metadata.digests
        texts = with_digests(texts, digests) if digests else texts
        user = sorted(zip(map(encode_text, texts), map(encode_text, texts.values()), strict=True))
        return encode_index_block(
            {
                "description": self.metadata.description,
                "writer": self.metadata.writer,
                "generation": self.generation,
                "run_nbytes": self.run_nbytes,
                "file_nbytes": self.file_nbytes.astype("<u8"),
                **{
                    field: octets
                    for name in ("file_name", "file_owner")
                    if (texts := getattr(self, name + "s"))
                    for field, octets in pack_strings(name, [*map(encode_text, texts)]).items()
                },
                **pack_strings("user_name", [name for name, _ in user]),
                **pack_strings("user_value", [value for _, value in user]),
            }
        )

    @classmethod
    def decode(cls, block: IndexBlock) -> Self:
        generation = block.text("generation")
        if not is_generation(generation):
            raise invalid(f"The generation {generation!r} is not 1 to 64 letters and digits.")
        sizes = block.numbers("file_nbytes", "<u8")
        if len(sizes) > MAX_FILES or int(sizes.max(initial=0)) > MAX_NBYTES:
            raise invalid(
                f"The index claims {len(sizes)} data files of up to {sizes.max(initial=0)} bytes."
            )
        ends, owners = _read_names(block, len(sizes))
        names = block.strings("user_name")
        values = block.strings("user_value", len(names))
        user = dict(zip(map(decode_text, names), map(decode_text, values), strict=True))
        digests: Mapping[str, str] = take_digests(user) if DIGESTS in user else {}
        about = block.text("description"), block.text("writer")
        metadata = Metadata(*about, user, generation=generation, digests=digests)
        run_nbytes = block.integer("run_nbytes", MAX_RUN_NBYTES)
        if not run_nbytes:
            raise invalid("The index has runs of 0 bytes.")
        return cls(metadata, generation, sizes.astype(np.int64), run_nbytes, ends, owners)

    def names(self, prefix: str) -> list[str]:
        """Return [files] the names of the data files of a prefix."""
        if self.file_owners:
            named = zip(self.file_owners, self.file_names, strict=True)
            return [native_data_name(owner or prefix, end) for owner, end in named]
        if self.file_names:
            return [native_data_name(prefix, end) for end in self.file_names]
        return data_names(prefix, self.generation, len(self.file_nbytes))


def _read_names(block: IndexBlock, count: int) -> tuple[list[str], list[str]]:
    """Return the ends of the data files' names and the prefixes of their writers, if any."""
    if "file_name" not in block.values:
        return [], []
    ends, owners = list(map(decode_text, block.strings("file_name", count))), list[str]()
    for end in ends:
        if not is_name_end(end):
            raise invalid(f"{end!r} is not the end of a data file's name.")
    if "file_owner" in block.values:
        owners = list(map(decode_text, block.strings("file_owner", count)))
        from shardvar.formats.sets import is_bare  # few checkpoints refer to others

        for owner in owners:
            if owner and not is_bare(owner):
                raise invalid(f"{owner!r} is not the name of a checkpoint in the same directory.")
    if len(set(zip(owners, ends, strict=True) if owners else ends)) != count:
        raise invalid("Two data files have one name.")
    return ends, owners


def encode_text(text: str) -> bytes:
    """Return a key or a user's text in UTF-8, in which surrogate escapes become their bytes.

    >>> encode_text("\\udcff"), encode_text("é")
    (b'\\xff', b'\\xc3\\xa9')
    """
    try:
        octets = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{text!r} is not valid Unicode.", "Choose another name.") from error
    # Escapes that together spell a character, such as the two of b"\xc3\xa9", would come back as
    # that character.
    if not text.isascii() and decode_text(octets) != text:
        raise UnsupportedError(
            f"{text!r} has escapes for bytes that are valid UTF-8.", "Write the characters."
        )
    return octets


def decode_text(octets: bytes) -> str:
    """Return the text of bytes; any that are not UTF-8 become surrogate escapes."""
    return octets.decode("utf-8", "surrogateescape")


# Blocks of entries of a native index, as columns in memory. Nothing is believed.
#
# A block of entries describes n tensors and their m entries, at least one each, in the order of the
# keys (``Entries``):
#
#     key                 packed strings [n], strictly rising as byte strings
#     dtype_name, dtype   packed strings: the names in use; u8 [n]: the number of each tensor's name
#                         among them
#     rank, shape         u8 [n]; u64: the extents of every full shape, one shape after the other
#     count               u32 [n]: the number of entries of each tensor
#     offset, extent      u64: the region of every entry, one after the other, as many numbers each as
#                         its tensor has axes
#     file, start, nbytes u32, u64, u64 [m]: the place of the payload
#     crc                 u32 [m]: the CRC32C of the payload
#     digest              optional, 32 bytes [m]: the SHA-256 of the SHA-256 of each MiB of the payload;
#                         zeros where it is not known
#     run_crc             u32: the CRC32C of every run of every payload that is longer than one run
#
# Columns that disagree with each other are the block's fault, and raised. A checksum guards every
# block, so impossible values come from a faulty or hostile writer. They are the fault of one tensor,
# which is left out of the table and listed as broken; every other can be read. Values that pass are
# safe to compute with in 64 bits. Slices that overlap or leave holes are not looked for here
# (``planning``).


@entity
class Entries:
    first_key: bytes
    last_key: bytes
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
    """Return the rows ``[first, last)`` of the tensors ``[tensor, tensor_stop)``, over only these."""
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
    broken: dict[int, CheckpointError] = {}
    for tensor, name in unknown.items():
        cause = f"The dtype {name!r} of {keys[tensor]!r} is unknown."
        broken[tensor] = InvalidCheckpoint(cause, "Install a newer release.")
    for is_wrong, error in _Laws(table, overview).violations():
        for row in np.flatnonzero(is_wrong).tolist():
            broken.setdefault(int(slices.tensor[row]), error(row))
    if broken:
        kept = np.ones(len(keys), np.bool)
        kept[list(broken)] = False
        table = of_tensors(table, np.flatnonzero(kept))
        errors = {keys[tensor]: fault for tensor, fault in broken.items()}
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


# --- Impossible tensors, found for all entries of a block at once

_Violation = tuple[npt.NDArray[np.bool], Callable[[int], CheckpointError]]
"""[m] the entries that break a law, and the error of one of them."""


@frozen
class _Laws:
    """The laws for each entry of a block: possible sizes, and a payload within its file."""

    table: EntryTable
    overview: Overview

    def violations(self) -> Iterator[_Violation]:
        """Yield the violations of each law; the laws that others depend on come first."""
        slices = self.table.slices
        full, itemsize = slices.tensors.shapes[slices.tensor], ITEMSIZES[slices.codes()]
        is_huge = (
            _is_huge(full, itemsize)
            | _is_huge(slices.shape, itemsize)
            | (slices.offset > MAX_NBYTES).any(axis=1)
        )
        yield is_huge, lambda row: invalid(f"{self._slice(row)} is too large to exist.")
        # The product may overflow only for huge slices, which are reported already and count as 0
        # here. Elements of dtypes without a fixed size (strings, variants) take a byte at least.
        shape = np.where(is_huge[:, None], 0, slices.shape)
        nbytes, least = slice_nbytes(slices.codes(), shape), np.prod(shape, axis=1, dtype=np.int64)
        yield (
            (itemsize == 0) & (slices.shape != full).any(axis=1),
            lambda row: invalid(
                f"{self._slice(row)} is a part of a tensor whose payload cannot be divided."
            ),
        )
        own = OWN_SIZE[slices.codes()]
        yield (
            np.where(own, slices.nbytes < least, slices.nbytes != nbytes),
            lambda row: invalid(
                f"{self._slice(row)} has {slices.nbytes[row]} bytes, which is not its size."
            ),
        )
        # A number beyond the last file selects the appended size -1, which no payload fits in.
        file_nbytes = np.append(self.overview.file_nbytes, -1)
        available = file_nbytes[np.minimum(self.table.file, len(file_nbytes) - 1)]
        yield self.table.start + slices.nbytes > available, self._outside

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
    """Return [m] True where a size exceeds any machine, in floats, which do not overflow."""
    nbytes = np.prod(shape, axis=1, dtype=np.float64) * np.maximum(itemsize, 1)
    huge: npt.NDArray[np.bool] = (shape > MAX_NBYTES).any(axis=1) | (nbytes > MAX_NBYTES)
    return huge


# The blocks of an index that is being written.
#
# Tensors are in the order of their keys' bytes, and the entries of a tensor in the order of their
# offsets. The order is computed on columns: sorted once, and cut into blocks.


_BLOCK_NBYTES = 255 << 10
"""Packed columns of a block, unless a single entry has more; within 256 KiB with their names."""

_ENTRY_NBYTES = 24  # file 4, start 8, nbytes 8, crc 4
_TENSOR_NBYTES = 10  # key_nbytes 4, dtype 1, rank 1, count 4


def encode_index(
    assignment: Assignment,
    keys: Sequence[bytes],
    start: Ints,
    overview: Overview,
    checksums: Sequence[FileChecksums],
    ties: Mapping[bytes, bytes] | None = None,
    referred: EntryTable | None = None,
    digests: NDArray[np.uint8] | None = None,
) -> bytes:
    """Return an index whole: of slices [m] that begin at ``start`` in the files of the overview.
    The files of ``referred`` entries come after the assignment's."""
    entries = _entries_of(assignment, start, checksums, digests)
    if referred is not None:
        # Some slices of a tensor may be written, and others lie in the older checkpoint.
        referred = replace(referred, file=assignment.num_files + referred.file)
        entries = concatenate_entries([entries, referred])
        keys = list(map(encode_text, entries.slices.tensors.keys))
    # The tensors that have slices, in the order of their keys.
    used = np.unique(entries.slices.tensor).tolist()
    tensors = np.array(sorted(used, key=keys.__getitem__), np.int64)
    entries, keys = of_tensors(entries, tensors), list(map(keys.__getitem__, tensors.tolist()))
    # By shape too, which orders empty slices that share an offset with another one.
    entries = entries.take(entries.slices.by_region())
    if ties:
        entries, keys = _with_ties(entries, keys, ties)
    blocks = _encode_entries(entries, keys)
    return b"".join(encode_block_file(blocks, overview.encode(), overview.version))


def _entries_of(
    assignment: Assignment,
    start: Ints,
    checksums: Sequence[FileChecksums],
    digests: NDArray[np.uint8] | None,
) -> EntryTable:
    slices = assignment.slices
    # Checksums come file by file, and within a file in the order of the assignment: the order of a
    # stable sort by file.
    order = np.argsort(assignment.file, kind="stable")
    given = [(checksum.payload, checksum.runs) for checksum in checksums]
    none = np.zeros(0, np.int64), np.zeros(0, np.uint32)
    of_payloads, of_runs = map(np.concatenate, zip(none, *given, strict=True))
    payload, first = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    payload[order] = of_payloads
    # Only a payload of several runs has checksums of runs in the index.
    counts = -(-slices.nbytes[order] // RUN_NBYTES)
    if len(of_runs) != counts.sum() and (counts > 1).any():
        raise ArgumentError(f"{len(of_runs)} checksums of runs were given for {counts.sum()} runs.")
    first[order] = np.cumsum(counts) - counts
    runs, plain = RunChecksums(RUN_NBYTES, of_runs, first), np.ones(len(order), np.bool)
    return EntryTable(slices, assignment.file, start, payload, plain, runs, digests)


def _with_ties(
    entries: EntryTable, keys: Sequence[bytes], ties: Mapping[bytes, bytes]
) -> tuple[EntryTable, list[bytes]]:
    """Return the entries, and for each further key the entries of its tensor again."""
    number = {key: row for row, key in enumerate(keys)}
    pairs = sorted([*number.items(), *((key, number[first]) for key, first in ties.items())])
    every, origin = [key for key, _ in pairs], np.array([row for _, row in pairs], np.int64)
    # The entries of a tensor follow one another.
    slices = entries.slices
    bounds = np.searchsorted(slices.tensor, np.arange(len(keys) + 1))
    taken = np.concatenate([np.arange(*bounds[row : row + 2]) for row in origin.tolist()])
    tensor = np.repeat(np.arange(len(every)), np.diff(bounds)[origin])
    tensors = replace(slices.tensors.take(origin), keys=[decode_text(key) for key in every])
    slices = replace(slices.take(taken), tensors=tensors, tensor=tensor)
    return replace(entries.take(taken), slices=slices), every


def _encode_entries(entries: EntryTable, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the blocks of entries, each with its first key."""
    slices, tensors = entries.slices, entries.slices.tensors
    if not len(slices):
        return
    # ``ends`` are the packed sizes up to each entry, where a tensor is counted with its first
    # entry. A block takes entries until they would exceed its size, and at least one; if it begins
    # in the middle of a tensor, it lists that tensor again.
    is_first = np.append(True, slices.tensor[1:] != slices.tensor[:-1])
    nbytes = (
        _ENTRY_NBYTES
        + (0 if entries.digests is None else DIGEST_NBYTES)
        + 16 * tensors.ranks[slices.tensor]
        + np.where(slices.nbytes > RUN_NBYTES, 4 * -(-slices.nbytes // RUN_NBYTES), 0)
    )
    own = _TENSOR_NBYTES + 8 * tensors.ranks + np.fromiter(map(len, keys), np.int64)
    ends = np.cumsum(nbytes + np.where(is_first, own[slices.tensor], 0))
    first = 0
    while first < len(slices):
        done = int(ends[first - 1]) if first else 0
        again = 0 if is_first[first] else int(own[slices.tensor[first]])
        last = max(
            first + 1, int(np.searchsorted(ends, done - again + _BLOCK_NBYTES, side="right"))
        )
        yield keys[slices.tensor[first]], _encode_block(entries, keys, first, last)
        first = last


def _encode_block(entries: EntryTable, keys: Sequence[bytes], first: int, last: int) -> bytes:
    slices, tensors, runs = entries.slices, entries.slices.tensors, entries.runs
    tensor = slices.tensor[first:last]
    some = slice(int(tensor[0]), int(tensor[-1]) + 1)
    codes, dtype = np.unique(tensors.codes[some], return_inverse=True)
    ranks = tensors.ranks[some]
    # Rows are padded to the highest rank in memory and not on disk: these masks select the numbers
    # of real axes.
    axes = np.arange(tensors.shapes.shape[1])
    is_axis = axes < ranks[:, None]
    is_axis_of_entry = axes < tensors.ranks[tensor][:, None]
    values: dict[str, IndexValue] = {
        **pack_strings("key", keys[some]),
        **pack_strings("dtype_name", [NAMES[code].encode() for code in codes.tolist()]),
        "dtype": dtype.astype("u1"),
        "rank": ranks.astype("u1"),
        "shape": tensors.shapes[some][is_axis].astype("<u8"),
        "count": np.bincount(tensor - some.start).astype("<u4"),
        "offset": slices.offset[first:last][is_axis_of_entry].astype("<u8"),
        "extent": slices.shape[first:last][is_axis_of_entry].astype("<u8"),
        "file": entries.file[first:last].astype("<u4"),
        "start": entries.start[first:last].astype("<u8"),
        "nbytes": slices.nbytes[first:last].astype("<u8"),
        "crc": entries.checksum[first:last].astype("<u4"),
        "run_crc": b"".join(
            runs.of(row, int(slices.nbytes[row])).astype("<u4").tobytes()
            for row in (first + np.flatnonzero(slices.nbytes[first:last] > RUN_NBYTES)).tolist()
            if runs
        ),
        **({} if entries.digests is None else {"digest": entries.digests[first:last]}),
    }
    return encode_index_block(values)
