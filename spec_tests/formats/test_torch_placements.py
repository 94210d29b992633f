"""The placements that a file of torch names mean what ``sv.layouts`` says that they mean."""

from itertools import product
from math import prod

import numpy as np
import pytest

from shardvar.formats.torch.shares import Placement, Spread, held_regions
from shardvar.layout.meshes import (
    DTensorPlacement,
    Layout,
    Replicate,
    Shard,
    StridedShard,
    dtensor,
    fsdp,
)
from shardvar.layout.meshes.layout import Mesh

KINDS: dict[DTensorPlacement, Placement] = {
    Shard(0): Placement(0),
    Shard(1): Placement(1),
    Replicate(): Placement(),
    StridedShard(0, 2): Placement(0, 2),
    StridedShard(1, 3): Placement(1, 3),
}


def read_from_files(layout: Layout, placements: tuple[Placement, ...], strided_last: bool) -> None:
    """Compare the regions of every device, as the reader of a file of each rank finds them, with a
    layout."""
    for device, coordinate in enumerate(np.ndindex(*layout.mesh.shape)):
        spread = Spread(layout.shape, layout.mesh.shape, coordinate, placements)
        found = [
            (region.offset, region.shape) for region in held_regions(spread.runs(strided_last))
        ]
        expected = [(region.offset, region.shape) for region in layout.regions(device)]
        assert [region for region in found if prod(region[1])] == expected


@pytest.mark.parametrize("mesh", [(1,), (4,), (2, 2), (3, 2)])
def test_placements_are_read_as_a_dtensor_has_them(mesh: tuple[int, ...]) -> None:
    for shape, placements in product([(7, 5), (2, 3)], product(KINDS, repeat=len(mesh))):
        layout = dtensor(shape, Mesh(mesh), placements)
        read_from_files(layout, tuple(KINDS[each] for each in placements), strided_last=False)


def test_the_shards_of_fsdp_are_read_as_fsdp_has_them() -> None:
    for rows, dp, tp in product(range(1, 22), range(1, 5), range(1, 5)):
        layout = fsdp((rows, 2), Mesh((dp, tp), ("dp", "tp")), tp_dim=0)
        read_from_files(layout, (Placement(0, tp), Placement(0)), strided_last=True)
