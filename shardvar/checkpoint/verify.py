"""Verify: read every payload, compare every checksum, and check that every tensor is covered exactly once.

1. Open. A damaged index is reported like any other damage. Often nothing else can be checked then.
2. Laws. Report keys that cannot be read, slices that overlap, leave a hole or reach out of their tensor, and oddities
   of the files.
3. Payloads. Read all of them: plain ones by several threads, small neighbours in one read.
4. Values. Bools must be 0 or 1, and strings must be as long as they say, or a load would refuse them.

Each step continues after a finding, so one damaged tensor hides no other. Formats without checksums are read too. That
proves only that the bytes are there, and the report says how many bytes nothing guards.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from shardvar.checkpoint.locate import Location, Path, find_checkpoint
from shardvar.checkpoint.reports import Damage, VerifyReport
from shardvar.engine.evidence import Evidence
from shardvar.engine.moves import MoveTable
from shardvar.engine.pieces import Reading, read_moves
from shardvar.engine.pool import Progress, block_ranges, new_buffer
from shardvar.engine.read import check_bool
from shardvar.errors import READ_ERRORS, CheckpointError, CheckpointNotFound, ReadError, UnsupportedError
from shardvar.formats.protocol import Finding, Source
from shardvar.layout.dtypes import STRING, code
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import find_faults
from shardvar.planning.slices import concatenate
from shardvar.wire import strings


def verify(path: Path, progress: Progress = lambda _nbytes: None) -> VerifyReport:
    """Check a checkpoint from end to end and return a report of every problem.

    Damage is reported, never raised, in the index too. ``CheckpointNotFound``, ``AmbiguousPath``, ``UnsupportedError``
    and ``StorageError`` are raised: they say nothing about the checkpoint. ``progress`` is called with the payload
    bytes that were read. Memory: some blocks of 4 MiB, the index, and the largest string tensor.

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


def _report(found: Location, source: Source, progress: Progress) -> VerifyReport:
    tables, damages = _scan(source)
    # An index that cannot be read to its end cannot be asked for its faults either.
    unreadable: dict[str, ReadError] = {} if damages else dict(source.index.faults)
    faults = unreadable if damages else _faults(unreadable, tables, damages)
    findings = _findings(source, damages)
    damages.extend(_damage_found(each) for each in findings if each.is_damage)
    damages.extend(_damage(error, key) for key, error in faults.items())
    # Payloads are read of keys with holes or overlaps too: their places are known.
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
    """The findings of the format about its files; not every format has any."""
    look: Callable[[], Sequence[Finding]] | None = getattr(source, "findings", None)
    if look is None:
        return ()
    try:
        return look()
    except CheckpointError as error:
        damages.append(_damage(error))
        return ()


def _readable(faults: Collection[str], entries: EntryTable) -> EntryTable:
    """The entries without those of keys that the index cannot read: the places of their payloads are unknown."""
    if not faults:
        return entries
    keep = np.array([key not in faults for key in entries.slices.tensors.keys], dtype=np.bool)
    return entries.take(np.flatnonzero(keep[entries.slices.tensor]))


def _unguarded(source: Source, entries: EntryTable) -> int:
    bare = entries.plain & ~Evidence(source, entries).is_guarded(np.arange(len(entries)))
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
    source: Source, entries: EntryTable, progress: Progress = lambda _nbytes: None
) -> dict[int, ReadError]:
    """Read every payload; the error of each row that is damaged."""
    # Move: small neighbours together and large payloads in blocks, by threads; what they hold is dropped.
    errors: dict[int, ReadError] = {}
    evidence = Evidence(source, entries, errors=errors)
    reading = Reading(evidence, progress)
    plain = np.flatnonzero(entries.plain)
    zeros = np.zeros_like(plain)
    read_moves(reading, MoveTable(plain, zeros, plain, zeros, entries.slices.nbytes[plain]), None)
    evidence.check()
    # Many of the others can only be decoded from their beginning: in order, and by one thread.
    for row in np.flatnonzero(~entries.plain).tolist():
        evidence.read_whole(row)
        progress(int(entries.slices.nbytes[row]))
    # Values, of payloads that are not damaged.
    for row in np.flatnonzero(np.isin(entries.slices.codes(), (code(STRING), code("bool")))).tolist():
        try:
            if row not in errors:
                check_values(source, entries, row)
        except READ_ERRORS as error:
            errors[row] = error
    return errors


def check_values(source: Source, entries: EntryTable, row: int) -> None:
    """Raise where a bool or a string tensor holds bytes that are not valid, though their checksum is right."""
    nbytes, region = int(entries.slices.nbytes[row]), entries.slices.region(row)
    if entries.slices.dtype(row) == STRING:
        payload = new_buffer(nbytes)
        source.read_into(entries, row, 0, payload)
        strings.decode(payload, region.shape)
        return
    # Bools: a block at a time, whatever the size of the tensor.
    for start, stop in block_ranges(0, nbytes):
        block = new_buffer(stop - start)
        source.read_into(entries, row, start, block)
        check_bool(np.frombuffer(block, np.bool), entries.slices.key(row), source, entries)
