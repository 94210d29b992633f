"""Flat parameters: tensors one after the other in a buffer; each device holds a range of it.

A device then holds a range of the elements of a tensor in C order, which is at most 2 * rank - 1
regions. Padding, in front of a tensor or at the end, is in no region.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.meshes.layout import Layout
from shardvar.layout.meshes.mesh import Mesh, check_mesh
from shardvar.layout.region import regions_of_range


def flat_layout(
    shape: tuple[int, ...], mesh: Mesh, rule: str, start: int, length: int, places: Sequence[int]
) -> Layout:
    """The layout of a tensor that begins at ``start`` of a buffer; place p has [p, p + 1) *
    ``length`` of it.

    ``places`` has the place of each device.
    """
    regions_of = {}
    for place in set(places):
        low, high = place * length - start, (place + 1) * length - start
        regions_of[place] = regions_of_range(shape, max(low, 0), min(high, prod(shape)))
    held = [(device, region) for device, place in enumerate(places) for region in regions_of[place]]
    columns = [
        np.array([getattr(region, name) for _, region in held], np.int64)
        for name in ("offset", "shape")
    ]
    offset, extent = (column.reshape(len(held), len(shape)) for column in columns)
    return Layout(
        shape, mesh, rule, np.array([device for device, _ in held], np.int64), offset, extent
    )


def flat_places(mesh: Mesh) -> tuple[list[int], int]:
    """The place of each device along the last mesh axis, and their number; at most 2 axes."""
    check_mesh(mesh)
    if mesh.rank not in (1, 2):
        raise ArgumentError(
            f"Flat parameters have no meaning on the mesh {mesh}.",
            "Give one axis, or (replicate, shard).",
        )
    return mesh.coordinates()[:, -1].tolist(), mesh.shape[-1]
