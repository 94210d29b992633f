"""Places: where, in a joined tensor, the parts lie that several checkpoints hold of it.

    an axis            source ``i`` has part ``i`` along it
    a mesh and a spec  source ``i`` has what device ``i`` of the mesh holds, by
                       ``layouts.named_sharding``

A place has a number for each axis of the tensor. Sources with one number along an axis have the
same extent there, and sources in one place have copies. ``plan_join`` makes the map of them, whose
rules are ``{rank}/KEY[a b] -> KEY[(rank a) b]`` and the like. Nothing here reads a checkpoint.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import is_whole
from shardvar.layout.meshes import named_sharding
from shardvar.layout.meshes.mesh import Mesh, check_mesh
from shardvar.layout.meshes.named_sharding import SpecEntry
from shardvar.maps.plan import MapPlan, Piece, Target, View
from shardvar.maps.ranks import numbered
from shardvar.pictures.words import human_shape

Spec = Sequence[SpecEntry]
"""The mesh axes that cut each axis of a tensor, as in ``layouts.named_sharding``."""

Join = int | tuple[Mesh, Spec]
"""The axis along which parts follow; or a mesh with source ``i`` as device ``i``, and a spec."""

Place = tuple[int, ...]
"""The number of a part along each axis of a tensor: 0 where nothing was cut."""

About = tuple[str, tuple[int, ...]]
"""The dtype and the shape of a tensor."""


def places_of(key: str, rule: Any, count: int, dtype: str, shape: tuple[int, ...]) -> list[Place]:
    """The place of each source's part of a tensor that a rule concatenates."""
    if is_whole(dtype):
        raise ArgumentError(
            f"{key!r} is of dtype {dtype}, which is never concatenated.", "Choose numbers."
        )
    if isinstance(rule, tuple) and len(rule) == 2:
        return _places_on_mesh(*rule, count, shape)
    if isinstance(rule, bool) or not isinstance(rule, int) or not -len(shape) <= rule < len(shape):
        cause = (
            f"{key!r} has the shape {human_shape(shape)}, and no axis {rule!r} to concatenate "
            "along."
        )
        raise ArgumentError(
            cause, "Choose an axis of the tensor, or a glob that does not match it."
        )
    axis = rule % len(shape)
    return [
        tuple(number if each == axis else 0 for each in range(len(shape)))
        for number in range(count)
    ]


def _places_on_mesh(mesh: Mesh, spec: Spec, count: int, shape: tuple[int, ...]) -> list[Place]:
    """The place of each part, where source ``i`` is what device ``i`` of a mesh holds."""
    check_mesh(mesh)
    if mesh.size != count:
        raise ArgumentError(
            f"The mesh {mesh} has {mesh.size} devices, and there are {count} sources.",
            "Give a source for each device of the mesh, in their order.",
        )
    # One index for each part: where a layout of this shape puts a device is the place of its part.
    names = [
        () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        for entry in spec
    ]
    counts = [prod(mesh.shape[mesh.axis(name)] for name in entry) for entry in names[: len(shape)]]
    layout = named_sharding([*counts, *[1] * (len(shape) - len(counts))], mesh, spec)
    return [layout.regions(device)[0].offset for device in range(count)]


def agree(tensors: Sequence[About], places: Sequence[Place]) -> bool:
    """Return True if dtypes and ranks are equal, and along each axis the extents of parts in the
    same place."""
    dtype, first = tensors[0]
    if any(each != dtype or len(shape) != len(first) for each, shape in tensors):
        return False
    extents = extents_of([shape for _, shape in tensors], places)
    return all(
        extents[axis][place[axis]] == extent
        for (_, shape), place in zip(tensors, places, strict=True)
        for axis, extent in enumerate(shape)
    )


def extents_of(shapes: Sequence[tuple[int, ...]], places: Sequence[Place]) -> list[dict[int, int]]:
    """For each axis, the extent of the parts in each place, by the first source that has it."""
    extents: list[dict[int, int]] = [{} for _ in shapes[0]]
    for shape, place in zip(shapes, places, strict=True):
        for axis, extent in enumerate(shape):
            extents[axis].setdefault(place[axis], extent)
    return extents


def firsts_of(places: Sequence[Place]) -> list[int]:
    """For each source, the number of the first one whose part is in the same place."""
    seen: dict[Place, int] = {}
    return [seen.setdefault(place, number) for number, place in enumerate(places)]


def plan_join(
    sources: Sequence[Mapping[str, About]], places: Mapping[str, Sequence[Place]]
) -> MapPlan:
    """Return the plan that makes tensors of their parts in numbered sources: of copies, the first.

    >>> sources = [{"w": ("int8", (2, 3))}, {"w": ("int8", (2, 5))}]
    >>> [target] = plan_join(sources, {"w": [(0, 0), (0, 1)]}).targets
    >>> target.shape, [(piece.source.key, piece.target.start) for piece in target.pieces]
    ((2, 8), [('0/w', (0, 0)), ('1/w', (0, 3))])
    """
    targets, names = list[Target](), dict[str, str]()
    for key, where in places.items():
        shapes = [tensors[key][1] for tensors in sources]
        extents = extents_of(shapes, where)
        shape = tuple(sum(axis.values()) for axis in extents)
        if shape == shapes[0]:
            names[numbered(0, key)] = key
            continue
        begins = [[0, *accumulate(axis[part] for part in range(len(axis)))] for axis in extents]
        zeros, steps = (0,) * len(shape), tuple((axis, 1) for axis in range(len(shape)))
        pieces = list[Piece]()
        for number, first in enumerate(firsts_of(where)):
            if number == first:
                start = tuple(begin[at] for begin, at in zip(begins, where[number], strict=True))
                source = View(numbered(number, key), zeros, steps)
                pieces.append(Piece(0, shapes[number], source, View(key, start, steps)))
        targets.append(Target(key, sources[0][key][0], shape, tuple(pieces)))
    return MapPlan(targets, {}, names)
