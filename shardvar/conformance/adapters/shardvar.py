"""An adapter of shardvar itself; it keeps every rule that it claims."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import shardvar as sv
from shardvar.conformance.adapters.meshes import Meshes
from shardvar.layout import Partition
from shardvar.layout.dtypes import Array, dtype_name
from shardvar.layout.region import format_slice_text
from shardvar.reference.nn.gradients import dense_gradients, sparse_gradients
from shardvar.reference.training.optimizers import SGD, Adagrad, Adam, Momentum, Optimizer
from shardvar.reference.variables.sharded import create_sharded_variable

_Gradient = Array | tuple[Array, Array]
_Steps = Sequence[Mapping[str, _Gradient]]

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
_SLOTS = {"sgd": [], "momentum": ["momentum"], "adagrad": ["accumulator"], "adam": ["m", "v"]}


class _Callback(sv.ShardingCallback):
    """The kit's callback, which returns rows, as a callback of RFC 001, which returns slices."""

    def __init__(self, callback: Any, description: str) -> None:
        self._callback = callback
        self._description = description

    @property
    def description(self) -> str:
        return self._description

    def __call__(
        self, shardable_tensors: Sequence[sv.ShardableTensor]
    ) -> list[dict[str, dict[str, Any]]]:
        given = {tensor.checkpoint_key: np.asarray(tensor.tensor) for tensor in shardable_tensors}
        answer = []
        for file in self._callback(given):
            by_key: dict[str, dict[str, Any]] = {}
            for key, first, rows in file:
                by_key.setdefault(key, {})[self._slice_text(given[key].shape, first, rows)] = rows
            answer.append(by_key)
        return answer

    def _slice_text(self, shape: tuple[int, ...], first: int, rows: Array) -> str:
        """Return the slice text of some rows, such as ``"13 4 3,2:0,4"``; empty for all rows."""
        if rows.shape == shape or rows.ndim != len(shape):
            return ""
        return format_slice_text(shape, sv.Region([first, *(0 for _ in shape[1:])], rows.shape))


class Adapter(Meshes):
    """The adapter of shardvar, the oracle of the kit."""

    def div(self, length: int, num_shards: int) -> Any:
        return sv.div(length, num_shards)

    def owner(self, ids: Array, length: int, num_shards: int) -> Any:
        return sv.div_owner(ids, length, num_shards)

    def regions(self, shape: Sequence[int], counts: Sequence[int]) -> Any:
        return [(part.offset, part.shape) for part in Partition.from_counts(shape, counts)]

    def fixed_shards(self, shape: Sequence[int], dtype: Any, num_shards: int) -> Any:
        return sv.FixedShardsPartitioner(num_shards)(shape, dtype)

    def min_size(
        self, shape: Sequence[int], dtype: Any, min_shard_bytes: int, max_shards: int
    ) -> Any:
        return sv.MinSizePartitioner(min_shard_bytes, max_shards)(shape, dtype)

    def max_size(
        self, shape: Sequence[int], dtype: Any, max_shard_bytes: int, max_shards: int
    ) -> Any:
        return sv.MaxSizePartitioner(max_shard_bytes, max_shards)(shape, dtype)

    def create(self, value: Array, num_shards: int) -> Any:
        return create_sharded_variable(value, num_shards)

    def create_uneven(self, value: Array, sizes: Sequence[int]) -> Any:
        return create_sharded_variable(value, sv.PartitionSpec(splits=[sizes]))

    def create_partitioned(self, value: Array, counts: Sequence[int]) -> Any:
        return create_sharded_variable(value, lambda shape, dtype: list(counts))

    def read(self, handle: Any) -> Any:
        return handle.numpy()

    def shards(self, handle: Any) -> list[Array]:
        # One part makes a normal variable (R-CREATE-2), which has no ``variables``.
        return [shard.numpy() for shard in getattr(handle, "variables", [handle])]

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

    def assign(self, handle: Any, value: Array) -> None:
        handle.assign(value)

    def assign_add(self, handle: Any, value: Array) -> None:
        handle.assign_add(value)

    def assign_sub(self, handle: Any, value: Array) -> None:
        handle.assign_sub(value)

    def scatter(self, handle: Any, op: str, ids: Array, rows: Array) -> None:
        getattr(handle, f"scatter_{op}")(sv.IndexedSlices(rows, ids))

    def initialize(
        self, kind: str, shape: Sequence[int], dtype: Any, num_shards: int, seed: int
    ) -> list[Array]:
        made = _INITIALIZERS[kind](seed)

        def initial(shape: Any = tuple(shape), dtype: Any = dtype, partition: Any = None) -> Any:
            return made(shape, dtype, partition)

        return self.shards(
            create_sharded_variable(initial, num_shards, shape=tuple(shape), dtype=dtype)
        )

    def initialize_whole(
        self, function: Any, shape: Sequence[int], dtype: Any, num_shards: int
    ) -> list[Array]:
        # Without a parameter ``partition`` the library calls it for the whole value and slices that
        # (R-INIT-2).
        def initial(shape: Any = tuple(shape), dtype: Any = dtype) -> Any:
            return function(shape, dtype)

        return self.shards(
            create_sharded_variable(initial, num_shards, shape=tuple(shape), dtype=dtype)
        )

    def initialize_parts(
        self, function: Any, shape: Sequence[int], dtype: Any, num_shards: int
    ) -> list[Array]:
        def initial(shape: Any = tuple(shape), dtype: Any = dtype, partition: Any = None) -> Any:
            if partition is None:
                return function(shape, dtype)
            return function(shape, dtype, partition.shape, partition.offset)

        return self.shards(
            create_sharded_variable(initial, num_shards, shape=tuple(shape), dtype=dtype)
        )

    def optimize(
        self, kind: str, value: Array, num_shards: int, gradients: Sequence[_Gradient]
    ) -> Any:
        return self._trained(kind, self.create(value, num_shards), gradients)[0].numpy()

    def optimize_uneven(
        self, kind: str, value: Array, sizes: Sequence[int], gradients: Sequence[_Gradient]
    ) -> Any:
        return self._trained(kind, self.create_uneven(value, sizes), gradients)[0].numpy()

    def slots(
        self, kind: str, value: Array, num_shards: int, gradients: Sequence[_Gradient]
    ) -> dict[str, list[Array]]:
        variable, optimizer = self._trained(kind, self.create(value, num_shards), gradients)
        return self._slots_of(variable, optimizer)

    def slots_uneven(
        self, kind: str, value: Array, sizes: Sequence[int], gradients: Sequence[_Gradient]
    ) -> dict[str, list[Array]]:
        return self._slots_of(*self._trained(kind, self.create_uneven(value, sizes), gradients))

    def _slots_of(self, variable: Any, optimizer: Optimizer) -> dict[str, list[Array]]:
        return {
            name: self.shards(optimizer.get_slot(variable, name))
            for name in optimizer.get_slot_names()
        }

    def save(self, path: str, tensors: Mapping[str, Array], num_shards: int) -> None:
        sv.save(path, tensors, partition=num_shards)

    def restore(
        self, path: str, templates: Mapping[str, Array], num_shards: int
    ) -> dict[str, Array]:
        return self._restored(path, templates, lambda rows: sv.div(rows, num_shards))

    def restore_uneven(
        self, path: str, templates: Mapping[str, Array], sizes: Sequence[int]
    ) -> dict[str, Array]:
        for template in templates.values():
            self.create_uneven(template, sizes)  # refuses sizes that do not add up to its rows
        stops = np.cumsum(sizes).tolist()
        return self._restored(
            path, templates, lambda _rows: list(zip([0, *stops[:-1]], stops, strict=True))
        )

    def _restored(
        self,
        path: str,
        templates: Mapping[str, Array],
        intervals: Callable[[int], Sequence[tuple[int, int]]],
    ) -> dict[str, Array]:
        wanted: list[tuple[str, Any]] = []
        with sv.open_checkpoint(path) as checkpoint:
            for key, template in templates.items():
                saved = checkpoint[key]
                # A lazy tensor is read as it was saved; the caller refuses other shapes and dtypes.
                if (saved.shape, saved.dtype) != (template.shape, dtype_name(template.dtype)):
                    raise ValueError(f"{key} is saved as {saved.dtype}{list(saved.shape)}.")
                # A region for each target shard, as an elastic restore reads, whichever slices hold
                # the rows.
                rows = intervals(len(template)) if saved.shape else None
                wanted += [(key, None)] if rows is None else [(key, np.s_[a:b]) for a, b in rows]
            parts: dict[str, list[Array]] = {}
            for (key, _), part in zip(wanted, checkpoint.read_many(wanted), strict=True):
                parts.setdefault(key, []).append(part)
        return {
            key: np.concatenate(parts[key]) if templates[key].shape else parts[key][0]
            for key in templates
        }

    def list_tensors(self, path: str) -> dict[str, tuple[tuple[int, ...], str]]:
        with sv.open_checkpoint(path) as checkpoint:
            return {key: (checkpoint[key].shape, checkpoint[key].dtype) for key in checkpoint}

    def read_rows(self, path: str, key: str, start: int, stop: int) -> Array:
        with sv.open_checkpoint(path) as checkpoint:
            return checkpoint[key][start:stop]

    def save_parts(
        self, path: str, key: str, shape: Sequence[int], dtype: Any, parts: Sequence[Any]
    ) -> None:
        regions = [sv.Region(offset, part.shape) for offset, part in parts]
        partition = sv.Partition(tuple(shape), tuple(regions))  # refuses holes and overlaps
        value = np.empty(shape, dtype)
        for region, (_, part) in zip(regions, parts, strict=True):
            if part.dtype != value.dtype:  # NumPy would cast it
                raise ValueError(f"A part of {key} is {part.dtype}, not {value.dtype}.")
            value[region.slices] = part
        sv.save(path, {key: value}, partition=partition)

    def save_limited(
        self, path: str, tensors: Mapping[str, Array], num_shards: int, max_nbytes: int
    ) -> None:
        sv.save(path, tensors, partition=num_shards, policy=sv.MaxShardSizePolicy(max_nbytes))

    def file_nbytes(self, path: str) -> list[int]:
        with sv.open_checkpoint(path) as checkpoint:
            entries = checkpoint.entries()
            # ``bincount`` sums the slices of each file in float64, which is exact below 2**53
            # bytes.
            return [int(n) for n in np.bincount(entries.file, weights=entries.slices.nbytes)]

    def save_by_callback(
        self, path: str, tensors: Mapping[str, Array], callback: Any, description: str
    ) -> None:
        sv.save(path, tensors, policy=_Callback(callback, description))

    def description(self, path: str) -> str:
        with sv.open_checkpoint(path) as checkpoint:
            return checkpoint.metadata.description

    def _trained(
        self, kind: str, variable: Any, gradients: Sequence[_Gradient]
    ) -> tuple[Any, Optimizer]:
        optimizer = _OPTIMIZERS[kind]()
        _train(optimizer, {"": variable}, [{"": gradient} for gradient in gradients])
        return variable, optimizer

    def save_training(
        self, path: str, kind: str, values: Mapping[str, Array], layout: Any, gradients: _Steps
    ) -> None:
        variables, optimizer = self._laid_out(values, layout), _OPTIMIZERS[kind]()
        _train(optimizer, variables, gradients)
        sv.Checkpoint(variables=variables, optimizer=optimizer).write(path)

    def resume_training(
        self, path: str, kind: str, templates: Mapping[str, Array], layout: Any, gradients: _Steps
    ) -> dict[str, Array]:
        variables, _ = self._resumed(path, kind, templates, layout, gradients)
        return {key: variable.numpy() for key, variable in variables.items()}

    def resumed_slots(
        self, path: str, kind: str, templates: Mapping[str, Array], layout: Any, gradients: _Steps
    ) -> dict[str, dict[str, list[Array]]]:
        variables, optimizer = self._resumed(path, kind, templates, layout, gradients)
        return {key: self._slots_of(variable, optimizer) for key, variable in variables.items()}

    def _resumed(
        self, path: str, kind: str, templates: Mapping[str, Array], layout: Any, gradients: _Steps
    ) -> tuple[dict[str, Any], Optimizer]:
        variables, optimizer = self._laid_out(templates, layout), _OPTIMIZERS[kind]()
        # Slots get their saved values as soon as they exist; the first step would also make them.
        for variable in variables.values():
            for name in _SLOTS[kind]:
                optimizer.add_slot(variable, name)
        status = sv.Checkpoint(variables=variables, optimizer=optimizer).read(path)
        # Before the first step no slot was saved, and variables may be left out.
        status.expect_partial()
        checked = sv.Checkpoint(variables=variables).read(path).expect_partial()
        checked.assert_existing_objects_matched()
        _train(optimizer, variables, gradients)
        return variables, optimizer

    def _laid_out(self, values: Mapping[str, Array], layout: Any) -> dict[str, Any]:
        create = self.create if isinstance(layout, int) else self.create_uneven
        return {key: create(value, layout) for key, value in values.items()}


def _train(optimizer: Optimizer, variables: Mapping[str, Any], gradients: _Steps) -> None:
    for step in gradients:
        pairs: list[Any] = []
        for key, variable in variables.items():
            gradient = step[key]
            if isinstance(gradient, tuple):
                pairs += sparse_gradients(variable, *gradient)
            else:
                pairs += dense_gradients(variable, gradient)
        optimizer.apply_gradients(pairs)
