"""PyTorch's checkpoints, written by PyTorch and read here: every dtype, views, shared storages,
objects."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dcp = pytest.importorskip("torch.distributed.checkpoint", reason="PyTorch is not installed")


def state() -> dict[str, Any]:
    table = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    layer = torch.nn.Linear(3, 2)
    return {
        "table": table,
        "transposed": table.t(),
        "stepped": table[::2, 1::2],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "conjugate": torch.complex(table, -table).conj(),
        "half": table.to(torch.bfloat16),
        "flags": table > 7,
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "module": layer.state_dict(),
        "nested": {"list": [torch.ones(2), {"x": torch.zeros(1)}], "step": 7, "betas": (0.9, 0.99)},
    }


def check(path: Path) -> None:
    """Compare what shardvar reads with what was written."""
    written, loaded = state(), sv.load(path)
    for key in ("table", "transposed", "stepped", "expanded", "flags", "empty", "scalar"):
        assert np.array_equal(loaded[key], written[key].numpy()), key
    assert np.array_equal(loaded["conjugate"], written["conjugate"].resolve_conj().numpy())
    assert loaded["half"].tobytes() == written["half"].view(torch.int16).numpy().tobytes()
    assert loaded["nested.list.1.x"].tolist() == [0] and loaded["module.weight"].shape == (2, 3)
    assert loaded["nested.step"][()] == b"7" and loaded["nested.betas"][()] == b"(0.9, 0.99)"
    assert sv.verify(path).ok


def test_a_file_of_torch_save_is_read(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "x.pt")
    check(tmp_path / "x.pt")


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint_is_read(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state(), checkpoint_id=str(tmp_path / "ck"))
    check(tmp_path / "ck")
