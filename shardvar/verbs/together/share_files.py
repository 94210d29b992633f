"""Shares as files: what one of several processes writes, and an index of it.

    data file    laid out as the format of the checkpoint lays out a file, so that the commit has at
                 most to rename it; its name has the nonce of the call that wrote it
    index        always of the native format, which can place a payload anywhere

So one mechanism serves all formats that can adopt finished files (``SharedFormat``), and none of
them knows of shares. The checksums of a share have the kind of its format, CRC32C for a format that
has none: equal replicas are known by them.

The index of a share also has the objects of the process, as a text of its metadata. They are in no
data file: the commit puts them where the format has objects. The hashes of leaves are in the same
text (``share_hashes``), and so are the keys of a training state that other processes write.

The index of a share counts two files: the data file, and one that does not exist. The latter has
the replicas that process 0 also holds, according to its call. They are not written, and their
checksums are compared at the commit. The files after these two are an older checkpoint's, to which
the share refers (``share_hashes``).

The merge makes one checkpoint of the shares of all processes:

check   the entries of all shares together: dtypes and shapes agree, replicas agree, and every
        tensor is covered once; all shares have seen one base, which is still there (``share_hashes``)
move    files that have lost a slice, because a process of a lower number also holds it, if the
        format names every byte of a file: they are written again without it
commit  the files are renamed, unless their names are final; one index is put in place last, by the
        sink of the format (``SharedFormat.adopt``)

The payloads stay where they are. An error before the commit leaves the checkpoint that was there.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import ExitStack, closing, suppress
from typing import NamedTuple

import numpy as np

from shardvar.engine.arrays import ArraySource
from shardvar.engine.files import FileTask, run_task
from shardvar.engine.pool import block_ranges, new_buffer
from shardvar.errors import (
    ArgumentError,
    CorruptCheckpoint,
    InvalidCheckpoint,
    StorageError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.native.index import RUN_NBYTES, Overview, encode_index, encode_text
from shardvar.formats.native.source import NativeIndex, NativeSource, read_native_index
from shardvar.formats.objects import listed_text
from shardvar.formats.protocol import FileChecksums, FileWriter, Sink, WrittenFiles
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints, code
from shardvar.planning.index import (
    NO_CHECKSUM,
    OBJECTS,
    EntryTable,
    Metadata,
    References,
    concatenate_entries,
)
from shardvar.planning.plan import CopyTable, Plan, merge_entries
from shardvar.planning.slices import Assignment, SliceTable
from shardvar.records import entity, field, frozen, replace
from shardvar.storage.concurrency import do_all
from shardvar.storage.protocol import Storage
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.compare.claims import references_to
from shardvar.verbs.compare.digest import digest_array
from shardvar.verbs.together.run import Run, keys_of_some
from shardvar.verbs.together.share_hashes import (
    BaseNote,
    OlderIndex,
    ShareBase,
    StoredLeaves,
    decode_leaves,
    digests_of_shares,
    encode_leaves,
    hashed,
    older_of_shares,
)
from shardvar.verbs.writing import SliceName, check_room, slice_names
from shardvar.wire.crc import CRC32C, Checksum
from shardvar.wire.damage import decoding, invalid
from shardvar.wire.strict_json import parse_json

_WRITTEN, _DROPPED, _REFERRED = 0, 1, 2
"""The numbers of the files of a share: the last one is the first of an older checkpoint's."""

_JSON_DEPTH = 8
"""Levels of the text that has the objects of a share."""

NOT_WRITTEN = "0"
"""The token of a sink that is asked only for places and checksums."""


@frozen
class ShareWriter:
    """The frame of a file of a format, and a checksum of every payload."""

    own: FileWriter

    @property
    def crc(self) -> Checksum:
        return self.own.crc or CRC32C

    @property
    def run_nbytes(self) -> int:
        return self.own.run_nbytes

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        return self.own.checksum_whole(dtype, count, payload)

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterable[tuple[int, bytes]]:
        return self.own.frame(slices, start, checksums)


@entity
class Holding:
    process: int
    source: ArraySource
    rows: Ints
    """[m] the row of each slice in the source."""
    slices: SliceTable
    metadata: Metadata
    """The description, the writer, the user's texts, and the objects with their paths."""
    digests: bool = False
    """True if the checkpoint is to carry the digests of its tensors."""
    base: ShareBase | None = None
    """The slices, compared with an older checkpoint; None without one."""
    keys: frozenset[str] | None = None
    """The keys of a training state, whichever process writes the values; None if it is none."""


@entity
class SavedShare:
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
        return {*self.entries.slices.tensors.keys, *self.metadata.objects, *(self.others or ())}

    @property
    def nonce(self) -> str:
        return self.index.overview.generation

    @property
    def nbytes(self) -> int:
        return int(self.index.overview.file_nbytes[_WRITTEN])

    @property
    def is_dropped(self) -> Bools:
        """[m] True for replicas that were not written."""
        return np.equal(self.entries.file, _DROPPED)

    @property
    def referred(self) -> Ints:
        """[m] the number of the file among ``base.files``; negative for other files."""
        return self.entries.file - _REFERRED

    @property
    def has_file(self) -> bool:
        return bool((self.entries.file == _WRITTEN).any())


def plan_file(run: Run, slices: SliceTable, metadata: Metadata, token: str) -> Sink:
    """Return the sink of a checkpoint of one file with these slices, for places and frames."""
    rows = np.zeros(len(slices), np.int64)
    assignment = Assignment(slices, rows, int(len(slices) > 0), metadata.description)
    metadata = replace(metadata, objects={})
    return run.form.create(run.target.storage, run.target.name, assignment, metadata, token)


def plan_of_slices(stored: SliceTable, rows: Ints, slices: SliceTable) -> Plan:
    """Return the plan that copies each slice from its stored slice, by the rows of these."""
    copies = CopyTable(rows, np.arange(len(rows)), slices.offset, slices.shape)
    # There is nothing to copy into slices without elements.
    return Plan(stored, slices, copies.take(np.flatnonzero((slices.shape > 0).all(axis=1))))


def write_share(
    run: Run, held: Holding, nonce: str, dropped: Iterable[SliceName]
) -> tuple[str, bytes]:
    """Write the data file of a process; return its name, and the content of the index."""
    # Plan.
    others = set(dropped)
    is_dropped = np.zeros(len(held.slices), np.bool)
    if others:
        is_dropped[:] = [name in others for name in slice_names(held.slices)]
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
    written = _DataFile(kept, sink.start, nbytes, checksums, writer)
    return name, _encode_share(held, nonce, written, left, referred, leaves)


class _DataFile(NamedTuple):
    """The data file of a share: its slices and their places, its size, and its checksums."""

    rows: Ints
    start: Ints
    nbytes: int
    checksums: FileChecksums
    writer: ShareWriter


def _encode_share(
    held: Holding,
    nonce: str,
    written: _DataFile,
    left: Ints,
    referred: Ints,
    leaves: StoredLeaves | None,
) -> bytes:
    """Return the content of the index: slices in the file, slices not written, and slices of the base."""
    writer, base = written.writer, held.base
    sums = [_checksum(held.source, int(held.rows[row]), writer) for row in left.tolist()]
    sizes = held.slices.nbytes[left]
    start = np.concatenate([written.start, np.cumsum(sizes) - sizes]).astype(np.int64)
    file = np.repeat([_WRITTEN, _DROPPED], [len(written.rows), len(left)])
    rows = np.concatenate([written.rows, left])
    file_nbytes = np.array([written.nbytes, sizes.sum()], np.int64)
    # An index of the native format has checksums of runs. Where the format has none, and for slices
    # that are not written, zeros take their places: the commit takes only checksums of native payloads.
    count = int((-(-held.slices.nbytes[rows] // RUN_NBYTES)).sum())
    runs = written.checksums.runs if writer.run_nbytes else np.zeros(0, np.uint32)
    runs = np.concatenate([runs, np.zeros(count - len(runs), np.uint32)])
    payload = np.concatenate([written.checksums.payload, np.array(sums, np.int64)])
    checksums, digests, note = [FileChecksums(payload, runs)], None, None
    if base is not None:
        referred = referred[np.argsort(base.referred(referred).file, kind="stable")]
        older, note = base.referred(referred), base.note(referred)
        numbers = _REFERRED + np.searchsorted(note.files, older.file)
        rows = np.concatenate([rows, referred])
        file = np.concatenate([file, numbers]).astype(np.int64)
        start = np.concatenate([start, older.start])
        of_base = base.older.nbytes[np.array(note.files, np.int64)]
        file_nbytes = np.concatenate([file_nbytes, of_base])
        checksums.append(FileChecksums(older.checksum, base.runs_of(referred)))
        digests = base.digests[rows]
    about = Overview(_stored(held, leaves, note), nonce, file_nbytes)
    slices = held.slices.take(rows)
    assignment = Assignment(slices, file, len(file_nbytes), held.metadata.description)
    keys = list(map(encode_text, slices.tensors.keys))
    return encode_index(assignment, keys, start, about, checksums, digests=digests)


def _write_data(
    storage: Storage,
    name: str,
    held: Holding,
    kept: Ints,
    slices: SliceTable,
    writer: ShareWriter,
    start: Ints,
) -> tuple[FileChecksums, int]:
    stored = held.source.index.entries
    plan = plan_of_slices(stored.slices, held.rows[kept], slices)
    with storage.borrowed(name) as lent:
        task = FileTask(name, name, lent, writer, plan, stored, start)
        report = run_task(task, held.source)
        status = lent.status(name)
    status = status or storage.status(name)
    if status is None:
        raise StorageError(f"{name} in {storage.path} is gone.", "Save again in all processes.")
    return report.checksums, status.nbytes


def discard_data(run: Run, name: str) -> None:
    """Remove a data file without a share, as far as the storage allows; or else a commit does it."""
    if run.target.storage.local_path is not None:
        with suppress(StorageError):
            run.target.storage.remove(name)


def read_share(run: Run, token: str, process: int) -> SavedShare:
    """Return the share of one process; raises any fault of it but missing regions."""
    name = run.share(token, process)
    index = read_native_index(run.target.storage, name)
    overview = index.overview
    with prefix_errors(name):
        metadata, leaves, others, base = _carried(index.metadata)
    count = _REFERRED + (len(base.files) if base else 0)
    if overview.run_nbytes != RUN_NBYTES or len(overview.file_nbytes) != count:
        cause = f"{name} has runs of {overview.run_nbytes} bytes, not {RUN_NBYTES}."
        raise InvalidCheckpoint(cause, "Save all shares with the same release of shardvar.")
    for error in index.faults.values():
        raise error
    entries = concatenate_entries(list(index.scan()))
    return SavedShare(index, entries, metadata, leaves, others, base)


def is_same_share(run: Run, share: SavedShare, held: Holding) -> bool:
    """Return True if a share has what a process holds, by the checksums."""
    writer = ShareWriter(plan_file(run, held.slices, held.metadata, NOT_WRITTEN).writer)
    entries = share.entries
    stored = dict(zip(slice_names(entries.slices), entries.checksum.tolist(), strict=True))
    sums = [_checksum(held.source, row, writer) for row in held.rows.tolist()]
    # Of another base another share would be written.
    older = held.base and held.base.older
    return (
        stored == dict(zip(slice_names(held.slices), sums, strict=True))
        and (share.base and share.base[:2]) == (older and (older.prefix, older.identity))
        and share.metadata.ties == held.metadata.ties
        and share.metadata.objects == held.metadata.objects
    )


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
    """Return the metadata of a process, with everything that only the commit needs as a text."""
    metadata = held.metadata
    others = None if held.keys is None else held.keys - {*held.slices.tensors.keys}
    more = {
        "ties": dict(metadata.ties) or None,
        "leaves": None if leaves is None else encode_leaves(leaves),
        "base": base,
        "others": None if others is None else sorted(others - metadata.objects.keys()),
    }
    has_text = metadata.objects or metadata.paths
    if not has_text and all(each is None for each in more.values()):
        return metadata
    objects = {key: b64encode(each).decode() for key, each in metadata.objects.items()}
    paths = {key: list(path) for key, path in metadata.paths.items()}
    text = json.dumps({"objects": objects, "paths": paths, **more})
    return replace(metadata, user={**metadata.user, OBJECTS: text}, objects={}, paths={}, ties={})


def _carried(
    metadata: Metadata,
) -> tuple[Metadata, StoredLeaves | None, frozenset[str] | None, BaseNote | None]:
    """Return the metadata of a process with the objects and paths of their text, and the rest of the text."""
    user = dict(metadata.user)
    text = user.pop(OBJECTS, None)
    if text is None:
        return metadata, None, None, None
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
    return about, leaves, others, base


# --- The call of process 0: its slices


@frozen
class ShareCall:
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
    index = read_native_index(run.target.storage, run.call(token))
    tables = list(index.scan())
    held = frozenset(slice_names(concatenate_entries(tables).slices)) if tables else frozenset()
    return ShareCall(index.metadata.user.get(_WAITS) == "1", held)


# --- The merge of all shares


_AGAIN = "again"
"""Added to the nonce in the name of a file that is written again."""

_GIVE_SAME = "Give the same in all processes, or in only one of them."


@entity
class _Merged:
    """The contents of all shares together."""

    entries: EntryTable
    """The slices that are kept; their files count through the files of all shares."""
    files: WrittenFiles
    """The files of all shares, and the places of the slices in them."""
    metadata: Metadata
    """The metadata of the checkpoint."""


def merge_shares(run: Run, token: str, about: Metadata) -> tuple[Sink, FileChecksums]:
    """The caller holds the lock. ``about`` has the generation; the shares have the metadata."""
    # Check, and plan: nothing is changed until the merged entries are proven whole.
    by_process: dict[int, SavedShare] = {}

    def read(process: int) -> None:
        by_process[process] = read_share(run, token, process)

    do_all(read, range(run.count), run.target.storage.traits)
    shares = [by_process[process] for process in range(run.count)]
    older = older_of_shares(
        run.target.storage.refreshed(), run.name, [share.base for share in shares]
    )
    ties = _ties(shares)
    shares = [_without(share, ties) for share in shares]
    owners = [process for process, share in enumerate(shares) if share.has_file]
    tables, borrowed = _numbered(shares, owners)
    every = merge_entries(tables, run.options.replicas, is_part=run.options.is_part)
    if (every.file == len(owners)).any():
        row = int((every.file == len(owners)).argmax())
        cause = f"Process 0 of the run {run.name!r} did not save {every.slices.key(row)!r}."
        raise InvalidCheckpoint(cause, "Save again in all processes.")
    entries = every.take(np.flatnonzero(every.file < len(owners)))
    names = [run.data(shares[process].nonce, process) for process in owners]
    sizes = np.array([shares[process].nbytes for process in owners], np.int64)
    metadata = _metadata(run, shares, about, {*every.slices.tensors.keys, *ties})
    metadata = replace(metadata, ties=ties)
    if older is not None:
        referred = every.take(np.flatnonzero(every.file > len(owners)))
        found = _references(older, referred, len(owners) + 1, borrowed)
        metadata = replace(metadata, references=found)
    merged = _Merged(entries, WrittenFiles(names, sizes, entries.start, entries.digests), metadata)
    # Move.
    if run.form.capabilities.is_exact:
        written = [table.file[table.file < len(owners)] for table in tables]
        before = np.bincount(np.concatenate(written), minlength=len(owners))
        after = np.bincount(entries.file, minlength=len(owners))
        for file in np.flatnonzero((after > 0) & (after < before)).tolist():
            merged = _write_again(run, shares[owners[file]], owners[file], merged, file)
    if any(share.leaves is not None for share in shares):
        holders = [*owners, 0, *(process for process, _ in borrowed)]
        processes = [holders[file] for file in every.file.tolist()]
        digests = _digests(run, shares, merged, every, processes)
        merged = replace(merged, metadata=replace(merged.metadata, digests=digests))
    assignment = Assignment(entries.slices, entries.file, len(names), about.description)
    sink = run.form.adopt(
        run.target.storage, run.target.name, assignment, merged.metadata, merged.files
    )
    return sink, _checksums(merged.entries)


def _numbered(
    shares: Sequence[SavedShare], owners: Sequence[int]
) -> tuple[list[EntryTable], list[tuple[int, int]]]:
    """In order: files of ``owners``, one for slices not written, and each process's older files."""
    number, none = {process: file for file, process in enumerate(owners)}, len(owners)
    tables: list[EntryTable] = []
    borrowed: list[tuple[int, int]] = []
    for process, share in enumerate(shares):
        written = np.where(share.is_dropped, none, number.get(process, 0))
        file = np.where(share.referred < 0, written, none + 1 + len(borrowed) + share.referred)
        tables.append(replace(share.entries, file=file))
        borrowed += [(process, each) for each in (share.base.files if share.base else ())]
    return tables, borrowed


def _references(
    older: OlderIndex, referred: EntryTable, first: int, borrowed: Sequence[tuple[int, int]]
) -> References | None:
    """Return references to an older checkpoint, whose files are ``borrowed`` from number ``first`` on."""
    if not len(referred):
        return None
    numbers = np.array([file for _, file in borrowed], np.int64)
    entries = replace(referred, file=numbers[referred.file - first])
    return references_to(entries, older.index, older.prefix, older.stamp)


def _metadata(run: Run, shares: Sequence[SavedShare], about: Metadata, keys: Set[str]) -> Metadata:
    """Texts that differ are refused, and objects unless the first replica counts."""
    texts, objects = dict[str, tuple[int, str]](), dict[str, tuple[int, bytes]]()
    for process, share in enumerate(shares):
        for name, text in share.metadata.user.items():
            first, earlier = texts.setdefault(name, (process, text))
            if earlier != text:
                raise ArgumentError(
                    f"The metadata {name!r} are {earlier!r} in process {first} and {text!r} in "
                    f"process {process}.",
                    _GIVE_SAME,
                )
        for key, octets in share.metadata.objects.items():
            first, other = objects.setdefault(key, (process, octets))
            if other != octets and run.options.replicas == "equal":
                cause = f"The object {key!r} differs between process {first} and {process}."
                raise ArgumentError(cause, _GIVE_SAME)
    both = sorted(objects.keys() & keys)
    if both:
        cause = f"{both[0]!r} is a tensor in one process and an object in another."
        raise ArgumentError(cause, "Give each its own key.")
    user = {name: text for name, (_, text) in texts.items()}
    if all(share.others is not None for share in shares):
        user |= keys_of_some([share.keys for share in shares])
    paths = {key: path for share in shares for key, path in share.metadata.paths.items()}
    plain = {key: octets for key, (_, octets) in objects.items()}
    return replace(about, user=user, objects=plain, paths=paths)


def _ties(shares: Sequence[SavedShare]) -> dict[str, str]:
    """Return the key of the tied tensor by key; processes with values of either must agree."""
    ties = {key: first for share in shares for key, first in share.metadata.ties.items()}
    for process, share in enumerate(shares):
        slices, own = share.entries.slices, share.metadata.ties
        held = {slices.tensors.keys[row] for row in slices.tensor[slices.nbytes > 0].tolist()}
        for key, first in ties.items():
            if own.get(key) != first and not held.isdisjoint({key, first}):
                other = next(n for n, each in enumerate(shares) if each.metadata.ties.get(key))
                cause = (
                    f"{key!r} and {first!r} are one tensor in process {other}, and not in process "
                    f"{process}."
                )
                raise ArgumentError(
                    cause, "Tie them in all processes, or copy one of them: tensor.clone()."
                )
    untied = {key for share in shares for key in share.entries.slices.tensors.keys} - ties.keys()
    for key, first in ties.items():
        if first not in untied:
            cause = f"{key!r} is tied to {first!r}, which no process has."
            raise InvalidCheckpoint(cause, "Save again in all processes.")
    return ties


def _without(share: SavedShare, ties: Mapping[str, str]) -> SavedShare:
    """Return a share without the slices of tied tensors, which have no elements in it."""
    rows = share.entries.slices.tensors.rows()
    is_tied = np.isin(share.entries.slices.tensor, [rows[key] for key in ties if key in rows])
    if not is_tied.any():
        return share
    return replace(share, entries=share.entries.take(np.flatnonzero(~is_tied)))


def _write_again(run: Run, share: SavedShare, process: int, merged: _Merged, file: int) -> _Merged:
    """Write one file again with the slices that are kept of it; return the new contents."""
    # Plan: the same slices in the same order, in a file without the others.
    storage = run.target.storage
    rows = np.flatnonzero(merged.entries.file == file)
    kept = merged.entries.take(rows)
    only = np.zeros(len(rows), np.int64)
    name = run.data(share.nonce + _AGAIN, process)
    local = replace(kept, file=only, checksum=np.full(len(rows), NO_CHECKSUM), runs=None)
    planned = plan_file(run, kept.slices, merged.metadata, share.nonce)
    plan = plan_of_slices(kept.slices, np.arange(len(rows)), kept.slices)
    # Move.
    old = merged.files.names[file]
    data = DataFiles(storage, [old, ""], share.index.overview.file_nbytes)
    source = closing(NativeSource(storage, "", storage.open(old), share.index, data))
    task = FileTask(name, name, storage, ShareWriter(planned.writer), plan, local, planned.start)
    with source as opened:
        found = run_task(task, opened).checksums.payload
    if not np.array_equal(found, kept.checksum):
        cause = f"The bytes of {old} of process {process} disagree with their checksums."
        raise CorruptCheckpoint(cause, "Save again in all processes.")
    # The place of each slice that moved, and the name and the size of the file.
    start, nbytes = merged.files.start.copy(), merged.files.nbytes.copy()
    names, status = [*merged.files.names], storage.status(name)
    start[rows], nbytes[file], names[file] = planned.start, status.nbytes if status else 0, name
    return replace(merged, files=replace(merged.files, names=names, nbytes=nbytes, start=start))


def _digests(
    run: Run,
    shares: Sequence[SavedShare],
    merged: _Merged,
    every: EntryTable,
    holders: Sequence[int],
) -> dict[str, str]:
    """The digests of all tensors and objects; [m] ``holders`` are the processes of ``every`` entry."""
    slices, storage = every.slices, run.target.storage
    known = [
        (shares[process].leaves or {}).get((slices.key(row), slices.region(row).offset), {})
        if nbytes  # a slice without elements may begin where another one does
        else {}
        for row, (process, nbytes) in enumerate(zip(holders, slices.nbytes.tolist(), strict=True))
    ]
    # Objects are listed as strings, and have digests as such.
    found = {
        key: digest_array(key, np.array(listed_text(octets), object))
        for key, octets in merged.metadata.objects.items()
    }
    names, sizes, referred = merged.files.names, merged.files.nbytes, merged.metadata.references
    is_written = every.file < len(names)
    file, start = every.file.copy(), every.start.copy()
    start[is_written] = merged.files.start
    if referred is not None:
        file[~is_written] = len(names) + referred.entries.file
        names, sizes = [*names, *referred.files], np.concatenate([sizes, referred.nbytes])
    if not names:
        return found
    # Only the native format has checksums of parts of a payload.
    nothing = slices.take(np.zeros(0, np.int64))
    if not plan_file(run, nothing, merged.metadata, NOT_WRITTEN).writer.run_nbytes:
        every = replace(every, checksum=np.full(len(every), NO_CHECKSUM), runs=None)
    every = replace(every, file=file, start=start)
    data = DataFiles(storage, [*names], sizes)
    opened = NativeSource(storage, "", storage.open(names[0]), shares[0].index, data)
    with closing(opened) as source:
        blocks = Blocks.of_entries(source, every)
        return found | digests_of_shares(blocks, known, merged.metadata.ties)


def _checksums(entries: EntryTable) -> FileChecksums:
    order = np.argsort(entries.file, kind="stable")
    runs: list[np.ndarray] = [np.zeros(0, np.uint32)]
    if entries.runs is not None:
        nbytes: Ints = entries.slices.nbytes
        runs += [entries.runs.of(row, int(nbytes[row])) for row in order.tolist()]
    return FileChecksums(entries.checksum[order], np.concatenate(runs))
