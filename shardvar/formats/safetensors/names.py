"""What the files of a safetensors checkpoint are called.

    one file    PREFIX.safetensors
    a set       PREFIX-00001-of-00003.safetensors, …, and PREFIX.safetensors.index.json, which says what lies where

PREFIX is ``model`` or ``diffusion_pytorch_model`` or anything else, and files of a set may in truth have any names. A
set goes by the name of its index.
"""

import re
from collections.abc import Iterable

from shardvar.errors import CheckpointError, StorageError
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import SNIFF_NBYTES
from shardvar.wire.safetensors_header import header_nbytes

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"

_PART = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})\.safetensors", re.DOTALL)


def index_name(prefix: str) -> str:
    """The name of a set's index."""
    return prefix + INDEX_SUFFIX


def part_name(prefix: str, number: int, count: int) -> str:
    """The name of a file of a set; numbers begin at 1.

    >>> part_name("model", 1, 3)
    'model-00001-of-00003.safetensors'
    """
    return f"{prefix}-{number:05}-of-{count:05}{SUFFIX}"


def split_part(name: str) -> tuple[str, int, int] | None:
    """Prefix, number and count of a file of a set, None where the name is not of that kind.

    >>> split_part("model-00001-of-00003.safetensors")
    ('model', 1, 3)
    """
    match = _PART.fullmatch(name)
    # Ten digits are more files than there can be, and no reason to work on millions of them.
    return (match[1], int(match[2]), int(match[3])) if match and max(map(len, match.groups()[1:])) < 10 else None


def prefix_of(name: str) -> str:
    """The prefix of a checkpoint by any of its names.

    >>> prefix_of("model.safetensors.index.json"), prefix_of("model-00001-of-00003.safetensors"), prefix_of("model")
    ('model', 'model', 'model')
    """
    part = split_part(name)
    return part[0] if part else name.removesuffix(INDEX_SUFFIX).removesuffix(SUFFIX)


def parts_of(prefix: str, names: Iterable[str]) -> list[str]:
    """Of these names, those of files of a set with that prefix."""
    return [name for name in names if (part := split_part(name)) and part[0] == prefix]


def find_checkpoints(storage: Storage, name: str) -> list[str]:
    """The files, and the indexes of sets, that a name may mean."""
    names = storage.names()
    if not name:
        return _all_checkpoints(names)
    part = split_part(name)
    if name in names and part and index_name(part[0]) in names:
        return [index_name(part[0])]
    if name in names and (name.endswith((SUFFIX, INDEX_SUFFIX)) or _has_header(storage, name)):
        return [name]
    prefix = name.removesuffix(INDEX_SUFFIX).removesuffix(SUFFIX)
    others = [index_name(prefix)] if name != prefix else [name + SUFFIX, index_name(name)]
    found = [other for other in others if other in names]
    return found or ([index_name(prefix)] if orphans_of(prefix, names) else [])


def orphans_of(prefix: str, names: Iterable[str]) -> list[str]:
    """Files of a set whose index is gone; they go by its name, so that opening them can say what is missing.

    >>> orphans_of("model", ["model-00001-of-00002.safetensors", "model-00001-of-00001.safetensors"])
    ['model-00001-of-00002.safetensors']
    """
    names = list(names)
    has_index = index_name(prefix) in names
    return [] if has_index else [name for name in parts_of(prefix, names) if (part := split_part(name)) and part[2] > 1]


def _all_checkpoints(names: list[str]) -> list[str]:
    """An index speaks for its directory: files beside it are no checkpoints, but for one of the same prefix."""
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    files = [name for name in names if name.endswith(SUFFIX)]
    if indexes:
        return sorted([*indexes, *({prefix_of(index) + SUFFIX for index in indexes} & set(files))])
    return sorted(
        {index_name(prefix_of(name)) if name in orphans_of(prefix_of(name), [name]) else name for name in files}
    )


def _has_header(storage: Storage, name: str) -> bool:
    """Whether a file of another name, such as a cache gives it, begins as a safetensors file does."""
    try:
        file = storage.open(name)
        header_nbytes(file.read(0, min(SNIFF_NBYTES, file.size)), file.size)
    except (CheckpointError, StorageError):
        return False
    return True
