"""The journal beside a finished file: what a second run must know to take the file over instead of writing it again.

It is written after its file was forced to the disk; so where there is a whole journal there was a whole file. It is
believed as far as it can be held against other things: the file is still the one that was closed then (its stamp), has
the checksums that the journal gives (it is read once), and what the journal alone knows, the pieces that were read of
the source, is compared with the source's checksums before anything is committed.
"""

import json
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from shardvar.engine.evidence import Piece
from shardvar.engine.files import FileReport, FileTask, read_checksums
from shardvar.errors import CheckpointError, StorageError
from shardvar.planning.index import NO_CHECKSUM, EntryTable

JOURNAL = ".done"
"""Added to the name under which a file is written: the journal that says that it is finished."""

_MAX_NBYTES = 1 << 30
"""No journal is read that is larger; it would take a file of some million payloads or runs."""


def write_journal(task: FileTask, report: FileReport) -> None:
    """Say that the task's file is finished."""
    content = {
        "id": task.id,
        "stamp": _stamp(task),
        "payload": report.checksums.payload.tolist(),
        "runs": report.checksums.runs.tolist(),
        "parts": report.parts,
    }
    file = task.storage.create(task.name + JOURNAL)
    try:
        file.write(0, json.dumps(content).encode())
    finally:
        file.close()


def read_journal(task: FileTask) -> FileReport | None:
    """The report of an earlier run that finished this task's file, or None where there is none to trust."""
    try:
        journal = task.storage.open(task.name + JOURNAL)
        try:
            content = json.loads(journal.read(0, journal.size)) if journal.size <= _MAX_NBYTES else {}
        finally:
            journal.close()
        if content["id"] != task.id or content["stamp"] != _stamp(task):
            return None
        payload, runs = np.array(content["payload"], np.int64), np.array(content["runs"], np.uint32)
        parts = _check_parts(content["parts"], task.entries)
        found = read_checksums(task)
    except (CheckpointError, StorageError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        # A journal that is absent, cut or foreign is no journal: the file is written again.
        return None
    if not (np.array_equal(payload, found.payload) and np.array_equal(runs, found.runs)):
        return None
    return FileReport(found, parts, int(task.plan.targets.nbytes.sum()))


def remove_files(tasks: Sequence[FileTask]) -> None:
    """Remove what tasks wrote, as far as the disk lets: it is called when something else went wrong already."""
    for task in tasks:
        with suppress(StorageError):
            task.storage.remove(task.name)
    remove_journals(tasks)


def remove_journals(tasks: Sequence[FileTask]) -> None:
    """Remove the journals alone, as far as the disk lets: without its file, and beside another, a journal is void."""
    for task in tasks:
        with suppress(StorageError):
            task.storage.remove(task.name + JOURNAL)


def _stamp(task: FileTask) -> str:
    file = task.storage.open(task.name)
    file.close()
    return file.stamp


def _check_parts(parts: object, entries: EntryTable) -> list[Piece]:
    """The pieces, all of them within the payloads that they are pieces of; ``ValueError`` otherwise."""
    table = np.array(parts, np.int64).reshape(-1, 4)
    row, start, nbytes, crc = table.T
    if ((row < 0) | (row >= len(entries)) | (start < 0) | (nbytes < 0) | (crc < NO_CHECKSUM)).any():
        raise ValueError("A piece of nothing.")
    if (nbytes > entries.slices.nbytes[row] - start).any():
        raise ValueError("A piece that reaches out of its payload.")
    return [(a, b, c, d) for a, b, c, d in table.tolist()]
