"""The steps by which DTensor itself redistributes (torch 2.13.0), to be compared with the copies
that are needed.

DTensor changes the placement of one mesh axis at a time, by one collective along that axis:

    from        to          collective
    Shard       Replicate   all_gather
    Shard       Shard       all_to_all; on meshes of CPUs an all_gather and a local cut
    Partial     Replicate   all_reduce
    Partial     Shard       reduce_scatter
    Replicate   Shard       none, a local cut

1. From the last axis to the first, an axis gets its target. Where the target is ``Shard(d)``, and
   the axes before it do not cut ``d`` alike in what is and what is wanted, the axis is made
   ``Replicate`` first. This is left out where nothing is cut.
2. From the first axis to the last, the others get their targets.

Where a strided shard is in what is or what is wanted, and all of them stand for orders of mesh
axes, torch searches the steps instead: see ``layouts.step_search``. Strided shards that stand for
no order follow the rule above, and an all_gather and a local cut replace their all_to_all
everywhere.

Collectives need equal sizes, so shards are padded along the dimension to the rounded up quotient of
its extent and the number of devices; padding is sent like elements. Not described here: meshes that
were flattened, on which torch joins steps; and strided shards of no order on a dimension that
another mesh axis cuts. torch 2.13 plans these as if that axis did not cut it, and then many moves
fail or leave wrong values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from shardvar.conformance.torch_plans.step_search import (
    Change,
    OrderedPlacements,
    read_orders,
    search_changes,
)
from shardvar.errors import ArgumentError, LayoutError, UnsupportedError
from shardvar.layout.dtypes import Ints
from shardvar.layout.meshes.dtensor import (
    DTensorPlacement,
    Partial,
    Replicate,
    Shard,
    StridedShard,
    check_placements,
    read_dim,
)
from shardvar.layout.meshes.intervals import Intervals, chunk_bounds
from shardvar.layout.meshes.mesh import Mesh, check_mesh
from shardvar.layout.region import read_shape

_COLLECTIVES = {
    (Shard, Replicate): "all_gather", (Shard, Shard): "all_to_all",
    (Partial, Replicate): "all_reduce", (Partial, Shard): "reduce_scatter",
    # By way of replicas, which are then cut.
    (StridedShard, Replicate): "all_gather", (StridedShard, Shard): "all_gather",
    (StridedShard, StridedShard): "all_gather", (Shard, StridedShard): "all_gather",
    (Partial, StridedShard): "all_reduce",
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
    """[devices] the elements that each device gives, with padding; 0 for a local cut."""

    def sent(self, itemsize: int = 1) -> npt.NDArray[np.float64]:
        """The elements that each device sends in a ring, padding included.

        Parameters
        ----------
        itemsize : int, default 1
            The bytes of an element, to count bytes; 1 counts elements.
        """
        others = self.group_size - 1
        # all_gather passes on the shards of all others; the rest send what belongs to others,
        # all_reduce twice.
        of_given = {None: 0.0, "all_gather": others, "all_reduce": 2 * others / self.group_size}
        return (
            self.given.astype(np.float64)
            * of_given.get(self.collective, others / self.group_size)
            * itemsize
        )


def dtensor_steps(
    shape: Sequence[int],
    mesh: Mesh,
    source: Sequence[DTensorPlacement],
    target: Sequence[DTensorPlacement],
    *,
    itemsize: int = 4,
    devices_per_host: int = 8,
) -> tuple[DTensorStep, ...]:
    """Return the steps by which DTensor turns one list of placements into another, in their order.

    Parameters
    ----------
    shape : sequence of int
        The shape of the tensor.
    mesh : Mesh
        The devices.
    source : sequence of Shard, Replicate, Partial or StridedShard
        The placements before, one for each axis of the mesh.
    target : sequence of Shard, Replicate, Partial or StridedShard
        The placements after.
    itemsize : int, default 4
        The bytes of an element. With strided shards, the steps depend on it: torch estimates their
        times.
    devices_per_host : int, default 8
        The number of devices of a host, on which the same estimate depends. On CPUs torch takes it
        to be 1.

    Returns
    -------
    tuple of DTensorStep
        Each changes the placement of one mesh axis. Strided shards that stand for an order of mesh
        axes are ``Shard``.

    Raises
    ------
    LayoutError
        If a target is ``Partial`` where the source is not, which DTensor also refuses.
    UnsupportedError
        If a ``StridedShard`` stands for no order of mesh axes, and another axis cuts its dimension
        before or after.
    ArgumentError
        If ``dtensor`` refuses the placements, or `itemsize` or `devices_per_host` is less than 1.
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
    if min(itemsize, devices_per_host) < 1:
        raise ArgumentError(
            f"itemsize is {itemsize} and devices_per_host is {devices_per_host}.",
            "Give numbers from 1 on.",
        )
    state, goal = (read_orders(each, mesh, len(extents)) for each in (current, wanted))
    if state is None or goal is None:
        _check_alone(current, wanted)
        state, changes = _from_first_to_last(current, len(extents)), _changes(current, wanted, mesh)
    elif any(isinstance(each, StridedShard) for each in (*current, *wanted)):
        changes = search_changes(state, goal, mesh, itemsize * prod(extents), devices_per_host)
    else:
        changes = _changes(current, wanted, mesh)
    steps = []
    for axis, placement in changes:
        steps.append(_step(extents, mesh, state, axis, placement))
        state = state.change(axis, placement)
    return tuple(steps)


def _read_placements(
    placements: Sequence[DTensorPlacement], shape: tuple[int, ...], mesh: Mesh
) -> list[DTensorPlacement]:
    """The placements, dimensions counted from the front."""
    given = check_placements(placements, mesh)
    return [
        replace(each, dim=read_dim(each.dim, shape))
        if isinstance(each, Shard | StridedShard)
        else each
        for each in given
    ]


def _check_alone(source: Sequence[DTensorPlacement], target: Sequence[DTensorPlacement]) -> None:
    """Raise ``UnsupportedError`` if a mesh axis other than a strided shard's cuts its dimension."""
    cuts = [
        (axis, each)
        for placements in (source, target)
        for axis, each in enumerate(placements)
        if isinstance(each, Shard | StridedShard)
    ]
    for axis, each in cuts:
        others = [other for other, cut in cuts if other != axis and cut.dim == each.dim]
        if isinstance(each, StridedShard) and others:
            raise UnsupportedError(
                f"Mesh axis {axis} has {each}, and mesh axis {others[0]} cuts dimension "
                f"{each.dim} too. A split_factor here stands for no order of mesh axes, so "
                "DTensor can fail or leave wrong values.",
                "`plan_redistribution` says what has to move between any two layouts.",
            )


def _from_first_to_last(placements: Sequence[DTensorPlacement], rank: int) -> OrderedPlacements:
    """The placements as they are, which cut from the first mesh axis to the last."""
    orders = [
        tuple(
            axis
            for axis, each in enumerate(placements)
            if isinstance(each, Shard | StridedShard) and each.dim == dim
        )
        for dim in range(rank)
    ]
    return OrderedPlacements(tuple(placements), tuple(orders))


def _changes(
    source: Sequence[DTensorPlacement], target: Sequence[DTensorPlacement], mesh: Mesh
) -> list[Change]:
    """The mesh axes and what they become, in order."""
    current, changes = list(source), []
    if (
        prod(
            mesh.shape[axis]
            for axis, each in enumerate(source)
            if isinstance(each, Shard | StridedShard)
        )
        > 1
    ):
        for axis in reversed(range(mesh.rank)):
            after = target[axis]
            if isinstance(after, Shard) and _cuts(current[:axis], after) != _cuts(
                target[:axis], after
            ):
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
    shape: tuple[int, ...],
    mesh: Mesh,
    current: OrderedPlacements,
    axis: int,
    after: DTensorPlacement,
) -> DTensorStep:
    before, size = current.placements[axis], mesh.shape[axis]
    collective = _COLLECTIVES.get((type(before), type(after)))
    extents = _local_extents(shape, mesh, current)
    if isinstance(before, Shard):
        outside = _local_extents(shape, mesh, current.change(axis, Replicate()))
        extents[before.dim] = -(-outside[before.dim] // size)
    elif isinstance(before, StridedShard):
        extents[before.dim] = extents[before.dim].max()  # the first parts, which no other axis cuts
    if isinstance(after, Shard) and not isinstance(before, StridedShard):
        extents[after.dim] = -(-extents[after.dim] // size) * size
    given = (
        np.prod(extents, axis=0, dtype=np.int64) if collective else np.zeros(mesh.size, np.int64)
    )
    return DTensorStep(axis, before, after, collective, size, given)


def _local_extents(shape: tuple[int, ...], mesh: Mesh, current: OrderedPlacements) -> Ints:
    """[rank, devices] the extents of what each device holds."""
    extents = np.repeat(np.array(shape, np.int64)[:, None], mesh.size, axis=1)
    coordinates = mesh.coordinates()
    for dim, order in enumerate(current.orders):
        for axis in order:
            part, placement = coordinates[:, axis], current.placements[axis]
            if isinstance(placement, StridedShard):
                whole = Intervals.whole(shape[dim], mesh.size)  # no other axis cuts this dimension
                extents[dim] = whole.cut_strided(
                    part, mesh.shape[axis], placement.split_factor
                ).lengths()
            else:
                start, stop = chunk_bounds(extents[dim], part, mesh.shape[axis])
                extents[dim] = stop - start
    return extents
