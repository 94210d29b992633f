"""Layouts as partitions: each region of a mesh is stored once, and the policy by devices gives each
device a file."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import LayoutError
from shardvar.layout.meshes import (
    Layout,
    Partial,
    Replicate,
    Shard,
    StridedShard,
    dtensor,
    named_sharding,
    parameter_servers,
)
from shardvar.layout.meshes.dtensor import DTensorPlacement
from shardvar.layout.partition import plan_rows

CUTS: tuple[DTensorPlacement, ...] = (Replicate(), Shard(0), Shard(1), StridedShard(0, 2))
WHOLE = np.arange(35, dtype=np.int16).reshape(7, 5)


def stored(path: Path, key: str) -> dict[str, str]:
    """Return the file of each stored region of a key."""
    with sv.open_checkpoint(path) as reader:
        found = reader.find(key)
        return {
            str(found.slices.region(row)): reader.index.files[found.file[row]]
            for row in range(len(found))
        }


def first_holders(layout: Layout) -> dict[str, int]:
    """Return each region that a device holds, with the first such device."""
    found: dict[str, int] = {}
    for device in range(layout.mesh.size):
        for region in layout.regions(device):
            found.setdefault(str(region), device)
    return found


@pytest.mark.parametrize("mesh", [(1,), (3,), (2, 2), (3, 2)], ids=str)
def test_each_region_of_a_mesh_is_stored_once(tmp_path: Path, mesh: tuple[int, ...]) -> None:
    """The stored slices are the regions that devices hold, whatever the placements, and the values
    are the same."""
    for number, placements in enumerate(product(CUTS, repeat=len(mesh))):
        layout = dtensor(WHOLE.shape, sv.Mesh(mesh), placements)
        path = tmp_path / str(number)
        report = sv.save(path, {"x": WHOLE}, partition=layout, policy=sv.ShardByDevicePolicy())
        holders, files = first_holders(layout), stored(path, "x")
        assert files.keys() == holders.keys()
        # One file for each device that is the first to hold something, in the order of devices.
        devices = sorted(set(holders.values()))
        names = sorted(set(files.values()))
        assert report.num_files == len(devices) == len(names)
        assert all(
            names.index(files[region]) == devices.index(device)
            for region, device in holders.items()
        )
        assert sv.load(path)["x"].tolist() == WHOLE.tolist()


def test_all_tensors_share_the_files_of_their_devices(tmp_path: Path) -> None:
    """Tensors that are not cut are on device 0; by default everything is in one file. One without
    elements is kept."""
    mesh, policy = sv.Mesh((2, 2), ("dp", "tp")), sv.ShardByDevicePolicy()
    tensors = {"a": np.arange(8.0).reshape(4, 2), "b": np.arange(6), "step": np.array(3), "c": np.zeros((2, 4)),
               "none": np.zeros((0, 4))}  # fmt: skip
    cuts: dict[str, Any] = {
        "a": named_sharding((4, 2), mesh, (("tp", "dp"),)),
        "c": lambda shape, dtype: named_sharding(shape, mesh, (None, "tp")),
        "none": dtensor((0, 4), sv.Mesh((2,)), [Shard(0)]),
    }
    one, four = tmp_path / "one", tmp_path / "four"
    assert sv.save(one, tensors, partition=cuts).num_files == 1
    report = sv.save(four, tensors, partition=cuts, policy=policy)
    # Device 0: 2 of a (16), all of b and step (56), half of c (32); device 1 has the other half of
    # c.
    assert report.file_nbytes == (16 + 56 + 32, 16 + 32, 16, 16)
    assert set(stored(four, "b").values()) == set(stored(four, "step").values())
    servers = parameter_servers((4, 2), sv.Mesh((2,)))
    again = sv.reshard(four, tmp_path / "two", partition=servers, filter="a")
    assert (again.num_slices, again.num_files) == (2, 1)
    for path in (one, four):
        found = sv.load(path)
        assert all(found[key].tolist() == value.tolist() for key, value in tensors.items())
        assert found["none"].shape == (0, 4)


def test_a_variable_is_cut_by_a_layout_of_rows() -> None:
    layout = parameter_servers((5, 2), sv.Mesh((3,)))
    assert [part.shape for part in plan_rows(layout, (5, 2), "float32")] == [(2, 2), (2, 2), (1, 2)]
    with pytest.raises(LayoutError, match="only along its first axis"):
        plan_rows(dtensor((5, 2), sv.Mesh((2,)), [Shard(1)]), (5, 2), "float32")


def odd(name: str, devices: list[int], rows: int) -> Layout:
    """A layout of (4, 4) in which each device holds as many rows."""
    offset = np.array([[device, 0] for device in devices])
    shape = np.array([[rows, 4]] * len(devices))
    return Layout((4, 4), sv.Mesh((2,)), name, np.array(devices), offset, shape)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (dtensor((4, 4), sv.Mesh((2,)), [Partial()]), "terms"),
        (
            dtensor((4, 5), sv.Mesh((2,)), [Shard(0)]),
            r"layout of \(4, 5\); the tensor has \(4, 4\)",
        ),
        (odd("half", [0], 2), "no part holds"),
        (odd("overlap", [0, 1], 3), "overlap"),
    ],
)
def test_layouts_that_are_not_the_tensor_are_refused(
    tmp_path: Path, layout: Layout, words: str
) -> None:
    with pytest.raises(LayoutError, match=words):
        sv.save(tmp_path / "x", {"x": np.zeros((4, 4))}, partition=layout)
    assert list(tmp_path.iterdir()) == []
