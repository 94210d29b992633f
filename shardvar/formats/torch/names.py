"""The file names of torch's checkpoints, and the names that a person may type for one.

    a distributed checkpoint   a folder with .metadata, and __0_0.distcp, __1_0.distcp, … or files
                               of other names
    of single ranks            the same with __0.metadata, __1.metadata, … instead: nothing joins
                               them
    a file of torch.save       model.pt, model.pth, model.bin, model.ckpt, or any other name
    a set of such files        pytorch_model.bin.index.json, and pytorch_model-00001-of-00002.bin,
                               …; a variant of it is pytorch_model.bin.index.fp16.json, and
                               pytorch_model.fp16-00001-of-00002.bin, …
    files of single ranks      model_world_size_4_rank_0.pt, …: together they are the checkpoint
                               model_world_size_4
    files of DeepSpeed's ZeRO  zero_pp_rank_0_mp_rank_00_optim_states.pt, …: together they are the
                               checkpoint zero_pp_rank
    Universal Checkpoints      a folder zero with a folder for each parameter, next to
                               mp_rank_00_model_states.pt
    of torch_checkpointing     metadata.pkl, and model_0.pt, model_1.pt, …
    Meta's files of Llama      consolidated.00.pth, …: together they are the checkpoint consolidated

Other files also end in .bin and .ckpt, so the first bytes of such a file decide.
"""

import re
from collections.abc import Callable, Mapping
from itertools import count, islice
from typing import Any

from shardvar.errors import (
    CheckpointError,
    MissingFile,
    ServerError,
    StorageError,
    UnsupportedError,
)
from shardvar.formats.files import look_into
from shardvar.limits import MAX_METADATA_NBYTES, MAX_NAMED
from shardvar.pictures.words import named
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import malformed, past_limit
from shardvar.wire.kinds import LEGACY_MAGIC
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.zip import LOCAL, local_nbytes

METADATA = ".metadata"
DATA_SUFFIX = ".distcp"
_RANK_METADATA = re.compile(r"__\d+\.metadata")


def find_dcp(names: list[str], name: str) -> list[str]:
    """Return the index of the distributed checkpoint that a name may mean in a folder with the
    files ``names``.

    >>> find_dcp([".metadata", "__0_0.distcp"], "__0_0.distcp"), find_dcp(["model.pt"], "")
    (['.metadata'], [])
    """
    # A folder has one checkpoint. An index that is missing is found by its data files, so that
    # opening it says so.
    has_index = METADATA in names or any(map(_RANK_METADATA.fullmatch, names))
    is_named = name in names and (
        name.endswith(DATA_SUFFIX) or name == METADATA or _RANK_METADATA.fullmatch(name)
    )
    if is_named or (not name and (has_index or any(each.endswith(DATA_SUFFIX) for each in names))):
        return [METADATA]
    return []


def rank_indexes(names: list[str]) -> list[str]:
    """Return the indexes of single ranks."""
    return list(filter(_RANK_METADATA.fullmatch, names))


_RANKS = re.compile(r".*world_size_(\d{1,6})", re.DOTALL)
_MODEL = re.compile(r"model_world_size_")
_RANK = re.compile(r"(.*world_size_\d{1,6})_rank_\d{1,6}\.pt", re.DOTALL)


def rank_file(name: str, rank: int) -> str:
    """Return the name of the file of one rank.

    >>> rank_file("model_world_size_4", 0)
    'model_world_size_4_rank_0.pt'
    """
    return f"{name}_rank_{rank}.pt"


def world_size_of(name: str) -> int | None:
    """Return the number of ranks in the name of a rank's file; None for other names."""
    found = _RANKS.fullmatch(name)
    return int(found[1]) if found else None


def find_ranks(names: list[str], name: str) -> list[str]:
    """Return the checkpoints of single ranks that a name may mean in a folder with the files
    ``names``.

    >>> find_ranks(["model_world_size_2_rank_1.pt", "x.pt"], "")
    ['model_world_size_2']
    """
    found = (
        _RANK.fullmatch(each)
        for each in names
        if name in ("", each) or each.startswith(f"{name}_rank_")
    )
    return list(dict.fromkeys(each[1] for each in found if each))


OF_OPTIMIZER = re.compile(r"((?:bf16_)?zero_pp_rank)_(\d{1,6})_mp_rank_(\d{1,4})_optim_states\.pt")
OF_MODEL = re.compile(r"(?:zero_pp_rank_(\d{1,6})_)?mp_rank_(\d{1,4})_model_states\.pt")
"""The files of one rank of DeepSpeed's ZeRO."""


def find_zero(names: list[str], name: str) -> list[str]:
    """Return the checkpoint of ZeRO that a name may mean in a folder with the files ``names``: the
    beginning of the names of its files.

    >>> find_zero(["zero_pp_rank_0_mp_rank_00_optim_states.pt", "x.pt"], "")
    ['zero_pp_rank']
    """
    found = [each[1] for each in map(OF_OPTIMIZER.fullmatch, names) if each]
    model = OF_MODEL.fullmatch(name)
    is_meant = name in ("", *found) or OF_OPTIMIZER.fullmatch(name) or (model and model[1])
    return [*dict.fromkeys(found)] if is_meant else []


UNIVERSAL = "zero"
"""The folder of a Universal Checkpoint of DeepSpeed that has a folder for each parameter."""


def find_universal(storage: Storage, name: str) -> list[str]:
    """Return the Universal Checkpoint of DeepSpeed that a name may mean in a folder."""
    if name not in ("", UNIVERSAL) or UNIVERSAL not in storage.folders():
        return []
    names = storage.names()
    if names and not any(map(OF_MODEL.fullmatch, names)):
        return []
    zero = storage.folder(UNIVERSAL)
    return [UNIVERSAL] if any(zero.folder(each).names() for each in zero.folders()[:2]) else []


RANKWISE = "metadata.pkl"
"""The index of a checkpoint of torch_checkpointing."""


def read_rankwise(storage: Storage) -> Mapping[Any, Any]:
    """Return the index of a checkpoint of torch_checkpointing."""
    file = storage.open(RANKWISE)
    try:
        if file.size > MAX_METADATA_NBYTES:
            raise past_limit(f"It has {file.size} bytes", "MAX_METADATA_NBYTES")
        root, _ = parse_pickle(file.read(0, file.size))
    finally:
        file.close()
    if type(root) is not dict or type(root.get("metadata")) is not dict:
        raise malformed("It is not an index of torch_checkpointing.")
    return root


def find_rankwise(storage: Storage, name: str) -> list[str]:
    """Return the checkpoint of torch_checkpointing that a name may mean in a folder."""
    if name not in ("", RANKWISE) or RANKWISE not in storage.names():
        return []
    try:
        root = read_rankwise(storage)
    except ServerError:
        raise
    except (CheckpointError, StorageError, UnsupportedError):
        return []
    return [RANKWISE] if "world_size" in root else []


LLAMA, LLAMA_PARAMS = "consolidated", "params.json"
"""The checkpoint of all files of Meta's Llama, and the file with the sizes of the model."""
_OF_LLAMA = re.compile(r"consolidated\.(\d{2,4})\.pth")


def llama_file(rank: int) -> str:
    """Return the name of the file of a rank.

    >>> llama_file(1)
    'consolidated.01.pth'
    """
    return f"{LLAMA}.{rank:02}.pth"


def llama_ranks(names: list[str]) -> list[int]:
    """Return the ranks of Meta's Llama whose files are in a folder."""
    found = (_OF_LLAMA.fullmatch(each) for each in names)
    return sorted(int(each[1]) for each in found if each and llama_file(int(each[1])) == each[0])


def find_llama(names: list[str], name: str) -> list[str]:
    """Return the checkpoint of Meta's Llama that a name may mean in a folder with the files
    ``names``.

    >>> find_llama(["consolidated.00.pth", "consolidated.01.pth"], "")
    ['consolidated']

    One file without ``params.json`` may be of any model.

    >>> find_llama(["consolidated.00.pth"], ""), find_llama(["consolidated.00.pth", "params.json"], "")
    ([], ['consolidated'])
    """
    ranks = llama_ranks(names) if name in ("", LLAMA) else []
    return [LLAMA] if any(ranks) or (ranks and LLAMA_PARAMS in names) else []


def files_of_ranks(
    storage: Storage, file_of: Callable[[int], str], world: int, told_by: str
) -> list[str]:
    """Return the names of the files of all ranks; ``MissingFile`` names the missing ones.

    ``told_by`` says what tells the number of ranks.
    """
    there = set(storage.names())
    # The folder has a bounded number of files, so the search ends, for any number that a file
    # claims.
    missing = (rank for rank in count() if file_of(rank) not in there)
    lost = [file_of(rank) for rank in islice(missing, MAX_NAMED + 1) if rank < world]
    if lost:
        cause = f"{storage.path}: {named(lost)} is missing, of the {world} ranks that {told_by}."
        raise MissingFile(cause, "Copy the files of all ranks to one folder.")
    return [file_of(rank) for rank in range(world)]


SET_INDEX_SUFFIX = ".bin.index.json"
SAVE_SUFFIXES = (".pt", ".pth")
"""The endings of files that are torch's, with any content."""
_SHARED_SUFFIXES = (".bin", ".ckpt")
SAVED_SUFFIXES = (*SAVE_SUFFIXES, *_SHARED_SUFFIXES)
"""The endings that files of torch.save have."""
_INDEX = re.compile(r"(.*)\.bin\.index(\.[^.]+)?\.json", re.DOTALL)
_PART = re.compile(r"(.*)-\d{5,}-of-\d{5,}\.bin", re.DOTALL)
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PICKLE_RECORD = b"/data.pkl"


def set_of(name: str) -> str | None:
    """Return the prefix of the files of a set by the name of its index; None for other names.

    >>> set_of("pytorch_model.bin.index.json"), set_of("pytorch_model.bin.index.fp16.json"), set_of("model.bin")
    ('pytorch_model', 'pytorch_model.fp16', None)
    """
    index = _INDEX.fullmatch(name)
    return index[1] + (index[2] or "") if index else None


def find_saved(storage: Storage, name: str) -> list[str]:
    """Return the files of torch.save, and the indexes of sets, that a name may mean."""
    names = storage.names()
    indexes = [each for each in names if set_of(each) is not None]
    joined = find_zero(names, name) or find_llama(names, name) or find_universal(storage, name)
    joined = joined or find_rankwise(storage, name)
    if joined:
        return joined
    if not name:
        # An index speaks for its folder: the files next to it belong to it.
        single = (each for each in names if not _RANK.fullmatch(each) and _is_saved(storage, each))
        ranks = find_ranks(names, "")
        # The ranks of a trainer also save their optimizers and states: the model speaks for them.
        return indexes or [
            *(filter(_MODEL.match, ranks) if any(map(_MODEL.match, ranks)) else ranks),
            *single,
        ]
    part = _PART.fullmatch(name)
    own = [each for each in indexes if part and set_of(each) == part[1]]
    if own and name in names:
        return own
    ranks = find_ranks(names, name)
    if ranks:
        return ranks
    if name in names:
        if name in indexes or _is_saved(storage, name):
            return [name]
        # Items of distributed checkpoints are archives too.
        is_other = name.endswith(DATA_SUFFIX)
        return [name] if not is_other and _begins_as_saved(storage, name, (LEGACY_MAGIC,)) else []
    endings = (*SAVED_SUFFIXES, SET_INDEX_SUFFIX)
    return [
        name + each for each in endings if name + each in names and find_saved(storage, name + each)
    ]


def _is_saved(storage: Storage, name: str) -> bool:
    """Return True if a file is torch's by its name, or by its name and its first bytes."""
    return name.endswith(SAVE_SUFFIXES) or (
        name.endswith(_SHARED_SUFFIXES) and _begins_as_saved(storage, name, _PICKLES)
    )


def _begins_as_saved(storage: Storage, name: str, pickles: tuple[bytes, ...]) -> bool:
    """Return True if a file begins as a pickle, or as an archive with a pickle first."""

    def look(file: ReadableFile) -> bool:
        first = file.read(0, min(LOCAL.size, file.size))
        if first.startswith(pickles):
            return True
        local = file.read(0, local_nbytes(first)) if len(first) == LOCAL.size else b""
        # The bytes 26 and 27 of a local header are the length of the name, which follows the 30
        # bytes of the header.
        return local[LOCAL.size :][: int.from_bytes(local[26:28], "little")].endswith(
            _PICKLE_RECORD
        )

    return look_into(storage, name, look, False)
