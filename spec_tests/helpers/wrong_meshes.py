"""Wrong meshes, placements and redistributions; ``mutant_adapters`` says what a mutant is."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from spec_tests.helpers.mutant_adapters import wrong
from spec_tests.helpers.right_adapter import Right

Array = Any


@wrong("coordinates", "V-MESH-1")
def first_axis_fastest(self: Right, mesh: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Devices are counted in Fortran's order."""
    return (tuple(reversed(each)) for each in np.ndindex(*reversed(mesh)))


@wrong("mesh_parts", "V-MESH-2")
def cuts_from_the_right(self: Right, value: Array, mesh: Any, placements: Any) -> Any:
    """The last mesh axis cuts first."""
    parts = []
    for coordinate in np.ndindex(*mesh):
        part = value
        for at, count, placement in reversed(list(zip(coordinate, mesh, placements, strict=True))):
            part = self.placed(part, placement, at, count)
        parts.append(part)
    return parts


@wrong("mesh_parts", "V-MESH-1-scalars")
def scalars_are_rows(self: Right, value: Array, mesh: Any, placements: Any) -> Any:
    """A scalar becomes an array of one element."""
    return [
        np.atleast_1d(part).copy() if value.ndim else part[None]
        for part in Right.mesh_parts(self, value, mesh, placements)
    ]


@wrong("chunk", "V-MESH-3")
def parts_by_div(self: Right, value: Array, axis: int, part: int, count: int) -> Any:
    """Rows are divided by the div rule of RFC 000."""
    return np.array_split(value, count, axis)[part]


@wrong("chunk", "V-MESH-3-few")
def remainder_is_dropped(self: Right, value: Array, axis: int, part: int, count: int) -> Any:
    """All parts are rounded down, so that what does not divide is nowhere."""
    size = value.shape[axis] // count
    return value[(slice(None),) * axis + (slice(part * size, (part + 1) * size),)]


@wrong("chunk", "V-MESH-3-order")
def parts_are_padded(self: Right, value: Array, axis: int, part: int, count: int) -> Any:
    """The last part is filled up with zeros."""
    size = -(-value.shape[axis] // count)
    found = value[(slice(None),) * axis + (slice(part * size, (part + 1) * size),)]
    widths = [(0, 0)] * value.ndim
    widths[axis] = (0, size - found.shape[axis])
    return np.pad(found, widths)


@wrong("placed", "V-STRIDED-1")
def strided_like_any(self: Right, value: Array, placement: Any, part: int, count: int) -> Any:
    """A strided shard is one range."""
    axis = placement[1] if isinstance(placement, tuple) else placement
    return value if axis is None else self.chunk(value, axis, part, count)


@wrong("placed", "V-STRIDED-1-uneven")
def strided_by_unflattening(
    self: Right, value: Array, placement: Any, part: int, count: int
) -> Any:
    """The ranges of a strided shard are as large as the device's parts of it allow: all equal, the
    rest last."""
    if not isinstance(placement, tuple):
        return Right.placed(self, value, placement, part, count)
    _, axis, factor = placement
    size = max(1, value.shape[axis] // factor)
    cuts = np.split(value, range(size, size * factor, size), axis)
    return np.concatenate([self.chunk(run, axis, part, count) for run in cuts], axis)


@wrong("mesh_slices", "V-STATED-1")
def offsets_of_the_last_cut(self: Right, shape: Any, mesh: Any, placements: Any) -> Any:
    """Where two mesh axes cut one axis, the offset is that within the first part."""
    slices = Right.mesh_slices(self, shape, mesh, placements)
    found = []
    for coordinate, (offset, local) in zip(np.ndindex(*mesh), slices, strict=True):
        given = list(offset)
        for at, axis in zip(coordinate, placements, strict=True):
            if axis is not None:
                given[axis] = at * local[axis]
        found.append((tuple(given), local))
    return found


@wrong("mesh_slices", "V-STATED-1-uneven")
def equal_shapes_are_stated(self: Right, shape: Any, mesh: Any, placements: Any) -> Any:
    """All devices are said to hold as much as the first one."""
    slices = Right.mesh_slices(self, shape, mesh, placements)
    return [(offset, slices[0][1]) for offset, _ in slices]


@wrong("mesh_slices", "V-STATED-1-few")
def a_row_for_everyone(self: Right, shape: Any, mesh: Any, placements: Any) -> Any:
    """A device that holds nothing is said to hold a row."""
    slices = Right.mesh_slices(self, shape, mesh, placements)
    return [(offset, tuple(max(1, extent) for extent in local)) for offset, local in slices]


@wrong("mesh_gather", "V-WHOLE-1")
def parts_in_the_order_of_devices(
    self: Right, parts: Any, shape: Any, mesh: Any, placements: Any
) -> Any:
    """Parts are joined along the first axis, as they come."""
    return np.concatenate(parts)[: shape[0]]


@wrong("mesh_gather", "V-WHOLE-1-uneven")
def all_as_large_as_the_first(
    self: Right, parts: Any, shape: Any, mesh: Any, placements: Any
) -> Any:
    """Each part is taken to be as large as the first one, and so is the whole: from_local without a
    shape."""
    size = [n * int(np.prod([k for k, one in zip(mesh, placements, strict=True) if one == axis]))
            for axis, n in enumerate(parts[0].shape)]  # fmt: skip
    return Right.mesh_gather(
        self, [np.resize(part, parts[0].shape) for part in parts], size, mesh, placements
    )


@wrong("mesh_gather", "V-WHOLE-1-few")
def empty_parts_end_it(self: Right, parts: Any, shape: Any, mesh: Any, placements: Any) -> Any:
    """Parts are joined up to the first empty one, and what follows is zeros."""
    first = next((number for number, part in enumerate(parts) if not part.size), len(parts))
    rest = [np.zeros_like(part) for part in parts[first:]]
    return Right.mesh_gather(self, [*parts[:first], *rest], shape, mesh, placements)


@wrong("mesh_gather", "V-WHOLE-1-strided")
def strided_parts_are_ranges(
    self: Right, parts: Any, shape: Any, mesh: Any, placements: Any
) -> Any:
    """Strided shards are put together as if each were a range."""
    plain = [one[1] if isinstance(one, tuple) else one for one in placements]
    return Right.mesh_gather(self, parts, shape, mesh, plain)


@wrong("mesh_move", "V-MOVE-1")
def rows_move_alone(self: Right, value: Array, mesh: Any, source: Any, target: Any) -> Any:
    """Only cuts of the first axis are made anew."""
    return Right.mesh_move(self, value, mesh, source, [None if axis else axis for axis in target])


@wrong("mesh_move", "V-MOVE-1-order")
def stacked_cuts_swap(self: Right, value: Array, mesh: Any, source: Any, target: Any) -> Any:
    """Where two mesh axes cut one axis in the end, the last one cuts first."""
    parts = Right.mesh_move(self, value, mesh, source, target)
    if len(mesh) != 2 or target[0] is None or target[0] != target[1]:
        return parts
    swapped = Right.mesh_parts(self, value, mesh[::-1], target)
    return [swapped[b * mesh[0] + a] for a, b in np.ndindex(*mesh)]


@wrong("mesh_move", "V-MOVE-1-uneven")
def blocks_are_exchanged(self: Right, value: Array, mesh: Any, source: Any, target: Any) -> Any:
    """What moves is padded to equal blocks, and the padding stays."""
    parts = Right.mesh_move(self, value, mesh, source, target)
    shape = np.max([part.shape for part in parts], axis=0)
    return [
        np.pad(part, [(0, most - n) for most, n in zip(shape, part.shape, strict=True)])
        for part in parts
    ]


@wrong("mesh_move", "V-MOVE-1-few")
def nothing_comes_from_nothing(
    self: Right, value: Array, mesh: Any, source: Any, target: Any
) -> Any:
    """A device that held nothing gets nothing."""
    before = Right.mesh_parts(self, value, mesh, source)
    after = Right.mesh_move(self, value, mesh, source, target)
    return [new if old.size else new[:0] for old, new in zip(before, after, strict=True)]


@wrong("mesh_move", "V-MOVE-1-strided")
def strided_shards_move_as_ranges(
    self: Right, value: Array, mesh: Any, source: Any, target: Any
) -> Any:
    """Strided shards are moved as if each were a range."""
    parts = Right.mesh_parts(self, value, mesh, source)
    plain = [one[1] if isinstance(one, tuple) else one for one in source]
    return Right.mesh_parts(
        self, Right.mesh_gather(self, parts, value.shape, mesh, plain), mesh, target
    )


@wrong("mesh_move_joined", "V-MOVE-1-joined")
def joined_axes_cut_once(self: Right, value: Array, mesh: Any, source: Any, target: Any) -> Any:
    """Parts of two cuts are put together as if one cut had made them: PyTorch's."""
    size = -(-len(value) // int(np.prod(mesh)))
    padded = [
        np.resize(np.pad(p, [(0, size), (0, 0)]), (size, *p.shape[1:]))
        for p in self.mesh_parts(value, mesh, source)
    ]
    return Right.mesh_parts(self, np.concatenate(padded)[: len(value)], mesh, target)


@wrong("combined", "V-TERM-1")
def first_term_counts(self: Right, terms: Any, op: str) -> Any:
    """A pending value is what the first device holds."""
    return terms[0]


@wrong("mesh_reduce", "V-TERM-1-cut")
def terms_are_cut_before(
    self: Right, terms: Any, mesh: Any, axis: int, op: str, placements: Any
) -> Any:
    """Each device cuts its own term, and the terms are not added where something was cut."""
    if placements[axis] is None:
        return Right.mesh_reduce(self, terms, mesh, axis, op, placements)
    parts = [Right.mesh_parts(self, term, mesh, placements) for term in terms]
    return [parts[coordinate[axis]][device] for device, coordinate in enumerate(np.ndindex(*mesh))]


@wrong("combined", "V-TERM-1-ops")
def every_reduction_adds(self: Right, terms: Any, op: str) -> Any:
    """Whatever the reduction is called, terms are added."""
    return np.sum(terms, axis=0)


@wrong("check", "V-REFUSE-1")
def any_axis_will_do(self: Right, rank: int, mesh: Any, placements: Any) -> None:
    """An axis that is missing is not noticed, and not cut."""
    if len(mesh) != len(placements):
        raise ValueError(f"{placements}")
    self.placed = lambda value, axis, *part: (
        value if axis >= rank else Right.placed(self, value, axis, *part)
    )  # type: ignore[method-assign]


@wrong("mesh_parts", "V-REFUSE-1-number")
def placements_are_cropped(self: Right, value: Array, mesh: Any, placements: Any) -> Any:
    """Placements are cropped, or filled up by copies, to the axes of the mesh."""
    return Right.mesh_parts(self, value, mesh, (*placements, *[None] * len(mesh))[: len(mesh)])


@wrong("spec_parts", "V-SPEC-1")
def names_in_the_order_of_the_mesh(
    self: Right, value: Array, mesh: Any, names: Any, spec: Any
) -> Any:
    """The order of the names of an entry is lost."""
    return Right.spec_parts(self, value, mesh, names, [tuple(sorted(entry)) for entry in spec])


@wrong("spec_constrained", "V-SPEC-1-constraint")
def constraints_are_hints(self: Right, value: Array, mesh: Any, names: Any, spec: Any) -> Any:
    """A constraint is checked and not obeyed."""
    self.check_spec(value, mesh, names, spec)
    return [value for _ in range(int(np.prod(mesh)))]


@wrong("spec_constrained", "V-REFUSE-2-constraint")
def what_does_not_divide_is_copied(
    self: Right, value: Array, mesh: Any, names: Any, spec: Any
) -> Any:
    """A constraint that does not divide is dropped: JAX's."""
    try:
        return Right.spec_constrained(self, value, mesh, names, spec)
    except ValueError:
        return [value for _ in range(int(np.prod(mesh)))]


@wrong("check_spec", "V-REFUSE-2")
def any_extent_divides(self: Right, value: Array, mesh: Any, names: Any, spec: Any) -> None:
    """Extents that do not divide are cut all the same."""
    if len({name for entry in spec for name in entry} & set(names)) < sum(map(len, spec)):
        raise ValueError(f"{spec}")


@wrong("check_spec", "V-REFUSE-2-names")
def names_may_come_twice(self: Right, value: Array, mesh: Any, names: Any, spec: Any) -> None:
    """A mesh axis may cut two axes of the tensor."""
    if any(name not in names for entry in spec for name in entry):
        raise ValueError(f"{spec}")


@wrong("fsdp_parts", "V-FSDP-1")
def fsdp_cuts_first(self: Right, value: Array, mesh: Any) -> Any:
    """FSDP cuts a weight before tensor parallelism does."""
    return Right.mesh_parts(self, value, mesh, (0, 0))


@wrong("fsdp_shapes", "V-FSDP-1-stated")
def shapes_of_the_placements(self: Right, shape: Any, mesh: Any) -> Any:
    """The placements, read from left to right, say what is stated: PyTorch's."""
    return [each for _, each in Right.mesh_slices(self, shape, mesh, (("strided", 0, mesh[1]), 0))]
