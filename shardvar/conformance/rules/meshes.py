"""Level 9: what the devices of a mesh hold, what they are said to hold, and what moves between two
layouts.

The oracle of each rule cuts lists of indices (``shardvar.spec.meshes``), so that it depends on
nothing else here. The sentences come from docs/layouts.md, where frameworks are compared; where they
differ, the rule says whose it is.
"""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Calls, expect, expect_equal
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.placements import (
    MESHES,
    MeshShape,
    Moved,
    Placed,
    even,
    even_moves,
    expect_parts,
    few,
    moves,
    placements_on,
    rows_on_both,
    strided,
    uneven,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.meshes import by_placements, fsdp, parts
from shardvar.spec.redistribution import reduced
from shardvar.testing import counting

PAGE = "docs/layouts.md"
EQUAL = (
    "A mesh axis that cuts a tensor axis gives its devices equal parts in the order of their "
    "coordinates."
)
ORDER = (
    "Mesh axes that cut the same tensor axis are applied in their order, each to what the one "
    "before it left."
)
UNEVEN = "Where an extent does not divide, `torch.chunk` decides, or the layout is refused."
STRIDED = "A strided shard has its part of each of `split_factor` ranges."
STATED = "The offset and the shape that are stated for a device are those of what it holds."
WHOLE = "The parts of all devices make the tensor again."
MOVES = "A redistribution changes where an element is, and never its value."
TERMS = "The value of a pending tensor is the reduction of the terms along the pending axis."
REFUSED = "A layout that cannot exist is refused."
SPEC = (
    "The mesh axes that an entry of a spec names cut its tensor axis together, the last name "
    "fastest."
)
FSDP = "FSDP cuts what tensor parallelism left."


def device_arrays(value: Array, mesh: MeshShape, placements: Any) -> list[Array]:
    """The array of each device, by the plain rule."""
    return parts(value, by_placements(value.shape, mesh, placements))


SEVERAL_AXES = tuple(mesh for mesh in MESHES if len(mesh) > 1)


def check_mesh_parts(adapter: Calls, case: Placed) -> None:
    """Compare what the devices hold with the definition."""
    expect_parts(adapter.mesh_parts(*case), device_arrays(*case))


@rule("V-MESH-1", 9, PAGE, EQUAL, "mesh_parts", even())
def devices_hold_their_parts(adapter: Calls, case: Placed) -> None:
    """Each device holds the part of its coordinate along the mesh axes that cut, and a copy along
    the others."""
    check_mesh_parts(adapter, case)


@rule("V-MESH-1-scalars", 9, PAGE, EQUAL, "mesh_parts", st.sampled_from(MESHES))
def scalars_are_copied(adapter: Calls, mesh: MeshShape) -> None:
    """Each device holds a scalar that is replicated."""
    check_mesh_parts(adapter, (counting(()), mesh, (None,) * len(mesh)))


@rule("V-MESH-2", 9, PAGE, ORDER, "mesh_parts", even(SEVERAL_AXES, is_stacked=True))
def mesh_axes_cut_in_order(adapter: Calls, case: Placed) -> None:
    """Two mesh axes that cut the same tensor axis cut it one after the other, the first one
    first."""
    check_mesh_parts(adapter, case)


@rule("V-MESH-3", 9, PAGE, UNEVEN, "mesh_parts", uneven())
def uneven_parts_are_cut(adapter: Calls, case: Placed) -> None:
    """The parts of an extent that does not divide are those of `torch.chunk`."""
    check_mesh_parts(adapter, case)


@rule("V-MESH-3-order", 9, PAGE, UNEVEN, "mesh_parts", uneven(SEVERAL_AXES, is_stacked=True))
def uneven_parts_are_cut_in_order(adapter: Calls, case: Placed) -> None:
    """The parts of an extent that does not divide are those of `torch.chunk`, one mesh axis after
    the other."""
    check_mesh_parts(adapter, case)


@rule("V-MESH-3-few", 9, PAGE, UNEVEN, "mesh_parts", few())
def last_devices_hold_nothing(adapter: Calls, case: Placed) -> None:
    """With fewer indices than devices the last ones hold nothing."""
    check_mesh_parts(adapter, case)


@rule("V-STRIDED-1", 9, PAGE, STRIDED, "mesh_parts", strided())
def strided_shards_are_runs(adapter: Calls, case: Placed) -> None:
    """A strided shard holds a run of each range, in their order."""
    check_mesh_parts(adapter, case)


@rule("V-STRIDED-1-uneven", 9, PAGE, STRIDED, "mesh_parts", strided(is_even=False))
def uneven_strided_shards_are_runs(adapter: Calls, case: Placed) -> None:
    """A strided shard holds a run of each range, by `torch.chunk`, where the extent does not
    divide."""
    check_mesh_parts(adapter, case)


def check_stated_slices(adapter: Calls, case: Placed) -> None:
    """Compare the stated offset and shape with what the definition gives each device."""
    value, mesh, placements = case
    came = [
        (tuple(map(int, o)), tuple(map(int, s)))
        for o, s in adapter.mesh_slices(value.shape, mesh, placements)
    ]
    expect_stated(came, by_placements(value.shape, mesh, placements))


def expect_stated(
    came: list[tuple[tuple[int, ...], tuple[int, ...]]], held: list[list[list[int]]]
) -> None:
    """``Broken`` unless each (offset, shape) matches the indices held."""
    expect(
        len(came) == len(held),
        f"It gave {came}.",
        f"It must give a pair for each of {len(held)} devices.",
    )
    for device, ((offset, shape), axes) in enumerate(zip(came, held, strict=True)):
        lengths = tuple(map(len, axes))
        must = (tuple(axis[0] for axis in axes), lengths) if all(lengths) else None
        is_stated = 0 in shape if must is None else (offset, shape) == must
        wanted = "an empty shape" if must is None else str(must)
        expect(
            is_stated, f"It gave {(offset, shape)} for device {device}.", f"It must give {wanted}."
        )


@rule("V-STATED-1", 9, PAGE, STATED, "mesh_slices", even(is_stacked=True))
def slices_are_stated(adapter: Calls, case: Placed) -> None:
    """The stated offset and shape of each device match its part."""
    check_stated_slices(adapter, case)


@rule("V-STATED-1-uneven", 9, PAGE, STATED, "mesh_slices", uneven(is_stacked=True))
def uneven_slices_are_stated(adapter: Calls, case: Placed) -> None:
    """The stated offset and shape match the part, also if extents do not divide."""
    check_stated_slices(adapter, case)


@rule("V-STATED-1-few", 9, PAGE, STATED, "mesh_slices", few())
def empty_slices_are_stated(adapter: Calls, case: Placed) -> None:
    """The stated shape of a device that holds nothing is empty, and the others are right."""
    check_stated_slices(adapter, case)


def check_whole(adapter: Calls, case: Placed) -> None:
    """Put a tensor together from the parts of its devices."""
    value, mesh, placements = case
    expect_equal(adapter.mesh_gather(device_arrays(*case), value.shape, mesh, placements), value)


@rule("V-WHOLE-1", 9, PAGE, WHOLE, "mesh_gather", even(is_stacked=True))
def parts_make_the_whole(adapter: Calls, case: Placed) -> None:
    """A tensor that is put together from its parts is the tensor."""
    check_whole(adapter, case)


@rule("V-WHOLE-1-uneven", 9, PAGE, WHOLE, "mesh_gather", uneven(is_stacked=True))
def uneven_parts_make_the_whole(adapter: Calls, case: Placed) -> None:
    """A tensor that is put together from parts of several sizes is the tensor."""
    check_whole(adapter, case)


@rule("V-WHOLE-1-few", 9, PAGE, WHOLE, "mesh_gather", few())
def empty_parts_make_the_whole(adapter: Calls, case: Placed) -> None:
    """A tensor is put together even if some devices hold nothing of it."""
    check_whole(adapter, case)


@rule("V-WHOLE-1-strided", 9, PAGE, WHOLE, "mesh_gather", strided())
def strided_parts_make_the_whole(adapter: Calls, case: Placed) -> None:
    """A tensor that is put together from strided shards is in the order of its indices."""
    check_whole(adapter, case)


def check_redistribution(adapter: Calls, case: Moved, method: str = "mesh_move") -> None:
    """Redistribute, and compare what the devices hold then."""
    value, mesh, _, target = case
    expect_parts(getattr(adapter, method)(*case), device_arrays(value, mesh, target))


@rule("V-MOVE-1", 9, PAGE, MOVES, "mesh_move", even_moves())
def moves_keep_values(adapter: Calls, case: Moved) -> None:
    """After a redistribution each device holds its part by the target placements."""
    check_redistribution(adapter, case)


@rule("V-MOVE-1-order", 9, PAGE, MOVES, "mesh_move", even_moves(is_stacked=True))
def stacked_moves_keep_values(adapter: Calls, case: Moved) -> None:
    """The same, where several mesh axes cut one tensor axis before or after."""
    check_redistribution(adapter, case)


@rule(
    "V-MOVE-1-uneven", 9, PAGE, MOVES, "mesh_move", moves(uneven(is_stacked=True), is_stacked=True)
)
def uneven_moves_keep_values(adapter: Calls, case: Moved) -> None:
    """The same, where extents do not divide."""
    check_redistribution(adapter, case)


@rule("V-MOVE-1-few", 9, PAGE, MOVES, "mesh_move", moves(few(), is_stacked=True))
def moves_of_nothing_keep_values(adapter: Calls, case: Moved) -> None:
    """The same, where some devices hold nothing."""
    check_redistribution(adapter, case)


@rule("V-MOVE-1-strided", 9, PAGE, MOVES, "mesh_move", moves(strided()))
def strided_moves_keep_values(adapter: Calls, case: Moved) -> None:
    """The same, from strided shards."""
    check_redistribution(adapter, case)


@rule("V-MOVE-1-joined", 9, PAGE, MOVES, "mesh_move_joined", rows_on_both())
def moves_on_joined_axes_keep_values(adapter: Calls, case: Placed) -> None:
    """The same, from rows that both mesh axes cut to copies, with the axes joined first."""
    check_redistribution(adapter, (*case, (None, None)), "mesh_move_joined")


Reduced = tuple[list[Array], MeshShape, int, str, tuple[Any, ...]]
"""Terms, a mesh, the axis that is pending, the reduction, and the placements after."""


@st.composite
def reductions(
    draw: st.DrawFn, ops: tuple[str, ...] = ("sum",), is_cut: bool = False, is_even: bool = True
) -> Reduced:
    """Terms of whole numbers, small enough that no order of adding them rounds."""
    mesh = draw(st.sampled_from([(2,), (3,), (4,), (2, 2), (3, 2)]))
    axis = draw(st.integers(0, len(mesh) - 1))
    size = int(np.prod(mesh))
    shape = (size if is_even else draw(st.integers(1, 2 * size)), 2)
    terms = [
        counting(shape) * np.float32(draw(st.sampled_from([1, 2, -1, 4])) * mesh[axis])
        for _ in range(mesh[axis])
    ]
    placements = draw(placements_on(mesh, 1, is_stacked=True)) if is_cut else (None,) * len(mesh)
    return terms, mesh, axis, draw(st.sampled_from(ops)), placements


def check_reduced_terms(adapter: Calls, case: Reduced) -> None:
    """Reduce terms, and compare what the devices hold then."""
    terms, mesh, axis, op, placements = case
    came = adapter.mesh_reduce(terms, mesh, axis, op, placements)
    expect_parts(came, device_arrays(reduced(terms, op), mesh, placements))


@rule("V-TERM-1", 9, PAGE, TERMS, "mesh_reduce", reductions())
def terms_are_added(adapter: Calls, case: Reduced) -> None:
    """Every device holds the sum of the terms."""
    check_reduced_terms(adapter, case)


@rule("V-TERM-1-cut", 9, PAGE, TERMS, "mesh_reduce", reductions(is_cut=True))
def added_terms_are_cut(adapter: Calls, case: Reduced) -> None:
    """Every device holds its part of the sum of the terms."""
    check_reduced_terms(adapter, case)


@rule("V-TERM-1-uneven", 9, PAGE, TERMS, "mesh_reduce", reductions(is_cut=True, is_even=False))
def added_terms_are_cut_unevenly(adapter: Calls, case: Reduced) -> None:
    """Every device holds its part of the sum, where extents do not divide or devices hold
    nothing."""
    check_reduced_terms(adapter, case)


@rule("V-TERM-1-ops", 9, PAGE, TERMS, "mesh_reduce", reductions(("avg", "min", "max"), is_cut=True))
def terms_are_reduced(adapter: Calls, case: Reduced) -> None:
    """Mean, minimum and maximum are taken of the terms as the sum is."""
    check_reduced_terms(adapter, case)


@rule("V-REFUSE-1", 9, PAGE, REFUSED, "mesh_parts", st.tuples(even(), st.integers(0, 2)))
def axes_that_are_missing_are_refused(adapter: Calls, case: tuple[Placed, int]) -> None:
    """A placement that cuts an axis which the tensor does not have is refused."""
    (value, mesh, placements), more = case
    adapter.refuses("mesh_parts", value, mesh, (value.ndim + more, *placements[1:]))


@rule("V-REFUSE-1-number", 9, PAGE, REFUSED, "mesh_parts", st.tuples(even(), st.booleans()))
def other_numbers_of_placements_are_refused(adapter: Calls, case: tuple[Placed, bool]) -> None:
    """Placements that are more or fewer than the mesh's axes are refused."""
    (value, mesh, placements), is_longer = case
    adapter.refuses(
        "mesh_parts", value, mesh, (*placements, None) if is_longer else placements[:-1]
    )


# Specs: an entry for each axis of the tensor.

Specified = tuple[Array, MeshShape, tuple[str, ...], tuple[tuple[str, ...], ...]]
NAMES = ("x", "y", "z")


@st.composite
def specified(draw: st.DrawFn, add: int = 0) -> Specified:
    """A tensor and a spec in which names stand in any order; with ``add``, an extent that its cuts
    do not divide."""
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


@rule("V-SPEC-1", 9, PAGE, SPEC, "spec_parts", specified())
def specs_place_parts(adapter: Calls, case: Specified) -> None:
    """Each device holds the part of its coordinates on the axes that the spec names, in the order
    of the names."""
    expect_parts(adapter.spec_parts(*case), by_spec(case))


@rule("V-SPEC-1-constraint", 9, PAGE, SPEC, "spec_constrained", specified())
def constraints_place_parts(adapter: Calls, case: Specified) -> None:
    """A value that is constrained to a spec within a compiled function is placed by it."""
    expect_parts(adapter.spec_constrained(*case), by_spec(case))


@rule("V-REFUSE-2", 9, PAGE, REFUSED, "spec_parts", specified(add=1))
def uneven_specs_are_refused(adapter: Calls, case: Specified) -> None:
    """A spec whose parts do not divide an extent is refused."""
    adapter.refuses("spec_parts", *case)


@rule("V-REFUSE-2-constraint", 9, PAGE, REFUSED, "spec_constrained", specified(add=1))
def uneven_constraints_are_refused(adapter: Calls, case: Specified) -> None:
    """A constraint whose parts do not divide an extent is refused, and not left out."""
    adapter.refuses("spec_constrained", *case)


@rule(
    "V-REFUSE-2-names",
    9,
    PAGE,
    REFUSED,
    "spec_parts",
    st.tuples(st.sampled_from(MESHES), st.booleans()),
)
def names_that_are_wrong_are_refused(adapter: Calls, case: tuple[MeshShape, bool]) -> None:
    """A spec that names a mesh axis twice, or one that the mesh does not have, is refused."""
    mesh, is_twice = case
    names = NAMES[: len(mesh)]
    value = counting((int(np.prod(mesh)) ** 2, int(np.prod(mesh))))
    adapter.refuses(
        "spec_parts", value, mesh, names, (("x",), ("x",)) if is_twice else (("w",), ())
    )


# FSDP over tensor parallelism, on a mesh (dp, tp): both cut the first axis.


@st.composite
def weights(draw: st.DrawFn) -> tuple[Array, MeshShape]:
    """A weight, whose rows may divide, and a mesh of data parallelism and tensor parallelism."""
    mesh = draw(st.sampled_from([(2, 2), (2, 3), (3, 2)]))
    return counting((draw(st.integers(mesh[0] * mesh[1], 13)), 2)), mesh


@rule("V-FSDP-1", 9, PAGE, FSDP, "fsdp_parts", weights())
def fsdp_cuts_last(adapter: Calls, case: tuple[Array, MeshShape]) -> None:
    """Tensor parallelism cuts a weight, and FSDP cuts what each of its ranks has, also where they
    do not divide."""
    value, mesh = case
    expect_parts(
        adapter.fsdp_parts(value, mesh),
        parts(value, fsdp(value.shape, (mesh[0], mesh[1]), tp_axis=0)),
    )


@rule("V-FSDP-1-stated", 9, PAGE, STATED, "fsdp_parts fsdp_shapes", weights())
def fsdp_states_what_it_holds(adapter: Calls, case: tuple[Array, MeshShape]) -> None:
    """The shape that is stated for a weight under FSDP and tensor parallelism matches what the
    device holds."""
    value, mesh = case
    held = [np.asarray(part) for part in adapter.fsdp_parts(value, mesh)]
    stated = [tuple(map(int, shape)) for shape in adapter.fsdp_shapes(value.shape, mesh)]
    # An array without elements may have any shape that says so.
    came, must = (
        [shape if all(shape) else "empty" for shape in each]
        for each in (stated, [p.shape for p in held])
    )
    expect(
        came == must,
        f"It gave the shapes {came}.",
        f"The devices hold arrays of the shapes {must}.",
    )
