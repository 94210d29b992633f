"""Remove: a checkpoint leaves, the index first, and what others need stays.

find    the checkpoint that lies at the path itself: no other folder is searched for one
remove  under its lock: the index in one step, then the files that this leaves unnamed
finish  if it has no index any more: what a removal that was killed has left
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress

from shardvar.errors import AmbiguousPath, CheckpointNotFound, LockHeld, StorageError
from shardvar.formats.table import (
    format_named,
    format_of_name,
    is_companion,
    name_of_target,
    names_of_target,
    stem_of_name,
)
from shardvar.formats.unfinished import are_of_removal, files_left, final_name
from shardvar.pictures.words import count
from shardvar.storage.concurrency import do_all
from shardvar.storage.exchange import remove_new
from shardvar.storage.protocol import Storage
from shardvar.verbs.locate import (
    IN_FOLDER,
    Location,
    Path,
    SplitPath,
    below,
    exact_path,
    found_at,
    look_at,
    only_one,
)


def remove(path: Path) -> None:
    """Remove a checkpoint, and nothing of another one.

    The index goes first and in one step, so that a reader finds all of the checkpoint or none.

    Parameters
    ----------
    path : path_like
        The checkpoint: a prefix, one of its files, the folder in which it lies, or a URL. Unlike
        ``load``, folders of that folder are not searched for one.

    Raises
    ------
    CheckpointNotFound
        If there is no checkpoint at ``path`` itself; checkpoints in folders below are named.
    AmbiguousPath
        If ``path`` matches several checkpoints.
    UnsupportedError
        If shardvar does not write the format, and so does not know which files belong to it.
    StorageError
        If the file system refuses, or a writer holds the checkpoint (``LockHeld``).

    Notes
    -----
    A process that is killed leaves the whole checkpoint, or files that no index names. Remove it
    again, which finishes the removal, as does the next write of the same name. The folder of a
    checkpoint that is a folder is also removed, unless it has other files.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> folder = tempfile.mkdtemp()
    >>> path = os.path.join(folder, "step-5")
    >>> report = sv.save(path, {"step": np.array(5)})
    >>> sv.remove(path)
    >>> os.listdir(folder)
    []
    """
    place = look_at(path)
    try:
        found = find_named(place)
    except CheckpointNotFound:
        # Finish a removal that was killed, unless a writer is at work.
        storage, stem = place.storage, stem_of_name(place.name, format_of_name(place.name) or "")
        places = [(storage, stem), (storage.folder(stem), "")] if stem else [(storage, "")]
        left = [
            name
            for folder, prefix in places
            for name in files_left(folder.names(), prefix)
            # In a folder, other names are not what was named.
            if prefix or final_name(name) in _indexes_of_folders()
        ]
        if not are_of_removal(left):
            raise
        with suppress(LockHeld):
            for each in places:
                _remove_left(*each)
            return
        raise
    remove_found(found, is_in_folder=not place.name)


def find_named(path: Path | SplitPath) -> Location:
    """``CheckpointNotFound`` names checkpoints in folders below: the caller decides."""
    place = path if isinstance(path, SplitPath) else look_at(path)
    found = found_at(place.storage, place.name)
    # The path of a folder means a companion only if nothing else is there, below either.
    here = [
        each
        for each in found
        if each.storage == place.storage and (place.name or not is_companion(each.name))
    ]
    if here:
        return only_one(place, here)
    if not place.name:
        with suppress(AmbiguousPath):  # too many folders to search
            found = found or below(place.storage)
    if found:
        ends = " and ".join(exact_path(each) for each in [found[0], *found[1:][-1:]])
        raise CheckpointNotFound(
            f"There is no checkpoint at {place.path} itself. Of the {count(len(found), 'checkpoint')} "
            f"in it, none is taken: {ends}.",
            "Give the path of the checkpoint that is meant.",
        )
    return only_one(place, found)


def remove_found(found: Location, *, is_in_folder: bool = True) -> None:
    """Remove the checkpoint of a location, and its folder if that leaves it empty."""
    name = name_of_target(found.name, found.format.name)
    try:
        remove_at(Location(found.format, found.storage, name))
    except StorageError:
        if found.storage.local_path is None or os.path.isdir(found.storage.local_path):
            raise
        raise CheckpointNotFound(
            f"There is no checkpoint at {found.path}: its folder was removed since.",
            "There is nothing left to remove.",
        ) from None
    is_in_folder = is_in_folder and found.stem == IN_FOLDER
    if (found.is_folder or is_in_folder) and found.storage.local_path is not None:
        with suppress(OSError):  # of a folder with other files
            os.rmdir(found.storage.local_path)


def remove_at(target: Location) -> None:
    with target.storage.lock(target.stem):
        target.format.remove(target.storage, target.name)


def remove_leftovers(storage: Storage, stem: str) -> None:
    """Of a checkpoint without an index; ``LockHeld`` if a writer is at work."""
    _remove_left(storage, stem)
    if stem in storage.folders():
        _remove_left(storage.folder(stem), "")
    if storage.local_path is not None:
        remove_new(os.path.join(storage.local_path, stem))


def _remove_left(storage: Storage, prefix: str) -> None:
    for target in _targets_left(storage, prefix):
        # A file may belong to a writer of another format, who holds the lock of another index.
        others = _indexes_of_folders() - {target.name} if target.is_folder else set()
        with ExitStack() as held:
            for index in others if storage.local_path else ():
                held.enter_context(storage.lock(index))
            if {f".{index}.claim" for index in others}.isdisjoint(storage.names()):
                remove_at(target)
    names = storage.names()
    if prefix:
        with storage.lock(prefix):
            left = [name for name in files_left(names, prefix) if ".sv" not in name]
            if left and storage.local_path is None:
                storage.claim(removes=True)
            # The claim is this one's now.
            do_all(storage.remove, [n for n in left if not n.endswith(".claim")], storage.traits)
    elif storage.local_path is not None:
        for lock in lock_files(storage, _indexes_of_folders()):
            with storage.lock(lock[1:-5]):
                pass  # the file of a lock that is free goes with this one
        with suppress(OSError):  # of a folder with other files
            os.rmdir(storage.local_path)


def lock_files(storage: Storage, stems: Iterable[str]) -> list[str]:
    """Empty files on a disk; files of other programs are not."""
    names = [f".{stem}.lock" for stem in stems]
    return [name for name in names if (at := storage.status(name)) and not at.nbytes]


def _indexes_of_folders() -> set[str]:
    return {format_named(form).capabilities.folder_index for form in _OF_FOLDERS}


def _targets_left(storage: Storage, prefix: str) -> Iterator[Location]:
    """Yield the checkpoints without an index that have left files, as their formats name them."""
    left = files_left(storage.names(), prefix)
    present, finals = {*storage.names(), *storage.folders()}, {*map(final_name, left)}
    native = {name.removeprefix(".").partition(".sv")[0] for name in left if ".sv" in name}
    for stem in sorted(native):
        if f"{stem}.svindex" not in present:
            yield Location(format_named("shardvar"), storage, stem)
    for form in map(format_named, _OF_PREFIXES if prefix else _OF_FOLDERS):
        indexes = [form.capabilities.folder_index]
        indexes = names_of_target(prefix, form.name)[1:] if prefix else indexes
        is_left = not finals.isdisjoint(indexes) or any(
            not prefix and _OF_FOLDERS[form.name] in name for name in finals
        )
        if is_left and present.isdisjoint(indexes):
            yield Location(form, storage, prefix or indexes[0])


_OF_PREFIXES = "tensorflow", "safetensors"
"""Formats of several files of a prefix, which an index that stands aside tells from a user's."""
_OF_FOLDERS = {"torch": ".distcp", "zarr": "chunk-", "orbax": "chunk-"}
"""Formats of folders, each with a part of the names of its writers' files."""
