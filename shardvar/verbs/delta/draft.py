"""The draft of a delta: the frames of each tensor, until it is written as a native checkpoint.

The native format has the sizes of payloads before their bytes, and the size of frames is known once
they are encoded. So the bodies go to a scratch file first. Whole tensors are copied from their own
source when the delta is written.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from shardvar.engine.files import FileReport, FileTask, run_each
from shardvar.engine.pool import Progress, block_ranges, map_ahead, new_buffer, thread_buffer
from shardvar.engine.read import FlatTensor
from shardvar.engine.write import FileRunner
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import ITEMSIZES, code
from shardvar.planning.index import (
    DELTA,
    NO_CHECKSUM,
    EntryTable,
    Metadata,
    TableIndex,
    concatenate_entries,
    take_tensors,
)
from shardvar.planning.slices import TensorTable
from shardvar.storage.scratch import ScratchFile
from shardvar.verbs.callbacks.answer import OverlaidSource
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.delta.contents import (
    CHANGED,
    CHANGED_PREFIX,
    REMOVED,
    TABLE,
    WHOLE_PREFIX,
    Contents,
    Delta,
    DeltaRow,
)
from shardvar.verbs.delta.report import DeltaReport, TensorChange, encodings_of, report_kind
from shardvar.verbs.locate import Location, Path, check_apart, find_target
from shardvar.verbs.reader import Reader
from shardvar.verbs.reshard import find_objects
from shardvar.verbs.save import WRITER
from shardvar.verbs.writing import carry_out, plan_checkpoint, preview
from shardvar.wire.digests import (
    LEAF_NBYTES,
    ROW_NBYTES,
    Frame,
    digest_of_leaves,
    encode_frames,
    encode_mask,
    hash_leaf,
    mask_of,
    word_nbytes,
)


def find_delta_target(path: Path, sources: Sequence[Location]) -> Location:
    goal = find_target(path, None, otherwise="shardvar")
    if goal.format.name != "shardvar":
        raise ArgumentError(
            f"{goal.path} has the ending of the format {goal.format.name}, and a delta is a native "
            "checkpoint.",
            "Give a name without an ending.",
        )
    check_apart(goal, sources, "a source and the delta", "name")
    return goal


@dataclass(slots=True, eq=False)
class DeltaDraft:
    """The frames of a delta that is being made, in a scratch file."""

    scratch: ScratchFile
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The place of the payload of each changed tensor, and its bytes."""
    encodings: dict[str, Counter[int]] = field(default_factory=dict)
    """The number of leaves of each encoding, by key."""
    num_changed: dict[str, int] = field(default_factory=dict)
    """The elements that changed, by key."""
    _stop: int = 0

    def begin(self, nbytes: int) -> "TensorDraft":
        # The rows come first, and are known last: room for one a leaf is left for them.
        room = 4 + ROW_NBYTES * -(-nbytes // LEAF_NBYTES)
        return TensorDraft(self, self._stop + room)

    def keep(self, key: str, frames: Sequence[Frame], first: int, stop: int) -> None:
        """Keep the frames of a tensor, whose bodies are at ``[first, stop)``."""
        table = encode_frames([*frames])
        self.scratch.write(first - len(table), table)
        self.places[key] = first - len(table), stop - first + len(table)
        self.encodings[key] = Counter(each.encoding for each in frames)
        self.num_changed[key] = sum(each.num_changed for each in frames)
        self._stop = stop


@dataclass(slots=True, eq=False)
class TensorDraft:
    """The frames of one tensor that is compared."""

    draft: DeltaDraft
    first: int
    frames: list[Frame] = field(default_factory=list)
    nbytes: int = 0
    """The bytes of their bodies."""

    def add(self, frame: Frame, body: bytes) -> None:
        """Add a frame, in the order of the leaves."""
        self.draft.scratch.write(self.first + self.nbytes, body)
        self.frames.append(frame)
        self.nbytes += len(body)

    @property
    def payload_nbytes(self) -> int:
        return 4 + ROW_NBYTES * len(self.frames) + self.nbytes

    def keep(self, key: str) -> None:
        self.draft.keep(key, self.frames, self.first, self.first + self.nbytes)


# The loop over leaves.


class LeafChange(NamedTuple):
    """One leaf of a tensor, before and after."""

    number: int
    before: bytes
    """Its hash before; empty where deltas are joined, which do not have it."""
    after: bytes
    frame: Frame | None
    """Its change; None if it is equal."""
    body: bytes
    steps: Sequence[bytes] = ()
    """The bytes after each of several deltas that has a checksum of them."""


class LeafWork(NamedTuple):
    """The comparison of some leaves of a tensor, by any thread."""

    key: str
    nbytes: int
    """The bytes of the tensor."""
    compare: Callable[[], list[LeafChange]]
    is_last: bool
    """True if these leaves are the last ones of the tensor."""


def draft_tensors(
    draft: DeltaDraft,
    work: Generator[LeafWork],
    see: Callable[[str, LeafChange], None] = lambda _key, _leaf: None,
) -> Generator[tuple[str, list[LeafChange], TensorDraft]]:
    """Let threads compare leaves; yield each tensor with its leaves and frames, which the caller keeps
    or not. ``see`` gets every leaf of a tensor in order.
    """
    leaves: list[LeafChange] = []
    drafted: TensorDraft | None = None
    with closing(work), closing(map_ahead(_compared, work)) as compared:
        for task, changes in compared:
            drafted = drafted or draft.begin(task.nbytes)
            for leaf in changes:
                see(task.key, leaf)
                if leaf.frame is not None:
                    drafted.add(leaf.frame, leaf.body)
            # The bodies are in the scratch file.
            leaves += [leaf._replace(body=b"", steps=()) for leaf in changes]
            if task.is_last:
                yield task.key, leaves, drafted
                leaves, drafted = [], None


def _compared(work: LeafWork) -> tuple[LeafWork, list[LeafChange]]:
    return work, work.compare()


ReadLeaf = Callable[[], memoryview]
"""Reads a leaf, into a buffer of the thread that calls it."""


def leaf_reads(*tensors: FlatTensor) -> Generator[tuple[int, int, list[ReadLeaf]]]:
    """Yield the bounds of each leaf of one or two tensors of one size, and the reads of it.

    A tensor without elements has one leaf without bytes.
    """
    nbytes = tensors[0].nbytes
    for start, stop in block_ranges(0, nbytes, LEAF_NBYTES):
        uses = zip(tensors, ("unit", "span"), strict=False)
        yield start, stop, [_read_of(tensor, start, stop, use) for tensor, use in uses]
    if not nbytes:
        yield 0, 0, [lambda: memoryview(b"")] * len(tensors)
    for tensor in tensors:
        tensor.check()


def _read_of(tensor: FlatTensor, start: int, stop: int, use: str) -> ReadLeaf:
    def read() -> memoryview:
        buffer = thread_buffer(stop - start, use)
        tensor.read(start, buffer)
        return buffer

    if not tensor.is_ordered:
        return read
    # What is decoded from its beginning is read here, in order.
    buffer = new_buffer(stop - start)
    tensor.read(start, buffer)
    return lambda: buffer


def compare_leaf(number: int, old: memoryview, new: memoryview, dtype: str) -> LeafChange:
    before = hash_leaf(dtype, old)
    mask = mask_of(old, new, word_nbytes(int(ITEMSIZES[code(dtype)])))
    if not mask.any():
        return LeafChange(number, before, before, None, b"")
    after = hash_leaf(dtype, new)
    encoding, num_changed, body = encode_mask(mask)
    frame = Frame(number, encoding, len(body), num_changed, after)
    return LeafChange(number, before, after, frame, body)


def digests_of_changes(
    key: str, dtype: str, shape: tuple[int, ...], leaves: Sequence[LeafChange]
) -> tuple[str, str]:
    """Return the digests of a tensor before and after, from all its leaves."""
    before, after = ([leaf.before for leaf in leaves], [leaf.after for leaf in leaves])
    return (
        digest_of_leaves(key, dtype, shape, b"".join(before)),
        digest_of_leaves(key, dtype, shape, b"".join(after)),
    )


# Writing.


@dataclass(frozen=True, slots=True, eq=False)
class WholeTensors:
    """The tensors of a source that a delta stores whole."""

    source: Source
    entries: EntryTable
    """Their entries, under their own keys."""
    objects: Mapping[str, bytes]
    """The ones that are objects, as encodings."""
    check: Callable[[], None] = lambda: None
    """Called before the commit; raises if the tensors are damaged."""


def whole_tensors(reader: Reader, goal: Location, keys: Sequence[str]) -> WholeTensors:
    objects = find_objects(reader, goal.format, keys)
    entries = take_tensors(reader.entries(), {*keys}.difference(objects))
    return WholeTensors(reader.source, entries, objects)


@dataclass(frozen=True, slots=True, eq=False)
class _ScratchSource(Source):
    scratch: ScratchFile
    index: TableIndex = field()

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        self.read_span(0, int(entries.start[row]) + start, buffer)

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:  # noqa: ARG002  # one file
        self.scratch.read_into(start, buffer)

    def map(self, file: int) -> memoryview:
        raise UnsupportedError(f"The scratch file {file} is not mapped.")

    def close(self) -> None:
        """Do nothing: the maker of the file closes it."""


def scratch_source(
    scratch: ScratchFile, stored: Mapping[str, tuple[str, tuple[int, ...], int]]
) -> "_ScratchSource":
    """Return the source of tensors in a scratch file: the dtype, the shape and the place of each."""
    tensors = TensorTable.of((key, dtype, shape) for key, (dtype, shape, _) in stored.items())
    count = len(tensors)
    start = np.array([start for _, _, start in stored.values()], np.int64)
    zeros, ones = np.zeros(count, np.int64), np.ones(count, np.bool)
    entries = EntryTable(tensors.whole(), zeros, start, np.full(count, NO_CHECKSUM), ones)
    return _ScratchSource(scratch, TableIndex(entries, ["scratch"]))


def drafted_delta(draft: DeltaDraft, contents: Contents, path: str) -> Delta:
    """Return the changed tensors of a draft as an open delta; ``path`` is for messages."""
    stored = {
        CHANGED_PREFIX + key: ("uint8", (nbytes,), start)
        for key, (start, nbytes) in draft.places.items()
    }
    reader = Reader(path, "shardvar", scratch_source(draft.scratch, stored))
    blocks = Blocks.of(reader)
    return Delta(reader, contents, blocks, blocks.tensors.rows())


def write_delta(
    goal: Location,
    contents: Contents,
    draft: DeltaDraft,
    whole: WholeTensors,
    *,
    force: bool,
    dry_run: bool,
    num_joined: int = 0,
    progress: Progress = lambda _nbytes: None,
) -> DeltaReport:
    """Write a delta and commit it, or only report it."""
    # Plan: the table and the frames from the scratch file, behind the whole tensors.
    places, table = dict[str, tuple[int, int]](), contents.table()
    begin = draft.begin(0).first
    draft.scratch.write(begin, table)
    places[TABLE] = begin, len(table)
    places |= {CHANGED_PREFIX + key: place for key, place in draft.places.items()}
    source, entries = _joined(draft.scratch, places, whole)
    metadata = Metadata(
        writer=WRITER,
        user={DELTA: contents.mark()},
        objects={WHOLE_PREFIX + key: octets for key, octets in whole.objects.items()},
    )
    work = plan_checkpoint(
        goal, entries, policy=None, partition=1, metadata=metadata, force=force, source=source
    )
    # Move, compare and commit.
    runner = checked(source, progress, whole.check)
    written = preview(work, None) if dry_run else carry_out(work, source, None, progress, runner)
    sizes = whole.entries.slices.nbytes_of_tensors()
    stored = dict(zip(whole.entries.slices.tensors.keys, sizes.tolist(), strict=True))
    stored |= {key: len(octets) for key, octets in whole.objects.items()}
    tensors = tuple(_reported(each, draft, stored) for each in contents.changes.values())
    return DeltaReport(written.path, contents.base, contents.result, tensors, num_joined, dry_run)


def checked(source: Source, progress: Progress, check: Callable[[], None]) -> FileRunner:
    """Return a runner that writes files and then calls ``check``, before the commit."""

    def run(tasks: Sequence[FileTask]) -> Generator[tuple[FileTask, FileReport]]:
        yield from run_each(tasks, source, progress)
        check()

    return run


def _joined(
    scratch: ScratchFile, places: Mapping[str, tuple[int, int]], whole: WholeTensors
) -> tuple[Source, EntryTable]:
    """The source of a delta's tensors, and their entries."""
    stored = {key: ("uint8", (nbytes,), start) for key, (start, nbytes) in places.items()}
    scratched = scratch_source(scratch, stored)
    mine = scratched.index.entries
    if not len(whole.entries.slices.tensors):
        return scratched, mine
    slices = whole.entries.slices
    keys = [WHOLE_PREFIX + key for key in slices.tensors.keys]
    renamed = replace(slices, tensors=replace(slices.tensors, keys=keys))
    num_files = int(whole.entries.file.max(initial=-1)) + 1
    entries = concatenate_entries(
        [replace(whole.entries, slices=renamed), replace(mine, file=mine.file + num_files)]
    )
    return OverlaidSource(whole.source, scratched, num_files), entries


def _reported(change: DeltaRow, draft: DeltaDraft, stored: Mapping[str, int]) -> TensorChange:
    key, nbytes = change.key, 0 if change.kind == REMOVED else change.nbytes
    if change.kind == CHANGED:
        first = key if key in draft.places or change.tie is None else change.tie
        details: Any = encodings_of(draft.encodings[first])
        size = draft.places[key][1] if first == key else 0
        num_changed = draft.num_changed[first]
        return TensorChange(key, CHANGED, nbytes, size, num_changed, **details, tie=change.tie)
    size = stored.get(key, 0)
    return TensorChange(key, report_kind(change), nbytes or size, size, tie=change.tie)
