"""Training states of PyTorch, by way of every container that shardvar writes, and back.

Two ranks train with FSDP2 and AdamW, and save with ``dcp.save``. The state is converted and converted
back, and ``dcp.load`` gives each rank what it had, bit for bit, and objects of many kinds.
"""

import json
from pathlib import Path

import pytest

import shardvar as sv
from spec_tests.helpers.torch_training import run_training

pytest.importorskip("torch.distributed.checkpoint", reason="PyTorch is not installed")

CONTAINERS = ("shardvar", "safetensors", "orbax", "zarr", "npz", "tensorflow", "pt")


def test_a_job_has_its_state_again_from_every_container(tmp_path: Path) -> None:
    run_training("write", tmp_path, 2, "fsdp")
    saved, expected = tmp_path / "objects", sv.digest(tmp_path / "objects").tensors
    for name in CONTAINERS:
        ending = {"safetensors": ".safetensors", "pt": ".pt", "npz": ".npz"}.get(name, "")
        between = tmp_path / f"{name}{ending}"
        report = sv.reshard(saved, between, format=name)
        back = sv.reshard(between, tmp_path / f"{name}-back", format="torch")
        assert report.num_objects == back.num_objects > 20
        for path in (between, tmp_path / f"{name}-back"):
            assert sv.verify(path).ok and sv.digest(path).tensors == expected
    paths = [str(tmp_path / f"{name}-back") for name in CONTAINERS]
    (tmp_path / "read.json").write_text(json.dumps(paths))
    run_training("read", tmp_path, 2, "fsdp")
