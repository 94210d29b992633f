"""The draft of a delta: the frames of each tensor, until it is written as a native checkpoint.

The native format has the sizes of payloads before their bytes, and the size of frames is known once
they are encoded. So the bodies go to a scratch file first. Whole tensors are copied from their own
source when the delta is written.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from shardvar.engine.files import FileReport, FileRunner, FileTask, run_each
from shardvar.engine.pool import Progress, block_ranges, map_ahead
from shardvar.engine.read import FlatTensor
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import ITEMSIZES, Shape, code
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
from shardvar.records import dataclass, entity, field, replace
from shardvar.storage.scratch import ScratchFile
from shardvar.verbs.callbacks import OverlaidSource
from shardvar.verbs.compare.blocks import NO_BYTES, ReadBytes, reads_of
from shardvar.verbs.delta.contents import (
    CHANGED,
    CHANGED_PREFIX,
    REMOVED,
    TABLE,
    WHOLE,
    WHOLE_PREFIX,
    Contents,
    Delta,
    DeltaReport,
    DeltaRow,
    TensorChange,
)
from shardvar.verbs.locate import Location, Path, check_apart, find_target
from shardvar.verbs.reader import Reader, find_objects
from shardvar.verbs.save import WRITER
from shardvar.verbs.writing import carry_out, plan_checkpoint, preview
from shardvar.wire.digests import (
    LEAF_NBYTES,
    ROW_NBYTES,
    SPARSE,
    Frame,
    digest_of_leaves,
    encode_frames,
    encode_mask,
    hash_leaf,
    mask_of,
    word_nbytes,
)

ScratchTensors = dict[str, tuple[str, Shape, int]]
"""The dtype, the shape and the place of tensors in a scratch file, by key."""


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
    """The frames of a delta that is being made, in a scratch file, one tensor after the other."""

    scratch: ScratchFile
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The place of the payload of each changed tensor, and its bytes."""
    encodings: dict[str, Counter[int]] = field(default_factory=dict)
    """The number of leaves of each encoding, by key."""
    num_changed: dict[str, int] = field(default_factory=dict)
    """The elements that changed, by key."""
    frames: list[Frame] = field(default_factory=list)
    """The frames of the tensor that is compared."""
    stop: int = 0
    """The end of the payloads that are kept."""
    _first: int = 0
    _nbytes: int = 0

    def begin(self, nbytes: int) -> None:
        """Begin a tensor, and drop frames that were not kept."""
        # The rows come first, and are known last: room for one a leaf is left for them.
        self._first = self.stop + 4 + ROW_NBYTES * -(-nbytes // LEAF_NBYTES)
        self.frames, self._nbytes = [], 0

    def add(self, frame: Frame, body: bytes) -> None:
        self.scratch.write(self._first + self._nbytes, body)
        self.frames.append(frame)
        self._nbytes += len(body)

    @property
    def payload_nbytes(self) -> int:
        return 4 + ROW_NBYTES * len(self.frames) + self._nbytes

    @property
    def stored(self) -> ScratchTensors:
        """The dtype, the shape and the place of the payload of each changed tensor."""
        places = self.places.items()
        return {CHANGED_PREFIX + key: ("uint8", (size,), start) for key, (start, size) in places}

    def keep(self, key: str) -> None:
        table = encode_frames(self.frames)
        place = self._first - len(table)
        self.scratch.write(place, table)
        self.places[key] = place, len(table) + self._nbytes
        self.encodings[key] = Counter(each.encoding for each in self.frames)
        self.num_changed[key] = sum(each.num_changed for each in self.frames)
        self.stop = self._first + self._nbytes


# The loop over leaves.


class LeafChange(NamedTuple):
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
    compare: Callable[[], list[LeafChange]]
    is_last: bool
    """True for the last leaves of a tensor."""
    flats: Sequence[FlatTensor] = ()
    """The tensors that are read, which are checked once the last leaves are."""


def draft_tensors(
    draft: DeltaDraft,
    work: Generator[LeafWork],
    see: Callable[[str, LeafChange], None] = lambda _key, _leaf: None,
) -> Generator[tuple[str, list[LeafChange]]]:
    """Threads compare leaves; ``see`` gets every leaf in order, with its body and steps."""
    leaves: list[LeafChange] = []
    with closing(work), closing(map_ahead(lambda each: (each, each.compare()), work)) as compared:
        for task, changes in compared:
            if not leaves:
                draft.begin(task.nbytes)
            for leaf in changes:
                see(task.key, leaf)
                if leaf.frame is not None:
                    draft.add(leaf.frame, leaf.body)
            # The bodies are in the scratch file.
            leaves += [leaf._replace(body=b"", steps=()) for leaf in changes]
            if task.is_last:
                for flat in task.flats:
                    flat.check()
                yield task.key, leaves
                leaves = []


def leaf_reads(*flats: FlatTensor) -> Generator[tuple[int, int, list[ReadBytes]]]:
    """Bounds and reads of leaves of one or two tensors; of an empty one, a leaf without bytes."""
    spans = block_ranges(0, flats[0].nbytes, LEAF_NBYTES) if flats[0].nbytes else [(0, 0)]
    with closing(reads_of(flats, [LEAF_NBYTES] * len(flats))) as every:
        for start, stop in spans:
            yield start, stop, next(every, [NO_BYTES] * len(flats))


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
    key: str, dtype: str, shape: Shape, leaves: Sequence[LeafChange]
) -> tuple[str, str]:
    """Return the digests of a tensor before and after, from all its leaves."""
    return (
        digest_of_leaves(key, dtype, shape, b"".join(leaf.before for leaf in leaves)),
        digest_of_leaves(key, dtype, shape, b"".join(leaf.after for leaf in leaves)),
    )


# Writing.


@entity
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


def scratch_source(scratch: ScratchFile, stored: ScratchTensors) -> _ScratchSource:
    """Return the source of tensors in a scratch file: the dtype, the shape and the place of each."""
    tensors = TensorTable.of((key, dtype, shape) for key, (dtype, shape, _) in stored.items())
    count = len(tensors)
    start = np.array([start for _, _, start in stored.values()], np.int64)
    zeros, ones = np.zeros(count, np.int64), np.ones(count, np.bool)
    entries = EntryTable(tensors.whole(), zeros, start, np.full(count, NO_CHECKSUM), ones)
    return _ScratchSource(scratch, TableIndex(entries, ["scratch"]))


def drafted_delta(draft: DeltaDraft, contents: Contents, path: str) -> Delta:
    """Return the changed tensors of a draft as an open delta; ``path`` is for messages."""
    source = scratch_source(draft.scratch, draft.stored)
    return Delta.of(Reader(path, "shardvar", source), contents)


def write_delta(
    goal: Location,
    contents: Contents,
    draft: DeltaDraft,
    result: Reader,
    check: Callable[[], None] = lambda: None,
    *,
    force: bool,
    dry_run: bool,
    num_joined: int = 0,
    progress: Progress = lambda _nbytes: None,
) -> DeltaReport:
    """``result`` has the whole tensors; ``check`` raises before the commit if they are damaged."""
    # Plan: the table and the frames from the scratch file, behind the whole tensors.
    keys, table = contents.whole_keys(), contents.table()
    draft.scratch.write(draft.stop, table)
    tables = {TABLE: ("uint8", (len(table),), draft.stop)}
    scratched = scratch_source(draft.scratch, tables | draft.stored)
    source: Source = scratched
    entries = scratched.index.entries
    objects = find_objects(result, goal.format, keys)
    sizes = {key: len(octets) for key, octets in objects.items()}
    rest = {*keys}.difference(objects)
    if rest:
        whole = take_tensors(result.entries(), rest)
        slices = whole.slices
        old = slices.tensors.keys
        sizes |= zip(old, slices.nbytes_of_tensors().tolist(), strict=True)
        tensors = replace(slices.tensors, keys=[WHOLE_PREFIX + key for key in old])
        num_files = int(whole.file.max(initial=-1)) + 1
        entries = concatenate_entries(
            [
                replace(whole, slices=replace(slices, tensors=tensors)),
                replace(entries, file=entries.file + num_files),
            ]
        )
        source = OverlaidSource(result.source, result.index, scratched, num_files)
    metadata = Metadata(
        writer=WRITER,
        user={DELTA: contents.mark()},
        objects={WHOLE_PREFIX + key: octets for key, octets in objects.items()},
    )
    work = plan_checkpoint(
        goal, entries, policy=None, partition=1, metadata=metadata, force=force, source=source
    )
    # Move, compare and commit.
    runner = checked(source, progress, check)
    written = (
        preview(work, source, None) if dry_run else carry_out(work, source, None, progress, runner)
    )
    changes = tuple(_reported(each, draft, sizes) for each in contents.changes.values())
    return DeltaReport(written.path, contents.base, contents.result, changes, num_joined, dry_run)


def checked(source: Source, progress: Progress, check: Callable[[], None]) -> FileRunner:
    """Return a runner that writes files and then calls ``check``, before the commit."""

    def run(tasks: Sequence[FileTask]) -> Generator[tuple[FileTask, FileReport]]:
        yield from run_each(tasks, source, progress)
        check()

    return run


def _reported(change: DeltaRow, draft: DeltaDraft, sizes: Mapping[str, int]) -> TensorChange:
    key, tie = change.key, change.tie
    nbytes = 0 if change.kind == REMOVED else change.nbytes
    if change.kind == CHANGED:
        first = key if key in draft.places or tie is None else tie
        size = draft.places[key][1] if first == key else 0
        encodings = draft.encodings[first]
        num_positions = encodings[SPARSE]
        num_masks = encodings.total() - num_positions
        num = draft.num_changed[first]
        return TensorChange(key, CHANGED, nbytes, size, num, num_positions, num_masks, tie)
    size = sizes.get(key, 0)
    kind = "new" if change.kind == WHOLE and change.base is None else change.kind
    return TensorChange(key, kind, nbytes or size, size, tie=tie)
