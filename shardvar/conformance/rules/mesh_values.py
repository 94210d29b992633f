"""Level 9: tensors of three axes and more, axes counted from the end, strided shards of any axis, and
terms of all kinds of numbers; FSDP over tensor parallelism on any axes, with copies (HSDP), and
meshes of three axes."""

from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Calls, expect_near
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
from shardvar.conformance.rules.meshes import (
    MESHES,
    NAMES,
    MeshPlacement,
    MeshShape,
    Moved,
    Placed,
    Reduced,
    check_mesh_parts,
    check_redistribution,
    check_reduced_terms,
    check_spec,
    check_stated_slices,
    check_whole,
    device_arrays,
    expect_parts,
    number_of_cuts,
    placements_on,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.meshes import hsdp, parts
from shardvar.testing import counting


@st.composite
def of_three_axes(draw: st.DrawFn, is_even: bool = True) -> Placed:
    mesh = draw(st.sampled_from(MESHES))
    placements = draw(placements_on(mesh, 3, is_stacked=True))
    cuts = [number_of_cuts(mesh, placements, axis) for axis in range(3)]
    shape = [max(2, count) if is_even else draw(st.integers(count, count + 2)) for count in cuts]
    return counting(shape), mesh, placements


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
    return counting([*cuts[:-2], last, last]), mesh, tuple(placements)


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


_TWO: tuple[MeshShape, ...] = ((2, 2), (3, 2), (2, 3))
_MANY = of_three_axes() | of_four_axes()
rules(
    ("V-MESH-1-axes", "mesh_parts", _MANY, check_mesh_parts,
     "Each device holds its part of a tensor of three to five axes, whichever are cut"),
    ("V-WHOLE-1-axes", "mesh_gather", _MANY, check_whole,
     "A tensor of three to five axes is put together from its parts, whichever axes are cut"),
    ("V-MOVE-1-axes", "mesh_move", moves_of_many_axes(), check_redistribution,
     "The same, of a tensor of three to five axes"),
    ("V-MESH-3-axes", "mesh_parts", of_three_axes(is_even=False), check_mesh_parts,
     "The parts of a tensor of three axes are as `torch.chunk` cuts them, whichever axis does not divide"),
    ("V-MESH-3-columns", "mesh_parts",
     [(counting((2, columns)), (count,), (1,)) for count, columns in product((2, 3, 4, 5), range(1, 13))],
     check_mesh_parts, "The parts of columns that do not divide are cut as `torch.chunk` does, not by the div rule"),
    ("V-MESH-1-empty", "mesh_parts",
     [(counting(shape), mesh, (0, None)[: len(mesh)])
      for shape, mesh in product(((0,), (0, 2), (2, 0)), ((2,), (2, 2)))],
     check_mesh_parts, "Devices hold nothing of a tensor without elements"),
    ("V-STRIDED-1-factor", "mesh_parts",
     [(along(axis, count * factor * more, 3), (count,), (("strided", axis, factor),))
      for count, factor, axis, more in product((2, 3), (2, 3, 4), (0, 1), (1, 2))],
     check_mesh_parts, "A strided shard of any axis holds a run of each of as many ranges as its factor says"),
    ("V-STRIDED-1-columns", "mesh_parts",
     [(along(1, prod(mesh) * more), mesh, (("strided", 1, mesh[1]), 1)) for mesh, more in product(_TWO, (1, 2))],
     check_mesh_parts, "A strided shard of the columns holds a run of each range of them"),
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
      for mesh, source in product(_TWO, ((None, None), (0, None), (None, 1)))],
     check_redistribution, "The same, to strided shards"),
    ("V-MOVE-1-joined-axes", "mesh_move_joined",
     [(counting((prod(mesh), 2 * prod(mesh))), mesh, source, target)
      for mesh, source, target in product(_TWO[:2], ((0, 0), (0, 1), (1, 1), (None, 1)),
                                          ((0, 1), (1, 0), (1, None), (None, 1)))],
     partial(check_redistribution, method="mesh_move_joined"),
     "On a mesh whose axes were joined before, each device has its part by the target placements"),
    ("V-MOVE-1-joined-few", "mesh_move_joined",
     [(counting((rows, 2)), mesh, source, (None, None))
      for mesh, rows, source in product(_TWO[:2], (1, 2, 3), ((0, 0), (0, None), (None, 0)))],
     partial(check_redistribution, method="mesh_move_joined"), "The same, where some devices hold nothing before"),
)  # fmt: skip


def parts_or_refused(adapter: Calls, must: list[Array], method: str, *arguments: Any) -> None:
    came = adapter.attempt(method, *arguments)
    if came is not REFUSED:
        expect_parts(came, must)


@rule("V-MESH-1-negative", "mesh_parts", [*product(((2,), (3,)), (1, 2, 3), (-1, -2, -3))])
def axes_from_the_end(adapter: Calls, case: tuple[MeshShape, int, int]) -> None:
    """A placement by an axis below zero is refused, or counts the axes from the end."""
    mesh, rank, back = case
    value, axis = counting([6] * rank), max(back, -rank)
    must = device_arrays(value, mesh, (axis + rank,))
    parts_or_refused(adapter, must, "mesh_parts", value, mesh, (axis,))


@rule("V-SPEC-1-short", "spec_parts", [(2,), (3,)])
def short_specs_are_filled_up(adapter: Calls, mesh: MeshShape) -> None:
    """A spec with fewer entries than the tensor has axes is refused, or cuts the first ones."""
    value = counting((6, 6))
    must = device_arrays(value, mesh, (0,))
    parts_or_refused(adapter, must, "spec_parts", value, mesh, NAMES[:1], (NAMES[:1],))


# Terms.

_THREE: tuple[MeshShape, ...] = ((2, 2, 2), (2, 1, 3), (3, 2, 1), (1, 2, 3))
Term = tuple[str, str, MeshShape, int]
"""A dtype, a reduction, a mesh, and its axis that is pending."""


def _reduction(shape: list[int], mesh: MeshShape, axis: int, op: str, placements: Any) -> Reduced:
    terms = [counting(shape) * np.float32((-2) ** n * mesh[axis]) for n in range(mesh[axis])]
    return terms, mesh, axis, op, placements


def _turned(axis: int, cut: int | None) -> tuple[int | None, ...]:
    """Placements on a mesh of three axes, of which the one behind ``axis`` cuts."""
    return tuple(cut if at == (axis + 1) % 3 else None for at in range(3))


rules(
    ("V-TERM-1-columns", "mesh_reduce",
     [_reduction([prod(mesh)] * 2, mesh, axis, "sum", placements)
      for mesh in ((2,), (3,), *_TWO) for axis in range(len(mesh))
      for placements in product((0, 1, None), repeat=len(mesh))
      if len(mesh) == 1 or placements[0] is None or placements[0] != placements[1]],
     check_reduced_terms,
     "Each device holds its part of the sum, whichever axis is cut, by the pending axis of the mesh or another"),
    ("V-TERM-1-three-axes", "mesh_reduce",
     [_reduction([6, 2, 6], mesh, axis, op, _turned(axis, cut))
      for mesh, axis, op, cut in product(_THREE, (0, 1, 2), ("sum", "avg", "min", "max"), (None, 0, 2))],
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
    with np.errstate(all="ignore"):
        must = _REDUCTIONS[op](*terms)
        must = must / np.asarray(2, name) if op == "avg" else must
    copies = (None,) * len(mesh)
    came = refusable(lambda: adapter.mesh_reduce(terms, mesh, axis, op, copies))
    if came is not REFUSED:
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
    came = refusable(lambda: adapter.mesh_reduce(terms, mesh, axis, op, (None,) * len(mesh)))
    for part in came if came is not REFUSED else ():
        expect_near(part, must, rtol=1e-3, atol=1e-8)


Weight = tuple[Array, MeshShape, int, int | None]
"""A weight, a mesh (copies, FSDP, tensor parallelism), and the axes that FSDP and tensor parallelism
cut; None for one that tensor parallelism copies."""

FULL: tuple[MeshShape, ...] = ((2, 2, 2), (2, 1, 3), (3, 2, 1), (2, 3, 1), (2, 1, 2))


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
)  # fmt: skip


rules(
    ("V-FSDP-1-divide", "hsdp_parts",
     [(counting((4, columns)), mesh, 1, tp_axis)
      for mesh, columns, tp_axis in product(((1, 2, 1), (1, 3, 1), (2, 2, 1), (1, 2, 2)), range(1, 8), (None, 0, 1))],
     unless_refused(check_weight),
     "Columns that FSDP does not divide are refused, or cut as rows are; nothing is lost"),
)  # fmt: skip


# Meshes of three axes.

THREE: tuple[MeshShape, ...] = ((2, 2, 2), (2, 1, 3), (1, 2, 2), (2, 3, 1))


@st.composite
def three_strided(draw: st.DrawFn, is_even: bool = True) -> Placed:
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
        shape[at] = least * draw(st.integers(1, 2)) + (0 if is_even else draw(st.integers(0, 2)))
    return counting(shape), mesh, tuple(placements)


@st.composite
def three_moves(draw: st.DrawFn) -> Moved:
    value, mesh, strided = draw(three_strided())
    value = counting([prod(mesh) * 2] * value.ndim)
    plain = draw(placements_on(mesh, value.ndim, is_stacked=True))
    return (value, mesh, plain, strided) if draw(st.booleans()) else (value, mesh, strided, plain)


@st.composite
def three_cuts(draw: st.DrawFn) -> Placed:
    mesh = draw(st.sampled_from(THREE))
    placements = draw(placements_on(mesh, 3, is_stacked=True))
    shape = [draw(st.integers(prod(mesh), prod(mesh) + 3)) for _ in range(3)]
    return counting(shape), mesh, placements


rules(
    ("V-STRIDED-1-three-axes", "mesh_parts", three_strided(), check_mesh_parts,
     "A strided shard on a mesh of three axes holds a run of each range, wherever the mesh axis that copies or "
     "cuts something else is"),
    ("V-STRIDED-1-three-uneven", "mesh_parts", three_strided(is_even=False), check_mesh_parts,
     "The same, where extents do not divide"),
    ("V-WHOLE-1-three-axes", "mesh_gather", three_strided(), check_whole,
     "A tensor is put together from strided shards on a mesh of three axes"),
    ("V-MOVE-1-three-axes", "mesh_move", three_moves(), check_redistribution,
     "A redistribution from or to strided shards on a mesh of three axes keeps every value"),
    ("V-STATED-1-three-axes", "mesh_slices", three_cuts(), check_stated_slices,
     "The stated offset and shape match the part on a mesh of three axes, for a tensor of three"),
)  # fmt: skip


# Missing parts, axes that a tensor does not have, and specs.


@rule(
    "V-WHOLE-1-missing", "mesh_gather", [*product(((2,), (3,), (2, 2)), ("last", "first", "rows"))]
)
def missing_parts_are_refused(adapter: Calls, case: tuple[MeshShape, str]) -> None:
    """Parts of fewer devices than the mesh has, and a part of too few rows, are refused: nothing is
    made up for what is missing."""
    mesh, what = case
    placements = tuple(range(len(mesh)))
    value = counting([2 * count for count in mesh])
    held = device_arrays(value, mesh, placements)
    given = {"last": held[:-1], "first": held[1:], "rows": [*held[:-1], held[-1][:1]]}[what]
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
)  # fmt: skip


@st.composite
def three_named(draw: st.DrawFn) -> Any:
    """A tensor of three axes on a mesh of three, whose names cut any of them in any order."""
    mesh = draw(st.sampled_from(_THREE))
    entries: list[tuple[str, ...]] = [(), (), ()]
    for name in draw(st.permutations(NAMES)):
        axis = draw(st.sampled_from([0, 1, 2, None]))
        if axis is not None:
            entries[axis] = (*entries[axis], name)
    extents = dict(zip(NAMES, mesh, strict=True))
    shape = [max(2, prod(extents[name] for name in entry)) for entry in entries]
    return counting(shape), mesh, NAMES, tuple(entries)


_NAMED = three_named()
_NOTHING = [
    (counting((0, 3)), mesh, NAMES[: len(mesh)], (NAMES[: len(mesh)], ()))
    for mesh in ((2,), (3,), (2, 2))
]
rules(*(
    row
    for name, method in (("V-SPEC-1", "spec_parts"), ("V-SPEC-1-constraint", "spec_constrained"))
    for row in (
        (f"{name}-empty", method, _NOTHING, unless_refused(partial(check_spec, method=method)),
         f"Devices hold nothing of a tensor without elements by `{method}`, or it is refused"),
        (f"{name}-three-axes", method, _NAMED, partial(check_spec, method=method),
         f"`{method}` on a mesh of three axes cuts a tensor of three as its spec says, in the order of the names"),
    )
))  # fmt: skip
