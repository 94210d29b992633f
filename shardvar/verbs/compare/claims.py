"""Claims: the digests that checkpoints carry in their metadata, and digests that a write gives
them.

A carried digest is the claim of a writer. ``sv.verify`` compares it, and a new checkpoint gets
only digests that were computed from its own tensors:

    the source carries digests     they are compared with its tensors; another one is damage
    names and values stay          the compared digests are kept
    a name or values change        the digests are computed again
    the format holds none          they are left out, and reported

So a stale digest is never written. Tensors are hashed before they are written, and so read twice.

A new checkpoint may also refer to tensors that lie unchanged in an older one (``base=``).

find     the older checkpoint, in the directory of the new one
compare  the digest of each new tensor (docs/digest.md) with the digest that the older checkpoint carries,
         or, if it carries none, with the digest of its bytes
refer    to the entries of equal tensors; all others are written
"""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from typing import cast

import numpy as np

from shardvar.engine.arrays import ArraySource
from shardvar.errors import (
    READ_ERRORS,
    ArgumentError,
    CorruptCheckpoint,
    MalformedCheckpoint,
    UnsupportedError,
)
from shardvar.formats.native.index import RUN_NBYTES, native_index_name
from shardvar.formats.native.source import NativeIndex, NativeSource
from shardvar.formats.protocol import Source
from shardvar.pictures.words import count
from shardvar.planning.decision import is_cut_by
from shardvar.planning.index import EntryTable, References, concatenate_entries, take_tensors
from shardvar.planning.slices import TensorTable
from shardvar.records import replace
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.compare.digest import digests_of, digests_of_blocks
from shardvar.verbs.locate import Location, Path, find_checkpoint
from shardvar.verbs.reader import Reader
from shardvar.verbs.writing import Partitions, WritePlan, check_may_write, rehearse
from shardvar.wire.digests import has_unused_bits

IN_A_FILE = "`shardvar digest PATH --write` keeps digests in a file."
"""The remedy where a checkpoint cannot carry digests."""
_LEFT_OUT = "The digests of the source are left out: "


def digest_arrays(work: WritePlan, source: ArraySource) -> WritePlan:
    _check_can_carry(work)
    if source.is_lazy.any():
        raise UnsupportedError(
            "The digest of a lazy array is not known before it is written.",
            f"Leave digest out: {IN_A_FILE}",
        )
    check_may_write(work)
    found = _digests(source, work.entries, work.target.path)
    return replace(work, metadata=replace(work.metadata, digests=found))


def _digests(source: Source, entries: EntryTable, path: str) -> dict[str, str]:
    try:
        found = digests_of_blocks(Blocks.of_entries(source, entries))
    except READ_ERRORS as error:
        raise error.at(path) from None
    return {key: found[key] for key in entries.slices.tensors.keys}


def _check_can_carry(work: WritePlan) -> None:
    form, remedy = work.target.format, f"Leave digest= (--digest) out: {IN_A_FILE}"
    if not form.capabilities.holds_digests:
        raise UnsupportedError(f"The format {form.name} cannot carry digests.", remedy)
    if work.substitutes is not None:
        raise UnsupportedError("The policy changes values, so their digests are not known.", remedy)


def carry_digests(
    stored: Reader,
    are_keys: bool,
    is_asked: bool,
    may_lose: bool,
    work: WritePlan,
    reader: Reader,
    entries: EntryTable,
    names: Mapping[str, str],
    objects: Collection[str],
    *,
    is_dry: bool,
) -> tuple[WritePlan, str]:
    """``are_keys``: tensors have the keys of the digests; ``may_lose``: go on despite damage."""
    is_carried = stored.metadata.has_digests
    if is_asked:
        _check_can_carry(work)
    elif not work.target.format.capabilities.holds_digests or work.substitutes is not None:
        why = "cannot carry them" if work.substitutes is None else "gets values from the policy"
        return work, f"{_LEFT_OUT}{work.target.format.name} {why}. {IN_A_FILE}"
    if is_dry:
        rehearse(lambda: _digests(work.source, entries, reader.path))
        if is_carried and work.source is not stored.source:
            rehearse(lambda: digests_of(stored, {*stored}))
        # Texts of the same length, so that the sizes of the files are right.
        keys = [*entries.slices.tensors.keys, *(names[key] for key in objects)]
        return _with(work, dict.fromkeys(keys, "0" * 64)), ""
    check_may_write(work)
    found = _digests(work.source, entries, reader.path)
    if objects:
        found |= digests_of(reader, objects, names=names)
    how = ", computed again" if is_carried else ""
    if is_carried and are_keys:
        is_same, read = work.source is stored.source, names if reader is stored else stored
        try:
            carried = stored.digests
            for key, value in (found if is_same else digests_of(stored, {*read})).items():
                if carried.get(key, value) != value:
                    raise CorruptCheckpoint(
                        f"{stored.path}: {key!r} does not have the digest that the checkpoint carries.",
                        "Copy the checkpoint again; `shardvar verify` lists all that is damaged.",
                    )
        except CorruptCheckpoint as error:
            if not may_lose:
                raise
            return work, f"{_LEFT_OUT}{error.cause}"
        except MalformedCheckpoint as error:
            if not is_asked:
                return work, f"{_LEFT_OUT}{error.cause}"
        how = ", as in the source" if is_same else how
    return _with(work, found), f"It carries the digests of {count(len(found), 'tensor')}{how}."


def _with(work: WritePlan, digests: Mapping[str, str]) -> WritePlan:
    return replace(work, metadata=replace(work.metadata, digests=digests))


# References to an older checkpoint.


def compare_with_base(
    base: Path, target: Location, source: ArraySource
) -> tuple[EntryTable, References | None, Mapping[str, str]]:
    """Return the entries of ``source`` to write, references to ``base`` for the others, and all digests."""
    # Find.
    found = find_checkpoint(base)
    check_can_refer(found, target)
    if source.is_lazy.any():
        raise UnsupportedError(
            "A lazy array cannot be compared with the base before it is written.",
            "Leave the base out, or give the array itself: numpy.asarray(value).",
        )
    entries = source.index.entries
    new = Reader("the new checkpoint", "arrays", source)
    digests = digests_of(new, entries.slices.tensors.keys)
    # Compare.
    opened = cast("NativeSource", found.format.open(found.storage, found.name))
    with closing(opened) as older:
        alike = entries_alike(older.index, entries.slices.tensors)
        # Carried digests, else of the bytes. A digest leaves out the bits of a byte that an
        # element does not use, and a reference does not.
        tensors, references = alike.slices.tensors, None
        facts = enumerate(tensors.keys)
        keys = {key for row, key in facts if not has_unused_bits(tensors.dtype(row))}
        carried = older.index.metadata.digests
        known = {key: carried[key] for key in keys if key in carried}
        if rest := keys - known.keys():
            known |= digests_of(Reader(found.path, "shardvar", older), rest)
        equal = {key for key, digest in known.items() if digests[key] == digest}
        # Refer.
        if equal:
            about = older.index, older.prefix, older.file.stamp
            references = references_to(take_tensors(alike, equal), *about)
    others = {key for key in entries.slices.tensors.keys if key not in equal}
    return take_tensors(entries, others), references, digests


def references_to(entries: EntryTable, index: NativeIndex, prefix: str, stamp: str) -> References:
    """Return references to entries of an older checkpoint, whose index has a stamp."""
    used, file = np.unique(entries.file, return_inverse=True)
    return References(
        replace(entries, file=file),
        [index.files[number] for number in used.tolist()],
        index.overview.file_nbytes[used],
        native_index_name(prefix),
        stamp,
    )


def partition_of(
    partition: Partitions, keys: Sequence[str], changed: Collection[str]
) -> Partitions:
    """Return a partition for only the ``changed`` keys, once it is known to fit all ``keys``."""
    if not isinstance(partition, Mapping):
        return partition
    is_cut_by(keys, partition)
    return {
        glob: cut
        for glob, cut in partition.items()
        if glob == "*" or any(fnmatchcase(key, glob) for key in changed)
    }


def check_unchanging(work: WritePlan) -> WritePlan:
    """Leave no file if nothing changed; refuse a policy that changes values."""
    if work.substitutes is not None:
        raise UnsupportedError(
            "The policy changes values, which were not compared with the base.",
            "Leave the base out, or the callback.",
        )
    if work.metadata.references is None or len(work.assignment.slices):
        return work
    assignment = replace(work.decision.assignment, num_files=0)
    return replace(work, decision=replace(work.decision, assignment=assignment))


def check_can_refer(base: Location, target: Location) -> None:
    """Raise ``ArgumentError`` unless a new checkpoint at the target may refer to the base."""
    for found in (target, base):
        if not found.format.capabilities.holds_references:
            cause = f"{found.path} has the format {found.format.name}, which has no references."
            raise ArgumentError(cause, "Leave the base out, or save both in the format shardvar.")
    a, b = base.storage, target.storage
    is_same = (
        a == b
        if a.local_path is None or b.local_path is None
        else os.path.realpath(a.local_path) == os.path.realpath(b.local_path)
    )
    if not is_same:
        raise ArgumentError(
            f"{target.path} cannot refer to {base.path}, which is in another directory.",
            "Save both in one directory, under different names.",
        )


def entries_alike(older: NativeIndex, tensors: TensorTable) -> EntryTable:
    """Return the entries of the older checkpoint whose key, dtype and shape a new tensor has."""
    wanted = {key: (tensors.codes[row], tensors.shape(row)) for row, key in enumerate(tensors.keys)}
    tables = []
    # Runs of another size cannot be named by an index with runs of this one.
    for table in older.scan() if older.overview.run_nbytes == RUN_NBYTES else ():
        stored, faults = table.slices.tensors, older.faults_in(table)
        keys = {
            key
            for row, key in enumerate(stored.keys)
            if wanted.get(key) == (stored.codes[row], stored.shape(row)) and key not in faults
        }
        if keys:
            tables.append(take_tensors(table, keys))
    return concatenate_entries(tables)
