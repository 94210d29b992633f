"""The file names of a safetensors checkpoint, and the names that a person may type for one.

    one file    PREFIX.safetensors
    a set       PREFIX-00001-of-00003.safetensors, …, and PREFIX.safetensors.index.json, which lists
                the file of each key
    a variant   the same with PREFIX.VARIANT for PREFIX, whose index may also be
                PREFIX.safetensors.index.VARIANT.json or, as older programs wrote it,
                PREFIX.safetensors.VARIANT.index.json, with files named
                PREFIX-00001-of-00003.VARIANT.safetensors
    shards      shard-00002-PREFIX-00001-of-00003.safetensors: the slices that rank 2, of ranks from
                1 on, had of the tensors of file 1 of 3, as PyTorch's distributed checkpoints write
                them; no index lists them

PREFIX is often ``model`` or ``diffusion_pytorch_model``, VARIANT ``fp16``, and files of a set may
have any other names. A set is named by its index, shards by the first of their files.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from shardvar.formats.files import look_into
from shardvar.formats.sets import is_foreign, read_set_index
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import SNIFF_NBYTES
from shardvar.wire.safetensors_header import header_nbytes

SAFETENSORS_SUFFIX = ".safetensors"
SET_INDEX_SUFFIX = ".safetensors.index.json"

_INDEX = r"(?s)(.*)\.safetensors(\.[^.]+)?\.index(\.[^.]+)?\.json"
_PART = r"(?s)(.*)-(\d{5,})-of-(\d{5,})(\.[^.]+)?\.safetensors"
_SHARD = r"(?s)shard-(\d{5,})-(.*)-(\d{5,})-of-(\d{5,})\.safetensors"
_HUB, _ORIGINAL = ("model", "diffusion_pytorch_model"), "consolidated"
"""The prefixes that from_pretrained of Hugging Face looks for, and Mistral's for the same model."""
_DIGITS = 10
"""Ten digits are more files than can exist; a hostile name must not cost work."""


class ShardName(NamedTuple):
    prefix: str  # of all files
    num_files: int  # of each rank, at most
    rank: int  # from 1 on
    number: int  # of the file among the files of its rank, from 1 on


def set_index_name(prefix: str) -> str:
    return prefix + SET_INDEX_SUFFIX


def is_set_index(name: str) -> bool:
    return re.fullmatch(_INDEX, name) is not None


def index_name_of(name: str) -> str:
    return name if is_set_index(name) else set_index_name(prefix_of(name))


def part_name(prefix: str, number: int, count: int, digits: int = 5) -> str:
    """Return the name of a file of a set; numbers begin at 1."""
    return f"{prefix}-{number:0{digits}}-of-{count:0{digits}}{SAFETENSORS_SUFFIX}"


def new_part_names(prefix: str, count: int, names: Iterable[str]) -> list[str]:
    """Return unused names for a new set: of two sets of one count, one has a digit more."""
    there = set(names)
    for digits in range(5, _DIGITS):
        parts = [part_name(prefix, number + 1, count, digits) for number in range(count)]
        if there.isdisjoint(parts):
            break
    return parts


def split_part_name(name: str) -> tuple[str, int, int] | None:
    """Return prefix, number and count of a file of a set; None if the name is of another form.

    >>> split_part_name("model-00001-of-00003.safetensors"), split_part_name("model-00001-of-00003.fp16.safetensors")
    (('model', 1, 3), ('model.fp16', 1, 3))
    """
    match = re.fullmatch(_PART, name)
    if match is None or split_shard_name(name) or max(len(match[2]), len(match[3])) >= _DIGITS:
        return None
    return match[1] + (match[4] or ""), int(match[2]), int(match[3])


def split_shard_name(name: str) -> ShardName | None:
    """Return the parts of the name of a shard; None if the name is of another form.

    >>> split_shard_name("shard-00002-model-00001-of-00003.safetensors")
    ShardName(prefix='model', num_files=3, rank=2, number=1)
    """
    match = re.fullmatch(_SHARD, name)
    if match is None or max(len(match[1]), len(match[3]), len(match[4])) >= _DIGITS:
        return None
    return ShardName(match[2], int(match[4]), int(match[1]), int(match[3]))


def prefix_of(name: str) -> str:
    """Return the prefix of a checkpoint by any of its names; the prefix of a variant includes the
    variant.

    >>> prefix_of("model.safetensors.index.json"), prefix_of("model-00001-of-00003.safetensors"), prefix_of("model")
    ('model', 'model', 'model')
    >>> prefix_of("model.safetensors.index.fp16.json"), prefix_of("model.fp16-00001-of-00003.safetensors")
    ('model.fp16', 'model.fp16')
    """
    part, index = split_part_name(name), re.fullmatch(_INDEX, name)
    if index:
        return index[1] + (index[2] or "") + (index[3] or "")
    return part[0] if part else name.removesuffix(SAFETENSORS_SUFFIX)


def part_names_of(prefix: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if (part := split_part_name(name)) and part[0] == prefix]


def shard_names_of(name: str, names: Iterable[str]) -> list[str]:
    wanted = split_shard_name(name)
    return sorted(
        each
        for each in names
        if wanted and (found := split_shard_name(each)) and found[:2] == wanted[:2]
    )


def find_safetensors(storage: Storage, name: str) -> list[str]:
    """Return the files, the indexes of sets, and the first files of shards that a name may mean."""
    names = storage.names()
    if not name:
        return _as_on_the_hub(all_checkpoints(storage))
    if name in names:
        # A file of a set means the set, if its index exists; else it is read by itself.
        part = split_part_name(name)
        own = _indexes_of(part[0], names) if part else shard_names_of(name, names)[:1]
        own = [each for each in own if not (part and is_foreign(storage, each))]
        is_named = name.endswith(SAFETENSORS_SUFFIX) or is_set_index(name)
        return own or ([name] if is_named or _begins_with_header(storage, name) else [])
    # The name is not a file's: it is a prefix, or the name under which one file was saved that a
    # policy made a set of.
    prefix = name.removesuffix(SET_INDEX_SUFFIX).removesuffix(SAFETENSORS_SUFFIX)
    # Only files whose names begin with the prefix count, as in ``formats.table``.
    parts = [part for part in part_names_of(prefix, names) if part.startswith(prefix + "-")]
    indexes = [
        index for index in _indexes_of(prefix, names) if parts or index == set_index_name(prefix)
    ]
    single = (
        [name + SAFETENSORS_SUFFIX] if name == prefix and name + SAFETENSORS_SUFFIX in names else []
    )
    return single + indexes or (
        [set_index_name(prefix)] if orphans_of(prefix, [*parts, *indexes]) else []
    )


def orphans_of(prefix: str, names: Iterable[str]) -> list[str]:
    """Return the files of a set whose index is missing; its name stands for them."""
    names = list(names)
    parts = [] if _indexes_of(prefix, names) else part_names_of(prefix, names)
    return [name for name in parts if (part := split_part_name(name)) and part[2] > 1]


def _indexes_of(prefix: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if is_set_index(name) and prefix_of(name) == prefix]


def _as_on_the_hub(found: list[str]) -> list[str]:
    """Return the checkpoints that from_pretrained of Hugging Face would take; else all.
    An index comes first, Mistral's original files last; adapters and variants stay."""
    for prefix in _HUB:
        if set_index_name(prefix) in found:
            return [
                name
                for name in found
                if prefix_of(name).partition(".")[0] == prefix or name.startswith("adapter_")
            ]
    has_model = any(prefix_of(name) in _HUB for name in found)
    return [name for name in found if not (has_model and prefix_of(name) == _ORIGINAL)]


def all_checkpoints(storage: Storage) -> list[str]:
    """Return the checkpoints of a directory: its sets, and files outside of sets."""
    names = storage.names()
    indexes = [name for name in names if is_set_index(name)]
    prefixes = set(map(prefix_of, indexes))
    checkpoints, loose = set(indexes), list[str]()
    shards: dict[tuple[str, int], str] = {}
    for name in names:
        part, shard = split_part_name(name), split_shard_name(name)
        if not name.endswith(SAFETENSORS_SUFFIX) or (part and part[0] in prefixes):
            continue
        if shard:
            shards.setdefault(shard[:2], name)
        elif part and part[2] > 1:
            checkpoints.add(set_index_name(part[0]))
        else:
            loose.append(name)

    # The files of a set may have any names, which only its index tells. It is read if there are
    # such files.
    def files_of(file: ReadableFile) -> set[str]:
        return set(read_set_index(file.read, file.size).weight_map.values())

    # None, so any file, if an index cannot be read.
    named = [look_into(storage, index, files_of, None) for index in indexes] if loose else []
    is_unclear = any(files is None for files in named)
    taken = {name for files in named if files for name in files}
    own = {prefix + SAFETENSORS_SUFFIX for prefix in prefixes}
    loose = [each for each in loose if each not in taken and (each in own or not is_unclear)]
    return sorted({*checkpoints, *loose, *shards.values()})


def _begins_with_header(storage: Storage, name: str) -> bool:
    """Return True if a file of another name, as in caches, begins as a safetensors file."""
    header = look_into(
        storage,
        name,
        lambda file: header_nbytes(file.read(0, min(SNIFF_NBYTES, file.size)), file.size),
        None,
    )
    return header is not None
