"""Generations: do two reshards write the same bytes?

A digest names the asides of a reshard, so that a second run takes up the files that a first one has
finished. It covers the files that are read, as they are now; the stored entries; all that is made of
them on the way; and the plan.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from shardvar.engine.cast import CastSource
from shardvar.engine.dequantize import ScaledSource
from shardvar.engine.mapped import MappedSource
from shardvar.formats.files import open_below
from shardvar.formats.protocol import Source
from shardvar.formats.source import WrappedSource
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import EntryTable
from shardvar.verbs.joined_source import JoinedSource
from shardvar.verbs.locate import Location
from shardvar.verbs.reader import Reader
from shardvar.verbs.save import WRITER
from shardvar.verbs.writing import WritePlan


def digest_of_reshard(
    found: Sequence[Location], reader: Reader, payloads: Source, work: WritePlan
) -> str | None:
    """Return a digest of the source as it is now, the plan and the writer: the same reshard again
    has the same.

    None where the plan does not say all that is written.
    """
    if not work.may_resume:
        return None
    # The entries as the index gives them: what a cast makes of the same bytes depends on the dtype
    # they are stored in.
    if isinstance(payloads, WrappedSource | JoinedSource):
        stored, used, made = _stored_entries(payloads, work.entries)
    else:
        stored, used, made = work.entries, payloads.files_read(work.entries), b""
    named = " ".join(map("{0.path} {0.format.name}".format, found))
    digest = hashlib.sha256(f"{WRITER} {named} {work.target.format.name}".encode())
    digest.update(
        repr((work.assignment.num_files, work.metadata, made)).encode("utf-8", "surrogateescape")
    )
    joined, files = reader.source.places, reader.index.files
    for number in used.tolist():  # a file that is not needed may be missing
        storage, name = joined[number] if joined else (found[0].storage, files[number])
        file = open_below(storage, name)
        try:
            digest.update(f"{name} {file.stamp}".encode("utf-8", "surrogateescape"))
        finally:
            file.close()
    columns = [stored.file, stored.start, stored.checksum, work.assignment.file]
    for slices in (work.assignment.slices, stored.slices):
        # Separated by NUL: without it, the keys "ab", "c" and "a", "bc" would give one digest.
        digest.update("\0".join(slices.tensors.keys).encode("utf-8", "surrogateescape"))
        columns += [slices.tensors.codes, slices.tensor, slices.offset, slices.shape, slices.nbytes]
    for column in columns:
        digest.update(np.ascontiguousarray(column, dtype=np.int64).tobytes())
    # 64 bits keep names short, and two writes into one directory do not get the same ones by
    # chance.
    return digest.hexdigest()[:16]


def _stored_entries(source: Source, entries: EntryTable) -> tuple[EntryTable, Ints, bytes]:
    """Return the stored entries of a converted source, the numbers of the files that are read, and
    a digest of how a map makes others."""
    if isinstance(source, CastSource):
        entries = source.stored
        source = source.inner
    files, made = source.files_read(entries), b""
    while isinstance(source, MappedSource):  # a map, and transposes of what it makes
        entries, made, source = source.stored, made + source.digest(), source.inner
    return entries, files, made + _blocks(source)


def _blocks(source: Source) -> bytes:
    """The blocks of quantised tensors, which a model's description gives, and no file with values."""
    if isinstance(source, JoinedSource):
        return b"".join(map(_blocks, source.sources))
    if isinstance(source, ScaledSource):
        return repr([*dict.fromkeys(source.quantised.values())]).encode("utf-8", "surrogateescape")
    return _blocks(source.inner) if isinstance(source, WrappedSource) else b""
