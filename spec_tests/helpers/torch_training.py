"""Training jobs of torch on gloo, whose states are saved and loaded by all processes.

`python -m spec_tests.helpers.torch_training JOB FOLDER RANK COUNT KIND` is one process of a job; KIND says how the
model is divided over the processes (``divided``):

    write    train, and save the state with ``dcp.save``: with torch's writer in FOLDER/dcp, with shardvar's in
             FOLDER/torch and FOLDER/native; save the whole state in FOLDER/whole.pt, and it with objects of many
             kinds in FOLDER/objects
    read     load each of FOLDER/read.json, a list of paths, and compare it with the whole state; a path that ends in
             -back by torch's own reader, with the objects
    keep     train, save with ``shardvar.torch.save`` in FOLDER/ck and as torch's format in FOLDER/folder, and with
             ``dcp.save`` in FOLDER/dcp, train on, and print the losses
    meshes   for each KIND, train, save in the background, and train on; load each of these with each KIND, compare it
             with the whole state, train on, and compare the losses with those of a job that had the state from torch
    resume   load each of these, and FOLDER/folder with ``dcp.load``, compare them with FOLDER/whole.pt, train on, and
             print the losses
    killed   save as in ``write`` with shardvar's writer, and save another state over it, in which the last process is
             killed, before it writes its share or after, as FOLDER/kill.json says
"""

import argparse
import json
import math
import os
import sys
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from spec_tests.helpers.programs import command_of, run_together

KILLED = 9
"""The exit code of a process that is killed."""
SIZES = 7, 8, 5
"""The features before, between and after the two layers."""


def run_training(job: str, folder: Path, count: int, kind: str) -> list[str]:
    """Run all processes of a job at once; return what each has printed."""
    for left in folder.glob("meeting-*"):
        left.unlink()
    commands = [
        command_of("helpers.torch_training", job, folder, rank, count, kind)
        for rank in range(count)
    ]
    return run_together(commands, {count - 1: KILLED} if job == "killed" else (0,))


class Other:
    """An object of a class that is not plain."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Other)

    __hash__ = None  # type: ignore[assignment]


def divided(kind: str, count: int) -> Any:
    """Return a model that is divided over the processes.

    fsdp      ``fully_shard`` over all
    hsdp      the same over half of them, and two replicas
    tp        the columns of one layer and the rows of the other
    fsdp-tp   both, over two processes each
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(SIZES[0], SIZES[1]), torch.nn.ReLU(), torch.nn.Linear(SIZES[1], SIZES[2])
    )
    model.register_buffer("seen", torch.tensor(0))
    if kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (count,)))
    elif kind == "hsdp":
        names = ("replicate", "shard")
        fully_shard(model, mesh=init_device_mesh("cpu", (2, count // 2), mesh_dim_names=names))
    else:
        shape = (count // 2, 2) if kind == "fsdp-tp" else (1, count)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
        if kind == "fsdp-tp":
            fully_shard(model, mesh=mesh["dp"])
    return model


def optimizer_of(model: Any) -> Any:
    """Return AdamW with two groups of parameters, as trainers have them."""
    import torch

    biases = [each for name, each in model.named_parameters() if name.endswith("bias")]
    weights = [each for name, each in model.named_parameters() if name.endswith("weight")]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98))


def train(model: Any, optimizer: Any, steps: range) -> list[float]:
    """Train on all of the data in each process; return the losses."""
    import torch

    losses = []
    for step in steps:
        batch = torch.randn(6, SIZES[0], generator=torch.Generator().manual_seed(step))
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.seen += len(batch)
        losses.append(loss.item())
    return losses


def state_of(model: Any, optimizer: Any, step: int) -> dict[str, Any]:
    import torch
    from torch.distributed.checkpoint.state_dict import get_state_dict

    of_model, of_optimizer = get_state_dict(model, optimizer)
    about = {"step": step, "name": "a run", "rng": torch.get_rng_state(), "shape": torch.Size([2])}
    return {"model": of_model, "optim": of_optimizer, "run": about}


def objects() -> dict[str, Any]:
    """Return values of every kind that is no tensor."""
    import torch

    return {
        "name": "naïve \u2713", "nothing": None, "flag": True, "raw": b"\x00\xff", "big": -(3**500),
        "inf": math.inf, "nan": math.nan, "small": 5e-324, "lr": np.float64(0.1), "step": np.int64(7),
        "half": np.float16(0.5), "yes": np.bool_(True), "betas": (0.9, 0.999), "sizes": torch.Size([3, 4]),
        "args": argparse.Namespace(lr=0.1, layers=[1, 2], nested={"a": (1,)}),
        "dtype": torch.bfloat16, "device": torch.device("cuda", 3), "set": {1}, "z": 1 + 2j,
        "list": [1, [2.5, "x"]],
        "ordered": (OrderedDict([("b", 1), ("a", (2,))]),), "array": bytearray(b"ab"),
    }  # fmt: skip


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a state with a change of each of its values."""
    if isinstance(value, dict):
        return {key: changed(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [changed(each, change) for each in value]
    return change(value)


def whole_of(state: Any) -> Any:
    """Return a state with whole tensors; all processes call this together."""
    return changed(state, lambda x: x.full_tensor() if hasattr(x, "full_tensor") else x)


def copied(state: Any) -> Any:
    """Return a state with tensors of its own."""
    return changed(state, lambda x: x.clone() if hasattr(x, "clone") else x)


def emptied(state: Any) -> Any:
    """Return a state in which nothing of its values is left."""
    import torch

    return changed(state, lambda x: torch.zeros_like(x) if isinstance(x, torch.Tensor) else None)


def differences(read: Any, whole: Any, path: str = "") -> list[str]:
    """Return the places at which two states differ in a type, a dtype, a shape or a bit."""
    import torch

    if isinstance(whole, dict) and isinstance(read, dict):
        lacking = [f"{path}.{key}" for key in whole.keys() ^ read.keys()]
        both = whole.keys() & read.keys()
        return lacking + [d for k in both for d in differences(read[k], whole[k], f"{path}.{k}")]
    if isinstance(whole, list) and isinstance(read, list) and len(whole) == len(read):
        pairs = enumerate(zip(read, whole, strict=True))
        return [d for k, (one, two) in pairs for d in differences(one, two, f"{path}.{k}")]
    if isinstance(whole, torch.Tensor):
        is_same = isinstance(read, torch.Tensor) and read.dtype == whole.dtype
        return [] if is_same and torch.equal(read, whole) else [path]
    return [] if type(read) is type(whole) and read == whole else [path]


def save_whole(folder: Path, state: Any, rank: int) -> None:
    """Save a state with whole tensors, by the first process."""
    import torch

    whole = whole_of(state)
    if rank == 0:
        torch.save(whole, folder / "whole.pt")


def write(folder: Path, model: Any, rank: int) -> None:
    """Train, and save with torch's writer and with shardvar's."""
    import torch.distributed.checkpoint as dcp

    from shardvar.torch import StorageWriter

    optimizer = optimizer_of(model)
    train(model, optimizer, range(3))
    state = state_of(model, optimizer, 3)
    dcp.save(state, checkpoint_id=folder / "dcp")
    dcp.save(state, storage_writer=StorageWriter(folder / "torch"))
    dcp.save(state, storage_writer=StorageWriter(folder / "native", format="shardvar"))
    dcp.save({**state, "objects": objects()}, checkpoint_id=folder / "objects")
    save_whole(folder, state, rank)


def read(folder: Path, model: Any) -> None:
    """Load checkpoints with shardvar's reader, and compare."""
    import torch
    import torch.distributed.checkpoint as dcp

    import shardvar.torch

    whole = torch.load(folder / "whole.pt")
    state = state_of(model, optimizer_of(model), 0)
    for path in json.loads((folder / "read.json").read_text()):
        found, kept = emptied(state), dict.fromkeys(objects())
        if path.endswith("-back"):
            dcp.load({**found, "objects": kept}, checkpoint_id=path)
            assert str([*map(shown, kept.items())]) == str([*map(shown, objects().items())]), path
        else:
            dcp.load(found, storage_reader=shardvar.torch.StorageReader(path))
        assert differences(whole_of(found), whole) == [], path


def shown(item: tuple[str, Any]) -> Any:
    """Return a name, and a value with its type, in which NaN is NaN."""
    return item[0], repr(item[1]), type(item[1])


def keep(folder: Path, model: Any, rank: int) -> None:
    """Train, save, and train on."""
    import torch.distributed.checkpoint as dcp

    import shardvar.torch

    optimizer = optimizer_of(model)
    train(model, optimizer, range(3))
    state = state_of(model, optimizer, 3)
    shardvar.torch.save(folder / "ck", state, run="3")
    shardvar.torch.save(folder / "folder", state, run="3", format="torch")
    dcp.save(state, checkpoint_id=folder / "dcp")
    save_whole(folder, state, rank)
    print(train(model, optimizer, range(3, 6)))


KINDS = "fsdp", "hsdp", "tp", "fsdp-tp"


def meshes(folder: Path, count: int) -> None:
    """Save on each mesh, and resume on every mesh."""
    import torch

    import shardvar.torch

    wholes, losses = {}, {}
    for kind in KINDS:
        model = divided(kind, count)
        optimizer = optimizer_of(model)
        train(model, optimizer, range(3))
        state = state_of(model, optimizer, 3)
        saving = shardvar.torch.save(folder / kind, state, run="3", background=True, digest=True)
        wholes[kind] = copied(whole_of(state))
        losses[kind] = train(model, optimizer, range(3, 6))
        saving.result()
    for kind, whole in wholes.items():
        for other in KINDS:
            model = divided(other, count)
            optimizer = optimizer_of(model)
            state = emptied(state_of(model, optimizer, 0))
            shardvar.torch.load(folder / kind, state)
            assert differences(whole_of(state), whole) == [], (kind, other)
            found = train_from(model, optimizer, state)
            if other == kind:
                assert found == losses[kind], kind
            twin = divided(other, count)
            expected = train_from(twin, optimizer_of(twin), copied(whole), is_whole=True)
            assert found == expected, (kind, other)
    model = divided("fsdp-tp", count)
    optimizer = optimizer_of(model)
    train_from(model, optimizer, copied(wholes["fsdp"]), is_whole=True)
    whole = copied(whole_of(state_of(model, optimizer, 0)))
    shardvar.torch.save(folder / "objects", {"model": model, "optim": optimizer}, run="1")
    for other in KINDS:
        model = divided(other, count)
        optimizer = optimizer_of(model)
        with torch.no_grad():
            model[0].weight.zero_()
        shardvar.torch.load(folder / "objects", {"model": model, "optim": optimizer})
        found = whole_of(state_of(model, optimizer, 0))
        assert differences(found["model"], whole["model"]) == [], other
        assert differences(found["optim"], whole["optim"]) == [], other
    print(json.dumps(losses))


def train_from(
    model: Any, optimizer: Any, state: dict[str, Any], *, is_whole: bool = False
) -> list[float]:
    """Train on from a state, which may have whole tensors; return the losses."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optim"],
        options=StateDictOptions(full_state_dict=is_whole),
    )
    return train(model, optimizer, range(state["run"]["step"], 6))


def resume(folder: Path, model: Any) -> None:
    """Load what was saved into a new model and a new optimizer, and train on."""
    import torch
    import torch.distributed.checkpoint as dcp

    import shardvar.torch

    whole = torch.load(folder / "whole.pt")
    optimizer = optimizer_of(model)
    state = emptied(state_of(model, optimizer, 0))
    dcp.load(state, checkpoint_id=folder / "folder")
    assert differences(whole_of(state), whole) == []
    for path in (folder / "folder", folder / "dcp", folder / "ck"):
        optimizer = optimizer_of(model)
        state = emptied(state_of(model, optimizer, 0))
        shardvar.torch.load(path, state)
        assert differences(whole_of(state), whole) == [], path
    print(train_from(model, optimizer, state))


def killed(folder: Path, model: Any, rank: int, count: int) -> None:
    """Save, and save again while the last process is killed."""
    import torch.distributed.checkpoint as dcp

    from shardvar.torch import StorageWriter
    from shardvar.torch import storage as writer

    optimizer = optimizer_of(model)
    train(model, optimizer, range(1))
    plan = json.loads((folder / "kill.json").read_text())
    old = StorageWriter(folder / "old", format=plan["format"])
    dcp.save(state_of(model, optimizer, 1), storage_writer=old)
    real = writer.save_with_objects

    def dies(*arguments: Any, **options: Any) -> None:
        if plan["when"] == "after":
            real(*arguments, **options)
        os._exit(KILLED)

    if rank == count - 1:
        writer.save_with_objects = dies
    train(model, optimizer, range(1, 2))
    for name in ("old", "new"):
        new = StorageWriter(folder / name, format=plan["format"])
        try:
            dcp.save(state_of(model, optimizer, 2), storage_writer=new)
        except Exception as error:  # noqa: BLE001
            print(type(error).__name__)
        else:
            raise AssertionError("The save has succeeded without a process.")


def main(job: str, folder: Path, rank: int, count: int, kind: str) -> None:
    """Run one process of a job."""
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting-{job}", rank=rank, world_size=count
    )
    if job == "meshes":
        meshes(folder, count)
        dist.barrier()
        return
    model = divided(kind, count)
    if job == "killed":
        killed(folder, model, rank, count)
        return
    if job in ("write", "keep"):
        {"write": write, "keep": keep}[job](folder, model, rank)
    else:
        {"read": read, "resume": resume}[job](folder, model)
    dist.barrier()


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo that is not done yet aborts an interpreter that ends
