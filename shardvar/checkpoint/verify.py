"""Whether a checkpoint is whole: every payload read, every checksum compared, every tensor covered exactly once.

1. Open. What is wrong with the index itself is damage like any other, and then often the only one that can be told.
2. Laws. Keys that cannot be read; slices that reach out, overlap or leave a hole; what is odd about the files.
3. Payloads. All of them are read, those that lie in a file as they are in many threads, small neighbours in one read.
4. Values. Bools must be 0 or 1, and strings must be as long as they say, or a load would refuse them.

Each step goes on after what it finds: one damaged tensor hides no other. Formats without checksums are read all the
same, which proves that the bytes are there and nothing else; the report says how many bytes nothing guards.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.checkpoint.blocks import READ_ERRORS, Progress, ReadError
from shardvar.checkpoint.locate import Found, Path, find_checkpoint
from shardvar.checkpoint.reports import Damage, VerifyReport
from shardvar.engine.evidence import BLOCK_NBYTES, Piece, check_entry, check_evidence
from shardvar.engine.gather import SMALL_NBYTES, spans
from shardvar.engine.pool import run_all, thread_buffer
from shardvar.engine.read import check_bool
from shardvar.errors import CheckpointError, CheckpointNotFound, UnsupportedError
from shardvar.formats.protocol import Finding, Source
from shardvar.layout.dtypes import STRING, Ints, code
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.planning.plan import find_faults
from shardvar.planning.slices import concatenate
from shardvar.wire import strings


def verify(path: Path, progress: Progress = lambda nbytes: None) -> VerifyReport:
    """Check a checkpoint from end to end; a report of everything that is wrong with it.

    Damage is reported, never raised, in the index too. ``CheckpointNotFound``, ``AmbiguousPath``, ``UnsupportedError``
    and ``StorageError`` are raised: they say nothing about the checkpoint. ``progress`` is told the payload bytes that
    were read. Memory: some blocks of 4 MiB, the index, and the largest string tensor.

    >>> import numpy as np, tempfile, os
    >>> from shardvar.checkpoint.save import save
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> _ = save(path, {"table": np.ones((13, 4), np.float32)}, partition=5)
    >>> verify(path).ok
    True
    """
    found = find_checkpoint(path)
    try:
        source = found.open()
    except CheckpointNotFound:
        raise
    except CheckpointError as error:
        return VerifyReport(found.path, found.format.name, (_damage(error),), ())
    try:
        return _report(found, source, progress)
    finally:
        source.close()


def _report(found: Found, source: Source, progress: Progress) -> VerifyReport:
    tables, damages = _scan(source)
    # An index that cannot be read to its end cannot be asked for its faults either.
    unreadable: dict[str, ReadError] = {} if damages else dict(source.index.faults)
    faults = unreadable if damages else _faults(unreadable, tables, damages)
    findings = _findings(source, damages)
    damages.extend(_damage_found(each) for each in findings if each.is_damage)
    damages.extend(_damage(error, key) for key, error in faults.items())
    readable = [_readable(unreadable, entries) for entries in tables]
    for entries in readable:
        errors = check_payloads(source, entries, progress)
        damages.extend(_damage_of(source, entries, row, error) for row, error in sorted(errors.items()))
    # What this release cannot read may well be whole.
    unsupported = [damage for damage in damages if damage.kind == UnsupportedError.__name__]
    notes = [f"{damage.key}: not verified. {damage.message}" for damage in unsupported]
    notes.extend(_sentence(each) for each in findings if not each.is_damage)
    return VerifyReport(
        path=found.path,
        format=found.format.name,
        damages=tuple(damage for damage in damages if damage not in unsupported),
        notes=tuple(notes),
        num_tensors=len({key for entries in tables for key in entries.slices.tensors.keys} | faults.keys()),
        num_slices=sum(len(entries) for entries in tables),
        num_files=len(source.index.files),
        read_nbytes=sum(int(entries.slices.nbytes.sum()) for entries in readable),
        unguarded_nbytes=sum(_unguarded(source, entries) for entries in readable),
    )


def _scan(source: Source) -> tuple[list[EntryTable], list[Damage]]:
    """All entries, as far as the index can be read."""
    tables: list[EntryTable] = []
    try:
        for entries in source.index.scan():
            tables.append(entries)  # noqa: PERF402  # what was read before an error is kept
    except CheckpointError as error:
        return tables, [_damage(error)]
    return tables, []


def _faults(
    unreadable: dict[str, ReadError], tables: Sequence[EntryTable], damages: list[Damage]
) -> dict[str, ReadError]:
    """The keys that cannot be read, because of what the index says of them or of how their slices lie."""
    try:
        return {**find_faults(concatenate([entries.slices for entries in tables])), **unreadable}
    except CheckpointError as error:
        damages.append(_damage(error))
        return unreadable


def _findings(source: Source, damages: list[Damage]) -> Sequence[Finding]:
    """What the format finds odd in its files; not every format looks."""
    look: Callable[[], Sequence[Finding]] | None = getattr(source, "findings", None)
    if look is None:
        return ()
    try:
        return look()
    except CheckpointError as error:
        damages.append(_damage(error))
        return ()


def _readable(faults: Collection[str], entries: EntryTable) -> EntryTable:
    """The entries without those of keys that the index cannot read: where their payloads lie, nobody knows."""
    if not faults:
        return entries
    keep = np.array([key not in faults for key in entries.slices.tensors.keys], dtype=np.bool)
    return entries.take(np.flatnonzero(keep[entries.slices.tensor]))


def _unguarded(source: Source, entries: EntryTable) -> int:
    bare = entries.plain & (entries.checksum == NO_CHECKSUM) if source.crc is not None else entries.plain
    return int(entries.slices.nbytes[bare].sum())


def _damage(error: ReadError, key: str | None = None) -> Damage:
    return Damage(type(error).__name__, key, None, str(error))


def _damage_of(source: Source, entries: EntryTable, row: int, error: ReadError) -> Damage:
    file = source.index.files[int(entries.file[row])]
    return Damage(type(error).__name__, entries.slices.key(row), file, str(error))


def _damage_found(finding: Finding) -> Damage:
    return Damage("InvalidCheckpoint", None, finding.place, _sentence(finding))


def _sentence(finding: Finding) -> str:
    return f"{finding.place}: {finding.message}"


# The payloads. An error stays with its row, and the other rows are still read.


def check_payloads(
    source: Source, entries: EntryTable, progress: Progress = lambda nbytes: None
) -> dict[int, ReadError]:
    """Read every payload; the error of each row that is damaged."""
    check = _Check(source, entries, progress)
    nbytes, plain = entries.slices.nbytes, entries.plain
    small = np.flatnonzero(plain & (nbytes <= SMALL_NBYTES))
    small = small[np.lexsort((entries.start[small], entries.file[small]))]
    bounds = list(spans(entries.file[small], entries.start[small], nbytes[small]))
    run_all(lambda span: check.span(small[span[0] : span[1]]), bounds)
    large = np.flatnonzero(plain & (nbytes > SMALL_NBYTES))
    work = [(row, start) for row in large.tolist() for start in range(0, int(nbytes[row]), BLOCK_NBYTES)]
    run_all(check.block, work)
    check.compare_pieces()
    # Many of the others can only be decoded from their beginning: in order, and by one thread.
    for row in np.flatnonzero(~plain).tolist():
        check.row(row)
        progress(int(nbytes[row]))
    for row in np.flatnonzero(np.isin(entries.slices.codes(), (code(STRING), code("bool")))).tolist():
        check.values(row)
    return check.errors


@dataclass(frozen=True, slots=True, eq=False)
class _Check:
    """The payloads of some entries, and what is wrong with them."""

    source: Source
    entries: EntryTable
    progress: Progress
    errors: dict[int, ReadError] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)

    def span(self, rows: Ints) -> None:
        """Small payloads that lie side by side in a file: one read, and their checksums as a column."""
        start = self.entries.start[rows]
        stop = start + self.entries.slices.nbytes[rows]
        base = int(start[0])
        span = thread_buffer(int(stop.max()) - base)
        try:
            self.source.read_span(int(self.entries.file[rows[0]]), base, span)
        except READ_ERRORS:
            suspects = rows  # one of them reaches out of the file; alone, each of the others may still be right
        else:
            suspects = rows[self._differ(rows, span, (start - base).tolist(), (stop - base).tolist())]
        for row in suspects.tolist():
            self.row(row)
        self.progress(len(span))

    def _differ(self, rows: Ints, span: memoryview, starts: list[int], stops: list[int]) -> npt.NDArray[np.bool]:
        """Which of the payloads do not have their checksum."""
        crc, promised = self.source.crc, self.entries.checksum[rows]
        if crc is None:
            return np.zeros(len(rows), dtype=np.bool)
        actual = np.array([crc.compute(span[a:b]) for a, b in zip(starts, stops, strict=True)], dtype=np.int64)
        differ: npt.NDArray[np.bool] = (actual != promised) & (promised != NO_CHECKSUM)
        return differ

    def block(self, work: tuple[int, int]) -> None:
        """One block of a large payload."""
        row, start = work
        nbytes = min(BLOCK_NBYTES, int(self.entries.slices.nbytes[row]) - start)
        if row in self.errors:
            return
        block = thread_buffer(nbytes)
        try:
            self.source.read_into(self.entries, row, start, block)
        except READ_ERRORS as error:
            self.errors.setdefault(row, error)
            return
        guarded = self.source.crc is not None and self.entries.checksum[row] != NO_CHECKSUM
        found = self.source.crc.compute(block) if guarded and self.source.crc is not None else NO_CHECKSUM
        self.pieces.append((row, start, nbytes, found))
        self.progress(nbytes)

    def compare_pieces(self) -> None:
        """Put the blocks of each large payload together, and compare."""
        pieces = sorted(piece for piece in self.pieces if piece[0] not in self.errors)
        for row, group in groupby(pieces, key=itemgetter(0)):
            self._catch(row, check_evidence, self.source, self.entries, list(group))

    def row(self, row: int) -> None:
        """One payload, read whole."""
        self._catch(row, check_entry, self.source, self.entries, row)

    def values(self, row: int) -> None:
        """Whether the bytes are ones that such a tensor may have; damaged ones need not be looked at."""
        if row not in self.errors:
            self._catch(row, check_values, self.source, self.entries, row)

    def _catch(self, row: int, check: Callable[..., None], *arguments: Any) -> None:
        try:
            check(*arguments)
        except READ_ERRORS as error:
            self.errors.setdefault(row, error)


def check_values(source: Source, entries: EntryTable, row: int) -> None:
    """Raise where the bytes of a bool or a string tensor are none that it can have, though their checksum is right."""
    nbytes, region = int(entries.slices.nbytes[row]), entries.slices.region(row)
    if entries.slices.dtype(row) == STRING:
        payload = memoryview(bytearray(nbytes))
        source.read_into(entries, row, 0, payload)
        strings.decode(payload, region.shape)
        return
    for start in range(0, nbytes, BLOCK_NBYTES):
        block = memoryview(bytearray(min(BLOCK_NBYTES, nbytes - start)))
        source.read_into(entries, row, start, block)
        check_bool(np.frombuffer(block, np.bool), entries.slices.key(row), source, entries)
