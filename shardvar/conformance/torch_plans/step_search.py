"""The search by which DTensor redistributes strided shards (torch 2.13.0): the steps that it
estimates to be fastest.

A strided shard stands for an order: the mesh axes that cut a dimension, which otherwise do so from
the first to the last. With the placements ``[StridedShard(0, 2), Shard(0)]`` on a mesh of (4, 2),
axis 1 cuts first, then axis 0.

1. ``read_orders`` finds the order that the placements stand for. Not every ``split_factor`` stands
   for one.
2. A step changes one mesh axis. Only the last axis that cuts a dimension may leave it, and one that
   joins is the last.
3. ``search_changes`` finds the steps from one order to the other whose estimated times have the
   least sum. Of equal sums it takes the one found first, so the order of ``_possible_changes`` is a
   part of the rule.

The times are torch's, of rings of GPUs: they depend on the bytes of the tensor, and on the number
of devices of a host.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, count, product
from math import prod
from operator import mul

from shardvar.layout.meshes.dtensor import DTensorPlacement, Partial, Replicate, Shard, StridedShard
from shardvar.layout.meshes.mesh import Mesh

Change = tuple[int, DTensorPlacement]
"""A mesh axis and its next placement."""

# Of torch's estimate: microseconds of each collective, of each hop within and between hosts, and
# gigabytes (of 1024**3 bytes) a second within a host; between hosts 0.22 of these.
_START, _HOP, _HOP_BETWEEN_HOSTS = 6.6, 0.6, 2.7
_BANDWIDTH, _BETWEEN_HOSTS = 87.7, 0.22
_ALL_TO_ALL_PENALTY = 1.0


@dataclass(frozen=True, slots=True)
class OrderedPlacements:
    """Placements, and the order in which mesh axes cut each dimension."""

    placements: tuple[DTensorPlacement, ...]
    """The placement of each mesh axis."""
    orders: tuple[tuple[int, ...], ...]
    """For each dimension of the tensor the mesh axes that cut it, the first one first."""

    def change(self, axis: int, after: DTensorPlacement) -> "OrderedPlacements":
        """The placements after one step."""
        before, orders = self.placements[axis], list(self.orders)
        if isinstance(before, Shard | StridedShard):
            orders[before.dim] = tuple(each for each in orders[before.dim] if each != axis)
        if isinstance(after, Shard | StridedShard):
            orders[after.dim] = (*orders[after.dim], axis)
        return OrderedPlacements(
            (*self.placements[:axis], after, *self.placements[axis + 1 :]), tuple(orders)
        )


def read_orders(
    placements: Sequence[DTensorPlacement], mesh: Mesh, rank: int
) -> OrderedPlacements | None:
    """Return the order that placements stand for, with ``Shard`` for strided ones, or None if they
    stand for none.

    An axis with ``split_factor=f`` follows later axes of the mesh that cut the dimension into ``f``
    parts together.

    >>> read_orders([StridedShard(0, 2), Shard(0)], Mesh((4, 2)), 1).orders
    ((1, 0),)
    >>> read_orders([StridedShard(0, 3), Shard(0)], Mesh((4, 2)), 1)
    """
    orders: list[list[int]] = [[] for _ in range(rank)]
    plain = list(placements)
    for axis in reversed(range(len(placements))):
        each = placements[axis]
        if not isinstance(each, Shard | StridedShard):
            continue
        plain[axis], order = Shard(each.dim), orders[each.dim]
        factor = each.split_factor if isinstance(each, StridedShard) else 1
        parts = list(accumulate((mesh.shape[other] for other in order), mul, initial=1))
        if factor not in parts:
            return None
        order.insert(parts.index(factor), axis)
    return OrderedPlacements(tuple(plain), tuple(map(tuple, orders)))


def search_changes(
    source: OrderedPlacements,
    target: OrderedPlacements,
    mesh: Mesh,
    nbytes: int,
    devices_per_host: int,
) -> list[Change]:
    """Return the changes from one to the other with the least estimated time; ``nbytes`` is of the
    whole tensor."""
    reductions = sorted({each.op for each in source.placements if isinstance(each, Partial)})
    estimate = partial(_microseconds, mesh, nbytes, _is_between_hosts(mesh, devices_per_host))
    found, visited = count(), set()
    heap: list[tuple[float, int, OrderedPlacements, tuple[Change, ...]]] = [
        (0.0, next(found), source, ())
    ]
    while True:  # each state can become replicas, and these each target whose terms the source has
        time, _, state, path = heappop(heap)
        if state == target:
            return list(path)
        if state in visited:
            continue
        visited.add(state)
        for axis, after in _possible_changes(state, reductions):
            following = state.change(axis, after)
            if following not in visited:
                step = (
                    time + estimate(state.placements, axis, after),
                    next(found),
                    following,
                    (*path, (axis, after)),
                )
                heappush(heap, step)


def _possible_changes(state: OrderedPlacements, reductions: Sequence[str]) -> Iterator[Change]:
    """All steps, in the order in which torch tries them."""
    dims = range(len(state.orders))
    last = [(dim, order[-1]) for dim, order in enumerate(state.orders) if order]
    terms, copies = (
        [axis for axis, each in enumerate(state.placements) if isinstance(each, kind)]
        for kind in (Partial, Replicate)
    )
    yield from ((axis, Shard(other)) for (dim, axis), other in product(last, dims) if other != dim)
    yield from ((axis, Replicate()) for _, axis in last)
    yield from ((axis, Replicate()) for axis in terms)
    yield from ((axis, Shard(dim)) for axis, dim in product(copies, dims))
    yield from ((axis, Shard(dim)) for axis, dim in product(terms, dims))
    yield from ((axis, Partial(op)) for axis, op in product(copies, reductions))


def _is_between_hosts(mesh: Mesh, devices_per_host: int) -> list[bool]:
    """True for each mesh axis that reaches beyond a host; the last axes fill a host first."""
    return [prod(mesh.shape[axis:]) > devices_per_host for axis in range(mesh.rank)]


def _microseconds(
    mesh: Mesh,
    nbytes: int,
    is_between_hosts: Sequence[bool],
    placements: Sequence[DTensorPlacement],
    axis: int,
    after: DTensorPlacement,
) -> float:
    """The estimated time of a step. Operations are in torch's order, because the last bits decide
    between equals."""
    before, size = placements[axis], mesh.shape[axis]
    if isinstance(before, Replicate):
        return 0.0
    shards = prod(
        mesh.shape[other] for other, each in enumerate(placements) if isinstance(each, Shard)
    )
    gigabytes = nbytes / shards / 1024 / 1024 / 1024
    hops, penalty = size - 1, 0.0
    if isinstance(before, Shard) and isinstance(after, Replicate):
        gigabytes *= size
    elif isinstance(before, Shard):
        penalty = _ALL_TO_ALL_PENALTY
    elif isinstance(after, Replicate):
        hops *= 2  # an all_reduce passes on everything twice
    far = is_between_hosts[axis]
    bandwidth = _BANDWIDTH * _BETWEEN_HOSTS if far else _BANDWIDTH
    start = _START + hops * (_HOP_BETWEEN_HOSTS if far else _HOP)
    return start + (gigabytes * hops / size) / bandwidth * 1e6 + penalty
