"""Level 9: tensors of every dtype and of three axes, axes counted from the end, strided shards of
any axis, and terms of all kinds of numbers."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Broken, Calls, expect_equal, text
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.meshes import (
    EQUAL,
    MOVES,
    NAMES,
    PAGE,
    SPEC,
    STRIDED,
    TERMS,
    UNEVEN,
    WHOLE,
    check_mesh_parts,
    check_redistribution,
    check_whole,
)
from shardvar.conformance.rules.meshes import REFUSED as CANNOT_EXIST
from shardvar.conformance.rules.placements import (
    MESHES,
    MeshShape,
    Moved,
    Placed,
    expect_parts,
    number_of_cuts,
    placements_on,
    uneven,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.meshes import by_placements, parts
from shardvar.testing import counting
from shardvar.testing.arrays import bits

NUMBERS = "float64 int32 int64 uint8 bool float16 bfloat16 complex64".split()


@st.composite
def of_three_axes(draw: st.DrawFn, is_even: bool = True) -> Placed:
    """A tensor of three axes; any may be cut."""
    mesh = draw(st.sampled_from(MESHES))
    placements = draw(placements_on(mesh, 3, is_stacked=True))
    cuts = [number_of_cuts(mesh, placements, axis) for axis in range(3)]
    shape = [max(2, count) if is_even else draw(st.integers(count, count + 2)) for count in cuts]
    return counting(shape), mesh, placements


@st.composite
def typed_tensors(draw: st.DrawFn) -> Placed:
    """A tensor of any bits of some dtype."""
    value, mesh, placements = draw(uneven())
    dtype = np.dtype(draw(st.sampled_from(NUMBERS)))
    filled = draw(bits(dtype, value.shape))
    if dtype.kind in "fc" or dtype.name == "bfloat16":
        # A NaN differs from itself; its bits are the subject of checkpoints.
        filled = np.where(np.isfinite(filled), filled, counting(value.shape, dtype)).astype(dtype)
    return filled, mesh, placements


@rule("V-MESH-1-dtypes", 9, PAGE, EQUAL, "mesh_parts", typed_tensors())
def parts_keep_dtypes(adapter: Calls, case: Placed) -> None:
    """Each device holds its part of a tensor of any dtype, in that dtype."""
    check_mesh_parts(adapter, case)


@rule("V-MESH-1-axes", 9, PAGE, EQUAL, "mesh_parts", of_three_axes())
def parts_of_three_axes(adapter: Calls, case: Placed) -> None:
    """Each device holds its part of a tensor of three axes, whichever are cut."""
    check_mesh_parts(adapter, case)


@rule("V-MESH-3-axes", 9, PAGE, UNEVEN, "mesh_parts", of_three_axes(is_even=False))
def uneven_parts_of_three_axes(adapter: Calls, case: Placed) -> None:
    """The parts of a tensor of three axes are as `torch.chunk` cuts them, whichever axis does not
    divide."""
    check_mesh_parts(adapter, case)


@rule("V-MESH-3-columns", 9, PAGE, UNEVEN, "mesh_parts",
      st.tuples(st.sampled_from([(2,), (3,), (4,), (5,)]), st.integers(1, 12)))  # fmt: skip
def uneven_columns_are_cut(adapter: Calls, case: tuple[MeshShape, int]) -> None:
    """The parts of columns that do not divide are cut as `torch.chunk` does, not by the div rule."""
    mesh, columns = case
    check_mesh_parts(adapter, (counting((2, columns)), mesh, (1,)))


@rule("V-MESH-1-negative", 9, PAGE, EQUAL, "mesh_parts",
      st.tuples(st.sampled_from([(2,), (3,)]), st.integers(1, 3), st.integers(1, 3)))  # fmt: skip
def axes_from_the_end(adapter: Calls, case: tuple[MeshShape, int, int]) -> None:
    """A placement by an axis below zero is refused, or counts the axes from the end."""
    mesh, rank, back = case
    value, axis = counting([6] * rank), -min(back, rank)
    came = adapter.attempt("mesh_parts", value, mesh, (axis,))
    if came is not REFUSED:
        expect_parts(came, parts(value, by_placements(value.shape, mesh, (axis + rank,))))


@st.composite
def any_strided(draw: st.DrawFn) -> Placed:
    """One strided shard, of any axis and any factor, on a mesh of one axis."""
    mesh, factor = draw(st.sampled_from([(2,), (3,)])), draw(st.integers(2, 4))
    axis, rank = draw(st.integers(0, 1)), 2
    shape = [3] * rank
    shape[axis] = mesh[0] * factor * draw(st.integers(1, 2))
    return counting(shape), mesh, (("strided", axis, factor),)


@rule("V-STRIDED-1-factor", 9, PAGE, STRIDED, "mesh_parts", any_strided())
def strided_shards_have_any_factor(adapter: Calls, case: Placed) -> None:
    """A strided shard of any axis holds a run of each of as many ranges as its factor says."""
    check_mesh_parts(adapter, case)


@st.composite
def strided_columns(draw: st.DrawFn) -> Placed:
    """FSDP over tensor parallelism along the columns."""
    mesh = draw(st.sampled_from([(2, 2), (3, 2), (2, 3)]))
    columns = mesh[0] * mesh[1] * draw(st.integers(1, 2))
    return counting((2, columns)), mesh, (("strided", 1, mesh[1]), 1)


@rule("V-STRIDED-1-columns", 9, PAGE, STRIDED, "mesh_parts", strided_columns())
def strided_columns_are_runs(adapter: Calls, case: Placed) -> None:
    """A strided shard of the columns holds a run of each range of them."""
    check_mesh_parts(adapter, case)


@rule("V-WHOLE-1-axes", 9, PAGE, WHOLE, "mesh_gather", of_three_axes())
def parts_of_three_axes_make_the_whole(adapter: Calls, case: Placed) -> None:
    """A tensor of three axes is put together from its parts, whichever axes are cut."""
    check_whole(adapter, case)


@rule("V-WHOLE-1-dtypes", 9, PAGE, WHOLE, "mesh_gather", typed_tensors())
def parts_of_any_dtype_make_the_whole(adapter: Calls, case: Placed) -> None:
    """A tensor of any dtype is put together from its parts, in that dtype."""
    check_whole(adapter, case)


@st.composite
def typed_moves(draw: st.DrawFn) -> Moved:
    """A redistribution of a tensor of any bits of some dtype."""
    value, mesh, source = draw(typed_tensors())
    return value, mesh, source, draw(placements_on(mesh, value.ndim))


@rule("V-MOVE-1-dtypes", 9, PAGE, MOVES, "mesh_move", typed_moves())
def moves_keep_dtypes(adapter: Calls, case: Moved) -> None:
    """After a redistribution a tensor of any dtype has its values, in that dtype."""
    check_redistribution(adapter, case)


@st.composite
def moves_of_three_axes(draw: st.DrawFn) -> Moved:
    """A redistribution of a tensor of three axes."""
    mesh = draw(st.sampled_from([(2,), (2, 2), (3, 2)]))
    size = int(np.prod(mesh))
    source, target = (draw(placements_on(mesh, 3)) for _ in range(2))
    return counting((size, size, size)), mesh, source, target


@rule("V-MOVE-1-axes", 9, PAGE, MOVES, "mesh_move", moves_of_three_axes())
def moves_of_three_axes_keep_values(adapter: Calls, case: Moved) -> None:
    """The same, of a tensor of three axes."""
    check_redistribution(adapter, case)


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
    came = adapter.attempt("spec_parts", value, mesh, NAMES[:1], (NAMES[:1],))
    if came is not REFUSED:
        expect_parts(came, parts(value, by_placements(value.shape, mesh, (0,))))


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


def check_terms(adapter: Calls, case: Terms, must: Array, ulps: int = 0) -> None:
    """Reduce to copies, and compare every one."""
    terms, mesh, axis, op = case
    came = adapter.mesh_reduce(terms, mesh, axis, op, (None,) * len(mesh))
    for part in [*came]:
        expect_equal(np.asarray(part), must, ulps=ulps)


@rule("V-TERM-1-fractions", 9, PAGE, TERMS, "mesh_reduce",
      terms_of("float32", ("sum", "avg", "min", "max")))  # fmt: skip
def fractions_are_reduced(adapter: Calls, case: Terms) -> None:
    """Fractions are reduced in all of their digits, along any axis of the mesh."""
    terms, mesh, axis, op = case
    thirds = [term / np.float32(3) for term in terms]
    reduce: Any = {"sum": np.sum, "avg": np.mean, "min": np.min, "max": np.max}[op]
    must = reduce(np.stack(thirds).astype(np.float64), axis=0).astype(np.float32)
    came = adapter.mesh_reduce(thirds, mesh, axis, op, (None,) * len(mesh))
    for part in [*came]:
        # Terms of either sign cancel, so that digits of the largest count.
        array, most = np.asarray(part), float(np.abs(thirds).max())
        if array.shape != must.shape or not np.allclose(array, must, rtol=0, atol=most * 2.0**-21):
            raise Broken(f"A device holds {text(array)}.", f"It must hold {text(must)}.")


@rule("V-TERM-1-nan", 9, PAGE, TERMS, "mesh_reduce", terms_of("float32", ("min", "max")))
def nan_is_a_term(adapter: Calls, case: Terms) -> None:
    """The minimum and the maximum are NaN where a term is."""
    terms, mesh, axis, op = case
    spoiled = [term.copy() for term in terms]
    spoiled[-1][0, 0] = np.nan
    reduce: Any = {"min": np.min, "max": np.max}[op]
    check_terms(adapter, (spoiled, mesh, axis, op), reduce(np.stack(spoiled), axis=0))


@rule("V-TERM-1-integers", 9, PAGE, TERMS, "mesh_reduce", terms_of("int64", ("sum", "min", "max")))
def integers_are_reduced(adapter: Calls, case: Terms) -> None:
    """Large integers are reduced to the last digit."""
    terms, mesh, axis, op = case
    large = [term + 2**40 + 1 for term in terms]
    reduce: Any = {"sum": np.sum, "min": np.min, "max": np.max}[op]
    check_terms(adapter, (large, mesh, axis, op), reduce(np.stack(large), axis=0))


@rule("V-TERM-1-mean", 9, PAGE, TERMS, "mesh_reduce", terms_of("int64", ("avg",)))
def means_of_integers_keep_fractions(adapter: Calls, case: Terms) -> None:
    """A mean of integers that has a fraction is refused, or keeps it."""
    terms, mesh, axis, op = case
    must = np.mean(np.stack(terms), axis=0)
    came = adapter.attempt("mesh_reduce", terms, mesh, axis, op, (None,) * len(mesh))
    if came is not REFUSED:
        for part in [*came]:
            if not np.allclose(np.asarray(part, np.float64), must, rtol=1e-3):
                raise Broken(
                    f"A device holds {text(np.asarray(part))}.", f"It must hold {text(must)}."
                )


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
    extents = [max(2, count) for count in cuts[-2:]]
    return (
        counting([*cuts[:-2], *([max(extents) * 2] * 2)])
        if max(cuts) < 3
        else counting([*cuts[:-2], *([6] * 2)]),
        mesh,
        tuple(placements),
    )


@rule("V-MESH-1-ranks", 9, PAGE, EQUAL, "mesh_parts", of_four_axes())
def parts_of_many_axes(adapter: Calls, case: Placed) -> None:
    """Each device holds its part of a tensor of four or five axes."""
    check_mesh_parts(adapter, case)


@rule("V-WHOLE-1-ranks", 9, PAGE, WHOLE, "mesh_gather", of_four_axes())
def parts_of_many_axes_make_the_whole(adapter: Calls, case: Placed) -> None:
    """A tensor of four or five axes is put together from its parts."""
    check_whole(adapter, case)


@rule("V-MOVE-1-ranks", 9, PAGE, MOVES, "mesh_move", of_four_axes())
def moves_of_many_axes(adapter: Calls, case: Placed) -> None:
    """A redistribution of a tensor of four or five axes, to copies and back, keeps every value."""
    value, mesh, placements = case
    copies = (None,) * len(mesh)
    check_redistribution(adapter, (value, mesh, placements, copies))
    check_redistribution(adapter, (value, mesh, copies, placements))


@rule("V-MESH-1-empty", 9, PAGE, EQUAL, "mesh_parts", st.tuples(
    st.sampled_from([(0,), (0, 2), (2, 0)]), st.sampled_from([(2,), (2, 2)])))  # fmt: skip
def nothing_is_placed(adapter: Calls, case: tuple[tuple[int, ...], MeshShape]) -> None:
    """Devices hold nothing of a tensor without elements."""
    shape, mesh = case
    check_mesh_parts(adapter, (counting(shape), mesh, (0, *(None,) * (len(mesh) - 1))))


@rule("V-REFUSE-2-long", 9, PAGE, CANNOT_EXIST, "spec_parts", st.sampled_from([(2,), (3,)]))
def long_specs_are_refused(adapter: Calls, mesh: MeshShape) -> None:
    """A spec with more entries than the tensor has axes is refused."""
    adapter.refuses("spec_parts", counting((6,)), mesh, NAMES[:1], ((), NAMES[:1]))


@rule("V-MOVE-1-joined-axes", 9, PAGE, MOVES, "mesh_move_joined", st.tuples(
    st.sampled_from([(2, 2), (3, 2)]),
    st.sampled_from([(0, 0), (0, 1), (1, 1), (None, 1)]),
    st.sampled_from([(0, 1), (1, 0), (1, None), (None, 1)])))  # fmt: skip
def joined_axes_cut_anew(adapter: Calls, case: tuple[MeshShape, Any, Any]) -> None:
    """On a mesh whose axes were joined before, each device has its part by the target
    placements."""
    mesh, source, target = case
    size = mesh[0] * mesh[1]
    check_redistribution(
        adapter, (counting((size, 2 * size)), mesh, source, target), "mesh_move_joined"
    )


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
    expect_parts(came, parts(must, by_placements(must.shape, mesh, placements)))


@rule("V-TERM-1-dtypes", 9, PAGE, TERMS, "mesh_reduce", st.tuples(
    st.sampled_from(["float64", "uint64", "uint8", "int8", "int32"]),
    terms_of("int64", ("sum", "min", "max"))))  # fmt: skip
def terms_of_any_dtype_are_reduced(adapter: Calls, case: tuple[str, Terms]) -> None:
    """Terms of any dtype are reduced in it: to all digits of float64, as unsigned integers, and
    with the dtype of the terms."""
    name, (terms, mesh, axis, op) = case
    dtype = np.dtype(name)
    top = {"float64": 2**40 + 1, "uint64": 2**63, "uint8": 128, "int8": 0, "int32": 2**24}[name]
    # Of a wide unsigned dtype the terms lie on either side of its middle, where a sign would be.
    typed = [
        np.asarray(np.abs(term) % 7 + number, dtype) + np.asarray(top * (number % 2), dtype)
        for number, term in enumerate(terms)
    ]
    reduce: Any = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op]
    must = np.asarray(reduce.reduce(np.stack(typed), axis=0, dtype=dtype))
    check_terms(adapter, (typed, mesh, axis, op), must)


@rule("V-TERM-1-infinite", 9, PAGE, TERMS, "mesh_reduce",
      terms_of("float32", ("sum", "avg", "min", "max")))  # fmt: skip
def infinite_terms_are_reduced(adapter: Calls, case: Terms) -> None:
    """Sums, means, minima and maxima of infinite terms are infinite, or NaN, as NumPy's."""
    terms, mesh, axis, op = case
    spoiled = [term.copy() for term in terms]
    spoiled[-1][0] = np.inf, -np.inf
    spoiled[0][1, 0] = -np.inf
    reduce: Any = {"sum": np.sum, "avg": np.mean, "min": np.min, "max": np.max}[op]
    with np.errstate(invalid="ignore"):
        must = np.asarray(reduce(np.stack(spoiled), axis=0)).astype(np.float32)
    check_terms(adapter, (spoiled, mesh, axis, op), must, ulps=4)
