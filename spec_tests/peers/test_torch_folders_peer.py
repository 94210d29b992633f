"""Distributed checkpoints that shardvar writes, read by PyTorch: every dtype, any cut, objects and
nested values."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.formats.torch.values import DTYPES
from shardvar.layout.dtypes import TORCH_ONLY, numpy_dtype
from shardvar.planning.policies import BalancedPolicy
from spec_tests.helpers.format_protocol import GOLDEN
from spec_tests.helpers.programs import run_together

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dcp = pytest.importorskip("torch.distributed.checkpoint", reason="PyTorch is not installed")
format_utils = pytest.importorskip(
    "torch.distributed.checkpoint.format_utils", reason="PyTorch is not installed"
)

pytestmark = pytest.mark.filterwarnings("ignore")


def tensors() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {
        f"dtypes.{name}": rng.integers(0, 2, (7, 3)).astype(numpy_dtype(name))
        for name in sorted({*DTYPES.values()} - {*TORCH_ONLY})
    }
    return found | {
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), np.float32),
        "naïve ✓": np.arange(5),
    }


def octets_of(tensor: Any) -> bytes:
    """The elements, in C order, as they lie in memory."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return bytes(flat.numpy().tobytes())


def check(read: dict[str, Any]) -> None:
    written = tensors()
    assert read.keys() == written.keys()
    for key, array in written.items():
        dtype = "torch." + key.removeprefix("dtypes.") if "dtypes." in key else None
        assert dtype in (None, str(read[key].dtype)) and tuple(read[key].shape) == array.shape
        assert octets_of(read[key]) == array.tobytes(), key


@pytest.fixture(params=[None, 3, (2, 3)], ids=str)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    partition = {"dtypes.*": request.param} if request.param else None
    sv.save(
        tmp_path / "ck", tensors(), format="torch", partition=partition, policy=BalancedPolicy(3)
    )
    return tmp_path / "ck"


def test_dcp_load_fills_a_template(folder: Path) -> None:
    template = {key: torch.ones_like(value) for key, value in read_empty(folder).items()}
    dcp.load(template, checkpoint_id=str(folder))
    check(template)


def test_a_planner_with_an_empty_dictionary_restores_everything(folder: Path) -> None:
    check(read_empty(folder))


def read_empty(folder: Path) -> dict[str, Any]:
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state: dict[str, Any] = {}
    reader = dcp.FileSystemReader(str(folder))
    _load_state_dict(
        state, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True
    )
    return state


def test_dcp_to_torch_save_converts_it(folder: Path, tmp_path: Path) -> None:
    format_utils.dcp_to_torch_save(str(folder), str(tmp_path / "x.pt"))
    check(torch.load(tmp_path / "x.pt", weights_only=True))


RANK = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

rank, folder, meeting = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
state = {"dtypes.int32": distribute_tensor(torch.full((7, 3), -1, dtype=torch.int32), mesh, [Shard(0)])}
dcp.load(state, checkpoint_id=folder)
print(state["dtypes.int32"].to_local().flatten().tolist(), flush=True)
dist.barrier()
os._exit(0)  # a thread of gloo that is not done yet aborts an interpreter that ends
"""
"""One of two ranks, which loads its rows of a tensor."""


def test_ranks_load_their_rows_from_slices_of_another_cut(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "rank.py")]
    printed = run_together([[*command, rank, folder, tmp_path / "meeting"] for rank in range(2)])
    rows = [*map(json.loads, printed)]
    expected = tensors()["dtypes.int32"].ravel().tolist()
    assert (len(rows[0]), rows[0] + rows[1]) == (12, expected)


@pytest.mark.parametrize(
    "case", ["nested_and_objects", "fsdp2_adamw_bf16_3_ranks", "megatron_tp2_pp2"]
)
def test_a_resharded_checkpoint_gives_torch_the_same_nested_value(
    case: str, tmp_path: Path
) -> None:
    """Tensors in another cut, objects, parameter groups and the lists and dicts that they lie
    in."""
    source = GOLDEN / "torch_dcp" / case / "ckpt"
    sv.reshard(source, tmp_path / "ck", format="torch", partition=3)
    for path, name in ((source, "a.pt"), (tmp_path / "ck", "b.pt")):
        format_utils.dcp_to_torch_save(str(path), str(tmp_path / name))
    a, b = (torch.load(tmp_path / name, weights_only=False) for name in ("a.pt", "b.pt"))
    assert plain(a) == plain(b)


def plain(value: Any) -> Any:
    """A nested value with the bytes of its tensors in their place."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), octets_of(value)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [*map(plain, value)] if isinstance(value, list | tuple) else value
