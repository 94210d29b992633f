"""The files of DeepSpeed's ZeRO, stages 1 to 3, as one checkpoint of the model's parameters.

    mp_rank_00_model_states.pt                       the module, and the shapes of its parameters;
                                                     of stage 3: zero_pp_rank_0_mp_rank_00_model_
                                                     states.pt, … of every rank
    zero_pp_rank_0_mp_rank_00_optim_states.pt, …     of every rank, its part of the flat float32
                                                     vectors; also with bf16_ before the name

What is read is what DeepSpeed's ``zero_to_fp32`` gives: the float32 parameters, the frozen
parameters, the buffers, and the shared parameters under both names.

    stages 1, 2     a group is one vector: the parts of the ranks, one after the other; its
                    parameters follow each other, perhaps with padding
    stage 3         each rank holds its part of every parameter, ceil(n / ranks) elements, one
                    parameter after the other; the last parts are padded

A range of a flat vector becomes the regions of the parameter that it fills, so a part of a
parameter is read without the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Any

from shardvar.errors import (
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.torch.items import TensorView
from shardvar.formats.torch.names import OF_OPTIMIZER, files_of_ranks
from shardvar.formats.torch.places import Stored
from shardvar.formats.torch.shares import whole_of
from shardvar.formats.torch.source import SavedContents, TorchSource, torch_source
from shardvar.formats.torch.state_dict import Unpickled, unpickle
from shardvar.formats.torch.tensors import is_tensor
from shardvar.formats.torch.whole import (
    add_groups,
    add_models,
    add_module,
    add_run,
    number_of,
    stored_object,
)
from shardvar.layout.region import regions_of_range
from shardvar.limits import MAX_NBYTES, MAX_RANK
from shardvar.pictures.words import named
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import DISTRUST, WRITE_AGAIN
from shardvar.wire.inert import Node
from shardvar.wire.plain import encode_value

_COPY = "Copy the files of all ranks to one folder."
_STATE, _GROUPS = "optimizer_state_dict.", ("single_partition_of_fp32_groups.", "fp32_flat_groups.")
_OPTIMIZER = ("base_optimizer_state.", "optimizer_state_dict.")
_MIN_SLICES = 1 << 12
"""Slices that the files of any checkpoint may describe, however small they are."""


@dataclass(frozen=True, slots=True)
class _Vector:
    """A flat vector of a rank."""

    file: int
    """The number of its file."""
    view: TensorView
    """Its elements, on one axis."""

    @property
    def count(self) -> int:
        """Its number of elements."""
        return self.view.tensor.count


def open_zero(storage: Storage, name: str, *, is_whole: bool = False) -> TorchSource:
    """Open the files of all ranks; ``MissingFile`` names the missing ones.

    With ``is_whole``, the keys are all that a Universal Checkpoint is written of (``whole``).
    """
    optimizers, models = _files(storage, name)
    data = DataFiles(storage, [*optimizers, *models])
    first = len(optimizers)
    parts = [unpickle(data.open(number)) for number in range(first)]
    stage, world = _described(parts[0], data.names[0])
    _check_count(storage, name, optimizers, world)
    states = [unpickle(data.open(number)) for number in range(first, len(data.names))]
    data.check_in_place()

    contents = SavedContents()
    with prefix_errors(data.names[first]):
        add_buffers(contents, states[0], first)
        add_frozen(contents, states, first, stage)
    with prefix_errors(data.names[0]):
        vectors = [_vectors(part, number, stage) for number, part in enumerate(parts)]
        groups = param_shapes(states[0].leaves)
        join = _join_parameters if stage == 3 else _join_groups
        for key, stored in join(groups, vectors, parts[0].leaves):
            contents.stored[key] = stored
        if is_whole:
            _add_states(contents, data, parts, groups, vectors, stage)
    if is_whole:
        if stage != 3:
            add_module(contents, states[0], first)
        add_models(contents, data, range(first, len(data.names)))
        leaves = _items(parts[0].leaves, _STATE)
        add_run(contents, 0, leaves | {"ds_version": parts[0].leaves.get("ds_version")}, groups)
    add_shared(contents, states[0].leaves)
    nbytes = sum(each.nbytes for each in (*parts, *states))
    if sum(map(len, contents.stored.values())) > max(nbytes, _MIN_SLICES):
        cause = f"{data.names[0]}: The files describe too many slices for their size."
        raise InvalidCheckpoint(cause, DISTRUST)
    if not all(each.archive.has_checksums for each in (*parts, *states)):
        contents.unguarded |= contents.stored.keys()
    return torch_source(data, contents)


def _files(storage: Storage, name: str) -> tuple[list[str], list[str]]:
    """Return the files of the optimizer of all ranks that are there, and of the model."""
    names = storage.names()
    optimizers = [each for each in map(OF_OPTIMIZER.fullmatch, names) if each and each[1] == name]
    parallel = sorted({each[3] for each in optimizers})
    if len(parallel) > 1 or parallel != ["00"]:
        cause = f"{storage.path}: The files are of the tensor-parallel ranks {named(parallel)}."
        remedy = "Convert them with DeepSpeed's ds_to_universal.py: only one such rank is joined."
        raise UnsupportedError(cause, remedy)
    last = max(int(each[2]) for each in optimizers)
    found = _of_all_ranks(storage, name + "_{}_mp_rank_00_optim_states.pt", last + 1)
    # Every rank writes a file of the model in stage 3 only.
    one, of_rank = "mp_rank_00_model_states.pt", "zero_pp_rank_{}_mp_rank_00_model_states.pt"
    if one in names or not any(each.endswith(f"_{one}") for each in names):
        return found, [one]
    return found, _of_all_ranks(storage, of_rank, len(found))


def _of_all_ranks(storage: Storage, form: str, world: int) -> list[str]:
    """Return the names of the files of all ranks; ``MissingFile`` if one is not there."""
    return files_of_ranks(storage, form.format, world, "the files tell")


def _check_count(storage: Storage, name: str, optimizers: Sequence[str], world: int) -> None:
    """Raise unless there are as many files as ranks."""
    if len(optimizers) > world:
        cause = (
            f"{storage.path}: {optimizers[world]} is left over: the checkpoint is of {world} ranks."
        )
        raise InvalidCheckpoint(cause, "Move files of other checkpoints away.")
    _of_all_ranks(storage, name + "_{}_mp_rank_00_optim_states.pt", world)


def _described(part: Unpickled, place: str) -> tuple[int, int]:
    """Return the stage of ZeRO and the number of ranks that the file of a rank says."""
    stage, world = (part.leaves.get(_STATE + key) for key in ("zero_stage", "partition_count"))
    if type(stage) is Node and type(stage.args) is tuple and len(stage.args) == 1:
        stage = stage.args[0]  # a member of an enumeration, made from its value
    if type(world) is list and world and {*map(type, world)} == {int}:
        world = max(world)
    if type(stage) is not int or type(world) is not int or stage not in (1, 2, 3) or world < 1:
        cause = f"{place}: The file says no stage of ZeRO, or no number of ranks."
        remedy = "Convert the checkpoint with the release of DeepSpeed that wrote it."
        raise UnsupportedError(cause, remedy)
    return stage, world


def _items(leaves: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the leaves below a prefix, by the rest of their keys."""
    return {key[len(prefix) :]: value for key, value in leaves.items() if key.startswith(prefix)}


def param_shapes(leaves: Mapping[str, Any], prefix: str = "param_shapes.") -> list[dict[str, Any]]:
    """Return the shapes of the parameters of each group, in order."""
    groups: dict[str, dict[str, Any]] = {}
    for text, shape in _items(leaves, prefix).items():
        group, _, key = text.partition(".")
        groups.setdefault(group, {})[key] = _checked(key, shape)
    if [*groups] != [*map(str, range(len(groups)))]:
        raise MalformedCheckpoint("Its param_shapes are not a list of dicts.", WRITE_AGAIN)
    return [*groups.values()]


def _checked(key: str, shape: Any) -> tuple[int, ...]:
    """Return the shape of a parameter; raise if no tensor has it."""
    if not isinstance(shape, tuple) or any(type(n) is not int or n < 0 for n in shape):
        raise MalformedCheckpoint(f"The shape of {key!r} is not a tuple of sizes.", WRITE_AGAIN)
    if len(shape) > MAX_RANK or max(shape, default=0) > MAX_NBYTES:
        raise InvalidCheckpoint(f"The shape of {key!r} is too large to exist.", DISTRUST)
    if prod(filter(None, shape)) > MAX_NBYTES // 16:
        raise InvalidCheckpoint(f"The shape of {key!r} is too large to exist.", DISTRUST)
    return tuple(shape)


def _vector(part: Unpickled, number: int, key: str) -> _Vector:
    """Return a flat vector of a file."""
    value = part.value(key)
    view = whole_of(value, part.view) if is_tensor(value) else None
    if view is None or len(view.tensor.shape) != 1 or not view.tensor.is_contiguous:
        raise MalformedCheckpoint(f"{key!r} is not a flat vector.", WRITE_AGAIN)
    return _Vector(number, view)


def _vectors(part: Unpickled, number: int, stage: int) -> list[_Vector]:
    """Return the vectors of a rank, one a group."""
    prefix = _STATE + _GROUPS[stage == 3]
    return [_vector(part, number, prefix + key) for key in _items(part.leaves, prefix)]


def _add_states(
    contents: SavedContents,
    data: DataFiles,
    parts: Sequence[Unpickled],
    groups: Sequence[Mapping[str, tuple[int, ...]]],
    vectors: Sequence[Sequence[_Vector]],
    stage: int,
) -> None:
    """Add the states and the groups of the optimizer, which ``zero_to_fp32`` leaves out."""
    below = _STATE + _OPTIMIZER[stage == 3]
    add_groups(contents, parts[0], 0, below)
    names = {key.partition(".")[0]: 0 for key in _items(parts[0].leaves, f"{below}state.0.")}
    if not names or {*map(len, vectors)} != {len(groups)}:
        cause = "The files of the optimizer have no states, such as exp_avg, of all groups."
        raise IncompleteCheckpoint(cause, "Save the checkpoint after a step of the optimizer.")
    for name in names:
        keys = [f"{below}state.{group}.{name}" for group in range(len(groups))]
        for key in keys:
            lacking = [rank for rank, part in enumerate(parts) if key not in part.leaves]
            if lacking:
                cause = f"The file of rank {lacking[0]} has no {key!r}."
                raise IncompleteCheckpoint(cause, WRITE_AGAIN)
        if name == "step":
            _add_steps(contents, data, parts, groups, keys)
            continue
        held = [[_vector(part, rank, key) for key in keys] for rank, part in enumerate(parts)]
        join = _join_parameters if stage == 3 else _join_groups
        for key, stored in join(groups, held, parts[0].leaves):
            contents.stored[f"optimizer.state.{key}.{name}"] = stored


def _add_steps(
    contents: SavedContents,
    data: DataFiles,
    parts: Sequence[Unpickled],
    groups: Sequence[Mapping[str, tuple[int, ...]]],
    keys: Sequence[str],
) -> None:
    """Add the number of steps: of each parameter, for stages 1 and 2, and of all, for stage 3."""
    for group, key in zip(groups, keys, strict=True):
        steps = [number_of(part, data, rank, key) for rank, part in enumerate(parts)]
        if any(encode_value(each) != encode_value(steps[0]) for each in steps):
            cause = f"{key!r} is {steps[0]} in the file of rank 0, and other numbers in others."
            raise InvalidCheckpoint(cause, "The files are of several saves.")
        stored = [Stored(0, stored_object(steps[0]))]
        contents.stored |= dict.fromkeys((f"optimizer.state.{each}.step" for each in group), stored)
        contents.stored.setdefault("optimizer.step", stored)


def _slices(
    vector: _Vector, start: int, shape: tuple[int, ...], begin: int, stop: int
) -> Iterator[Stored]:
    """Yield the elements [begin, stop) of a parameter as regions; they lie at ``start`` of a
    vector."""
    tensor = vector.view.tensor
    for region in regions_of_range(shape, begin, stop):
        strides = tuple(prod(region.shape[axis + 1 :]) for axis in range(region.rank))
        offset = tensor.offset + start
        view = replace(
            vector.view,
            tensor=replace(tensor, offset=offset, shape=region.shape, strides=strides),
        )
        yield Stored(vector.file, view, region.offset, shape)
        start += region.size


def _filled(
    key: str, shape: tuple[int, ...], ranges: Sequence[tuple[_Vector, int, int]]
) -> list[Stored]:
    """Return a parameter whose elements follow each other in ranges [start, stop) of vectors."""
    total, done, stored = prod(shape), 0, list[Stored]()
    for vector, start, stop in ranges:
        size = min(stop - start, total - done)
        stored += _slices(vector, start, shape, done, done + size)
        done += size
    if done < total:
        cause = f"{key!r} of shape {shape} needs {total} elements, and the ranks hold {done}."
        raise IncompleteCheckpoint(cause, "The checkpoint was cut, or files were mixed.")
    if not total and ranges:
        vector = ranges[0][0]
        empty = replace(vector.view.tensor, offset=0, shape=shape, strides=shape)
        stored = [Stored.whole(vector.file, replace(vector.view, tensor=empty))]
    return stored


def _ranges(vectors: Sequence[_Vector], start: int, stop: int) -> list[tuple[_Vector, int, int]]:
    """Return the ranges of vectors that hold the elements [start, stop) of them, put in a row."""
    ends = [*accumulate(each.count for each in vectors)]
    return [
        (each, max(start - end + each.count, 0), min(stop - end + each.count, each.count))
        for each, end in zip(vectors, ends, strict=True)
        if (end > start and end - each.count < stop) or (each is vectors[0] and start == stop)
    ]


def _join_groups(
    groups: Sequence[Mapping[str, tuple[int, ...]]],
    vectors: Sequence[Sequence[_Vector]],
    leaves: Mapping[str, Any],
) -> Iterator[tuple[str, list[Stored]]]:
    """Yield the parameters of stages 1 and 2."""
    if {*map(len, vectors)} != {len(groups)}:
        raise InvalidCheckpoint("The ranks hold other groups than the model has.", WRITE_AGAIN)
    paddings = leaves.get(_STATE + "param_alignment_paddings")
    align = 2 * len(vectors)
    for number, shapes in enumerate(groups):
        mine, start = [held[number] for held in vectors], 0
        skipped = [0] * len(shapes)
        if type(paddings) is list:
            skipped = paddings[number] if number < len(paddings) else []
            if type(skipped) is not list or len(skipped) != len(shapes):
                raise MalformedCheckpoint("Its paddings are not of its parameters.", WRITE_AGAIN)
        for (key, shape), padding in zip(shapes.items(), skipped, strict=True):
            if type(padding) is not int or padding < 0:
                raise MalformedCheckpoint("Its paddings are not sizes.", WRITE_AGAIN)
            stop = start + prod(shape)
            yield key, _filled(key, shape, _ranges(mine, start, stop))
            start = stop + padding
        held = sum(each.count for each in mine)
        # DeepSpeed pads a group to a multiple of twice the number of ranks.
        if -(-start // align) != -(-held // align):
            cause = f"The parameters of group {number} have {start} elements, the ranks {held}."
            raise InvalidCheckpoint(cause, WRITE_AGAIN)


def _join_parameters(
    groups: Sequence[Mapping[str, tuple[int, ...]]],
    vectors: Sequence[Sequence[_Vector]],
    _leaves: Mapping[str, Any],
) -> Iterator[tuple[str, list[Stored]]]:
    """Yield the parameters of stage 3."""
    world, start = len(vectors), 0
    for shapes in groups:
        for key, shape in shapes.items():
            size = -(-prod(shape) // world)
            ranges = [each for held in vectors for each in _ranges(held, start, start + size)]
            yield key, _filled(key, shape, ranges)
            start += size
    for rank, held in enumerate(vectors):
        total = sum(each.count for each in held)
        if total != start:
            cause = f"The parameters have {start} elements a rank, and rank {rank} holds {total}."
            raise InvalidCheckpoint(cause, WRITE_AGAIN)


def add_buffers(contents: SavedContents, state: Unpickled, number: int) -> None:
    """Add the buffers of the module, as they are stored."""
    names = state.leaves.get("buffer_names")
    for name in names if type(names) is list else ():
        key = f"module.{name}"
        if type(name) is str and key in state.leaves and is_tensor(state.leaves[key]):
            view = whole_of(state.value(key), state.view)
            contents.stored[name] = [Stored.whole(number, view)]


def add_frozen(
    contents: SavedContents, states: Sequence[Unpickled], first: int, stage: int
) -> None:
    """Add the parameters that are not trained: whole, or of stage 3 a part in each file."""
    prefix = "frozen_param_fragments."
    for key, shape in _items(states[0].leaves, "frozen_param_shapes.").items():
        shape = _checked(key, shape)
        held = states if stage == 3 else states[:1]
        for number, state in enumerate(held, first):
            if prefix + key not in state.leaves:
                cause = f"The file number {number - first} has no part of {key!r}."
                raise IncompleteCheckpoint(cause, _COPY)
        if stage == 3:
            parts = [_vector(each, at, prefix + key) for at, each in enumerate(held, first)]
            ranges = [(each, 0, each.count) for each in parts]
            contents.stored[key] = _filled(key, shape, ranges)
        else:
            view = whole_of(states[0].value(prefix + key), states[0].view)
            contents.stored[key] = [Stored.whole(first, view)]


def add_shared(contents: SavedContents, leaves: Mapping[str, Any]) -> None:
    """Add the other names of shared parameters."""
    for key, other in _items(leaves, "shared_params.").items():
        if type(other) is str and other in contents.stored:
            contents.stored[key] = contents.stored[other]
