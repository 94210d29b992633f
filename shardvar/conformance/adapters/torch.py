"""An adapter of PyTorch: DTensor, ``torch.optim`` and ``torch.distributed.checkpoint``.

It calls PyTorch as its users do, but launches no processes. Several ranks are simulated in one
process by PyTorch's own ``LocalTensorMode``: every operation runs once a rank, collectives move
values between ranks, and ranks that come to differ are an error. A variable in one shard is a plain
tensor. Checkpoints are written and read with ``no_dist=True``, by planners (PyTorch's plans of
which slices to move) for the slices of as many ranks.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from shardvar.conformance.adapters.dtensor import array_of, torch_tensor
from shardvar.conformance.adapters.training import Training
from shardvar.layout.dtypes import Array

_Parts = Mapping[str, Sequence[tuple[tuple[int, ...], Any]]]

_REDUCTIONS = {"mul": "prod", "min": "amin", "max": "amax"}


class Adapter(Training):
    """PyTorch's sharded tensors and checkpoints."""

    def _replicated(self, handle: Any, value: Any) -> Any:
        """Return a tensor that every rank of a variable's mesh holds whole."""
        if not hasattr(handle, "device_mesh"):
            return value
        parts = self._torch.distributed.tensor
        return parts.distribute_tensor(value, handle.device_mesh, [parts.Replicate()])

    def _like(self, handle: Any, value: Any) -> Any:
        if not hasattr(handle, "device_mesh"):
            return value
        return self._torch.distributed.tensor.distribute_tensor(
            value, handle.device_mesh, handle.placements
        )

    def div(self, length: int, num_shards: int) -> list[tuple[int, int]]:
        # One byte a row, since only the number of rows matters.
        shards = self.shards(self.create(np.zeros(length, np.int8), num_shards))
        stops = np.cumsum([len(shard) for shard in shards]).tolist()
        return list(zip([0, *stops[:-1]], stops, strict=True))

    def create(self, value: Array, num_shards: int) -> Any:
        if num_shards == 1:
            # ``_tensor`` shares the caller's memory, and a later change there must not show.
            return torch_tensor(self._torch, value).clone()
        return self._sharded(value, (num_shards,))

    def create_partitioned(self, value: Array, counts: Sequence[int]) -> Any:
        return self._sharded(value, tuple(counts))

    def _sharded(self, value: Array, counts: tuple[int, ...]) -> Any:
        tensor, parts = torch_tensor(self._torch, value).clone(), self._torch.distributed.tensor
        with self._mode(int(np.prod(counts))):
            axes = [parts.Shard(axis) for axis in range(len(counts))]
            return parts.distribute_tensor(tensor, self._mesh(counts), axes)

    def read(self, handle: Any) -> Array:
        with self._ranks(handle):
            return self._array(handle)

    def _array(self, tensor: Any) -> Array:
        """Return the values of a tensor, called on its ranks; an error where the ranks differ."""
        if not hasattr(tensor, "device_mesh"):
            return _array(self._torch, tensor.detach().clone())
        whole = tensor.detach().full_tensor()
        ranks = [_array(self._torch, one) for one in whole._local_tensors.values()]
        # By their bits, since a NaN differs from itself.
        if len({(one.shape, one.tobytes()) for one in ranks}) > 1:
            raise ValueError(
                f"The ranks read different values: {'; '.join(str(one.tolist()) for one in ranks)}."
            )
        return ranks[0]

    def shards(self, handle: Any) -> list[Array]:
        if not hasattr(handle, "device_mesh"):
            return [_array(self._torch, handle.detach())]
        with self._ranks(handle):
            local = handle.detach().to_local()
        tensors = local._local_tensors
        return [_array(self._torch, tensors[rank]) for rank in sorted(tensors)]

    def index(self, handle: Any, key: Any) -> Array:
        # PyTorch refuses negative steps for plain tensors too.
        if any(isinstance(one, slice) and (one.step or 1) < 0 for one in key):
            raise NotImplementedError("negative steps")
        with self._ranks(handle):
            return self._array(handle[key])

    def matmul(self, left: Array, handle: Any) -> Array:
        with self._ranks(handle):
            return self._array(self._replicated(handle, torch_tensor(self._torch, left)) @ handle)

    def lookup(self, handle: Any, ids: Array) -> Array:
        return self._embedding(handle, ids)

    def _embedding(self, handle: Any, ids: Array, max_norm: float | None = None) -> Array:
        with self._ranks(handle):
            # Ids without an axis get one, which the simulated ranks need.
            given = self._replicated(handle, torch_tensor(self._torch, np.atleast_1d(ids)))
            table = handle.reshape(len(handle), -1)  # an embedding has two axes
            rows = self._array(self._torch.nn.functional.embedding(given, table, max_norm=max_norm))
        return rows.reshape((*ids.shape, *handle.shape[1:]))

    def lookup_clipped(self, handle: Any, ids: Array, max_norm: float) -> Array:
        return self._embedding(handle, ids, max_norm)

    def sparse_read(self, handle: Any, ids: Array) -> Array:
        with self._ranks(handle):
            return self._array(
                self._torch.index_select(
                    handle, 0, self._replicated(handle, torch_tensor(self._torch, ids))
                )
            )

    def lookup_bags(self, handle: Any, bags: Any, weights: Any, combiner: str) -> Array:
        if combiner == "sqrtn" or (weights is not None and combiner != "sum"):
            raise NotImplementedError(f"embedding_bag with {combiner} and weights")
        flat, offsets = np.concatenate(bags), np.cumsum([0, *map(len, bags)])[:-1]
        given = None if weights is None else np.concatenate(weights).astype(np.float32)
        with self._ranks(handle):
            tensors = [
                None if one is None else self._replicated(handle, torch_tensor(self._torch, one))
                for one in (flat.astype(np.int64), offsets.astype(np.int64), given)
            ]
            combined = self._torch.nn.functional.embedding_bag(
                tensors[0], handle, tensors[1], mode=combiner, per_sample_weights=tensors[2]
            )
            return self._array(combined)

    def assign(self, handle: Any, value: Array) -> None:
        with self._ranks(handle):
            handle.copy_(self._like(handle, torch_tensor(self._torch, value)))

    def assign_add(self, handle: Any, value: Array) -> None:
        with self._ranks(handle):
            handle.add_(self._like(handle, torch_tensor(self._torch, value)))

    def assign_sub(self, handle: Any, value: Array) -> None:
        with self._ranks(handle):
            handle.sub_(self._like(handle, torch_tensor(self._torch, value)))

    def scatter(self, handle: Any, op: str, ids: Array, rows: Array) -> None:
        if op == "div":
            raise NotImplementedError("index_reduce by division")
        if op in _REDUCTIONS and hasattr(handle, "device_mesh"):
            raise NotImplementedError("index_reduce of a DTensor")
        # PyTorch's documentation leaves open which operand of index_copy_ stays.
        if op == "update" and len(np.unique(ids)) < len(ids):
            raise NotImplementedError("index_copy_ of repeated rows")
        with self._ranks(handle):
            where, what = (
                self._replicated(handle, torch_tensor(self._torch, one)) for one in (ids, rows)
            )
            if op in _REDUCTIONS:
                handle.index_reduce_(0, where, what, _REDUCTIONS[op])
            elif op == "update":
                handle.index_copy_(0, where, what)
            else:
                handle.index_add_(0, where, what, alpha=1 if op == "add" else -1)

    def initialize(
        self, kind: str, shape: Sequence[int], dtype: Any, num_shards: int, seed: int
    ) -> list[Array]:
        # A limit of the simulation, not of DTensor.
        if kind == "truncated_normal" and shape[0] % num_shards:
            raise NotImplementedError(
                "truncated_normal in shards of several sizes, on simulated ranks"
            )
        torch, handle = self._torch, self.create(np.empty(shape, dtype), num_shards)
        initializers = {
            "zeros": torch.nn.init.zeros_,
            "ones": torch.nn.init.ones_,
            "random_uniform": lambda tensor: torch.nn.init.uniform_(tensor, -0.05, 0.05),
            "random_normal": lambda tensor: torch.nn.init.normal_(tensor, std=0.05),
            "truncated_normal": lambda tensor: torch.nn.init.trunc_normal_(
                tensor, std=0.05, a=-0.1, b=0.1
            ),
            "glorot_uniform": torch.nn.init.xavier_uniform_,
        }
        with self._ranks(handle):
            torch.manual_seed(seed)
            initializers[kind](handle)
        return self.shards(handle)

    def initialize_whole(
        self, function: Any, shape: Sequence[int], dtype: Any, num_shards: int
    ) -> list[Array]:
        value = function(tuple(shape), dtype)
        if value.shape != tuple(shape):
            raise NotImplementedError("another shape than the value has")
        return self.shards(self.create(value, num_shards))

    def _save_state(self, path: str, state: Mapping[str, Any], num_shards: int) -> None:
        _save_slices(path, state, _parts_of(state, num_shards))

    def _load_state(self, path: str, state: dict[str, Any], num_shards: int) -> None:
        _load_slices(path, state, _parts_of(state, num_shards))

    def save(self, path: str, tensors: Mapping[str, Array], num_shards: int) -> None:
        state = {key: _value(self._torch, value) for key, value in tensors.items()}
        self._save_state(path, state, num_shards)

    def save_parts(
        self, path: str, key: str, shape: Sequence[int], dtype: Any, parts: Sequence[Any]
    ) -> None:
        tensors = [
            (tuple(offset), torch_tensor(self._torch, np.asarray(part))) for offset, part in parts
        ]
        _save_slices(path, {key: torch_tensor(self._torch, np.empty(shape, dtype))}, {key: tensors})

    def restore(
        self, path: str, templates: Mapping[str, Array], num_shards: int
    ) -> dict[str, Array]:
        state = {key: _value(self._torch, value) for key, value in templates.items()}
        self._load_state(path, state, num_shards)
        return {key: _array(self._torch, value) for key, value in state.items()}

    def list_tensors(self, path: str) -> dict[str, tuple[tuple[int, ...], str]]:
        metadata = (
            self._torch.distributed.checkpoint.FileSystemReader(path)
            .read_metadata()
            .state_dict_metadata
        )
        return {
            key: (tuple(one.size), str(one.properties.dtype).removeprefix("torch."))
            for key, one in metadata.items()
        }

    def read_rows(self, path: str, key: str, start: int, stop: int) -> Array:
        reader = self._torch.distributed.checkpoint.FileSystemReader(path)
        saved = reader.read_metadata().state_dict_metadata[key]
        state = {key: self._torch.empty(saved.size, dtype=saved.properties.dtype)}
        rows = state[key][start:stop]
        _load_slices(path, state, {key: [((start, *[0] * (rows.ndim - 1)), rows)]})
        return _array(self._torch, rows)


def _value(torch: Any, value: Array) -> Any:
    """Return a tensor, or a list for dtypes that tensors lack; checkpoints take both."""
    return value.tolist() if value.dtype == object else torch_tensor(torch, value).clone()


def _array(torch: Any, value: Any) -> Array:
    if isinstance(value, list):
        # A fixed-width array of bytes would drop the NULs at the ends of strings.
        array = np.empty(len(value), object)
        array[:] = value
        return array
    return array_of(torch, value)


# Slices in checkpoints. ``torch.distributed.checkpoint`` asks a planner which slices a rank has;
# these planners name the slices of several ranks at once, so that one process saves and loads them.
# ``parts`` holds, by key, the ``(offset, tensor)`` pairs of the slices; a key without parts is
# saved and loaded whole. The classes are made in functions because PyTorch, from which they
# inherit, is imported only when it is used.


def _parts_of(state: Mapping[str, Any], num_shards: int) -> _Parts:
    return {
        key: _slices_of(value, num_shards)
        for key, value in state.items()
        if hasattr(value, "chunk")
    }


def _slices_of(tensor: Any, num_shards: int) -> list[tuple[tuple[int, ...], Any]]:
    """Return views of the slices of a tensor, by the rule of DTensor."""
    if not tensor.ndim or not len(tensor):
        return [((0,) * tensor.ndim, tensor)]
    # All slices but the last have the same rows: 5 rows in 3 are 2, 2, 1, which begin at 0, 2, 4.
    slices = tensor.chunk(num_shards)
    return [
        ((number * len(slices[0]), *[0] * (tensor.ndim - 1)), one)
        for number, one in enumerate(slices)
    ]


def _save_slices(path: str, state: Mapping[str, Any], parts: _Parts) -> None:
    from torch.distributed.checkpoint import FileSystemWriter, save

    # With one file a rank, this single process would write all slices into one file.
    writer = FileSystemWriter(path, single_file_per_rank=False)
    save(dict(state), storage_writer=writer, planner=_save_planner()(parts), no_dist=True)


def _load_slices(path: str, state: Mapping[str, Any], parts: _Parts) -> None:
    """Read slices into the tensors of ``parts``, which are views of the tensors of ``state``."""
    from torch.distributed.checkpoint import load

    load(state, checkpoint_id=path, planner=_load_planner()(parts), no_dist=True)


def _metadata_of(offset: Sequence[int], tensor: Any) -> Any:
    """Return PyTorch's description of a slice: its offset and its shape."""
    from torch.distributed.checkpoint import ChunkStorageMetadata

    return ChunkStorageMetadata(type(tensor.shape)(offset), tensor.shape)


@cache
def _save_planner() -> Any:
    from torch.distributed.checkpoint import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItemType

    class SavePlanner(DefaultSavePlanner):  # type: ignore[misc]
        def __init__(self, parts: _Parts) -> None:
            super().__init__()
            self._parts = parts

        def create_local_plan(self) -> Any:
            plan = super().create_local_plan()
            return dataclasses.replace(
                plan, items=[one for item in plan.items for one in self._sliced(item)]
            )

        def _sliced(self, item: Any) -> list[Any]:
            if item.index.fqn not in self._parts:
                return [item]
            return [
                dataclasses.replace(
                    item,
                    type=WriteItemType.SHARD,
                    index=MetadataIndex(item.index.fqn, offset),
                    tensor_data=dataclasses.replace(
                        item.tensor_data, chunk=_metadata_of(offset, tensor)
                    ),
                )
                for offset, tensor in self._parts[item.index.fqn]
            ]

        def lookup_object(self, index: Any) -> Any:
            if index.fqn not in self._parts:
                return super().lookup_object(index)
            return dict(self._parts[index.fqn])[tuple(index.offset or ())]

    return SavePlanner


@cache
def _load_planner() -> Any:
    from torch.distributed.checkpoint import DefaultLoadPlanner
    from torch.distributed.checkpoint.planner import LoadPlan
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    class LoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]
        def __init__(self, parts: _Parts) -> None:
            super().__init__()
            self._parts = parts

        def create_local_plan(self) -> Any:
            items = [
                one
                for one in super().create_local_plan().items
                if one.dest_index.fqn not in self._parts
            ]
            for key, parts in self._parts.items():
                wanted = [_metadata_of(offset, tensor) for offset, tensor in parts]
                items += create_read_items_for_chunk_list(
                    key, self.metadata.state_dict_metadata[key], wanted
                )
            return LoadPlan(items)

        def lookup_tensor(self, index: Any) -> Any:
            if index.fqn not in self._parts:
                return super().lookup_tensor(index)
            return dict(self._parts[index.fqn])[tuple(index.offset or ())]

    return LoadPlanner
