"""The leaves of a pytree, and the regions of its arrays that the devices of this process hold.

key of a leaf    the steps on the way to it, joined by dots, as Orbax joins them
regions          of an array by its addressable shards, of a template by its sharding
random keys      the array of their data, whose last axes no sharding divides
numbers          of Python are arrays without axes, as Orbax stores them
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from shardvar.layout.dtypes import dtype_name
from shardvar.layout.region import Region
from shardvar.verbs.together.local_shards import LocalShard
from shardvar.verbs.training.states import Steps, by_key


@dataclass(frozen=True, slots=True, eq=False)
class TreeLeaf:
    """A value of a pytree."""

    path: Steps
    """The steps that lead to it."""
    value: Any
    """The value."""


@dataclass(frozen=True, slots=True)
class StoredForm:
    """The tensor that is stored for a value."""

    shape: tuple[int, ...]
    """Its shape."""
    dtype: str
    """Its dtype."""
    key_impl: Any = None
    """The implementation of random keys, as ``jax.random.key_impl`` has it; None for other values."""


def tree_leaves(state: Any) -> tuple[dict[str, TreeLeaf], Any]:
    """Return the leaves of a pytree by their keys, and its structure."""
    found, structure = jax.tree_util.tree_flatten_with_path(state)
    if any(not path for path, _ in found):
        cause = f"The state is a {type(state).__name__}, not a tree of values."
        raise ArgumentTypeError(cause, "Give a pytree with names, such as {'params': params}.")
    leaves = by_key(TreeLeaf(tuple(map(_step, path)), value) for path, value in found)
    return leaves, structure


def empty_leaves(state: Any) -> dict[str, tuple[Steps, str]]:
    """Return None and the empty containers of a pytree by their keys, each with its steps and its
    type as Orbax names it."""
    found, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=_is_empty)
    leaves = [(tuple(map(_step, path)), value) for path, value in found if _is_empty(value)]
    return {".".join(map(str, steps)): (steps, _type_of(value)) for steps, value in leaves}


def _is_empty(value: Any) -> bool:
    children, _ = jax.tree_util.tree_flatten(value, is_leaf=lambda each: each is not value)
    return not children


def _type_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return "Dict"
    if isinstance(value, list):
        return "List"
    return "Tuple" if type(value) is tuple else "None"


def _step(entry: Any) -> str | int:
    """Return a step of a path as Orbax names it: a number for an item of a list or a tuple."""
    util = jax.tree_util
    if isinstance(entry, util.SequenceKey):
        return int(entry.idx)
    if isinstance(entry, util.FlattenedIndexKey):
        return int(entry.key)
    if isinstance(entry, util.GetAttrKey):
        return str(entry.name)
    return str(entry.key if isinstance(entry, util.DictKey) else entry)


def is_jax_array(value: Any) -> bool:
    """Return True for arrays of JAX, and for what describes one."""
    return isinstance(value, jax.Array | jax.ShapeDtypeStruct)


def form_of(value: Any) -> StoredForm | None:
    """Return what is stored for a leaf; None if it is an object, not a tensor."""
    if is_jax_array(value):
        return _form_of_array(value)
    if isinstance(value, np.ndarray):
        return StoredForm(value.shape, dtype_name(value.dtype))
    is_number = type(value) in (bool, float, complex) or (
        type(value) is int and -(1 << 63) <= value < 1 << 63
    )
    if is_number or (isinstance(value, np.generic) and value.dtype.kind not in "SU"):
        return StoredForm((), dtype_name(np.asarray(value).dtype))
    return None


def _form_of_array(value: Any) -> StoredForm:
    if not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return StoredForm(tuple(value.shape), dtype_name(np.dtype(value.dtype)))
    impls = []

    def data_of(keys: Any) -> Any:
        impls.append(jax.random.key_impl(keys))
        return jax.random.key_data(keys)

    data = jax.eval_shape(data_of, jax.ShapeDtypeStruct(value.shape, value.dtype))
    return StoredForm(tuple(data.shape), dtype_name(np.dtype(data.dtype)), impls[0])


def written_shards(value: Any) -> list[LocalShard]:
    """Return the regions of an array that this process is to write: of replicas, the first."""
    _check_has_values(value)
    form = _form_of_array(value)
    held = []
    for shard in value.addressable_shards:
        if shard.replica_id == 0:
            data = shard.data if form.key_impl is None else jax.random.key_data(shard.data)
            region = _region(shard.index, tuple(value.shape), form)
            held.append(LocalShard(_on_host(data), region.offset, form.shape))
    return held


def _check_has_values(value: Any) -> None:
    """Raise unless an array has values that can be saved."""
    if isinstance(value, jax.ShapeDtypeStruct):
        raise ArgumentTypeError(
            "It is a jax.ShapeDtypeStruct, which has no values.", "Give the array."
        )
    if isinstance(value, jax.core.Tracer):
        raise ArgumentTypeError("It is traced, and has no values yet.", "Save outside of jax.jit.")
    if value.is_deleted():
        raise ArgumentError(
            "It was deleted, such as by a donation.", "Save the array that replaced it."
        )
    if getattr(getattr(value.sharding, "spec", None), "unreduced", ()):
        raise UnsupportedError(
            "It is an array whose terms are not reduced.", "Reduce it first: jax.sharding.reshard."
        )


def _on_host(data: Any) -> Any:
    """Return the values of a shard on the host; of one on another device when it is written.

    JAX keeps the copy of an array on the host as long as the array. Another array of the same
    buffer is gone after the copy.
    """
    if all(device.platform == "cpu" for device in data.devices()):
        return np.asarray(data)
    return jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data])


def device_regions(value: Any, form: StoredForm) -> dict[Any, Region]:
    """Return the regions that this process needs of what is stored, by the device that needs each.

    The device None needs the whole of an array that JAX places itself, and of other values.
    """
    sharding = _sharding_of(value) if is_jax_array(value) else None
    if sharding is None:
        return {None: Region.whole(form.shape)}
    shape = tuple(value.shape)
    if isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):
        cause = f"Its sharding {sharding.spec} is over a mesh without devices."
        raise ArgumentError(cause, "Give a jax.sharding.NamedSharding of a jax.sharding.Mesh.")
    try:
        sharding.shard_shape(shape)
        indexes = sharding.addressable_devices_indices_map(shape)
    except (ValueError, NotImplementedError) as error:
        remedy = "Give a sharding that divides it evenly."
        raise ArgumentError(f"Its sharding does not fit it: {error}.", remedy) from error
    return {device: _region(index, shape, form) for device, index in indexes.items()}


def _sharding_of(value: Any) -> Any:
    """Return the sharding that an array like ``value`` is to have; None if JAX places it."""
    if isinstance(value, jax.Array) and not value.committed:
        return None
    return value.sharding


def _region(index: tuple[slice, ...], shape: tuple[int, ...], form: StoredForm) -> Region:
    """Return the region of a shard in what is stored, whose further axes are whole."""
    ranges = [*_ranges(index, shape), *((0, extent) for extent in form.shape[len(shape) :])]
    return Region([start for start, _ in ranges], [stop - start for start, stop in ranges])


def _ranges(index: tuple[slice, ...], shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    # The index of keys also has the axes of their data.
    for each, extent in zip(index, shape, strict=False):
        start, stop, _ = each.indices(extent)
        yield start, stop


def assembled(value: Any, form: StoredForm, parts: dict[Any, Any]) -> Any:
    """Return an array like ``value`` of the values on the host for each device."""
    sharding = _sharding_of(value)
    kind = getattr(sharding, "memory_kind", None)
    placed = [
        _on_device(part, None if device is None else _single(device, kind), form)
        for device, part in parts.items()
    ]
    if sharding is None:
        return placed[0]
    return jax.make_array_from_single_device_arrays(
        tuple(value.shape), sharding, placed, dtype=value.dtype
    )


def _single(device: Any, kind: str | None) -> Any:
    return jax.sharding.SingleDeviceSharding(device, memory_kind=kind)


def _on_device(part: Any, place: Any, form: StoredForm) -> Any:
    data = jax.device_put(part, place)
    return data if form.key_impl is None else jax.random.wrap_key_data(data, impl=form.key_impl)
