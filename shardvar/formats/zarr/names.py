"""The names of files by which folders of Zarr and Orbax are known.

Zarr    zarr.json of version 3; .zgroup, .zarray or .zmetadata of version 2
Orbax   _METADATA, the index; manifest.ocdbt, a database; _CHECKPOINT_METADATA, which a step of a
        manager has too
a step  STEP/_CHECKPOINT_METADATA, and a folder an item: STEP/default/_METADATA
"""

import re
from collections.abc import Iterable, Sequence

from shardvar.errors import MissingFile, UnsupportedError
from shardvar.formats.unfinished import JOURNAL_ENDING
from shardvar.storage.protocol import Storage

GROUPS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")
"""The files that make a folder one of Zarr, version 3 first, as zarr-python prefers them."""
TREE, DATABASE, STEP = "_METADATA", "manifest.ocdbt", "_CHECKPOINT_METADATA"
MARKER = "commit_success.txt"
"""The file that Orbax writes last, to mark a complete checkpoint."""
STRINGS = "_strings.json"
"""The leaves that are strings, by key."""
DATABASE_FILE = re.compile(
    r"(ocdbt\.process_\d+/)?(manifest\.ocdbt|d/[0-9a-f]{32})|array_metadatas/process_\d+"
)
"""The paths of the files of a database, and of what Orbax says of its arrays."""
_CHUNK_NAME = r"c(?:[./]\d+)*|\d+(?:[./]\d+)*"
CHUNK = re.compile(rf"(.+?)/({_CHUNK_NAME})")
"""The path of a chunk: the folder of its array, and its name."""
UNFINISHED = ".orbax-checkpoint-tmp"
"""Part of the name of a folder that Orbax has not committed."""


def find_group(names: list[str], name: str) -> list[str]:
    """Return the description of the group or array that a name may mean in a folder with the files
    ``names``.

    >>> find_group([".zattrs", ".zgroup"], ""), find_group(["zarr.json"], "w")
    (['.zgroup'], [])
    """
    found = [each for each in GROUPS if each in names]
    # A folder that a writer has not finished is found, so that opening it says so, and not as the
    # arrays in it.
    found = found or [GROUPS[0]] * is_interrupted(names, GROUPS[0])
    return found[:1] if found and name in ("", *found) else []


def find_orbax(storage: Storage, name: str) -> list[str]:
    """Return the indexes of the checkpoints that a name may mean: the index of the folder, or of a
    step's items."""
    names = storage.names()
    own = [each for each in (TREE, DATABASE, STEP) if each in names] or [TREE] * is_interrupted(
        names, TREE
    )
    if not own or name not in ("", MARKER, *own):
        return []
    if own == [STEP]:
        items = [
            folder
            for folder in storage.folders()
            if find_orbax(storage.folder(folder), "") == [TREE]
        ]
        return [f"{item}/{TREE}" for item in items] or [TREE]
    return [TREE]


_TOKEN = r"[A-Za-z0-9]+\.tmp"


def is_interrupted(names: Iterable[str], index: str) -> bool:
    """Return True if an index stands aside.

    >>> is_interrupted(["zarr.json.a1.tmp"], "zarr.json"), is_interrupted(["zarr.json"], "zarr.json")
    (True, False)
    """
    return any(re.fullmatch(rf"{re.escape(index)}\.{_TOKEN}", name) for name in names)


def asides_of(names: Iterable[str], index: str) -> list[str]:
    """Return the temporary files of writers, and what may be next to them."""
    return [
        name
        for name in names
        if re.fullmatch(rf"(chunk-\d+|{re.escape(index)})\.{_TOKEN}{JOURNAL_ENDING}", name)
    ]


def arrays_of(path: str) -> list[str]:
    """Return the folders of the arrays that a path may be a chunk of.

    >>> arrays_of("a/c/0/1"), arrays_of("a/notes.txt")
    (['a/c/0', 'a/c', 'a'], [])
    """
    found, array = [], path
    while "/" in array:
        array = array.rpartition("/")[0]
        if re.fullmatch(_CHUNK_NAME, path[len(array) + 1 :]):
            found.append(array)
    return found


def check_finished(storage: Storage, index: str) -> None:
    """Raise ``MissingFile`` if the index of a folder stands aside, and is not in place."""
    names = storage.names()
    if index not in names and is_interrupted(names, index):
        cause = (
            f"{storage.path}: {index} is missing, since a save was interrupted while it put files "
            "in place."
        )
        raise MissingFile(
            cause, "Save it again with force=True (--force), or use another checkpoint."
        )


_MAX_STEP_NBYTES = 255
"""The longest name of a folder that the usual file systems take."""


def check_paths(keys: Sequence[str], form: str) -> None:
    """Raise ``UnsupportedError`` unless each key is the path of a folder for an array of the format
    ``form``."""
    for key in keys:
        for step in key.split("/"):
            if any("\ud800" <= character <= "\udfff" for character in step):
                cause = (
                    f"The format {form} cannot hold the key {key!r}: {step!r} is not UTF-8, which "
                    "its JSON has."
                )
                raise UnsupportedError(cause, "Rename the tensor (--rename).")
            # Version 3 keeps names that begin with "__" for itself.
            if (
                step in ("", ".", "..", "zarr.json")
                or step.startswith("__")
                or {*step} & {"\0", "\\"}
            ):
                cause = (
                    f"The format {form} cannot hold the key {key!r}: {step!r} cannot be the name "
                    "of a folder of it."
                )
                raise UnsupportedError(cause, "Rename the tensor (--rename).")
            if len(step.encode("utf-8", "surrogateescape")) > _MAX_STEP_NBYTES:
                cause = (
                    f"The format {form} cannot hold the key {key!r}: {step!r} has more than "
                    f"{_MAX_STEP_NBYTES} bytes."
                )
                raise UnsupportedError(cause, "Rename the tensor (--rename).")
    both = sorted(set(folders_above(keys)).intersection(keys))
    if both:
        cause = (
            f"The format {form} cannot hold {both[0]!r} together with a key below it, "
            f"{both[0] + '/'!r}…"
        )
        raise UnsupportedError(cause, "Rename one of them (--rename).")


def folders_above(keys: Iterable[str]) -> list[str]:
    """Return the folders that the paths lead through, without the last one of each.

    >>> folders_above(["a/b/w", "a/v", "u"])
    ['a', 'a/b']
    """
    found: set[str] = set()
    for path in keys:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return sorted(found)
