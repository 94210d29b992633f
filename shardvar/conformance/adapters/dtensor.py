"""An adapter of DTensor's meshes and placements, on ranks that are simulated in one process.

Where ranks exchange values, PyTorch's own ``LocalTensorMode`` runs every operation once a rank.
What a rank computes by itself (offsets, shards of FSDP, and strided shards, because that mode gives
one rank's places to all) is asked of each rank in turn, in a process group that sends nothing.
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from shardvar.layout.dtypes import Array

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# More ranks than any rule asks for; R-DIV-1 draws up to 9 shards.
_MOST_RANKS = 32

RankPlacement = int | None | tuple[str, int, int]


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
        self._meshes: dict[tuple[int, ...], Any] = {}
        return torch

    def _ranks(self, handle: Any) -> AbstractContextManager[Any]:
        """Return the context in which operations on a variable run on each rank of its mesh."""
        return (
            self._modes[handle.device_mesh.size()]
            if hasattr(handle, "device_mesh")
            else nullcontext()
        )

    def _mesh(self, counts: tuple[int, ...]) -> Any:
        """Return the mesh with some number of ranks along each axis; its mode must be entered."""
        torch = self._torch
        if counts not in self._meshes:
            ranks = torch.arange(int(np.prod(counts))).reshape(counts)
            self._meshes[counts] = torch.distributed.tensor.DeviceMesh("cpu", ranks)
        return self._meshes[counts]

    def _mode(self, num_ranks: int) -> Any:
        _ = self._torch
        if num_ranks not in self._modes:
            self._modes[num_ranks] = self._simulation(num_ranks)
        return self._modes[num_ranks]

    def _placements(self, placements: Sequence[RankPlacement]) -> list[Any]:
        from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

        def one(placement: RankPlacement) -> Any:
            if isinstance(placement, tuple):
                return _StridedShard(placement[1], split_factor=placement[2])
            return Replicate() if placement is None else Shard(placement)

        return [one(placement) for placement in placements]

    def _distributed(
        self, value: Array, mesh: tuple[int, ...], placements: Sequence[RankPlacement]
    ) -> Any:
        tensor = torch_tensor(self._torch, value)
        parts = self._torch.distributed.tensor
        return parts.distribute_tensor(tensor, self._mesh(mesh), self._placements(placements))

    def _from_ranks(
        self,
        parts: Sequence[Array],
        mesh: tuple[int, ...],
        placements: Sequence[Any],
        shape: Sequence[int],
    ) -> Any:
        """Return the DTensor to which each rank contributes its part; its mode must be entered."""
        from torch.distributed._local_tensor import LocalTensor

        torch = self._torch
        local = LocalTensor({rank: torch_tensor(torch, part) for rank, part in enumerate(parts)})
        # Without the shape DTensor takes all parts to be as large as its own.
        stride = torch.empty(tuple(shape)).stride()
        build = torch.distributed.tensor.DTensor.from_local
        return build(
            local,
            self._mesh(mesh),
            placements,
            run_check=False,
            shape=torch.Size(shape),
            stride=stride,
        )

    def _each_rank(
        self, mesh: tuple[int, ...], ask: Callable[[Any], Any], names: tuple[str, ...] | None = None
    ) -> Any:
        torch = self._torch
        from torch.testing._internal.distributed.fake_pg import FakeStore

        group, size, answers = torch.distributed, int(np.prod(mesh)), []
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

    def mesh_parts(
        self, value: Array, mesh: tuple[int, ...], placements: Sequence[RankPlacement]
    ) -> list[Array]:
        if any(isinstance(placement, tuple) for placement in placements):
            return self._strided_parts(value, mesh, placements)
        with self._mode(int(np.prod(mesh))):
            return self._held(self._distributed(value, mesh, placements), mesh)

    def _strided_parts(
        self, value: Array, mesh: tuple[int, ...], placements: Sequence[RankPlacement]
    ) -> list[Array]:
        def ask(device_mesh: Any) -> Array:
            parts, tensor = self._torch.distributed.tensor, torch_tensor(self._torch, value)
            cut = self._placements(placements)
            # Each rank takes its part of the copy that it has: nothing is sent.
            return np.array(
                parts.distribute_tensor(tensor, device_mesh, cut, src_data_rank=None).to_local()
            )

        answers: list[Array] = self._each_rank(mesh, ask)
        return answers

    def _held(self, tensor: Any, mesh: tuple[int, ...]) -> list[Array]:
        local = tensor.to_local()
        # A tensor that was only copied is one for all ranks.
        tensors = getattr(local, "_local_tensors", None) or dict.fromkeys(
            range(int(np.prod(mesh))), local
        )
        return [array_of(self._torch, tensors[rank]) for rank in range(int(np.prod(mesh)))]

    def mesh_slices(
        self, shape: Sequence[int], mesh: tuple[int, ...], placements: Sequence[RankPlacement]
    ) -> Any:
        def ask(device_mesh: Any) -> Any:
            from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

            local, offset = compute_local_shape_and_global_offset(
                shape, device_mesh, self._placements(placements)
            )
            return tuple(offset), tuple(local)

        return self._each_rank(mesh, ask)

    def mesh_gather(
        self,
        parts: Sequence[Array],
        shape: Sequence[int],
        mesh: tuple[int, ...],
        placements: Sequence[RankPlacement],
    ) -> Array:
        _check_simulated(placements)
        with self._mode(int(np.prod(mesh))):
            whole = self._from_ranks(parts, mesh, self._placements(placements), shape).full_tensor()
        return _common([array_of(self._torch, one) for one in whole._local_tensors.values()])

    def mesh_move(
        self,
        value: Array,
        mesh: tuple[int, ...],
        source: Sequence[RankPlacement],
        target: Sequence[RankPlacement],
    ) -> list[Array]:
        _check_simulated((*source, *target))
        with self._mode(int(np.prod(mesh))):
            tensor = self._distributed(value, mesh, source)
            return self._held(tensor.redistribute(placements=self._placements(target)), mesh)

    def mesh_move_joined(
        self,
        value: Array,
        mesh: tuple[int, ...],
        source: Sequence[RankPlacement],
        target: Sequence[RankPlacement],
    ) -> list[Array]:
        torch = self._torch
        names = tuple(f"axis{axis}" for axis in range(len(mesh)))
        with self._mode(int(np.prod(mesh))):
            ranks = torch.arange(int(np.prod(mesh))).reshape(mesh)
            joined = torch.distributed.tensor.DeviceMesh("cpu", ranks, mesh_dim_names=names)
            joined._flatten("joined")
            tensor = torch_tensor(torch, value)
            placed = torch.distributed.tensor.distribute_tensor(
                tensor, joined, self._placements(source)
            )
            return self._held(placed.redistribute(placements=self._placements(target)), mesh)

    def mesh_reduce(
        self,
        terms: Sequence[Array],
        mesh: tuple[int, ...],
        axis: int,
        op: str,
        placements: Sequence[RankPlacement],
    ) -> list[Array]:
        parts = self._torch.distributed.tensor
        held = [terms[coordinate[axis]] for coordinate in np.ndindex(*mesh)]
        pending = [
            parts.Partial(op) if number == axis else parts.Replicate()
            for number in range(len(mesh))
        ]
        with self._mode(int(np.prod(mesh))):
            tensor = self._from_ranks(held, mesh, pending, terms[0].shape)
            return self._held(tensor.redistribute(placements=self._placements(placements)), mesh)

    def fsdp_parts(self, value: Array, mesh: tuple[int, ...]) -> list[Array]:
        answers: list[Array] = self._each_rank(
            mesh,
            lambda device_mesh: self._weight(value, device_mesh).to_local().detach().numpy(),
            ("dp", "tp"),
        )
        return answers

    def fsdp_shapes(self, shape: Sequence[int], mesh: tuple[int, ...]) -> list[tuple[int, ...]]:
        def ask(device_mesh: Any) -> tuple[int, ...]:
            from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

            # The same call describes a tensor in a distributed checkpoint. The mesh of the weight
            # is one that PyTorch keeps from the first rank that was asked, so it does not know the
            # rank; the given one is equal to it.
            weight = self._weight(np.zeros(shape, np.float32), device_mesh)
            return tuple(
                compute_local_shape_and_global_offset(weight.shape, device_mesh, weight.placements)[
                    0
                ]
            )

        answers: list[tuple[int, ...]] = self._each_rank(mesh, ask, ("dp", "tp"))
        return answers

    def _weight(self, value: Array, device_mesh: Any) -> Any:
        """Return a weight under ``fully_shard`` that tensor parallelism cuts along axis 0."""
        from torch.distributed.fsdp import fully_shard

        torch = self._torch
        parts = torch.distributed.tensor
        layer = torch.nn.Module()
        cut = parts.distribute_tensor(
            torch_tensor(torch, value),
            device_mesh["tp"],
            [parts.Shard(0)],
            src_data_rank=None,
        )
        layer.register_parameter("weight", torch.nn.Parameter(cut))
        fully_shard(layer, mesh=device_mesh["dp"])
        return layer.weight

    def hsdp_parts(
        self, value: Array, mesh: tuple[int, ...], fsdp_axis: int, tp_axis: int | None
    ) -> list[Array]:
        if value.dtype.kind in "iub":
            raise NotImplementedError("parameters of integers, which need no gradients")

        def ask(device_mesh: Any) -> Array:
            weight = self._hybrid(value, device_mesh, fsdp_axis, tp_axis)
            return array_of(self._torch, weight.to_local().detach())

        answers: list[Array] = self._each_rank(mesh, ask, ("copies", "dp", "tp"))
        return answers

    def _hybrid(self, value: Array, device_mesh: Any, fsdp_axis: int, tp_axis: int | None) -> Any:
        """Return a parameter under ``fully_shard``, over tensor parallelism and with copies."""
        from torch.distributed.fsdp import fully_shard

        torch = self._torch
        parts = torch.distributed.tensor
        tensor, (copies, _, tp) = torch_tensor(torch, value).clone(), device_mesh.shape
        if tp > 1:
            cut = parts.Replicate() if tp_axis is None else parts.Shard(tp_axis)
            tensor = parts.distribute_tensor(tensor, device_mesh["tp"], [cut], src_data_rank=None)
        elif tp_axis is not None and not 0 <= tp_axis < value.ndim:
            raise ValueError(f"The parameter has no axis {tp_axis}.")
        module = torch.nn.Module()
        module.register_parameter("weight", torch.nn.Parameter(tensor))
        fully_shard(
            module,
            mesh=device_mesh["copies", "dp"] if copies > 1 else device_mesh["dp"],
            shard_placement_fn=lambda _parameter: parts.Shard(fsdp_axis),
        )
        return module.weight


def _check_simulated(placements: Sequence[RankPlacement]) -> None:
    if any(isinstance(placement, tuple) for placement in placements):
        raise NotImplementedError("strided shards that are moved, on simulated ranks")


def _common(arrays: Sequence[Array]) -> Array:
    """Return what every rank has; ``ValueError`` where they differ."""
    if len({(one.shape, one.tobytes()) for one in arrays}) > 1:
        raise ValueError("The ranks hold different values.")
    return arrays[0]


def torch_tensor(torch: Any, value: Array) -> Any:
    """Return a tensor, on the same memory if PyTorch supports the strides and the byte order."""
    array = np.asarray(value)
    # ``from_numpy`` refuses other byte orders and negative strides.
    array = array.astype(
        array.dtype.newbyteorder("="), copy=any(stride < 0 for stride in array.strides)
    )
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.isbuiltin == 2:
        raise NotImplementedError(f"{array.dtype} by way of NumPy")
    return torch.from_numpy(array)


def array_of(torch: Any, tensor: Any) -> Array:
    """Return a tensor as an array; NumPy reads the bits of bfloat16 as integers."""
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(_BFLOAT16)
    values: Array = tensor.numpy()
    return values
