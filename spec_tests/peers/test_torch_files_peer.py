"""Files of torch.save that shardvar writes, read by PyTorch: bit for bit, with ``weights_only`` and
mapped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.formats.torch.values import DTYPES
from shardvar.layout.dtypes import TORCH_ONLY
from spec_tests.helpers import torch_ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SHAPES = [(), (0, 3), (5,), (2, 0), (3, 4), (2, 1, 2)]


def tensors() -> dict[str, np.ndarray]:
    """One of every dtype and shape, filled with all kinds of bits; those of bool with 0 and 1."""
    import ml_dtypes

    rng = np.random.default_rng(7)
    made = {}
    for name in sorted({*DTYPES.values()} - {*TORCH_ONLY}):
        dtype = np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name))
        for shape in SHAPES:
            octets = rng.integers(
                0, 2 if name == "bool" else 256, int(np.prod(shape)) * dtype.itemsize, np.uint8
            )
            made[f"{name}.{len(shape)}.{shape}"] = np.frombuffer(octets.tobytes(), dtype).reshape(
                shape
            )
    return made | {"naïve ✓": np.arange(3)}


@pytest.mark.parametrize(
    "options", [{}, {"weights_only": True}, {"weights_only": True, "mmap": True}]
)
def test_what_shardvar_writes_torch_loads_bit_for_bit(
    options: dict[str, bool], tmp_path: Path
) -> None:
    written = tensors()
    sv.save(tmp_path / "x.pt", written)
    loaded = torch.load(tmp_path / "x.pt", **options)
    assert loaded.keys() == written.keys()
    for key, array in written.items():
        tensor = loaded[key]
        assert (
            tuple(tensor.shape) == array.shape
            and tensor.is_contiguous()
            and not tensor.requires_grad
        )
        assert str(tensor.dtype) == f"torch.{array.dtype.name}"
        octets = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        assert octets == array.tobytes(), key


def test_an_empty_file_is_an_empty_state_dict(tmp_path: Path) -> None:
    sv.save(tmp_path / "x.pt", {})
    assert torch.load(tmp_path / "x.pt", weights_only=True) == {}


def test_plain_objects_are_loaded_with_weights_only(tmp_path: Path) -> None:
    values = {
        "step": 7,
        "best": float("-inf"),
        "betas": (0.9, 0.99),
        "raw": b"\x00\xff",
        "none": None,
        "tags": ["a"],
    }
    torch.save({"state": values, "w": torch.ones(3)}, tmp_path / "a.pt")
    sv.reshard(tmp_path / "a.pt", tmp_path / "distributed", format="torch")
    sv.reshard(tmp_path / "distributed", tmp_path / "b.pt")
    loaded = torch.load(tmp_path / "b.pt", weights_only=True)
    assert torch.equal(loaded.pop("w"), torch.ones(3))
    assert loaded == {f"state.{key}": value for key, value in values.items()}


def test_tied_weights_stay_one_storage(tmp_path: Path) -> None:
    """From a file to a file, and by way of the native format in slices."""
    shared = torch.arange(12.0).reshape(4, 3)
    torch.save({"emb": shared, "head": shared, "own": shared.clone()}, tmp_path / "a.pt")
    sv.reshard(tmp_path / "a.pt", tmp_path / "b.pt")
    sv.reshard(tmp_path / "a.pt", tmp_path / "native", format="shardvar", partition=2)
    sv.reshard(tmp_path / "native", tmp_path / "c.pt")
    for name in ("b.pt", "c.pt"):
        loaded = torch.load(tmp_path / name, weights_only=True)
        assert loaded["emb"].data_ptr() == loaded["head"].data_ptr() != loaded["own"].data_ptr()
        assert all(torch.equal(each, shared) for each in loaded.values())


def test_many_tensors_need_the_wide_directory_and_are_loaded(tmp_path: Path) -> None:
    """Zip counts members in 16 bits, and in 64 bits beyond."""
    written = {f"t{number}": np.array([number]) for number in range(1 << 16)}
    sv.save(tmp_path / "x.pt", written)
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    assert len(loaded) == 1 << 16 and loaded["t65535"].tolist() == [65535]


def placements() -> list[tuple[tuple[int, ...], Any]]:
    """Meshes, and the placements of a tensor on them; every tensor has two axes, or one."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    return [
        ((3,), lambda _: [Shard(0)]),
        ((3,), lambda value: [Shard(value.ndim - 1)]),
        ((8,), lambda _: [Shard(0)]),
        ((2,), lambda _: [Replicate()]),
        ((2, 2), lambda value: [Shard(0), Shard(value.ndim - 1)]),
        ((2, 2), lambda _: [Shard(0), Shard(0)]),
        ((2, 3), lambda _: [Shard(0), Replicate()]),
        ((2,), lambda _: [_StridedShard(0, split_factor=3)]),
        ((2, 2), lambda _: [_StridedShard(0, split_factor=2), Shard(0)]),
    ]


@pytest.mark.parametrize("number", range(9))
def test_files_of_ranks_have_the_values_that_torch_spread_over_them(
    number: int, tmp_path: Path
) -> None:
    """Each rank saves its own DTensors; together they are the whole tensors, bit for bit."""
    mesh, chosen = placements()[number]
    world = int(np.prod(mesh))
    torch_ranks.save_ranks(tmp_path, world, torch_ranks.distributed(mesh, chosen))
    loaded = sv.load(tmp_path)
    for key, value in torch_ranks.values().items():
        assert np.array_equal(loaded[key], value.numpy()), key
    assert loaded["step"] == 7 and sv.verify(tmp_path).ok
