"""The blocks of an index that is being written.

Tensors are in the order of their keys' bytes, and the entries of a tensor in the order of their
offsets. The order is computed on columns: sorted once, and cut into blocks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardvar.errors import ArgumentError
from shardvar.formats.native.overview import RUN_NBYTES, Overview, decode_text, encode_text
from shardvar.formats.protocol import FileChecksums
from shardvar.layout.dtypes import NAMES, Ints
from shardvar.planning.index import DIGEST_NBYTES, EntryTable
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable, concatenate
from shardvar.wire.block_file import (
    IndexValue,
    encode_block_file,
    encode_index_block,
    pack_strings,
)

_BLOCK_NBYTES = 255 << 10
"""Packed columns of a block, unless a single entry has more; with the names of the columns it is
within 256 KiB."""

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
    """Return an index whole: of slices [m] that begin at ``start`` in the files of the overview;
    ``keys`` are the keys of the tensors, as they are stored.

    The files of ``referred`` entries come after the assignment's. [m] ``digests`` are known of the
    payloads, as in ``EntryTable``.
    """
    rows = _rows_of(assignment, keys, start, checksums, digests)
    rows = rows if referred is None else _with_referred(rows, referred, assignment.num_files)
    rows = _in_order(rows)
    rows = _with_ties(rows, ties) if ties else rows
    return b"".join(encode_block_file(_encode_rows(rows), overview.encode(), overview.version))


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The entries of an index; once sorted, in its order."""

    slices: SliceTable
    """The slices; once sorted, their tensors are the ones that have any, in the order of their
    keys."""
    keys: Sequence[bytes]
    """[n] the keys as they are stored."""
    file: Ints
    """[m] the number of the data file."""
    start: Ints
    """[m] the first byte of the payload in that file."""
    checksum: Ints
    """[m] the CRC32C of the payload."""
    runs: list[bytes]
    """[m] the CRC32C of each run as 32-bit numbers; empty if the payload is one run."""
    digests: NDArray[np.uint8] | None
    """[m] the digests of the payloads, as in ``EntryTable``."""


def _rows_of(
    assignment: Assignment,
    keys: Sequence[bytes],
    start: Ints,
    checksums: Sequence[FileChecksums],
    digests: NDArray[np.uint8] | None,
) -> _Rows:
    """Return the entries of an assignment; ``keys`` are the keys of its tensors, as stored."""
    slices = assignment.slices
    # Checksums come file by file, and within a file in the order of the assignment: the order of a
    # stable sort by file.
    order = np.argsort(assignment.file, kind="stable")
    given = [(found.payload, found.runs) for found in checksums]
    none = np.zeros(0, np.int64), np.zeros(0, np.uint32)
    of_payloads, of_runs = map(np.concatenate, zip(none, *given, strict=True))
    payload = np.zeros(len(order), np.int64)
    payload[order] = of_payloads
    # Only a payload of several runs has checksums of runs in the index.
    counts = -(-slices.nbytes[order] // RUN_NBYTES)
    if len(of_runs) != counts.sum() and (counts > 1).any():
        raise ArgumentError(f"{len(of_runs)} checksums of runs were given for {counts.sum()} runs.")
    stored, first = of_runs.astype("<u4"), np.cumsum(counts) - counts
    runs = [b""] * len(order)
    for position in np.flatnonzero(counts > 1).tolist():
        mine = slice(first[position], first[position] + counts[position])
        runs[order[position]] = stored[mine].tobytes()
    return _Rows(slices, keys, assignment.file, start, payload, runs, digests)


def _with_referred(rows: _Rows, referred: EntryTable, first_file: int) -> _Rows:
    """Return the entries, and the entries of an older checkpoint after them."""
    slices = referred.slices
    runs = [
        referred.runs.of(row, nbytes).astype("<u4").tobytes()
        if referred.runs is not None and nbytes > RUN_NBYTES
        else b""
        for row, nbytes in enumerate(slices.nbytes.tolist())
    ]
    # Some slices of a tensor may be written, and others lie in the older checkpoint.
    both = concatenate([rows.slices, slices])
    digests = None
    if rows.digests is not None or referred.digests is not None:
        parts = (len(rows.file), rows.digests), (len(slices), referred.digests)
        digests = np.concatenate(
            [
                np.zeros((count, DIGEST_NBYTES), np.uint8) if part is None else part
                for count, part in parts
            ]
        )
    return _Rows(
        both,
        list(map(encode_text, both.tensors.keys)),
        np.concatenate([rows.file, first_file + referred.file]),
        np.concatenate([rows.start, referred.start]),
        np.concatenate([rows.checksum, referred.checksum]),
        [*rows.runs, *runs],
        digests,
    )


def _in_order(rows: _Rows) -> _Rows:
    """Return the entries in the order of the index."""
    slices, keys = rows.slices, rows.keys
    # The tensors that have slices, in the order of their keys.
    used = np.unique(slices.tensor).tolist()
    tensors = np.array(sorted(used, key=keys.__getitem__), np.int64)
    rank_of = np.zeros(len(keys), np.int64)
    rank_of[tensors] = np.arange(len(tensors))
    tensor = rank_of[slices.tensor]
    # The last key of lexsort is the first criterion: by tensor, then by offset axis after axis,
    # then by shape, which orders empty slices that share an offset with another one.
    order = np.lexsort((*slices.shape.T[::-1], *slices.offset.T[::-1], tensor))
    columns = (slices.offset[order], slices.shape[order], slices.nbytes[order])
    return _Rows(
        SliceTable(slices.tensors.take(tensors), tensor[order], *columns),
        list(map(keys.__getitem__, tensors.tolist())),
        rows.file[order],
        rows.start[order],
        rows.checksum[order],
        list(map(rows.runs.__getitem__, order.tolist())),
        None if rows.digests is None else rows.digests[order],
    )


def _with_ties(rows: _Rows, ties: Mapping[bytes, bytes]) -> _Rows:
    """Return the entries, and for each further key the entries of its tensor again."""
    number = {key: row for row, key in enumerate(rows.keys)}
    pairs = sorted([*number.items(), *((key, number[first]) for key, first in ties.items())])
    keys, origin = [key for key, _ in pairs], np.array([row for _, row in pairs], np.int64)
    # The entries of a tensor follow one another.
    slices, count = rows.slices, len(rows.keys)
    bounds = np.searchsorted(slices.tensor, np.arange(count + 1))
    taken = np.concatenate([np.arange(*bounds[row : row + 2]) for row in origin.tolist()])
    tensor = np.repeat(np.arange(len(keys)), np.diff(bounds)[origin])
    tensors = replace(slices.tensors.take(origin), keys=[decode_text(key) for key in keys])
    columns = slices.offset[taken], slices.shape[taken], slices.nbytes[taken]
    return _Rows(
        SliceTable(tensors, tensor, *columns),
        keys,
        rows.file[taken],
        rows.start[taken],
        rows.checksum[taken],
        [rows.runs[row] for row in taken.tolist()],
        None if rows.digests is None else rows.digests[taken],
    )


def _encode_rows(rows: _Rows) -> Iterator[tuple[bytes, bytes]]:
    """The blocks of entries, each with its first key."""
    slices, tensors = rows.slices, rows.slices.tensors
    if not len(slices):
        return
    # ``ends`` are the packed sizes up to each entry, where a tensor is counted with its first
    # entry. A block takes entries until they would exceed its size, and at least one; if it begins
    # in the middle of a tensor, it lists that tensor again.
    is_first = np.append(True, slices.tensor[1:] != slices.tensor[:-1])
    nbytes = (
        _ENTRY_NBYTES
        + (0 if rows.digests is None else DIGEST_NBYTES)
        + 16 * tensors.ranks[slices.tensor]
        + np.fromiter(map(len, rows.runs), np.int64)
    )
    own = _TENSOR_NBYTES + 8 * tensors.ranks + np.fromiter(map(len, rows.keys), np.int64)
    ends = np.cumsum(nbytes + np.where(is_first, own[slices.tensor], 0))
    first = 0
    while first < len(slices):
        done = int(ends[first - 1]) if first else 0
        again = 0 if is_first[first] else int(own[slices.tensor[first]])
        last = max(
            first + 1, int(np.searchsorted(ends, done - again + _BLOCK_NBYTES, side="right"))
        )
        yield rows.keys[slices.tensor[first]], _encode_block(rows, first, last)
        first = last


def _encode_block(rows: _Rows, first: int, last: int) -> bytes:
    """Return the entries ``[first, last)``, column by column (``formats.native.entries``)."""
    slices, tensors = rows.slices, rows.slices.tensors
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
        **pack_strings("key", rows.keys[some]),
        **pack_strings("dtype_name", [NAMES[code].encode() for code in codes.tolist()]),
        "dtype": dtype.astype("u1"),
        "rank": ranks.astype("u1"),
        "shape": tensors.shapes[some][is_axis].astype("<u8"),
        "count": np.bincount(tensor - some.start).astype("<u4"),
        "offset": slices.offset[first:last][is_axis_of_entry].astype("<u8"),
        "extent": slices.shape[first:last][is_axis_of_entry].astype("<u8"),
        "file": rows.file[first:last].astype("<u4"),
        "start": rows.start[first:last].astype("<u8"),
        "nbytes": slices.nbytes[first:last].astype("<u8"),
        "crc": rows.checksum[first:last].astype("<u4"),
        "run_crc": b"".join(rows.runs[first:last]),
        **({} if rows.digests is None else {"digest": rows.digests[first:last]}),
    }
    return encode_index_block(values)
