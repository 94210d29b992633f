"""Saves in parts, which no format joins, and deltas: files that are not a checkpoint by themselves.

Each process of a job wrote what it had, and nothing in a file says that it has a part of a tensor.
So their folder is one location, which says what it is when it is opened, and never several
checkpoints or the steps of a run.

    mp_rank_00_model_states.pt, zero_pp_rank_0_…      DeepSpeed, without the files of its optimizer
    zero/, zero/PARAMETER/, given by themselves       DeepSpeed, a Universal Checkpoint
    mp_rank_00/, mp_rank_01/                          Megatron, in its old form
    common.pt, and nothing with a tensor              Megatron, interrupted: it writes that file first
    metadata.pkl, model_0.pt, model_1.pt              PyTorch's package torch_checkpointing, if files of
                                                      other formats are with them
    consolidated.01.pth, given by itself              Llama, in its original form
    rank0.npz, rank1.npz; shard_0/, shard_1/          any program: names with a word for a process

The path of a rank's file means that file. It can be read, and is never written as if it were the
whole. A format that joins such files comes first, as pt does for ``model_world_size_4_rank_0.pt``. To add
a kind, add it to ``_FILES`` or to ``_kind_of``.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from shardvar.errors import IncompleteCheckpoint, ShardvarError, UnsupportedError
from shardvar.formats.files import read_beginning
from shardvar.formats.protocol import READ_ONLY, Format, Source
from shardvar.formats.published import published_of
from shardvar.pictures.words import message, named
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import DELTA, Index
from shardvar.planning.slices import TensorTable
from shardvar.storage.local import split_place
from shardvar.storage.protocol import Storage
from shardvar.wire.kinds import FileKind
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.strict_json import parse_json

INTERRUPTED = "The save was interrupted: take the step before it, and remove this folder."
"""The remedy for a folder of a save that was cut short."""
_COPY_ALONE = "To read only what one rank holds, copy its file to another name."

_UNIVERSAL = FileKind(
    "the folder zero of a Universal Checkpoint of DeepSpeed, with a folder for each parameter",
    "Give the folder above it, which means the whole checkpoint, or the file of one parameter, "
    "NAME/fp32.pt.",
)
_PARAMETER = FileKind(
    "a parameter of a Universal Checkpoint of DeepSpeed",
    "Give the folder above zero, which means the whole checkpoint, or a file, such as fp32.pt.",
)
_DEEPSPEED = FileKind(
    "a DeepSpeed checkpoint, with files for each rank",
    "Join them with the zero_to_fp32.py that DeepSpeed put next to the folder, or name the file of "
    "one rank to look into it.",
)
_MEGATRON = FileKind(
    "a Megatron checkpoint in its old form, with a folder for each rank",
    "Convert it where Megatron is installed, `tools/checkpoint/convert.py`, or name the file of one "
    "rank to look into it.",
)
_MEGATRON_ZARR = FileKind(
    "a Megatron checkpoint with a Zarr array for each tensor",
    "Convert it where Megatron is installed, to the format torch_dist.",
)
_MEGATRON_CUT = FileKind(
    "a Megatron checkpoint without its tensors: it has only common.pt, which is written first",
    INTERRUPTED,
    True,
)
_RANKWISE = FileKind(
    "a checkpoint of PyTorch's torch_checkpointing, with files for each rank",
    "Give the path of its index, metadata.pkl, which means all ranks.",
)
_LLAMA = FileKind(
    "a model of Llama in its original form, with a file for each rank of tensor parallelism",
    "Give their folder, which means the whole model.",
)
RANKS = FileKind(
    "a save whose parts were written by several processes, with files for each rank",
    "Give the files of all ranks, and how to join them: `shardvar reshard RANK0 RANK1 ... TARGET "
    f"--concat`. {_COPY_ALONE}",
)
"""Files of any program."""

_FILES = (
    (re.compile(r"(\w*zero_pp_rank_\d+_)?mp_rank_\d+(_\d+)?_model_states\.pt|.*_optim_states\.pt"), _DEEPSPEED),
    (re.compile(r"layer_\d+-model_\d+-model_states\.pt"), _DEEPSPEED),
    (re.compile(r"consolidated\.0*[1-9]\d*\.pth"), _LLAMA),
)  # fmt: skip
"""Kinds by the names of files of single ranks."""
_RANK_FOLDER = re.compile(r"mp_rank_\d+(_\d+)*")
_MODELS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".npz", ".npy", ".h5")
_NUMBER = re.compile(r"\d{1,18}")
_WORD = "rank|shard|part|partition|worker|process|proc|device|gpu|host|node|replica|consolidated|mp|tp|pp"
_PART = re.compile(rf"(?<![a-z])(?:{_WORD})[-_.]?(\d{{1,18}})", re.IGNORECASE)
_JOINED = re.compile(r"shard-\d+-.*-of-\d+\.safetensors")
"""The parts that the format safetensors joins."""
COMMON, _RANKWISE_INDEX = "common.pt", "metadata.pkl"
_INDEX_NBYTES, _MAX_DEPTH = 1 << 26, 32
_SHOWN_DIGITS = 12
"""The digits of a digest that tell checkpoints apart for a person."""


def is_part(name: str) -> bool:
    """Return True if a name has the number of a process, and so may belong to a part of a save.

    >>> is_part("mp_rank_01"), is_part("tp-0.safetensors"), is_part("step-1"), is_part("depart_1")
    (True, True, False, False)
    """
    return _PART.search(name) is not None and _JOINED.fullmatch(name) is None


def ranks_of(names: Iterable[str]) -> list[list[str]]:
    """Return the names that differ only in the numbers of processes, group by group; groups of
    rank 0 only are left out.

    >>> ranks_of(["rank_0.npz", "rank_1.npz", "tp0.npz", "host-3.npz", "best.npz"])
    [['rank_0.npz', 'rank_1.npz'], ['host-3.npz']]
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        if is_part(name):
            pattern = _PART.sub(lambda found: found[0][: -len(found[1])] + "\0", name)
            groups.setdefault(pattern, []).append(name)
    return [group for group in groups.values() if len(group) > 1 or not _is_first(group[0])]


def _is_first(name: str) -> bool:
    return not any(int(number) for number in _PART.findall(name))


def may_be_ranks(numbers: Sequence[Sequence[int]]) -> bool:
    """Return True if the numbers in names count from 0 without a gap, as ranks do.

    >>> may_be_ranks([(0,), (1,)]), may_be_ranks([(0, 0), (0, 1), (1, 0), (1, 1)]), may_be_ranks([(1,), (2,)])
    (True, True, False)
    """
    axes = [sorted(set(axis)) for axis in zip(*numbers, strict=True)]
    return {*map(tuple, numbers)} == {*product(*(range(len(axis)) for axis in axes))}


def kind_of_parts(storage: Storage, found: Sequence[str]) -> FileKind | None:
    """Return what a folder is that has a save in parts; None if it is none.

    ``found`` are the checkpoints that formats know in it, by the names that they have there.
    """
    files = storage.names()
    kind = _universal(storage, files)
    if _RANKWISE_INDEX not in found:
        kind = kind or _rankwise(storage, files)
    if kind or (found and not _may_be_parts(files, found)):
        return kind
    named = [kind for pattern, kind in _FILES for each in files if pattern.fullmatch(each)]
    if named and (len(found) > 1 or any(map(ranks_of, [[each] for each in found]))):
        return named[0]
    if [*found] == [COMMON] and not _has_other(files):
        return _MEGATRON_ZARR if _has_arrays(storage) else _MEGATRON_CUT
    if ranks_of(found):
        return RANKS
    groups = [] if found else ranks_of(storage.folders())
    return next((_kind_of_folders(storage, group) for group in groups), None)


def _may_be_parts(files: Sequence[str], found: Sequence[str]) -> bool:
    """Return True if the names of checkpoints need a closer look: of most folders, none does."""
    return COMMON in found or any(map(_NUMBER.search, found)) or any(map(is_part, files))


def _kind_of_folders(storage: Storage, folders: Sequence[str]) -> FileKind | None:
    """Return what a folder is whose subfolders are of single ranks; None if these have no models."""
    if all(map(_RANK_FOLDER.fullmatch, folders)):
        return _MEGATRON
    has_models = [
        any(name.endswith(_MODELS) for name in storage.folder(each).names()) for each in folders[:2]
    ]
    return RANKS if all(has_models) else None


def _universal(storage: Storage, files: Sequence[str]) -> FileKind | None:
    """Return the kind of a part of a Universal Checkpoint: its folder zero, or a parameter's."""
    if "fp32.pt" in files and any(each.startswith("exp_avg") for each in files):
        return _PARAMETER
    *_, name = storage.path.rstrip("/").rpartition("/")
    return _UNIVERSAL if name == "zero" and _has_parameters(storage) else None


def _has_parameters(zero: Storage) -> bool:
    return any("fp32.pt" in zero.folder(each).names() for each in zero.folders()[:2])


def _rankwise(storage: Storage, files: Sequence[str]) -> FileKind | None:
    """Return the kind of a folder of torch_checkpointing; None if one rank wrote all, or without
    its index."""
    if _RANKWISE_INDEX not in files:
        return None
    size = _world_size(storage)
    if size is not None:
        return _RANKWISE if size > 1 else None
    return _RANKWISE if _numbered(files) else None


def _numbered(files: Iterable[str]) -> list[str]:
    """Return the names of models that differ only in their numbers, of the first group that has
    several.

    >>> _numbered(["model_0.pt", "model_1.pt", "config_0.json", "best.pt"])
    ['model_0.pt', 'model_1.pt']
    """
    groups: dict[str, list[str]] = {}
    for name in files:
        if name.endswith(_MODELS) and _NUMBER.search(name):
            groups.setdefault(_NUMBER.sub("\0", name), []).append(name)
    return next((group for group in groups.values() if len(group) > 1), [])


def _world_size(storage: Storage) -> int | None:
    """Return the number of ranks that the index of torch_checkpointing says; None if it is not
    plain data."""
    data = read_beginning(storage, _RANKWISE_INDEX, _INDEX_NBYTES)
    try:
        root, _ = parse_pickle(data)
    except ShardvarError:
        return None
    size = root.get("world_size") if isinstance(root, Mapping) else None
    return size if type(size) is int else None


def _has_arrays(storage: Storage) -> bool:
    return any(".zarray" in storage.folder(each).names() for each in storage.folders()[:2])


def find_part(folder: Storage, name: str) -> tuple[FileKind, list[str]] | None:
    """Return the save that a file is a part of, and the paths of all its parts; None if the file
    is a checkpoint by itself."""
    files = folder.names()
    alike = ranks_of(files) if is_part(name) else []
    group = next((group for group in alike if name in group), [])
    of_index = not group and _rankwise(folder, files)
    if of_index:
        pattern = _NUMBER.sub("\0", name)
        group = [each for each in files if _NUMBER.sub("\0", each) == pattern]
    if group and name.endswith(_MODELS):
        kind = of_index or _named(group)
        return kind, [os.path.join(folder.path, each) for each in group]
    # The folder may be a rank's.
    above, _, own = folder.path.rstrip("/").rpartition("/")
    if not above or not is_part(own):
        return None
    folders = split_place(f"{above}/")[0].folders()
    group = next((group for group in ranks_of(folders) if own in group), [])
    kind = _MEGATRON if _RANK_FOLDER.fullmatch(own) else RANKS
    return (kind, [os.path.join(above, each, name) for each in group]) if group else None


def check_not_a_part(form: Format, folder: Storage, name: str, is_alone: bool) -> None:
    """Raise the error of a source that is a save in parts, or a part that is given by itself."""
    if isinstance(form, PartsFormat):
        form.open(folder, name)
    part = find_part(folder, name) if is_alone else None
    if part is None:
        return
    kind, paths = part
    path = os.path.join(folder.path, name)
    others = [each for each in paths if each != path]
    cause = (
        f"{path} is one part of a larger save: {kind.what}. Its tensors may be parts of the tensors "
        "that were saved."
    )
    is_joined = kind in (_LLAMA, _RANKWISE)
    if others and not is_joined:
        remedy = f"Also give the others, {named(others)}, and --concat."
    else:
        remedy = kind.remedy
    raise UnsupportedError(
        cause, f"{remedy} If it is whole by itself, copy it to another name first."
    )


def _named(group: Sequence[str]) -> FileKind:
    return next((kind for pattern, kind in _FILES if any(map(pattern.fullmatch, group))), RANKS)


def _has_other(files: Iterable[str]) -> bool:
    return any(each.endswith(_MODELS) and each != COMMON for each in files) or ".metadata" in {
        *files
    }


@dataclass(frozen=True, slots=True)
class PartsFormat(Format):
    """A save in parts: it is located, and never opened."""

    kind: FileKind
    """The kind of the save, and a remedy."""
    name: str = "parts"
    """The name for messages; no argument takes it."""

    @property
    def capabilities(self) -> Capabilities:
        """Nothing can be held; the folder itself is the checkpoint."""
        return replace(READ_ONLY, folder_index=self.name)

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the folder, if it has a save in parts."""
        return [] if name or kind_of_parts(storage, []) is None else [self.name]

    def open(self, storage: Storage, name: str) -> Source:
        """Raise the error that says what it is."""
        error = IncompleteCheckpoint if self.kind.is_lost else UnsupportedError
        raise error(f"The folder {storage.path} is {self.kind.what}.", self.kind.remedy)


# Deltas: checkpoints that have only the changes of a model.


def delta_of(
    storage: Storage, form: str, user: Mapping[str, str], tensors: TensorTable
) -> FileKind | None:
    """Return what a checkpoint is that has only the changes of a model; None for a model.

    ``user`` is the metadata, and ``form`` the format: safetensors is the one of all other programs.
    """
    if DELTA in user:
        return own_delta(user)
    found = published_of(storage, user, tensors) if form == "safetensors" else None
    return found.kind() if found else None


def own_delta(user: Mapping[str, str]) -> FileKind:
    """Return the kind of a delta of shardvar, whose metadata have ``DELTA``."""
    named = ""
    with suppress(ShardvarError):
        mark = parse_json(user[DELTA].encode("utf-8", "surrogateescape"), _MAX_DEPTH)
        base, result = (mark.get(each) for each in ("base", "result")) if mark else (None, None)
        if isinstance(base, str) and isinstance(result, str):
            named = f": sha256:{base[:_SHOWN_DIGITS]} to sha256:{result[:_SHOWN_DIGITS]}"
    what = f"a delta, the changes between two checkpoints{named}"
    return FileKind(message(what), "Apply it to its base: `shardvar apply BASE DELTA OUT`.")


def delta_error(path: str, index: Index) -> UnsupportedError:
    """Return the error for a delta of shardvar that is taken for a checkpoint."""
    delta = own_delta(index.metadata.user)
    return UnsupportedError(f"{path} is {delta.what}.", delta.remedy)


def check_no_delta(path: str, storage: Storage, form: str, index: Index) -> None:
    """Raise ``UnsupportedError`` for a checkpoint that has only the changes of a model."""
    if DELTA in index.metadata.user:
        raise delta_error(path, index)
    if form != "safetensors":
        return
    tables = [*index.scan()]
    tensors = tables[0].slices.tensors if tables else TensorTable.of(())
    delta = delta_of(storage, form, index.metadata.user, tensors)
    if delta:
        raise UnsupportedError(f"{storage.path} has {delta.what}.", delta.remedy)
