"""Megatron's layouts on megatron-core itself: the ShardedTensors that each rank makes, and what it
refuses.

Ranks are stood in for by objects that answer what a process group answers, on a fake process group.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

from shardvar.errors import ArgumentError, LayoutError, OutOfRange
from shardvar.layout.meshes import (
    from_rank_offsets,
    megatron,
    named_sharding,
    sharded_tensor,
    vocabulary_range,
)
from shardvar.layout.meshes.layout import Mesh

SEED = 20250817
CASES = 200


@pytest.fixture(scope="module")
def mapping() -> Any:
    """The module of ``ShardedTensor``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns of accelerators that are not here.
        return pytest.importorskip(
            "megatron.core.dist_checkpointing.mapping",
            reason="megatron-core is not installed",
            exc_type=ImportError,
        )


@dataclass
class Group:
    """What a process group is asked for."""

    number: int
    count: int

    def rank(self) -> int:
        return self.number

    def size(self) -> int:
        return self.count


@pytest.fixture(scope="module")
def fake_world() -> Iterator[None]:
    """A process group of one rank, so that Megatron asks groups for their ranks."""
    dist = pytest.importorskip("torch.distributed", reason="PyTorch is not installed")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    yield
    dist.destroy_process_group()


def verdict_of(call: Any) -> Any:
    """Return what a call returns, or the error that it raises."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # Its class is what is compared.
        return error


def region_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the offset and the shape of a ShardedTensor in the full tensor, prepended axes
    included."""
    return tuple(tensor.global_offset), (1,) * tensor.prepend_axis_num + tuple(tensor.local_shape)


def test_random_rank_offsets_mean_what_they_mean_there(mapping: Any) -> None:
    """Shapes and regions, axes given twice included; what Megatron refuses is refused, and nothing
    else."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    random, verdicts = np.random.default_rng(SEED), []
    for _ in range(CASES):
        local = random.integers(0, 5, random.integers(0, 4)).tolist()
        front = int(random.integers(0, 3))
        offsets = [
            tuple(
                random.integers(
                    [-1 if random.random() < 0.1 else 0, -1 if random.random() < 0.1 else 0, 0],
                    [4, 4, 5],
                )
            )
            for _ in range(random.integers(0, 3))
        ]
        offsets = [tuple(map(int, each)) for each in offsets]
        theirs = verdict_of(
            lambda local=local, offsets=offsets, front=front: (
                mapping.ShardedTensor.from_rank_offsets(
                    "k", torch.zeros(local), *offsets, prepend_axis_num=front
                )
            )
        )
        if isinstance(theirs, Exception):
            with pytest.raises(ArgumentError):
                from_rank_offsets(local, *offsets, prepend_axis_num=front)
        else:
            shape, region = from_rank_offsets(local, *offsets, prepend_axis_num=front)
            assert (shape, region.offset, region.shape) == (
                tuple(theirs.global_shape),
                *region_of(theirs),
            )
        verdicts.append(isinstance(theirs, Exception))
    assert 20 < sum(verdicts) < CASES - 20


def test_random_fields_are_accepted_where_megatron_accepts_them(mapping: Any) -> None:
    """The constructor; a region that leaves the tensor is refused here, and there only when all
    ranks are compared."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    random, verdicts = np.random.default_rng(SEED), []
    for _ in range(CASES):
        rank = int(random.integers(1, 4))
        front = int(random.integers(0, rank + 1))
        local = random.integers(0, 4, rank - front + (random.random() < 0.1)).tolist()
        offset, shape = random.integers(0, 7, rank).tolist(), random.integers(4, 9, rank).tolist()
        fragments = tuple([1] * rank) if random.random() < 0.6 else None
        theirs = verdict_of(
            lambda local=local, shape=shape, offset=offset, fragments=fragments, front=front: (
                mapping.ShardedTensor(
                    "k",
                    None,
                    torch.float32,
                    tuple(local),
                    tuple(shape),
                    tuple(offset),
                    fragments,
                    0,
                    front,
                )
            )
        )
        ours = verdict_of(
            lambda local=local, shape=shape, offset=offset, fragments=fragments, front=front: (
                sharded_tensor(local, shape, offset, fragments, prepend_axis_num=front)
            )
        )
        whole = (1,) * front + tuple(local)
        leaves = len(whole) == rank and any(
            a + n > s for a, n, s in zip(offset, whole, shape, strict=True)
        )
        if isinstance(theirs, Exception):
            assert isinstance(ours, ArgumentError)
        elif leaves:
            assert isinstance(ours, OutOfRange)
        else:
            assert (ours.offset, ours.shape) == region_of(theirs)
        verdicts.append(isinstance(ours, Exception))
    assert 20 < sum(verdicts) < CASES - 20


def test_flat_tensors_are_refused_by_both(mapping: Any) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    assert not hasattr(mapping.ShardedTensor, "from_rank_offsets_flat")
    flat = slice(0, 5)
    with pytest.raises(ValueError, match="flat"):
        mapping.ShardedTensor.from_rank_offsets(
            "k", torch.zeros(5), (0, 1, 2), flattened_range=flat
        )
    with pytest.raises(Exception, match="not supported"):
        mapping.ShardedTensor(
            "k", torch.zeros(5), torch.float32, (3, 4), (6, 4), (3, 0), (2, 1), flattened_range=flat
        )
    for call in (
        lambda: from_rank_offsets((5,), (0, 1, 2), flattened_range=flat),
        lambda: sharded_tensor((3, 4), (6, 4), (3, 0), (2, 1), flattened_range=flat),
    ):
        with pytest.raises(ArgumentError, match="flattened_range"):
            call()


def tensor_of(mesh: Mesh, device: int, shape: Any, parallel: str | None, front: Any = ()) -> Any:
    """Return Megatron's ShardedTensor of a rank, for a tensor of its full shape without the axes in
    front."""
    import torch
    from megatron.core.utils import (
        make_sharded_tensor_for_checkpoint,
        make_tp_sharded_tensor_for_checkpoint,
    )

    at = dict(zip(mesh.axis_names or (), mesh.coordinate(device), strict=True))
    count = {name: mesh.shape[mesh.axis(name)] for name in at}
    groups = {
        "tp_group": Group(at["tp"], count["tp"]),
        "dp_cp_group": Group(at["dp"] * count["cp"] + at["cp"], count["dp"] * count["cp"]),
    }
    if parallel is None:
        return make_sharded_tensor_for_checkpoint(
            torch.zeros(shape), "k", prepend_offsets=front, **groups
        )
    axis = int(parallel == "row")
    local = [extent // count["tp"] if dim == axis else extent for dim, extent in enumerate(shape)]
    return make_tp_sharded_tensor_for_checkpoint(
        torch.zeros(local), "k", axis, prepend_offsets=front, **groups
    )


def test_random_tensors_of_layers_and_experts_lie_where_megatron_puts_them(
    mapping: Any, fake_world: None
) -> None:
    """Pipeline and expert offsets in front of a tensor that is column or row parallel, or whole."""
    random = np.random.default_rng(SEED)
    for _ in range(CASES):
        pp, dp, cp, tp = (int(each) for each in random.integers(1, 4, 4))
        mesh = Mesh((pp, dp, cp, tp), ("pp", "dp", "cp", "tp"))
        layers, shape = (
            pp * int(random.integers(1, 3)),
            (tp * int(random.integers(1, 4)), tp * int(random.integers(1, 4))),
        )
        parallel = ("column", "row", None)[random.integers(3)]
        layout = megatron((layers, *shape), mesh, parallel, layers=True)  # type: ignore[arg-type]
        for device in range(mesh.size):
            mine = range(
                mesh.coordinate(device)[0] * layers // pp,
                (mesh.coordinate(device)[0] + 1) * layers // pp,
            )
            tensors = [
                tensor_of(mesh, device, shape, parallel, [(0, layer, layers)]) for layer in mine
            ]
            assert [(each.offset, each.shape) for each in layout.regions(device)] == [
                *map(region_of, tensors)
            ]
            assert {tuple(tensor.global_shape) for tensor in tensors} == {layout.shape}


def test_fsdp_over_tensor_parallelism_cuts_tensor_parallel_first(
    mapping: Any, fake_world: None
) -> None:
    """A DTensor of FSDP2 whose rows tensor parallelism cuts too: `(tp, dp)` in the words of JAX."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from megatron.core.utils import make_tp_sharded_tensor_for_checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    whole = DTensor.from_local(torch.zeros(2, 3), init_device_mesh("cpu", (1,)), [Shard(0)])
    mesh = Mesh((3, 2), ("dp", "tp"))
    layout = named_sharding((12, 3), mesh, (("tp", "dp"),))
    for device in range(mesh.size):
        dp, tp = mesh.coordinate(device)
        tensor = make_tp_sharded_tensor_for_checkpoint(
            whole, "k", tp_group=Group(tp, 2), dp_cp_group=Group(dp, 3)
        )
        assert [(each.offset, each.shape) for each in layout.regions(device)] == [region_of(tensor)]


def test_words_are_divided_as_megatron_divides_them(mapping: Any) -> None:
    from megatron.core.tensor_parallel.utils import VocabUtility

    for size, world in product(range(1, 40), range(1, 9)):
        for rank in range(world):
            theirs = verdict_of(
                lambda size=size, rank=rank, world=world: (
                    VocabUtility.vocab_range_from_global_vocab_size(size, rank, world)
                )
            )
            if isinstance(theirs, Exception):
                with pytest.raises(LayoutError):
                    vocabulary_range(size, rank, world)
            else:
                assert vocabulary_range(size, rank, world) == tuple(theirs)
