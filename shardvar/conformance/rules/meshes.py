"""Level 9: the parts that the devices of a mesh hold, the stated parts, and what moves between two
layouts.

The oracle of each rule cuts lists of indices (``shardvar.spec.meshes``), so that it depends on
nothing else here. The sentences come from docs/layouts.md, where frameworks are compared; where they
differ, the law names one.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Calls, expect, expect_equal, text
from shardvar.conformance.rules import refuses, rule, rules
from shardvar.layout.dtypes import Array
from shardvar.spec.meshes import by_placements, fsdp, parts
from shardvar.spec.redistribution import reduced
from shardvar.testing import counting
from shardvar.testing.compare import difference

MeshPlacement = int | None | tuple[str, int, int]
MeshShape = tuple[int, ...]
Placed = tuple[Array, MeshShape, tuple[MeshPlacement, ...]]
"""A value, a mesh and a placement for each of its axes."""

MESHES: tuple[MeshShape, ...] = ((1,), (2,), (3,), (4,), (2, 2), (3, 2), (2, 3), (1, 3), (2, 2, 2))
"""Meshes of one to three axes, with an axis of one device; frameworks compile for each."""


def expect_parts(came: Any, must: Sequence[Array], ulps: int = 0) -> None:
    """``Broken`` unless each device has these values; empty arrays may have any shape."""
    arrays = [np.asarray(part) for part in came]
    count = len(must)
    expect(
        len(arrays) == count,
        f"It gave {len(arrays)} arrays.",
        f"It must give one for each of {count}.",
    )
    for device, (array, wanted) in enumerate(zip(arrays, must, strict=True)):
        if array.size or wanted.size:
            expect(
                difference(array, wanted, ulps=ulps) is None,
                f"Device {device} holds {text(array)}.",
                f"It must hold {text(wanted)}.",
            )


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
    return prod(
        count for count, placement in zip(mesh, placements, strict=True) if placement == axis
    )


@st.composite
def even(
    draw: st.DrawFn,
    meshes: Sequence[MeshShape] = MESHES,
    is_stacked: bool = False,
    is_even: bool = True,
) -> Placed:
    """A tensor whose extents divide; or else one of any extents from the number of parts on."""
    mesh = draw(st.sampled_from(list(meshes)))
    rank = draw(st.integers(1, 2))
    placements = draw(placements_on(mesh, rank, is_stacked))
    cuts = [number_of_cuts(mesh, placements, axis) for axis in range(rank)]
    shape = [
        count * draw(st.integers(1, 2)) if is_even else draw(st.integers(count, 2 * count + 1))
        for count in cuts
    ]
    return counting(shape), mesh, placements


uneven = partial(even, is_even=False)


@st.composite
def few(draw: st.DrawFn) -> Placed:
    """A tensor with fewer indices than there are devices along a mesh axis that cuts them."""
    mesh = draw(st.sampled_from([(2,), (3,), (4,), (3, 2), (2, 3)]))
    axis = draw(st.integers(0, len(mesh) - 1))
    placements = tuple(0 if each == axis else None for each in range(len(mesh)))
    shape = draw(st.integers(1, mesh[axis] - 1)), draw(st.integers(1, 2))
    return counting(shape), mesh, placements


@st.composite
def strided(draw: st.DrawFn, is_even: bool = True) -> Placed:
    """The placements of FSDP over tensor parallelism: the last mesh axis cuts in fact first."""
    mesh = draw(st.sampled_from([(2, 2), (3, 2), (2, 3)]))
    count = prod(mesh)
    rows = count * draw(st.integers(1, 2)) if is_even else draw(st.integers(count, 2 * count))
    return counting((rows, draw(st.integers(1, 2)))), mesh, (("strided", 0, mesh[1]), 0)


@st.composite
def rows_on_both(draw: st.DrawFn) -> Placed:
    mesh = draw(st.sampled_from([(2, 2), (3, 2)]))
    shape = draw(st.integers(prod(mesh), 2 * prod(mesh) + 1)), draw(st.integers(1, 2))
    return counting(shape), mesh, (0, 0)


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


def device_arrays(value: Array, mesh: MeshShape, placements: Any) -> list[Array]:
    return parts(value, by_placements(value.shape, mesh, placements))


SEVERAL_AXES = tuple(mesh for mesh in MESHES if len(mesh) > 1)


def check_mesh_parts(adapter: Calls, case: Placed) -> None:
    expect_parts(adapter.mesh_parts(*case), device_arrays(*case))


def check_stated_slices(adapter: Calls, case: Placed) -> None:
    value, mesh, placements = case
    came = [
        (tuple(map(int, o)), tuple(map(int, s)))
        for o, s in adapter.mesh_slices(value.shape, mesh, placements)
    ]
    held = by_placements(value.shape, mesh, placements)
    pairs = f"It must give a pair for each of {len(held)} devices."
    expect(len(came) == len(held), f"It gave {came}.", pairs)
    for device, ((offset, shape), axes) in enumerate(zip(came, held, strict=True)):
        lengths = tuple(map(len, axes))
        must = (tuple(axis[0] for axis in axes), lengths) if all(lengths) else None
        is_stated = 0 in shape if must is None else (offset, shape) == must
        wanted = "an empty shape" if must is None else str(must)
        stated = f"It gave {(offset, shape)} for device {device}."
        expect(is_stated, stated, f"It must give {wanted}.")


def check_whole(adapter: Calls, case: Placed) -> None:
    value, mesh, placements = case
    expect_equal(adapter.mesh_gather(device_arrays(*case), value.shape, mesh, placements), value)


def check_redistribution(adapter: Calls, case: Moved, method: str = "mesh_move") -> None:
    value, mesh, _, target = case
    expect_parts(getattr(adapter, method)(*case), device_arrays(value, mesh, target))


Reduced = tuple[list[Array], MeshShape, int, str, tuple[Any, ...]]
"""Terms, a mesh, the axis that is pending, the reduction, and the placements after."""


@st.composite
def reductions(
    draw: st.DrawFn, ops: tuple[str, ...] = ("sum",), is_cut: bool = False, is_even: bool = True
) -> Reduced:
    """Terms of whole numbers, small enough that no order of adding them rounds."""
    mesh = draw(st.sampled_from([(2,), (3,), (4,), (2, 2), (3, 2)]))
    axis = draw(st.integers(0, len(mesh) - 1))
    size = prod(mesh)
    shape = (size if is_even else draw(st.integers(1, 2 * size)), 2)
    terms = [
        counting(shape) * np.float32(draw(st.sampled_from([1, 2, -1, 4])) * mesh[axis])
        for _ in range(mesh[axis])
    ]
    placements = draw(placements_on(mesh, 1, is_stacked=True)) if is_cut else (None,) * len(mesh)
    return terms, mesh, axis, draw(st.sampled_from(ops)), placements


def check_reduced_terms(adapter: Calls, case: Reduced) -> None:
    terms, mesh, axis, op, placements = case
    came = adapter.mesh_reduce(terms, mesh, axis, op, placements)
    expect_parts(came, device_arrays(reduced(terms, op), mesh, placements))


rules(
    ("V-MESH-1", "mesh_parts", even(), check_mesh_parts,
     "Each device holds the part of its coordinate along the mesh axes that cut, and a copy along the others"),
    ("V-MESH-1-scalars", "mesh_parts",
     [(counting(()), mesh, (None,) * len(mesh)) for mesh in MESHES], check_mesh_parts,
     "Each device holds a scalar that is replicated"),
    ("V-MESH-2", "mesh_parts", even(SEVERAL_AXES, is_stacked=True), check_mesh_parts,
     "Two mesh axes that cut the same tensor axis cut it one after the other, the first one first"),
    ("V-MESH-3", "mesh_parts", uneven(), check_mesh_parts,
     "The parts of an extent that does not divide are those of `torch.chunk`"),
    ("V-MESH-3-order", "mesh_parts", uneven(SEVERAL_AXES, is_stacked=True), check_mesh_parts,
     "The parts of an extent that does not divide are those of `torch.chunk`, one mesh axis after the other"),
    ("V-MESH-3-few", "mesh_parts", few(), check_mesh_parts,
     "With fewer indices than devices the last ones hold nothing"),
    ("V-STRIDED-1", "mesh_parts", strided(), check_mesh_parts,
     "A strided shard holds a run of each range, in their order"),
    ("V-STRIDED-1-uneven", "mesh_parts", strided(is_even=False), check_mesh_parts,
     "A strided shard holds a run of each range, by `torch.chunk`, where the extent does not divide"),
    ("V-STATED-1", "mesh_slices", even(is_stacked=True), check_stated_slices,
     "The stated offset and shape of each device match its part"),
    ("V-STATED-1-uneven", "mesh_slices", uneven(is_stacked=True), check_stated_slices,
     "The stated offset and shape match the part, also if extents do not divide"),
    ("V-STATED-1-few", "mesh_slices", few(), check_stated_slices,
     "The stated shape of a device that holds nothing is empty, and the others are right"),
    ("V-WHOLE-1", "mesh_gather", even(is_stacked=True), check_whole,
     "A tensor that is put together from its parts is the tensor"),
    ("V-WHOLE-1-uneven", "mesh_gather", uneven(is_stacked=True), check_whole,
     "A tensor that is put together from parts of several sizes is the tensor"),
    ("V-WHOLE-1-few", "mesh_gather", few(), check_whole,
     "A tensor is put together even if some devices hold nothing of it"),
    ("V-WHOLE-1-strided", "mesh_gather", strided(), check_whole,
     "A tensor that is put together from strided shards is in the order of its indices"),
    ("V-MOVE-1", "mesh_move", even_moves(), check_redistribution,
     "After a redistribution each device holds its part by the target placements"),
    ("V-MOVE-1-order", "mesh_move", even_moves(is_stacked=True), check_redistribution,
     "The same, where several mesh axes cut one tensor axis before or after"),
    ("V-MOVE-1-uneven", "mesh_move", moves(uneven(is_stacked=True), is_stacked=True), check_redistribution,
     "The same, where extents do not divide"),
    ("V-MOVE-1-few", "mesh_move", moves(few(), is_stacked=True), check_redistribution,
     "The same, where some devices hold nothing"),
    ("V-MOVE-1-strided", "mesh_move", moves(strided()), check_redistribution,
     "The same, from strided shards"),
    ("V-MOVE-1-joined", "mesh_move_joined",
     rows_on_both(), lambda adapter, case: check_redistribution(adapter, (*case, (None, None)), "mesh_move_joined"),
     "The same, from rows that both mesh axes cut to copies, with the axes joined first"),
    ("V-TERM-1", "mesh_reduce", reductions(), check_reduced_terms,
     "Every device holds the sum of the terms"),
    ("V-TERM-1-cut", "mesh_reduce", reductions(is_cut=True), check_reduced_terms,
     "Every device holds its part of the sum of the terms"),
    ("V-TERM-1-uneven", "mesh_reduce", reductions(is_cut=True, is_even=False), check_reduced_terms,
     "Every device holds its part of the sum, where extents do not divide or devices hold nothing"),
    ("V-TERM-1-ops", "mesh_reduce", reductions(("avg", "min", "max"), is_cut=True), check_reduced_terms,
     "Mean, minimum and maximum are taken of the terms as the sum is"),
)  # fmt: skip


@rule("V-REFUSE-1", "mesh_parts", st.tuples(even(), st.integers(0, 2)))
def axes_that_are_missing_are_refused(adapter: Calls, case: tuple[Placed, int]) -> None:
    """A placement that cuts an axis which the tensor does not have is refused."""
    (value, mesh, placements), more = case
    adapter.refuses("mesh_parts", value, mesh, (value.ndim + more, *placements[1:]))


@rule("V-REFUSE-1-number", "mesh_parts", st.tuples(even(), st.booleans()))
def other_numbers_of_placements_are_refused(adapter: Calls, case: tuple[Placed, bool]) -> None:
    """Placements that are more or fewer than the mesh's axes are refused."""
    (value, mesh, placements), is_longer = case
    others = (*placements, None) if is_longer else placements[:-1]
    adapter.refuses("mesh_parts", value, mesh, others)


# Specs: an entry for each axis of the tensor.

Specified = tuple[Array, MeshShape, tuple[str, ...], tuple[tuple[str, ...], ...]]
NAMES = ("x", "y", "z")


@st.composite
def specified(draw: st.DrawFn, add: int = 0) -> Specified:
    """A tensor and a spec with names in any order; with ``add``, an extent that its cuts do not divide."""
    mesh = draw(st.sampled_from([mesh for mesh in MESHES if not add or max(mesh) > 1]))
    names = NAMES[: len(mesh)]
    # An axis of several devices must cut something, or every extent would divide.
    used = list(draw(st.permutations(names)))
    rank = draw(st.integers(1, 2))
    entries: list[tuple[str, ...]] = [() for _ in range(rank)]
    for name in used:
        axis = draw(st.sampled_from([*range(rank)] if add else [*range(rank), None]))
        if axis is not None:
            entries[axis] = (*entries[axis], name)
    extent = dict(zip(names, mesh, strict=True))
    cuts = [int(np.prod([extent[name] for name in entry], dtype=int)) for entry in entries]
    shape = [count * draw(st.integers(1, 2)) + (1 if add and count > 1 else 0) for count in cuts]
    return counting(shape), mesh, names, tuple(entries)


def by_spec(case: Specified) -> list[Array]:
    """The array of each device, by NumPy on the whole array."""
    value, mesh, names, spec = case
    held = []
    for coordinate in np.ndindex(*mesh):
        at, extents = (dict(zip(names, each, strict=True)) for each in (coordinate, mesh))
        slices = []
        for entry, length in zip(spec, value.shape, strict=True):
            # The number of the part and of all parts, as digits of a number: the last name is the
            # last digit.
            part = count = 0
            for name in entry:
                part, count = part * extents[name] + at[name], max(count, 1) * extents[name]
            size = length // max(count, 1)
            slices.append(slice(part * size, (part + 1) * size))
        held.append(value[tuple(slices)])
    return held


def check_spec(adapter: Calls, case: Specified, method: str) -> None:
    expect_parts(getattr(adapter, method)(*case), by_spec(case))


_SPECIFIED, _UNDIVIDED = specified(), specified(add=1)
rules(
    ("V-SPEC-1", "spec_parts",
     _SPECIFIED, partial(check_spec, method="spec_parts"),
     "Each device holds the part of its coordinates on the axes that the spec names, in the order of the names"),
    ("V-SPEC-1-constraint", "spec_constrained",
     _SPECIFIED, partial(check_spec, method="spec_constrained"),
     "A value that is constrained to a spec within a compiled function is placed by it"),
    ("V-REFUSE-2", "spec_parts", _UNDIVIDED, refuses("spec_parts"),
     "A spec whose parts do not divide an extent is refused"),
    ("V-REFUSE-2-constraint", "spec_constrained", _UNDIVIDED, refuses("spec_constrained"),
     "A constraint whose parts do not divide an extent is refused, and not left out"),
)  # fmt: skip


@rule("V-REFUSE-2-names", "spec_parts",
      [*product(MESHES, (False, True))])  # fmt: skip
def names_that_are_wrong_are_refused(adapter: Calls, case: tuple[MeshShape, bool]) -> None:
    """A spec that names a mesh axis twice, or one that the mesh does not have, is refused."""
    mesh, is_twice = case
    names = NAMES[: len(mesh)]
    spec = (("x",), ("x",)) if is_twice else (("w",), ())
    adapter.refuses("spec_parts", counting((prod(mesh) ** 2, prod(mesh))), mesh, names, spec)


# FSDP over tensor parallelism, on a mesh (dp, tp): both cut the first axis.


_MESHES_OF_TWO = ((2, 2), (2, 3), (3, 2))
_WEIGHTS = [
    (counting((rows, *rest)), mesh)
    for mesh, rest, rows in product(_MESHES_OF_TWO, ((2,), ()), range(1, 14))
    if not rest or rows >= prod(mesh)
]
"""Weights and biases, whose rows may divide, on meshes of data parallelism and tensor parallelism."""


@rule("V-FSDP-1", "fsdp_parts", _WEIGHTS)
def what_is_left_is_cut(adapter: Calls, case: tuple[Array, MeshShape]) -> None:
    """Tensor parallelism cuts a weight or a vector, and FSDP cuts what each of its ranks has, also
    where they do not divide."""
    value, mesh = case
    held = fsdp(value.shape, (mesh[0], mesh[1]), tp_axis=0)
    expect_parts(adapter.fsdp_parts(value, mesh), parts(value, held))


_FEW_ROWS = [*product(map(counting, ((7,), (7, 2, 3), (2, 3), (1, 2, 2, 2))), _MESHES_OF_TWO)]


def check_stated(adapter: Calls, case: tuple[Array, MeshShape]) -> None:
    value, mesh = case
    held = [np.asarray(part) for part in adapter.fsdp_parts(value, mesh)]
    stated = [tuple(map(int, shape)) for shape in adapter.fsdp_shapes(value.shape, mesh)]
    # An array without elements may have any empty shape.
    came, must = (
        [shape if all(shape) else "empty" for shape in each]
        for each in (stated, [part.shape for part in held])
    )
    holds = f"The devices hold arrays of the shapes {must}."
    expect(came == must, f"It gave the shapes {came}.", holds)


rules(
    ("V-FSDP-1-stated", "fsdp_parts fsdp_shapes", _WEIGHTS, check_stated,
     "The shape that is stated for a weight under FSDP and tensor parallelism matches what the device holds"),
    ("V-FSDP-1-stated-axes", "fsdp_shapes fsdp_parts", _FEW_ROWS, check_stated,
     "The shape that is stated for a tensor of one to four axes matches what the device holds, also if that is "
     "nothing"),
)  # fmt: skip
