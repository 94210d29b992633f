"""The steps by which DTensor itself redistributes (torch 2.13.0), to be compared with the copies that are needed.

DTensor changes the placement of one mesh axis at a time, by one collective along that axis:

    from        to          collective
    Shard       Replicate   all_gather
    Shard       Shard       all_to_all; on meshes of CPUs an all_gather and a local cut
    Partial     Replicate   all_reduce
    Partial     Shard       reduce_scatter
    Replicate   Shard       none, a local cut

1. From the last axis to the first, an axis gets its target. Where the target is ``Shard(d)``, and the axes before it do
   not cut ``d`` alike in what is and what is wanted, the axis is made ``Replicate`` first. This is left out where
   nothing is cut.
2. From the first axis to the last, the others get their targets.

Collectives need equal sizes, so shards are padded along the dimension to the rounded up quotient of its extent and the
number of devices; padding is sent like elements. Not described here: strided shards, for which DTensor searches the
cheapest steps, and meshes that were flattened, on which it joins steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from shardvar.errors import LayoutError, UnsupportedError
from shardvar.layout.dtypes import Ints
from shardvar.layout.region import read_shape
from shardvar.layouts.dtensor import (
    DTensorPlacement,
    Partial,
    Replicate,
    Shard,
    StridedShard,
    check_placements,
    read_dim,
)
from shardvar.layouts.intervals import chunk_bounds
from shardvar.layouts.mesh import Mesh, check_mesh

_COLLECTIVES = {
    (Shard, Replicate): "all_gather", (Shard, Shard): "all_to_all",
    (Partial, Replicate): "all_reduce", (Partial, Shard): "reduce_scatter",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class DTensorStep:
    """One change of the placement of one mesh axis."""

    axis: int
    """The mesh axis."""
    source: DTensorPlacement
    """Its placement before."""
    target: DTensorPlacement
    """Its placement after."""
    collective: str | None
    """The collective along the axis; None for a local cut."""
    group_size: int
    """The number of devices along the axis, among which each collective runs."""
    given: Ints
    """[devices] the elements that each device gives to the collective, with padding; 0 for a local cut."""

    def sent(self, itemsize: int = 1) -> npt.NDArray[np.float64]:
        """The elements that each device sends in a ring, padding included.

        Parameters
        ----------
        itemsize : int, default 1
            The bytes of an element, to count bytes; 1 counts elements.

        Returns
        -------
        ndarray of float64
            [devices].
        """
        others = self.group_size - 1
        # all_gather passes on the shards of all others; the rest send what belongs to others, all_reduce twice.
        of_given = {None: 0.0, "all_gather": others, "all_reduce": 2 * others / self.group_size}
        return self.given.astype(np.float64) * of_given.get(self.collective, others / self.group_size) * itemsize


def dtensor_steps(
    shape: Sequence[int], mesh: Mesh, source: Sequence[DTensorPlacement], target: Sequence[DTensorPlacement]
) -> tuple[DTensorStep, ...]:
    """Return the steps by which DTensor turns one list of placements into another, in their order.

    Parameters
    ----------
    shape : sequence of int
        The shape of the tensor.
    mesh : Mesh
        The devices.
    source : sequence of Shard, Replicate or Partial
        The placements before, one for each axis of the mesh.
    target : sequence of Shard, Replicate or Partial
        The placements after.

    Returns
    -------
    tuple of DTensorStep
        Each changes the placement of one mesh axis.

    Raises
    ------
    LayoutError
        If a target is ``Partial`` where the source is not, which DTensor refuses too.
    UnsupportedError
        If a placement is ``StridedShard``.
    ArgumentError
        If ``dtensor`` refuses the placements.
    OutOfRange
        If a placement names a dimension that the tensor does not have.

    Examples
    --------
    >>> rows_by_columns, columns = (Shard(0), Shard(1)), (Replicate(), Shard(1))
    >>> for step in dtensor_steps((8, 8), Mesh((2, 2)), rows_by_columns, columns[::-1]):
    ...     print(step.axis, step.source, step.target, step.collective, step.sent().tolist())
    1 Shard(dim=1) Replicate() all_gather [16.0, 16.0, 16.0, 16.0]
    0 Shard(dim=0) Shard(dim=1) all_to_all [16.0, 16.0, 16.0, 16.0]
    """
    check_mesh(mesh)
    extents = read_shape(shape)
    current, wanted = (_read_placements(each, extents, mesh) for each in (source, target))
    for axis, (before, after) in enumerate(zip(current, wanted, strict=True)):
        if isinstance(after, Partial) and before != after:
            raise LayoutError(
                f"Mesh axis {axis} is {before} and its target is {after}, which DTensor refuses.",
                "Redistribute to Shard or Replicate.",
            )
    steps = []
    for axis, after in _changes(current, wanted, mesh):
        steps.append(_step(extents, mesh, current, axis, after))
        current[axis] = after
    return tuple(steps)


def _read_placements(
    placements: Sequence[DTensorPlacement], shape: tuple[int, ...], mesh: Mesh
) -> list[DTensorPlacement]:
    """The placements, dimensions counted from the front."""
    given = check_placements(placements, mesh)
    if any(isinstance(each, StridedShard) for each in given):
        raise UnsupportedError(
            "The steps of DTensor for StridedShard are not described here.",
            "`plan_redistribution` says what has to move between any two layouts.",
        )
    return [Shard(read_dim(each.dim, shape)) if isinstance(each, Shard) else each for each in given]


def _changes(
    source: Sequence[DTensorPlacement], target: Sequence[DTensorPlacement], mesh: Mesh
) -> list[tuple[int, DTensorPlacement]]:
    """The mesh axes and what they become, in order."""
    current, changes = list(source), []
    if prod(mesh.shape[axis] for axis, each in enumerate(source) if isinstance(each, Shard)) > 1:
        for axis in reversed(range(mesh.rank)):
            after = target[axis]
            if isinstance(after, Shard) and _cuts(current[:axis], after) != _cuts(target[:axis], after):
                after = Replicate()
            if current[axis] != after:
                changes.append((axis, after))
                current[axis] = after
    changes += [(axis, after) for axis, after in enumerate(target) if current[axis] != after]
    return changes


def _cuts(placements: Sequence[DTensorPlacement], wanted: Shard) -> list[int]:
    """The mesh axes that cut the dimension that ``wanted`` cuts."""
    return [axis for axis, each in enumerate(placements) if each == wanted]


def _step(
    shape: tuple[int, ...], mesh: Mesh, current: Sequence[DTensorPlacement], axis: int, after: DTensorPlacement
) -> DTensorStep:
    before, size = current[axis], mesh.shape[axis]
    collective = _COLLECTIVES.get((type(before), type(after)))
    extents = _local_extents(shape, mesh, current)
    outside = _local_extents(shape, mesh, current[:axis])
    if isinstance(before, Shard):
        extents[before.dim] = -(-outside[before.dim] // size)
    if isinstance(after, Shard):
        extents[after.dim] = -(-extents[after.dim] // size) * size
    given = np.prod(extents, axis=0, dtype=np.int64) if collective else np.zeros(mesh.size, np.int64)
    return DTensorStep(axis, before, after, collective, size, given)


def _local_extents(shape: tuple[int, ...], mesh: Mesh, placements: Sequence[DTensorPlacement]) -> Ints:
    """[rank, devices] the extents of what each device holds under placements of the first mesh axes."""
    extents = np.repeat(np.array(shape, np.int64)[:, None], mesh.size, axis=1)
    coordinates = mesh.coordinates()
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            start, stop = chunk_bounds(extents[placement.dim], coordinates[:, axis], mesh.shape[axis])
            extents[placement.dim] = stop - start
    return extents
