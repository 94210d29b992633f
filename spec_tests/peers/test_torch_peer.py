"""Tensors of the real PyTorch are saved as they are: parameters, views, and dtypes that it gives
NumPy no way to."""

from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import ArgumentError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize(
    "name",
    "float32 float64 float16 bfloat16 float8_e4m3fn float8_e5m2 int8 uint8 int64 bool "
    "complex64 uint16".split(),
)
@pytest.mark.parametrize("shape", [(), (0, 3), (4, 3)])
def test_every_dtype_keeps_its_bytes(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor = (torch.arange(int(np.prod(shape))).reshape(shape) % 2).to(getattr(torch, name))
    sv.save(tmp_path / "m", {"k": tensor, "turned": tensor.mT if tensor.ndim == 2 else tensor})
    loaded = sv.load(tmp_path / "m")
    assert loaded["k"].dtype.name == name
    assert (
        loaded["k"].astype(np.complex128).tolist() == tensor.to(torch.complex128).numpy().tolist()
    )
    assert loaded["turned"].shape == (shape[::-1])


def test_parameters_and_conjugates_are_arrays(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2).to(torch.bfloat16)
    conjugate = torch.tensor([1 + 2j]).conj()
    sv.save(tmp_path / "m", dict(layer.named_parameters()) | {"c": conjugate})
    loaded = sv.load(tmp_path / "m")
    assert loaded["weight"].astype(np.float32).tolist() == layer.weight.detach().float().tolist()
    assert loaded["c"].tolist() == [1 - 2j]


@pytest.mark.parametrize("tensor", [torch.eye(2).to_sparse(), torch.empty(2, device="meta")])
def test_what_has_no_values_in_a_row_is_named_by_its_key(
    tensor: "torch.Tensor", tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match="'k'"):
        sv.save(tmp_path / "m", {"k": tensor})
