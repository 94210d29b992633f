"""Deltas of other programs applied to a base: a source of the result, and what could not be compared.

read      leaf by leaf, each tensor that changes: the base's, then the change of each delta in order
compare   the checksum of the tensor after each delta, where the dialect has one
keep      frames of ``wire.frames`` from the base to the last result, in a scratch file

All of it comes before the first byte is written. Then the frames are applied as a delta of shardvar
is (``patched``), so that a base that changes meanwhile is found. Tensors that do not change are the
base's own entries.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from shardvar.engine.pool import thread_buffer
from shardvar.errors import ArgumentError, CorruptCheckpoint, UnsupportedError, prefix_errors
from shardvar.formats.compressed import StreamChecksum, new_checksum
from shardvar.formats.protocol import Source
from shardvar.formats.source import WrappedSource
from shardvar.layout.dtypes import OWN_SIZE, Bools, Ints, code
from shardvar.planning.index import EntryTable, TableIndex, concatenate_entries, take_tensors
from shardvar.storage.scratch import ScratchFile
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.delta.contents import CHANGED, EQUAL, Contents, DeltaRow
from shardvar.verbs.delta.dialects.changes import Patch, Patcher, PublishedDelta
from shardvar.verbs.delta.draft import (
    DeltaDraft,
    LeafChange,
    LeafWork,
    ReadLeaf,
    compare_leaf,
    digests_of_changes,
    draft_tensors,
    drafted_delta,
    leaf_reads,
)
from shardvar.verbs.delta.patched import PatchedSource
from shardvar.verbs.reader import Reader
from shardvar.wire.digests import LEAF_NBYTES

_OTHER_BASE = "Give the checkpoint that it was made of, or copy the delta again."


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """The result of deltas of other programs, and what is known of it."""

    source: Source
    """The tensors of the result."""
    patched: PatchedSource
    """The ones that change."""
    notes: tuple[str, ...]
    """The sentences about what was compared, and what was not."""

    @property
    def is_base(self) -> bool:
        """True if every tensor of the result is the base's."""
        return all(part.change.kind == EQUAL for part in self.patched.parts)


def apply_published(
    base: Reader, deltas: Sequence[PublishedDelta], scratch: ScratchFile
) -> Applied:
    """Return the result of deltas that follow each other; nothing is written but the scratch file."""
    blocks = Blocks.of(base)
    rows = blocks.tensors.rows()
    for key, error in base.faults.items():
        raise error.at(f"{base.path}: {key!r}")
    for delta in deltas:
        for key in delta.changes:
            _check_changes(base, blocks, rows.get(key), delta, key)
    draft = DeltaDraft(scratch)
    changed = {key for delta in deltas for key in delta.changes}
    keys = [key for key in rows if key in changed]
    changes = _Reading(blocks, deltas, draft).run({key: rows[key] for key in keys})
    contents = Contents.of(changes, {})
    patched = PatchedSource.of(base, [drafted_delta(draft, contents, deltas[-1].path)])
    source = _result(base, patched, [*rows])
    _compare_whole(source, deltas[-1])
    return Applied(source, patched, notes_on_result(deltas))


def count_published(base: Reader, deltas: Sequence[PublishedDelta]) -> int:
    """Return the number of deltas, from the first one on, whose checksums the tensors of a checkpoint
    have; 0 if there is none."""
    blocks = Blocks.of(base)
    rows = blocks.tensors.rows()
    # [n] False if a tensor has not the checksum that the last of n deltas gives that changes it.
    can_be = np.ones(len(deltas) + 1, np.bool)
    can_be[0] = False
    changing: dict[str, list[int]] = {}
    for number, delta in enumerate(deltas):
        can_be[number + 1 :] &= bool(delta.algorithm)
        for key in delta.changes:
            changing.setdefault(key, []).append(number)
    for key, numbers in changing.items():
        found: dict[str, str] = {}
        for number, after in zip(numbers, [*numbers[1:], len(deltas)], strict=True):
            kind, wanted = deltas[number].algorithm, deltas[number].changes[key].checksum
            if kind and kind not in found and key in rows and can_be[number + 1 : after + 1].any():
                checksum = new_checksum(kind)
                _update(checksum, blocks, rows[key])
                found[kind] = checksum.hexdigest()
            can_be[number + 1 : after + 1] &= found.get(kind) == wanted
    return int(np.flatnonzero(can_be).max(initial=0))


def _update(checksum: StreamChecksum, blocks: Blocks, row: int) -> None:
    """Add the bytes of a tensor to a checksum."""
    for _, _, (read,) in leaf_reads(blocks.flat(row)):
        checksum.update(read())


def _check_changes(
    base: Reader, blocks: Blocks, row: int | None, delta: PublishedDelta, key: str
) -> None:
    if row is None:
        raise ArgumentError(
            f"{base.path} is not the base of {delta.path}: it lacks {key!r}.",
            "Give the checkpoint that it was made of, with the names of its tensors.",
        )
    dtype = blocks.tensors.dtype(row)
    if OWN_SIZE[code(dtype)]:
        raise UnsupportedError(
            f"{base.path}: {key!r} is of {dtype}, which the dialect {delta.dialect} cannot change.",
            "Give the checkpoint that the delta was made of.",
        )


def notes_on_result(deltas: Sequence[PublishedDelta]) -> tuple[str, str]:
    """Return the sentences about what was compared, and what was not."""
    last = deltas[-1]
    said = "the result was not compared: the delta has no checksum of it"
    if last.algorithm:
        kinds = ", ".join(sorted({each.algorithm for each in deltas if each.algorithm}))
        said = f"every tensor that changed has the checksum that the delta gives ({kinds})"
    elif last.whole_sha256:
        said = "the result has the checksum that the delta gives (sha256)"
    return "the base was not compared: the dialect has no digest of it", said


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """The base and the deltas, and the frames so far."""

    base: Blocks
    deltas: Sequence[PublishedDelta]
    draft: DeltaDraft
    sums: dict[str, dict[int, StreamChecksum]] = field(default_factory=dict)
    """Checksums of tensors that are being read, by the number of the delta."""

    def run(self, rows: dict[str, int]) -> list[DeltaRow]:
        """Return the change of each tensor, after comparing its checksums."""
        changes: list[DeltaRow] = []
        with closing(draft_tensors(self.draft, self._leaves(rows), self._add)) as tensors:
            for key, leaves, drafted in tensors:
                self._compare(key)
                if drafted.frames:
                    drafted.keep(key)
                kind = CHANGED if drafted.frames else EQUAL
                dtype = self.base.tensors.dtype(rows[key])
                shape = self.base.tensors.shape(rows[key])
                digests = digests_of_changes(key, dtype, shape, leaves)
                changes.append(DeltaRow(key, kind, dtype, shape, *digests))
        return changes

    def _sums_of(self, key: str) -> dict[int, StreamChecksum]:
        if key not in self.sums:
            self.sums[key] = {
                number: new_checksum(delta.algorithm)
                for number, delta in enumerate(self.deltas)
                if key in delta.changes and delta.algorithm
            }
        return self.sums[key]

    def _add(self, key: str, leaf: LeafChange) -> None:
        for checksum, octets in zip(self._sums_of(key).values(), leaf.steps, strict=True):
            checksum.update(octets)

    def _compare(self, key: str) -> None:
        for number, checksum in self._sums_of(key).items():
            delta = self.deltas[number]
            if checksum.hexdigest() != delta.changes[key].checksum:
                raise CorruptCheckpoint(
                    f"{delta.path}: {key!r} with the delta applied does not have the checksum that "
                    f"the delta gives ({delta.algorithm}): the base is another one, or the delta is "
                    "damaged.",
                    _OTHER_BASE,
                )
        del self.sums[key]

    def _leaves(self, rows: dict[str, int]) -> Generator[LeafWork]:
        for key, row in rows.items():
            tensor, dtype = self.base.flat(row), self.base.tensors.dtype(row)
            changing: list[tuple[PublishedDelta, Patcher]] = []
            for delta in self.deltas:
                if key in delta.changes:
                    with prefix_errors(f"{delta.path}: {key!r}"):
                        changing.append((delta, delta.changes[key].open(dtype, tensor.nbytes)))
            for start, stop, (read,) in leaf_reads(tensor):
                is_last, patches = stop == tensor.nbytes, list[tuple[Patch, bool]]()
                for delta, patcher in changing:
                    with prefix_errors(f"{delta.path}: {key!r}"):
                        if stop:
                            patches.append((patcher.patch(start, stop), bool(delta.algorithm)))
                        if is_last:
                            patcher.finish()
                compare = partial(_patch_leaf, start // LEAF_NBYTES, read, patches, dtype)
                yield LeafWork(key, tensor.nbytes, compare if stop else list, is_last)


def _patch_leaf(
    number: int, read: ReadLeaf, patches: Sequence[tuple[Patch, bool]], dtype: str
) -> list[LeafChange]:
    """Return the change of a leaf by all deltas, and the leaf after each delta with a checksum."""
    old = read()
    new = thread_buffer(len(old), "span")
    new[:] = old
    steps = []
    for patch, has_checksum in patches:
        patch(new)
        if has_checksum:
            steps.append(bytes(new))
    return [compare_leaf(number, old, new, dtype)._replace(steps=steps)]


# The result: entries of the base, and the tensors that change.


@dataclass(frozen=True, slots=True, eq=False)
class ResultSource(WrappedSource):
    """A base, whose changed tensors are another source's."""

    inner: Source = field()
    """The base."""
    patched: PatchedSource
    """The tensors that change."""
    index: TableIndex = field()
    """The entries of both; a changed tensor is behind the files of the base."""
    num_files: int
    """The number of files of the base."""

    def _is_mine(self, entries: EntryTable, row: int) -> bool:
        return bool(entries.file[row] >= self.num_files)

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry."""
        source = self.patched if self._is_mine(entries, row) else self.inner
        source.read_into(entries, row, start, buffer)

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return True for payloads that are best read from their beginning to their end."""
        found = np.zeros(len(rows), np.bool)
        is_mine = entries.file[rows] >= self.num_files
        found[is_mine] = self.patched.in_order(entries, rows[is_mine])
        found[~is_mine] = self.inner.in_order(entries, rows[~is_mine])
        return found

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        """Let the base prepare."""
        self.inner.expect(entries, rows[entries.file[rows] < self.num_files])

    def decode(self, entries: EntryTable, row: int) -> memoryview | None:
        """Let the base decode; None for a tensor that changes."""
        return None if self._is_mine(entries, row) else self.inner.decode(entries, row)

    def files_read(self, entries: EntryTable) -> Ints:
        """Return the files of the base, since any of them may hold a tensor that changes."""
        is_mine = entries.file >= self.num_files
        if is_mine.any():
            return np.arange(self.num_files)
        return self.inner.files_read(entries)


def _result(base: Reader, patched: PatchedSource, keys: Sequence[str]) -> ResultSource:
    """The source of all tensors, in the order of the base."""
    mine = patched.index.entries
    changed = {*mine.slices.tensors.keys}
    others = take_tensors(base.entries(), {*keys} - changed)
    num_files = max(len(base.index.files), int(base.entries().file.max(initial=-1)) + 1)
    joined = concatenate_entries([others, replace(mine, file=mine.file + num_files)])
    position = joined.slices.tensors.rows()
    entries = Blocks.of_entries(base.source, joined).entries_of([position[key] for key in keys])
    metadata = replace(base.metadata, digests={})  # the base's are of other bytes
    index = TableIndex(entries, [*base.index.files, "result"], metadata)
    return ResultSource(base.source, patched, index, num_files)


def _compare_whole(source: ResultSource, delta: PublishedDelta) -> None:
    """Compare the checksum of all tensors of the result, in the order of their names."""
    if not delta.whole_sha256:
        return
    checksum = new_checksum("sha256")
    blocks = Blocks.of_entries(source, source.index.entries)
    rows = blocks.tensors.rows()
    for key in sorted(rows):
        _update(checksum, blocks, rows[key])
    if checksum.hexdigest() != delta.whole_sha256:
        raise CorruptCheckpoint(
            f"{delta.path}: The result does not have the checksum that the delta gives (sha256): the "
            "base is another one, or the delta is damaged.",
            _OTHER_BASE,
        )
