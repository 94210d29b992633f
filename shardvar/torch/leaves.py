"""The leaves of a training state: tensors and plain values, the regions of them that this process
holds, and a copy of them for a save in the background.

    state            any nesting of dicts, lists, and objects with ``state_dict``
    key of a leaf    the keys on the way to it, joined by dots, as ``torch.distributed.checkpoint``
                     joins them; a list without tensors, arrays and dicts in it is one leaf
    regions          of a DTensor by its mesh and its placements, of a ShardedTensor by its shards, of
                     any other tensor the whole
    order            by the texts of the keys, the same in all processes, also if each has filled its dicts in
                     another order: ``state_dict`` and ``load_state_dict`` may call collectives
    parts            of a tensor of a class that torch can flatten, such as a quantised one: each is a
                     tensor with its own key; attributes of other classes of tensors are values
    lists            get the length that they have in the checkpoint, such as the histories of LBFGS
    slots            of an optimizer that has not made a step: PyTorch fills its state at its first step,
                     and a checkpoint has some. So ``load`` makes a slot that the checkpoint has: one of
                     the parameter's shape is divided as the parameter is, any other one, such as a
                     step, is a tensor that is not divided
    copies           of the local tensors, in memory that is kept between saves, pinned if a tensor is
                     on a GPU
    objects          plain values, encoded when the state is read; values that never change, such as
                     numbers and texts, only when they are written
"""

import io
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from shardvar.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from shardvar.formats.leaves import is_in_generator
from shardvar.formats.torch.shares import Placement, Spread, held_regions, local_shape
from shardvar.formats.torch.source import encoding_in
from shardvar.formats.torch.values import DTYPES
from shardvar.layout.dtypes import TORCH_ONLY, Array, numpy_dtype
from shardvar.layout.region import Region
from shardvar.planning.index import MOST_TIED
from shardvar.records import entity, field
from shardvar.verbs.background import Staging, copy_arrays, new_pages
from shardvar.verbs.reader import Reader
from shardvar.verbs.together.run import in_parts
from shardvar.verbs.together.shares import LocalShard
from shardvar.verbs.training.states import by_key
from shardvar.verbs.writer_process import SharedStaging

_NAMES = frozenset(DTYPES.values()) - {*TORCH_ONLY}
"""The dtypes that torch shares with NumPy or ``ml_dtypes``."""
DTYPES_READ = frozenset(getattr(torch, name) for name in _NAMES if hasattr(torch, name))
_BITS = {1: torch.uint8, 2: torch.int16}
"""A dtype that NumPy and torch share, by the size of an element."""


def torch_dtype(name: str) -> Any:
    """Return torch's dtype of a name; None if no tensor can be made of its values."""
    return getattr(torch, name, None) if name in _NAMES else None


def as_tensor(array: Array, name: str) -> Any:
    """Return a tensor that shares the memory of an array; ``ml_dtypes`` go by their bits."""
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


_MOST_SPREADS = 1 << 12
"""The divisions of tensors that are kept: a model has some for each shape."""


class Leaf(NamedTuple):
    path: tuple[str | int, ...]
    value: Any
    holder: Any
    """The dict or the list that it is in."""
    name: Any
    """Its key or its index there."""

    @property
    def key(self) -> str:
        return ".".join(map(str, self.path))


@entity
class HeldRegion:
    region: Region
    values: Any
    """A tensor that shares memory with the state."""


@entity
class LoadedObject:
    """An object whose own state is a part of the state."""

    path: tuple[str | int, ...]
    owner: Any
    state: Any


def leaves_of_state(
    state: Any, owners: list[LoadedObject], lists: dict[str, Leaf] | None = None
) -> dict[str, Leaf]:
    """Return the leaves of a state by their keys; append its objects with a state to ``owners``.

    Its lists that have leaves in them, by their keys, go to ``lists``."""
    if not isinstance(state, Mapping):
        cause = f"The state is a {type(state).__name__}."
        raise ArgumentTypeError(cause, "Give a dict, such as {'model': model.state_dict()}.")
    return by_key(_walk(Leaf((), state, None, None), owners, {} if lists is None else lists))


def _walk(leaf: Leaf, owners: list[LoadedObject], lists: dict[str, Leaf]) -> Iterator[Leaf]:
    if _has_state(leaf.value):
        owners.append(LoadedObject(leaf.path, leaf.value, leaf.value.state_dict()))
        leaf = leaf._replace(value=owners[-1].state)
    value, steps = leaf.value, list[tuple[Any, Any]]()
    if isinstance(value, Mapping):
        names = sorted(value, key=lambda each: (str(each), type(each).__qualname__))
        steps = [(str(name), name) for name in names]
    elif isinstance(value, list) and _is_inner(value):
        lists[leaf.key] = leaf
        steps = [(index, index) for index in range(len(value))]
    elif isinstance(value, torch.Tensor):
        parts = _parts_of(leaf.key, value)
        if parts is None:
            yield leaf
            parts = {} if type(value) in _PLAIN or is_divided(value) else vars(value)
        value, steps = parts, [(name, name) for name in parts]
    else:
        yield leaf
    for step, name in steps:
        yield from _walk(Leaf((*leaf.path, step), value[name], value, name), owners, lists)


CLASS = "__class__"
"""The last step of the key of the class of a tensor that is saved by its parts, and its settings."""


def _parts_of(key: str, tensor: Any) -> dict[str, Any] | None:
    """Return the tensors that a tensor consists of, and its class; None if it is not made of others.

    A DTensor of such tensors has a DTensor for each of its parts.
    """
    if hasattr(tensor, "local_shards"):
        return None
    if tensor.is_nested:
        remedy = "Save what it consists of: x.values() and x.offsets(), or x.unbind()."
        raise UnsupportedError(f"{key!r} is a nested tensor.", remedy)
    if type(tensor) in _PLAIN:
        return None
    if torch.nn.parameter.is_lazy(tensor):
        cause = f"{key!r} is of a lazy module that has not seen a batch, and has no shape."
        raise ArgumentError(cause, "Run the module once first.")
    is_spread = isinstance(tensor, DTensor)
    local = tensor._local_tensor if is_spread else tensor
    if isinstance(local, DTensor) or not hasattr(local, "__tensor_flatten__"):
        return None
    names, settings = local.__tensor_flatten__()
    parts = {each: getattr(local, each) for each in names}
    if is_spread:
        if any(each.shape != local.shape for each in parts.values()):
            cause = (
                f"{key!r} is a DTensor of {type(local).__name__}, whose parts have other shapes."
            )
            raise UnsupportedError(cause, "Save it before it is divided, or dequantized.")
        parts = {each: _divided_like(tensor, part) for each, part in parts.items()}
    if not isinstance(settings, Mapping):
        settings = dict(enumerate(settings if isinstance(settings, Sequence) else [settings]))
    known = [f"{each}={value!r}" for each, value in settings.items() if _is_setting(value)]
    return parts | {CLASS: [type(local).__qualname__, [*tensor.shape], sorted(known)]}


def _divided_like(tensor: DTensor, local: Any) -> DTensor:
    mesh, shape, stride = tensor.device_mesh, tensor.shape, tensor.stride()
    return DTensor.from_local(
        local, mesh, tensor.placements, run_check=False, shape=shape, stride=stride
    )


def check_class(key: str, given: Any, stored: Any) -> None:
    """Raise unless tensors that are saved by their parts are of one class, with the same settings."""
    if given != stored:
        cause = f"{key.removesuffix(f'.{CLASS}')!r} is a {stored[0]} in the checkpoint, with"
        cause = f"{cause} {stored[1:]}, and a {given[0]} in the state, with {given[1:]}."
        raise ArgumentError(cause, "Give the state a tensor of the same class and settings.")


def _is_setting(value: Any) -> bool:
    """Return True if the text of a value determines it, in any process."""
    if isinstance(value, list | tuple):
        return all(map(_is_setting, value))
    return type(value) in _CONSTANTS or isinstance(value, torch.dtype)


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
    is_plain = type(tensor) in _PLAIN
    return not is_plain and (isinstance(tensor, DTensor) or hasattr(tensor, "local_shards"))


def local_tensors(tensor: Any) -> list[Any]:
    """Return the values of this process; none if another one is to write them."""
    if isinstance(tensor, DTensor):
        mesh = tensor.device_mesh
        if not dist.is_initialized() and mesh.size() > 1:
            cause = f"It is a DTensor on {mesh.size()} processes, and torch.distributed is not"
            remedy = "Save before destroy_process_group(), in all processes."
            raise ArgumentError(f"{cause} initialized.", remedy)
        coordinate = mesh.get_coordinate()
        is_writer = coordinate is not None and (in_parts() or _is_first(tensor, coordinate))
        return [tensor.to_local()] if is_writer else []
    if hasattr(tensor, "local_shards"):
        return [each.tensor for each in tensor.local_shards()]
    return [tensor]


def check_has_memory(key: str, values: Sequence[Any]) -> None:
    if any(each.is_meta for each in values):
        cause = f"{key!r} is on the device meta, and has no values."
        raise ArgumentError(cause, "Give it memory first, such as by model.to_empty(device='cpu').")


def is_on_meta(tensor: Any) -> bool:
    return not hasattr(tensor, "local_shards") and bool(tensor.is_meta)


def with_memory(tensor: Any) -> Any:
    """Return a tensor like one on the device meta, with memory."""
    if isinstance(tensor, DTensor):
        device = tensor.device_mesh.device_type
        return _divided_like(tensor, torch.empty_like(tensor.to_local(), device=device))
    place = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    return torch.empty_like(tensor, device=place)


def give_memory(filled: Sequence[Leaf], owners: Sequence[LoadedObject]) -> None:
    """Give tensors that were on the device meta to the state, and to the modules that have them.

    A parameter stays the same object, which an optimizer and other modules may have.
    """
    given = {(id(leaf.holder), leaf.name): leaf.value for leaf in filled}
    for leaf in filled:
        leaf.holder[leaf.name] = leaf.value
    for each in owners:
        if not isinstance(each.owner, torch.nn.Module):
            continue
        for name, own in each.owner.state_dict(keep_vars=True).items():
            new = given.get((id(each.state), name))
            if new is None or not own.is_meta:  # or tied to one that was given
                continue
            new = new.detach()
            if isinstance(own, torch.nn.Parameter):
                new = torch.nn.Parameter(new, own.requires_grad)
            vars(new).update(vars(own))
            torch.utils.swap_tensors(own, new)


def held_by(key: str, tensor: Any, values: Sequence[Any] | None = None) -> list[HeldRegion]:
    """Return the regions that this process holds."""
    try:
        if isinstance(tensor, DTensor):
            return _of_dtensor(tensor, values)
        if hasattr(tensor, "local_shards"):
            shards = tensor.local_shards()
            copies = values or [each.tensor for each in shards]
            return [
                HeldRegion(Region(each.metadata.shard_offsets, each.metadata.shard_sizes), copy)
                for each, copy in zip(shards, copies, strict=True)
            ]
    except (ArgumentError, UnsupportedError) as error:
        raise error.at(repr(key)) from None
    tensor = values[0] if values else tensor
    return [HeldRegion(Region.whole(tuple(tensor.shape)), tensor)]


def _is_first(tensor: Any, coordinate: Any) -> bool:
    """Return True on the first of the replicas of a DTensor."""
    return not any(
        place.is_replicate() and number
        for place, number in zip(tensor.placements, coordinate, strict=True)
    )


def _of_dtensor(tensor: Any, values: Sequence[Any] | None) -> list[HeldRegion]:
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return []
    placements: list[Placement] = []
    for each in tensor.placements:
        if each.is_partial():
            raise UnsupportedError(
                "It is a partial DTensor, whose terms are not reduced.",
                "Redistribute it first: tensor.redistribute(placements=...).",
            )
        factor = each.split_factor if type(each).__name__ == "_StridedShard" else None
        placements.append(Placement() if each.is_replicate() else Placement(each.dim, factor))
    spread = Spread(tuple(tensor.shape), tuple(mesh.shape), tuple(coordinate), tuple(placements))
    local: Any = values[0] if values else tensor.to_local()
    regions = _regions_of(spread, tuple(local.shape))
    if regions is None:
        raise UnsupportedError(
            f"This process holds {list(local.shape)} of {list(tensor.shape)}, which the placements "
            f"{tensor.placements} do not explain.",
            "Divide the axis evenly, or save the tensor whole: tensor.full_tensor().",
        )
    held = []
    for region, inner in regions:
        part = local
        for axis, (start, extent) in enumerate(zip(inner, region.shape, strict=True)):
            part = part.narrow(axis, start, extent) if extent < part.shape[axis] else part
        held.append(HeldRegion(region, part))
    return held


@lru_cache(_MOST_SPREADS)
def _regions_of(
    spread: Spread, local: tuple[int, ...]
) -> list[tuple[Region, tuple[int, ...]]] | None:
    """Return the regions, each with its place in the local tensor; None if the rules do not explain it.

    Kept between saves, by all that they follow from.
    """
    rules = [spread.runs(False), *([spread.runs(True)] if spread.may_be_fsdp else [])]
    fitting = [runs for runs in rules if local_shape(runs) == local]
    if not fitting or any(runs != fitting[0] for runs in fitting):
        return None
    held = held_regions(fitting[0])
    return [(Region(each.offset, each.shape), each.inner) for each in held]


_STATE, _GROUPS, _PARAMS = "state", "param_groups", "params"
"""The keys of an optimizer's state."""


def fit_lists(
    reader: Reader, leaves: Mapping[str, Leaf], lists: Mapping[str, Leaf]
) -> tuple[dict[str, Leaf], list[tuple[list[Any], list[Any]]]]:
    """Return the leaves as if lists were as long as in the checkpoint, and each with its new items.

    A new item that is not a single value has the form of the last one. Groups of parameters stay: their
    optimizer has their number.
    """
    stored, fitted = dict.fromkeys(reader), dict(leaves)
    less = [key for key in leaves if key not in stored]
    if not less and len(stored) == len(leaves):
        return fitted, []
    known = {key: leaf for key, leaf in lists.items() if leaf.path[-1] != _GROUPS}
    known |= {key: leaves[key] for key in less if type(leaves[key].value) is list}
    counts: dict[str, int] = {}
    for key in stored:
        for name, index in _places(key, known):
            counts[name] = max(counts.get(name, 0), index + 1)
    changed = []
    for name, leaf in known.items():
        values, count = leaf.value, 0 if name in stored else counts.get(name)
        if count is None or (name in lists and name not in stored and count == len(values)):
            continue
        items = values[:count] if name in lists else []
        fitted = {
            key: each._replace(holder=items) if each.holder is values else each
            for key, each in fitted.items()
            if key != name
            and all(at[0] != name or at[1] < len(items) for at in _places(key, known))
        }
        if name in stored:
            fitted[name] = leaf
            continue
        last = values[-1] if name in lists else None
        for index in range(len(items), count):
            item = _form_of(last) if f"{name}.{index}" not in stored else None
            items.append(item)
            for new in _walk(Leaf((*leaf.path, index), item, items, index), [], {}):
                like = last if item is None else new.value
                value = _new_tensor(reader, new.key, like) if new.key in stored else new.value
                new.holder[new.name] = value
                fitted[new.key] = new._replace(value=value)
        changed.append((values, items))
    return fitted, changed


def _places(key: str, lists: Mapping[str, Leaf]) -> Iterator[tuple[str, int]]:
    """Yield the lists that a key leads through, and the index in each."""
    steps = key.split(".") if lists else []
    for name, step in zip(accumulate(steps, "{}.{}".format), steps[1:], strict=False):
        if step.isdecimal() and name in lists:
            yield name, int(step)


def _form_of(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {key: _form_of(each) for key, each in item.items()}
    is_of_parts = (
        isinstance(item, torch.Tensor) and type(item) not in _PLAIN and not is_divided(item)
    )
    return [*map(_form_of, item)] if isinstance(item, list) else None if is_of_parts else item


def _new_tensor(reader: Reader, key: str, like: Any) -> Any:
    """Return a new tensor for a stored one, divided as one of its shape; None for another value.

    ``NotImplemented`` if its division is unknown.
    """
    about = reader[key]
    dtype = torch_dtype(about.dtype)
    like = like.detach() if isinstance(like, torch.Tensor) else torch.empty(0)
    if dtype is None:
        return None
    if about.shape == tuple(like.shape):
        return torch.empty_like(like, dtype=dtype)
    if about.shape and is_divided(like):
        return NotImplemented
    # A step of an optimizer is not on the device of its parameter.
    return torch.empty(about.shape, dtype=dtype, device=like.device if about.shape else None)


def new_slots(
    reader: Reader, stored: Collection[str], owners: Sequence[LoadedObject], known: Collection[str]
) -> dict[str, Leaf]:
    """Return new slots that the checkpoint has, by key; they are in the states of ``owners`` now."""
    slots: dict[str, Leaf] = {}
    for each in owners:
        if not isinstance(each.owner, torch.optim.Optimizer):
            continue
        params: dict[str, Any] = {}
        for numbers, group in zip(each.state[_GROUPS], each.owner.param_groups, strict=True):
            params |= zip(map(str, numbers[_PARAMS]), group[_PARAMS], strict=True)
        path = (*each.path, _STATE)
        prefix, found = "".join(f"{step}." for step in path), list[tuple[int, str, int, str]]()
        for key in stored:
            if not key.startswith(prefix) or key in known:
                continue
            number, _, slot = key.removeprefix(prefix).partition(".")
            slot, _, index = slot.partition(".")
            if number not in params or not slot or not (index or "0").isdecimal():
                continue
            if not (index and slot in each.state[_STATE].get(int(number), ())):
                found.append((int(number), slot, int(index or -1), key))
        for param, slot, place, key in sorted(found):
            value = _new_tensor(reader, key, params[str(param)])
            if value is NotImplemented:
                continue
            holder, steps = each.state[_STATE].setdefault(param, {}), (*path, str(param), slot)
            if place >= 0:
                holder, steps = holder.setdefault(slot, []), (*steps, place)
                holder += [None] * (place + 1 - len(holder))
            holder[steps[-1]] = value
            slots[key] = Leaf(steps, value, holder, steps[-1])
    return slots


_CONSTANTS = frozenset({int, float, bool, complex, str, bytes, type(None)})
"""The types of values that never change, and that any format has a word for."""
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
"""The classes of tensors that are nothing but their elements."""
_SMALL_NBYTES = 1 << 20
"""Up to this size PyTorch copies a tensor: one call takes less time than what threads need."""


_SMALL_TIED_NBYTES = 1 << 16
"""Tensors below this size are not tied."""


class Encoded(bytes):
    __slots__ = ()


class HeldTensor(NamedTuple):
    """A tensor of a state, and the values that this process has of it."""

    key: str
    whole: Any
    """The tensor of the state: only its shape and its placements are read in a copy."""
    local: Sequence[Any]
    """The tensors with its values in this process, or copies of these."""

    def shards(self, *, is_part: bool) -> Any:
        """Return the regions that this process is to write, or a tensor that is not divided. Without
        any, a part has an empty region, since it has all keys."""
        if not is_divided(self.whole):
            return self.local[0].detach()
        held = held_by(self.key, self.whole, self.local) if self.local else []
        shape = tuple(self.whole.shape)
        if not held and is_part and shape:
            nothing = (0,) * len(shape)
            return [LocalShard(torch.empty(nothing, dtype=self.whole.dtype), nothing, shape)]
        return [LocalShard(each.values.detach(), each.region.offset, shape) for each in held]


@entity
class HeldState:
    tensors: Sequence[HeldTensor]
    objects: Mapping[str, Any]
    """The plain values: ``Encoded``, or of a type of constants."""
    paths: Mapping[str, tuple[str | int, ...]]
    ties: Mapping[str, str] = field(default_factory=dict)
    """The keys of tensors that are another one, each with the key of that tensor."""

    def encoded(self, format: str) -> dict[str, bytes]:
        of_value: dict[tuple[type, str], bytes] = {}
        encodings: dict[str, bytes] = {}
        for key, value in self.objects.items():
            if type(value) is Encoded:
                encodings[key] = bytes(value)
                continue
            # Thousands of groups of an optimizer have the same few values. The text tells 0.0 from
            # -0.0.
            mark = type(value), repr(value)
            if mark not in of_value:
                of_value[mark] = encode_plain(key, value, format)
            encodings[key] = of_value[mark]
        return encodings


def held_state(leaves: Mapping[str, Leaf], format: str) -> HeldState:
    """Return the values that this process holds of a state; no tensor is copied."""
    tensors, objects = [], {}
    # torch's own format has arrays as objects.
    arrays = numeric_arrays(leaves) if format != "torch" else {}
    ties: dict[str, str] = {}
    same: dict[Any, list[str]] = {}
    with torch.no_grad():
        for key, leaf in leaves.items():
            value = arrays.get(key, leaf.value)
            if isinstance(value, torch.Tensor):
                try:
                    local = local_tensors(value)
                except ArgumentError as error:
                    raise error.at(repr(key)) from None
                check_has_memory(key, local)
                mark = _identity(value, local) if format == "shardvar" else None
                others = same.setdefault(mark, []) if mark else []
                others.append(key)
                if 1 < len(others) <= MOST_TIED:
                    ties[key] = others[0]
                    continue
                tensors.append(HeldTensor(key, value, local))
            elif type(value) in _CONSTANTS:
                objects[key] = value
            elif isinstance(value, io.BytesIO):
                objects[key] = value.getvalue()
            else:
                objects[key] = Encoded(encode_plain(key, value, format))
    paths = {key: leaf.path for key, leaf in leaves.items()}
    return HeldState(tensors, objects, paths, ties)


def _identity(tensor: Any, local: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return a mark that only tied tensors share; None if it is unknown, or the tensor is small."""
    # The whole tensor is measured, so that all processes find the same.
    if len(local) != 1 or type(local[0]) not in _PLAIN or hasattr(tensor, "local_shards"):
        return None
    own = local[0]
    nbytes = tensor.numel() * own.itemsize
    if own.layout is not torch.strided or not own.numel() or nbytes < _SMALL_TIED_NBYTES:
        return None
    spread = (tensor.device_mesh, tensor.placements, tensor.shape) if is_divided(tensor) else ()
    kind = own.dtype, own.shape, own.stride(), own.is_conj(), own.is_neg()
    return (own.untyped_storage().data_ptr(), own.storage_offset(), own.device, *kind, spread)


def encode_plain(key: str, value: Any, format: str) -> bytes:
    """Return the encoding of a plain value; in torch's format, others as ``torch.save`` has them."""
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
    except Exception as error:  # of the methods of any class
        cause = f"{key!r} is a {type(value).__name__}, which cannot be saved: {error}."
        raise ArgumentTypeError(cause, "Leave it out of the state.") from error
    try:
        return encoding_in(buffer.getvalue())
    except UnsupportedError as error:
        if format == "torch":
            return buffer.getvalue()
        raise error.at(repr(key)) from None


class Copies:
    """Copies of tensors in memory that is kept, of one state at a time."""

    def __init__(self) -> None:
        self.memory: Any = Staging()
        self._kinds: list[tuple[Any, ...]] = []
        self._places: list[Any] = []
        self._about: tuple[Any, ...] = ()
        self._way = False, False
        self._under_way: list[Any] = []

    def wait(self) -> None:
        # A device copies on its current stream. Work that is given to it later begins after the copy.
        while self._under_way:
            self._under_way.pop().synchronize()

    def copy(
        self, tensors: Sequence[HeldTensor], most: int | None, background: bool | str
    ) -> list[HeldTensor]:
        """Return the tensors with copies of at most ``most`` bytes, valid after ``wait`` until the next call."""
        self.wait()
        local = [each for tensor in tensors for each in tensor.local]
        if not background:
            # What is in memory is not copied. What is on a device is copied together: one by one takes
            # far longer.
            local = [each for each in local if each.device.type != "cpu"]
        kinds = [(type(t), t.dtype, t.layout, t.device, t.shape) for t in local]
        # A fork does not own memory that processes share.
        about = most, background, os.getpid()
        if kinds != self._kinds or about != self._about:
            self._make_places(kinds, about)
        with torch.no_grad():
            copies = dict(zip(map(id, local), self._copy(local), strict=True))
        return [
            each._replace(local=[copies.get(id(one), one) for one in each.local])
            for each in tensors
        ]

    def _copy(self, local: Sequence[Any]) -> list[Any]:
        large: list[tuple[Array, Array]] = []
        copies = [*self._places]
        try:
            for number, (place, tensor) in enumerate(zip(copies, local, strict=True)):
                if place is None:
                    # Of a class that has its own way to copy, or to be refused.
                    copies[number] = tensor.detach().clone()
                    continue
                memory = None if place.large is None else memory_of(tensor.detach())
                if memory is None:
                    place.tensor.copy_(tensor, non_blocking=True)
                else:
                    large.append((place.large, memory))
                copies[number] = place.tensor
            copy_arrays([into for into, _ in large], [memory for _, memory in large])
        finally:  # the next save waits for the copies of one that failed
            for device in {kind[3] for kind in self._kinds if kind[3].type not in ("cpu", "meta")}:
                module = torch.get_device_module(device)
                if hasattr(module, "current_stream"):
                    self._under_way.append(module.current_stream(device).record_event())
                else:
                    module.synchronize(device)
        return copies

    def _make_places(self, kinds: list[tuple[Any, ...]], about: tuple[Any, ...]) -> None:
        self._kinds, self._places = [], []  # before other memory is made
        # A copy of the elements of such a tensor is a copy of it.
        copied = [
            kind in _PLAIN
            and dtype in DTYPES_READ
            and layout is torch.strided
            and device.type != "meta"
            for kind, dtype, layout, device, _ in kinds
        ]
        # To pin memory takes longer than a copy, and pays where it is kept.
        is_pinned = about[1] is True and any(kind[3].type == "cuda" for kind in kinds)
        way = about[1] == "process", is_pinned
        if way != self._way:
            self.memory = Staging(_pinned_pages if is_pinned else new_pages)
            if about[1] == "process":
                self.memory = SharedStaging()
            self._way = way
        sizes = [
            kind[4].numel() * kind[1].itemsize if is_copied else 0
            for kind, is_copied in zip(kinds, copied, strict=True)
        ]
        parts = self.memory.places(sizes, about[0])
        self._places = [
            _Place.of(part, kind[1], kind[4]) if is_copied else None
            for part, kind, is_copied in zip(parts, kinds, copied, strict=True)
        ]
        self._kinds, self._about = kinds, about


class _Place(NamedTuple):
    """A place in the memory, as a tensor, and if it is large as an array."""

    tensor: Any
    large: Array | None
    """The same memory, if threads of ``copy_arrays`` are to fill it."""

    @classmethod
    def of(cls, part: Array, dtype: Any, shape: Any) -> Self:
        tensor = torch.from_numpy(part).view(dtype).view(shape)
        return cls(tensor, memory_of(tensor) if part.nbytes > _SMALL_NBYTES else None)


def _pinned_pages(nbytes: int) -> Array:
    memory: Array = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
    return memory
