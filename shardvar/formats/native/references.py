"""Data files that several checkpoints of a directory need: found, kept, and removed by the last.

An index may name data files of other checkpoints in its directory. A reference always names the
file that holds the bytes, so no reader follows a chain. No count is kept: the indexes are the only
truth, so that a checkpoint may be copied or renamed by hand.

    save      1. mark ``PREFIX.svneeds-TOKEN``: the files that the new index may name
              2. look again: the base's index and the files must be as they were read
              3. write, and put the index in place; then remove the mark
    removal   1. mark ``PREFIX.svgone-TOKEN``: the files of others that the index names, and the
                 checkpoint's own
              2. take the index away (an overwrite: replace it)
              3. ask all other indexes and marks of running saves, and remove the files that none
                 of them needs; then remove the mark

A save and a removal of its base may run at the same time. The save looks for the base after it has
made its mark, and the removal looks for marks after it has taken the base away. So at least one of
them sees the other: the save fails, or the removal keeps the files.

A mark of a killed save counts until its lock is free, or, in a bucket, which has no locks, until its
checkpoint is saved again or removed. A mark of a killed removal is finished by the next save or
removal in the directory; until then no new file gets a name that is in it. An index or a mark of a
save that cannot be read (cut, changed, empty, of a later version, or a folder of its name) may need
any file, so all stay, and a mark lists them for the next removal.

To add a step, ask what a kill before and after it leaves, and what another process sees then.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from shardvar.errors import (
    CheckpointError,
    MissingFile,
    ServerError,
    StorageError,
    UnsupportedError,
    log_warning,
    prefix_errors,
    replaced_error,
)
from shardvar.formats.files import ATTEMPTS, write_file
from shardvar.formats.native.index import Overview
from shardvar.formats.native.names import (
    aside_name,
    find_native,
    leftovers,
    mark_name,
    marks,
    native_index_name,
    owner_of,
)
from shardvar.limits import MAX_BLOCK_NBYTES
from shardvar.pictures.words import named
from shardvar.planning.index import References
from shardvar.records import frozen
from shardvar.storage.concurrency import as_answered
from shardvar.storage.protocol import Storage
from shardvar.wire.block_file import open_block_file
from shardvar.wire.crc import CRC32C
from shardvar.wire.damage import invalid
from shardvar.wire.strict_json import parse_json


@frozen
class Needs:
    files: Mapping[str, frozenset[str]]
    """The files by the prefix of the checkpoint or save that needs them."""
    unread: Sequence[str] = ()
    """The indexes and marks that cannot be read, and so may need any file."""

    def users(self, name: str) -> list[str]:
        return sorted(prefix for prefix, files in self.files.items() if name in files)


def read_overview(storage: Storage, prefix: str) -> Overview:
    """Return the metadata of the index in place; only its end is read."""
    file = storage.open(native_index_name(prefix))
    try:
        with prefix_errors(file.name):
            return Overview.decode(open_block_file(file.read, file.size).metadata)
    finally:
        file.close()


def names_in_place(storage: Storage, prefix: str) -> list[str]:
    """Return the data files that the index in place names; none without a readable one."""
    try:
        return read_overview(storage, prefix).names(prefix)
    except (CheckpointError, UnsupportedError):
        return []


def names_of_others(storage: Storage, prefix: str) -> list[str]:
    # In most directories there is nothing to refer to, and the index is not read.
    there = storage.names()
    if native_index_name(prefix) not in there or all(
        owner_of(name) in (None, prefix) for name in there
    ):
        return []
    return [name for name in names_in_place(storage, prefix) if owner_of(name) != prefix]


def find_needs(storage: Storage, prefix: str, *, of_saves: bool = True) -> Needs:
    """Return the files that others need at one moment; with ``of_saves``, also for running saves."""
    for _ in range(ATTEMPTS):
        fresh = storage.refreshed()
        before = _state(fresh, prefix, of_saves=of_saves)
        if not before:
            return Needs({})
        try:
            needs = _read_needs(fresh, before)
        except MissingFile:
            continue
        if _state(storage.refreshed(), prefix, of_saves=of_saves) == before:
            return needs
    return Needs({}, [storage.path])


def without_needed(storage: Storage, left: Sequence[str]) -> list[str]:
    """Return leftover files without data files that checkpoints may refer to."""
    if not any(map(owner_of, left)):
        return [*left]
    needs = find_needs(storage, "", of_saves=False)
    return [name for name in left if not (owner_of(name) and (needs.unread or needs.users(name)))]


def check_in_place(storage: Storage, references: References) -> None:
    """Raise ``CheckpointError`` unless the files that are referred to are as they were read."""
    fresh = storage.refreshed()
    status = fresh.status(references.index)
    if status is None or status.stamp != references.stamp:
        raise replaced_error(references.index)
    for name, nbytes in zip(references.files, references.nbytes.tolist(), strict=True):
        status = fresh.status(name)
        if status is None or status.nbytes != nbytes:
            cause = f"{name}, to which the new checkpoint refers, is missing or has another size."
            raise MissingFile(cause, "Save without a base.").in_file(name)


def write_mark(storage: Storage, name: str, files: Iterable[str]) -> None:
    """Make a mark with the names of files; it is stored when this returns."""
    storage.announce([name])
    write_file(storage, name, json.dumps(_guarded(sorted(files))).encode())
    storage.finish(name)
    storage.sync()


def _guarded(files: list[str]) -> list[str]:
    """Return the names in a mark, and their checksum: a changed name may be another file's."""
    return [*files, f"crc32c:{CRC32C.compute(json.dumps(files).encode()):08x}"]


def release(
    storage: Storage,
    prefix: str,
    named_files: Collection[str],
    freed: Iterable[str] = (),
    current: str = "",
) -> tuple[list[str], list[str]]:
    """Return the files, and then the marks, that can be removed once the index is in place.
    ``freed`` are files of others that it named before, ``current`` is the mark of this save."""
    names = storage.names()
    left = leftovers(names, prefix, named_files)
    gone = {
        mark: owner
        for mark, owner in marks(names, "gone")
        if owner == prefix or storage.local_path is None or not _is_running(storage, owner)
    }
    # A dead save may have been the last to need a file.
    dead = [
        mark
        for mark, owner in marks(names, "needs")
        if mark != current and (owner == prefix or not _is_running(storage, owner))
    ]
    listed = {mark: freed_of(storage, mark) for mark in (*gone, *dead)}
    # Candidates: data files that no index may name any more.
    wanted = {name for name in left if owner_of(name) == prefix}
    wanted |= {name for files in (freed, *listed.values()) for name in files}
    wanted = {name for name in wanted.intersection(names) if owner_of(name)} - {*named_files}
    needs = find_needs(storage, prefix) if wanted else Needs({})
    if needs.unread:
        cause = (
            f"{storage.path}: Files of removed checkpoints stay, since other checkpoints that "
            f"cannot be read may need them: {named([*needs.unread])}."
        )
        log_warning(f"{cause} Remove or repair these.")
        with suppress(StorageError):  # so that the next removal in the directory looks again
            write_mark(storage, mark_name(prefix, "gone", "kept"), wanted)
        wanted = set()
    # A mark is done once its own checkpoint names none of its files: the others have theirs.
    done = [
        mark
        for mark, owner in gone.items()
        if not needs.unread
        and (owner == prefix or needs.files.get(owner, frozenset()).isdisjoint(listed[mark]))
    ]
    done += [] if needs.unread else dead
    needed = frozenset[str]().union(*needs.files.values())
    others = [name for name in left if owner_of(name) != prefix and name not in listed]
    others += {aside_name(gone[mark], "removed") for mark in done if mark in gone}.intersection(
        {*names} - {*left}
    )
    return [*sorted(wanted - needed), *others], done


def release_only(storage: Storage, files: Iterable[str]) -> list[str]:
    """Return the data files among some that no checkpoint and no running save needs."""
    there = {*files}.intersection(storage.refreshed().names())
    needs = find_needs(storage, "") if there else Needs({})
    return [] if needs.unread else sorted(name for name in there if not needs.users(name))


def freed_of(storage: Storage, mark: str) -> list[str]:
    """Return the files of a removal's mark; none if it is gone, or was not finished."""
    try:
        return _read_mark(storage, mark)
    except CheckpointError:
        return []


def _present(storage: Storage) -> list[str]:
    """Return all names of a directory: a folder may have taken the place of a file."""
    return [*storage.names(), *storage.folders()]


def _state(storage: Storage, prefix: str, *, of_saves: bool) -> dict[str, str]:
    """Return the stamps of the indexes of others, and of the marks of their saves."""
    names = _present(storage)
    indexes = [native_index_name(each) for each in find_native(names, "") if each != prefix]
    of_others = [mark for mark, owner in marks(names, "needs") if of_saves and owner != prefix]
    statuses = {name: storage.status(name) for name in [*indexes, *of_others]}
    return {name: "" if status is None else status.stamp for name, status in statuses.items()}


_named: dict[tuple[str, str, str], frozenset[str]] = {}
"""The data files that indexes of buckets name, by place, index and stamp: a job that removes a step
after each save reads only the new index. Of local files, reading costs less than being sure."""
_MOST_NAMED = 1000


def _named_files(storage: Storage, name: str, stamp: str) -> frozenset[str]:
    prefix = find_native([name], "")[0]
    known = (storage.path, name, stamp)
    files = _named.get(known)
    if files is None:
        files = frozenset(read_overview(storage, prefix).names(prefix))
        if storage.local_path is None and stamp:
            if len(_named) >= _MOST_NAMED:
                _named.clear()
            _named[known] = files
    return files


def _read_needs(storage: Storage, state: Mapping[str, str]) -> Needs:
    files: dict[str, frozenset[str]] = {}
    unread: list[str] = []
    prefixes = dict(marks(state, "needs"))

    def read(name: str) -> tuple[str, Iterable[str] | None]:
        try:
            if name in prefixes:
                is_held = _is_running(storage, prefixes[name])
                return name, _read_mark(storage, name) if is_held else ()
            return name, _named_files(storage, name, state[name])
        except ServerError:
            raise
        except (CheckpointError, UnsupportedError, StorageError) as error:
            if isinstance(error, MissingFile) and name not in _present(storage.refreshed()):
                raise
            return name, None

    for name, needed in as_answered(read, list(state), storage.traits, lambda _: 0):
        prefix = prefixes.get(name) or find_native([name], "")[0]
        if needed is None:
            unread.append(name)
        else:
            files[prefix] = files.get(prefix, frozenset()).union(needed)
    return Needs(files, sorted(unread))


def _is_running(storage: Storage, prefix: str) -> bool:
    """Return True unless the save that made a mark is known to have ended."""
    if storage.local_path is None:
        return True
    try:
        with storage.lock(prefix):
            return False
    except StorageError:  # also of a lock that cannot be asked
        return True


def _read_mark(storage: Storage, name: str) -> list[str]:
    file = storage.open(name)
    try:
        content = parse_json(file.read(0, min(file.size, MAX_BLOCK_NBYTES)), 1)
    finally:
        file.close()
    texts = content if isinstance(content, list) else [0]
    files = [each for each in texts if type(each) is str and owner_of(each)]
    if texts not in (files, _guarded(files)):  # the first is a mark of an earlier release
        raise invalid(f"{name} is not a list of data files.")
    return files
