"""What Orbax, zarr-python and xarray write is what shardvar reads; each is skipped where it is not installed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv

RNG = np.random.default_rng(7)
TREE = {
    "params": {"kernel": RNG.standard_normal((300, 200), np.float32), "bias": np.zeros(64, np.float32)},
    "opt": [np.int64(3), {"mu": RNG.standard_normal((5, 7))}],
    "flag": np.array([True, False]),
}
LEAVES = {
    "params.kernel": TREE["params"]["kernel"],
    "params.bias": TREE["params"]["bias"],
    "opt.0": np.int64(3),
    "opt.1.mu": TREE["opt"][1]["mu"],
    "flag": TREE["flag"],
}


def hold(path: Path, expected: dict[str, Any]) -> None:
    loaded = sv.load(path, [*expected])
    for key, array in expected.items():
        assert np.array_equal(loaded[key], array, equal_nan=np.asarray(array).dtype.kind in "fc"), key
        assert loaded[key].dtype == np.asarray(array).dtype
    assert sv.verify(path).ok


@pytest.mark.parametrize("use_ocdbt", [True, False])
@pytest.mark.parametrize("use_zarr3", [True, False])
@pytest.mark.parametrize("use_compression", [True, False])
def test_every_layout_of_orbax(tmp_path: Path, use_ocdbt: bool, use_zarr3: bool, use_compression: bool) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    options = {"use_ocdbt": use_ocdbt, "use_zarr3": use_zarr3, "use_compression": use_compression}
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)).save(tmp_path / "ck", TREE)
    hold(tmp_path / "ck", LEAVES)


def test_chunks_that_orbax_makes_smaller(tmp_path: Path) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    for use_zarr3 in (False, True):
        handler = ocp.PyTreeCheckpointHandler(use_zarr3=use_zarr3)
        array = RNG.standard_normal((640, 32), np.float32)
        args = {"w": ocp.SaveArgs(chunk_byte_size=4096)}
        ocp.Checkpointer(handler).save(tmp_path / f"ck{use_zarr3}", {"w": array}, save_args=args)
        hold(tmp_path / f"ck{use_zarr3}", {"w": array})


def test_a_step_of_a_manager(tmp_path: Path) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 12):
            manager.save(step, args=ocp.args.StandardSave({"w": np.full(4, step)}))
        manager.wait_until_finished()
    for path in (tmp_path / "run" / "12", tmp_path / "run" / "12" / "default"):
        hold(path, {"w": np.full(4, 12)})


def arrays_of(version: int) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Arrays with the options that they are written with."""
    found: dict[str, tuple[Any, dict[str, Any]]] = {
        "a": (RNG.standard_normal((33, 17)), {"chunks": (8, 5)}),
        "d/e/f": (np.arange(10, dtype=np.int16), {"chunks": (4,)}),
        "nan": (np.full((4, 4), np.nan), {"chunks": (2, 2), "fill_value": np.nan}),
        "inf": (np.array([np.inf, 1, 2], np.float16), {"chunks": (1,), "fill_value": np.inf}),
        "complex": (np.array([1 + 2j, 3]), {"chunks": (1,), "fill_value": 1j}),
        "bool": (np.array([True, False]), {"chunks": (1,), "fill_value": True}),
        "empty": (np.zeros((0, 3)), {"chunks": (1, 3)}),
        "raw": (np.arange(100.0), {"chunks": (10,), "compressors": None}),
        "scalar": (np.array(2.5), {}),
    }
    if version == 3:
        found["sharded"] = (RNG.standard_normal((64, 64)), {"chunks": (8, 8), "shards": (32, 16)})
    return found


@pytest.mark.parametrize("version", [2, 3])
def test_groups_of_zarr_python(tmp_path: Path, version: int) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "g", mode="w", zarr_format=version)
    arrays = arrays_of(version)
    for key, (array, options) in arrays.items():
        group.create_array(key, shape=array.shape, dtype=array.dtype, **options)[...] = array
    hold(tmp_path / "g", {key: array for key, (array, _) in arrays.items()})


@pytest.mark.parametrize("version", [2, 3])
def test_datasets_of_xarray(tmp_path: Path, version: int) -> None:
    """With labels, which are text: they are refused by name, and the numbers are read."""
    xarray, _ = pytest.importorskip("xarray"), pytest.importorskip("zarr")
    values = RNG.standard_normal((5, 3), np.float32)
    dataset = xarray.Dataset({"t": (("y", "x"), values)}, {"x": ["a", "b", "c"]}, {"title": "a run"})
    dataset.to_zarr(tmp_path / "ds", zarr_format=version)
    hold(tmp_path / "ds", {"t": values})
    with sv.open_checkpoint(tmp_path / "ds") as reader:
        assert reader.metadata.user["title"] == "a run" and "x" in reader.faults
