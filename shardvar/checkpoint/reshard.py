"""Lay a checkpoint out anew: other slices, other files, another format, without ever holding a tensor whole."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from shardvar.checkpoint.arguments import check_mapping, check_policy, name_of_dtype, strings_of
from shardvar.checkpoint.locate import Found, Path, find_checkpoint, find_target, is_same
from shardvar.checkpoint.reader import Reader
from shardvar.checkpoint.reports import WriteReport
from shardvar.checkpoint.save import WRITER, check_keys
from shardvar.checkpoint.writing import Draft, Partitions, Progress, carry_out, check_may_write, draft, report_of
from shardvar.engine.cast import CastSource, cast_entries
from shardvar.errors import ArgumentError
from shardvar.formats.protocol import Source
from shardvar.planning.index import EntryTable, Metadata
from shardvar.planning.policies import Policy
from shardvar.planning.slices import SliceTable


def reshard(
    source: Path,
    target: Path,
    *,
    format: str | None = None,
    policy: Policy | None = None,
    partition: Partitions = None,
    filter: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    cast: Mapping[str, str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda _nbytes: None,
) -> WriteReport:
    """Write the checkpoint at ``source`` anew at ``target``; a report of what was done, or with ``dry_run`` would be.

    ``format`` is what the ending of ``target`` says where it is not given, else that of the source. Tensors keep
    their slices unless ``partition`` says otherwise (see ``save``); all go to one file unless ``policy`` does.
    ``filter`` is a glob or several: keys that match one are taken. ``rename`` goes from old keys to new ones, or from
    globs with one ``*`` to names with one. ``cast`` goes from globs to dtypes; otherwise no dtype changes.

    Every checksum of the source is compared before the target is committed. The source is never touched, and the target
    is there whole or not at all. If the process is killed, a second run of the same call reuses the files that the
    first had finished. Memory: some blocks of 4 MiB and the columns of the plan, whatever the size of a tensor.

    ``TargetExists`` without ``force``; the errors of reading and of ``save``.
    """
    check_policy(policy)
    for names in (rename, cast):
        check_mapping(names or {}, "names to names")
    found = find_checkpoint(source)
    goal = find_target(target, format, otherwise=found.format.name)
    if is_same(found, goal):
        raise ArgumentError(f"{found.path} is both the source and the target.", "Choose another target.")
    with Reader(found.path, found.format.name, found.open()) as reader:
        stored = _renamed(_filtered(reader, filter), dict(rename or {}))
        entries, payloads = _cast(reader.source, stored, dict(cast or {}))
        metadata = Metadata(writer=WRITER, user=reader.metadata.user)
        work = draft(goal, entries, policy=policy, partition=partition, metadata=metadata, force=force, source=payloads)
        check_may_write(work)
        if dry_run:
            return report_of(work, goal.storage.free_nbytes())
        generation = _generation(found, reader, work) if work.may_resume else None
        return carry_out(work, payloads, generation, progress)


def _filtered(reader: Reader, globs: str | Iterable[str] | None) -> EntryTable:
    """The entries of the keys that match; raises the fault of any of them."""
    patterns = strings_of(globs, "globs") if globs is not None else ["*"]
    keys = reader.keys()
    kept = {key for key in keys if any(fnmatchcase(key, pattern) for pattern in patterns)}
    if not kept and keys:
        raise ArgumentError(f"No tensor matches {' or '.join(patterns)}.", "`shardvar inspect` lists the keys.")
    for key, error in reader.faults.items():
        if key in kept:
            raise type(error)(error.cause, error.remedy)
    entries = reader.entries()
    tensors = entries.slices.tensors
    rows = np.array([row for row, key in enumerate(tensors.keys) if key in kept], dtype=np.int64)
    position = np.full(len(tensors), -1, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    chosen = entries.take(np.flatnonzero(position[entries.slices.tensor] >= 0))
    slices = chosen.slices
    table = SliceTable(tensors.take(rows), position[slices.tensor], slices.offset, slices.shape, slices.nbytes)
    return replace(chosen, slices=table)


def _renamed(entries: EntryTable, names: Mapping[str, str]) -> EntryTable:
    """The entries under their new keys; ``ArgumentError`` where a name matches nothing or two keys become one."""
    if not names:
        return entries
    tensors = entries.slices.tensors
    renamed = list(tensors.keys)
    for old, new in names.items():
        hits = [row for row, key in enumerate(tensors.keys) if _match(old, key) is not None]
        if not hits:
            raise ArgumentError(f"No tensor is named {old!r}, so none is renamed to {new!r}.")
        for row in hits:
            renamed[row] = new.replace("*", _match(old, tensors.keys[row]) or "", 1) if "*" in old else new
    check_keys(renamed)
    key, count = Counter(renamed).most_common(1)[0]
    if count > 1:
        raise ArgumentError(f"{count} tensors would be named {key!r}.", "Choose names that differ.")
    slices = replace(entries.slices, tensors=replace(tensors, keys=renamed))
    return replace(entries, slices=slices)


def _match(pattern: str, key: str) -> str | None:
    """What the ``*`` of a pattern stands for in a key, None where it does not match; without ``*`` only itself does."""
    head, star, tail = pattern.partition("*")
    if not star:
        return "" if key == pattern else None
    fits = len(key) >= len(head) + len(tail) and key.startswith(head) and key.endswith(tail)
    return key[len(head) : len(key) - len(tail)] if fits else None


def _cast(source: Source, stored: EntryTable, globs: Mapping[str, str]) -> tuple[EntryTable, Source]:
    """The entries with the dtypes that they are cast to, and the source that converts them."""
    if not globs:
        return stored, source
    dtypes: dict[str, str] = {}
    for glob, given in globs.items():
        dtype = name_of_dtype(given)
        hits = [key for key in stored.slices.tensors.keys if fnmatchcase(key, glob)]
        if not hits:
            raise ArgumentError(f"No tensor matches {glob!r}, so none is cast to {dtype}.")
        dtypes |= dict.fromkeys(hits, dtype)
    return cast_entries(stored, dtypes), CastSource(source, stored)


def _generation(found: Found, reader: Reader, work: Draft) -> str:
    """A digest of the source as it is now, the plan and the writer: the same reshard again has the same."""
    digest = hashlib.sha256(f"{WRITER} {found.path} {found.format.name} {work.target.format.name}".encode())
    digest.update(repr((work.assignment.num_files, work.metadata)).encode("utf-8", "surrogateescape"))
    files = reader.index.files
    for number in np.unique(work.entries.file).tolist():  # a file that is not needed may be missing
        name = files[number]
        file = found.storage.open(name)
        try:
            digest.update(f"{name} {file.stamp}".encode("utf-8", "surrogateescape"))
        finally:
            file.close()
    slices, entries = work.assignment.slices, work.entries
    for keys in (slices.tensors.keys, entries.slices.tensors.keys):
        digest.update("\0".join(keys).encode("utf-8", "surrogateescape"))
    for column in (
        *(entries.file, entries.start, entries.checksum, entries.slices.offset, entries.slices.shape),
        *(slices.tensors.codes, slices.tensor, slices.offset, slices.shape, slices.nbytes, work.assignment.file),
    ):
        digest.update(np.ascontiguousarray(column, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]
