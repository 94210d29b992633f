"""The files of DeepSpeed as one checkpoint: of ZeRO, stages 1 to 3, and Universal Checkpoints.

ZeRO:

    mp_rank_00_model_states.pt                       the module, and the shapes of its parameters;
                                                     of stage 3: zero_pp_rank_0_mp_rank_00_model_
                                                     states.pt, … of every rank
    zero_pp_rank_0_mp_rank_00_optim_states.pt, …     of every rank, its part of the flat float32
                                                     vectors; also with bf16_ before the name

The keys are as DeepSpeed's ``zero_to_fp32`` gives them: the float32 parameters, the frozen
parameters, the buffers, and the shared parameters under both names.

    stages 1, 2     a group is one vector: the parts of the ranks, one after the other; its
                    parameters follow each other, perhaps with padding
    stage 3         each rank holds its part of every parameter, ceil(n / ranks) elements, one
                    parameter after the other; the last parts are padded

A range of a flat vector becomes the regions of the parameter that it fills, so a part of a
parameter is read without the rest.

Universal Checkpoints, a folder for each parameter, as ``ds_to_universal`` writes them:

    zero/NAME/fp32.pt                       a parameter or a buffer, whole
    zero/NAME/exp_avg.pt, exp_avg_sq.pt, …  the states of the optimizer
    zero/NAME/step.pt                       their step; of stage 3 it is in the next file
    zero/optimizer_state.pt                 the groups of the optimizer
    mp_rank_00_model_states.pt, …           the state of the run, with the shapes of the parameters;
                                            of stage 3: zero_pp_rank_0_mp_rank_00_model_states.pt, …

A file has a tensor, or a dict with the tensor ``param`` and with what DeepSpeed needs to cut it again.
Keys are NAME, ``optimizer.state.NAME.exp_avg`` and its like, ``optimizer.param_groups``, and
``optimizer.step`` of stage 3. Stage 3 writes vectors, which get the shape in the model's file. Buffers
and frozen parameters that have no folder come from the model's file. A parameter that the model's file
names and that has no file ``fp32.pt`` is incomplete.

To write a Universal Checkpoint (``saved``), both readers also list these (``is_whole``):

    mp_rank_00_model_states.pt, …     a file of the model as it is, as its bytes: a vector of uint8,
                                      with all that the run has saved next to the model
    optimizer.param_groups.0.lr, …    the groups of the optimizer
    zero/optimizer_state.pt           an object: what else DeepSpeed reads of the optimizer's file,
                                      and the names of the trained parameters and of the states
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from math import prod
from typing import Any, NamedTuple

import numpy as np

from shardvar.errors import (
    READ_ERRORS,
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingFile,
    StorageError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles, FilesBelow
from shardvar.formats.torch.archive import Record
from shardvar.formats.torch.ranks import COPY, check_budget_of_slices, files_of_ranks
from shardvar.formats.torch.source import (
    SavedContents,
    Stored,
    StoredObject,
    TensorView,
    TorchSource,
    read_view,
    torch_source,
)
from shardvar.formats.torch.state_dict import Unpickled, unpickle
from shardvar.formats.torch.values import StoredTensor, is_tensor, plain_of
from shardvar.layout.dtypes import numpy_dtype
from shardvar.layout.region import regions_of_range
from shardvar.limits import MAX_NBYTES, MAX_RANK
from shardvar.pictures.words import named
from shardvar.planning.index import NO_CHECKSUM
from shardvar.records import frozen
from shardvar.storage.concurrency import do_all
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import WRITE_AGAIN, badly_written, distrusted, invalid
from shardvar.wire.plain import Node, encode_value

OF_OPTIMIZER = re.compile(r"((?:bf16_)?zero_pp_rank)_(\d{1,6})_mp_rank_(\d{1,4})_optim_states\.pt")
OF_MODEL = re.compile(r"(?:zero_pp_rank_(\d{1,6})_)?mp_rank_(\d{1,4})_model_states\.pt")
"""The files of one rank of DeepSpeed's ZeRO."""
UNIVERSAL = "zero"  # The folder of a Universal Checkpoint that has a folder for each parameter
RUN = f"{UNIVERSAL}/optimizer_state.pt"
"""The file of the optimizer, and the key of what DeepSpeed reads of it."""
STATE, GROUPS = "optimizer.state.", "optimizer.param_groups."
SCALERS = tuple(f"deepspeed.runtime.fp16.loss_scaler.{kind}LossScaler" for kind in ("", "Dynamic"))
"""The classes that hold the scale of losses in float16; no other class is written."""
SCALER = "loss_scaler"
_READ = ("dynamic_loss_scale", "overflow", "clip_grad", "ds_version")
"""The values of the optimizer's file that DeepSpeed reads in addition to groups and states."""
_OF_STATE = re.compile(rf"{UNIVERSAL}/([^/]+)/([^/]+)\.pt", re.DOTALL)
_WEIGHT, _PARAM_GROUPS = "fp32", "param_groups."
_STEP = "optimizer_state_dict.state.0.step"
_ZERO, _FLAT = "optimizer_state_dict.", ("single_partition_of_fp32_groups.", "fp32_flat_groups.")
_OPTIMIZER = ("base_optimizer_state.", "optimizer_state_dict.")
_CONVERT = "Copy the whole folder again, or convert the checkpoint again with ds_to_universal.py."

_Shape = tuple[int, ...]
Groups = Sequence[Mapping[str, _Shape]]  # The shapes of the parameters of each group, in order


# --- What both have


def _below(leaves: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key[len(prefix) :]: value for key, value in leaves.items() if key.startswith(prefix)}


def _param_shapes(leaves: Mapping[str, Any]) -> list[dict[str, _Shape]]:
    groups: dict[str, dict[str, _Shape]] = {}
    for text, shape in _below(leaves, "param_shapes.").items():
        group, _, key = text.partition(".")
        groups.setdefault(group, {})[key] = _checked(key, shape)
    if [*groups] != [*map(str, range(len(groups)))]:
        raise badly_written("Its param_shapes are not a list of dicts.")
    return [*groups.values()]


def _checked(key: str, shape: Any) -> _Shape:
    if not isinstance(shape, tuple) or any(type(n) is not int or n < 0 for n in shape):
        raise badly_written(f"The shape of {key!r} is not a tuple of sizes.")
    is_large = len(shape) > MAX_RANK or max(shape, default=0) > MAX_NBYTES
    if is_large or prod(filter(None, shape)) > MAX_NBYTES // 16:
        raise distrusted(f"The shape of {key!r} is too large to exist.")
    return tuple(shape)


def _add_model(
    contents: SavedContents, states: Sequence[Unpickled], first: int, *, is_cut: bool
) -> None:
    """Add buffers, and parameters that are not trained: of stage 3, a part is in each file."""
    state = states[0]
    names = state.leaves.get("buffer_names")
    for name in names if type(names) is list else ():
        key = f"module.{name}"
        if type(name) is str and key in state.leaves and is_tensor(state.leaves[key]):
            contents.stored[name] = [Stored.whole(first, state.tensor(key))]
    prefix = "frozen_param_fragments."
    for key, shape in _below(state.leaves, "frozen_param_shapes.").items():
        shape = _checked(key, shape)
        for number, held in enumerate(states if is_cut else states[:1]):
            if prefix + key not in held.leaves:
                cause = f"The file number {number} has no part of {key!r}."
                raise IncompleteCheckpoint(cause, COPY)
        if is_cut:
            parts = [_vector(held, at, prefix + key) for at, held in enumerate(states, first)]
            contents.stored[key] = _filled(key, shape, [(part, 0, part.count) for part in parts])
        else:
            contents.stored[key] = [Stored.whole(first, state.tensor(prefix + key))]


def _add_shared(contents: SavedContents, leaves: Mapping[str, Any]) -> None:
    for key, other in _below(leaves, "shared_params.").items():
        if type(other) is str and other in contents.stored:
            contents.stored[key] = contents.stored[other]


def _add_files(contents: SavedContents, data: DataFiles, numbers: Iterable[int]) -> None:
    for number in numbers:
        nbytes = data.open(number).size
        tensor = StoredTensor.whole("uint8", (nbytes,), "", nbytes)
        view = TensorView(tensor, Record(0, nbytes, NO_CHECKSUM), is_big_endian=False)
        contents.stored[data.names[number]] = [Stored.whole(number, view)]


def _add_run(
    contents: SavedContents, number: int, leaves: Mapping[str, Any], groups: Groups
) -> None:
    """Add the values that DeepSpeed reads of the optimizer's file, and the names of all else."""
    run = {key: plain_of(leaves[key]) for key in _READ if leaves.get(key) is not None}
    scaler = leaves.get(SCALER)
    if type(scaler) is Node:
        if scaler.name not in SCALERS or scaler.args not in ((), None) or scaler.items:
            cause = f"The scale of losses is an object of {str(scaler.name)[:200]!r}."
            raise UnsupportedError(cause, "Convert the checkpoint with ds_to_universal.py.")
        run[SCALER] = [scaler.name, plain_of(scaler.state)]
    states = {key.rpartition(".")[2] for key in contents.stored if key.startswith(STATE)}
    names = [key for group in groups for key in group]
    value = {"run": run, "parameters": names, "states": sorted(states)}
    contents.stored[RUN] = [Stored(number, StoredObject.of(value))]


# --- Flat vectors


@frozen
class _Vector:
    file: int
    view: TensorView

    @property
    def count(self) -> int:
        return self.view.tensor.count


_Range = tuple[_Vector, int, int]  # The elements [start, stop) of a vector


def _vector(part: Unpickled, number: int, key: str) -> _Vector:
    view = part.tensor(key) if is_tensor(part.value(key)) else None
    if view is None or len(view.tensor.shape) != 1 or not view.tensor.is_contiguous:
        raise badly_written(f"{key!r} is not a flat vector.")
    return _Vector(number, view)


def _filled(key: str, shape: _Shape, ranges: Sequence[_Range]) -> list[Stored]:
    total, done, stored = prod(shape), 0, list[Stored]()
    for vector, start, stop in ranges:
        size = min(stop - start, total - done)
        for region in regions_of_range(shape, done, done + size):
            view = vector.view.reshaped(region.shape, start)
            stored.append(Stored(vector.file, view, region.offset, shape))
            start += region.size
        done += size
    if done < total:
        cause = f"{key!r} of shape {shape} needs {total} elements, and the ranks hold {done}."
        raise IncompleteCheckpoint(cause, "The checkpoint was cut, or files were mixed.")
    if not total and ranges:
        vector = ranges[0][0]
        stored = [Stored.whole(vector.file, vector.view.without_elements(shape))]
    return stored


def _ranges(vectors: Sequence[_Vector], start: int, stop: int) -> list[_Range]:
    """Return the ranges of vectors that hold the elements [start, stop) of them, put in a row."""
    ends = [*accumulate(vector.count for vector in vectors)]
    return [
        (part, max(start - end + part.count, 0), min(stop - end + part.count, part.count))
        for part, end in zip(vectors, ends, strict=True)
        if (end > start and end - part.count < stop) or (part is vectors[0] and start == stop)
    ]


# --- ZeRO


def find_zero(_storage: Storage, name: str, names: Sequence[str]) -> list[str]:
    matches = map(OF_OPTIMIZER.fullmatch, names)
    prefixes = [*dict.fromkeys(match[1] for match in matches if match)]
    model = OF_MODEL.fullmatch(name)
    is_meant = name in ("", *prefixes) or OF_OPTIMIZER.fullmatch(name) or (model and model[1])
    return prefixes if is_meant else []


def open_zero(storage: Storage, name: str, *, is_whole: bool = False) -> TorchSource:
    optimizers, models = _files(storage, name)
    data = DataFiles(storage, [*optimizers, *models])
    first, last = len(optimizers), len(data.names)
    parts = [unpickle(data, number) for number in range(first)]
    zero = _Zero.of(parts, data)
    if len(optimizers) > zero.world:
        cause = f"{storage.path}: {optimizers[zero.world]} is left over: the checkpoint is of {zero.world} ranks."
        raise InvalidCheckpoint(cause, "Move files of other checkpoints away.")
    _of_all_ranks(storage, name + _OPTIMIZER_FILE, zero.world)
    states = [unpickle(data, number) for number in range(first, last)]
    data.check_in_place()

    contents = SavedContents()
    with prefix_errors(data.names[first]):
        _add_model(contents, states, first, is_cut=zero.stage == 3)
    with prefix_errors(data.names[0]):
        flat = _ZERO + _FLAT[zero.stage == 3]
        vectors = [
            [_vector(part, number, flat + key) for key in _below(part.leaves, flat)]
            for number, part in enumerate(parts)
        ]
        groups = _param_shapes(states[0].leaves)
        for key, stored in zero.join(groups, vectors):
            contents.stored[key] = stored
        if is_whole:
            zero.add_states(contents, groups, vectors)
    if is_whole:
        for key in states[0].leaves if zero.stage != 3 else ():
            # The tensors of the module that have no other values, such as of frozen parameters.
            module_key = key.removeprefix("module.")
            is_new = module_key != key and module_key not in contents.stored
            if is_new and is_tensor(states[0].leaves[key]):
                contents.stored[module_key] = [Stored.whole(first, states[0].tensor(key))]
        _add_files(contents, data, range(first, last))
        leaves = _below(parts[0].leaves, _ZERO)
        _add_run(contents, 0, leaves | {"ds_version": parts[0].leaves.get("ds_version")}, groups)
    _add_shared(contents, states[0].leaves)
    files = (*parts, *states)
    check_budget_of_slices(
        sum(map(len, contents.stored.values())), sum(f.nbytes for f in files), data
    )
    if not all(file.archive.has_checksums for file in files):
        contents.unguarded |= contents.stored.keys()
    return torch_source(data, contents)


_OPTIMIZER_FILE = "_{}_mp_rank_00_optim_states.pt"


def _files(storage: Storage, name: str) -> tuple[list[str], list[str]]:
    names = storage.names()
    matches = map(OF_OPTIMIZER.fullmatch, names)
    optimizers = [match for match in matches if match and match[1] == name]
    parallel = sorted({match[3] for match in optimizers})
    if parallel != ["00"]:
        cause = f"{storage.path}: The files are of the tensor-parallel ranks {named(parallel)}."
        remedy = "Convert them with DeepSpeed's ds_to_universal.py: only one such rank is joined."
        raise UnsupportedError(cause, remedy)
    last = max(int(match[2]) for match in optimizers)
    files = _of_all_ranks(storage, name + _OPTIMIZER_FILE, last + 1)
    # Every rank writes a file of the model in stage 3 only.
    one, of_rank = "mp_rank_00_model_states.pt", "zero_pp_rank_{}_mp_rank_00_model_states.pt"
    if one in names or not any(other.endswith(f"_{one}") for other in names):
        return files, [one]
    return files, _of_all_ranks(storage, of_rank, len(files))


def _of_all_ranks(storage: Storage, form: str, world: int) -> list[str]:
    return files_of_ranks(storage, form.format, world, "the files tell")


class _Zero(NamedTuple):
    parts: Sequence[Unpickled]
    data: DataFiles
    stage: int
    world: int

    @classmethod
    def of(cls, parts: Sequence[Unpickled], data: DataFiles) -> "_Zero":
        leaves = parts[0].leaves
        stage, world = (leaves.get(_ZERO + key) for key in ("zero_stage", "partition_count"))
        if type(stage) is Node and type(stage.args) is tuple and len(stage.args) == 1:
            (stage,) = stage.args  # a member of an enumeration, made from its value
        if type(world) is list and world and {*map(type, world)} == {int}:
            world = max(world)
        if type(stage) is not int or type(world) is not int or stage not in (1, 2, 3) or world < 1:
            cause = f"{data.names[0]}: The file says no stage of ZeRO, or no number of ranks."
            remedy = "Convert the checkpoint with the release of DeepSpeed that wrote it."
            raise UnsupportedError(cause, remedy)
        return cls(parts, data, stage, world)

    def join(
        self, groups: Groups, vectors: Sequence[Sequence[_Vector]]
    ) -> Iterator[tuple[str, list[Stored]]]:
        if self.stage != 3:
            yield from _join_groups(groups, vectors, self.parts[0].leaves)
            return
        start = 0
        for key, shape in chain.from_iterable(group.items() for group in groups):
            size = -(-prod(shape) // len(vectors))
            ranges = [part for held in vectors for part in _ranges(held, start, start + size)]
            yield key, _filled(key, shape, ranges)
            start += size
        for rank, held in enumerate(vectors):
            total = sum(vector.count for vector in held)
            if total != start:
                raise invalid(
                    f"The parameters have {start} elements a rank, and rank {rank} holds {total}."
                )

    def add_states(
        self, contents: SavedContents, groups: Groups, vectors: Sequence[Sequence[_Vector]]
    ) -> None:
        """Add the states and the groups of the optimizer, which ``zero_to_fp32`` leaves out."""
        below, first = _ZERO + _OPTIMIZER[self.stage == 3], self.parts[0]
        for key in first.leaves:
            if key.startswith(f"{below}{_PARAM_GROUPS}"):
                name = f"optimizer.{key.removeprefix(below)}"
                try:
                    contents.stored[name] = [Stored(0, first.object(key))]
                except READ_ERRORS as error:
                    contents.faults[name] = error.at(RUN, repr(name))
        names = {key.partition(".")[0]: 0 for key in _below(first.leaves, f"{below}state.0.")}
        if not names or {*map(len, vectors)} != {len(groups)}:
            cause = "The files of the optimizer have no states, such as exp_avg, of all groups."
            raise IncompleteCheckpoint(cause, "Save the checkpoint after a step of the optimizer.")
        for name in names:
            keys = [f"{below}state.{group}.{name}" for group in range(len(groups))]
            for key in keys:
                lacking = [rank for rank, part in enumerate(self.parts) if key not in part.leaves]
                if lacking:
                    cause = f"The file of rank {lacking[0]} has no {key!r}."
                    raise IncompleteCheckpoint(cause, WRITE_AGAIN)
            if name == "step":
                self._add_steps(contents, groups, keys)
                continue
            held = [
                [_vector(part, rank, key) for key in keys] for rank, part in enumerate(self.parts)
            ]
            for key, stored in self.join(groups, held):
                contents.stored[f"{STATE}{key}.{name}"] = stored

    def _add_steps(self, contents: SavedContents, groups: Groups, keys: Sequence[str]) -> None:
        """Add the steps: of each parameter, for stages 1 and 2, and of all, for stage 3."""
        for group, key in zip(groups, keys, strict=True):
            steps = [self._number(rank, key) for rank in range(len(self.parts))]
            if any(encode_value(step) != encode_value(steps[0]) for step in steps):
                cause = f"{key!r} is {steps[0]} in the file of rank 0, and other numbers in others."
                raise InvalidCheckpoint(cause, "The files are of several saves.")
            stored = [Stored(0, StoredObject.of(steps[0]))]
            contents.stored |= dict.fromkeys((f"{STATE}{name}.step" for name in group), stored)
            contents.stored.setdefault("optimizer.step", stored)

    def _number(self, rank: int, key: str) -> Any:
        part = self.parts[rank]
        value = part.value(key)
        if not is_tensor(value):
            return plain_of(value, part.room)
        view = part.tensor(key)
        if view.tensor.count != 1:
            raise badly_written(f"{key!r} is not one number.")
        octets = bytearray(view.nbytes)
        read_view(view, self.data, rank, 0, memoryview(octets))
        return np.frombuffer(octets, numpy_dtype(view.tensor.dtype))[0]


def _join_groups(
    groups: Groups, vectors: Sequence[Sequence[_Vector]], leaves: Mapping[str, Any]
) -> Iterator[tuple[str, list[Stored]]]:
    if {*map(len, vectors)} != {len(groups)}:
        raise invalid("The ranks hold other groups than the model has.")
    paddings = leaves.get(_ZERO + "param_alignment_paddings")
    align = 2 * len(vectors)
    for number, shapes in enumerate(groups):
        parts, start = [held[number] for held in vectors], 0
        skipped = [0] * len(shapes)
        if type(paddings) is list:
            skipped = paddings[number] if number < len(paddings) else []
            if type(skipped) is not list or len(skipped) != len(shapes):
                raise badly_written("Its paddings are not of its parameters.")
        for (key, shape), padding in zip(shapes.items(), skipped, strict=True):
            if type(padding) is not int or padding < 0:
                raise badly_written("Its paddings are not sizes.")
            stop = start + prod(shape)
            yield key, _filled(key, shape, _ranges(parts, start, stop))
            start = stop + padding
        held = sum(part.count for part in parts)
        # DeepSpeed pads a group to a multiple of twice the number of ranks.
        if -(-start // align) != -(-held // align):
            raise invalid(
                f"The parameters of group {number} have {start} elements, the ranks {held}."
            )


# --- Universal Checkpoints


def find_universal(storage: Storage, name: str, names: Sequence[str]) -> list[str]:
    if name not in ("", UNIVERSAL) or UNIVERSAL not in storage.folders():
        return []
    if names and not any(map(OF_MODEL.fullmatch, names)):
        return []
    zero = storage.folder(UNIVERSAL)
    return [UNIVERSAL] if any(zero.folder(name).names() for name in zero.folders()[:2]) else []


def open_universal(storage: Storage, _name: str, *, is_whole: bool = False) -> TorchSource:
    paths = [*storage.tree()]
    models = [path for path in paths if OF_MODEL.fullmatch(path)]
    if not models:
        cause = f"{storage.path}: mp_rank_00_model_states.pt is missing."
        raise MissingFile(cause, _CONVERT).in_file("mp_rank_00_model_states.pt")
    needed = [*models, *[RUN][: RUN in paths]]
    matches = [*filter(None, map(_OF_STATE.fullmatch, paths))]
    data = DataFiles(FilesBelow(storage), [*needed, *(match[0] for match in matches)])
    files, failed = _read_all(data, len(needed))
    data.check_in_place()

    contents = SavedContents()
    states = [files[number] for number in range(len(models))]
    shapes: dict[str, _Shape] = {}
    for state, path in zip(states, models, strict=True):
        with prefix_errors(path):
            for group in _param_shapes(state.leaves):
                shapes |= group
    for number, match in enumerate(matches, len(needed)):
        name, kind = match[1], match[2]
        key = name if kind == _WEIGHT else f"{STATE}{name}.{kind}"
        try:
            if number in failed:
                raise failed[number]
            contents.stored[key] = [_stored(files[number], number, shapes.get(name), is_whole)]
        except (*READ_ERRORS, StorageError) as error:
            contents.faults[key] = error.at(match[0], repr(key))
    # Only the files of the model have buffers, frozen and shared parameters.
    rest = SavedContents()
    with prefix_errors(models[0]):
        _add_model(rest, states, 0, is_cut=models[0].startswith("zero_pp_rank_"))
    contents.stored = rest.stored | contents.stored
    _add_shared(contents, states[0].leaves)
    if RUN in needed:
        _add_optimizer(contents, files[len(models)], len(models))
        if is_whole:
            _add_run(contents, len(models), files[len(models)].leaves, [shapes])
    if is_whole:
        _add_files(contents, data, range(len(models)))
    for key in dict.fromkeys([*shapes, *(match[1] for match in matches)]):
        if key not in contents.stored and key not in contents.faults:
            cause = f"{key!r}: {UNIVERSAL}/{key}/{_WEIGHT}.pt is missing."
            contents.faults[key] = IncompleteCheckpoint(cause, _CONVERT)
    if not all(file.archive.has_checksums for file in files.values()):
        contents.unguarded |= contents.stored.keys()
    return torch_source(data, contents)


def _read_all(
    data: DataFiles, needed: int
) -> tuple[dict[int, Unpickled], dict[int, CheckpointError | UnsupportedError | StorageError]]:
    """Return what the files hold, and the errors of others; raise for the first ``needed``."""
    files: dict[int, Unpickled] = {}
    failed: dict[int, CheckpointError | UnsupportedError | StorageError] = {}

    def read(number: int) -> None:
        try:
            files[number] = unpickle(data, number, may_be_value=True)
        except (*READ_ERRORS, StorageError) as error:
            failed[number] = error

    do_all(read, range(len(data.names)), data.traits)
    for number in sorted(failed)[:1]:
        if number < needed:
            raise failed[number]
    return files, failed


def _stored(part: Unpickled, number: int, shape: _Shape | None, is_whole: bool) -> Stored:
    """Return the content of the file of a state; a vector in the shape of its parameter."""
    about = {key: value for key, value in part.leaves.items() if key not in ("", "param")}
    if is_whole and about not in ({}, {"cat_dim": 0}):  # more than shardvar writes
        cause = f"The file says how to cut the tensor: {named(sorted(about))}."
        raise UnsupportedError(cause, "Copy the folder, and change its files one by one.")
    key = next((key for key in ("param", "") if key in part.leaves), None)
    if key is None:
        raise badly_written("The file has neither a tensor nor a 'param'.")
    if not part.has_tensor(key):
        return Stored(number, part.object(key))
    view = part.tensor(key)
    own = view.tensor.shape
    # In a dict, the tensor has its own shape. Parts of it that were cut have shapes of their own in
    # the model's file.
    if key or not own or shape is None or own == shape:
        return Stored.whole(number, view)
    if len(own) != 1 or own[0] != prod(shape) or not view.tensor.is_contiguous:
        raise invalid(f"It has the shape {own}, and its parameter {shape}.")
    return Stored.whole(number, view.reshaped(shape))


def _add_optimizer(contents: SavedContents, part: Unpickled, number: int) -> None:
    """Add the groups of the optimizer, and the step that all parameters of stage 3 have."""
    wanted = {f"optimizer.{key}": key for key in part.leaves if key.startswith(_PARAM_GROUPS)}
    if _STEP in part.leaves:
        wanted["optimizer.step"] = _STEP
    for key, leaf in wanted.items():
        try:
            contents.stored.setdefault(key, [part.stored(leaf, number)])
        except READ_ERRORS as error:
            contents.faults[key] = error.at(RUN, repr(key))
