"""Merge the shares of several processes into one checkpoint.

check   the entries of all shares together: dtypes and shapes agree, replicas agree, and every
        tensor is covered once
move    files in which a slice was dropped, for a process of a lower number holds it too, where the
        format names every byte of a file: they are written again without it
commit  every file is renamed, and one index put in place last, by the sink of the format
        (``SharedFormat.adopt``)

The payloads stay where they are. An error before the commit leaves the checkpoint that was there.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from shardvar.engine.arrays import ArraySource
from shardvar.engine.files import FileTask, run_task
from shardvar.engine.pool import block_ranges, new_buffer
from shardvar.errors import ArgumentError, CorruptCheckpoint, IncompleteCheckpoint
from shardvar.formats.native.source import NativeSource
from shardvar.formats.protocol import FileChecksums, SharedFormat, Source, WrittenFiles
from shardvar.layout.dtypes import ITEMSIZES, Ints, code
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Metadata, concatenate_entries
from shardvar.planning.merging import merge_entries
from shardvar.planning.plan import Assignment, CopyTable, Plan
from shardvar.planning.slices import SliceTable
from shardvar.storage.concurrency import do_all
from shardvar.verbs.locate import Location
from shardvar.verbs.together.share_format import ShareFormat, ShareWriter
from shardvar.verbs.writing import WritePlan

_AGAIN = ".again"
"""Added to the name of a file that is written again; it is still called as a share's file."""


_NOT_WRITTEN = "0"
"""The token of a sink that is asked only for places and checksums."""


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
    target: Location, shares: Sequence[Location], about: Metadata, replicas: str
) -> None:
    """Make one checkpoint from the shares of all processes, in order; the caller holds the lock.

    ``about`` has the generation of the checkpoint; the user's metadata come from the shares. Raises
    what ``planning.merging`` finds, and ``ArgumentError`` for metadata that differ.
    """
    with ExitStack() as opened:
        # Check, and plan: nothing is changed until the merged entries are proven whole.
        sources, tables = _open_shares(shares, opened)
        starts = np.cumsum([0, *(len(source.index.files) for source in sources)]).tolist()
        tables = [
            replace(table, file=table.file + start)
            for table, start in zip(tables, starts, strict=False)
        ]
        entries = merge_entries(tables, replicas)
        names = [name for source in sources for name in source.index.files]
        sizes = np.concatenate(
            [np.zeros(0, np.int64), *(source.index.overview.file_nbytes for source in sources)]
        )
        merged = _Merged(
            entries, WrittenFiles(names, sizes, entries.start), _metadata(sources, about)
        )
        # Move.
        if target.format.capabilities.is_exact:
            before = np.bincount(
                np.concatenate([table.file for table in tables]), minlength=len(names)
            )
            after = np.bincount(entries.file, minlength=len(names))
            for file in np.flatnonzero((after > 0) & (after < before)).tolist():
                process = int(np.searchsorted(starts, file, side="right")) - 1
                merged = _write_again(shares[process], sources[process], merged, file)
        # Commit.
        assignment = Assignment(entries.slices, entries.file, len(names), about.description)
        form = cast("SharedFormat", target.format)
        sink = form.adopt(target.storage, target.name, assignment, merged.metadata, merged.files)
        sink.commit([_checksums(merged.entries)])


def _open_shares(
    shares: Sequence[Location], opened: ExitStack
) -> tuple[list[NativeSource], list[EntryTable]]:
    """Open all shares, which are closed with ``opened``, and read their entries; in a bucket, of
    many at a time."""
    found: dict[int, tuple[NativeSource, EntryTable]] = {}

    def open_share(number: int) -> None:
        source = cast("NativeSource", shares[number].open())
        opened.callback(source.close)
        found[number] = source, entries_of_share(source)

    numbers = range(len(shares))
    do_all(open_share, numbers, shares[0].storage.traits)
    return [found[number][0] for number in numbers], [found[number][1] for number in numbers]


def entries_of_share(share: Source) -> EntryTable:
    """Return all entries of a share, which may lack regions; raises any other fault."""
    for error in share.index.faults.values():
        if not isinstance(error, IncompleteCheckpoint):
            raise error
    return concatenate_entries(list(share.index.scan()))


def is_same_share(share: Location, source: ArraySource, work: WritePlan) -> bool:
    """Return True if a share holds what the plan would write of the source, by the checksums."""
    form = cast("ShareFormat", share.format)
    writer = ShareWriter(
        form.plan(share.storage, work.assignment, work.metadata, _NOT_WRITTEN).writer
    )
    opened = share.open()
    try:
        stored = entries_of_share(opened)
    finally:
        opened.close()
    known = dict(zip(_names(stored.slices), stored.checksum.tolist(), strict=True))
    sums = dict.fromkeys(_names(work.assignment.slices), 0)
    names, copies = list(sums), work.plan.copies
    for row, number in zip(copies.source.tolist(), copies.target.tolist(), strict=True):
        sums[names[number]] = _checksum(source, row, writer)
    return known == sums


def _names(slices: SliceTable) -> list[tuple[Any, ...]]:
    """The key, dtype, full shape and region of each slice."""
    found = [slices[row] for row in range(len(slices))]
    return [(each.key, each.dtype, each.full_shape, each.region) for each in found]


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
    return value


def _metadata(shares: Sequence[Source], about: Metadata) -> Metadata:
    """The metadata of all shares together; a text that processes give differently is refused."""
    user: dict[str, tuple[int, str]] = {}
    for process, share in enumerate(shares):
        for name, text in share.index.metadata.user.items():
            first, known = user.setdefault(name, (process, text))
            if known != text:
                cause = (
                    f"The metadata {name!r} are {known!r} in process {first} and {text!r} in "
                    f"process {process}."
                )
                raise ArgumentError(
                    cause, "Give the same text in all processes, or in only one of them."
                )
    return replace(about, user={name: text for name, (_, text) in user.items()})


def _write_again(share: Location, source: NativeSource, merged: _Merged, file: int) -> _Merged:
    """Write one file again with the slices that are kept of it; return what is then held."""
    # Plan: the same slices in the same order, in a file without the others.
    form = cast("ShareFormat", share.format)
    rows = np.flatnonzero(merged.entries.file == file)
    kept = merged.entries.take(rows)
    # A share has one file.
    name, only = (
        merged.files.names[file] + _AGAIN,
        np.zeros(len(rows), np.int64),
    )
    local = replace(kept, file=only, checksum=np.full(len(rows), NO_CHECKSUM), runs=None)
    unplanned = Assignment(kept.slices, only, 1, merged.metadata.description)
    planned = form.plan(share.storage, unplanned, merged.metadata, merged.metadata.generation)
    each = np.arange(len(rows))
    plan = Plan(
        kept.slices, kept.slices, CopyTable(each, each, kept.slices.offset, kept.slices.shape)
    )
    # Move.
    task = FileTask(
        name, name, share.storage, ShareWriter(planned.writer), plan, local, planned.start
    )
    found = run_task(task, source).checksums.payload
    if not np.array_equal(found, kept.checksum):
        cause = (
            f"{share.path}: The bytes of {merged.files.names[file]} disagree with their checksums."
        )
        raise CorruptCheckpoint(cause, "Save again, under a new run.")
    # The place of each slice that moved, and the name and the size of the file.
    start, nbytes, names = (
        merged.files.start.copy(),
        merged.files.nbytes.copy(),
        [*merged.files.names],
    )
    status = share.storage.status(name)
    start[rows], nbytes[file], names[file] = planned.start, status.nbytes if status else 0, name
    return replace(merged, files=WrittenFiles(names, nbytes, start))


def _checksums(entries: EntryTable) -> FileChecksums:
    """The checksums of all entries, in the order in which a sink takes them: file by file."""
    order = np.argsort(entries.file, kind="stable")
    runs: list[np.ndarray] = [np.zeros(0, np.uint32)]
    if entries.runs is not None:
        nbytes: Ints = entries.slices.nbytes
        runs += [entries.runs.of(row, int(nbytes[row])) for row in order.tolist()]
    return FileChecksums(entries.checksum[order], np.concatenate(runs))
