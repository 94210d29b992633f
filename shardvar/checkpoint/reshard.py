"""Reshard: write a checkpoint anew in other slices, other files or another format, never holding a tensor whole.

find     the source, and the location of the target
plan     which tensors, under which keys and dtypes, in which slices and files
move     through ``checkpoint.writing``, as a save does; the source is a checkpoint instead of arrays
commit   the index last; a run that was killed is taken up by its generation, a digest of all that it would write
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from shardvar.checkpoint.arguments import check_mapping, check_policy, strings_of
from shardvar.checkpoint.carried import find_objects, read_texts
from shardvar.checkpoint.locate import Location, Path, find_checkpoint, find_target, is_same
from shardvar.checkpoint.reader import Reader
from shardvar.checkpoint.reports import WriteReport
from shardvar.checkpoint.save import WRITER, check_keys
from shardvar.checkpoint.writing import Partitions, WritePlan, carry_out, check_may_write, plan_checkpoint, preview
from shardvar.engine.cast import CastSource, cast_entries
from shardvar.engine.pool import Progress
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.protocol import Format, Source
from shardvar.layout.dtypes import parse_dtype
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
    dequantize: bool = False,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda _nbytes: None,
) -> WriteReport:
    """Write the checkpoint at ``source`` anew at ``target``; return a report. With ``dry_run`` nothing is written.

    ``format`` defaults to what the ending of ``target`` says, else to that of the source. Tensors keep their slices
    unless ``partition`` says otherwise (see ``save``), and share one file unless ``policy`` says otherwise. ``filter``
    is a glob or several: keys that match one are taken. ``rename`` maps old keys to new ones, or globs with one ``*``
    to names with one; ``cast`` maps globs to dtypes. Quantised blocks are copied as bytes, or with ``dequantize``
    as the numbers that they stand for, in float32. ``TargetExists`` without ``force``; the errors of ``save``.

    Every checksum is compared before the commit; the source is never touched. If the process is killed, a second run
    reuses finished files. Memory: some blocks of 4 MiB and the columns of the plan, whatever the size of a tensor.
    """
    # Find.
    check_policy(policy)
    found, goal = _find(source, target, format)
    with Reader(found.path, found.format.name, found.open(dequantize=dequantize)) as reader:
        # Plan.
        entries, payloads, metadata = _select(reader, goal.format, filter, rename or {}, cast or {})
        work = plan_checkpoint(
            goal, entries, policy=policy, partition=partition, metadata=metadata, force=force, source=payloads
        )
        generation = _generation(found, reader, payloads, work)
        if dry_run:
            return preview(work, generation)
        # Check, before a directory is made; a write checks again under its lock. Move and commit.
        check_may_write(work)
        return carry_out(work, payloads, generation, progress)


def _find(source: Path, target: Path, format: str | None) -> tuple[Location, Location]:
    """The locations of source and target, which must not be the same."""
    found = find_checkpoint(source)
    goal = find_target(target, format, otherwise=found.format.name)
    if is_same(found, goal):
        raise ArgumentError(f"{found.path} is both the source and the target.", "Choose another target.")
    return found, goal


def _select(
    reader: Reader, form: Format, globs: str | Iterable[str] | None, rename: Mapping[str, str], cast: Mapping[str, str]
) -> tuple[EntryTable, Source, Metadata]:
    """The entries to write, under their new keys and dtypes, their source, and what is kept beside them."""
    for names in (rename, cast):
        check_mapping(names, "names to names")
    kept = _matching(reader, globs)
    objects, texts = find_objects(reader, form, kept)
    entries = _filtered(reader, kept, {*objects, *texts})
    tensors = entries.slices.tensors
    keys = [*tensors.keys, *objects]
    new = dict(zip(keys, _new_keys(keys, dict(rename)), strict=True))
    slices = replace(entries.slices, tensors=replace(tensors, keys=[new[key] for key in tensors.keys]))
    # Under their new names, by which ``cast`` knows them.
    encodings = {new[key]: encoding for key, encoding in reader.encodings.items() if key in new}
    user = read_texts(reader, texts)
    if encodings:  # without them, nothing would say what the bytes of blocks mean
        user["encodings"] = json.dumps(encodings)
    paths = {key: path for key, path in reader.metadata.paths.items() if new.get(key) == key}
    carried = {new[key]: octets for key, octets in objects.items()}
    about = Metadata(writer=WRITER, user=user, paths=paths, objects=carried)
    return *_cast(reader.source, replace(entries, slices=slices), dict(cast), encodings), about


def _matching(reader: Reader, globs: str | Iterable[str] | None) -> set[str]:
    """The keys that match."""
    patterns = strings_of(globs, "globs") if globs is not None else ["*"]
    keys = reader.keys()
    kept = {key for key in keys if any(fnmatchcase(key, pattern) for pattern in patterns)}
    if not kept and keys:
        raise ArgumentError(f"No tensor matches {' or '.join(patterns)}.", "`shardvar inspect` lists the keys.")
    return kept


def _filtered(reader: Reader, kept: set[str], objects: set[str]) -> EntryTable:
    """The entries of the keys that are kept, without the objects; raises the fault of any of them."""
    for key, error in reader.faults.items():
        if key in kept and key not in objects:
            is_unsupported = isinstance(error, UnsupportedError)
            leave = " Or leave it out: name the others with filter= (--filter)." if is_unsupported else ""
            raise type(error)(error.cause, error.remedy + leave)
    entries = reader.entries()
    tensors = entries.slices.tensors
    left = kept - objects
    rows = np.array([row for row, key in enumerate(tensors.keys) if key in left], dtype=np.int64)
    # The new row of each tensor, -1 for those left out: if rows 0 and 2 of three are kept, it is 0, -1, 1.
    position = np.full(len(tensors), -1, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    chosen = entries.take(np.flatnonzero(position[entries.slices.tensor] >= 0))
    slices = chosen.slices
    table = SliceTable(tensors.take(rows), position[slices.tensor], slices.offset, slices.shape, slices.nbytes)
    return replace(chosen, slices=table)


def _new_keys(keys: list[str], names: Mapping[str, str]) -> list[str]:
    """The new names of keys; ``ArgumentError`` where a name matches nothing or two keys become one."""
    if not names:
        return keys
    renamed = list(keys)
    for old, new in names.items():
        hits = [row for row, key in enumerate(keys) if _match(old, key) is not None]
        if not hits:
            raise ArgumentError(f"No tensor is named {old!r}, so none is renamed to {new!r}.")
        for row in hits:
            renamed[row] = new.replace("*", _match(old, keys[row]) or "", 1) if "*" in old else new
    check_keys(renamed)
    key, count = Counter(renamed).most_common(1)[0]
    if count > 1:
        raise ArgumentError(f"{count} tensors would be named {key!r}.", "Choose names that differ.")
    return renamed


def _match(pattern: str, key: str) -> str | None:
    """The text that the ``*`` of a pattern stands for in a key, None where it does not match.

    "layer/*/bias" matches "layer/3/bias" with "3". A pattern without ``*`` matches itself alone, with "".
    """
    head, star, tail = pattern.partition("*")
    if not star:
        return "" if key == pattern else None
    fits = len(key) >= len(head) + len(tail) and key.startswith(head) and key.endswith(tail)
    return key[len(head) : len(key) - len(tail)] if fits else None


def _cast(
    source: Source, stored: EntryTable, globs: Mapping[str, str], encodings: Mapping[str, str]
) -> tuple[EntryTable, Source]:
    """The entries with the dtypes that they are cast to, and the source that converts them."""
    if not globs:
        return stored, source
    dtypes: dict[str, str] = {}
    for glob, given in globs.items():
        dtype = parse_dtype(given)
        hits = [key for key in stored.slices.tensors.keys if fnmatchcase(key, glob)]
        if not hits:
            raise ArgumentError(f"No tensor matches {glob!r}, so none is cast to {dtype}.")
        for key in filter(encodings.__contains__, hits):
            cause = f"{key!r} consists of blocks of {encodings[key]}: cast to {dtype}, their bytes would mean nothing."
            raise ArgumentError(cause, "Dequantize first: `--dequantize`, in Python `dequantize=True`.")
        dtypes |= dict.fromkeys(hits, dtype)
    return cast_entries(stored, dtypes), CastSource(source, stored)


def _generation(found: Location, reader: Reader, payloads: Source, work: WritePlan) -> str | None:
    """A digest of the source as it is now, the plan and the writer: the same reshard again has the same.

    None where the plan does not say all that is written.
    """
    if not work.may_resume:
        return None
    # The entries as the index gives them: what a cast makes of the same bytes depends on the dtype they are stored in.
    stored = payloads.stored if isinstance(payloads, CastSource) else work.entries
    digest = hashlib.sha256(f"{WRITER} {found.path} {found.format.name} {work.target.format.name}".encode())
    digest.update(repr((work.assignment.num_files, work.metadata)).encode("utf-8", "surrogateescape"))
    files = reader.index.files
    for number in np.unique(stored.file).tolist():  # a file that is not needed may be missing
        name = files[number]
        file = found.storage.open(name)
        try:
            digest.update(f"{name} {file.stamp}".encode("utf-8", "surrogateescape"))
        finally:
            file.close()
    slices = work.assignment.slices
    # Separated by NUL: without it, the keys "ab", "c" and "a", "bc" would give one digest.
    for keys in (slices.tensors.keys, stored.slices.tensors.keys):
        digest.update("\0".join(keys).encode("utf-8", "surrogateescape"))
    for column in (
        *(stored.file, stored.start, stored.checksum, stored.slices.offset, stored.slices.shape),
        *(stored.slices.codes(), stored.slices.nbytes, stored.slices.tensor),
        *(slices.tensors.codes, slices.tensor, slices.offset, slices.shape, slices.nbytes, work.assignment.file),
    ):
        digest.update(np.ascontiguousarray(column, dtype=np.int64).tobytes())
    # 64 bits keep names short, and two writes into one directory do not get the same ones by chance.
    return digest.hexdigest()[:16]
