"""Deltas joined: with their base, as a source of the result; without it, as one delta.

    tensor of the result   made of
    equal in all deltas    the tensor of the base
    changed                the tensor of the base, and the masks of each delta that changed it
    whole in a delta       that tensor, and the masks of later deltas

``PatchedSource``: each tensor is one entry, in C order, whichever slices its origin has. A leaf is
read from the origin, gets the masks, and is hashed; the last leaf of a tensor gives its digest, which
must be the digest of the last delta. So another base, or a change of the base since, is
found before anything is committed, and each byte of the result is compared, also of tensors that did
not change. ``finish`` reads the rest, such as a tensor in a file that an interrupted run had finished.
Without the base, only tensors that need none of its bytes can be read.

``compact_deltas``: the mask of a leaf from the first base to the last result is the XOR of the masks
of all steps. A tensor that a delta stores whole gets the masks of later ones. So the bytes that are
stored are never more than in the deltas together, and a leaf that only one of them changes is copied
as it is.
"""

from collections import OrderedDict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from threading import RLock

import numpy as np

from shardvar.engine.pool import (
    WORKERS,
    Progress,
    block_ranges,
    bytes_of,
    run_all,
    thread_buffer,
)
from shardvar.engine.read import FlatTensor, check_bool
from shardvar.errors import (
    COPY_AGAIN,
    ArgumentError,
    CorruptCheckpoint,
    ReadError,
    UnsupportedError,
)
from shardvar.forks import new_lock
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import OWN_SIZE, STRING, Bools, Ints
from shardvar.planning.index import EntryTable, Metadata, TableIndex
from shardvar.planning.slices import TensorTable
from shardvar.records import entity, field, mutable, replace
from shardvar.storage.protocol import Storage, Traits
from shardvar.storage.scratch import ScratchFile
from shardvar.verbs.arguments import check_progress, named_arguments
from shardvar.verbs.compare.blocks import Blocks, read_portion
from shardvar.verbs.compare.digest import digest_array, digests_of
from shardvar.verbs.delta.chain import another_base, check_follows, find_deltas, open_deltas
from shardvar.verbs.delta.contents import (
    CHANGED,
    EQUAL,
    MAKE_AGAIN,
    REMOVED,
    WHOLE,
    WHOLE_PREFIX,
    Contents,
    Delta,
    DeltaReport,
    DeltaRow,
    check_leaves,
)
from shardvar.verbs.delta.draft import (
    DeltaDraft,
    LeafChange,
    LeafWork,
    draft_tensors,
    find_delta_target,
    write_delta,
)
from shardvar.verbs.locate import Path
from shardvar.verbs.reader import Reader
from shardvar.verbs.writing import tells_requests
from shardvar.wire import strings
from shardvar.wire.digests import LEAF_NBYTES, Frame, LeafHashes, apply_mask, encode_mask, hash_leaf

_KEPT_LEAVES = 2 * WORKERS
"""Leaves that are kept after a read of a part of them: the next part is read soon."""


@entity
class PatchedTensor:
    """A tensor of the result, and its origin."""

    change: DeltaRow
    origin: Delta | None
    """The delta that has it whole; None for the base."""
    masks: tuple[Delta, ...]
    """The deltas that change the origin, in order."""
    base: str | None
    """The digest of the origin in the base; None if that is a delta's."""


def patched_tensors(deltas: Sequence[Delta]) -> list[PatchedTensor]:
    """Return the tensors of the result of deltas that follow each other, in the order of the last."""
    parts: list[PatchedTensor] = []
    for change in deltas[-1].contents.changes.values():
        if change.result is None:
            continue
        masks: list[Delta] = []
        origin: Delta | None = None
        base = None
        for each in reversed(deltas):
            then = each.contents.changes[change.key]
            base = then.base
            if then.kind == WHOLE:
                origin, base = each, None
                break
            if then.kind == CHANGED:
                masks.append(each)
        parts.append(PatchedTensor(change, origin, tuple(reversed(masks)), base))
    return parts


@mutable
class _Tally:
    """The hashes of the leaves of one tensor that were made so far."""

    leaves: LeafHashes
    flat: FlatTensor | None = None
    is_right: bool = False


@entity
class PatchedSource(Source):
    """The tensors of a base with deltas applied; the start of an entry is the number of its part."""

    base: Reader | None
    deltas: tuple[Delta, ...]
    parts: Sequence[PatchedTensor]
    index: TableIndex = field()
    _blocks: Blocks | None
    """The tensors of the base."""
    _rows: Mapping[str, int]
    _seen: dict[int, _Tally] = field(default_factory=dict)
    _kept: OrderedDict[tuple[int, int], bytes] = field(default_factory=OrderedDict)
    _texts: dict[int, bytes] = field(default_factory=dict)
    _lock: RLock = field(default_factory=new_lock)

    @classmethod
    def of(cls, base: Reader | None, deltas: Sequence[Delta]) -> "PatchedSource":
        parts = {
            part.change.key: part
            for part in patched_tensors(deltas)
            if base is not None or part.origin is not None
        }
        changes = [part.change for part in parts.values()]
        tensors = TensorTable.of((each.key, each.dtype, each.shape) for each in changes)
        entries = EntryTable.without_checksums(
            tensors.whole(), np.arange(len(changes)), plain=False
        )
        paths = {each.key: each.path for each in changes if each.path is not None}
        ties = {
            each.key: each.tie for each in changes if each.tie is not None and each.tie in parts
        }
        metadata = Metadata(user=deltas[-1].contents.user, paths=paths, ties=ties)
        files = ["result"] if base is None else base.index.files
        index = TableIndex(entries, files, metadata)
        blocks = None if base is None else Blocks.of(base)
        rows = {} if blocks is None else blocks.tensors.rows()
        source = cls(base, tuple(deltas), [*parts.values()], index, blocks, rows)
        # The origins of strings and variants know their sizes.
        for row in np.flatnonzero(OWN_SIZE[entries.slices.codes()]).tolist():
            entries.slices.nbytes[row] = source._origin(row).slices.nbytes.sum()
        return source

    # The origin of a tensor.

    def _reader(self, origin: Delta | None) -> Reader:
        """The base, or the delta that has a tensor whole."""
        reader = self.base if origin is None else origin.reader
        if reader is None:
            raise ArgumentError("The base is not given.")
        return reader

    def _origin(self, number: int) -> EntryTable:
        part = self.parts[number]
        if part.origin is not None:
            return part.origin.stored(part.change.key)
        return self._base().entries_of([self._rows[part.change.key]])

    def _base(self) -> Blocks:
        if self._blocks is None:
            raise ArgumentError("The base is not given.")
        return self._blocks

    def _open(self, number: int) -> tuple[_Tally, FlatTensor]:
        """The hashes of a tensor so far, and its origin."""
        with self._lock:
            seen = self._seen.get(number)
            if seen is None:
                nbytes = int(self.index.entries.slices.nbytes[number])
                seen = self._seen[number] = _Tally(LeafHashes(nbytes))
            if seen.flat is None:
                source = self._reader(self.parts[number].origin).source
                seen.flat = FlatTensor.of(source, self._origin(number))
            return seen, seen.flat

    # Reading.

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
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
            digest = hash_leaf(self.parts[number].change.dtype, part)
            with self._lock:
                is_same = promised in (None, digest) and seen.leaves.put(leaf, digest)
                is_whole = not seen.leaves.num_missing and not seen.is_right
            if not is_same:
                self._blame(number)
            if is_whole:
                self._compare(number, seen)

    def _patch(self, number: int, leaf: int, buffer: memoryview) -> bytes | None:
        """Turn a leaf of the origin into the result's; return its promised hash, None if nothing changes it."""
        promised, part = None, self.parts[number]
        for each in part.masks:
            by_leaf = each.frames(part.change.key).by_leaf
            if leaf in by_leaf:
                apply_mask(each.mask(part.change.key, leaf), buffer)
                promised = by_leaf[leaf][0].digest
        if promised is not None and part.change.dtype == "bool":
            check_bool(np.frombuffer(buffer, np.bool), part.change.key, self, self.index.entries)
        return promised

    def _compare(self, number: int, seen: _Tally) -> None:
        """Compare the digest of a tensor whose leaves are all known, and the checksums of its origin."""
        change, flat = self.parts[number].change, seen.flat
        if seen.leaves.digest(change.key, change.dtype, change.shape) != change.result:
            self._blame(number)
        if flat is not None:
            flat.check()
        # The plan of its slices is made again if it is read again.
        seen.is_right, seen.flat = True, None

    def _check_empty(self, number: int) -> None:
        seen, _ = self._open(number)
        if not seen.is_right:
            self._compare(number, seen)

    def _text(self, number: int) -> bytes:
        with self._lock:
            if number not in self._texts:
                change, (seen, flat) = self.parts[number].change, self._open(number)
                payload = read_portion(flat, 0, flat.nbytes, None)
                flat.check()
                if not (self.traits and self.traits.is_rehearsed):
                    array = strings.decode(payload, change.shape)
                    if digest_array(change.key, array) != change.result:
                        self._blame(number)
                seen.is_right, seen.flat = True, None
                self._texts[number] = bytes(payload)
            return self._texts[number]

    def _blame(self, number: int) -> None:
        if self.traits and self.traits.is_rehearsed:
            return
        part, last = self.parts[number], self.deltas[-1].path
        key, reader = part.change.key, self._reader(part.origin)
        # Read again: a damaged base is called damaged.
        if part.origin is None and digests_of(reader, [key])[key] != part.base:
            raise another_base(reader.path, self.deltas[0].path, key, "has other values")
        raise CorruptCheckpoint(
            f"{last}: {key!r} with the delta applied does not have the digest that the delta gives.",
            MAKE_AGAIN,
        )

    def finish(self) -> None:
        nbytes = self.index.entries.slices.nbytes.tolist()

        def read(work: tuple[int, int]) -> None:
            number, leaf = work
            count = min(LEAF_NBYTES, nbytes[number] - leaf * LEAF_NBYTES)
            self._make(number, leaf, thread_buffer(count, "leaf"))

        run_all(read, self._unread())
        numbers = self.index.entries.slices.tensors.rows()
        for key, first in self.index.metadata.ties.items():
            number = numbers[key]
            change, leaves = self.parts[number].change, self._seen[numbers[first]].leaves
            if leaves.digest(change.key, change.dtype, change.shape) != change.result:
                self._blame(number)

    def _unread(self) -> Iterator[tuple[int, int]]:
        """The leaves that nothing has read; tensors without leaves are compared here."""
        ties = self.index.metadata.ties
        for number, part in enumerate(self.parts):
            if part.change.key in ties:
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
        traits = None if self.base is None else self.base.source.traits
        for delta in self.deltas:
            traits = traits or delta.reader.source.traits
        return traits

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        raise UnsupportedError(
            f"The bytes from {start} on of file {file} are not read ({len(buffer)} bytes): a delta "
            "changes them."
        )

    def map(self, file: int) -> memoryview:
        raise UnsupportedError(f"The file {file} is not mapped: a delta changes its tensors.")

    def files_read(self, entries: EntryTable) -> Ints:  # noqa: ARG002  # all of the base
        if self.base is None:
            return np.zeros(0, np.int64)
        return self.base.source.files_read(self._base().entries)

    @property
    def places(self) -> Sequence[tuple[Storage, str]]:
        return () if self.base is None else self.base.source.places

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        parts = [self.parts[number] for number in entries.start[rows].tolist()]
        is_ordered = np.array([each.change.dtype == STRING for each in parts], np.bool)
        of_base = [n for n, each in enumerate(parts) if each.origin is None and not is_ordered[n]]
        if of_base:
            base = self._base()
            stored = base.entries_of([self._rows[parts[n].change.key] for n in of_base])
            decoded = np.flatnonzero(~stored.plain)
            if len(decoded):
                ordered = decoded[base.source.in_order(stored, decoded)]
                is_ordered[np.array(of_base)[stored.slices.tensor[ordered]]] = True
        return is_ordered

    def close(self) -> None:
        """Do nothing: the caller closes the base and the deltas."""

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, ReadError]:
        """Return the errors of the base, for tensors that are made of it."""
        if self.base is None:
            return {}
        changed = [each.change.key for each in self.parts if each.origin is None]
        return self.base.source.storage_errors({*keys}.intersection(changed), only_read)

    def encodings(self) -> Mapping[str, str]:
        changes = (part.change for part in self.parts)
        return {each.key: each.encoding for each in changes if each.encoding}

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes] | None:
        """Return the objects among keys, from the base or from the delta that has them."""
        numbers = self.index.entries.slices.tensors.rows()
        by_origin: dict[Delta | None, list[str]] = {}
        for key in keys:
            by_origin.setdefault(self.parts[numbers[key]].origin, []).append(key)
        objects: dict[str, bytes] = {}
        for origin, its_keys in by_origin.items():
            prefix = "" if origin is None else WHOLE_PREFIX
            source = self._reader(origin).source
            found = source.objects([prefix + key for key in its_keys], form) or {}
            objects |= {name.removeprefix(prefix): octets for name, octets in found.items()}
        return objects or None


# Joining deltas to one, without the base.


@tells_requests
@named_arguments
def compact_deltas(
    deltas: Path | Iterable[Path],
    path: Path,
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda _nbytes: None,
) -> DeltaReport:
    """Store several deltas that follow each other as one. The base is not read.

    Parameters
    ----------
    deltas : sequence of path_like
        The deltas, in order: each was made of its predecessor's result.
    path : path_like
        The delta to write.
    force : bool, default False
        Replace an existing delta.
    dry_run : bool, default False
        Write nothing, and report what would be written.
    progress : callable, optional
        Called with numbers of stored bytes as they are joined or written.

    Returns
    -------
    DeltaReport
        The report of what became of each tensor.

    Raises
    ------
    CheckpointNotFound
        If there is no delta at one of the paths.
    ArgumentError
        If the deltas do not follow each other.
    CheckpointError
        If a delta is damaged, or gives wrong digests of its tensors. All that can be compared without
        the base is compared before the commit.
    UnsupportedError
        If one of them is not a delta.
    TargetExists
        If ``path`` exists and ``force`` is not set.
    StorageError
        If the disk is full, or the file system refuses.

    See Also
    --------
    delta : Make a delta of two checkpoints.

    Notes
    -----
    Law: ``apply(base, compact_deltas(deltas))`` has the bytes of ``apply(base, deltas)``.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> folder = tempfile.mkdtemp()
    >>> a, b, c, d, e, f = (os.path.join(folder, name) for name in "abcdef")
    >>> table = np.arange(52, dtype=np.float32).reshape(13, 4)
    >>> for path, row in ((a, 0), (b, 1), (c, 2)):
    ...     table[row] += 1
    ...     _ = sv.save(path, {"table": table})
    >>> _ = sv.delta(a, b, d), sv.delta(b, c, e)
    >>> sv.compact_deltas([d, e], f).tensors[0].num_changed
    8
    """
    check_progress(progress)
    with ExitStack() as stack:
        # Find and check.
        found = find_deltas(deltas)
        opened = open_deltas(found, stack)
        check_follows(opened)
        goal = find_delta_target(path, found)
        # Join.
        draft = DeltaDraft(stack.enter_context(ScratchFile()))
        changes = _joined(opened, draft, progress)
        contents = Contents.of(changes, opened[-1].contents.user)
        # Write.
        source = PatchedSource.of(None, opened)
        return write_delta(
            goal,
            contents,
            draft,
            Reader(goal.path, goal.format.name, source),
            source.finish,
            force=force,
            dry_run=dry_run,
            num_joined=len(opened),
            progress=progress,
        )


def _joined(deltas: Sequence[Delta], draft: DeltaDraft, progress: Progress) -> list[DeltaRow]:
    """Keep the joined frames; return the change of each tensor from the first base to the last result."""
    parts = {each.change.key: each for each in patched_tensors(deltas)}
    # The tensor whose frames each has: itself, or its tie in all deltas.
    firsts: dict[str, str] = {}
    for key, part in parts.items():
        tie = part.change.tie
        is_joined = (
            tie is not None
            and part.origin is None
            and (parts[tie].origin, parts[tie].masks) == (None, part.masks)
            and all(each.stored_key(key) == each.stored_key(tie) for each in part.masks)
        )
        firsts[key] = str(tie) if is_joined else key
    sharing: dict[str, list[PatchedTensor]] = {}
    for key, first in firsts.items():
        sharing.setdefault(first, []).append(parts[key])
    once = {key: parts[key] for key, first in firsts.items() if key == first}
    changed: set[str] = set()
    with closing(draft_tensors(draft, _leaves(once, progress))) as tensors:
        for key, leaves in tensors:
            if draft.frames:
                draft.keep(key)
                changed.add(key)
            hashes = {leaf.number: leaf.after for leaf in leaves}
            for part in sharing[key]:
                with part.masks[-1].at(part.change.key):
                    check_leaves(part.change, hashes)
    before, rows = deltas[0].contents.changes, list[DeltaRow]()
    for key, part in parts.items():
        base = before[key].base if key in before else None
        kind = CHANGED if firsts[key] in changed else EQUAL
        if part.origin is not None:
            kind = WHOLE
        if kind == EQUAL and base != part.change.result:
            raise CorruptCheckpoint(
                f"{deltas[-1].path}: {key!r} has another digest than before, and nothing changes it.",
                COPY_AGAIN,
            )
        rows.append(replace(part.change, kind=kind, base=base))
    for key, change in before.items():
        if change.base is not None and key not in parts:
            rows.append(DeltaRow(key, REMOVED, change.dtype, change.shape, change.base, None))
    return rows


def _leaves(parts: Mapping[str, PatchedTensor], progress: Progress) -> Generator[LeafWork]:
    for key, part in parts.items():
        if part.origin is not None or not part.masks:
            continue
        deltas: dict[int, list[Delta]] = {}
        for delta in part.masks:
            for number in delta.frames(key).by_leaf:
                deltas.setdefault(number, []).append(delta)
        for number in sorted(deltas):
            compare = partial(_join_leaf, part.change, number, deltas[number], progress)
            yield LeafWork(key, part.change.nbytes, compare, number == max(deltas))


def _join_leaf(
    change: DeltaRow, number: int, deltas: Sequence[Delta], progress: Progress
) -> list[LeafChange]:
    every = [each.frames(change.key) for each in deltas]
    masks = [each.mask(change.key, number) for each in deltas]
    joined: Frame | None
    joined, _ = every[-1].by_leaf[number]
    digest, body = joined.digest, b""
    if len(masks) == 1:
        body = bytes(every[0].body(number))
    else:
        mask = masks[0].copy()
        for other in masks[1:]:
            apply_mask(other, bytes_of(mask))
        joined = None
        if mask.any():
            encoding, num_changed, body = encode_mask(mask)
            joined = Frame(number, encoding, len(body), num_changed, digest)
    # The rest is reported when the joined frames are written.
    progress(max(sum(each.by_leaf[number][0].nbytes for each in every) - len(body), 0))
    return [LeafChange(number, b"", digest, joined, body)]
