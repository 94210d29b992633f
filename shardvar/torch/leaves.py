"""The leaves of a training state: tensors and plain values, and the regions of them that this process
holds.

    state            any nesting of dicts, lists, and objects with ``state_dict``
    key of a leaf    the keys on the way to it, joined by dots, as ``torch.distributed.checkpoint``
                     joins them; a list without tensors, arrays and dicts in it is one leaf
    regions          of a DTensor by its mesh and its placements, of a ShardedTensor by its shards, of
                     any other tensor the whole
    order            by the texts of the keys, the same in all processes, also if each has filled its dicts in
                     another order: ``state_dict`` and ``load_state_dict`` may call collectives
    slots            of an optimizer that has not made a step: PyTorch fills its state at its first step,
                     and a checkpoint has some. So ``load`` makes a slot that the checkpoint has: one of
                     the parameter's shape is divided as the parameter is, any other one, such as a
                     step, is a tensor that is not divided
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from shardvar.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from shardvar.formats.leaves import is_in_generator
from shardvar.formats.torch.shares import Placement, Spread, held_regions, local_shape
from shardvar.formats.torch.values import DTYPES
from shardvar.layout.dtypes import TORCH_ONLY, Array, numpy_dtype
from shardvar.layout.region import Region
from shardvar.verbs.reader import Reader
from shardvar.verbs.training.states import by_key

_NAMES = frozenset(DTYPES.values()) - {*TORCH_ONLY}
"""The dtypes that torch shares with NumPy or ``ml_dtypes``."""
DTYPES_READ = frozenset(getattr(torch, name) for name in _NAMES if hasattr(torch, name))
_BITS = {1: torch.uint8, 2: torch.int16}
"""A dtype that NumPy and torch share, by the size of an element."""


def torch_dtype(name: str) -> Any:
    """Return torch's dtype of a name; None if no tensor can be made of its values."""
    return getattr(torch, name, None) if name in _NAMES else None


def as_tensor(array: Array, name: str) -> Any:
    """Return a tensor that shares the memory of an array; a dtype of ``ml_dtypes`` goes by its
    bits."""
    if hasattr(np, name):
        return torch.from_numpy(array)
    bits = _BITS[array.dtype.itemsize]
    shared = array.view(str(bits).removeprefix("torch."))
    return torch.from_numpy(shared).view(torch_dtype(name))


def shared_tensor(array: Array) -> Any:
    """Return a tensor with the elements of any array, which it shares where torch can."""
    is_shared = (
        array.dtype.isnative and array.flags.writeable and all(each >= 0 for each in array.strides)
    )
    shared = array if is_shared else array.astype(array.dtype.newbyteorder("="))
    return as_tensor(shared, array.dtype.name)


def memory_of(tensor: Any) -> Array | None:
    """Return the elements as an array that shares their memory; None if no array can have them."""
    is_plain = tensor.layout is torch.strided and not (tensor.is_conj() or tensor.is_neg())
    if tensor.device.type != "cpu" or not is_plain:
        return None
    name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(np, name):
        array: Array = tensor.numpy()
        return array
    bits: Array = tensor.view(_BITS[tensor.element_size()]).numpy()
    return bits.view(numpy_dtype(name))


class Leaf(NamedTuple):
    path: tuple[str | int, ...]
    value: Any
    holder: Any
    """The dict or the list that it is in."""
    name: Any
    """Its key or its index there."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldRegion:
    region: Region
    values: Any
    """A tensor that shares memory with the state."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedObject:
    """An object whose own state is a part of the state."""

    path: tuple[str | int, ...]
    owner: Any
    state: Any


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
    """Return the arrays of NumPy among leaves as tensors, without states of generators."""
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
    """Return the values of this process; none if another one, the first replica, is to write
    them."""
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
    if any(each.device.type == "meta" for each in values):
        cause = f"{key!r} is on the device meta, and has no values."
        raise ArgumentError(cause, "Give it memory first, such as by model.to_empty(device='cpu').")


def held_by(
    key: str, tensor: Any, values: Sequence[Any] | None = None
) -> tuple[list[HeldRegion], bool]:
    """Return the regions that this process holds, and True if it is to write them."""
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
    if placement.is_replicate():
        return Placement()
    if placement.is_partial():
        raise UnsupportedError(
            "It is a partial DTensor, whose terms are not reduced.",
            "Redistribute it first: tensor.redistribute(placements=...).",
        )
    strided = type(placement).__name__ == "_StridedShard"
    return Placement(placement.dim, placement.split_factor if strided else None)


_STATE, _GROUPS, _PARAMS = "state", "param_groups", "params"
"""The keys of an optimizer's state."""


def new_slots(
    reader: Reader, stored: Collection[str], owners: Sequence[LoadedObject], known: Collection[str]
) -> dict[str, Leaf]:
    """Return new slots that the checkpoint has, by key; they are in the states of ``owners``
    now."""
    found: dict[str, Leaf] = {}
    for each in owners:
        if not isinstance(each.owner, torch.optim.Optimizer):
            continue
        params = _parameters(each)
        path = (*each.path, _STATE)
        prefix = "".join(f"{step}." for step in path)
        for key in stored:
            if not key.startswith(prefix) or key in known:
                continue
            number, _, slot = key.removeprefix(prefix).partition(".")
            for param in params.get(number, ()):
                value = _new_slot(reader, key, param)
                if slot and "." not in slot and value is not NotImplemented:
                    holder = each.state[_STATE].setdefault(int(number), {})
                    holder[slot] = value
                    found[key] = Leaf((*path, number, slot), value, holder, slot)
    return found


def _parameters(optimizer: LoadedObject) -> Mapping[str, tuple[Any]]:
    return dict(_numbered(optimizer.state[_GROUPS], optimizer.owner.param_groups))


def _numbered(stored: Any, groups: Any) -> Iterator[tuple[str, tuple[Any]]]:
    for numbers, group in zip(stored, groups, strict=True):
        for number, param in zip(numbers[_PARAMS], group[_PARAMS], strict=True):
            yield str(number), (param,)


def _new_slot(reader: Reader, key: str, param: Any) -> Any:
    """Return an empty tensor, None for a plain value, ``NotImplemented`` if its division is
    unknown."""
    stored = reader[key]
    dtype = torch_dtype(stored.dtype)
    if dtype is None:
        return None
    if stored.shape == tuple(param.shape):
        return torch.empty_like(param.detach(), dtype=dtype)
    if stored.shape and isinstance(param, DTensor):
        return NotImplemented
    return torch.empty(stored.shape, dtype=dtype)
