"""Incremental saves: which tensors of a new checkpoint lie unchanged in an older one.

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
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.native.index import RUN_NBYTES
from shardvar.formats.native.names import native_index_name
from shardvar.formats.native.source import NativeIndex, NativeSource
from shardvar.planning.decision import is_cut_by
from shardvar.planning.index import (
    EntryTable,
    References,
    concatenate_entries,
    take_tensors,
)
from shardvar.planning.slices import TensorTable
from shardvar.records import dataclass, replace
from shardvar.verbs.compare.digest import digests_of
from shardvar.verbs.locate import Location, Path, find_checkpoint
from shardvar.verbs.reader import Reader
from shardvar.verbs.writing import Partitions, WritePlan
from shardvar.wire.digests import has_unused_bits


@dataclass(frozen=True, slots=True, eq=False)
class Increment:
    changed: EntryTable
    """The entries of the new tensors that are to be written."""
    references: References | None
    """The other tensors; None if all are to be written."""
    digests: Mapping[str, str]


def compare_with_base(base: Path, target: Location, source: ArraySource) -> Increment:
    """Return which tensors of ``source`` lie unchanged in the checkpoint ``base``."""
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
    with closing(found.format.open(found.storage, found.name)) as older:
        source_of_base = cast("NativeSource", older)
        alike = entries_alike(source_of_base.index, entries.slices.tensors)
        equal, references = set[str](), None
        if alike is not None:
            # Carried digests, else of the bytes. A digest leaves out the bits of a byte that an
            # element does not use, and a reference does not.
            tensors = alike.slices.tensors
            facts = enumerate(tensors.keys)
            keys = {key for row, key in facts if not has_unused_bits(tensors.dtype(row))}
            carried = source_of_base.index.metadata.digests
            known = {key: carried[key] for key in keys if key in carried}
            if rest := keys - known.keys():
                known |= digests_of(Reader(found.path, "shardvar", source_of_base), rest)
            equal = {key for key, digest in known.items() if digests[key] == digest}
        # Refer.
        if alike is not None and equal:
            entries_of_base = take_tensors(alike, equal)
            used, numbers = np.unique(entries_of_base.file, return_inverse=True)
            references = References(
                replace(entries_of_base, file=numbers),
                [source_of_base.index.files[file] for file in used.tolist()],
                source_of_base.index.overview.file_nbytes[used],
                native_index_name(source_of_base.prefix),
                source_of_base.file.stamp,
            )
    others = {key for key in entries.slices.tensors.keys if key not in equal}
    return Increment(take_tensors(entries, others), references, digests)


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


def entries_alike(older: NativeIndex, tensors: TensorTable) -> EntryTable | None:
    """Return the entries of the older checkpoint whose key, dtype and shape a new tensor has."""
    wanted = {key: (tensors.codes[row], tensors.shape(row)) for row, key in enumerate(tensors.keys)}
    tables = []
    for table in older.scan():
        stored, faults = table.slices.tensors, older.faults_in(table)
        keys = {
            key
            for row, key in enumerate(stored.keys)
            if wanted.get(key) == (stored.codes[row], stored.shape(row)) and key not in faults
        }
        if keys:
            tables.append(take_tensors(table, keys))
    # Runs of another size cannot be named by an index with runs of this one.
    if not tables or older.overview.run_nbytes != RUN_NBYTES:
        return None
    return concatenate_entries(tables)
