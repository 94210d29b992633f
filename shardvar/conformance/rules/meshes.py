"""Level 9: the parts that the devices of a mesh hold, the stated parts, and what moves between two
layouts; tensors and meshes of three axes and more, strided shards of any axis, terms of all kinds of
numbers, and FSDP over tensor parallelism on any axes, with copies (HSDP).

The oracle of each rule cuts lists of indices (``shardvar.spec.meshes``), so that it depends on
nothing else here. The sentences come from docs/layouts.md, where frameworks are compared; where they
differ, the law names one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Calls, expect, expect_equal, expect_near, text
from shardvar.conformance.rules import refuses, rule, rules
from shardvar.conformance.rules.cases import (
    COMPLEX,
    INTEGERS,
    REALS,
    along,
    computable,
    refusable,
    unless_refused,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.meshes import by_placements, fsdp, hsdp, parts
from shardvar.spec.redistribution import reduced
from shardvar.testing import counting
from shardvar.testing.compare import difference

MeshPlacement = int | None | tuple[str, int, int]
MeshShape = tuple[int, ...]
Placed = tuple[Array, MeshShape, tuple[MeshPlacement, ...]]
"""A value, a mesh and a placement for each of its axes."""

MESHES: tuple[MeshShape, ...] = ((1,), (2,), (3,), (4,), (2, 2), (3, 2), (2, 3), (1, 3), (2, 2, 2), (11,))  # fmt: skip
"""Meshes of one to three axes, with an axis of one device, and of eleven, whose names sort otherwise;
frameworks compile for each."""


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


AxisExtents = Callable[[int, int], st.SearchStrategy[int]]
"""The extent of an axis, by the number of its parts and the number of all devices."""


def divided(count: int, _size: int) -> st.SearchStrategy[int]:
    return st.integers(1, 2).map(lambda number: count * number)


def undivided(count: int, _size: int) -> st.SearchStrategy[int]:
    """Any extent from the number of parts on."""
    return st.integers(count, 2 * count + 1)


@st.composite
def placed_tensors(
    draw: st.DrawFn,
    extents: AxisExtents = divided,
    meshes: Sequence[MeshShape] = MESHES,
    ranks: tuple[int, int] = (1, 2),
    is_stacked: bool = True,
) -> Placed:
    """A tensor of some rank on a mesh; two axes of it cut the same tensor axis only if stackable."""
    mesh = draw(st.sampled_from(list(meshes)))
    rank = draw(st.integers(*ranks))
    placements = draw(placements_on(mesh, rank, is_stacked))
    cuts = [number_of_cuts(mesh, placements, axis) for axis in range(rank)]
    return counting([draw(extents(count, prod(mesh))) for count in cuts]), mesh, placements


@st.composite
def few(draw: st.DrawFn) -> Placed:
    """A tensor with fewer indices than there are devices along a mesh axis that cuts them."""
    mesh = draw(st.sampled_from([(2,), (3,), (4,), (3, 2), (2, 3)]))
    axis = draw(st.integers(0, len(mesh) - 1))
    placements = tuple(0 if each == axis else None for each in range(len(mesh)))
    shape = draw(st.integers(1, mesh[axis] - 1)), draw(st.integers(1, 2))
    return counting(shape), mesh, placements


@st.composite
def cut_rows(
    draw: st.DrawFn, extents: AxisExtents, meshes: Sequence[MeshShape], is_strided: bool
) -> Placed:
    """Rows that both axes of a mesh cut; strided, the last one cuts first, as in FSDP over tensor
    parallelism."""
    mesh = draw(st.sampled_from(list(meshes)))
    rows = draw(extents(prod(mesh), prod(mesh)))
    first: MeshPlacement = ("strided", 0, mesh[1]) if is_strided else 0
    return counting((rows, draw(st.integers(1, 2)))), mesh, (first, 0)


TWO: tuple[MeshShape, ...] = ((2, 2), (3, 2), (2, 3))
_STRIDED = cut_rows(divided, TWO, is_strided=True)
_UNEVEN_STRIDED = cut_rows(lambda count, _: st.integers(count, 2 * count), TWO, True)
_STACKED, _ALONE, _UNEVEN = (
    placed_tensors(ranks=(0, 2)),
    placed_tensors(is_stacked=False),
    placed_tensors(undivided),
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
    rank = draw(st.integers(0, 2))
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
def reductions(draw: st.DrawFn, ops: tuple[str, ...] = ("sum",), is_cut: bool = False) -> Reduced:
    """Terms of whole numbers, small enough that no order of adding them rounds."""
    mesh = draw(st.sampled_from([(2,), (3,), (4,), (2, 2), (3, 2)]))
    axis = draw(st.integers(0, len(mesh) - 1))
    size = prod(mesh)
    shape = (draw(st.integers(1, 2 * size)) if is_cut else size, 2)
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
    ("V-MESH-1", "mesh_parts", _ALONE, check_mesh_parts,
     "Each device holds the part of its coordinate along the mesh axes that cut, and a copy along the others"),
    ("V-MESH-1-scalars", "mesh_parts",
     [(counting(()), mesh, (None,) * len(mesh)) for mesh in MESHES], check_mesh_parts,
     "Each device holds a scalar that is replicated"),
    ("V-MESH-2", "mesh_parts", placed_tensors(meshes=SEVERAL_AXES), check_mesh_parts,
     "Two mesh axes that cut the same tensor axis cut it one after the other, the first one first"),
    ("V-MESH-3", "mesh_parts", placed_tensors(undivided, is_stacked=False), check_mesh_parts,
     "The parts of an extent that does not divide are those of `torch.chunk`"),
    ("V-MESH-3-order", "mesh_parts", placed_tensors(undivided, SEVERAL_AXES), check_mesh_parts,
     "The parts of an extent that does not divide are those of `torch.chunk`, one mesh axis after the other"),
    ("V-MESH-3-few", "mesh_parts", few(), check_mesh_parts,
     "With fewer indices than devices the last ones hold nothing"),
    ("V-STRIDED-1", "mesh_parts", _STRIDED, check_mesh_parts,
     "A strided shard holds a run of each range, in their order"),
    ("V-STRIDED-1-uneven", "mesh_parts", _UNEVEN_STRIDED, check_mesh_parts,
     "A strided shard holds a run of each range, by `torch.chunk`, where the extent does not divide"),
    ("V-STATED-1", "mesh_slices", _STACKED, check_stated_slices,
     "The stated offset and shape of each device match its part"),
    ("V-STATED-1-uneven", "mesh_slices", _UNEVEN, check_stated_slices,
     "The stated offset and shape match the part, also if extents do not divide"),
    ("V-STATED-1-few", "mesh_slices", few(), check_stated_slices,
     "The stated shape of a device that holds nothing is empty, and the others are right"),
    ("V-WHOLE-1", "mesh_gather", _STACKED, check_whole,
     "A tensor that is put together from its parts is the tensor"),
    ("V-WHOLE-1-uneven", "mesh_gather", _UNEVEN, check_whole,
     "A tensor that is put together from parts of several sizes is the tensor"),
    ("V-WHOLE-1-few", "mesh_gather", few(), check_whole,
     "A tensor is put together even if some devices hold nothing of it"),
    ("V-WHOLE-1-strided", "mesh_gather", _STRIDED, check_whole,
     "A tensor that is put together from strided shards is in the order of its indices"),
    ("V-MOVE-1", "mesh_move", even_moves(), check_redistribution,
     "After a redistribution each device holds its part by the target placements"),
    ("V-MOVE-1-order", "mesh_move", even_moves(is_stacked=True), check_redistribution,
     "The same, where several mesh axes cut one tensor axis before or after"),
    ("V-MOVE-1-uneven", "mesh_move", moves(_UNEVEN, is_stacked=True), check_redistribution,
     "The same, where extents do not divide"),
    ("V-MOVE-1-few", "mesh_move", moves(few(), is_stacked=True), check_redistribution,
     "The same, where some devices hold nothing"),
    ("V-MOVE-1-strided", "mesh_move", moves(_STRIDED), check_redistribution,
     "The same, from strided shards"),
    ("V-MOVE-1-strided-uneven", "mesh_move", moves(_UNEVEN_STRIDED), check_redistribution,
     "The same, from strided shards where the extent does not divide"),
    ("V-MOVE-1-joined", "mesh_move_joined",
     cut_rows(undivided, TWO[:2], False),
     lambda adapter, case: check_redistribution(adapter, (*case, (None, None)), "mesh_move_joined"),
     "The same, from rows that both mesh axes cut to copies, with the axes joined first"),
    ("V-TERM-1", "mesh_reduce", reductions(), check_reduced_terms,
     "Every device holds the sum of the terms"),
    ("V-TERM-1-cut", "mesh_reduce", reductions(is_cut=True), check_reduced_terms,
     "Every device holds its part of the sum of the terms, also where extents do not divide or devices hold nothing"),
    ("V-TERM-1-ops", "mesh_reduce", reductions(("avg", "min", "max"), is_cut=True), check_reduced_terms,
     "Mean, minimum and maximum are taken of the terms as the sum is"),
)  # fmt: skip


@rule("V-REFUSE-1", "mesh_parts", st.tuples(_ALONE, st.integers(0, 2)))
def axes_that_are_missing_are_refused(adapter: Calls, case: tuple[Placed, int]) -> None:
    """A placement that cuts an axis which the tensor does not have is refused."""
    (value, mesh, placements), more = case
    adapter.refuses("mesh_parts", value, mesh, (value.ndim + more, *placements[1:]))


@rule("V-REFUSE-1-number", "mesh_parts", st.tuples(_ALONE, st.booleans()))
def other_numbers_of_placements_are_refused(adapter: Calls, case: tuple[Placed, bool]) -> None:
    """Placements that are more or fewer than the mesh's axes are refused."""
    (value, mesh, placements), is_longer = case
    others = (*placements, None) if is_longer else placements[:-1]
    adapter.refuses("mesh_parts", value, mesh, others)


# Specs: an entry for each axis of the tensor.

Specified = tuple[Array, MeshShape, tuple[str, ...], tuple[tuple[str, ...], ...]]
NAMES = ("model", "data", "mod")
"""Neither in the order of the alphabet; and one begins as another does."""


@st.composite
def specified(
    draw: st.DrawFn,
    extents: AxisExtents = divided,
    meshes: Sequence[MeshShape] = MESHES,
    ranks: tuple[int, int] = (1, 2),
    unused: tuple[None, ...] = (None,),
) -> Specified:
    """A tensor and a spec with names in any order, of which some are perhaps ``unused``."""
    mesh = draw(st.sampled_from(list(meshes)))
    names = NAMES[: len(mesh)]
    used = draw(st.permutations(names))
    entries: list[tuple[str, ...]] = [()] * draw(st.integers(*ranks))
    for name in used:
        axis = draw(st.sampled_from([*range(len(entries)), *unused]))
        if axis is not None:
            entries[axis] = (*entries[axis], name)
    devices = dict(zip(names, mesh, strict=True))
    cuts = [prod(devices[name] for name in entry) for entry in entries]
    value = counting([draw(extents(count, prod(mesh))) for count in cuts])
    return value, mesh, names, tuple(entries)


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


_SPECIFIED = specified(ranks=(0, 2))
# An axis of several devices must cut something, or every extent would divide.
_UNDIVIDED = specified(
    lambda count, size: divided(count, size).map(lambda extent: extent + count // 2),
    [mesh for mesh in MESHES if max(mesh) > 1],
    unused=(),
)
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
    spec = (NAMES[:1], NAMES[:1]) if is_twice else (("w",), ())
    for method in ("spec_parts", "spec_constrained"):
        if adapter.has(method):
            adapter.refuses(method, counting((prod(mesh) ** 2, prod(mesh))), mesh, names, spec)


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


# Tensors of three axes and more.


@st.composite
def of_four_axes(draw: st.DrawFn) -> Placed:
    """A tensor of four or five axes, some of one extent; the last two may be cut."""
    mesh = draw(st.sampled_from([(2,), (2, 2), (2, 3)]))
    rank = draw(st.integers(4, 5))
    placements = list(draw(placements_on(mesh, rank)))
    placements[-1] = rank - draw(st.integers(1, 2))
    if placements[0] == placements[-1] and len(mesh) > 1:
        placements[0] = None
    cuts = [number_of_cuts(mesh, placements, axis) for axis in range(rank)]
    last = 2 * max(2, *cuts[-2:]) if max(cuts) < 3 else 6
    dtype = draw(st.sampled_from(["float32", "float16"]))
    return counting([*cuts[:-2], last, last], dtype), mesh, tuple(placements)


@st.composite
def moves_of_many_axes(draw: st.DrawFn) -> Moved:
    """A redistribution of a tensor of three axes, or to copies or from them, of four or five."""
    if draw(st.booleans()):
        value, mesh, placements = draw(of_four_axes())
        copies = (None,) * len(mesh)
        both = (copies, placements) if draw(st.booleans()) else (placements, copies)
        return value, mesh, *both
    mesh = draw(st.sampled_from([(2,), (2, 2), (3, 2)]))
    source, target = (draw(placements_on(mesh, 3)) for _ in range(2))
    return counting([prod(mesh)] * 3), mesh, source, target


_THREE_AXES = (3, 3)
_MANY = placed_tensors(lambda count, _: st.just(max(2, count)), ranks=_THREE_AXES) | of_four_axes()
rules(
    ("V-FSDP-1-stated", "fsdp_parts fsdp_shapes", [*_WEIGHTS[::2], *_FEW_ROWS], check_stated,
     "The shape that is stated for a tensor of one to four axes matches what the device holds, also if that is "
     "nothing"),
    ("V-MESH-1-axes", "mesh_parts", _MANY, check_mesh_parts,
     "Each device holds its part of a tensor of three to five axes, whichever are cut"),
    ("V-WHOLE-1-axes", "mesh_gather", _MANY, check_whole,
     "A tensor of three to five axes is put together from its parts, whichever axes are cut"),
    ("V-MOVE-1-axes", "mesh_move", moves_of_many_axes(), check_redistribution,
     "The same, of a tensor of three to five axes"),
    ("V-MESH-3-axes", "mesh_parts", placed_tensors(lambda count, _: st.integers(count, count + 2), ranks=_THREE_AXES),
     check_mesh_parts,
     "The parts of a tensor of three axes are as `torch.chunk` cuts them, whichever axis does not divide"),
    ("V-MESH-1-empty", "mesh_parts",
     [(counting(shape), mesh, (0, None)[: len(mesh)])
      for shape, mesh in product(((0,), (0, 2), (2, 0)), ((2,), (2, 2)))],
     check_mesh_parts, "Devices hold nothing of a tensor without elements"),
    ("V-STRIDED-1-factor", "mesh_parts",
     [(along(axis, count * factor * more, 3), (count,), (("strided", axis, factor),))
      for count, factor, axis, more in product((2, 3), (2, 3, 4), (0, 1), (1, 2))],
     check_mesh_parts, "A strided shard of any axis holds a run of each of as many ranges as its factor says"),
    ("V-STRIDED-1-two", "mesh_parts",
     [(along(axis, prod(mesh) * more), mesh,
       (("strided", axis, mesh[1] * mesh[2]), ("strided", axis, mesh[2]), axis))
      for mesh, axis, more in product(((2, 2, 2), (2, 2, 3), (2, 3, 2)), (0, 1), (1, 2))],
     check_mesh_parts, "Two strided shards of one axis cut one after the other, each into runs of its ranges"),
    ("V-STRIDED-1-factor-uneven", "mesh_parts",
     [(along(axis, length), mesh, (("strided", axis, factor), None)[: len(mesh)])
      for mesh, factor, axis, length in product(((2,), (3,), (2, 2)), (2, 3, 4), (0, 1), range(2, 17))
      if factor <= length <= 4 * factor],
     check_mesh_parts, "The ranges of a strided shard and their runs may be uneven, whatever its factor"),
    ("V-MOVE-1-to-strided", "mesh_move",
     [(counting((2 * prod(mesh), prod(mesh))), mesh, source, (("strided", 0, mesh[1]), 0))
      for mesh, source in product(TWO, ((None, None), (0, None), (None, 1)))],
     check_redistribution, "The same, to strided shards"),
    ("V-MOVE-1-joined-axes", "mesh_move_joined",
     [(counting((prod(mesh), 2 * prod(mesh))), mesh, source, target)
      for mesh, source, target in product(TWO[:2], ((0, 0), (0, 1), (1, 1), (None, 1)),
                                          ((0, 1), (1, 0), (1, None), (None, 1)))],
     partial(check_redistribution, method="mesh_move_joined"),
     "On a mesh whose axes were joined before, each device has its part by the target placements"),
    ("V-MOVE-1-joined-few", "mesh_move_joined",
     [(counting((rows, 2)), mesh, *((None, None), cut)[::turn])
      for mesh, rows, cut, turn in product(TWO[:2], (1, 2, 3, 7), ((0, 0), (0, None), (None, 0)), (1, -1))],
     partial(check_redistribution, method="mesh_move_joined"),
     "The same, where devices hold nothing or another number of rows, before or afterwards"),
)  # fmt: skip


@rule("V-MESH-1-negative", "mesh_parts", [*product(((2,), (3,)), (1, 2, 3), (-1, -2, -3))])
def axes_from_the_end(adapter: Calls, case: tuple[MeshShape, int, int]) -> None:
    """A placement by an axis below zero is refused, or counts the axes from the end."""
    mesh, rank, back = case
    value, axis = counting([6] * rank), max(back, -rank)
    must = device_arrays(value, mesh, (axis + rank,))
    expect_parts(adapter.attempt("mesh_parts", value, mesh, (axis,)), must)


@rule("V-SPEC-1-short", "spec_parts", [(2,), (3,)])
def short_specs_are_filled_up(adapter: Calls, mesh: MeshShape) -> None:
    """A spec with fewer entries than the tensor has axes is refused, or cuts the first ones."""
    value = counting((6, 6))
    came = adapter.attempt("spec_parts", value, mesh, NAMES[:1], (NAMES[:1],))
    expect_parts(came, device_arrays(value, mesh, (0,)))


# Terms.

_THREE: tuple[MeshShape, ...] = ((2, 2, 2), (2, 1, 3), (3, 2, 1), (1, 2, 3))
Term = tuple[str, str, MeshShape, int]
"""A dtype, a reduction, a mesh, and its axis that is pending."""


def _reduction(shape: list[int], mesh: MeshShape, axis: int, op: str, placements: Any) -> Reduced:
    terms = [counting(shape) * np.float32((-2) ** n * mesh[axis]) for n in range(mesh[axis])]
    return terms, mesh, axis, op, placements


rules(
    ("V-TERM-1-columns", "mesh_reduce",
     [_reduction([prod(mesh)] * 2, mesh, axis, "sum", placements)
      for mesh in ((2,), (3,), *TWO) for axis in range(len(mesh))
      for placements in product((0, 1, None), repeat=len(mesh))
      if len(mesh) == 1 or placements[0] is None or placements[0] != placements[1]],
     check_reduced_terms,
     "Each device holds its part of the sum, whichever axis is cut, by the pending axis of the mesh or another"),
    ("V-TERM-1-three-axes", "mesh_reduce",
     [_reduction([6, 2, 6], mesh, axis, op, [cut if at == (axis + 1) % 3 else None for at in range(3)])
      for mesh, axis, op, cut in product(_THREE, (0, 1, 2), ("sum", "avg", "min", "max"), (None, 0, 2))]
     + [_reduction([], mesh, 0, op, (None,) * len(mesh))
        for mesh, op in product(((2,), (3, 2)), ("sum", "avg", "min", "max"))],
     check_reduced_terms,
     "Terms along any axis of a mesh of three are all reduced, of a tensor of three axes, whichever is cut"),
)  # fmt: skip

_REDUCTIONS = {"sum": np.add, "avg": np.add, "min": np.minimum, "max": np.maximum}


@rule("V-TERM-1-numbers", "mesh_reduce", [
    (name, op, *[((2,), 0), ((3, 2), 1)][n % 2])
    for n, (op, name) in enumerate([*product(("sum", "min", "max"), [*INTEGERS, *REALS]), *product(["sum"], COMPLEX),
                                    *product(["avg"], REALS[1:])])])  # fmt: skip
def numbers_are_reduced(adapter: Calls, case: Term) -> None:
    """Terms of any dtype and number are reduced as NumPy reduces them, or refused."""
    name, op, mesh, axis = case
    terms = [computable(name, shift) for shift in (0, 5)]
    must = _REDUCTIONS[op](*terms)
    must = must / np.asarray(2, name) if op == "avg" else must
    with refusable():
        came = adapter.mesh_reduce(terms, mesh, axis, op, (None,) * len(mesh))
    expect_parts(came, [must] * prod(mesh), ulps=1)


@rule("V-TERM-1-mean", "mesh_reduce", [
    (name, "avg", mesh, axis)
    for name in ("int64", "int32", "uint8", "uint64")
    for mesh, axis in (((2,), 0), ((3,), 0), ((3, 2), 0), ((2, 3), 1))])  # fmt: skip
def means_of_integers_keep_fractions(adapter: Calls, case: Term) -> None:
    """A mean of integers that has a fraction is refused, or keeps it."""
    name, op, mesh, axis = case
    terms = [counting((2, 2), name) * np.asarray(n + 1, name) for n in range(mesh[axis])]
    if name[0] == "u":
        # Beyond the middle of the dtype, where a sign would be.
        terms[-1] += np.asarray(np.iinfo(name).max // 2, name)
    must = np.mean(np.stack(terms).astype(np.float64), axis=0)
    with refusable():
        came = adapter.mesh_reduce(terms, mesh, axis, op, (None,) * len(mesh))
    for part in came:
        expect_near(part, must, rtol=1e-3, atol=1e-8)


Weight = tuple[Array, MeshShape, int, int | None]
"""A weight, a mesh (copies, FSDP, tensor parallelism), and the axes that FSDP and tensor parallelism
cut; None for one that tensor parallelism copies."""

FULL: tuple[MeshShape, ...] = ((2, 2, 2), (2, 1, 3), (3, 2, 1), (2, 3, 1), (2, 2, 3))


@st.composite
def hybrid_weights(
    draw: st.DrawFn,
    meshes: tuple[MeshShape, ...],
    axes: tuple[tuple[int, int | None], ...],
    rank: int = 2,
) -> Weight:
    """A weight whose rows may divide or not, and which may have fewer than there are devices. Other
    axes divide, since FSDP cuts only the first one unevenly."""
    mesh = draw(st.sampled_from(meshes))
    fsdp_axis, tp_axis = draw(st.sampled_from(axes))
    shape = [draw(st.integers(1, 3)) for _ in range(rank)]
    for axis in {fsdp_axis, fsdp_axis if tp_axis is None else tp_axis}:
        count = prod(mesh[at] for at, cut in ((1, fsdp_axis), (2, tp_axis)) if cut == axis)
        if axis > 0 and axis == fsdp_axis:
            shape[axis] = count * draw(st.integers(1, 2))
        else:
            shape[axis] = draw(st.integers(1, 2 * count + 1))
    return counting(shape), mesh, fsdp_axis, tp_axis


def check_weight(adapter: Calls, case: Weight) -> None:
    value, mesh, fsdp_axis, tp_axis = case
    held = hsdp(value.shape, mesh, fsdp_axis, tp_axis)
    expect_parts(adapter.hsdp_parts(*case), parts(value, held))


_OVER: tuple[MeshShape, ...] = ((1, 2, 2), (1, 3, 2), (1, 2, 3), (1, 4, 1))


# Meshes of three axes.

THREE: tuple[MeshShape, ...] = ((2, 2, 2), (2, 1, 3), (1, 2, 2), (2, 3, 1))


@st.composite
def three_strided(draw: st.DrawFn) -> Placed:
    """FSDP over tensor parallelism in a mesh with a third axis, which copies or cuts another axis."""
    mesh = draw(st.sampled_from(THREE))
    axis = draw(st.integers(0, 1))
    third: MeshPlacement = draw(st.sampled_from([None, 1 - axis]))
    first = draw(st.integers(0, 1))
    # The mesh axes of FSDP and of tensor parallelism; the third one is before, between or behind.
    pair = [(0, 1), (1, 2), (0, 2)][draw(st.integers(0, 2))] if first else (1, 2)
    placements: list[MeshPlacement] = [third] * 3
    placements[pair[0]], placements[pair[1]] = ("strided", axis, mesh[pair[1]]), axis
    count, shape = mesh[pair[0]] * mesh[pair[1]], [0, 0]
    for at, least in ((axis, count), (1 - axis, prod(mesh) // count)):
        shape[at] = least * draw(st.integers(1, 2)) + draw(st.integers(0, 2))
    return counting(shape), mesh, tuple(placements)


@st.composite
def three_moves(draw: st.DrawFn) -> Moved:
    value, mesh, strided = draw(three_strided())
    value = counting([prod(mesh) * 2] * value.ndim)
    plain = draw(placements_on(mesh, value.ndim, is_stacked=True))
    return (value, mesh, plain, strided) if draw(st.booleans()) else (value, mesh, strided, plain)


rules(
    ("V-FSDP-1-rows", "hsdp_parts", hybrid_weights(_OVER, ((0, 0),)), check_weight,
     "Tensor parallelism cuts the rows and FSDP the rows of each rank, also where there are fewer rows than "
     "devices"),
    ("V-FSDP-1-columns", "hsdp_parts", hybrid_weights(_OVER, ((0, 1), (0, None))), check_weight,
     "FSDP cuts the rows of a weight whose columns tensor parallelism cuts, or that it copies"),
    ("V-FSDP-1-second", "hsdp_parts", hybrid_weights(_OVER, ((1, 0), (1, 1), (1, None))), check_weight,
     "FSDP cuts the columns if it is asked to, whichever axis tensor parallelism cuts"),
    ("V-FSDP-1-copies", "hsdp_parts",
     hybrid_weights(FULL, ((0, None), (0, 0), (0, 1), (1, 0), (1, 1))), check_weight,
     "HSDP: along the first axis of the mesh devices hold copies, the second one shards, and the third one is of "
     "tensor parallelism"),
    ("V-FSDP-1-ranks", "hsdp_parts",
     hybrid_weights((*_OVER, *FULL), ((0, 2), (2, 0), (2, 2), (2, None), (1, 2)), rank=3)
     | hybrid_weights((*_OVER, *FULL), ((0, 0), (0, None)), rank=1),
     check_weight,
     "Vectors and tensors of three axes are cut along the axes that are asked for"),
    ("V-FSDP-1-divide", "hsdp_parts",
     [(counting((4, columns)), mesh, 1, tp_axis)
      for mesh, columns, tp_axis in product(((1, 2, 1), (1, 3, 1), (2, 2, 1), (1, 2, 2)), range(1, 8), (None, 0, 1))],
     unless_refused(check_weight),
     "Columns that FSDP does not divide are refused, or cut as rows are; nothing is lost"),
    ("V-STRIDED-1-three-axes", "mesh_parts", three_strided(), check_mesh_parts,
     "A strided shard on a mesh of three axes holds a run of each range, wherever the mesh axis that copies or "
     "cuts something else is, also where extents do not divide"),
    ("V-WHOLE-1-three-axes", "mesh_gather", three_strided(), check_whole,
     "A tensor is put together from strided shards on a mesh of three axes"),
    ("V-MOVE-1-three-axes", "mesh_move", three_moves(), check_redistribution,
     "A redistribution from or to strided shards on a mesh of three axes keeps every value"),
    ("V-STATED-1-three-axes", "mesh_slices",
     placed_tensors(lambda _, size: st.integers(size, size + 3), THREE, _THREE_AXES),
     check_stated_slices,
     "The stated offset and shape match the part on a mesh of three axes, for a tensor of three"),
)  # fmt: skip


# Missing parts, axes that a tensor does not have, and specs.


@rule(
    "V-WHOLE-1-missing",
    "mesh_gather",
    [*product(((2,), (3,), (2, 2)), ("last", "first", "rows", "more"))],
)
def missing_parts_are_refused(adapter: Calls, case: tuple[MeshShape, str]) -> None:
    """Parts of fewer or more devices than the mesh has, and a part of too few rows, are refused: nothing
    is made up, and nothing is left out."""
    mesh, what = case
    placements = tuple(range(len(mesh)))
    value = counting([2 * count for count in mesh])
    held = device_arrays(value, mesh, placements)
    given = {
        "last": held[:-1],
        "first": held[1:],
        "rows": [*held[:-1], held[-1][:1]],
        "more": [*held, held[-1]],
    }[what]
    adapter.refuses("mesh_gather", given, value.shape, mesh, placements)


def _no_such_axis(mesh: MeshShape) -> dict[str, tuple[str, tuple[Any, ...]]]:
    """By the ends of ids, methods and arguments that place a table along its third axis."""
    good: tuple[Any, ...] = (None,) * len(mesh)
    bad, value = (2, *good[1:]), counting((4, 4))
    return {
        "slices": ("mesh_slices", (value.shape, mesh, bad)),
        "gather": ("mesh_gather", ([value] * prod(mesh), value.shape, mesh, bad)),
        "move": ("mesh_move", (value, mesh, good, bad)),
        "joined": ("mesh_move_joined", (value, mesh, good, bad)),
        "reduce": ("mesh_reduce", ([value] * mesh[0], mesh, 0, "sum", bad)),
    }


_NAMED = specified(lambda count, _: st.just(max(2, count)), _THREE, _THREE_AXES)
_NOTHING = [
    (counting((0, 3)), mesh, NAMES[: len(mesh)], (NAMES[: len(mesh)], ()))
    for mesh in ((2,), (3,), (2, 2))
]
rules(
    *((f"V-REFUSE-1-{suffix}", method,
       [_no_such_axis(mesh)[suffix][1] for mesh in ([(2, 2), (3, 2)] if suffix == "joined" else [(2,), (2, 2)])],
       refuses(method), f"`{method}` refuses a placement that cuts an axis which the tensor does not have")
      for suffix, (method, _) in _no_such_axis((2, 2)).items()),
    ("V-REFUSE-1-fsdp", "hsdp_parts",
     [(counting((12, 12)), mesh, *axes) for mesh, axes in product(_OVER[:3], ((2, 0), (0, 2), (3, None)))],
     refuses("hsdp_parts"), "FSDP and tensor parallelism of an axis that the weight does not have are refused"),
    ("V-REFUSE-2-long", "spec_parts", [(counting((6,)), mesh, NAMES[:1], ((), NAMES[:1])) for mesh in ((2,), (3,))],
     refuses("spec_parts"), "A spec with more entries than the tensor has axes is refused"),
    *(
        row
        for name, method in (("V-SPEC-1", "spec_parts"), ("V-SPEC-1-constraint", "spec_constrained"))
        for row in (
            (f"{name}-empty", method, _NOTHING, unless_refused(partial(check_spec, method=method)),
             f"Devices hold nothing of a tensor without elements by `{method}`, or it is refused"),
            (f"{name}-three-axes", method, _NAMED, partial(check_spec, method=method),
             f"`{method}` on a mesh of three axes cuts a tensor of three as its spec says, in the order of the names"),
        )
    ),
)  # fmt: skip
