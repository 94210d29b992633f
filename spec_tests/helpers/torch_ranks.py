"""Files of single ranks, as trainers with FSDP save them; PyTorch writes them.

`python -m spec_tests.helpers.torch_ranks` writes the cases spec_tests/golden/torch_pt/ranks_*; it
needs PyTorch. Each rank is a forked process: with a process group that moves nothing where the
parts can be made alone, else with gloo.
"""

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spec_tests.helpers.paths import GOLDEN

NAME = "model_world_size_{world}_rank_{rank}.pt"


def values() -> dict[str, Any]:
    """The whole tensors that the ranks hold parts of: two with sizes that no mesh divides."""
    import torch

    return {
        "a.weight": torch.arange(42.0).reshape(7, 6),
        "a.bias": torch.arange(7.0),
        "b.weight": torch.arange(30.0).reshape(5, 6),
    }


def save_ranks(
    directory: Path, world: int, make: Callable[[int], Any], backend: str = "fake"
) -> None:
    """Let each rank save what ``make`` returns for it."""
    with TemporaryDirectory() as scratch:
        started = [
            _fork(lambda rank=rank: _save(directory, world, rank, make, backend, scratch))
            for rank in range(world)
        ]
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]
    if any(codes):
        raise RuntimeError(f"The ranks ended with {codes}.")


def _fork(run: Callable[[], None]) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        run()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def _save(
    directory: Path, world: int, rank: int, make: Callable[[int], Any], backend: str, scratch: str
) -> None:
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = FakeStore() if backend == "fake" else dist.FileStore(f"{scratch}/store", world)
    dist.init_process_group(backend, rank=rank, world_size=world, store=store)
    torch.save(make(rank), directory / NAME.format(world=world, rank=rank))


def distributed(
    mesh: Sequence[int], placements: Callable[[Any], Sequence[Any]]
) -> Callable[[int], Any]:
    """Every tensor with the same placements, and a counter that all ranks hold."""

    def make(rank: int) -> Any:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import distribute_tensor

        devices = init_device_mesh(
            "cpu", tuple(mesh), mesh_dim_names=tuple(f"axis{axis}" for axis in range(len(mesh)))
        )
        state = {
            key: distribute_tensor(value, devices, placements(value), src_data_rank=None)
            for key, value in values().items()
        }
        return state | {"step": torch.tensor(7)}

    return make


def fsdp_over_tensor_parallelism(data: int, tensor: int) -> Callable[[int], Any]:
    """FSDP2 on a mesh whose last axis is that of tensor parallelism; both cut the rows of ``a``."""

    def make(rank: int) -> Any:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("dp", "tp"))
        module = torch.nn.Module()
        module.a, module.b = torch.nn.Linear(6, 7), torch.nn.Linear(6, 5, bias=False)
        module.load_state_dict(values())
        styles = {"a": ColwiseParallel(), "b": RowwiseParallel()}
        parallelize_module(module, mesh["tp"], styles, src_data_rank=None)
        fully_shard(module, mesh=mesh["dp"])
        return module.state_dict()

    return make


def fsdp1(rank: int) -> Any:
    """FSDP1 without a mesh: ShardedTensors; the model and the state of an optimizer after one
    step."""
    import torch
    from torch.distributed.fsdp import (
        FullyShardedDataParallel,
        ShardedOptimStateDictConfig,
        ShardedStateDictConfig,
        StateDictType,
    )

    module = torch.nn.Module()
    module.a, module.b = torch.nn.Linear(6, 7), torch.nn.Linear(6, 5, bias=False)
    module.load_state_dict(values())
    sharded = FullyShardedDataParallel(module, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.0, momentum=0.5)
    for parameter in sharded.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    FullyShardedDataParallel.set_state_dict_type(
        sharded,
        StateDictType.SHARDED_STATE_DICT,
        ShardedStateDictConfig(offload_to_cpu=False),
        ShardedOptimStateDictConfig(offload_to_cpu=False),
    )
    return {
        "model": sharded.state_dict(),
        "optimizer": FullyShardedDataParallel.optim_state_dict(sharded, optimizer),
        "rank": rank,
    }


def _described(tensors: dict[str, Any]) -> dict[str, Any]:
    """The fields of ``tensors`` in an ``expected.json``."""
    found = {}
    for key, tensor in tensors.items():
        octets = tensor.contiguous().numpy().tobytes()
        shape, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        digest = hashlib.sha256(octets).hexdigest()
        found[key] = {"dtype": dtype, "shape": shape, "nbytes": len(octets), "sha256": digest}
    return found


def _case(
    name: str, verdict: str, how: str, tensors: dict[str, Any], world: int, **more: Any
) -> Path:
    """Make the directory of a case."""
    import torch

    directory = GOLDEN / "torch_pt" / f"ranks_{name}"
    directory.mkdir(exist_ok=True)
    stem = NAME.format(world=world, rank=0).removesuffix("_rank_0.pt")
    about = {
        "format": "torch_pt",
        "name": f"ranks_{name}",
        "verdict": verdict,
        "how": how,
        "open": stem,
        "open_also": [".", f"{stem}_rank_1.pt"],
        "written_by": {"torch": torch.__version__},
        "tensors": _described(tensors),
        **more,
    }
    (directory / "expected.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return directory


def _main() -> None:
    import torch
    from torch.distributed.tensor import Replicate, Shard

    step = {"step": torch.tensor(7)}
    how = (
        "FSDP2 over tensor parallelism on (3, 2), which cut the same axis of a: _StridedShard, and "
        "not by its rule"
    )
    save_ranks(_case("fsdp_tp", "accept", how, values(), 6), 6, fsdp_over_tensor_parallelism(3, 2))

    how = "DTensors with [Replicate, Shard(0)] on (2, 2), as HSDP has them"
    hybrid = distributed((2, 2), lambda _: [Replicate(), Shard(0)])
    save_ranks(_case("hsdp", "accept", how, values() | step, 4), 4, hybrid)

    how = (
        "FSDP1 without a mesh: ShardedTensors, an optimizer, and an object that differs from rank "
        "to rank"
    )
    optimizer = {
        f"optimizer.state.{key}.momentum_buffer": torch.ones_like(value)
        for key, value in values().items()
    }
    tensors = {f"model.{key}": value for key, value in values().items()} | optimizer
    more = {"objects": {}, "may_be_unsupported": ["rank"]}
    save_ranks(_case("fsdp1", "accept_or_unsupported", how, tensors, 2, **more), 2, fsdp1, "gloo")

    how = "the files of [Shard(0)] on (3,), of which that of rank 1 is missing"
    lost = _case(
        "bad_missing", "refuse", how, {}, 3, open_also=[".", "model_world_size_3_rank_2.pt"]
    )
    save_ranks(lost, 3, distributed((3,), lambda _: [Shard(0)]))
    (lost / NAME.format(world=3, rank=1)).unlink()


if __name__ == "__main__":
    _main()
