"""A source that has the tensors of a base with deltas applied.

    tensor of the result   made of
    equal in all deltas    the tensor of the base
    changed                the tensor of the base, and the masks of each delta that changed it
    whole in a delta       that tensor, and the masks of later deltas

Each tensor is one entry, in C order, whichever slices its origin has. A leaf is read from the origin,
gets the masks, and is hashed; the last leaf of a tensor gives its digest, which must be the one that
the last delta says. So a base that is another one, or that changes meanwhile, is found before
anything is committed, and each byte of the result is compared, also of tensors that did not change.
``finish`` reads the rest, such as a tensor in a file that an interrupted run had
finished.

The base may be missing: then only tensors that need none of its bytes can be read, as when deltas
are joined.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import NoReturn, Self

import numpy as np

from shardvar.engine.flat import FlatTensor
from shardvar.engine.pool import WORKERS, block_ranges, new_buffer, run_all, thread_buffer
from shardvar.engine.read import check_bool
from shardvar.errors import ArgumentError, CorruptCheckpoint, ReadError, UnsupportedError
from shardvar.forks import new_lock
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import OWN_SIZE, STRING, Bools, Ints
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Metadata, TableIndex
from shardvar.planning.slices import TensorTable
from shardvar.storage.protocol import Storage, Traits
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.compare.digest import digest_array, digests_of
from shardvar.verbs.delta.chain import PatchedTensor, another_base, patched_tensors
from shardvar.verbs.delta.contents import MAKE_AGAIN, WHOLE_PREFIX, Delta
from shardvar.verbs.reader import Reader
from shardvar.wire import strings
from shardvar.wire.digests import LEAF_NBYTES, LeafHashes, hash_leaf
from shardvar.wire.frames import apply_mask

_KEPT_LEAVES = 2 * WORKERS
"""Leaves that are kept after a read of a part of them: the next part is read soon."""


class _Tally:
    """The hashes of the leaves of one tensor that were made so far."""

    __slots__ = ("flat", "is_right", "leaves")

    def __init__(self, nbytes: int) -> None:
        self.flat: FlatTensor | None = None
        self.leaves = LeafHashes(nbytes)
        self.is_right = False


@dataclass(frozen=True, slots=True, eq=False)
class PatchedSource(Source):
    """The tensors of a base with deltas applied; the start of an entry is the number of its part."""

    base: Reader | None
    """The base; None if no tensor needs its bytes."""
    deltas: tuple[Delta, ...]
    """The deltas, in order."""
    parts: Sequence[PatchedTensor]
    """The tensors."""
    index: TableIndex = field()
    """The table of contents of the result."""
    _stored: list["_Base"] = field(default_factory=list)
    _seen: dict[int, _Tally] = field(default_factory=dict)
    _kept: OrderedDict[tuple[int, int], bytes] = field(default_factory=OrderedDict)
    _texts: dict[int, bytes] = field(default_factory=dict)
    _lock: RLock = field(default_factory=new_lock)

    @classmethod
    def of(cls, base: Reader | None, deltas: Sequence[Delta]) -> "PatchedSource":
        """The source of a base and deltas that follow each other."""
        parts = [
            each for each in patched_tensors(deltas) if base is not None or each.origin is not None
        ]
        changes = [each.change for each in parts]
        tensors = TensorTable.of((each.key, each.dtype, each.shape) for each in changes)
        count, zeros = len(parts), np.zeros(len(parts), np.int64)
        last = deltas[-1].contents
        paths = {each.key: each.path for each in changes if each.path is not None}
        keys = {each.key for each in changes}
        ties = {each.key: each.tie for each in changes if each.tie is not None and each.tie in keys}
        metadata = Metadata(user=last.user, paths=paths, ties=ties)
        index = TableIndex(
            EntryTable(
                tensors.whole(),
                zeros,
                np.arange(count),
                np.full(count, NO_CHECKSUM),
                np.zeros(count, np.bool),
            ),
            ["result"] if base is None else base.index.files,
            metadata,
        )
        found = cls(base, tuple(deltas), parts, index)
        found._set_sizes()
        return found

    def _set_sizes(self) -> None:
        """Set the sizes of strings and variants, which their origins know."""
        entries = self.index.entries
        for row in np.flatnonzero(OWN_SIZE[entries.slices.codes()]).tolist():
            entries.slices.nbytes[row] = self._origin(row).slices.nbytes.sum()

    # The origin of a tensor.

    def _base(self) -> "_Base":
        """The tensors of the base."""
        with self._lock:
            if not self._stored:
                self._stored.append(_Base.of(self._reader(None)))
            return self._stored[0]

    def _reader(self, origin: Delta | None) -> Reader:
        """The base, or the delta that has a tensor whole."""
        reader = self.base if origin is None else origin.reader
        if reader is None:
            raise ArgumentError("The base is not given.")
        return reader

    def _origin(self, number: int) -> EntryTable:
        """The entries that a tensor is made of."""
        part = self.parts[number]
        if part.origin is not None:
            return part.origin.stored(part.origin.contents.changes[part.change.key])
        base = self._base()
        return base.blocks.entries_of([base.rows[part.change.key]])

    def _open(self, number: int) -> tuple[_Tally, FlatTensor]:
        """The hashes of a tensor so far, and its origin."""
        with self._lock:
            seen = self._seen.get(number)
            if seen is None:
                nbytes = int(self.index.entries.slices.nbytes[number])
                seen = self._seen[number] = _Tally(nbytes)
            if seen.flat is None:
                source = self._reader(self.parts[number].origin).source
                seen.flat = FlatTensor.of(source, self._origin(number))
            return seen, seen.flat

    # Reading.

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from a tensor of the result, from byte ``start`` of it on."""
        number = int(entries.start[row])
        if self.parts[number].change.dtype == STRING:
            payload = self._text(number)
            buffer[:] = payload[start : start + len(buffer)]
            if start + len(buffer) == len(payload):
                self._texts.pop(number, None)
            return
        nbytes = int(entries.slices.nbytes[row])
        if not nbytes:
            self._check_empty(number)
        # Whole leaves are made in the buffer, all in one read; of others, a copy is kept.
        at, stop = start, start + len(buffer)
        while at < stop:
            leaf = at // LEAF_NBYTES
            first, last = leaf * LEAF_NBYTES, stop if stop == nbytes else stop - stop % LEAF_NBYTES
            if first == at and last > at:
                self._make(number, leaf, buffer[at - start : last - start])
                at = last
                continue
            last = min(first + LEAF_NBYTES, nbytes)
            some = self._leaf(number, leaf, last - first)[at - first :][: stop - at]
            buffer[at - start :][: len(some)] = some
            at += len(some)

    def _leaf(self, number: int, leaf: int, nbytes: int) -> bytes:
        """Return a leaf that is read in part."""
        with self._lock:
            kept = self._kept.get((number, leaf))
        if kept is None:
            buffer = thread_buffer(nbytes, "leaf")
            self._make(number, leaf, buffer)
            kept = bytes(buffer)
            with self._lock:
                self._kept[number, leaf] = kept
                while len(self._kept) > _KEPT_LEAVES:
                    self._kept.popitem(last=False)
        return kept

    def _make(self, number: int, first: int, buffer: memoryview) -> None:
        """Make whole leaves of the result, and compare them as far as they can be."""
        seen, flat = self._open(number)
        flat.read(first * LEAF_NBYTES, buffer)
        for start, stop in block_ranges(0, len(buffer), LEAF_NBYTES):
            leaf, part = first + start // LEAF_NBYTES, buffer[start:stop]
            promised = self._patch(number, leaf, part)
            found = hash_leaf(self.parts[number].change.dtype, part)
            if promised not in (None, found):
                self._blame(number)
            self._note(number, seen, leaf, found)

    def _patch(self, number: int, leaf: int, buffer: memoryview) -> bytes | None:
        """Turn a leaf of the origin into one of the result; return the hash that it must have, None
        if no delta changes it."""
        promised, part = None, self.parts[number]
        for each in part.masks:
            change = each.contents.changes[part.change.key]
            frames = each.frames(change)
            if leaf in frames.by_leaf:
                with each.at(change.key):
                    apply_mask(frames.mask(leaf, len(buffer), change.width), buffer)
                promised = frames.by_leaf[leaf][0].digest
        if promised is not None and part.change.dtype == "bool":
            check_bool(np.frombuffer(buffer, np.bool), part.change.key, self, self.index.entries)
        return promised

    def _note(self, number: int, seen: _Tally, leaf: int, found: bytes) -> None:
        """Keep the hash of a leaf; after the last one, compare the tensor."""
        with self._lock:
            is_same = seen.leaves.put(leaf, found)
            is_whole = not seen.leaves.num_missing and not seen.is_right
        if not is_same:
            self._blame(number)
        if is_whole:
            self._compare(number, seen)

    def _compare(self, number: int, seen: _Tally) -> None:
        """Compare the digest of a tensor, and the checksums of its origin."""
        change, flat = self.parts[number].change, seen.flat
        if seen.leaves.digest(change.key, change.dtype, change.shape) != change.result:
            self._blame(number)
        if flat is not None:
            flat.check()
        # The plan of its slices is made again if it is read again.
        seen.is_right, seen.flat = True, None

    def _check_empty(self, number: int) -> None:
        """Compare a tensor without elements."""
        seen, _ = self._open(number)
        if not seen.is_right:
            self._compare(number, seen)

    def _text(self, number: int) -> bytes:
        """Return the payload of a string tensor, compared."""
        with self._lock:
            if number not in self._texts:
                change, (seen, flat) = self.parts[number].change, self._open(number)
                payload = new_buffer(flat.nbytes)
                flat.read(0, payload)
                flat.check()
                array = strings.decode(payload, change.shape)
                if digest_array(change.key, array) != change.result:
                    self._blame(number)
                seen.is_right, seen.flat = True, None
                self._texts[number] = bytes(payload)
            return self._texts[number]

    def _blame(self, number: int) -> NoReturn:
        """Raise the error of a result that is not the one that the last delta says."""
        part, last = self.parts[number], self.deltas[-1].path
        key, reader = part.change.key, self._reader(part.origin)
        if part.origin is None:
            # Read again: a damaged base is called damaged.
            found = digests_of(reader, [key])
            if found[key] != part.base:
                raise another_base(reader.path, self.deltas[0].path, key, "has other values")
        raise CorruptCheckpoint(
            f"{last}: {key!r} with the delta applied does not have the digest that the delta gives.",
            MAKE_AGAIN,
        )

    def finish(self) -> None:
        """Compare the rest, so that all of the result was compared."""
        nbytes = self.index.entries.slices.nbytes.tolist()

        def read(work: tuple[int, int]) -> None:
            number, leaf = work
            count = min(LEAF_NBYTES, nbytes[number] - leaf * LEAF_NBYTES)
            self._make(number, leaf, thread_buffer(count, "leaf"))

        run_all(read, self._unread())
        for number, first in self._tied():
            change = self.parts[number].change
            leaves = self._seen[first].leaves
            if leaves.digest(change.key, change.dtype, change.shape) != change.result:
                self._blame(number)

    def _tied(self) -> list[tuple[int, int]]:
        """The tied tensors, each with the number of the one whose bytes it has."""
        ties = self.index.metadata.ties
        numbers = (
            {each.change.key: number for number, each in enumerate(self.parts)} if ties else {}
        )
        return [(numbers[key], numbers[first]) for key, first in ties.items()]

    def _unread(self) -> Iterator[tuple[int, int]]:
        """The leaves that nothing has read; tensors without leaves are compared here."""
        tied = {number for number, _ in self._tied()}
        for number, part in enumerate(self.parts):
            if number in tied:
                continue
            seen = self._seen.get(number)
            if seen is not None and seen.is_right:
                continue
            if part.change.dtype == STRING:
                self._text(number)
                self._texts.pop(number, None)
            elif not self.index.entries.slices.nbytes[number]:
                self._check_empty(number)
            else:
                yield from ((number, leaf) for leaf in self._open(number)[0].leaves.missing())

    # What the engine and the verbs ask.

    @property
    def traits(self) -> Traits | None:
        """The cost of a request: if the base or a delta is in a bucket, that one's."""
        readers = [*([] if self.base is None else [self.base]), *(e.reader for e in self.deltas)]
        return next((e.source.traits for e in readers if e.source.traits is not None), None)

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Raise the error of payloads that lie in no file."""
        raise UnsupportedError(
            f"The bytes from {start} on of file {file} are not read ({len(buffer)} bytes): a delta "
            "changes them."
        )

    def map(self, file: int) -> memoryview:
        """Raise the error of payloads that lie in no file."""
        raise UnsupportedError(f"The file {file} is not mapped: a delta changes its tensors.")

    def files_read(self, entries: EntryTable) -> Ints:  # noqa: ARG002  # all of the base
        """Return the files of the base."""
        if self.base is None:
            return np.zeros(0, np.int64)
        return self.base.source.files_read(self._base().blocks.entries)

    @property
    def places(self) -> Sequence[tuple[Storage, str]]:
        """[files] The directories and names of the base's files."""
        return () if self.base is None else self.base.source.places

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return True for tensors whose origin is best read in order."""
        found = np.zeros(len(rows), np.bool)
        for place, number in enumerate(entries.start[rows].tolist()):
            part = self.parts[number]
            if part.change.dtype == STRING:
                found[place] = True
            elif part.origin is None:
                base = self._base()
                found[place] = base.is_ordered[base.rows[part.change.key]]
        return found

    def close(self) -> None:
        """Do nothing: the caller closes the base and the deltas."""

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, ReadError]:
        """Return the errors of the base, for tensors that are made of it."""
        if self.base is None:
            return {}
        mine = {
            each.change.key
            for each in self.parts
            if each.origin is None and each.change.key in keys
        }
        return self.base.source.storage_errors(mine, only_read)

    def encodings(self) -> Mapping[str, str]:
        """Return the encodings of blocks, as the last delta says."""
        changes = [each.change for each in self.parts]
        return {each.key: each.encoding for each in changes if each.encoding}

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes] | None:
        """Return the objects among keys, from the base or from the delta that has them."""
        found: dict[str, bytes] = {}
        by_key = {each.change.key: each for each in self.parts}
        wanted: dict[int, list[str]] = {}
        for key in keys:
            origin = by_key[key].origin
            at = -1 if origin is None else self.deltas.index(origin)
            wanted.setdefault(at, []).append(key)
        for at, mine in wanted.items():
            prefix = "" if at < 0 else WHOLE_PREFIX
            reader = self.base if at < 0 else self.deltas[at].reader
            if reader is not None:
                there = reader.source.objects([prefix + key for key in mine], form) or {}
                found |= {key: there[prefix + key] for key in mine if prefix + key in there}
        return found or None


@dataclass(frozen=True, slots=True, eq=False)
class _Base:
    """The tensors of the base."""

    blocks: Blocks
    """The tensors."""
    rows: Mapping[str, int]
    """The row of each by its key."""
    is_ordered: Bools
    """[n] True for tensors that are best read in order."""

    @classmethod
    def of(cls, reader: Reader) -> Self:
        """The tensors of an open base."""
        blocks, source = Blocks.of(reader), reader.source
        entries = blocks.entries
        is_ordered = np.zeros(len(blocks.tensors), np.bool)
        rows = np.flatnonzero(~entries.plain)
        if len(rows):
            ordered = rows[source.in_order(entries, rows)]
            is_ordered[entries.slices.tensor[ordered]] = True
        return cls(blocks, blocks.tensors.rows(), is_ordered)
