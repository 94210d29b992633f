"""Training states of PyTorch, by way of every container that shardvar writes, and back.

Two ranks train with FSDP2 and AdamW, save with ``dcp.save``, and take one more step. The state is
converted and converted back, ``dcp.load`` restores it into a fresh job, and the same step has the
same loss, bit for bit.
"""

import sys
from pathlib import Path

import pytest

from spec_tests.helpers.programs import run_together

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torch.distributed.checkpoint", reason="PyTorch is not installed")

CONTAINERS = ("shardvar", "safetensors", "orbax", "zarr", "npz", "tensorflow", "pt")

PROGRAM = """
import argparse, math, os, sys
from collections import OrderedDict
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank, folder, names = int(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting-{names[0]}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))


def settings():
    return {
        "name": "naïve \\u2713", "nothing": None, "flag": True, "raw": b"\\x00\\xff", "big": -(3**500),
        "inf": math.inf, "nan": math.nan, "small": 5e-324, "lr": np.float64(0.1), "step": np.int64(7),
        "half": np.float16(0.5), "yes": np.bool_(True), "betas": (0.9, 0.999), "sizes": torch.Size([3, 4]),
        "args": argparse.Namespace(lr=0.1, layers=[1, 2], nested={"a": (1,)}),
        "dtype": torch.bfloat16, "device": torch.device("cuda", 3), "set": {1}, "z": 1 + 2j,
        "list": [1, [2.5, "x"]],
        "ordered": (OrderedDict([("b", 1), ("a", (2,))]),), "array": bytearray(b"ab"),
    }


def job(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    fully_shard(model)
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": 0.02}, {"params": model[2].parameters(), "betas": (0.8, 0.95)}],
        lr=0.01,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    return model, optimizer, schedule


def step(model, optimizer, schedule, seed):
    torch.manual_seed(seed + dist.get_rank())
    loss = model(torch.randn(5, 6)).square().sum()
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    return loss.item().hex()


def state_of(model, optimizer, schedule, extra):
    weights, slots = get_state_dict(model, optimizer)
    return {"model": weights, "optim": slots, "schedule": schedule.state_dict(), "extra": extra}


def shown(value):
    return repr(value), type(value)


if names == ["save"]:
    mine = job(0)
    for number in range(3):
        step(*mine, number)
    dcp.save(state_of(*mine, settings()), checkpoint_id=f"{folder}/saved")
    losses = [step(*mine, 10), step(*mine, 11)]
    open(f"{folder}/losses-{rank}", "w").write(" ".join(losses))
else:
    expected = open(f"{folder}/losses-{rank}").read().split()
    for name in names:
        mine = job(5)
        step(*mine, 99)  # AdamW has state
        state = state_of(*mine, dict.fromkeys(settings()))
        dcp.load(state, checkpoint_id=f"{folder}/{name}-back")
        set_state_dict(mine[0], mine[1], model_state_dict=state["model"], optim_state_dict=state["optim"])
        mine[2].load_state_dict(state["schedule"])
        for key, value in settings().items():
            assert shown(state["extra"][key]) == shown(value), (name, key, state["extra"][key])
        losses = [step(*mine, 10), step(*mine, 11)]
        assert losses == expected, (name, losses, expected)
print("resumed", flush=True)
dist.barrier()
os._exit(0)
"""


def run(folder: Path, what: str) -> None:
    """Run the program on two ranks."""
    (folder / "rank.py").write_text(PROGRAM)
    command = [sys.executable, "-W", "ignore", str(folder / "rank.py")]
    printed = run_together([[*command, rank, folder, what] for rank in range(2)])
    assert [each.split() for each in printed] == [["resumed"]] * 2


def test_a_job_resumes_from_every_container(tmp_path: Path) -> None:
    import shardvar as sv

    run(tmp_path, "save")
    for name in CONTAINERS:
        ending = {"safetensors": ".safetensors", "pt": ".pt", "npz": ".npz"}.get(name, "")
        between = tmp_path / f"{name}{ending}"
        report = sv.reshard(tmp_path / "saved", between, format=name)
        back = sv.reshard(between, tmp_path / f"{name}-back", format="torch")
        assert report.num_objects == back.num_objects > 50
        expected = sv.digest(tmp_path / "saved").tensors
        for path in (between, tmp_path / f"{name}-back"):
            assert sv.verify(path).ok and sv.digest(path).tensors == expected
    run(tmp_path, ",".join(CONTAINERS))
