"""Meshes and placements of the kit's cases, and the definition of what they mean, on lists of
indices.

A placement says what one mesh axis does to a tensor: the number of the tensor's axis that it cuts,
None for copies, or ``("strided", axis, factor)``. Devices are counted in C order over the mesh.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Broken, expect, text
from shardvar.layout.dtypes import Array
from shardvar.testing import counting

MeshPlacement = int | None | tuple[str, int, int]
MeshShape = tuple[int, ...]
Placed = tuple[Array, MeshShape, tuple[MeshPlacement, ...]]
"""A value, a mesh and a placement for each of its axes."""

MESHES: tuple[MeshShape, ...] = ((1,), (2,), (3,), (4,), (2, 2), (3, 2), (2, 3), (1, 3), (2, 2, 2))
"""Meshes of one to three axes, with an axis of one device; frameworks compile for each."""


def expect_parts(came: Any, must: Sequence[Array]) -> None:
    """``Broken`` unless the answer is an array for each device with these values; empty ones may
    have any shape."""
    arrays = [np.asarray(part) for part in came]
    expect(
        len(arrays) == len(must),
        f"It gave {len(arrays)} arrays.",
        f"It must give one for each of {len(must)}.",
    )
    for device, (array, wanted) in enumerate(zip(arrays, must, strict=True)):
        is_same = array.size == wanted.size and (not wanted.size or np.array_equal(array, wanted))
        if not is_same or (wanted.size and array.dtype != wanted.dtype):
            raise Broken(f"Device {device} holds {text(array)}.", f"It must hold {text(wanted)}.")


# Cases. Ordinary ones divide: a mesh axis cuts a tensor axis that no other cuts, into equal parts
# with elements.


@st.composite
def placements_on(
    draw: st.DrawFn, mesh: MeshShape, rank: int, is_stacked: bool = False
) -> tuple[MeshPlacement, ...]:
    """A placement for each mesh axis; two cut the same tensor axis only if stackable."""
    free = list(range(rank))
    chosen: list[MeshPlacement] = []
    for _ in mesh:
        axis = draw(st.sampled_from([*free, None]))
        if axis is not None and not is_stacked:
            free.remove(axis)
        chosen.append(axis)
    return tuple(chosen)


def number_of_cuts(mesh: MeshShape, placements: Sequence[MeshPlacement], axis: int) -> int:
    """The number of parts that a tensor axis is cut into."""
    return prod(
        count for count, placement in zip(mesh, placements, strict=True) if placement == axis
    )


@st.composite
def even(
    draw: st.DrawFn, meshes: Sequence[MeshShape] = MESHES, is_stacked: bool = False, most: int = 2
) -> Placed:
    """A tensor whose extents divide."""
    mesh = draw(st.sampled_from(list(meshes)))
    rank = draw(st.integers(1, 2))
    placements = draw(placements_on(mesh, rank, is_stacked))
    shape = [
        number_of_cuts(mesh, placements, axis) * draw(st.integers(1, most)) for axis in range(rank)
    ]
    return counting(shape), mesh, placements


@st.composite
def uneven(
    draw: st.DrawFn, meshes: Sequence[MeshShape] = MESHES, is_stacked: bool = False
) -> Placed:
    """A tensor of any extents from the number of parts on."""
    mesh = draw(st.sampled_from(list(meshes)))
    rank = draw(st.integers(1, 2))
    placements = draw(placements_on(mesh, rank, is_stacked))
    cuts = [number_of_cuts(mesh, placements, axis) for axis in range(rank)]
    return counting([draw(st.integers(count, 2 * count + 1)) for count in cuts]), mesh, placements


@st.composite
def few(draw: st.DrawFn) -> Placed:
    """A tensor with fewer indices than there are devices along a mesh axis that cuts them."""
    mesh = draw(st.sampled_from([(2,), (3,), (4,), (3, 2), (2, 3)]))
    axis = draw(st.integers(0, len(mesh) - 1))
    placements = tuple(0 if each == axis else None for each in range(len(mesh)))
    return (
        counting((draw(st.integers(1, mesh[axis] - 1)), draw(st.integers(1, 2)))),
        mesh,
        placements,
    )


@st.composite
def strided(draw: st.DrawFn, is_even: bool = True) -> Placed:
    """The placements of FSDP over tensor parallelism: the last mesh axis cuts in fact first."""
    mesh = draw(st.sampled_from([(2, 2), (3, 2), (2, 3)]))
    count = prod(mesh)
    rows = count * draw(st.integers(1, 2)) if is_even else draw(st.integers(count, 2 * count))
    return counting((rows, draw(st.integers(1, 2)))), mesh, (("strided", 0, mesh[1]), 0)


@st.composite
def rows_on_both(draw: st.DrawFn) -> Placed:
    """Rows that both axes of a mesh cut; they rarely divide."""
    mesh = draw(st.sampled_from([(2, 2), (3, 2)]))
    return (
        counting((draw(st.integers(prod(mesh), 2 * prod(mesh) + 1)), draw(st.integers(1, 2)))),
        mesh,
        (0, 0),
    )


Moved = tuple[Array, MeshShape, tuple[MeshPlacement, ...], tuple[MeshPlacement, ...]]
"""A value, a mesh, and the placements before and after."""


@st.composite
def moves(draw: st.DrawFn, start: st.SearchStrategy[Placed], is_stacked: bool = False) -> Moved:
    """A tensor to redistribute on its mesh; its extents divide by any placements, or by none."""
    value, mesh, source = draw(start)
    target = draw(placements_on(mesh, value.ndim, is_stacked))
    return value, mesh, source, target


@st.composite
def even_moves(draw: st.DrawFn, is_stacked: bool = False) -> Moved:
    """A redistribution of a tensor whose extents divide by the whole mesh, so by any placements."""
    mesh = draw(st.sampled_from(list(MESHES)))
    rank = draw(st.integers(1, 2))
    value = counting([prod(mesh)] * rank)
    source, target = (draw(placements_on(mesh, rank, is_stacked)) for _ in range(2))
    return value, mesh, source, target
