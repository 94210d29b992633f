"""Saves in parts, which no format joins: files that are not a checkpoint by themselves.

Each process of a job wrote its own, and nothing in a file tells that it has a part of a tensor. So
their folder is one location, whose opening raises its kind, and never several checkpoints or the
steps of a run.

    mp_rank_00_model_states.pt, zero_pp_rank_0_…      DeepSpeed, without the files of its optimizer
    zero/, zero/PARAMETER/, given by themselves       DeepSpeed, a Universal Checkpoint
    mp_rank_00/, mp_rank_01/                          Megatron, in its old form
    common.pt, and nothing with a tensor              Megatron, interrupted: it writes that file first
    metadata.pkl, model_0.pt, model_1.pt              PyTorch's package torch_checkpointing, if files of
                                                      other formats are with them
    consolidated.01.pth, given by itself              Llama, in its original form
    m-1-of-2.npz, in any spelling                     any program: a set, unless its index is there
    rank0.npz, rank1.npz; shard_0/, shard_1/          any program: names with a word for a process,
                                                      whose numbers count

The path of a part means that part. It can be read, and is never written as if it were the whole. A
name with a word and a number tells nothing by itself: run-gpu4 is whole, unless other names count
with it. A format that joins such files comes first, as pt does for
``model_world_size_4_rank_0.pt``. To add a kind, add it to ``_FILES`` or to ``kind_of_parts``.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from shardvar.errors import (
    IncompleteCheckpoint,
    ServerError,
    ShardvarError,
    StorageError,
    UnsupportedError,
    log_warning,
)
from shardvar.formats.files import read_beginning
from shardvar.formats.protocol import READ_ONLY, Format, Source
from shardvar.formats.sets import (
    INDEXED_ENDINGS,
    N_OF_M,
    are_parts,
    is_of_several,
    saves_in_parts,
    split_numbers,
)
from shardvar.formats.table import COMMON, formats_marked
from shardvar.pictures.words import message, named
from shardvar.planning.slices import Capabilities
from shardvar.records import frozen
from shardvar.storage.local import split_place
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import INTERRUPTED, FileKind

_ONE_BY_ONE = (
    "If no tensor is in two of the files, load each, and save them as one: "
    "`sv.save(TARGET, {**sv.load(FILE1), **sv.load(FILE2)})`."
)

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
    "--concat 'GLOB=AXIS'`. To read only one of them, give its path.",
)
"""Files of any program."""

_FILES = (
    (r"(\w*zero_pp_rank_\d+_)?mp_rank_\d+(_\d+)?_model_states\.pt|.*_optim_states\.pt", _DEEPSPEED),
    (r"layer_\d+-model_\d+-model_states\.pt", _DEEPSPEED),
    (r"consolidated\.0*[1-9]\d*\.pth", _LLAMA),
    (r"mp_rank_\d+(_\d+)*/(model_optim_rng|model_rng|distrib_optim)\.pt", _MEGATRON),
)  # fmt: skip
"""Kinds by the names that a program gives to files of single ranks, and to no others."""
_RANK_FOLDER = r"mp_rank_\d+(_\d+)*"
_MODELS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".npz", ".npy", ".h5")
_NUMBER = r"\d{1,18}"
_RANKWISE_INDEX = "metadata.pkl"
_INDEX_NBYTES = 1 << 26
_LEVELS = 3
"""The folders above a checkpoint whose names may be of a rank: RANK/checkpoints/STEP/model.pt."""


def kind_of_parts(storage: Storage, found: Sequence[str]) -> FileKind | None:
    """Return the kind of a folder with a save in parts; ``found`` are the checkpoints in it."""
    files = storage.names()
    kind = None
    if "fp32.pt" in files and any(each.startswith("exp_avg") for each in files):
        kind = _PARAMETER
    elif storage.path.rstrip("/").rpartition("/")[2] == "zero" and _a_folder_has(
        storage, "fp32.pt"
    ):
        kind = _UNIVERSAL
    if _RANKWISE_INDEX not in found:
        kind = kind or _rankwise(storage, files)
    # Of most folders, no name has a number.
    if kind or (
        found
        and COMMON not in found
        and not any(map(partial(re.search, _NUMBER), [*found, *files]))
    ):
        return kind
    known = [kind for each in files if (kind := _known(each))]
    if known and (len(found) > 1 or any(map(_is_known_rank, found))):
        return known[0]
    if (
        [*found] == [COMMON]
        and ".metadata" not in files
        and not any(each.endswith(_MODELS) and each != COMMON for each in files)
    ):
        return _MEGATRON_ZARR if _a_folder_has(storage, ".zarray") else _MEGATRON_CUT
    if saves := saves_in_parts(found):
        return _kind_of_files(saves[-1], files)
    groups = [] if found else saves_in_parts(storage.folders())
    # Subfolders of single ranks, with checkpoints of one name.
    for group in groups:
        if not group[1:]:
            continue
        if all(map(partial(re.fullmatch, _RANK_FOLDER), group)):
            return _MEGATRON
        first, second = ({*storage.folder(each).names()} for each in group[:2])
        return RANKS if any(formats_marked([*first & second])) else None
    return None


def _known(path: str) -> FileKind | None:
    for pattern, kind in _FILES:
        if re.fullmatch(pattern, path):
            return kind
    return None


def _is_known_rank(path: str) -> bool:
    """Return True if a name, which only one program gives, is of another rank than the first."""
    return _known(path) is not None and any(split_numbers(path)[1])


def _kind_of_files(group: Sequence[str], files: Sequence[str]) -> FileKind:
    if not is_of_several(group[0]):
        known = next(filter(None, map(_known, group)), None)
        return known or RANKS._replace(what=f"{RANKS.what}: {named(group)}")
    # The numbers begin at 0 or at 1. As many files may be missing as the name claims.
    frame, numbers = split_numbers(group[0])
    first, last = re.findall(N_OF_M, group[0])[0]
    start = min(split_numbers(each)[1][0] for each in group) > 0
    all_names = (
        frame.replace("\0", f"{n:0{len(first)}}", 1) for n in range(start, int(last) + start)
    )
    missing = [
        *islice((each for each in all_names if each not in files), 3 if len(numbers) == 1 else 0)
    ]
    what = f"a set of {int(last):,} files with {named(group)}"
    remedy = _ONE_BY_ONE if not missing else "Fetch the missing files from the source of the set."
    ending = next((each for each in INDEXED_ENDINGS if group[0].endswith(each)), "")
    index = frame.partition("\0")[0].rstrip("-_. ") + ending + ".index.json"
    if ending and index in files:
        return FileKind(what, f"Give the path of its index, {index}, which means the whole set.")
    if ending:
        remedy = f"Fetch {index} from the source of the set. {remedy}"
        missing.append(index)
    what = message(f"{what}, and without {named(missing) or 'an index'}")
    return FileKind(what, remedy, True)


def _a_folder_has(storage: Storage, name: str) -> bool:
    return any(name in storage.folder(each).names() for each in storage.folders()[:2])


def _rankwise(storage: Storage, files: Sequence[str]) -> FileKind | None:
    """Return the kind of a folder of torch_checkpointing; None if one rank wrote all."""
    if _RANKWISE_INDEX not in files:
        return None
    from shardvar.wire.pickle import parse_pickle  # few folders have that index

    try:
        root, _ = parse_pickle(read_beginning(storage, _RANKWISE_INDEX, _INDEX_NBYTES))
    except ShardvarError:  # not plain data
        root = None
    size = root.get("world_size") if isinstance(root, Mapping) else None
    if type(size) is int:
        return _RANKWISE if size > 1 else None
    # Names of models that differ only in their numbers.
    models = [name for name in files if name.endswith(_MODELS) and re.search(_NUMBER, name)]
    frames = {re.sub(_NUMBER, "\0", name) for name in models}
    return _RANKWISE if len(frames) < len(models) else None


def find_part(form: Format, folder: Storage, name: str) -> tuple[FileKind | None, list[str]]:
    """Return the save that a checkpoint is a part of, if any, and others named like it."""
    files, alike = folder.names(), [name]
    # The index means all ranks.
    kind = _rankwise(folder, files) if name.endswith(_MODELS) else None
    if kind:
        pattern = re.sub(_NUMBER, "\0", name)
        alike = [each for each in files if re.sub(_NUMBER, "\0", each) == pattern]
    elif split_numbers(name)[1]:
        alike = _alike(name, [*files, *form.locate(folder, "")])
        kind = _kind_of_files(alike, files) if are_parts(alike) or _is_known_rank(name) else None
    elif known := _known(name):
        alike = [each for each in files if _known(each) is known]
        kind = known if len(alike) > 1 else None
    others = []
    if kind or alike[1:]:
        others = [os.path.join(folder.path, each) for each in alike if each != name]
    if kind:
        return kind, others
    # A folder above it may be a rank's, if the folder of another rank has the same.
    can = form.capabilities
    last = [] if name in can.folders or name == can.folder_index else [name]
    for above, own, inside in _folders_above(folder):
        if not split_numbers(own)[1]:
            continue
        siblings = [own]
        try:  # it may not be listed
            siblings = [
                each
                for each in _alike(own, above.folders())
                if each == own or _has(form, above, [each, *inside], name)
            ]
        except ServerError:
            raise
        except (StorageError, UnsupportedError):
            pass
        is_known = not inside and _is_known_rank(f"{own}/{name}")
        others += [
            os.path.join(above.path, each, *inside, *last) for each in siblings if each != own
        ]
        if is_known or (len(siblings) > 1 and are_parts(siblings)):
            return (_MEGATRON if re.fullmatch(_RANK_FOLDER, own) else RANKS), others
    return None, others


def _alike(name: str, names: Iterable[str]) -> list[str]:
    frame = split_numbers(name)[0]
    alike = {each for each in (name, *names) if split_numbers(each)[0] == frame}
    return sorted(alike, key=lambda each: (split_numbers(each)[1], each))


def _folders_above(folder: Storage) -> Iterator[tuple[Storage, str, list[str]]]:
    """Yield some folders above a folder, the name of the next one, and the names from there on."""
    is_local, inside = folder.local_path is not None, list[str]()
    path = os.path.abspath(folder.path) if is_local else folder.path
    while len(inside) < _LEVELS:
        above, own = os.path.split(path) if is_local else path.rpartition("/")[::2]
        if not own or (not is_local and "://" not in above):
            return
        yield split_place(os.path.join(above, ""))[0], own, [*inside]
        path, inside = above, [own, *inside]


def _has(form: Format, folder: Storage, folders: Iterable[str], name: str) -> bool:
    for each in folders:
        folder = folder.folder(each)
    return name in folder.names() or name in form.locate(folder, "")


def check_not_a_part(form: Format, folder: Storage, name: str, is_alone: bool) -> None:
    """Raise the error of a source that is a save in parts, or a part that is given by itself."""
    if isinstance(form, PartsFormat):
        form.open(folder, name)
    kind, others = find_part(form, folder, name) if is_alone else (None, [])
    path = os.path.join(folder.path, name)
    if kind is None:
        if others:
            text = f"{path} is taken for whole, though others are named like it: {named(others)}."
            log_warning(text)
        return
    cause = (
        f"{path} is one part of a larger save: {kind.what}. Its tensors may be parts of the tensors "
        "that were saved."
    )
    remedy = kind.remedy
    if others and (kind is _DEEPSPEED or kind is _MEGATRON or kind.what.startswith(RANKS.what)):
        remedy = f"Also give the others, {named(others)}, and --concat."
    raise UnsupportedError(
        cause, f"{remedy} If it is whole by itself, copy it to a path without such a number."
    )


@frozen
class PartsFormat(Format):
    """A save in parts: it is located, and never opened."""

    kind: FileKind
    name: str = "parts"

    @property
    def capabilities(self) -> Capabilities:
        return READ_ONLY._replace(folder_index=self.name)

    def locate(self, storage: Storage, name: str) -> list[str]:
        return [] if name or kind_of_parts(storage, []) is None else [self.name]

    def open(self, storage: Storage, name: str) -> Source:
        error = IncompleteCheckpoint if self.kind.is_lost else UnsupportedError
        raise error(f"The folder {storage.path} is {self.kind.what}.", self.kind.remedy)
