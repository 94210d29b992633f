"""The leaves of a pytree, the regions of its arrays that the devices of this process hold, and a copy of
them for a save in the background.

key of a leaf    the steps on the way to it, joined by dots, as Orbax joins them
regions          of an array by its addressable shards, of a template by its sharding
random keys      the array of their data, whose last axes no sharding divides
numbers          of Python are arrays without axes, as Orbax stores them
tensors          the local shards of arrays, on the host; a copy puts them into memory that is kept
                 between saves, and fetches what lies on other devices
objects          plain values, encoded when the state is read
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import jax
import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, ShardvarError, UnsupportedError
from shardvar.layout.dtypes import Shape, dtype_name
from shardvar.layout.region import Region
from shardvar.planning.index import KEY_IMPL, Metadata
from shardvar.records import entity, frozen, replace
from shardvar.verbs.background import Staging
from shardvar.verbs.together.run import Peers, in_parts
from shardvar.verbs.together.shares import LocalShard
from shardvar.verbs.training.resuming import gather
from shardvar.verbs.training.states import Steps, by_key, encode_object


@entity
class TreeLeaf:
    path: Steps
    value: Any


@frozen
class StoredForm:
    """The tensor that is stored for a value."""

    shape: Shape
    dtype: str
    key_impl: Any = None


def tree_leaves(state: Any) -> tuple[dict[str, TreeLeaf], Any]:
    found, structure = jax.tree_util.tree_flatten_with_path(state)
    if any(not path for path, _ in found):
        cause = f"The state is a {type(state).__name__}, not a tree of values."
        raise ArgumentTypeError(cause, "Give a pytree with names, such as {'params': params}.")
    leaves = by_key(TreeLeaf(tuple(map(_step, path)), value) for path, value in found)
    return leaves, structure


def empty_leaves(state: Any) -> dict[str, tuple[Steps, str]]:
    """Return None and empty containers by their keys, each with its steps and its type in Orbax."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=_is_empty)
    empty: dict[str, tuple[Steps, str]] = {}
    for path, value in leaves:
        if _is_empty(value):
            steps = tuple(map(_step, path))
            kind = "Tuple" if type(value) is tuple else "None"
            kind = "Dict" if isinstance(value, Mapping) else kind
            kind = "List" if isinstance(value, list) else kind
            empty[".".join(map(str, steps))] = steps, kind
    return empty


def _is_empty(value: Any) -> bool:
    children, _ = jax.tree_util.tree_flatten(value, is_leaf=lambda each: each is not value)
    return not children


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
    return isinstance(value, jax.Array | jax.ShapeDtypeStruct)


def form_of(value: Any) -> StoredForm | None:
    """Return the form of a leaf; None if it is an object, not a tensor."""
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
    _check_has_values(value)
    form = _form_of_array(value)
    held: list[LocalShard] = []
    for shard in value.addressable_shards:
        region = _region(shard.index, tuple(value.shape), form)
        is_new = all(region != each.region for each in held)
        if is_new if in_parts() else shard.replica_id == 0:
            data = shard.data if form.key_impl is None else jax.random.key_data(shard.data)
            # A shard on another device is copied when it is written: JAX keeps the copy as long as the
            # array, and another array of the same buffer is gone after the copy.
            if all(device.platform == "cpu" for device in data.devices()):
                data = np.asarray(data)
            else:
                data = jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data])
            held.append(LocalShard(data, region.offset, form.shape))
    return held


def _check_has_values(value: Any) -> None:
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


def device_regions(value: Any, form: StoredForm) -> dict[Any, Region]:
    """Return the regions that the devices need; None needs the whole, if JAX places the array."""
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
    if isinstance(value, jax.Array) and not value.committed:
        return None
    return value.sharding


def _region(index: tuple[slice, ...], shape: Shape, form: StoredForm) -> Region:
    """Return the region of a shard in the stored tensor, whose further axes are whole."""
    # The index of keys also has the axes of their data.
    cuts = [each.indices(extent) for each, extent in zip(index, shape, strict=False)]
    ranges = [(start, stop) for start, stop, _ in cuts]
    ranges += [(0, extent) for extent in form.shape[len(shape) :]]
    return Region([start for start, _ in ranges], [stop - start for start, stop in ranges])


def assembled(value: Any, form: StoredForm, parts: dict[Any, Any]) -> Any:
    sharding = _sharding_of(value)
    kind = getattr(sharding, "memory_kind", None)
    placed = []
    for device, part in parts.items():
        place = device and jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
        data = jax.device_put(part, place)
        is_plain = form.key_impl is None
        placed.append(data if is_plain else jax.random.wrap_key_data(data, impl=form.key_impl))
    if sharding is None:
        return placed[0]
    return jax.make_array_from_single_device_arrays(
        tuple(value.shape), sharding, placed, dtype=value.dtype
    )


@entity
class HeldTree:
    tensors: Mapping[str, list[LocalShard]]
    changing: frozenset[str]
    """The keys of values of NumPy, which may change after the call."""
    about: Metadata
    """The texts, the objects, and the steps to all leaves, also to empty ones."""


def held_tree(state: Any, texts: Mapping[str, str]) -> HeldTree:
    leaves, _ = tree_leaves(state)
    tensors: dict[str, list[LocalShard]] = {}
    changing = set()
    objects: dict[str, bytes] = {}
    user = dict(texts)
    for key, leaf in sorted(leaves.items()):  # in one order in all processes
        try:
            form = form_of(leaf.value)
            if form is None:
                objects[key] = encode_object(leaf.value)
            elif is_jax_array(leaf.value):
                tensors[key] = written_shards(leaf.value)
            else:
                array = np.asarray(leaf.value)
                changing.add(key)
                tensors[key] = [LocalShard(array, (0,) * array.ndim, array.shape)]
            if form is not None and form.key_impl is not None:
                user[KEY_IMPL + key] = str(form.key_impl)
        except ShardvarError as error:
            raise error.at(repr(key)) from None
    empty = empty_leaves(state)
    paths = {key: leaf.path for key, leaf in leaves.items()}
    paths |= {key: steps for key, (steps, _) in empty.items()}
    kinds = {key: kind for key, (_, kind) in empty.items()}
    about = Metadata(user=user, paths=paths, objects=objects, empty=kinds)
    return HeldTree(tensors, frozenset(changing), about)


def copied_tree(held: HeldTree, memory: Staging, most: int | None, *, is_shared: bool) -> HeldTree:
    """Return values that no longer change, or all in shared memory; valid until the next call."""
    # Arrays of JAX never change, unless another library writes to memory that they share, which JAX
    # forbids. One that NumPy views on the host is not copied: JAX keeps its memory as long as the
    # view, and donates it to no other array.
    tensors = {key: [*shards] for key, shards in held.tensors.items()}
    places: list[tuple[list[LocalShard], int]] = []
    arrays = []
    for key, shards in tensors.items():
        for row, shard in enumerate(shards):
            array = np.asarray(shard.array)
            if array.dtype.hasobject:  # a copy of their addresses would share the strings
                shards[row] = LocalShard(array.copy(), shard.offset, shard.full_shape)
            elif is_shared or key in held.changing or array is not shard.array:
                places.append((shards, row))
                arrays.append(array)
    for (shards, row), copy in zip(places, memory.copy(arrays, most), strict=True):
        shards[row] = LocalShard(copy, shards[row].offset, shards[row].full_shape)
    return replace(held, tensors=tensors)


# --- The processes


class _Group:
    """The store of keys of the service that connects the processes of JAX."""

    def tell(self, key: str, text: str) -> None:
        with suppress(RuntimeError):
            _client().key_value_set(f"shardvar/{key}", text, allow_overwrite=True)

    def told(self, key: str) -> str | None:
        try:
            return str(_client().key_value_try_get(f"shardvar/{key}"))
        except RuntimeError:  # of a key that is not there, and of a service that has ended
            return None

    def ended(self, processes: Sequence[int]) -> list[int]:  # noqa: ARG002 - the service ends all
        return []


def _client() -> Any:
    return jax._src.distributed.global_state.client


def connected_processes() -> Peers | None:
    return _Group() if _client() is not None and jax.process_count() > 1 else None


def gather_integers(mine: Sequence[int], timeout: float = 600.0) -> list[list[int]]:
    """Return the integers that each process gives; every process calls this, in the same order.

    Through the service that connects the processes of JAX, which needs no directory.

    Parameters
    ----------
    mine : sequence of int
        The integers of this process.
    timeout : float, default 600.0
        The seconds to wait for other processes.

    Raises
    ------
    IncompleteCheckpoint
        If a process does not come within ``timeout``.

    Examples
    --------
    ``shardvar.jax.gather([7])``
    """
    return gather(connected_processes(), (jax.process_index(), jax.process_count()), mine, timeout)
