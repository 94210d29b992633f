"""An adapter of shardvar itself; it keeps every rule that it claims."""

from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any

import numpy as np

import shardvar as sv
from shardvar.conformance.adapters import (
    CountOrSizes,
    GradientSteps,
    Layouts,
    PartArrays,
    Placements,
    ShapeLike,
    Sharded,
    SlotArrays,
    Tensors,
)
from shardvar.layout import Partition, meshes
from shardvar.layout.dtypes import Array, dtype_name
from shardvar.layout.meshes import Layout
from shardvar.layout.region import format_slice_text
from shardvar.reference.nn.gradients import dense_gradients, sparse_gradients
from shardvar.reference.training.optimizers import SGD, Adagrad, Adam, Momentum, Optimizer
from shardvar.reference.variables.sharded import create_sharded_variable
from shardvar.spec.partitions import intervals


class Meshes(Layouts):
    # A plan does not depend on which axes were joined.
    mesh_move_joined = Layouts.mesh_move
    # A layout is the same wherever it is asked for.
    spec_constrained = Layouts.spec_parts

    def _placed(self, shape: ShapeLike, mesh: ShapeLike, placements: Placements) -> Layout:
        def one(placement: Any) -> Any:
            if isinstance(placement, tuple):
                return meshes.StridedShard(*placement[1:])
            return meshes.Replicate() if placement is None else meshes.Shard(placement)

        return meshes.dtensor(shape, sv.Mesh(mesh), [one(placement) for placement in placements])

    def _named(
        self, shape: ShapeLike, mesh: ShapeLike, names: Sequence[str], spec: Placements
    ) -> Layout:
        return meshes.named_sharding(shape, sv.Mesh(mesh, names), spec)

    def _held(self, value: Array, layout: Layout) -> PartArrays:
        every = [layout.regions(device) for device in layout.mesh.devices]
        return [_joined([value[each.slices] for each in some], some, value) for some in every]

    def _stated(self, _shape: ShapeLike, layout: Layout) -> Any:
        return [_stated(layout, device) for device in layout.mesh.devices]

    def _whole(self, parts: PartArrays, shape: ShapeLike, layout: Layout) -> Array:
        return _redistributed(parts, layout, meshes.named_sharding(shape, sv.Mesh((1,)), ()))[0]

    def _moved(self, value: Array, source: Layout, target: Layout) -> PartArrays:
        return _redistributed(self._held(value, source), source, target)

    def mesh_reduce(
        self,
        terms: PartArrays,
        mesh: ShapeLike,
        axis: int,
        op: str,
        placements: Placements,
    ) -> PartArrays:
        made, shape = sv.Mesh(mesh), terms[0].shape
        pending = [
            meshes.Partial(op) if number == axis else meshes.Replicate()
            for number in range(len(mesh))
        ]
        source = meshes.dtensor(shape, made, pending)
        parts = [terms[made.coordinate(device)[axis]] for device in made.devices]
        # The only term of an axis of one device is the value: nothing is pending.
        reduce = op if mesh[axis] > 1 else None
        return _redistributed(parts, source, self._placed(shape, mesh, placements), reduce)

    def fsdp_parts(self, value: Array, mesh: ShapeLike) -> PartArrays:
        return self._held(value, meshes.fsdp(value.shape, sv.Mesh(mesh, ("dp", "tp")), tp_dim=0))

    def fsdp_shapes(self, shape: ShapeLike, mesh: ShapeLike) -> list[tuple[int, ...]]:
        layout = meshes.fsdp(shape, sv.Mesh(mesh, ("dp", "tp")), tp_dim=0)
        return [_stated(layout, device)[1] for device in layout.mesh.devices]

    def hsdp_parts(
        self, value: Array, mesh: ShapeLike, fsdp_axis: int, tp_axis: int | None
    ) -> PartArrays:
        made = sv.Mesh(mesh, ("copies", "dp", "tp"))
        return self._held(value, meshes.fsdp(value.shape, made, fsdp_axis, tp_axis))


# Layouts. A device may hold several regions, each as an array; the kit joins the runs of a strided
# shard.


def _stated(layout: Layout, device: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the offset and shape of a device's first region, as frameworks state it."""
    regions = layout.regions(device)
    return (
        (regions[0].offset, regions[0].shape)
        if regions
        else ((0,) * len(layout.shape), (0,) * len(layout.shape))
    )


def _axis_of(regions: Sequence[Any]) -> int:
    """Return the axis along which the runs of a strided shard lie."""
    if len(regions) < 2:
        return 0
    first, second = regions[0].offset, regions[1].offset
    return next(axis for axis, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)


def _joined(arrays: Sequence[Array], regions: Sequence[Any], like: Array) -> Array:
    if not arrays:
        return np.zeros((0, *like.shape[1:]), like.dtype)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, _axis_of(regions))


def _redistributed(
    parts: PartArrays, source: Layout, target: Layout, reduce: str | None = None
) -> PartArrays:
    """Return what each device holds after a redistribution, its regions joined."""
    given = []
    for device, part in enumerate(parts):
        regions = source.regions(device)
        axis = _axis_of(regions)
        ends = np.cumsum([region.shape[axis] for region in regions if region.shape])
        given.append([part] if len(regions) == 1 else np.split(part, ends, axis)[: len(regions)])
    moved = sv.redistribute(given, source, target, reduce=reduce)
    return [
        _joined(arrays, target.regions(device), parts[0]) for device, arrays in enumerate(moved)
    ]


_INITIALIZERS: dict[str, Callable[[int], Any]] = {
    "zeros": lambda _seed: sv.initializers.Zeros(),
    "ones": lambda _seed: sv.initializers.Ones(),
    "random_uniform": lambda seed: sv.initializers.RandomUniform(seed=seed),
    "random_normal": lambda seed: sv.initializers.RandomNormal(seed=seed),
    "truncated_normal": lambda seed: sv.initializers.TruncatedNormal(seed=seed),
    "glorot_uniform": lambda seed: sv.initializers.GlorotUniform(seed=seed),
}
_OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "sgd": lambda: SGD(0.1),
    "momentum": lambda: Momentum(0.1, 0.9),
    "adagrad": lambda: Adagrad(0.1),
    "adam": lambda: Adam(0.1),
}
_SLOTS: dict[type[Optimizer], tuple[str, ...]] = {
    SGD: (), Momentum: ("momentum",), Adagrad: ("accumulator",), Adam: ("m", "v"),
}  # fmt: skip
_Training = tuple[dict[str, Any], Optimizer]


class _Callback(sv.ShardingCallback):
    """The kit's callback, which returns rows, as a callback of RFC 001, which returns slices."""

    description = ""

    def __init__(self, callback: Any, description: str) -> None:
        self._callback = callback
        self.description = description

    def __call__(
        self, shardable_tensors: Sequence[sv.ShardableTensor]
    ) -> list[dict[str, dict[str, Any]]]:
        given = {tensor.checkpoint_key: np.asarray(tensor.tensor) for tensor in shardable_tensors}
        answer = []
        for file in self._callback(given):
            by_key: dict[str, dict[str, Any]] = {}
            for key, first, rows in file:
                shape = given[key].shape
                # Such as "13 4 3,2:0,4"; empty for all rows.
                is_whole = rows.shape == shape or rows.ndim != len(shape)
                offset = [first, *(0 for _ in shape[1:])]
                text = "" if is_whole else format_slice_text(shape, sv.Region(offset, rows.shape))
                by_key.setdefault(key, {})[text] = rows
            answer.append(by_key)
        return answer


class Adapter(Meshes, Sharded):
    _slices = sv.IndexedSlices

    def div(self, length: int, num_shards: int) -> Any:
        return sv.div(length, num_shards)

    def owner(self, ids: Array, length: int, num_shards: int) -> Any:
        return sv.div_owner(ids, length, num_shards)

    def regions(self, shape: ShapeLike, counts: ShapeLike) -> Any:
        return [(part.offset, part.shape) for part in Partition.from_counts(shape, counts)]

    def _counts(self, partitioner: Any, shape: ShapeLike, dtype: Any, *limits: int) -> Any:
        return partitioner(*limits)(shape, dtype)

    fixed_shards = partialmethod(_counts, sv.FixedShardsPartitioner)
    min_size = partialmethod(_counts, sv.MinSizePartitioner)
    max_size = partialmethod(_counts, sv.MaxSizePartitioner)

    def create(self, value: Array, num_shards: int) -> Any:
        return create_sharded_variable(value, num_shards)

    def create_uneven(self, value: Array, sizes: ShapeLike) -> Any:
        return create_sharded_variable(value, sv.PartitionSpec(splits=[sizes]))

    def create_partitioned(self, value: Array, counts: ShapeLike) -> Any:
        return create_sharded_variable(value, lambda shape, dtype: list(counts))

    def read(self, handle: Any) -> Any:
        return handle.numpy()

    def index(self, handle: Any, key: Any) -> Any:
        return handle[key]

    def matmul(self, left: Array, handle: Any) -> Any:
        return sv.matmul(left, handle)

    def lookup(self, handle: Any, ids: Array) -> Any:
        return sv.nn.embedding_lookup(handle, ids)

    def sparse_read(self, handle: Any, ids: Array) -> Any:
        return handle.sparse_read(ids)

    def lookup_clipped(self, handle: Any, ids: Array, max_norm: float) -> Any:
        return sv.nn.embedding_lookup(handle, ids, max_norm)

    def lookup_bags(self, handle: Any, bags: Any, weights: Any, combiner: str) -> Any:
        given = None if weights is None else sv.nn.SparseTensor.from_rows(weights, np.float32)
        return sv.nn.embedding_lookup_sparse(
            handle, sv.nn.SparseTensor.from_rows(bags, np.int64), given, combiner
        )

    def initialize_whole(
        self, function: Any, shape: ShapeLike, dtype: Any, num_shards: int
    ) -> PartArrays:
        # A function without a parameter ``partition`` is called for the whole value, and that is
        # sliced (R-INIT-2).
        return self.shards(
            create_sharded_variable(function, num_shards, shape=tuple(shape), dtype=dtype)
        )

    def initialize(
        self, kind: str, shape: ShapeLike, dtype: Any, num_shards: int, seed: int
    ) -> PartArrays:
        return self.initialize_whole(_INITIALIZERS[kind](seed), shape, dtype, num_shards)

    def initialize_parts(self, function: Any, *variable: Any) -> PartArrays:
        def initial(shape: Any, dtype: Any, partition: Any = None) -> Any:
            part = () if partition is None else (partition.shape, partition.offset)
            return function(shape, dtype, *part)

        return self.initialize_whole(initial, *variable)

    def _begin(self, kind: str, variables: dict[str, Any]) -> _Training:
        return variables, _OPTIMIZERS[kind]()

    def _train(self, training: _Training, gradients: GradientSteps) -> None:
        variables, optimizer = training
        for step in gradients:
            pairs: list[Any] = []
            for key, variable in variables.items():
                gradient = step[key]
                if isinstance(gradient, tuple):
                    pairs += sparse_gradients(variable, *gradient)
                else:
                    pairs += dense_gradients(variable, gradient)
            optimizer.apply_gradients(pairs)

    def _slots(self, training: _Training) -> dict[str, SlotArrays]:
        variables, optimizer = training
        return {
            key: {
                name: self.shards(optimizer.get_slot(variable, name))
                for name in optimizer.get_slot_names()
            }
            for key, variable in variables.items()
        }

    def _write(self, training: _Training, path: str, _layout: CountOrSizes) -> None:
        sv.Checkpoint(variables=training[0], optimizer=training[1]).write(path)

    def _load(self, training: _Training, path: str, _layout: CountOrSizes) -> None:
        variables, optimizer = training
        # Slots get their saved values as soon as they exist; the first step would also make them.
        for variable in variables.values():
            for name in _SLOTS[type(optimizer)]:
                optimizer.add_slot(variable, name)
        status = sv.Checkpoint(variables=variables, optimizer=optimizer).read(path)
        # Before the first step no slot was saved, and variables may be left out.
        status.expect_partial()
        checked = sv.Checkpoint(variables=variables).read(path).expect_partial()
        checked.assert_existing_objects_matched()

    def save(self, path: str, tensors: Tensors, num_shards: int) -> None:
        sv.save(path, tensors, partition=num_shards)

    def restore(self, path: str, templates: Tensors, layout: CountOrSizes) -> dict[str, Array]:
        if not isinstance(layout, int):
            self._laid_out(templates, layout)  # refuses sizes that do not add up to the rows
        wanted: list[tuple[str, Any]] = []
        with sv.open_checkpoint(path) as checkpoint:
            for key, template in templates.items():
                saved = checkpoint[key]
                # A lazy tensor is read as it was saved; the caller refuses other shapes and dtypes.
                if (saved.shape, saved.dtype) != (template.shape, dtype_name(template.dtype)):
                    raise ValueError(f"{key} is saved as {saved.dtype}{list(saved.shape)}.")
                if not saved.shape:
                    wanted.append((key, None))
                    continue
                # A region for each target shard, as an elastic restore reads, whichever slices hold
                # the rows.
                rows = (
                    sv.div(len(template), layout)
                    if isinstance(layout, int)
                    else tuple(intervals(layout))
                )
                wanted += [(key, np.s_[start:stop]) for start, stop in rows]
            parts: dict[str, PartArrays] = {}
            for (key, _), part in zip(wanted, checkpoint.read_many(wanted), strict=True):
                parts.setdefault(key, []).append(part)
        return {
            key: np.concatenate(parts[key]) if templates[key].shape else parts[key][0]
            for key in templates
        }

    restore_uneven = restore

    def list_tensors(self, path: str) -> dict[str, tuple[tuple[int, ...], str]]:
        with sv.open_checkpoint(path) as checkpoint:
            return {key: (checkpoint[key].shape, checkpoint[key].dtype) for key in checkpoint}

    def read_rows(self, path: str, key: str, start: int, stop: int) -> Array:
        with sv.open_checkpoint(path) as checkpoint:
            return checkpoint[key][start:stop]

    def save_parts(
        self, path: str, key: str, shape: ShapeLike, dtype: Any, parts: Sequence[Any]
    ) -> None:
        regions = [sv.Region(offset, part.shape) for offset, part in parts]
        partition = sv.Partition(tuple(shape), tuple(regions))  # refuses holes and overlaps
        value = np.empty(shape, dtype)
        for region, (_, part) in zip(regions, parts, strict=True):
            if part.dtype != value.dtype:  # NumPy would cast it
                raise ValueError(f"A part of {key} is {part.dtype}, not {value.dtype}.")
            value[region.slices] = part
        sv.save(path, {key: value}, partition=partition)

    def save_limited(self, path: str, tensors: Tensors, num_shards: int, max_nbytes: int) -> None:
        sv.save(path, tensors, partition=num_shards, policy=sv.MaxShardSizePolicy(max_nbytes))

    def file_nbytes(self, path: str) -> list[int]:
        with sv.open_checkpoint(path) as checkpoint:
            entries = checkpoint.entries()
            # ``bincount`` sums the slices of each file in float64, which is exact below 2**53
            # bytes.
            return [int(n) for n in np.bincount(entries.file, weights=entries.slices.nbytes)]

    def save_by_callback(
        self, path: str, tensors: Tensors, callback: Any, description: str
    ) -> None:
        sv.save(path, tensors, policy=_Callback(callback, description))

    def description(self, path: str) -> str:
        with sv.open_checkpoint(path) as checkpoint:
            return checkpoint.metadata.description
