"""An adapter of PyTorch: DTensor, ``torch.optim`` and ``torch.distributed.checkpoint``.

It calls PyTorch as its users do, but launches no processes. Several ranks are simulated in one
process by PyTorch's own ``LocalTensorMode``: every operation runs once a rank, collectives move
values between ranks, and ranks that come to differ are an error. A variable in one shard is a plain
tensor. Checkpoints are written and read with ``no_dist=True``, by planners (PyTorch's plans of
which slices to move) for the slices of as many ranks.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache, partialmethod
from typing import Any

import numpy as np

from shardvar.conformance.adapters import GradientSteps, SlotArrays, Trainings
from shardvar.conformance.adapters.dtensor import SimulatedRanks
from shardvar.layout.dtypes import Array

_Training = tuple[Any, Any]
"""A module of parameters, and their optimizer."""
_Parts = Mapping[str, Sequence[tuple[tuple[int, ...], Any]]]

_REDUCTIONS = {"mul": "prod", "min": "amin", "max": "amax"}


class Adapter(SimulatedRanks, Trainings):
    def _replicated(self, handle: Any, value: Array) -> Any:
        """Return a tensor that every rank of a variable's mesh holds whole."""
        tensor = self._tensor(value)
        if not hasattr(handle, "device_mesh"):
            return tensor
        return self._distributed(tensor, handle.device_mesh, [None])

    def _like(self, handle: Any, tensor: Any) -> Any:
        if not hasattr(handle, "device_mesh"):
            return tensor
        return self._torch.distributed.tensor.distribute_tensor(
            tensor, handle.device_mesh, handle.placements
        )

    def create(self, value: Array, num_shards: int) -> Any:
        if num_shards == 1:
            # ``_tensor`` shares the caller's memory, and a later change there must not show.
            return self._tensor(value).clone()
        return self.create_partitioned(value, (num_shards,))

    def create_partitioned(self, value: Array, counts: Sequence[int]) -> Any:
        tensor, mesh = self._tensor(value).clone(), tuple(counts)
        with self._mode(mesh):
            return self._distributed(tensor, self._mesh(mesh), range(len(mesh)))

    def read(self, handle: Any) -> Array:
        with self._ranks(handle):
            return self._read(handle)

    def _read(self, tensor: Any) -> Array:
        if hasattr(tensor, "device_mesh"):
            return self._whole(tensor)
        return self._array(tensor.detach().clone())

    def shards(self, handle: Any) -> list[Array]:
        if not hasattr(handle, "device_mesh"):
            return [self._array(handle.detach())]
        with self._ranks(handle):
            local = handle.detach().to_local()
        tensors = local._local_tensors
        return [self._array(tensors[rank]) for rank in sorted(tensors)]

    def index(self, handle: Any, key: Any) -> Array:
        # PyTorch refuses negative steps for plain tensors too.
        if any(isinstance(one, slice) and (one.step or 1) < 0 for one in key):
            raise NotImplementedError("negative steps")
        with self._ranks(handle):
            return self._read(handle[key])

    def matmul(self, left: Array, handle: Any) -> Array:
        with self._ranks(handle):
            return self._read(self._replicated(handle, left) @ handle)

    def lookup_clipped(self, handle: Any, ids: Array, max_norm: float | None) -> Array:
        with self._ranks(handle):
            # Ids without an axis get one, which the simulated ranks need.
            given = self._replicated(handle, np.atleast_1d(ids))
            table = handle.reshape(len(handle), -1)  # an embedding has two axes
            rows = self._read(self._torch.nn.functional.embedding(given, table, max_norm=max_norm))
        return rows.reshape((*ids.shape, *handle.shape[1:]))

    lookup = partialmethod(lookup_clipped, max_norm=None)

    def sparse_read(self, handle: Any, ids: Array) -> Array:
        with self._ranks(handle):
            return self._read(self._torch.index_select(handle, 0, self._replicated(handle, ids)))

    def lookup_bags(self, handle: Any, bags: Any, weights: Any, combiner: str) -> Array:
        if combiner == "sqrtn" or (weights is not None and combiner != "sum"):
            raise NotImplementedError(f"embedding_bag with {combiner} and weights")
        flat, offsets = np.concatenate(bags), np.cumsum([0, *map(len, bags)])[:-1]
        given = None if weights is None else np.concatenate(weights).astype(np.float32)
        with self._ranks(handle):
            ids, starts, factors = (
                None if array is None else self._replicated(handle, array)
                for array in (flat.astype(np.int64), offsets.astype(np.int64), given)
            )
            combined = self._torch.nn.functional.embedding_bag(
                ids, handle, starts, mode=combiner, per_sample_weights=factors
            )
            return self._read(combined)

    def _write_dense(self, method: str, handle: Any, value: Array) -> None:
        with self._ranks(handle):
            getattr(handle, method)(self._like(handle, self._tensor(value)))

    assign = partialmethod(_write_dense, "copy_")
    assign_add = partialmethod(_write_dense, "add_")
    assign_sub = partialmethod(_write_dense, "sub_")

    def scatter(self, handle: Any, op: str, ids: Array, rows: Array) -> None:
        if op == "div":
            raise NotImplementedError("index_reduce by division")
        if op in _REDUCTIONS and hasattr(handle, "device_mesh"):
            raise NotImplementedError("index_reduce of a DTensor")
        # PyTorch's documentation leaves open which operand of index_copy_ stays.
        if op == "update" and len(np.unique(ids)) < len(ids):
            raise NotImplementedError("index_copy_ of repeated rows")
        with self._ranks(handle):
            where, what = (self._replicated(handle, array) for array in (ids, rows))
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
        # PyTorch's axes of a kernel are outputs, inputs and then the receptive field.
        if kind == "glorot_uniform" and len(shape) > 2:
            raise NotImplementedError("glorot_uniform of more than two axes")
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

    def _begin(self, kind: str, variables: dict[str, Any]) -> _Training:
        torch = self._torch
        model, optimizers = (
            torch.nn.Module(),
            {
                "sgd": lambda given: torch.optim.SGD(given, 0.1),
                "momentum": lambda given: torch.optim.SGD(given, 0.1, momentum=0.9),
                "adagrad": lambda given: torch.optim.Adagrad(given, 0.1),
                "adam": lambda given: torch.optim.Adam(given, 0.1),
            },
        )
        with self._ranks(next(iter(variables.values()))):
            for key, handle in variables.items():
                model.register_parameter(key, torch.nn.Parameter(handle))
            return model, optimizers[kind](list(model.parameters()))

    def _train(self, training: _Training, gradients: GradientSteps) -> None:
        model, optimizer = training
        with self._ranks(next(model.parameters())):
            for step in gradients:
                optimizer.zero_grad()
                for key, parameter in model.named_parameters():
                    gradient = step[key]
                    if isinstance(gradient, tuple):
                        ids, rows = (self._replicated(parameter, array) for array in gradient)
                        looked_up = self._torch.nn.functional.embedding(ids, parameter)
                        (looked_up * rows).sum().backward()
                    else:
                        parameter.grad = self._like(parameter, self._tensor(gradient))
                optimizer.step()

    def _values(self, training: _Training) -> dict[str, Array]:
        return {key: self.read(parameter) for key, parameter in training[0].named_parameters()}

    def _slots(self, training: _Training) -> dict[str, SlotArrays]:
        model, optimizer = training
        # The step counter of Adam is a scalar in the state, and not a slot.
        return {
            key: {
                name: self.shards(slot)
                for name, slot in optimizer.state[parameter].items()
                if slot.ndim
            }
            for key, parameter in model.named_parameters()
        }

    # ``torch.distributed.checkpoint.state_dict`` gives slots the names of their parameters.

    def _state(self, training: _Training) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the flat state of both by names, in shards and whole; on the ranks of the model."""
        from torch.distributed.checkpoint import state_dict as states

        model, optimizer = training
        flat = states.StateDictOptions(flatten_optimizer_state_dict=True)
        optimizers = states.get_optimizer_state_dict(model, optimizer, options=flat)
        sharded = {f"model.{key}": each for key, each in states.get_model_state_dict(model).items()}
        sharded |= {f"optimizer.{key}": each for key, each in optimizers.items()}
        whole = {}
        for key, each in sharded.items():
            # Ranks that hold a tensor alike have it once.
            tensor = each.full_tensor() if hasattr(each, "full_tensor") else each
            local = getattr(tensor, "_local_tensors", None)
            tensor = tensor if local is None else local[0]
            whole[key] = tensor.detach().clone() if hasattr(tensor, "detach") else tensor
        return sharded, whole

    def _write(self, training: _Training, path: str, num_shards: int) -> None:
        with self._ranks(next(training[0].parameters())):
            _, state = self._state(training)
        _save_slices(path, state, _parts_of(state, num_shards))

    def _load(self, training: _Training, path: str, num_shards: int) -> None:
        from torch.distributed.checkpoint import state_dict as states

        model, optimizer = training
        first = next(model.parameters())
        with self._ranks(first):
            sharded, state = self._state(training)
        _load_slices(path, state, _parts_of(state, num_shards))
        with self._ranks(first):
            given: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}}
            for key, each in state.items():
                part, _, name = key.partition(".")
                given[part][name] = self._like(sharded[key], each)
            flat = states.StateDictOptions(flatten_optimizer_state_dict=True)
            states.set_model_state_dict(model, given["model"])
            states.set_optimizer_state_dict(model, optimizer, given["optimizer"], options=flat)

    def save(self, path: str, tensors: Mapping[str, Array], num_shards: int) -> None:
        state = self._stored(tensors)
        _save_slices(path, state, _parts_of(state, num_shards))

    def _stored(self, tensors: Mapping[str, Array]) -> dict[str, Any]:
        """Return tensors, or lists for dtypes that tensors lack; checkpoints take both."""
        return {
            key: value.tolist() if value.dtype == object else self._tensor(value).clone()
            for key, value in tensors.items()
        }

    def save_parts(
        self, path: str, key: str, shape: Sequence[int], dtype: Any, parts: Sequence[Any]
    ) -> None:
        tensors = [(tuple(offset), self._tensor(part)) for offset, part in parts]
        _save_slices(path, {key: self._tensor(np.empty(shape, dtype))}, {key: tensors})

    def restore(
        self, path: str, templates: Mapping[str, Array], num_shards: int
    ) -> dict[str, Array]:
        state, restored = self._stored(templates), {}
        _load_slices(path, state, _parts_of(state, num_shards))
        for key, value in state.items():
            if isinstance(value, list):
                # A fixed-width array of bytes would drop the NULs at the ends of strings.
                restored[key] = np.empty(len(value), object)
                restored[key][:] = value
            else:
                restored[key] = self._array(value)
        return restored

    def list_tensors(self, path: str) -> dict[str, tuple[tuple[int, ...], str]]:
        return {
            key: (tuple(one.size), str(one.properties.dtype).removeprefix("torch."))
            for key, one in self._metadata(path).items()
        }

    def _metadata(self, path: str) -> Mapping[str, Any]:
        reader = self._torch.distributed.checkpoint.FileSystemReader(path)
        metadata: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        return metadata

    def read_rows(self, path: str, key: str, start: int, stop: int) -> Array:
        saved = self._metadata(path)[key]
        state = {key: self._torch.empty(saved.size, dtype=saved.properties.dtype)}
        rows = state[key][start:stop]
        _load_slices(path, state, {key: [((start, *[0] * (rows.ndim - 1)), rows)]})
        return self._array(rows)


# Slices in checkpoints. ``torch.distributed.checkpoint`` asks a planner which slices a rank has;
# these planners name the slices of several ranks at once, so that one process saves and loads them.
# ``parts`` holds, by key, the ``(offset, tensor)`` pairs of the slices; a key without parts is
# saved and loaded whole. The classes are made in functions because PyTorch, from which they
# inherit, is imported only when it is used.


def _parts_of(state: Mapping[str, Any], num_shards: int) -> _Parts:
    """Return views of the slices of tensors, by the rule of DTensor."""
    parts: dict[str, list[tuple[tuple[int, ...], Any]]] = {}
    for key, tensor in state.items():
        if not hasattr(tensor, "chunk"):
            continue
        if not tensor.ndim or not len(tensor):
            parts[key] = [((0,) * tensor.ndim, tensor)]
            continue
        # All slices but the last have the same rows: 5 rows in 3 are 2, 2, 1, which begin at 0, 2,
        # 4.
        slices = tensor.chunk(num_shards)
        parts[key] = [
            ((number * len(slices[0]), *[0] * (tensor.ndim - 1)), one)
            for number, one in enumerate(slices)
        ]
    return parts


def _save_slices(path: str, state: Mapping[str, Any], parts: _Parts) -> None:
    from torch.distributed.checkpoint import FileSystemWriter, save

    # With one file a rank, this single process would write all slices into one file.
    writer = FileSystemWriter(path, single_file_per_rank=False)
    save(dict(state), storage_writer=writer, planner=_planners()[0](parts), no_dist=True)


def _load_slices(path: str, state: Mapping[str, Any], parts: _Parts) -> None:
    """Read slices into the tensors of ``parts``, which are views of the tensors of ``state``."""
    from torch.distributed.checkpoint import load

    load(state, checkpoint_id=path, planner=_planners()[1](parts), no_dist=True)


@cache
def _planners() -> tuple[Any, Any]:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import LoadPlan, WriteItemType
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    class Sliced:
        def __init__(self, parts: _Parts) -> None:
            super().__init__()
            self._parts = parts

        def _part(self, index: Any) -> Any:
            return dict(self._parts[index.fqn])[tuple(index.offset or ())]

        def _chunks(self, key: str) -> list[Any]:
            """Return PyTorch's descriptions of the slices: their offsets and shapes."""
            return [
                ChunkStorageMetadata(type(part.shape)(offset), part.shape)
                for offset, part in self._parts[key]
            ]

    class SavePlanner(Sliced, checkpoint.DefaultSavePlanner):  # type: ignore[misc]
        def create_local_plan(self) -> Any:
            plan, items = super().create_local_plan(), []
            for item in plan.items:
                key, data = item.index.fqn, item.tensor_data
                if key not in self._parts:
                    items.append(item)
                    continue
                items += [
                    dataclasses.replace(
                        item,
                        type=WriteItemType.SHARD,
                        index=MetadataIndex(key, chunk.offsets),
                        tensor_data=dataclasses.replace(data, chunk=chunk),
                    )
                    for chunk in self._chunks(key)
                ]
            return dataclasses.replace(plan, items=items)

        def lookup_object(self, index: Any) -> Any:
            return self._part(index) if index.fqn in self._parts else super().lookup_object(index)

    class LoadPlanner(Sliced, checkpoint.DefaultLoadPlanner):  # type: ignore[misc]
        def create_local_plan(self) -> Any:
            plan = super().create_local_plan()
            items = [item for item in plan.items if item.dest_index.fqn not in self._parts]
            for key in self._parts:
                saved, chunks = self.metadata.state_dict_metadata[key], self._chunks(key)
                items += create_read_items_for_chunk_list(key, saved, chunks)
            return LoadPlan(items)

        def lookup_tensor(self, index: Any) -> Any:
            return self._part(index) if index.fqn in self._parts else super().lookup_tensor(index)

    return SavePlanner, LoadPlanner
