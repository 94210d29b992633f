"""Level 9: FSDP over tensor parallelism on any axes, with copies (HSDP), and strided shards on
meshes of three axes."""

from math import prod

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Calls
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.meshes import (
    FSDP,
    MOVES,
    PAGE,
    STATED,
    STRIDED,
    WHOLE,
    check_mesh_parts,
    check_redistribution,
    check_stated_slices,
    check_whole,
)
from shardvar.conformance.rules.meshes import REFUSED as CANNOT_EXIST
from shardvar.conformance.rules.placements import (
    MeshPlacement,
    MeshShape,
    Moved,
    Placed,
    expect_parts,
    placements_on,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.meshes import hsdp, parts
from shardvar.testing import counting
from shardvar.testing.arrays import bits

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
        is_even = axis > 0 and axis == fsdp_axis
        shape[axis] = (
            count * draw(st.integers(1, 2)) if is_even else draw(st.integers(1, 2 * count + 1))
        )
    return counting(shape), mesh, fsdp_axis, tp_axis


def check_weight(adapter: Calls, case: Weight) -> None:
    """Compare what the devices hold with the definition."""
    value, mesh, fsdp_axis, tp_axis = case
    expect_parts(
        adapter.hsdp_parts(*case), parts(value, hsdp(value.shape, mesh, fsdp_axis, tp_axis))
    )


_OVER: tuple[MeshShape, ...] = ((1, 2, 2), (1, 3, 2), (1, 2, 3), (1, 4, 1))


@rule("V-FSDP-1-rows", 9, PAGE, FSDP, "hsdp_parts", hybrid_weights(_OVER, ((0, 0),)))
def fsdp_over_rows(adapter: Calls, case: Weight) -> None:
    """Tensor parallelism cuts the rows and FSDP the rows of each rank, also where there are fewer
    rows than devices."""
    check_weight(adapter, case)


@rule("V-FSDP-1-columns", 9, PAGE, FSDP, "hsdp_parts", hybrid_weights(_OVER, ((0, 1), (0, None))))
def fsdp_over_columns(adapter: Calls, case: Weight) -> None:
    """FSDP cuts the rows of a weight whose columns tensor parallelism cuts, or that it copies."""
    check_weight(adapter, case)


@rule(
    "V-FSDP-1-second",
    9,
    PAGE,
    FSDP,
    "hsdp_parts",
    hybrid_weights(_OVER, ((1, 0), (1, 1), (1, None))),
)
def fsdp_of_columns(adapter: Calls, case: Weight) -> None:
    """FSDP cuts the columns if it is asked to, whichever axis tensor parallelism cuts."""
    check_weight(adapter, case)


@rule("V-FSDP-1-copies", 9, PAGE, FSDP, "hsdp_parts",
      hybrid_weights(FULL, ((0, None), (0, 0), (0, 1), (1, 0), (1, 1))))  # fmt: skip
def copies_hold_the_same(adapter: Calls, case: Weight) -> None:
    """HSDP: along the first axis of the mesh devices hold copies, the second one shards, and the
    third one is of tensor parallelism."""
    check_weight(adapter, case)


@rule("V-FSDP-1-ranks", 9, PAGE, FSDP, "hsdp_parts",
      hybrid_weights((*_OVER, *FULL), ((0, 2), (2, 0), (2, 2), (2, None), (1, 2)), rank=3)
      | hybrid_weights((*_OVER, *FULL), ((0, 0), (0, None)), rank=1))  # fmt: skip
def weights_of_any_rank(adapter: Calls, case: Weight) -> None:
    """Vectors and tensors of three axes are cut along the axes that are asked for."""
    check_weight(adapter, case)


@st.composite
def typed_weights(draw: st.DrawFn) -> Weight:
    """A weight of any bits of some dtype."""
    value, mesh, fsdp_axis, tp_axis = draw(hybrid_weights(_OVER, ((0, 0), (0, 1), (1, None))))
    dtype = np.dtype(draw(st.sampled_from(["float64", "float16", "bfloat16", "int64", "uint8"])))
    filled = draw(bits(dtype, value.shape))
    if dtype.kind not in "iu":
        # A NaN differs from itself.
        filled = np.where(np.isfinite(filled), filled, counting(value.shape, dtype)).astype(dtype)
    return filled, mesh, fsdp_axis, tp_axis


@rule("V-FSDP-1-dtypes", 9, PAGE, FSDP, "hsdp_parts", typed_weights())
def weights_keep_dtypes(adapter: Calls, case: Weight) -> None:
    """Each device holds its part of a weight of any dtype, in that dtype."""
    check_weight(adapter, case)


@rule("V-FSDP-1-divide", 9, PAGE, FSDP, "hsdp_parts", st.tuples(
    st.sampled_from([(1, 2, 1), (1, 3, 1), (2, 2, 1), (1, 2, 2)]), st.integers(1, 7),
    st.sampled_from([None, 0, 1])))  # fmt: skip
def columns_that_do_not_divide(adapter: Calls, case: tuple[MeshShape, int, int | None]) -> None:
    """Columns that FSDP does not divide are refused, or cut as rows are; nothing is lost."""
    mesh, columns, tp_axis = case
    value = counting((4, columns))
    came = adapter.attempt("hsdp_parts", value, mesh, 1, tp_axis)
    if came is not REFUSED:
        expect_parts(came, parts(value, hsdp(value.shape, mesh, 1, tp_axis)))


@rule("V-REFUSE-1-fsdp", 9, PAGE, CANNOT_EXIST, "hsdp_parts",
      st.tuples(st.sampled_from(_OVER[:3]), st.sampled_from([(2, 0), (0, 2), (3, None)])))  # fmt: skip
def missing_axes_are_refused(
    adapter: Calls, case: tuple[MeshShape, tuple[int, int | None]]
) -> None:
    """FSDP and tensor parallelism of an axis that the weight does not have are refused."""
    mesh, axes = case
    adapter.refuses("hsdp_parts", counting((12, 12)), mesh, *axes)


# Meshes of three axes.

THREE: tuple[MeshShape, ...] = ((2, 2, 2), (2, 1, 3), (1, 2, 2), (2, 3, 1))


@st.composite
def three_strided(draw: st.DrawFn, is_even: bool = True) -> Placed:
    """The placements of FSDP over tensor parallelism in a mesh with a third axis, which copies or
    cuts another axis; of either axis of the tensor."""
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


@rule("V-STRIDED-1-three-axes", 9, PAGE, STRIDED, "mesh_parts", three_strided())
def strided_on_three_axes(adapter: Calls, case: Placed) -> None:
    """A strided shard on a mesh of three axes holds a run of each range, wherever the mesh axis
    that copies or cuts something else is."""
    check_mesh_parts(adapter, case)


@rule("V-STRIDED-1-three-uneven", 9, PAGE, STRIDED, "mesh_parts", three_strided(is_even=False))
def uneven_strided_on_three_axes(adapter: Calls, case: Placed) -> None:
    """The same, where extents do not divide."""
    check_mesh_parts(adapter, case)


@rule("V-STRIDED-1-two", 9, PAGE, STRIDED, "mesh_parts", two_strided())
def two_strided_shards(adapter: Calls, case: Placed) -> None:
    """Two strided shards of one axis cut one after the other, each into runs of its ranges."""
    check_mesh_parts(adapter, case)


@st.composite
def uneven_factors(draw: st.DrawFn) -> Placed:
    """A strided shard of any factor, of an extent that neither it nor the mesh divides."""
    mesh, factor = draw(st.sampled_from([(2,), (3,), (2, 2)])), draw(st.integers(2, 4))
    axis, shape = draw(st.integers(0, 1)), [2, 2]
    shape[axis] = draw(st.integers(factor, 4 * factor))
    rest: tuple[MeshPlacement, ...] = (None,) * (len(mesh) - 1)
    return counting(shape), mesh, (("strided", axis, factor), *rest)


@rule("V-STRIDED-1-factor-uneven", 9, PAGE, STRIDED, "mesh_parts", uneven_factors())
def uneven_ranges_are_cut(adapter: Calls, case: Placed) -> None:
    """The ranges of a strided shard and their runs may be uneven, whatever its factor."""
    check_mesh_parts(adapter, case)


@rule("V-WHOLE-1-three-axes", 9, PAGE, WHOLE, "mesh_gather", three_strided() | two_strided())
def three_axes_make_the_whole(adapter: Calls, case: Placed) -> None:
    """A tensor is put together from strided shards on a mesh of three axes."""
    check_whole(adapter, case)


@st.composite
def three_moves(draw: st.DrawFn) -> Moved:
    """A redistribution from or to strided shards on a mesh of three axes."""
    value, mesh, strided = draw(three_strided())
    value = counting([prod(mesh) * 2] * value.ndim)
    plain = draw(placements_on(mesh, value.ndim, is_stacked=True))
    return (value, mesh, plain, strided) if draw(st.booleans()) else (value, mesh, strided, plain)


@rule("V-MOVE-1-three-axes", 9, PAGE, MOVES, "mesh_move", three_moves())
def three_axes_move(adapter: Calls, case: Moved) -> None:
    """A redistribution from or to strided shards on a mesh of three axes keeps every value."""
    check_redistribution(adapter, case)


@st.composite
def three_cuts(draw: st.DrawFn) -> Placed:
    """A tensor on a mesh of three axes without strided shards."""
    mesh = draw(st.sampled_from(THREE))
    placements = draw(placements_on(mesh, 3, is_stacked=True))
    shape = [draw(st.integers(prod(mesh), prod(mesh) + 3)) for _ in range(3)]
    return counting(shape), mesh, placements


@rule("V-STATED-1-three-axes", 9, PAGE, STATED, "mesh_slices", three_cuts())
def slices_of_three_axes_are_stated(adapter: Calls, case: Placed) -> None:
    """The stated offset and shape match the part on a mesh of three axes, for a tensor of three."""
    check_stated_slices(adapter, case)


@rule("V-FSDP-1-vectors", 9, PAGE, FSDP, "fsdp_parts", st.tuples(
    st.sampled_from([(2, 2), (2, 3), (3, 2)]), st.integers(1, 13)))  # fmt: skip
def vectors_are_cut(adapter: Calls, case: tuple[MeshShape, int]) -> None:
    """FSDP and tensor parallelism cut a vector, such as a bias, as they cut rows."""
    mesh, rows = case
    value = counting((rows,))
    held = hsdp(value.shape, (1, *mesh), 0, 0)
    expect_parts(adapter.fsdp_parts(value, mesh), parts(value, held))
