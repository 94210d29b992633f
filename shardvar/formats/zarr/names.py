"""The names of files by which folders of Zarr and Orbax are known.

Zarr    zarr.json of version 3; .zgroup, .zarray or .zmetadata of version 2
Orbax   _METADATA, the index; manifest.ocdbt, a database; _CHECKPOINT_METADATA, which a step of a manager has too
a step  STEP/_CHECKPOINT_METADATA, and a folder an item: STEP/default/_METADATA
"""

from shardvar.storage.protocol import Storage

GROUPS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")
"""The files that make a folder one of Zarr, those of version 3 first, as zarr-python prefers them."""
TREE, DATABASE, STEP = "_METADATA", "manifest.ocdbt", "_CHECKPOINT_METADATA"
STRINGS = "_strings.json"
"""The leaves that are strings, by key."""
UNFINISHED = ".orbax-checkpoint-tmp"
"""Part of the name of a folder that Orbax has not committed."""


def find_group(names: list[str], name: str) -> list[str]:
    """Return the description of the group or array that a name may mean in a folder with the files ``names``.

    >>> find_group([".zattrs", ".zgroup"], ""), find_group(["zarr.json"], "w")
    (['.zgroup'], [])
    """
    found = [each for each in GROUPS if each in names]
    return found[:1] if found and name in ("", *found) else []


def find_orbax(storage: Storage, name: str) -> list[str]:
    """Return the indexes of the checkpoints that a name may mean: that of the folder, or those of a step's items."""
    names = storage.names()
    own = [each for each in (TREE, DATABASE, STEP) if each in names]
    if not own or name not in ("", *own):
        return []
    if own == [STEP]:
        items = [folder for folder in storage.folders() if find_orbax(storage.folder(folder), "") == [TREE]]
        return [f"{item}/{TREE}" for item in items] or [TREE]
    return [TREE]
