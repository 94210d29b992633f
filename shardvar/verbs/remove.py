"""Remove: a checkpoint leaves, the index first, and what others need stays.

find    the checkpoint that lies at the path itself: no other folder is searched for one
remove  under its lock: the index in one step, then the files that this leaves unnamed
"""

import os
from contextlib import suppress

from shardvar.errors import AmbiguousPath, CheckpointNotFound, StorageError
from shardvar.formats.table import is_companion, name_of_target
from shardvar.pictures.words import count
from shardvar.verbs.locate import Location, Path, below, exact_path, found_at, look_at, only_one


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
    A process that is killed leaves the whole checkpoint, or files that no index names; the next
    write or removal of the same name removes these. The folder of a checkpoint that is a folder is
    also removed, unless it has other files.

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
    remove_found(find_named(path))


def find_named(path: Path) -> Location:
    """Return the checkpoint that lies at a path itself, for what is removed or replaced.

    ``CheckpointNotFound`` names checkpoints in folders below: the caller decides.
    """
    place = look_at(path)
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


def remove_found(found: Location) -> None:
    """Remove the checkpoint of a location, and its folder if that leaves it empty."""
    name = name_of_target(found.name, found.format.name)
    try:
        remove_at(Location(found.format, found.storage, name))
    except StorageError:
        if found.storage.local_path is None or os.path.isdir(found.storage.local_path):
            raise
        raise CheckpointNotFound(
            f"There is no checkpoint at {found.path}: its folder was removed meanwhile.",
            "There is nothing left to remove.",
        ) from None
    if found.is_folder and found.storage.local_path is not None:
        with suppress(OSError):  # of a folder with other files
            os.rmdir(found.storage.local_path)


def remove_at(target: Location) -> None:
    """Remove a checkpoint by the name under which it is written, and what writers left of it."""
    with target.storage.lock(target.stem):
        target.format.remove(target.storage, target.name)
