"""An adapter of PyTorch: DTensor, ``torch.optim`` and ``torch.distributed.checkpoint``.

It calls PyTorch as its users do, but launches no processes. Several ranks are simulated in one
process by PyTorch's own ``LocalTensorMode``: every operation runs once a rank, collectives move
values between ranks, and ranks that come to differ are an error. What a rank computes by itself
(offsets, shards of FSDP, and strided shards, because that mode gives one rank's places to all) is
asked of each rank in turn, in a process group that sends nothing. A variable in one shard is a plain
tensor. Checkpoints are written and read with ``no_dist=True``, by planners (PyTorch's plans of which
slices to move) for the slices of as many ranks.
"""

import dataclasses
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property, partialmethod
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from shardvar.conformance.adapters import (
    GradientSteps,
    PartArrays,
    Placements,
    ShapeLike,
    SlotArrays,
    Tensors,
    Trainings,
)
from shardvar.layout.dtypes import Array

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# More ranks than any rule asks for; R-DIV-1 draws up to 9 shards.
_MOST_RANKS = 32

Counts = tuple[int, ...]
"""A number of ranks along each axis of a mesh."""


class SimulatedRanks:
    @cached_property
    def _torch(self) -> Any:
        import torch
        import torch.distributed.checkpoint
        import torch.distributed.tensor
        import torch.distributed.tensor.debug
        from torch.distributed._local_tensor import LocalTensorMode
        from torch.testing._internal.distributed.fake_pg import FakeStore

        warnings.filterwarnings("ignore", module=r"torch\.distributed")
        logging.getLogger("torch.distributed").setLevel(logging.ERROR)
        # A DeviceMesh wants a process group; the fake one answers without a network.
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "fake", rank=0, world_size=_MOST_RANKS, store=FakeStore()
            )
        self._simulation = LocalTensorMode
        self._modes: dict[int, Any] = {}
        self._meshes: dict[Counts, Any] = {}
        return torch

    def _ranks(self, handle: Any) -> AbstractContextManager[Any]:
        """Return the context in which operations on a variable run on each rank of its mesh."""
        return (
            self._modes[handle.device_mesh.size()]
            if hasattr(handle, "device_mesh")
            else nullcontext()
        )

    def _mesh(self, counts: Counts) -> Any:
        """Return the mesh with some number of ranks along each axis; its mode must be entered."""
        torch = self._torch
        if counts not in self._meshes:
            ranks = torch.arange(prod(counts)).reshape(counts)
            self._meshes[counts] = torch.distributed.tensor.DeviceMesh("cpu", ranks)
        return self._meshes[counts]

    def _mode(self, counts: Counts) -> Any:
        _ = self._torch
        num_ranks = prod(counts)
        if num_ranks not in self._modes:
            self._modes[num_ranks] = self._simulation(num_ranks)
        return self._modes[num_ranks]

    def _placements(self, placements: Placements) -> list[Any]:
        from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

        def one(placement: Any) -> Any:
            if isinstance(placement, tuple):
                return _StridedShard(placement[1], split_factor=placement[2])
            return Replicate() if placement is None else Shard(placement)

        return [one(placement) for placement in placements]

    def _distributed(
        self, tensor: Any, device_mesh: Any, placements: Placements, **options: Any
    ) -> Any:
        return self._torch.distributed.tensor.distribute_tensor(
            tensor, device_mesh, self._placements(placements), **options
        )

    def _tensor(self, value: Array) -> Any:
        """Return a tensor, on the same memory if PyTorch supports the strides and the byte order."""
        torch, array = self._torch, np.asarray(value)
        # ``from_numpy`` refuses other byte orders and negative strides.
        array = array.astype(
            array.dtype.newbyteorder("="), copy=any(stride < 0 for stride in array.strides)
        )
        if array.dtype == _BFLOAT16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if array.dtype.isbuiltin == 2:
            raise NotImplementedError(f"{array.dtype} by way of NumPy")
        return torch.from_numpy(array)

    def _array(self, tensor: Any) -> Array:
        """Return a tensor as an array; NumPy reads the bits of bfloat16 as integers."""
        torch = self._torch
        is_half = tensor.dtype == torch.bfloat16
        values: Array = (tensor.view(torch.int16) if is_half else tensor).numpy()
        return values.view(_BFLOAT16) if is_half else values

    def _whole(self, tensor: Any) -> Array:
        """Return the values of a DTensor, called on its ranks; an error where the ranks differ."""
        whole = tensor.detach().full_tensor()
        # On one rank it shares the memory of the shard.
        ranks = [self._array(local.clone()) for local in whole._local_tensors.values()]
        # By their bits, since a NaN differs from itself.
        if len({(rank.shape, rank.tobytes()) for rank in ranks}) > 1:
            texts = "; ".join(str(rank.tolist()) for rank in ranks)
            raise ValueError(f"The ranks read different values: {texts}.")
        return ranks[0]

    def _from_ranks(
        self, parts: PartArrays, mesh: Counts, placements: Placements, shape: ShapeLike
    ) -> Any:
        """Return the DTensor to which each rank contributes its part; its mode must be entered."""
        from torch.distributed._local_tensor import LocalTensor

        torch = self._torch
        return torch.distributed.tensor.DTensor.from_local(
            LocalTensor({rank: self._tensor(part) for rank, part in enumerate(parts)}),
            self._mesh(mesh),
            placements,
            run_check=False,
            # Without the shape DTensor takes all parts to be as large as its own.
            shape=torch.Size(shape),
            stride=torch.empty(tuple(shape)).stride(),
        )

    def _each_rank(
        self, mesh: Counts, ask: Callable[[Any], Any], names: tuple[str, ...] | None = None
    ) -> list[Any]:
        torch = self._torch
        from torch.testing._internal.distributed.fake_pg import FakeStore

        group, size, answers = torch.distributed, prod(mesh), []
        group.destroy_process_group()
        try:
            for rank in range(size):
                group.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
                ranks = torch.arange(size).reshape(mesh)
                answers.append(ask(group.tensor.DeviceMesh("cpu", ranks, mesh_dim_names=names)))
                group.destroy_process_group()
        finally:
            if group.is_initialized():
                group.destroy_process_group()
            # Meshes and modes belong to the process group that is gone, and so do the layouts of
            # results that PyTorch remembers.
            torch.distributed.tensor.debug._clear_sharding_prop_cache()
            del self.__dict__["_torch"]
        return answers

    def mesh_parts(self, value: Array, mesh: Counts, placements: Placements) -> PartArrays:
        if any(isinstance(placement, tuple) for placement in placements):
            # Each rank takes its part of the copy that it has: nothing is sent.
            return self._each_rank(
                mesh,
                lambda device_mesh: np.array(
                    self._distributed(
                        self._tensor(value), device_mesh, placements, src_data_rank=None
                    ).to_local()
                ),
            )
        with self._mode(mesh):
            return self._held(
                self._distributed(self._tensor(value), self._mesh(mesh), placements), mesh
            )

    def _held(self, tensor: Any, mesh: Counts) -> PartArrays:
        local = tensor.to_local()
        ranks = range(prod(mesh))
        # A tensor that was only copied is one for all ranks.
        tensors = getattr(local, "_local_tensors", None) or dict.fromkeys(ranks, local)
        return [self._array(tensors[rank]) for rank in ranks]

    def mesh_slices(
        self, shape: ShapeLike, mesh: Counts, placements: Placements
    ) -> list[tuple[Counts, Counts]]:
        return self._each_rank(
            mesh,
            lambda device_mesh: _stated(shape, device_mesh, self._placements(placements)),
        )

    def mesh_gather(
        self, parts: PartArrays, shape: ShapeLike, mesh: Counts, placements: Placements
    ) -> Array:
        _check_simulated(placements)
        with self._mode(mesh):
            return self._whole(self._from_ranks(parts, mesh, self._placements(placements), shape))

    def _move(
        self,
        is_joined: bool,
        value: Array,
        mesh: Counts,
        source: Placements,
        target: Placements,
    ) -> PartArrays:
        _check_simulated((*source, *target))
        torch = self._torch
        with self._mode(mesh):
            device_mesh = self._mesh(mesh)
            if is_joined:
                names = tuple(f"axis{axis}" for axis in range(len(mesh)))
                ranks = torch.arange(prod(mesh)).reshape(mesh)
                device_mesh = torch.distributed.tensor.DeviceMesh(
                    "cpu", ranks, mesh_dim_names=names
                )
                device_mesh._flatten("joined")
            tensor = self._distributed(self._tensor(value), device_mesh, source)
            return self._held(tensor.redistribute(placements=self._placements(target)), mesh)

    mesh_move = partialmethod(_move, False)
    mesh_move_joined = partialmethod(_move, True)

    def mesh_reduce(
        self, terms: PartArrays, mesh: Counts, axis: int, op: str, placements: Placements
    ) -> PartArrays:
        parts = self._torch.distributed.tensor
        held = [terms[coordinate[axis]] for coordinate in np.ndindex(*mesh)]
        pending = [
            parts.Partial(op) if number == axis else parts.Replicate()
            for number in range(len(mesh))
        ]
        with self._mode(mesh):
            tensor = self._from_ranks(held, mesh, pending, terms[0].shape)
            return self._held(tensor.redistribute(placements=self._placements(placements)), mesh)

    def fsdp_parts(self, value: Array, mesh: Counts) -> PartArrays:
        return self._each_rank(
            mesh,
            lambda device_mesh: self._array(self._weight(value, device_mesh).to_local().detach()),
            ("dp", "tp"),
        )

    def fsdp_shapes(self, shape: ShapeLike, mesh: Counts) -> list[Counts]:
        def ask(device_mesh: Any) -> Counts:
            # The same call describes a tensor in a distributed checkpoint. The mesh of the weight
            # is one that PyTorch keeps from the first rank that was asked, so it does not know the
            # rank; the given one is equal to it.
            weight = self._weight(np.zeros(shape, np.float32), device_mesh)
            return _stated(weight.shape, device_mesh, weight.placements)[1]

        return self._each_rank(mesh, ask, ("dp", "tp"))

    def hsdp_parts(
        self, value: Array, mesh: Counts, fsdp_axis: int, tp_axis: int | None
    ) -> PartArrays:
        if value.dtype.kind in "iub":
            raise NotImplementedError("parameters of integers, which need no gradients")

        def ask(device_mesh: Any) -> Array:
            weight = self._weight(value, device_mesh, fsdp_axis, tp_axis)
            return self._array(weight.to_local().detach())

        return self._each_rank(mesh, ask, ("copies", "dp", "tp"))

    def _weight(
        self, value: Array, device_mesh: Any, fsdp_axis: int = 0, tp_axis: int | None = 0
    ) -> Any:
        """Return a parameter under ``fully_shard``, over tensor parallelism and perhaps with copies."""
        from torch.distributed.fsdp import fully_shard

        torch = self._torch
        tensor, (*copies, _, tp) = self._tensor(value).clone(), device_mesh.shape
        if tp > 1:
            tensor = self._distributed(tensor, device_mesh["tp"], [tp_axis], src_data_rank=None)
        elif tp_axis is not None and not 0 <= tp_axis < value.ndim:
            raise ValueError(f"The parameter has no axis {tp_axis}.")
        module = torch.nn.Module()
        module.register_parameter("weight", torch.nn.Parameter(tensor, tensor.is_floating_point()))
        fully_shard(
            module,
            mesh=device_mesh["copies", "dp"] if prod(copies) > 1 else device_mesh["dp"],
            shard_placement_fn=lambda _parameter: torch.distributed.tensor.Shard(fsdp_axis),
        )
        return module.weight


def _check_simulated(placements: Placements) -> None:
    if any(isinstance(placement, tuple) for placement in placements):
        raise NotImplementedError("strided shards that are moved, on simulated ranks")


def _stated(shape: ShapeLike, device_mesh: Any, placements: Placements) -> tuple[Counts, Counts]:
    """Return the offset and the shape of a rank's part, by PyTorch's placements."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local, offset = compute_local_shape_and_global_offset(shape, device_mesh, placements)
    return tuple(offset), tuple(local)


_Training = tuple[Any, Any]
"""A module of parameters, and their optimizer."""
_Slices = Mapping[str, Sequence[tuple[tuple[int, ...], Any]]]

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

    def create_partitioned(self, value: Array, counts: ShapeLike) -> Any:
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

    def shards(self, handle: Any) -> PartArrays:
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
        self, kind: str, shape: ShapeLike, dtype: Any, num_shards: int, seed: int
    ) -> PartArrays:
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
                        if parameter.ndim != 2:
                            raise NotImplementedError("embedding of another tensor than a table")
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

    def save(self, path: str, tensors: Tensors, num_shards: int) -> None:
        state = self._stored(tensors)
        _save_slices(path, state, _parts_of(state, num_shards))

    def _stored(self, tensors: Tensors) -> dict[str, Any]:
        """Return tensors, or lists for dtypes that tensors lack; checkpoints take both."""
        return {
            key: value.tolist() if value.dtype == object else self._tensor(value).clone()
            for key, value in tensors.items()
        }

    def save_parts(
        self, path: str, key: str, shape: ShapeLike, dtype: Any, parts: Sequence[Any]
    ) -> None:
        tensors = [(tuple(offset), self._tensor(part)) for offset, part in parts]
        _save_slices(path, {key: self._tensor(np.empty(shape, dtype))}, {key: tensors})

    def restore(self, path: str, templates: Tensors, num_shards: int) -> dict[str, Array]:
        state, restored = self._stored(templates), {}
        _load_slices(path, state, _parts_of(state, num_shards))
        for key, value in state.items():
            if isinstance(value, list):
                # A fixed-width array of bytes would drop the NULs at the ends of strings.
                restored[key] = np.array(value, object)
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


def _parts_of(state: Mapping[str, Any], num_shards: int) -> _Slices:
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


def _save_slices(path: str, state: Mapping[str, Any], parts: _Slices) -> None:
    from torch.distributed.checkpoint import FileSystemWriter, save

    # With one file a rank, this single process would write all slices into one file.
    writer = FileSystemWriter(path, single_file_per_rank=False)
    save(dict(state), storage_writer=writer, planner=_planners()[0](parts), no_dist=True)


def _load_slices(path: str, state: Mapping[str, Any], parts: _Slices) -> None:
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
        def __init__(self, parts: _Slices) -> None:
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
