"""An adapter of DTensor's meshes and placements, on ranks that are simulated in one process.

Where ranks exchange values, PyTorch's own ``LocalTensorMode`` runs every operation once a rank.
What a rank computes by itself (offsets, shards of FSDP, and strided shards, because that mode gives
one rank's places to all) is asked of each rank in turn, in a process group that sends nothing.
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partialmethod
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from shardvar.layout.dtypes import Array

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# More ranks than any rule asks for; R-DIV-1 draws up to 9 shards.
_MOST_RANKS = 32

Counts = tuple[int, ...]
"""A number of ranks along each axis of a mesh."""


class SimulatedRanks:
    """Tensors on meshes of simulated ranks."""

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

    def _placements(self, placements: Sequence[Any]) -> list[Any]:
        from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

        def one(placement: Any) -> Any:
            if isinstance(placement, tuple):
                return _StridedShard(placement[1], split_factor=placement[2])
            return Replicate() if placement is None else Shard(placement)

        return [one(placement) for placement in placements]

    def _distributed(
        self, tensor: Any, device_mesh: Any, placements: Sequence[Any], **options: Any
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
        ranks = [self._array(local) for local in whole._local_tensors.values()]
        # By their bits, since a NaN differs from itself.
        if len({(rank.shape, rank.tobytes()) for rank in ranks}) > 1:
            texts = "; ".join(str(rank.tolist()) for rank in ranks)
            raise ValueError(f"The ranks read different values: {texts}.")
        return ranks[0]

    def _from_ranks(
        self, parts: Sequence[Array], mesh: Counts, placements: Sequence[Any], shape: Sequence[int]
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

    def mesh_parts(self, value: Array, mesh: Counts, placements: Sequence[Any]) -> list[Array]:
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

    def _held(self, tensor: Any, mesh: Counts) -> list[Array]:
        local = tensor.to_local()
        ranks = range(prod(mesh))
        # A tensor that was only copied is one for all ranks.
        tensors = getattr(local, "_local_tensors", None) or dict.fromkeys(ranks, local)
        return [self._array(tensors[rank]) for rank in ranks]

    def mesh_slices(
        self, shape: Sequence[int], mesh: Counts, placements: Sequence[Any]
    ) -> list[tuple[Counts, Counts]]:
        return self._each_rank(
            mesh,
            lambda device_mesh: _stated(shape, device_mesh, self._placements(placements)),
        )

    def mesh_gather(
        self, parts: Sequence[Array], shape: Sequence[int], mesh: Counts, placements: Sequence[Any]
    ) -> Array:
        _check_simulated(placements)
        with self._mode(mesh):
            return self._whole(self._from_ranks(parts, mesh, self._placements(placements), shape))

    def _move(
        self,
        is_joined: bool,
        value: Array,
        mesh: Counts,
        source: Sequence[Any],
        target: Sequence[Any],
    ) -> list[Array]:
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
        self, terms: Sequence[Array], mesh: Counts, axis: int, op: str, placements: Sequence[Any]
    ) -> list[Array]:
        parts = self._torch.distributed.tensor
        held = [terms[coordinate[axis]] for coordinate in np.ndindex(*mesh)]
        pending = [
            parts.Partial(op) if number == axis else parts.Replicate()
            for number in range(len(mesh))
        ]
        with self._mode(mesh):
            tensor = self._from_ranks(held, mesh, pending, terms[0].shape)
            return self._held(tensor.redistribute(placements=self._placements(placements)), mesh)

    def fsdp_parts(self, value: Array, mesh: Counts) -> list[Array]:
        return self._each_rank(
            mesh,
            lambda device_mesh: self._array(self._weight(value, device_mesh).to_local().detach()),
            ("dp", "tp"),
        )

    def fsdp_shapes(self, shape: Sequence[int], mesh: Counts) -> list[Counts]:
        def ask(device_mesh: Any) -> Counts:
            # The same call describes a tensor in a distributed checkpoint. The mesh of the weight
            # is one that PyTorch keeps from the first rank that was asked, so it does not know the
            # rank; the given one is equal to it.
            weight = self._weight(np.zeros(shape, np.float32), device_mesh)
            return _stated(weight.shape, device_mesh, weight.placements)[1]

        return self._each_rank(mesh, ask, ("dp", "tp"))

    def hsdp_parts(
        self, value: Array, mesh: Counts, fsdp_axis: int, tp_axis: int | None
    ) -> list[Array]:
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


def _check_simulated(placements: Sequence[Any]) -> None:
    if any(isinstance(placement, tuple) for placement in placements):
        raise NotImplementedError("strided shards that are moved, on simulated ranks")


def _stated(
    shape: Sequence[int], device_mesh: Any, placements: Sequence[Any]
) -> tuple[Counts, Counts]:
    """Return the offset and the shape of a rank's part, by PyTorch's placements."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local, offset = compute_local_shape_and_global_offset(shape, device_mesh, placements)
    return tuple(offset), tuple(local)
