"""Hashes of shares: the base to which a share refers, and the digests of tensors.

The base of a share: the slices of a process that lie unchanged in an older checkpoint.

find      the older checkpoint's index, in the directory of the new one
cut       arrays in memory, where older slices tile the region that a process holds
compare   each slice that is also an older one: the checksums of its runs, and its digest with the
          index; without a digest there, its bytes with the bytes in the file
refer     to slices that are equal; all others are written

Each process decides this for its own slices. Its share has the digest of the index that it has seen,
so that the commit can tell that all processes have seen the same one, and that it is
still there (``share_files``). A slice that is cut in another way than the older ones is written: the
new checkpoint is larger then, and never wrong.

Digests of tensors that several processes write: of a tensor of any layout, the digest of the whole.

    each process   hashes the leaves that lie wholly in one of its slices, from memory, and stores them
                   in the index of its share
    the commit     puts the leaves of all shares together, and reads the missing ones from the
                   data files of the shares

A leaf is a MiB of a tensor in C order (``wire.digests``). Between two slices that are rows, one leaf
is missing at most. Slices that are columns have none or few, so these tensors are read once by the
process that commits. Strings are also read, since a payload has other bytes than a digest is of.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import chain, groupby
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from shardvar.engine.arrays import ArraySource, LazyPayload, array_source
from shardvar.engine.evidence import Evidence
from shardvar.engine.pool import block_ranges, bytes_of, run_all, thread_buffer
from shardvar.errors import (
    READ_ERRORS,
    ArgumentError,
    CorruptCheckpoint,
    MissingFile,
    prefix_errors,
)
from shardvar.formats.native.index import RUN_NBYTES, native_index_name
from shardvar.formats.native.source import NativeIndex, decode_native_index, open_native
from shardvar.formats.sets import is_bare
from shardvar.layout.dtypes import ITEMSIZES, Array, Bools, Ints, Shape
from shardvar.layout.region import overlapping_pairs
from shardvar.planning.index import DIGEST_NBYTES, EntryTable
from shardvar.planning.slices import SliceTable
from shardvar.records import entity, field, mutable, replace
from shardvar.storage.protocol import Storage
from shardvar.verbs.compare.blocks import Blocks, read_portion
from shardvar.verbs.compare.claims import check_can_refer, entries_alike
from shardvar.verbs.compare.digest import digests_of_blocks
from shardvar.verbs.locate import Location, Path, find_checkpoint
from shardvar.verbs.together.run import SAVE_AGAIN
from shardvar.wire.crc import CRC32C
from shardvar.wire.damage import invalid
from shardvar.wire.digests import (
    HASH_NBYTES,
    LEAF_NBYTES,
    LeafHashes,
    digest_of_leaves,
    has_unused_bits,
    hash_leaf,
    hash_of,
)

# --- The base


_NO_DIGEST = bytes(DIGEST_NBYTES)


class BaseNote(NamedTuple):
    prefix: str
    """The name of the older checkpoint, in the directory of the new one."""
    identity: str
    """The digest of its index."""
    files: tuple[int, ...]
    """The numbers of its data files to which the share refers."""

    @classmethod
    def of(cls, values: Any) -> Self:
        """Return a note from values of JSON; ``ValueError`` and its like for others."""
        prefix, identity, files = values
        if not (is_bare(prefix) and type(identity) is str and all(type(n) is int for n in files)):
            raise ValueError(prefix)
        return cls(prefix, identity, tuple(files))


@entity
class OlderIndex:
    storage: Storage
    prefix: str
    """The name of the checkpoint."""
    index: NativeIndex
    identity: str
    """The digest of the index's bytes."""
    stamp: str
    """The stamp of the index's file."""

    @classmethod
    def read(cls, storage: Storage, prefix: str) -> Self:
        """Return the index in place; ``MissingFile`` if there is none."""
        file = storage.open(native_index_name(prefix))
        with closing(file):
            content = file.read(0, file.size)
        index = decode_native_index(file.name, content, prefix)
        return cls(storage, prefix, index, hash_of(content).hex(), file.stamp)

    @property
    def nbytes(self) -> Ints:
        """[files] The size of each data file."""
        return self.index.overview.file_nbytes

    def lost(self) -> Bools:
        """[files] True for data files that are missing or have another size."""
        files = map(self.storage.status, self.index.files)
        sizes = [-1 if status is None else status.nbytes for status in files]
        return np.asarray(np.array(sizes, np.int64) != self.nbytes, np.bool)


def find_older(base: Path, target: Location) -> OlderIndex:
    """Return the index of the base of a new checkpoint; ``ArgumentError`` if it is unfit for that."""
    found = find_checkpoint(base)
    check_can_refer(found, target)
    return OlderIndex.read(target.storage.refreshed(), found.name)


@mutable
class ShareBase:
    """The slices of one process, compared with an older checkpoint."""

    older: OlderIndex
    source: ArraySource
    entries: EntryTable
    """The older entries of tensors that the process also has."""
    match: Ints
    """[m] the row of ``entries`` that is the same region as a slice; -1 for none."""
    digests: NDArray[np.uint8]
    """[m] the digests of the slices that were compared or written, else zeros."""
    is_equal: Bools = field(init=False)
    """[m] True for slices that were compared, and lie unchanged in the older checkpoint."""
    _is_known: Bools = field(init=False)

    def __post_init__(self) -> None:
        self.is_equal = np.zeros(len(self.match), np.bool)
        self._is_known = np.zeros(len(self.match), np.bool)

    @classmethod
    def of(cls, older: OlderIndex, source: ArraySource) -> Self:
        """Return the slices of a source, cut as the older checkpoint is where that is possible."""
        entries = entries_alike(older.index, source.index.entries.slices.tensors)
        match = np.full(len(source.arrays), -1, np.int64)
        if len(entries):
            rows = np.flatnonzero(~older.lost()[entries.file] & (entries.slices.nbytes > 0))
            entries = entries.take(rows)
            source, match = _cut(source, entries.slices)
        return cls(older, source, entries, match, np.zeros((len(match), DIGEST_NBYTES), np.uint8))

    def divided(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the slices among some that are to be written, and the slices that lie in the base."""
        self._compare(rows)
        is_equal = self.is_equal[rows]
        return rows[~is_equal], rows[is_equal]

    def _compare(self, rows: Ints) -> None:
        rows = rows[~self._is_known[rows]]
        self._is_known[rows] = True
        # Lazy arrays that are new are made once, when they are written.
        rows = rows[(self.match[rows] >= 0) | ~self.source.is_lazy[rows]]
        unsure = []
        for row, (leaves, runs) in zip(rows.tolist(), _hash_all(self.source, rows), strict=True):
            nbytes = int(self.source.index.entries.slices.nbytes[row])
            if not nbytes:
                continue
            self.digests[row] = np.frombuffer(hash_of(leaves), np.uint8)
            older, known = int(self.match[row]), self.entries.runs
            if older >= 0 and known is not None and runs == known.of(older, nbytes).tolist():
                is_same = self._has_digest(row, older, leaves)
                self.is_equal[row] = bool(is_same)
                unsure += [row] if is_same is None else []
        if unsure:
            self._compare_bytes(unsure)

    def _has_digest(self, row: int, older: int, leaves: bytes) -> bool | None:
        """Return True if the older checkpoint has the digest of a slice; None if it has none."""
        entries = self.entries
        if entries.digests is not None and entries.digests[older].any():
            return bool((entries.digests[older] == self.digests[row]).all())
        slices = entries.slices
        key, dtype, shape = slices.key(older), slices.dtype(older), slices.region(older).shape
        carried = self.older.index.metadata.digests
        # The digest of a tensor is of other bytes than the payload of these dtypes.
        is_other = not ITEMSIZES[slices.codes()[older]] or has_unused_bits(dtype)
        if is_other or not slices.is_whole()[older] or key not in carried:
            return None
        return carried[key] == digest_of_leaves(key, dtype, shape, leaves)

    def _compare_bytes(self, rows: list[int]) -> None:
        """Compare slices with the bytes of the older checkpoint, which has no digests of them."""
        older = open_native(self.older.storage, self.older.prefix)
        with closing(older):
            check_is_older(OlderIndex.read(self.older.storage, self.older.prefix), self.older)
            evidence = Evidence(older, self.entries)
            try:
                for row in rows:
                    self.is_equal[row] = self._are_bytes(evidence, row)
                evidence.check()
            except READ_ERRORS as error:
                raise error.at(older.file.name) from None

    def _are_bytes(self, evidence: Evidence, row: int) -> bool:
        def is_same(span: tuple[int, int]) -> bool:
            start, stop = span
            found = thread_buffer(stop - start, "base")
            evidence.read(int(self.match[row]), start, found)
            mine = _span(self.source, row, start, stop)
            return np.array_equal(np.frombuffer(found, "u1"), np.frombuffer(mine, "u1"))

        spans = block_ranges(0, self.source.nbytes(row))
        with _in_portions(self.source, row) as is_lazy:
            return all(list(map(is_same, spans)) if is_lazy else run_all(is_same, spans))

    @contextmanager
    def hearing(self, rows: Ints) -> Iterator[None]:
        """Take the digests of lazy arrays as they are written inside; no value is made for it."""
        lazy = [
            (row, array, _Stream(array.row_nbytes))
            for row in rows.tolist()
            if isinstance(array := self.source.arrays[row], LazyPayload) and array.nbytes
        ]
        with _told((array, stream.add) for _, array, stream in lazy):
            yield
        for row, array, stream in lazy:
            self.digests[row] = np.frombuffer(stream.digest(array.nbytes), np.uint8)

    def note(self, rows: Ints) -> BaseNote:
        files = np.unique(self.referred(rows).file).tolist()
        return BaseNote(self.older.prefix, self.older.identity, tuple(files))

    def referred(self, rows: Ints) -> EntryTable:
        """Return the older entries of some slices, with the digests of these."""
        return replace(self.entries.take(self.match[rows]), digests=self.digests[rows])

    def runs_of(self, rows: Ints) -> NDArray[np.uint32]:
        """Return the checksums of all runs of some slices in the older checkpoint."""
        known, nbytes = self.entries.runs, self.source.index.entries.slices.nbytes
        found = [known.of(int(self.match[row]), int(nbytes[row])) for row in rows.tolist() if known]
        return np.concatenate([np.zeros(0, np.uint32), *found])


# --- Slices


def _cut(source: ArraySource, older: SliceTable) -> tuple[ArraySource, Ints]:
    """Return a source, cut where older slices tile an array, and [m] the row of each older slice or -1."""
    mine = source.index.entries.slices
    known = older.tensors.rows()
    is_known = np.array([key in known for key in mine.tensors.keys], np.bool)
    wanted = np.flatnonzero(is_known[mine.tensor] & (mine.nbytes > 0))
    tiles: dict[int, list[int]] = {}
    if len(wanted):
        tiles = _tiles(older, mine, wanted, source.is_lazy)
    counts = np.array([len(tiles.get(row, [-1])) for row in range(len(mine))], np.int64)
    match = np.array([each for row in range(len(mine)) for each in tiles.get(row, [-1])], np.int64)
    if len(match) == len(mine):
        return source, match
    rows = np.repeat(np.arange(len(mine)), counts)
    taken = mine.take(rows)
    offset, shape, nbytes = taken.offset.copy(), taken.shape.copy(), taken.nbytes.copy()
    arrays: list[Array | LazyPayload | bytes] = [source.arrays[row] for row in rows.tolist()]
    for number in np.flatnonzero(counts[rows] > 1).tolist():
        whole, part = mine.region(int(rows[number])), older.region(int(match[number]))
        offset[number, : part.rank], shape[number, : part.rank] = part.offset, part.shape
        nbytes[number] = older.nbytes[match[number]]
        array = arrays[number]
        if isinstance(array, np.ndarray):  # as all that is cut
            begin = zip(part.offset, whole.offset, part.shape, strict=True)
            arrays[number] = array[tuple(slice(at - o, at - o + n) for at, o, n in begin)]
    table = replace(taken, offset=offset, shape=shape, nbytes=nbytes)
    return array_source(table, arrays), match


def _tiles(
    older: SliceTable, mine: SliceTable, wanted: Ints, is_lazy: Bools
) -> dict[int, list[int]]:
    """Return the older slices that tile ``wanted`` regions, for each that has such slices."""
    rank = max(older.shape.shape[1], mine.shape.shape[1])
    offset_a, shape_a = older.regions_by_tensor(rank)
    offset_b, shape_b = mine.take(wanted).regions_by_tensor(rank)
    number = older.tensors.rows()
    tensor_of = np.array([number.get(key, -1) for key in mine.tensors.keys], np.int64)
    offset_b[:, 0] = tensor_of[mine.tensor[wanted]]
    # Older slices are disjoint: slices inside a region tile it if their sizes add up to its size.
    found: dict[int, list[int]] = {}
    for target, source in overlapping_pairs(offset_b, shape_b, offset_a, shape_a):
        is_inside = (offset_a[source] >= offset_b[target]) & (
            offset_a[source] + shape_a[source] <= offset_b[target] + shape_b[target]
        )
        inside = is_inside.all(axis=1)
        for row, tile in zip(target[inside].tolist(), source[inside].tolist(), strict=True):
            found.setdefault(int(wanted[row]), []).append(tile)
    return {
        row: sorted(tiles)
        for row, tiles in found.items()
        if older.nbytes[tiles].sum() == mine.nbytes[row] and not (is_lazy[row] and len(tiles) > 1)
    }


# --- Hashes


def _span(source: ArraySource, row: int, start: int, stop: int) -> memoryview:
    """Return bytes of a payload, which the next call of this thread reuses."""
    payload = source.payload(row)
    if payload is not None:
        return payload[start:stop]
    buffer = thread_buffer(stop - start)
    source.read_span(row, start, buffer)
    return buffer


@contextmanager
def _in_portions(source: ArraySource, row: int) -> Iterator[bool]:
    """Make a lazy array some rows at a time, and drop it at the end; yield True for a lazy one."""
    array = source.arrays[row]
    if not isinstance(array, LazyPayload):
        yield False
        return
    array.cuts = []
    try:
        yield True
    finally:
        source.end_turn()
        array.cuts = None


def _hash_all(source: ArraySource, rows: Ints) -> Iterator[tuple[bytes, list[int]]]:
    """Yield, of each payload, the hashes of its leaves and the checksums of its runs."""

    def hash_leaf(leaf: tuple[int, int, int]) -> tuple[bytes, list[int]]:
        row, start, stop = leaf
        octets = _span(source, row, start, stop)
        runs = block_ranges(0, len(octets), RUN_NBYTES)
        return hash_of(octets), [CRC32C.compute(octets[at:end]) for at, end in runs]

    def leaves(row: int) -> list[tuple[int, int, int]]:
        return [(row, *span) for span in block_ranges(0, source.nbytes(row), LEAF_NBYTES)]

    in_memory = [row for row in rows.tolist() if not source.is_lazy[row]]
    hashed = iter(run_all(hash_leaf, (leaf for row in in_memory for leaf in leaves(row))))
    for row in rows.tolist():
        if source.is_lazy[row]:
            with _in_portions(source, row):
                found = list(map(hash_leaf, leaves(row)))
        else:
            found = [next(hashed) for _ in leaves(row)]
        yield b"".join(leaf for leaf, _ in found), [crc for _, runs in found for crc in runs]


_Hear = Callable[[int, Array], None]
"""Takes rows of a lazy array that were made, and the number of the first one."""


@contextmanager
def _told(lazy: Iterable[tuple[LazyPayload, _Hear]]) -> Iterator[None]:
    """Give the rows that lazy arrays make inside to functions; no value is made for it."""

    def made(make: Callable[[int, int], Array], hear: _Hear, start: int, stop: int) -> Array:
        array = make(start, stop)
        hear(start, array)
        return array

    with ExitStack() as stack:
        for array, hear in lazy:
            stack.callback(setattr, array, "make", array.make)
            array.make = partial(made, array.make, hear)
        yield


def _octets_of(array: Array) -> memoryview:
    return bytes_of(np.ascontiguousarray(array, array.dtype.newbyteorder("<")))


class _Stream:
    """The digest of a payload whose rows are made in order."""

    def __init__(self, row_nbytes: int) -> None:
        self._row_nbytes = row_nbytes
        self._leaves: list[bytes] = []
        self._rest = b""
        self._nbytes = 0
        self._is_in_order = True

    def add(self, start: int, array: Array) -> None:
        self._is_in_order &= start * self._row_nbytes == self._nbytes
        octets = _octets_of(array)
        self._nbytes += len(octets)
        first = min(LEAF_NBYTES - len(self._rest), len(octets)) if self._rest else 0
        self._rest += octets[:first]
        if len(self._rest) == LEAF_NBYTES:
            self._leaves.append(hash_of(self._rest))
            self._rest = b""
        stop = first + (len(octets) - first) // LEAF_NBYTES * LEAF_NBYTES
        for start in range(first, stop, LEAF_NBYTES):
            self._leaves.append(hash_of(octets[start : start + LEAF_NBYTES]))
        self._rest += octets[stop:]

    def digest(self, nbytes: int) -> bytes:
        """Return the digest; zeros if not all of the payload was made in order."""
        if not self._is_in_order or self._nbytes != nbytes or not nbytes:
            return _NO_DIGEST
        rest = [hash_of(self._rest)] if self._rest else []
        return hash_of(b"".join([*self._leaves, *rest]))


# --- The commit


def check_is_older(found: OlderIndex, expected: OlderIndex | BaseNote) -> None:
    """Raise ``CorruptCheckpoint`` if the base is another checkpoint than a share has seen."""
    if found.identity != expected.identity:
        raise _replaced(found.index.name)


def _replaced(name: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"{name}, to which the new checkpoint refers, was replaced or removed meanwhile.",
        SAVE_AGAIN,
    )


def older_of_shares(
    storage: Storage, run: str, notes: Sequence[BaseNote | None]
) -> OlderIndex | None:
    """Raise unless the notes name one base, and that is still the same checkpoint."""
    names = [None if note is None else note.prefix for note in notes]
    if len({*names}) > 1:
        other = next(process for process, name in enumerate(names) if name != names[0])
        said = [f"names the base {n!r}" if n else "names no base" for n in (names[0], names[other])]
        cause = f"Of the run {run!r}, process 0 {said[0]}, and process {other} {said[1]}."
        raise ArgumentError(cause, "Give all processes the same base, or none of them.")
    if names[0] is None:
        return None
    try:
        found = OlderIndex.read(storage, names[0])
    except MissingFile:
        raise _replaced(native_index_name(names[0])) from None
    for note in notes:
        if note is not None:
            check_is_older(found, note)
            if any(not 0 <= file < len(found.nbytes) for file in note.files):
                with prefix_errors(found.index.name):
                    raise invalid("A share refers to a file that it does not name.")
    return found


# --- Digests of tensors


_MOST_NBYTES = 24 << 20
"""The hashes that a share stores at most, of 768 GiB: the commit makes the others."""

SlicePlace = tuple[str, Shape]
"""The key and the offset of a slice with elements, which no other one of a process has."""
StoredLeaves = Mapping[SlicePlace, Mapping[int, bytes]]
"""The hashes of leaves by their numbers, of each slice."""


# --- One process


class _Part(NamedTuple):
    dtype: str
    shape: Shape
    offset: Shape
    extent: Shape
    leaves: LeafHashes

    def add(self, start: int, array: Array) -> None:
        """Hash the leaves that lie in rows from ``start`` on."""
        if array.ndim and array.size and self.leaves.nbytes:
            offset = (self.offset[0] + start, *self.offset[1:])
            self.leaves.add_region(self.dtype, self.shape, offset, array.shape, _octets_of(array))


@contextmanager
def hashed(
    source: ArraySource, rows: Ints, slices: SliceTable
) -> Iterator[dict[SlicePlace, dict[int, bytes]]]:
    """Lazy arrays are hashed as the block makes their values; [m] ``rows`` are of the source."""
    found: dict[SlicePlace, dict[int, bytes]] = {}
    itemsizes, parts = ITEMSIZES[slices.codes()].tolist(), list[_Part]()
    for each, itemsize in zip(map(slices.__getitem__, range(len(slices))), itemsizes, strict=True):
        region, leaves = each.region, LeafHashes(prod(each.full_shape) * itemsize)
        parts.append(_Part(each.dtype, each.full_shape, region.offset, region.shape, leaves))
    arrays = [source.arrays[row] for row in rows.tolist()]
    pairs = zip(arrays, parts, strict=True)
    with _told((array, part.add) for array, part in pairs if isinstance(array, LazyPayload)):
        yield found
    for row, part, array in zip(rows.tolist(), parts, arrays, strict=True):
        if not isinstance(array, LazyPayload | bytes):
            start = _first_byte(part, nbytes := source.nbytes(row))
            if start is not None:
                inside = part.leaves.inside(start, start + nbytes)
                _put_leaves(part.leaves, part.dtype, inside, partial(_span, source, row), start)
            elif (payload := source.payload(row)) is not None:
                part.leaves.add_region(part.dtype, part.shape, part.offset, part.extent, payload)
    nbytes = 0
    for number, part in enumerate(parts):
        known = part.leaves.known()
        nbytes += HASH_NBYTES * len(known)
        if known and nbytes <= _MOST_NBYTES:
            found[slices.key(number), part.offset] = known


def _put_leaves(
    leaves: LeafHashes,
    dtype: str,
    numbers: Sequence[int],
    read: Callable[[int, int], memoryview],
    begin: int = 0,
) -> None:
    """Hash leaves of a tensor in threads; ``read`` returns bytes of it by their bounds, from ``begin`` on."""

    def hash_one(leaf: int) -> bytes:
        start, stop = leaves.bounds(leaf)
        return hash_leaf(dtype, read(start - begin, stop - begin))

    hashes = run_all(hash_one, numbers) if len(numbers) > 1 else map(hash_one, numbers)
    for leaf, octets in zip(numbers, hashes, strict=True):
        leaves.put(leaf, octets)


def _first_byte(part: _Part, nbytes: int) -> int | None:
    """Return the first byte of a slice in its tensor's data; None unless it is one range of them."""
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
    values = []
    for (key, offset), leaves in stored.items():
        # The numbers of leaves, as the first and the count of each run.
        numbers = sorted(leaves)
        grouped = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
        runs = [(run[0][1], len(run)) for run in (list(each) for _, each in grouped)]
        text = b64encode(b"".join(leaves[leaf] for leaf in numbers)).decode()
        values.append([key, list(offset), runs, text])
    return values


def decode_leaves(values: Any) -> StoredLeaves:
    """Return leaves from the result of ``encode_leaves``; ``ValueError`` and its like for other values."""
    found: dict[SlicePlace, dict[int, bytes]] = {}
    for key, offset, runs, text in values:
        octets = b64decode(text, validate=True)
        if sum(count for _, count in runs) * HASH_NBYTES != len(octets):
            raise invalid("It has more leaves than hashes, or fewer.")
        numbers = [leaf for first, count in runs for leaf in range(first, first + count)]
        hashes = (octets[at : at + HASH_NBYTES] for at in range(0, len(octets), HASH_NBYTES))
        found[key, tuple(offset)] = dict(zip(numbers, hashes, strict=True))
    return found


# --- The commit


def digests_of_shares(
    blocks: Blocks, known: Sequence[Mapping[int, bytes]], ties: Mapping[str, str]
) -> dict[str, str]:
    """[m] ``known`` has the leaves of each row; missing leaves are read."""
    tensors, rest = blocks.tensors, []
    tied = {first: [key for key in ties if ties[key] == first] for first in ties.values()}
    found: dict[str, str] = {}
    for row, key in enumerate(tensors.keys):
        rows = blocks.order[blocks.bounds[row] : blocks.bounds[row + 1]].tolist()
        if not ITEMSIZES[tensors.codes[row]]:
            rest.append(row)
            continue
        leaves = LeafHashes(int(blocks.nbytes[row]))
        for leaf, octets in chain.from_iterable(known[each].items() for each in rows):
            # A leaf lies in one slice, so no other slice has it.
            if not 0 <= leaf < len(leaves.is_known) or leaves.is_known[leaf]:
                raise invalid(f"{key!r} has no leaf {leaf}, or has it twice.")
            leaves.put(leaf, octets)
        if leaves.num_missing == len(leaves.is_known) and leaves.num_missing and key not in tied:
            rest.append(row)
            continue
        if leaves.num_missing:
            flat = blocks.flat(row)
            read = partial(read_portion, flat)
            _put_leaves(leaves, tensors.dtype(row), [*leaves.missing()], read)
            flat.check()
        for name in (key, *tied.get(key, ())):
            found[name] = leaves.digest(name, *tensors.fact(row))
    found |= digests_of_blocks(blocks, rest)
    return {key: found[key] for key in (*tensors.keys, *ties)}
