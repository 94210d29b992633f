"""The leaves of a training state: tensors and plain values, and the regions of them that this process
holds.

    state            any nesting of dicts, lists, and objects with ``state_dict``
    key of a leaf    the keys on the way to it, joined by dots, as ``torch.distributed.checkpoint``
                     joins them; a list without tensors, arrays and dicts in it is one leaf
    regions          of a DTensor by its mesh and its placements, of a ShardedTensor by its shards, of
                     any other tensor the whole
    order            by the texts of the keys, the same in all processes, also if each has filled its dicts in
                     another order: ``state_dict`` and ``load_state_dict`` may call collectives
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from shardvar.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from shardvar.formats.leaves import is_in_generator
from shardvar.formats.torch.shares import Placement, Spread, held_regions, local_shape
from shardvar.layout.region import Region
from shardvar.torch.tensors import shared_tensor, torch_dtype
from shardvar.verbs.training.states import by_key


class Leaf(NamedTuple):
    """A value of a state."""

    path: tuple[str | int, ...]
    """The keys on the way to it."""
    value: Any
    """The value."""
    holder: Any
    """The dict or the list that it is in."""
    name: Any
    """Its key or its index there."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldRegion:
    """A region of a tensor that this process holds."""

    region: Region
    """The region."""
    values: Any
    """Its values: a tensor that shares memory with the state."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedObject:
    """An object whose own state is a part of the state."""

    path: tuple[str | int, ...]
    """The keys on the way to it."""
    owner: Any
    """The object, which has ``load_state_dict``."""
    state: Any
    """The result of its ``state_dict``, with the leaves."""


def leaves_of_state(state: Any, owners: list[LoadedObject]) -> dict[str, Leaf]:
    """Return the leaves of a state by their keys; append its objects with a state to ``owners``."""
    if not isinstance(state, Mapping):
        cause = f"The state is a {type(state).__name__}."
        raise ArgumentTypeError(cause, "Give a dict, such as {'model': model.state_dict()}.")
    return by_key(_walk((), state, None, None, owners))


def _walk(
    path: tuple[str | int, ...], value: Any, holder: Any, name: Any, owners: list[LoadedObject]
) -> Iterator[Leaf]:
    if _has_state(value):
        own = value.state_dict()
        owners.append(LoadedObject(path, value, own))
        value = own
    if isinstance(value, Mapping):
        for key in sorted(value, key=lambda each: (str(each), type(each).__qualname__)):
            yield from _walk((*path, str(key)), value[key], value, key, owners)
    elif isinstance(value, list) and _is_inner(value):
        for index, each in enumerate(value):
            yield from _walk((*path, index), each, value, index, owners)
    else:
        yield Leaf(path, value, holder, name)


def _has_state(value: Any) -> bool:
    """Return True for an object with a state, such as a module, an optimizer or a data loader."""
    return callable(getattr(value, "state_dict", None)) and not isinstance(value, torch.Tensor)


def _is_inner(values: list[Any]) -> bool:
    """Return True if a list has leaves in it, and is not one itself."""
    return any(
        isinstance(each, Mapping | torch.Tensor)
        or _is_numeric(each)
        or _has_state(each)
        or (isinstance(each, list) and _is_inner(each))
        for each in values
    )


def _is_numeric(value: Any) -> bool:
    """Return True for an array of NumPy whose elements tensors of torch may have."""
    return type(value) is np.ndarray and torch_dtype(value.dtype.name) is not None


def numeric_arrays(leaves: Mapping[str, Leaf]) -> dict[str, Any]:
    """Return the numeric arrays of NumPy among leaves, as tensors; without the states of generators of
    random numbers."""
    texts = {key: leaf.value for key, leaf in leaves.items() if type(leaf.value) is str}
    return {
        key: shared_tensor(leaf.value)
        for key, leaf in leaves.items()
        if _is_numeric(leaf.value) and not is_in_generator(key, texts)
    }


def is_divided(tensor: Any) -> bool:
    """Return True for a tensor that processes may hold parts of."""
    return isinstance(tensor, DTensor) or hasattr(tensor, "local_shards")


def local_tensors(tensor: Any) -> list[Any]:
    """Return the tensors with the values that this process has of a tensor.

    None for a DTensor if another process, on the first of its replicas, is to write the same.
    """
    if isinstance(tensor, DTensor):
        mesh = tensor.device_mesh
        if mesh.size() > 1 and not dist.is_initialized():
            cause = f"It is a DTensor on {mesh.size()} processes, and torch.distributed is not"
            remedy = "Save before destroy_process_group(), in all processes."
            raise ArgumentError(f"{cause} initialized.", remedy)
        coordinate = mesh.get_coordinate()
        return [tensor.to_local()] if _is_first(tensor, coordinate) else []
    if hasattr(tensor, "local_shards"):
        return [each.tensor for each in tensor.local_shards()]
    return [tensor]


def check_has_memory(key: str, values: Sequence[Any]) -> None:
    """Raise ``ArgumentError`` if values of a tensor are on the device meta, which has none."""
    if any(each.device.type == "meta" for each in values):
        cause = f"{key!r} is on the device meta, and has no values."
        raise ArgumentError(cause, "Give it memory first, such as by model.to_empty(device='cpu').")


def held_by(
    key: str, tensor: Any, values: Sequence[Any] | None = None
) -> tuple[list[HeldRegion], bool]:
    """Return the regions of a tensor that this process holds, and True unless another process is to
    write them: it holds the same.

    ``values`` are copies of its ``local_tensors``, from which the values are taken.
    """
    try:
        if isinstance(tensor, DTensor):
            return _of_dtensor(tensor, values)
        if hasattr(tensor, "local_shards"):
            shards = tensor.local_shards()
            copies = values or [each.tensor for each in shards]
            return [
                HeldRegion(Region(each.metadata.shard_offsets, each.metadata.shard_sizes), copy)
                for each, copy in zip(shards, copies, strict=True)
            ], True
    except (ArgumentError, UnsupportedError) as error:
        raise error.at(repr(key)) from None
    tensor = values[0] if values else tensor
    return [HeldRegion(Region.whole(tuple(tensor.shape)), tensor)], True


def _is_first(tensor: Any, coordinate: Any) -> bool:
    """Return True on the first of the replicas of a DTensor; False out of its mesh."""
    return coordinate is not None and not any(
        place.is_replicate() and number
        for place, number in zip(tensor.placements, coordinate, strict=True)
    )


def _of_dtensor(tensor: Any, values: Sequence[Any] | None) -> tuple[list[HeldRegion], bool]:
    """Return the regions of a DTensor on this device, and True on the first of its replicas."""
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return [], False
    placements = tuple(map(_placement, tensor.placements))
    spread = Spread(tuple(tensor.shape), tuple(mesh.shape), tuple(coordinate), placements)
    local: Any = values[0] if values else tensor.to_local()
    rules = [spread.runs(False), *([spread.runs(True)] if spread.may_be_fsdp else [])]
    fitting = [runs for runs in rules if local_shape(runs) == tuple(local.shape)]
    if not fitting or any(runs != fitting[0] for runs in fitting):
        raise UnsupportedError(
            f"This process holds {list(local.shape)} of {list(tensor.shape)}, which the placements "
            f"{tensor.placements} do not explain.",
            "Divide the axis evenly, or save the tensor whole: tensor.full_tensor().",
        )
    held = []
    for each in held_regions(fitting[0]):
        part = local
        for axis, (start, extent) in enumerate(zip(each.inner, each.shape, strict=True)):
            part = part.narrow(axis, start, extent)
        held.append(HeldRegion(Region(each.offset, each.shape), part))
    return held, _is_first(tensor, coordinate)


def _placement(placement: Any) -> Placement:
    """Return a placement of torch as shardvar has it."""
    if placement.is_replicate():
        return Placement()
    if placement.is_partial():
        raise UnsupportedError(
            "It is a partial DTensor, whose terms are not reduced.",
            "Redistribute it first: tensor.redistribute(placements=...).",
        )
    strided = type(placement).__name__ == "_StridedShard"
    return Placement(placement.dim, placement.split_factor if strided else None)
