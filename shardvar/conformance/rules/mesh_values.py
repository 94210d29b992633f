"""Level 9: tensors of every dtype and of three axes, axes counted from the end, strided shards of
any axis, and terms of all kinds of numbers; FSDP over tensor parallelism on any axes, with copies
(HSDP), and meshes of three axes."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Broken, Calls, expect_equal, text
from shardvar.conformance.rules import rule, rules
from shardvar.conformance.rules.cases import finite_bits
from shardvar.conformance.rules.meshes import (
    EQUAL,
    FSDP,
    MESHES,
    MOVES,
    NAMES,
    PAGE,
    SPEC,
    STATED,
    STRIDED,
    TERMS,
    UNEVEN,
    WHOLE,
    MeshPlacement,
    MeshShape,
    Moved,
    Placed,
    check_fsdp,
    check_mesh_parts,
    check_redistribution,
    check_stated_slices,
    check_whole,
    device_arrays,
    expect_parts,
    number_of_cuts,
    placements_on,
    uneven,
)
from shardvar.conformance.rules.meshes import REFUSED as CANNOT_EXIST
from shardvar.layout.dtypes import Array
from shardvar.spec.meshes import hsdp, parts
from shardvar.testing import counting

NUMBERS = "float64 int32 int64 uint8 bool float16 bfloat16 complex64".split()


@st.composite
def of_three_axes(draw: st.DrawFn, is_even: bool = True) -> Placed:
    mesh = draw(st.sampled_from(MESHES))
    placements = draw(placements_on(mesh, 3, is_stacked=True))
    cuts = [number_of_cuts(mesh, placements, axis) for axis in range(3)]
    shape = [max(2, count) if is_even else draw(st.integers(count, count + 2)) for count in cuts]
    return counting(shape), mesh, placements


@st.composite
def typed_tensors(draw: st.DrawFn) -> Placed:
    value, mesh, placements = draw(uneven())
    dtype = np.dtype(draw(st.sampled_from(NUMBERS)))
    return finite_bits(draw, dtype, value.shape), mesh, placements


rules(9, PAGE,
    ("V-MESH-1-dtypes", EQUAL, "mesh_parts", typed_tensors(), check_mesh_parts,
     "Each device holds its part of a tensor of any dtype, in that dtype"),
    ("V-MESH-1-axes", EQUAL, "mesh_parts", of_three_axes(), check_mesh_parts,
     "Each device holds its part of a tensor of three axes, whichever are cut"),
    ("V-MESH-3-axes", UNEVEN, "mesh_parts", of_three_axes(is_even=False), check_mesh_parts,
     "The parts of a tensor of three axes are as `torch.chunk` cuts them, whichever axis does not divide"),
)  # fmt: skip


rules(9, PAGE,
    ("V-MESH-3-columns", UNEVEN, "mesh_parts",
     st.tuples(st.sampled_from([(2,), (3,), (4,), (5,)]), st.integers(1, 12)),
     lambda adapter, case: check_mesh_parts(adapter, (counting((2, case[1])), case[0], (1,))),
     "The parts of columns that do not divide are cut as `torch.chunk` does, not by the div rule"),
)  # fmt: skip


@rule("V-MESH-1-negative", 9, PAGE, EQUAL, "mesh_parts",
      st.tuples(st.sampled_from([(2,), (3,)]), st.integers(1, 3), st.integers(1, 3)))  # fmt: skip
def axes_from_the_end(adapter: Calls, case: tuple[MeshShape, int, int]) -> None:
    """A placement by an axis below zero is refused, or counts the axes from the end."""
    mesh, rank, back = case
    value, axis = counting([6] * rank), -min(back, rank)
    must = device_arrays(value, mesh, (axis + rank,))
    parts_or_refused(adapter, must, "mesh_parts", value, mesh, (axis,))


def parts_or_refused(adapter: Calls, must: list[Array], method: str, *arguments: Any) -> None:
    came = adapter.attempt(method, *arguments)
    if came is not REFUSED:
        expect_parts(came, must)


@st.composite
def any_strided(draw: st.DrawFn) -> Placed:
    """One strided shard, of any axis and any factor, on a mesh of one axis."""
    mesh, factor = draw(st.sampled_from([(2,), (3,)])), draw(st.integers(2, 4))
    axis, rank = draw(st.integers(0, 1)), 2
    shape = [3] * rank
    shape[axis] = mesh[0] * factor * draw(st.integers(1, 2))
    return counting(shape), mesh, (("strided", axis, factor),)


@st.composite
def strided_columns(draw: st.DrawFn) -> Placed:
    mesh = draw(st.sampled_from([(2, 2), (3, 2), (2, 3)]))
    columns = mesh[0] * mesh[1] * draw(st.integers(1, 2))
    return counting((2, columns)), mesh, (("strided", 1, mesh[1]), 1)


@st.composite
def typed_moves(draw: st.DrawFn) -> Moved:
    value, mesh, source = draw(typed_tensors())
    return value, mesh, source, draw(placements_on(mesh, value.ndim))


@st.composite
def moves_of_three_axes(draw: st.DrawFn) -> Moved:
    mesh = draw(st.sampled_from([(2,), (2, 2), (3, 2)]))
    size = prod(mesh)
    source, target = (draw(placements_on(mesh, 3)) for _ in range(2))
    return counting((size, size, size)), mesh, source, target


rules(9, PAGE,
    ("V-STRIDED-1-factor", STRIDED, "mesh_parts", any_strided(), check_mesh_parts,
     "A strided shard of any axis holds a run of each of as many ranges as its factor says"),
    ("V-STRIDED-1-columns", STRIDED, "mesh_parts", strided_columns(), check_mesh_parts,
     "A strided shard of the columns holds a run of each range of them"),
    ("V-WHOLE-1-axes", WHOLE, "mesh_gather", of_three_axes(), check_whole,
     "A tensor of three axes is put together from its parts, whichever axes are cut"),
    ("V-WHOLE-1-dtypes", WHOLE, "mesh_gather", typed_tensors(), check_whole,
     "A tensor of any dtype is put together from its parts, in that dtype"),
    ("V-MOVE-1-dtypes", MOVES, "mesh_move", typed_moves(), check_redistribution,
     "After a redistribution a tensor of any dtype has its values, in that dtype"),
    ("V-MOVE-1-axes", MOVES, "mesh_move", moves_of_three_axes(), check_redistribution,
     "The same, of a tensor of three axes"),
)  # fmt: skip


@rule("V-MOVE-1-to-strided", 9, PAGE, MOVES, "mesh_move", st.tuples(
    st.sampled_from([(2, 2), (3, 2), (2, 3)]), st.sampled_from([(None, None), (0, None), (None, 1)])))  # fmt: skip
def moves_end_in_strided_shards(adapter: Calls, case: tuple[MeshShape, Any]) -> None:
    """The same, to strided shards."""
    mesh, source = case
    size = mesh[0] * mesh[1]
    target = (("strided", 0, mesh[1]), 0)
    check_redistribution(adapter, (counting((2 * size, size)), mesh, source, target))


@rule("V-SPEC-1-short", 9, PAGE, SPEC, "spec_parts", st.sampled_from([(2,), (3,)]))
def short_specs_are_filled_up(adapter: Calls, mesh: MeshShape) -> None:
    """A spec with fewer entries than the tensor has axes is refused, or cuts the first ones."""
    value = counting((6, 6))
    must = device_arrays(value, mesh, (0,))
    parts_or_refused(adapter, must, "spec_parts", value, mesh, NAMES[:1], (NAMES[:1],))


# Terms.

Terms = tuple[list[Array], MeshShape, int, str]


@st.composite
def terms_of(draw: st.DrawFn, dtype: str, ops: tuple[str, ...]) -> Terms:
    """Terms along any axis of a mesh, whose axes differ, and the reduction."""
    mesh = draw(st.sampled_from([(2,), (3,), (3, 2), (2, 3), (1, 3)]))
    axis = draw(st.integers(0, len(mesh) - 1))
    factors = [draw(st.sampled_from([1, -2, 5])) for _ in range(mesh[axis])]
    terms = [(counting((2, 2)) * factor).astype(dtype) for factor in factors]
    return terms, mesh, axis, draw(st.sampled_from(ops))


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "avg": np.mean, "min": np.min, "max": np.max
}  # fmt: skip


def check_terms(adapter: Calls, terms: list[Array], case: Terms, ulps: int = 0) -> None:
    """Reduce terms as a case asks for it, and compare each device with NumPy."""
    _, mesh, axis, op = case
    with np.errstate(invalid="ignore"):
        must = np.asarray(_REDUCTIONS[op](np.stack(terms), axis=0)).astype(terms[0].dtype)
    came = adapter.mesh_reduce(terms, mesh, axis, op, (None,) * len(mesh))
    for part in [*came]:
        expect_equal(np.asarray(part), must, ulps=ulps)


@rule("V-TERM-1-fractions", 9, PAGE, TERMS, "mesh_reduce",
      terms_of("float32", ("sum", "avg", "min", "max")))  # fmt: skip
def fractions_are_reduced(adapter: Calls, case: Terms) -> None:
    """Fractions are reduced in all of their digits, along any axis of the mesh."""
    terms, mesh, axis, op = case
    thirds = [term / np.float32(3) for term in terms]
    must = _REDUCTIONS[op](np.stack(thirds).astype(np.float64), axis=0).astype(np.float32)
    came = adapter.mesh_reduce(thirds, mesh, axis, op, (None,) * len(mesh))
    # Terms of either sign cancel, so that digits of the largest count.
    expect_devices_near(came, must, rtol=0, atol=float(np.abs(thirds).max()) * 2.0**-21)


def expect_devices_near(came: Any, must: Array, rtol: float, atol: float) -> None:
    for part in [*came]:
        array = np.asarray(part)
        if array.shape != must.shape or not np.allclose(array, must, rtol=rtol, atol=atol):
            raise Broken(f"A device holds {text(array)}.", f"It must hold {text(must)}.")


@rule("V-TERM-1-nan", 9, PAGE, TERMS, "mesh_reduce", terms_of("float32", ("min", "max")))
def nan_is_a_term(adapter: Calls, case: Terms) -> None:
    """The minimum and the maximum are NaN where a term is."""
    spoiled = [term.copy() for term in case[0]]
    spoiled[-1][0, 0] = np.nan
    check_terms(adapter, spoiled, case)


rules(9, PAGE,
    ("V-TERM-1-integers", TERMS, "mesh_reduce",
     terms_of("int64", ("sum", "min", "max")),
     lambda adapter, case: check_terms(adapter, [term + 2**40 + 1 for term in case[0]], case),
     "Large integers are reduced to the last digit"),
)  # fmt: skip


@rule("V-TERM-1-mean", 9, PAGE, TERMS, "mesh_reduce", terms_of("int64", ("avg",)))
def means_of_integers_keep_fractions(adapter: Calls, case: Terms) -> None:
    """A mean of integers that has a fraction is refused, or keeps it."""
    terms, mesh, axis, op = case
    must = np.mean(np.stack(terms), axis=0)
    came = adapter.attempt("mesh_reduce", terms, mesh, axis, op, (None,) * len(mesh))
    if came is not REFUSED:
        expect_devices_near(came, must, rtol=1e-3, atol=1e-8)


# Tensors of more axes, and of none or no elements.


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


rules(9, PAGE,
    ("V-MESH-1-ranks", EQUAL, "mesh_parts", of_four_axes(), check_mesh_parts,
     "Each device holds its part of a tensor of four or five axes"),
    ("V-WHOLE-1-ranks", WHOLE, "mesh_gather", of_four_axes(), check_whole,
     "A tensor of four or five axes is put together from its parts"),
)  # fmt: skip


@rule("V-MOVE-1-ranks", 9, PAGE, MOVES, "mesh_move", of_four_axes())
def moves_of_many_axes(adapter: Calls, case: Placed) -> None:
    """A redistribution of a tensor of four or five axes, to copies and back, keeps every value."""
    value, mesh, placements = case
    copies = (None,) * len(mesh)
    check_redistribution(adapter, (value, mesh, placements, copies))
    check_redistribution(adapter, (value, mesh, copies, placements))


rules(9, PAGE,
    ("V-MESH-1-empty", EQUAL, "mesh_parts",
     st.tuples(st.sampled_from([(0,), (0, 2), (2, 0)]), st.sampled_from([(2,), (2, 2)])),
     lambda adapter, case: check_mesh_parts(
         adapter, (counting(case[0]), case[1], (0, *(None,) * (len(case[1]) - 1)))),
     "Devices hold nothing of a tensor without elements"),
    ("V-REFUSE-2-long", CANNOT_EXIST, "spec_parts",
     st.sampled_from([(2,), (3,)]),
     lambda adapter, mesh: adapter.refuses("spec_parts", counting((6,)), mesh, NAMES[:1], ((), NAMES[:1])),
     "A spec with more entries than the tensor has axes is refused"),
)  # fmt: skip


@rule("V-MOVE-1-joined-axes", 9, PAGE, MOVES, "mesh_move_joined", st.tuples(
    st.sampled_from([(2, 2), (3, 2)]),
    st.sampled_from([(0, 0), (0, 1), (1, 1), (None, 1)]),
    st.sampled_from([(0, 1), (1, 0), (1, None), (None, 1)])))  # fmt: skip
def joined_axes_cut_anew(adapter: Calls, case: tuple[MeshShape, Any, Any]) -> None:
    """On a mesh whose axes were joined before, each device has its part by the target
    placements."""
    mesh, source, target = case
    size = mesh[0] * mesh[1]
    moved = counting((size, 2 * size)), mesh, source, target
    check_redistribution(adapter, moved, "mesh_move_joined")


# More terms.


@rule("V-TERM-1-columns", 9, PAGE, TERMS, "mesh_reduce", st.tuples(
    terms_of("float32", ("sum",)), st.sampled_from([0, 1, None]), st.sampled_from([0, 1, None])))  # fmt: skip
def terms_are_cut_along_any_axis(adapter: Calls, case: tuple[Terms, Any, Any]) -> None:
    """Each device holds its part of the sum, whichever axis is cut, by the pending axis of the mesh
    or another."""
    (terms, mesh, axis, op), *targets = case
    size = mesh[0] * mesh[-1]
    large = [counting((size, size)) * term.flat[0] for term in terms]
    placements = tuple(targets[: len(mesh)])
    if len(mesh) > 1 and placements[0] == placements[1]:
        placements = (placements[0], None)
    must = np.sum(np.stack(large), axis=0)
    came = adapter.mesh_reduce(large, mesh, axis, op, placements)
    expect_parts(came, device_arrays(must, mesh, placements))


@rule("V-TERM-1-dtypes", 9, PAGE, TERMS, "mesh_reduce", st.tuples(
    st.sampled_from(["float64", "uint64", "uint8", "int8", "int32"]),
    terms_of("int64", ("sum", "min", "max"))))  # fmt: skip
def terms_of_any_dtype_are_reduced(adapter: Calls, case: tuple[str, Terms]) -> None:
    """Terms of any dtype are reduced in it: to all digits of float64, as unsigned integers, and
    with the dtype of the terms."""
    name, (terms, *_) = case
    dtype = np.dtype(name)
    top = {"float64": 2**40 + 1, "uint64": 2**63, "uint8": 128, "int8": 0, "int32": 2**24}[name]
    # Of a wide unsigned dtype the terms lie on either side of its middle, where a sign would be.
    typed = [
        np.asarray(np.abs(term) % 7 + number, dtype) + np.asarray(top * (number % 2), dtype)
        for number, term in enumerate(terms)
    ]
    check_terms(adapter, typed, case[1])


@rule("V-TERM-1-infinite", 9, PAGE, TERMS, "mesh_reduce",
      terms_of("float32", ("sum", "avg", "min", "max")))  # fmt: skip
def infinite_terms_are_reduced(adapter: Calls, case: Terms) -> None:
    """Sums, means, minima and maxima of infinite terms are infinite, or NaN, as NumPy's."""
    spoiled = [term.copy() for term in case[0]]
    spoiled[-1][0] = np.inf, -np.inf
    spoiled[0][1, 0] = -np.inf
    check_terms(adapter, spoiled, case, ulps=4)


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


@st.composite
def typed_weights(draw: st.DrawFn) -> Weight:
    value, mesh, fsdp_axis, tp_axis = draw(hybrid_weights(_OVER, ((0, 0), (0, 1), (1, None))))
    dtype = np.dtype(draw(st.sampled_from(["float64", "float16", "bfloat16", "int64", "uint8"])))
    return finite_bits(draw, dtype, value.shape), mesh, fsdp_axis, tp_axis


rules(9, PAGE,
    ("V-FSDP-1-rows", FSDP, "hsdp_parts", hybrid_weights(_OVER, ((0, 0),)), check_weight,
     "Tensor parallelism cuts the rows and FSDP the rows of each rank, also where there are fewer rows than "
     "devices"),
    ("V-FSDP-1-columns", FSDP, "hsdp_parts", hybrid_weights(_OVER, ((0, 1), (0, None))), check_weight,
     "FSDP cuts the rows of a weight whose columns tensor parallelism cuts, or that it copies"),
    ("V-FSDP-1-second", FSDP, "hsdp_parts", hybrid_weights(_OVER, ((1, 0), (1, 1), (1, None))), check_weight,
     "FSDP cuts the columns if it is asked to, whichever axis tensor parallelism cuts"),
    ("V-FSDP-1-copies", FSDP, "hsdp_parts",
     hybrid_weights(FULL, ((0, None), (0, 0), (0, 1), (1, 0), (1, 1))), check_weight,
     "HSDP: along the first axis of the mesh devices hold copies, the second one shards, and the third one is of "
     "tensor parallelism"),
    ("V-FSDP-1-ranks", FSDP, "hsdp_parts",
     hybrid_weights((*_OVER, *FULL), ((0, 2), (2, 0), (2, 2), (2, None), (1, 2)), rank=3)
     | hybrid_weights((*_OVER, *FULL), ((0, 0), (0, None)), rank=1),
     check_weight,
     "Vectors and tensors of three axes are cut along the axes that are asked for"),
    ("V-FSDP-1-dtypes", FSDP, "hsdp_parts", typed_weights(), check_weight,
     "Each device holds its part of a weight of any dtype, in that dtype"),
)  # fmt: skip


@rule("V-FSDP-1-divide", 9, PAGE, FSDP, "hsdp_parts", st.tuples(
    st.sampled_from([(1, 2, 1), (1, 3, 1), (2, 2, 1), (1, 2, 2)]), st.integers(1, 7),
    st.sampled_from([None, 0, 1])))  # fmt: skip
def columns_that_do_not_divide(adapter: Calls, case: tuple[MeshShape, int, int | None]) -> None:
    """Columns that FSDP does not divide are refused, or cut as rows are; nothing is lost."""
    mesh, columns, tp_axis = case
    value = counting((4, columns))
    must = parts(value, hsdp(value.shape, mesh, 1, tp_axis))
    parts_or_refused(adapter, must, "hsdp_parts", value, mesh, 1, tp_axis)


rules(9, PAGE,
    ("V-REFUSE-1-fsdp", CANNOT_EXIST, "hsdp_parts",
     st.tuples(st.sampled_from(_OVER[:3]), st.sampled_from([(2, 0), (0, 2), (3, None)])),
     lambda adapter, case: adapter.refuses("hsdp_parts", counting((12, 12)), case[0], *case[1]),
     "FSDP and tensor parallelism of an axis that the weight does not have are refused"),
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
def two_strided(draw: st.DrawFn) -> Placed:
    """Three mesh axes that cut one axis, the last one first and the first one last."""
    mesh = draw(st.sampled_from([(2, 2, 2), (2, 2, 3), (2, 3, 2)]))
    axis = draw(st.integers(0, 1))
    shape = [2, 2]
    shape[axis] = prod(mesh) * draw(st.integers(1, 2))
    placements = (("strided", axis, mesh[1] * mesh[2]), ("strided", axis, mesh[2]), axis)
    return counting(shape), mesh, placements


@st.composite
def uneven_factors(draw: st.DrawFn) -> Placed:
    """A strided shard of any factor, of an extent that neither it nor the mesh divides."""
    mesh, factor = draw(st.sampled_from([(2,), (3,), (2, 2)])), draw(st.integers(2, 4))
    axis, shape = draw(st.integers(0, 1)), [2, 2]
    shape[axis] = draw(st.integers(factor, 4 * factor))
    rest: tuple[MeshPlacement, ...] = (None,) * (len(mesh) - 1)
    return counting(shape), mesh, (("strided", axis, factor), *rest)


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


rules(9, PAGE,
    ("V-STRIDED-1-three-axes", STRIDED, "mesh_parts", three_strided(), check_mesh_parts,
     "A strided shard on a mesh of three axes holds a run of each range, wherever the mesh axis that copies or "
     "cuts something else is"),
    ("V-STRIDED-1-three-uneven", STRIDED, "mesh_parts", three_strided(is_even=False), check_mesh_parts,
     "The same, where extents do not divide"),
    ("V-STRIDED-1-two", STRIDED, "mesh_parts", two_strided(), check_mesh_parts,
     "Two strided shards of one axis cut one after the other, each into runs of its ranges"),
    ("V-STRIDED-1-factor-uneven", STRIDED, "mesh_parts", uneven_factors(), check_mesh_parts,
     "The ranges of a strided shard and their runs may be uneven, whatever its factor"),
    ("V-WHOLE-1-three-axes", WHOLE, "mesh_gather", three_strided() | two_strided(), check_whole,
     "A tensor is put together from strided shards on a mesh of three axes"),
    ("V-MOVE-1-three-axes", MOVES, "mesh_move", three_moves(), check_redistribution,
     "A redistribution from or to strided shards on a mesh of three axes keeps every value"),
    ("V-STATED-1-three-axes", STATED, "mesh_slices", three_cuts(), check_stated_slices,
     "The stated offset and shape match the part on a mesh of three axes, for a tensor of three"),
)  # fmt: skip


rules(9, PAGE,
    ("V-FSDP-1-vectors", FSDP, "fsdp_parts",
     st.tuples(st.sampled_from([(2, 2), (2, 3), (3, 2)]), st.integers(1, 13)),
     lambda adapter, case: check_fsdp(adapter, (counting((case[1],)), case[0])),
     "FSDP and tensor parallelism cut a vector, such as a bias, as they cut rows"),
)  # fmt: skip
