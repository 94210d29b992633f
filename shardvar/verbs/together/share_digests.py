"""Digests of tensors that several processes write: of a tensor of any layout, the digest of the whole.

    each process   hashes the leaves that lie wholly in one of its slices, from memory, and stores them
                   in the index of its share
    the commit     puts the leaves of all shares together, and reads the ones that are missing from the
                   data files of the shares

A leaf is a MiB of a tensor in C order (``wire.digests``). Between two slices that are rows, one leaf
is missing at most. Slices that are columns have none or few, so these tensors are read once by the
process that commits. Strings are also read, since a payload has other bytes than a digest is of.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from shardvar.engine.arrays import ArraySource, LazyPayload
from shardvar.engine.pool import bytes_of, run_all, thread_buffer
from shardvar.layout.dtypes import ITEMSIZES, Array, Ints
from shardvar.planning.slices import SliceTable
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.compare.digest import digests_of_blocks
from shardvar.wire.damage import invalid
from shardvar.wire.digests import HASH_NBYTES, LeafHashes, hash_leaf

_MOST_NBYTES = 24 << 20
"""The hashes that a share stores at most, of 768 GiB: the commit makes the others."""

SlicePlace = tuple[str, tuple[int, ...]]
"""The key and the offset of a slice with elements, which no other one of a process has."""
StoredLeaves = Mapping[SlicePlace, Mapping[int, bytes]]
"""The hashes of leaves by their numbers, of each slice."""


# --- One process


class _Part(NamedTuple):
    """A slice, and the leaves of its tensor that are known."""

    dtype: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    extent: tuple[int, ...]
    leaves: LeafHashes


@contextmanager
def hashed(
    source: ArraySource, rows: Ints, slices: SliceTable
) -> Iterator[dict[SlicePlace, dict[int, bytes]]]:
    """Hash the leaves of slices; the result is complete once the block, which writes them, has ended.

    [m] ``rows`` has the row of each slice in the source. Lazy arrays are hashed when their values
    are made inside of the block, and no value is made twice.
    """
    found: dict[SlicePlace, dict[int, bytes]] = {}
    parts = [_part_of(slices, row) for row in range(len(slices))]
    arrays = [source.arrays[row] for row in rows.tolist()]
    lazy = [
        (part, array, array.make)
        for part, array in zip(parts, arrays, strict=True)
        if isinstance(array, LazyPayload)
    ]
    for part, array, make in lazy:
        array.make = _heard(part, make)
    try:
        yield found
    finally:
        for _, array, make in lazy:
            array.make = make
    for row, part, array in zip(rows.tolist(), parts, arrays, strict=True):
        if not isinstance(array, LazyPayload | bytes):
            _hash_array(source, row, part)
    nbytes = 0
    for number, part in enumerate(parts):
        known = part.leaves.known()
        nbytes += HASH_NBYTES * len(known)
        if known and nbytes <= _MOST_NBYTES:
            found[slices.key(number), part.offset] = known


def _part_of(slices: SliceTable, row: int) -> _Part:
    each = slices[row]
    itemsize = int(ITEMSIZES[slices.codes()[row]])
    leaves = LeafHashes(prod(each.full_shape) * itemsize)
    return _Part(each.dtype, each.full_shape, each.region.offset, each.region.shape, leaves)


def _heard(part: _Part, make: Any) -> Any:
    """Return a function that makes rows of a lazy array, and hashes the leaves in them."""

    def made(start: int, stop: int) -> Array:
        array: Array = make(start, stop)
        if array.ndim and array.size and part.leaves.nbytes:
            offset = (part.offset[0] + start, *part.offset[1:])
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            part.leaves.add_region(part.dtype, part.shape, offset, array.shape, bytes_of(little))
        return array

    return made


def _hash_array(source: ArraySource, row: int, part: _Part) -> None:
    """Hash the leaves that lie in an array in memory."""
    nbytes = source.nbytes(row)
    start = _first_byte(part, nbytes)
    payload = source.payload(row)
    if start is None:
        if payload is not None:
            region = part.offset, part.extent
            part.leaves.add_region(part.dtype, part.shape, *region, payload)
        return

    def hash_one(leaf: int) -> bytes:
        first, last = part.leaves.bounds(leaf)
        if payload is not None:
            return hash_leaf(part.dtype, payload[first - start : last - start])
        buffer = thread_buffer(last - first)
        source.read_span(row, first - start, buffer)
        return hash_leaf(part.dtype, buffer)

    numbers = part.leaves.inside(start, start + nbytes)
    hashes = run_all(hash_one, numbers) if len(numbers) > 1 else map(hash_one, numbers)
    for leaf, found in zip(numbers, hashes, strict=True):
        part.leaves.put(leaf, found)


def _first_byte(part: _Part, nbytes: int) -> int | None:
    """Return the first byte of a slice in the data of its tensor; None if the slice is several
    ranges of the data, or has no bytes."""
    if not nbytes or not part.leaves.nbytes:
        return None
    axis = next((axis for axis, extent in enumerate(part.extent) if extent != 1), 0)
    if part.extent[axis + 1 :] != part.shape[axis + 1 :]:
        return None
    start, stride = 0, part.leaves.nbytes // prod(part.shape)
    for offset, extent in zip(reversed(part.offset), reversed(part.shape), strict=True):
        start, stride = start + offset * stride, stride * extent
    return start


# --- The leaves as JSON, in the index of a share


def encode_leaves(stored: StoredLeaves) -> list[Any]:
    """Return leaves as values that JSON can hold."""
    return [
        [key, list(offset), _runs(sorted(leaves)), _text(leaves)]
        for (key, offset), leaves in stored.items()
    ]


def decode_leaves(values: Any) -> StoredLeaves:
    """Return leaves from what ``encode_leaves`` returned; ``ValueError`` and its like for other
    values."""
    found: dict[SlicePlace, dict[int, bytes]] = {}
    for key, offset, runs, text in values:
        octets = b64decode(text, validate=True)
        if sum(count for _, count in runs) * HASH_NBYTES != len(octets):
            raise invalid("It has more leaves than hashes, or fewer.")
        numbers = [leaf for first, count in runs for leaf in range(first, first + count)]
        hashes = (octets[at : at + HASH_NBYTES] for at in range(0, len(octets), HASH_NBYTES))
        found[key, tuple(offset)] = dict(zip(numbers, hashes, strict=True))
    return found


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return numbers in order as the first and the count of each run.

    >>> _runs([3, 4, 5, 9])
    [(3, 3), (9, 1)]
    """
    grouped = (list(run) for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]))
    return [(run[0][1], len(run)) for run in grouped]


def _text(leaves: Mapping[int, bytes]) -> str:
    return b64encode(b"".join(leaves[leaf] for leaf in sorted(leaves))).decode()


# --- The commit


def digests_of_shares(
    blocks: Blocks, known: Sequence[Mapping[int, bytes]], ties: Mapping[str, str]
) -> dict[str, str]:
    """Return the digest of each tensor by key, and of the tied ones, which have the leaves of another.

    [m] ``known`` has the leaves of each row of the entries of ``blocks``. What is missing is read.
    """
    tensors, rest = blocks.tensors, []
    tied = {first: [key for key in ties if ties[key] == first] for first in ties.values()}
    found: dict[str, str] = {}
    for row, key in enumerate(tensors.keys):
        rows = blocks.order[blocks.bounds[row] : blocks.bounds[row + 1]].tolist()
        if not ITEMSIZES[tensors.codes[row]]:
            rest.append(row)
            continue
        leaves = LeafHashes(int(blocks.nbytes[row]))
        for leaf, octets in (
            (leaf, octets) for each in rows for leaf, octets in known[each].items()
        ):
            # A leaf lies in one slice, so no other slice has it.
            if not 0 <= leaf < len(leaves.is_known) or leaves.is_known[leaf]:
                raise invalid(f"{key!r} has no leaf {leaf}, or has it twice.")
            leaves.put(leaf, octets)
        if leaves.num_missing == len(leaves.is_known) and leaves.num_missing and key not in tied:
            rest.append(row)
            continue
        if leaves.num_missing:
            _read_missing(blocks, row, leaves)
        for name in (key, *tied.get(key, ())):
            found[name] = leaves.digest(name, tensors.dtype(row), tensors.shape(row))
    found |= digests_of_blocks(blocks, rest)
    return {key: found[key] for key in (*tensors.keys, *ties)}


def _read_missing(blocks: Blocks, row: int, leaves: LeafHashes) -> None:
    """Hash the leaves that no process had."""
    tensor = blocks.flat(row)
    dtype = blocks.tensors.dtype(row)

    def hash_one(leaf: int) -> bytes:
        start, stop = leaves.bounds(leaf)
        buffer = thread_buffer(stop - start)
        tensor.read(start, buffer)
        return hash_leaf(dtype, buffer)

    numbers = list(leaves.missing())
    for leaf, octets in zip(numbers, run_all(hash_one, numbers), strict=True):
        leaves.put(leaf, octets)
    tensor.check()
