"""Merge the shares of several processes into one checkpoint.

check   the entries of all shares together: dtypes and shapes agree, replicas agree, and every
        tensor is covered once; all shares have seen one base, which is still there (``share_base``)
move    files that have lost a slice, because a process of a lower number also holds it, if the
        format names every byte of a file: they are written again without it
commit  the files are renamed, unless their names are final; one index is put in place last, by the
        sink of the format (``SharedFormat.adopt``)

The payloads stay where they are. An error before the commit leaves the checkpoint that was there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardvar.engine.files import FileTask, run_task
from shardvar.errors import ArgumentError, CorruptCheckpoint, InvalidCheckpoint
from shardvar.formats.files import DataFiles
from shardvar.formats.native.names import native_index_name
from shardvar.formats.native.source import NativeSource
from shardvar.formats.objects import listed_text
from shardvar.formats.protocol import FileChecksums, Sink, WrittenFiles
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Metadata, References
from shardvar.planning.merging import merge_entries
from shardvar.planning.plan import Assignment, CopyTable, Plan
from shardvar.storage.concurrency import do_all
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.compare.digest import digest_array
from shardvar.verbs.together.run import Run
from shardvar.verbs.together.share_base import OlderIndex, older_of_shares
from shardvar.verbs.together.share_digests import digests_of_shares
from shardvar.verbs.together.share_format import (
    NOT_WRITTEN,
    SavedShare,
    ShareWriter,
    plan_file,
    read_share,
)
from shardvar.verbs.together.state_keys import keys_of_some

_AGAIN = "again"
"""Added to the nonce in the name of a file that is written again."""


@dataclass(frozen=True, slots=True, eq=False)
class _Merged:
    """The contents of all shares together."""

    entries: EntryTable
    """The slices that are kept; their files count through the files of all shares."""
    files: WrittenFiles
    """The files of all shares, and the places of the slices in them."""
    metadata: Metadata
    """The metadata of the checkpoint."""


def merge_shares(
    run: Run, token: str, about: Metadata, replicas: str
) -> tuple[Sink, FileChecksums]:
    """Return what commits one checkpoint of the shares of all processes; the caller holds the lock.

    ``about`` has the generation of the checkpoint; the user's metadata come from the shares. Raises
    what ``planning.merging`` finds, and ``ArgumentError`` for metadata that differ.
    """
    # Check, and plan: nothing is changed until the merged entries are proven whole.
    shares = _read_shares(run, token)
    older = older_of_shares(
        run.target.storage.refreshed(), run.name, [share.base for share in shares]
    )
    ties = _ties(shares)
    shares = [_without(share, ties) for share in shares]
    owners = [process for process, share in enumerate(shares) if share.has_file]
    tables, borrowed = _numbered(shares, owners)
    every = merge_entries(tables, replicas)
    if (every.file == len(owners)).any():
        row = int((every.file == len(owners)).argmax())
        cause = f"Process 0 of the run {run.name!r} did not save {every.slices.key(row)!r}."
        raise InvalidCheckpoint(cause, "Save again in all processes.")
    entries = every.take(np.flatnonzero(every.file < len(owners)))
    names = [run.data(shares[process].nonce, process) for process in owners]
    sizes = np.array([shares[process].nbytes for process in owners], np.int64)
    metadata = replace(
        _metadata(shares, about),
        objects=_objects(shares, {*every.slices.tensors.keys, *ties}, replicas),
        ties=ties,
        paths={key: path for share in shares for key, path in share.metadata.paths.items()},
    )
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


def _read_shares(run: Run, token: str) -> list[SavedShare]:
    """Read the indexes of all shares; in a bucket, of many at a time."""
    found: dict[int, SavedShare] = {}

    def read(process: int) -> None:
        found[process] = read_share(run, token, process)

    do_all(read, range(run.count), run.target.storage.traits)
    return [found[process] for process in range(run.count)]


def _numbered(
    shares: Sequence[SavedShare], owners: Sequence[int]
) -> tuple[list[EntryTable], list[tuple[int, int]]]:
    """Return the entries of all shares with one numbering of files, and what the last numbers are.

    First come the files of the ``owners``; then one number for what is in no file, since it was not
    written; then the files of the older checkpoint, for each process that refers to them: the process,
    and the number of the file in the older index.
    """
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
    """Return references to the entries of an older checkpoint, whose files are ``borrowed`` from
    number ``first`` on; None without any."""
    if not len(referred):
        return None
    numbers = np.array([file for _, file in borrowed], np.int64)
    used, file = np.unique(numbers[referred.file - first], return_inverse=True)
    return References(
        replace(referred, file=file),
        [older.index.files[number] for number in used.tolist()],
        older.nbytes[used],
        native_index_name(older.prefix),
        older.stamp,
    )


def _metadata(shares: Sequence[SavedShare], about: Metadata) -> Metadata:
    """The metadata of all shares together; a text that processes give differently is refused."""
    user: dict[str, tuple[int, str]] = {}
    for process, share in enumerate(shares):
        for name, text in share.metadata.user.items():
            first, known = user.setdefault(name, (process, text))
            if known != text:
                cause = (
                    f"The metadata {name!r} are {known!r} in process {first} and {text!r} in "
                    f"process {process}."
                )
                raise ArgumentError(
                    cause, "Give the same text in all processes, or in only one of them."
                )
    texts = {name: text for name, (_, text) in user.items()}
    if all(share.others is not None for share in shares):
        texts |= keys_of_some([share.keys for share in shares])
    return replace(about, user=texts)


def _ties(shares: Sequence[SavedShare]) -> dict[str, str]:
    """The ties of all shares together, each key with the tensor whose bytes it has; one that a process
    with values of either does not have is refused.

    Of a tensor without elements in a process, it is unknown whether it is tied.
    """
    ties = {key: first for share in shares for key, first in share.metadata.ties.items()}
    for process, share in enumerate(shares):
        slices, mine = share.entries.slices, share.metadata.ties
        held = {slices.tensors.keys[row] for row in slices.tensor[slices.nbytes > 0].tolist()}
        for key, first in ties.items():
            if mine.get(key) != first and not held.isdisjoint({key, first}):
                other = next(n for n, each in enumerate(shares) if each.metadata.ties.get(key))
                cause = (
                    f"{key!r} and {first!r} are one tensor in process {other}, and not in process "
                    f"{process}."
                )
                raise ArgumentError(
                    cause, "Tie them in all processes, or copy one of them: tensor.clone()."
                )
    known = {key for share in shares for key in share.entries.slices.tensors.keys} - ties.keys()
    for key, first in ties.items():
        if first not in known:
            cause = f"{key!r} is tied to {first!r}, which no process has."
            raise InvalidCheckpoint(cause, "Save again in all processes.")
    return ties


def _without(share: SavedShare, ties: Mapping[str, str]) -> SavedShare:
    """Return a share without the slices of tied tensors, which have no elements in it."""
    slices = share.entries.slices
    is_tied = np.isin(
        slices.tensor, [slices.tensors.rows()[k] for k in ties if k in slices.tensors.rows()]
    )
    if not is_tied.any():
        return share
    return replace(share, entries=share.entries.take(np.flatnonzero(~is_tied)))


def _objects(shares: Sequence[SavedShare], keys: set[str], replicas: str) -> dict[str, bytes]:
    """The objects of all shares together; one that processes give differently is refused, unless the
    first of the replicas counts."""
    found: dict[str, tuple[int, bytes]] = {}
    for process, share in enumerate(shares):
        for key, octets in share.metadata.objects.items():
            first, known = found.setdefault(key, (process, octets))
            if known != octets and replicas == "equal":
                cause = f"The object {key!r} differs between process {first} and {process}."
                raise ArgumentError(
                    cause, "Give the same in all processes, or in only one of them."
                )
    both = sorted(found.keys() & keys)
    if both:
        cause = f"{both[0]!r} is a tensor in one process and an object in another."
        raise ArgumentError(cause, "Give each its own key.")
    return {key: octets for key, (_, octets) in found.items()}


def _write_again(run: Run, share: SavedShare, process: int, merged: _Merged, file: int) -> _Merged:
    """Write one file again with the slices that are kept of it; return what is then held."""
    # Plan: the same slices in the same order, in a file without the others.
    storage = run.target.storage
    rows = np.flatnonzero(merged.entries.file == file)
    kept = merged.entries.take(rows)
    only = np.zeros(len(rows), np.int64)
    name = run.data(share.nonce + _AGAIN, process)
    local = replace(kept, file=only, checksum=np.full(len(rows), NO_CHECKSUM), runs=None)
    planned = plan_file(run, kept.slices, merged.metadata, share.nonce)
    each = np.arange(len(rows))
    plan = Plan(
        kept.slices, kept.slices, CopyTable(each, each, kept.slices.offset, kept.slices.shape)
    )
    # Move.
    old = merged.files.names[file]
    data = DataFiles(storage, [old, ""], share.index.overview.file_nbytes)
    source = NativeSource(storage, "", storage.open(old), share.index, data)
    task = FileTask(name, name, storage, ShareWriter(planned.writer), plan, local, planned.start)
    try:
        found = run_task(task, source).checksums.payload
    finally:
        source.close()
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
    source = NativeSource(storage, "", storage.open(names[0]), shares[0].index, data)
    try:
        return found | digests_of_shares(
            Blocks.of_entries(source, every), known, merged.metadata.ties
        )
    finally:
        source.close()


def _checksums(entries: EntryTable) -> FileChecksums:
    """The checksums of all entries, in the order in which a sink takes them: file by file."""
    order = np.argsort(entries.file, kind="stable")
    runs: list[np.ndarray] = [np.zeros(0, np.uint32)]
    if entries.runs is not None:
        nbytes: Ints = entries.slices.nbytes
        runs += [entries.runs.of(row, int(nbytes[row])) for row in order.tolist()]
    return FileChecksums(entries.checksum[order], np.concatenate(runs))
