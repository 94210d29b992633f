"""DeepSpeed's ZeRO: the elements of each parameter that a rank holds (deepspeed 0.19.8,
``deepspeed.runtime.zero``).

    stages 1 and 2   the parameters of a group in one buffer, padded at the end, in equal partitions
    stage 3 each parameter in its own buffer, padded at the end, in equal partitions

Its code divides partitions of stages 1 and 2 like ``sv.div``, which says nothing after the padding:
all are equal.
"""

from collections.abc import Sequence
from math import prod

from shardvar.errors import ArgumentError
from shardvar.layout.meshes.flat import flat_layout, flat_places
from shardvar.layout.meshes.layout import Layout
from shardvar.layout.meshes.mesh import Mesh
from shardvar.layout.region import read_shape

_ALIGNMENT = 2
"""``nccl_start_alignment_factor``: partitions begin at 4 bytes, which are 2 elements of float16."""


def deepspeed(
    shapes: Sequence[Sequence[int]], mesh: Mesh, stage: int, *, round_robin_gradients: bool = False
) -> tuple[Layout, ...]:
    """Return the layouts of the parameters of one group under DeepSpeed's ZeRO.

    In stages 1 and 2 these are the parts that each rank updates, and whose optimizer's state it
    saves.

    Parameters
    ----------
    shapes : sequence of sequence of int
        The shapes of the parameters, in their order.
    mesh : Mesh
        The ranks. The last axis shards; one in front of it replicates.
    stage : int
        The stage of ZeRO: 1, 2 or 3.
    round_robin_gradients : bool, default False
        True: parameters are ordered by their number modulo the ranks, in stages 1 and 2.

    Raises
    ------
    ArgumentError
        If there is another stage, or a mesh of three axes or more.

    Examples
    --------
    >>> for each in deepspeed([(2, 3), (3,)], Mesh((2,)), stage=2):
    ...     print([[str(region) for region in each.regions(device)] for device in range(2)])
    [['[0:2, 0:3]'], []]
    [[], ['[0:3]']]
    >>> [[str(region) for region in each.regions(1)] for each in deepspeed([(2, 3), (3,)], Mesh((2,)), stage=3)]
    [['[1:2, 0:3]'], ['[2:3]']]
    """
    extents = [read_shape(shape) for shape in shapes]
    if stage not in (1, 2, 3) or (stage == 3 and round_robin_gradients):
        raise ArgumentError(
            f"stage is {stage!r}, round_robin_gradients {round_robin_gradients!r}.",
            "Give stage 1, 2 or 3; round robin is of 1 and 2.",
        )
    places, ranks = flat_places(mesh)
    rule = f"DeepSpeed ZeRO stage {stage} (deepspeed 0.19)"
    if stage == 3:
        return tuple(
            flat_layout(shape, mesh, rule, 0, -(-prod(shape) // ranks), places) for shape in extents
        )
    order = sorted(
        range(len(extents)), key=lambda number: number % ranks if round_robin_gradients else 0
    )
    starts, end = {}, 0
    for number in order:
        starts[number] = end
        end += prod(extents[number])
    # 9 elements on 2 ranks are padded to 12, the next multiple of 2 * 2, so each has 6.
    length = -(-end // (_ALIGNMENT * ranks)) * _ALIGNMENT
    return tuple(
        flat_layout(shape, mesh, rule, starts[number], length, places)
        for number, shape in enumerate(extents)
    )
