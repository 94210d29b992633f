"""Merge the shares of several processes into one native checkpoint.

Every share is a native checkpoint under its own prefix. The payloads stay where they are: data files are renamed to
those of the new generation, numbered through all shares, and one index is written that names them. Renaming is the same
when it is repeated, so a commit that was killed between two files is finished by the next one.
"""

from collections.abc import Sequence

import numpy as np

from shardvar.errors import IncompleteCheckpoint, InvalidCheckpoint, MissingFile
from shardvar.formats.native.entries import RUN_NBYTES, Overview, encode_text
from shardvar.formats.native.names import check_generation, data_names
from shardvar.formats.native.sink import NativeSink, check_assignment
from shardvar.formats.native.source import NativeSource
from shardvar.formats.protocol import FileChecksums
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import EntryTable, Metadata
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage

_SAVE_AGAIN = "Save again, under a new run."


def merge_native(
    storage: Storage,
    prefix: str,
    shares: Sequence[NativeSource],
    entries: EntryTable,
    metadata: Metadata,
    generation: str,
) -> None:
    """Put the data files of the shares in place, and an index of ``entries``, whose files count through all shares.

    ``MissingFile`` or ``IncompleteCheckpoint`` if a data file is missing or has another size than its share says; then
    nothing was changed.
    """
    # Check.
    check_generation(generation)
    for share in shares:
        if share.index.overview.run_nbytes != RUN_NBYTES:
            cause = f"{share.file.name} has runs of {share.index.overview.run_nbytes} bytes, not {RUN_NBYTES}."
            raise InvalidCheckpoint(cause, "Save all shares with the same release of shardvar.")
    written = [name for share in shares for name in share.index.files]
    sizes = np.concatenate([np.zeros(0, np.int64), *(share.index.overview.file_nbytes for share in shares)])
    assignment = Assignment(entries.slices, entries.file, len(written), metadata.description)
    check_assignment(assignment)
    # Plan.
    final = data_names(prefix, generation, len(written))
    pairs = zip(written, final, strict=True)
    present = [_present(storage, names, int(size)) for names, size in zip(pairs, sizes, strict=True)]
    keys = [encode_text(key) for key in entries.slices.tensors.keys]
    about = Overview(metadata, generation, sizes)
    sink = NativeSink(storage, prefix, assignment, keys, about, entries.start, written=present)
    # Commit.
    sink.commit([_checksums(entries)])


def _present(storage: Storage, names: tuple[str, str], nbytes: int) -> str:
    """Return which of the two names a data file has: that of its share, or the final one after a killed commit."""
    for name in names:
        try:
            file = storage.open(name)
        except MissingFile:
            continue
        file.close()
        if file.size != nbytes:
            raise IncompleteCheckpoint(f"{file.name} has {file.size} bytes, but its share says {nbytes}.", _SAVE_AGAIN)
        return name
    raise MissingFile(f"{names[0]} is missing in {storage.path}.", _SAVE_AGAIN)


def _checksums(entries: EntryTable) -> FileChecksums:
    """The checksums of all entries, in the order in which a sink takes them: file by file."""
    order = np.argsort(entries.file, kind="stable")
    runs: list[np.ndarray] = [np.zeros(0, np.uint32)]
    if entries.runs is not None:
        nbytes: Ints = entries.slices.nbytes
        runs += [entries.runs.of(row, int(nbytes[row])) for row in order.tolist()]
    return FileChecksums(entries.checksum[order], np.concatenate(runs))
