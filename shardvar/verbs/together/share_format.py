"""Shares as files: what one of several processes writes, and an index of it.

    data file    laid out as the format of the checkpoint lays out a file, so that the commit has at
                 most to rename it; its name has the nonce of the call that wrote it
    index        always of the native format: it can say where any payload lies

So one mechanism serves all formats that can adopt finished files (``SharedFormat``), and none of
them knows of shares. The checksums of a share have the kind of its format, CRC32C for a format that
has none: equal replicas are known by them.

The index of a share also has the objects of the process, as a text of its metadata. They are in no
data file: the commit puts them where the format has objects. The hashes of leaves are in the same
text (``share_digests``), and so are the keys of a training state that other processes write.

The index of a share counts two files: the data file, and one that does not exist. The latter has
the replicas that process 0 also holds, according to its call. They are not written, and their
checksums are compared at the commit. The files after these two are an older checkpoint's, to which
the share refers (``share_base``).
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from shardvar.engine.arrays import ArraySource
from shardvar.engine.files import FileTask, run_task
from shardvar.engine.pool import block_ranges, new_buffer
from shardvar.errors import (
    IncompleteCheckpoint,
    InvalidCheckpoint,
    StorageError,
    prefix_errors,
)
from shardvar.formats.native.index_rows import encode_index
from shardvar.formats.native.overview import RUN_NBYTES, Overview, encode_text
from shardvar.formats.native.source import NativeIndex, read_native_index
from shardvar.formats.protocol import FileChecksums, FileWriter, Sink
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints, code
from shardvar.planning.index import OBJECTS, EntryTable, Metadata, concatenate_entries
from shardvar.planning.plan import Assignment, CopyTable, Plan
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.verbs.together.run import Run
from shardvar.verbs.together.share_base import BaseNote, ShareBase
from shardvar.verbs.together.share_digests import (
    StoredLeaves,
    decode_leaves,
    encode_leaves,
    hashed,
)
from shardvar.verbs.writing import check_room
from shardvar.wire.crc import CRC32C, Checksum
from shardvar.wire.damage import decoding, invalid
from shardvar.wire.strict_json import parse_json

_WRITTEN, _DROPPED, _REFERRED = 0, 1, 2
"""The numbers of the files of a share: the last one is the first of an older checkpoint's."""

_JSON_DEPTH = 8
"""Levels of the text that has the objects of a share."""

NOT_WRITTEN = "0"
"""The token of a sink that is asked only for places and checksums."""

SliceName = tuple[Any, ...]
"""The key, dtype, full shape and region of a slice."""


@dataclass(frozen=True, slots=True)
class ShareWriter:
    """The frame of a file of a format, and a checksum of every payload."""

    own: FileWriter
    """The frame and the checksums that the format has."""

    @property
    def crc(self) -> Checksum:
        """The kind of checksum: the format's, or CRC32C."""
        return self.own.crc or CRC32C

    @property
    def run_nbytes(self) -> int:
        """Size of a run of a payload, 0 without runs."""
        return self.own.run_nbytes

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        """Return the checksum of the payload of ``count`` strings or variants."""
        return self.own.checksum_whole(dtype, count, payload)

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterable[tuple[int, bytes]]:
        """Return the bytes around the payloads, as the format has them."""
        return self.own.frame(slices, start, checksums)


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """The slices that one process holds, and is to write."""

    process: int
    """The number of the process."""
    source: ArraySource
    """The arrays."""
    rows: Ints
    """[m] the row of each slice in the source."""
    slices: SliceTable
    """[m] the slices."""
    metadata: Metadata
    """The description, the writer, the user's texts, and the objects with their paths."""
    digests: bool = False
    """True if the checkpoint is to carry the digests of its tensors."""
    base: ShareBase | None = None
    """The slices, compared with an older checkpoint; None without one."""
    keys: frozenset[str] | None = None
    """The keys of a training state, whichever process writes the values; None if it is none."""

    @property
    def others(self) -> list[str] | None:
        """The keys that other processes write."""
        if self.keys is None:
            return None
        return sorted(self.keys - {*self.slices.tensors.keys} - self.metadata.objects.keys())


@dataclass(frozen=True, slots=True, eq=False)
class SavedShare:
    """A share, as its index says."""

    index: NativeIndex
    """The index; its generation is the nonce of the call that wrote the share."""
    entries: EntryTable
    """The slices of the process."""
    metadata: Metadata
    """The metadata of the process, with its objects."""
    leaves: StoredLeaves | None = None
    """The hashes of leaves; None if the process asks for no digests."""
    others: frozenset[str] | None = None
    """The keys of its training state that other processes write; None if it is none."""
    base: BaseNote | None = None
    """The older checkpoint that it names; None without one."""

    @property
    def keys(self) -> set[str]:
        """The keys that the process has."""
        return {*self.entries.slices.tensors.keys, *self.metadata.objects, *(self.others or ())}

    @property
    def nonce(self) -> str:
        """The nonce of the call that wrote it, which its data file's name has."""
        return self.index.overview.generation

    @property
    def nbytes(self) -> int:
        """The size of the data file."""
        return int(self.index.overview.file_nbytes[_WRITTEN])

    @property
    def is_dropped(self) -> Bools:
        """[m] True for replicas that were not written."""
        return np.equal(self.entries.file, _DROPPED)

    @property
    def referred(self) -> Ints:
        """[m] the number of the file of an older checkpoint among ``base.files``; negative for
        others."""
        return self.entries.file - _REFERRED

    @property
    def has_file(self) -> bool:
        """True if there is a data file."""
        return bool((self.entries.file == _WRITTEN).any())


def slice_names(slices: SliceTable) -> list[SliceName]:
    """Return the key, dtype, full shape and region of each slice."""
    found = [slices[row] for row in range(len(slices))]
    return [(each.key, each.dtype, each.full_shape, each.region) for each in found]


def plan_file(run: Run, slices: SliceTable, metadata: Metadata, token: str) -> Sink:
    """Return the sink of a checkpoint of one file with these slices: it knows places and frames."""
    rows = np.zeros(len(slices), np.int64)
    assignment = Assignment(slices, rows, int(len(slices) > 0), metadata.description)
    metadata = replace(metadata, objects={})
    return run.form.create(run.target.storage, run.target.name, assignment, metadata, token)


def write_share(
    run: Run, held: Holding, nonce: str, dropped: Iterable[SliceName]
) -> tuple[str, bytes]:
    """Write the data file of a process; return its name, and the content of the index."""
    # Plan.
    others = set(dropped)
    is_dropped = np.array([name in others for name in slice_names(held.slices)], np.bool)
    kept, left = np.flatnonzero(~is_dropped), np.flatnonzero(is_dropped)
    base, referred = held.base, left[:0]
    if base is not None:
        kept, referred = base.divided(kept)
    slices = held.slices.take(kept)
    sink = plan_file(run, slices, held.metadata, nonce)
    writer = ShareWriter(sink.writer)
    name, storage = run.data(nonce, held.process), run.target.storage
    check_room(run.target, int(slices.nbytes.sum()))
    # Move.
    storage.make()
    checksums, nbytes = FileChecksums(np.zeros(0, np.int64), np.zeros(0, np.uint32)), 0
    leaves: StoredLeaves | None = None
    with ExitStack() as stack:
        if held.digests:
            every = np.concatenate([kept, referred])
            taken = held.rows[every], held.slices.take(every)
            leaves = stack.enter_context(hashed(held.source, *taken))
        if base is not None:
            stack.enter_context(base.hearing(kept))
        if len(kept):
            checksums, nbytes = _write_data(storage, name, held, kept, slices, writer, sink.start)
    # The index: what is in the file, then what is not written, and then what the base has.
    sums = [_checksum(held.source, int(held.rows[row]), writer) for row in left.tolist()]
    sizes = held.slices.nbytes[left]
    start = np.concatenate([sink.start, np.cumsum(sizes) - sizes]).astype(np.int64)
    file = np.repeat([_WRITTEN, _DROPPED], [len(kept), len(left)])
    rows = np.concatenate([kept, left])
    # An index of the native format has checksums of runs. Where the format has none, and for what is
    # not written, zeros take their places: the commit takes only checksums of native payloads.
    count = int((-(-held.slices.nbytes[rows] // RUN_NBYTES)).sum())
    runs = checksums.runs if writer.run_nbytes else np.zeros(0, np.uint32)
    runs = np.concatenate([runs, np.zeros(count - len(runs), np.uint32)])
    payload = np.concatenate([checksums.payload, np.array(sums, np.int64)])
    found = [FileChecksums(payload, runs)]
    listed = _Listed(rows, file, start, np.array([nbytes, sizes.sum()], np.int64), found)
    return name, _encode_share(held, nonce, listed, leaves, referred)


class _Listed(NamedTuple):
    """The entries of the index of a share, in the order of their files."""

    rows: Ints
    file: Ints
    start: Ints
    file_nbytes: Ints
    checksums: Sequence[FileChecksums]


def _encode_share(
    held: Holding, nonce: str, listed: _Listed, leaves: StoredLeaves | None, referred: Ints
) -> bytes:
    """Return the content of the index of a share that refers to some slices of the base."""
    base, digests, note = held.base, None, None
    if base is not None:
        listed = _with_base(listed, base, referred)
        digests, note = base.digests[listed.rows], base.note(referred)
    about = Overview(_stored(held, leaves, note), nonce, listed.file_nbytes)
    slices, count = held.slices.take(listed.rows), len(listed.file_nbytes)
    assignment = Assignment(slices, listed.file, count, held.metadata.description)
    stored = list(map(encode_text, slices.tensors.keys)), listed.start, about, listed.checksums
    return encode_index(assignment, *stored, digests=digests)


def _with_base(listed: _Listed, base: ShareBase, referred: Ints) -> _Listed:
    """Return the entries, and the ones of the base to which a share refers after them."""
    referred = referred[np.argsort(base.referred(referred).file, kind="stable")]
    older, files = base.referred(referred), base.note(referred).files
    numbers = _REFERRED + np.searchsorted(files, older.file)
    return _Listed(
        np.concatenate([listed.rows, referred]),
        np.concatenate([listed.file, numbers]).astype(np.int64),
        np.concatenate([listed.start, older.start]),
        np.concatenate([listed.file_nbytes, base.older.nbytes[np.array(files, np.int64)]]),
        [*listed.checksums, FileChecksums(older.checksum, base.runs_of(referred))],
    )


def _write_data(
    storage: Storage,
    name: str,
    held: Holding,
    kept: Ints,
    slices: SliceTable,
    writer: ShareWriter,
    start: Ints,
) -> tuple[FileChecksums, int]:
    """Write the data file whole; return its checksums and its size."""
    stored = held.source.index.entries
    numbers = np.arange(len(kept))
    copies = CopyTable(held.rows[kept], numbers, slices.offset, slices.shape)
    # There is nothing to copy into slices without elements.
    copies = copies.take(np.flatnonzero((slices.shape > 0).all(axis=1)))
    plan = Plan(stored.slices, slices, copies)
    with storage.borrowed(name) as lent:
        task = FileTask(name, name, lent, writer, plan, stored, start)
        report = run_task(task, held.source)
        status = lent.status(name)
    status = status or storage.status(name)
    if status is None:
        raise StorageError(f"{name} in {storage.path} is gone.", "Save again in all processes.")
    return report.checksums, status.nbytes


def discard_data(run: Run, name: str) -> None:
    """Remove a data file that no share names, as far as the storage allows; a commit does it
    otherwise."""
    if run.target.storage.local_path is not None:
        with suppress(StorageError):
            run.target.storage.remove(name)


def read_share(run: Run, token: str, process: int) -> SavedShare:
    """Return the share of one process; raises any fault of it but regions that are lacking."""
    name = run.share(token, process)
    index = read_native_index(run.target.storage, name)
    overview = index.overview
    with prefix_errors(name):
        carried = _carried(index.metadata)
    count = _REFERRED + (len(carried.base.files) if carried.base else 0)
    if overview.run_nbytes != RUN_NBYTES or len(overview.file_nbytes) != count:
        cause = f"{name} has runs of {overview.run_nbytes} bytes, not {RUN_NBYTES}."
        raise InvalidCheckpoint(cause, "Save all shares with the same release of shardvar.")
    for error in index.faults.values():
        if not isinstance(error, IncompleteCheckpoint):
            raise error
    return SavedShare(index, concatenate_entries(list(index.scan())), *carried)


def is_same_share(run: Run, share: SavedShare, held: Holding) -> bool:
    """Return True if a share has what a process holds, by the checksums."""
    writer = ShareWriter(plan_file(run, held.slices, held.metadata, NOT_WRITTEN).writer)
    entries = share.entries
    known = dict(zip(slice_names(entries.slices), entries.checksum.tolist(), strict=True))
    rows = held.rows.tolist()
    sums = [_checksum(held.source, row, writer) for row in rows]
    is_same = known == dict(zip(slice_names(held.slices), sums, strict=True))
    # Of another base another share would be written.
    mine = held.base and held.base.older
    seen = share.base and (share.base.prefix, share.base.identity)
    is_same &= seen == (mine and (mine.prefix, mine.identity))
    is_same &= share.metadata.ties == held.metadata.ties
    return is_same and share.metadata.objects == held.metadata.objects


def _checksum(source: ArraySource, row: int, writer: ShareWriter) -> int:
    """The checksum of one payload of a source of arrays, as the writer of a share takes it."""
    each = source.index.entries.slices[row]
    if not ITEMSIZES[code(each.dtype)]:  # strings, which lie in memory as a whole
        return writer.checksum_whole(each.dtype, each.region.size, source.map(row))
    value = 0
    for start, stop in block_ranges(0, source.nbytes(row)):
        buffer = new_buffer(stop - start)
        source.read_span(row, start, buffer)
        value = writer.crc.compute(buffer, value)
    source.release(row)
    return value


# --- Objects and leaves, as a text of the metadata of a share


def _stored(held: Holding, leaves: StoredLeaves | None, base: BaseNote | None) -> Metadata:
    """Return the metadata of a process with its objects, paths, ties, leaves, base and other keys
    as a text."""
    metadata, others = held.metadata, held.others
    more = {
        "ties": dict(metadata.ties) or None,
        "leaves": None if leaves is None else encode_leaves(leaves),
        "base": base,
        "others": others,
    }
    has_text = metadata.objects or metadata.paths
    if not has_text and all(each is None for each in more.values()):
        return metadata
    objects = {key: b64encode(each).decode() for key, each in metadata.objects.items()}
    paths = {key: list(path) for key, path in metadata.paths.items()}
    text = json.dumps({"objects": objects, "paths": paths, **more})
    return replace(metadata, user={**metadata.user, OBJECTS: text}, objects={}, paths={}, ties={})


class _Carried(NamedTuple):
    """The content of the text of a share, as in ``SavedShare``."""

    metadata: Metadata
    leaves: StoredLeaves | None = None
    others: frozenset[str] | None = None
    base: BaseNote | None = None


def _carried(metadata: Metadata) -> _Carried:
    """Return the metadata of a process with the objects and paths of their text, and what else it
    has."""
    user = dict(metadata.user)
    text = user.pop(OBJECTS, None)
    if text is None:
        return _Carried(metadata)
    found = parse_json(text.encode("utf-8", "surrogatepass"), _JSON_DEPTH)
    wrong = ValueError, TypeError, KeyError, AttributeError
    with decoding(lambda _: invalid("Its objects are not encoded."), *wrong):
        objects = {key: b64decode(each, validate=True) for key, each in found["objects"].items()}
        paths = {key: tuple(path) for key, path in found["paths"].items()}
        ties = {} if found["ties"] is None else dict(found["ties"].items())
        leaves = None if found["leaves"] is None else decode_leaves(found["leaves"])
        others = None if found["others"] is None else frozenset(found["others"])
        base = None if found["base"] is None else BaseNote.of(found["base"])
    if not all(type(key) is str for key in (*(others or ()), *ties.values())):
        raise invalid("The key of a value that another one or other processes write is not a text.")
    if not all(type(step) in (str, int) for path in paths.values() for step in path):
        raise invalid("The path of a key has a step that is neither a text nor a number.")
    about = replace(metadata, user=user, objects=objects, paths=paths, ties=ties)
    return _Carried(about, leaves, others, base)


# --- The call of process 0: what it holds, and whether it waits


@dataclass(frozen=True, slots=True)
class ShareCall:
    """The call of process 0, which begins an attempt."""

    waits: bool
    """True if process 0 waits for the others and commits."""
    held: frozenset[SliceName] = field(default_factory=frozenset)
    """The slices that it holds, which no other process writes."""


_WAITS = "waits"


def encode_call(slices: SliceTable, nonce: str, *, waits: bool) -> bytes:
    """Return the content of a call with the slices of process 0: an index without checksums."""
    count = int((-(-slices.nbytes // RUN_NBYTES)).sum())
    checksums = FileChecksums(np.zeros(len(slices), np.int64), np.zeros(count, np.uint32))
    start = np.cumsum(slices.nbytes) - slices.nbytes
    about = Metadata(user={_WAITS: str(int(waits))})
    overview = Overview(about, nonce, np.array([slices.nbytes.sum()], np.int64))
    keys = list(map(encode_text, slices.tensors.keys))
    assignment = Assignment(slices, np.zeros(len(slices), np.int64), 1, "")
    return encode_index(assignment, keys, start, overview, [checksums])


def read_call(run: Run, token: str) -> ShareCall:
    """Return the call of an attempt."""
    index = read_native_index(run.target.storage, run.call(token))
    tables = list(index.scan())
    held = frozenset(slice_names(concatenate_entries(tables).slices)) if tables else frozenset()
    return ShareCall(index.metadata.user.get(_WAITS) == "1", held)
