"""Jobs of several processes in PyTorch and JAX, which run the snippets of
docs/howto/save-from-many-processes.md.

`python -m spec_tests.helpers.framework_jobs NAME FOLDER RANK COUNT` is one process of a job:

    torch           save the regions that ``fully_shard`` has left this process in FOLDER/ck; the first process saves
                    the whole tensors in FOLDER/whole.npz
    torch-dcp       the same as a distributed checkpoint
    torch-restore   read the regions of this process, compare them with the whole tensors, and print the bytes read
    jax             save what the four devices of this process hold in FOLDER/ck
    jax-restore     read it into another mesh, and compare
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import shardvar as sv
from shardvar.storage.posix import LocalReadableFile
from spec_tests.helpers.documents import ROOT, blocks, read
from spec_tests.helpers.programs import command_of, run_together

PAGE = ROOT / "docs" / "howto" / "save-from-many-processes.md"


def snippet(word: str) -> str:
    """The one block without a language that has a word, from the page."""
    (found,) = (block.body for block in blocks(read(PAGE), "") if word in block.body)
    return found


def run_job(name: str, folder: Path, count: int) -> list[str]:
    """Run all processes of a job at once; return what each has printed."""
    commands = [
        command_of("helpers.framework_jobs", name, folder, rank, count) for rank in range(count)
    ]
    return run_together(commands)


def torch_model(folder: Path, name: str, rank: int, count: int) -> Any:
    """A model that ``fully_shard`` has cut over the processes, and a tensor that tensor parallelism
    cuts by columns."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=count
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3, bias=False))
    model.register_buffer("steps", torch.tensor(7))
    columns = torch.arange(35.0).reshape(5, 7)
    if rank == 0 and not name.endswith("restore"):
        whole = {key: tensor.numpy() for key, tensor in model.state_dict().items()} | {
            "columns": columns.numpy()
        }
        sv.save(folder / "whole.npz", whole)
    mesh = init_device_mesh("cpu", (count,))
    fully_shard(model, mesh=mesh)
    model.register_buffer("columns", distribute_tensor(columns, mesh, [Shard(1)]))
    return model


def torch_job(name: str, folder: Path, rank: int, count: int) -> None:
    """Save, or restore what was saved."""
    import torch
    import torch.distributed as dist

    model = torch_model(folder, name, rank, count)
    path = folder / "ck" / ".metadata" if name == "torch-dcp" else folder / "ck"
    namespace: dict[str, Any] = {"model": model, "path": path, "run": "1", "torch": torch}
    saving, restoring = snippet("commit_shards"), snippet("copy_(")
    if not name.endswith("restore"):
        exec(saving, namespace)
    else:
        exec(saving.partition("\nmine =")[0], namespace)  # its imports and functions
        for tensor in model.state_dict().values():
            tensor.zero_()
        with counting():
            exec(restoring, namespace)
        whole = sv.load(folder / "whole.npz")
        for key, tensor in model.state_dict().items():
            if hasattr(tensor, "full_tensor"):
                assert np.array_equal(tensor.full_tensor().numpy(), whole[key]), key
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo that is not done yet aborts an interpreter that ends


JAX_WHOLE = {
    "two": np.arange(96, dtype=np.float32).reshape(8, 12),
    "one": np.arange(32, dtype=np.int32),
    "all": np.full(3, 2.5, np.float32),
}
"""The whole arrays of the job in JAX."""


def jax_arrays(mesh: Any) -> dict[str, Any]:
    """Arrays cut along two axes, along one, and replicated on all devices."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    specs = {"two": PartitionSpec("x", "y"), "one": PartitionSpec("y"), "all": PartitionSpec()}
    return {
        key: jax.make_array_from_callback(
            array.shape, NamedSharding(mesh, specs[key]), array.__getitem__
        )
        for key, array in JAX_WHOLE.items()
    }


def jax_job(name: str, folder: Path, rank: int, count: int) -> None:
    """Save, or restore what was saved, on four devices of each process."""
    import jax

    jax.config.update("jax_num_cpu_devices", 4)
    if count > 1:
        jax.distributed.initialize((folder / "coordinator").read_text(), count, rank)
    shape = (count, 4) if not name.endswith("restore") else (4 * count, 1)
    arrays = jax_arrays(jax.make_mesh(shape, ("x", "y")))
    namespace: dict[str, Any] = {
        "arrays": arrays,
        "path": folder / "ck",
        "run": "1",
        "sv": sv,
        "jax": jax,
    }
    if not name.endswith("restore"):
        exec(snippet("addressable_shards"), namespace)
        return
    namespace["like"] = arrays
    exec(snippet("make_array_from_callback"), namespace)
    for key, array in arrays.items():
        shards = zip(
            array.addressable_shards, namespace["restored"][key].addressable_shards, strict=True
        )
        assert all(np.array_equal(mine.data, restored.data) for mine, restored in shards), key


@contextmanager
def counting() -> Iterator[list[int]]:
    """Count the bytes that are read from data files, and print them."""
    nbytes, real = [0], LocalReadableFile.read_into

    def read_into(file: LocalReadableFile, start: int, buffer: memoryview) -> None:
        if "svdata" in file.name:
            nbytes[0] += buffer.nbytes
        real(file, start, buffer)

    with patch.object(LocalReadableFile, "read_into", read_into):
        yield nbytes
    print(*nbytes)


if __name__ == "__main__":
    job, place, number, total = sys.argv[1:]
    jobs = {"torch": torch_job, "jax": jax_job}
    jobs[job.partition("-")[0]](job, Path(place), int(number), int(total))
