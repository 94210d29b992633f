"""Remove: a checkpoint leaves, the index first, and what others need stays.

find    the one checkpoint that the path means
remove  under its lock: the index in one step, then the files that this leaves unnamed
"""

import os
from contextlib import suppress

from shardvar.formats.table import name_of_target
from shardvar.verbs.locate import Location, Path, find_checkpoint


def remove(path: Path) -> None:
    """Remove a checkpoint, and nothing of another one.

    The index goes first and in one step, so that a reader finds all of the checkpoint or none.

    Parameters
    ----------
    path : path_like
        The checkpoint: a prefix, one of its files, a folder, or a URL.

    Raises
    ------
    CheckpointNotFound
        If there is no checkpoint at ``path``.
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
    found = find_checkpoint(path)
    remove_at(Location(found.format, found.storage, name_of_target(found.name, found.format.name)))
    if found.is_folder and found.storage.local_path is not None:
        with suppress(OSError):  # of a folder with other files
            os.rmdir(found.storage.local_path)


def remove_at(target: Location) -> None:
    """Remove a checkpoint by the name under which it is written, and what writers left of it."""
    with target.storage.lock(target.stem):
        target.format.remove(target.storage, target.name)
