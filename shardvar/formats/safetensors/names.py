"""The file names of a safetensors checkpoint, and the names that a person may type for one.

    one file    PREFIX.safetensors
    a set       PREFIX-00001-of-00003.safetensors, …, and PREFIX.safetensors.index.json, which lists the file of each
    key

PREFIX is often ``model`` or ``diffusion_pytorch_model``, and files of a set may have any other names. A set is named by
its index.
"""

import re
from collections.abc import Iterable

from shardvar.errors import CheckpointError, StorageError
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import SNIFF_NBYTES
from shardvar.wire.safetensors_header import header_nbytes

SAFETENSORS_SUFFIX = ".safetensors"
SET_INDEX_SUFFIX = ".safetensors.index.json"

_PART = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})\.safetensors", re.DOTALL)


def set_index_name(prefix: str) -> str:
    """Return the name of a set's index."""
    return prefix + SET_INDEX_SUFFIX


def part_name(prefix: str, number: int, count: int) -> str:
    """Return the name of a file of a set; numbers begin at 1.

    >>> part_name("model", 1, 3)
    'model-00001-of-00003.safetensors'
    """
    return f"{prefix}-{number:05}-of-{count:05}{SAFETENSORS_SUFFIX}"


def split_part_name(name: str) -> tuple[str, int, int] | None:
    """Return prefix, number and count of a file of a set; None if the name is of another form.

    >>> split_part_name("model-00001-of-00003.safetensors")
    ('model', 1, 3)
    """
    match = _PART.fullmatch(name)
    # Ten digits are more files than can exist; a hostile name must not make anyone work on billions of them.
    return (match[1], int(match[2]), int(match[3])) if match and max(map(len, match.groups()[1:])) < 10 else None


def prefix_of(name: str) -> str:
    """Return the prefix of a checkpoint by any of its names.

    >>> prefix_of("model.safetensors.index.json"), prefix_of("model-00001-of-00003.safetensors"), prefix_of("model")
    ('model', 'model', 'model')
    """
    part = split_part_name(name)
    return part[0] if part else name.removesuffix(SET_INDEX_SUFFIX).removesuffix(SAFETENSORS_SUFFIX)


def part_names_of(prefix: str, names: Iterable[str]) -> list[str]:
    """Return those of the names that belong to files of a set with that prefix."""
    return [name for name in names if (part := split_part_name(name)) and part[0] == prefix]


def find_safetensors(storage: Storage, name: str) -> list[str]:
    """Return the files, and the indexes of sets, that a name may mean."""
    names = storage.names()
    if not name:
        return _all_checkpoints(names)
    # A file of a set means the set, if its index exists; else it is read alone.
    part = split_part_name(name)
    if name in names and part and set_index_name(part[0]) in names:
        return [set_index_name(part[0])]
    is_named = name.endswith((SAFETENSORS_SUFFIX, SET_INDEX_SUFFIX))
    if name in names and (is_named or _begins_with_header(storage, name)):
        return [name]
    # The name is not a file's: it is a prefix, or the name under which one file was saved that a policy made a set of.
    prefix = name.removesuffix(SET_INDEX_SUFFIX).removesuffix(SAFETENSORS_SUFFIX)
    others = [set_index_name(prefix)] if name != prefix else [name + SAFETENSORS_SUFFIX, set_index_name(name)]
    found = [other for other in others if other in names]
    return found or ([set_index_name(prefix)] if orphans_of(prefix, names) else [])


def orphans_of(prefix: str, names: Iterable[str]) -> list[str]:
    """Return the files of a set whose index is missing; they are located by its name, so that opening them says so.

    >>> orphans_of("model", ["model-00001-of-00002.safetensors", "model-00001-of-00001.safetensors"])
    ['model-00001-of-00002.safetensors']
    """
    names = list(names)
    has_index = set_index_name(prefix) in names
    parts = [] if has_index else part_names_of(prefix, names)
    return [name for name in parts if (part := split_part_name(name)) and part[2] > 1]


def _all_checkpoints(names: list[str]) -> list[str]:
    """Return the checkpoints of a directory.

    An index speaks for its directory: the files beside it belong to it, apart from one file of the same prefix.
    """
    indexes = [name for name in names if name.endswith(SET_INDEX_SUFFIX)]
    files = [name for name in names if name.endswith(SAFETENSORS_SUFFIX)]
    if indexes:
        return sorted([*indexes, *({prefix_of(index) + SAFETENSORS_SUFFIX for index in indexes} & set(files))])
    return sorted(
        {set_index_name(prefix_of(name)) if name in orphans_of(prefix_of(name), [name]) else name for name in files}
    )


def _begins_with_header(storage: Storage, name: str) -> bool:
    """Return True if a file of another name, such as caches use, begins as a safetensors file does."""
    try:
        file = storage.open(name)
        header_nbytes(file.read(0, min(SNIFF_NBYTES, file.size)), file.size)
    except (CheckpointError, StorageError):
        return False
    return True
