"""Chapters 12 and 13: layouts of meshes and moves between them equal their plain rules."""

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar import layouts
from shardvar.errors import ShardvarError
from shardvar.layout.dtypes import Array
from shardvar.layout.meshes.named_sharding import parameter_servers
from shardvar.spec import meshes, redistribution
from shardvar.testing import bits

shapes = st.lists(st.integers(0, 7), max_size=3)
grids = st.lists(st.integers(1, 3), min_size=1, max_size=3)


def numbers(layout: layouts.Layout) -> list[list[int]]:
    """The C order numbers of the elements that each device holds."""
    whole = np.arange(prod(layout.shape)).reshape(layout.shape)
    return [
        sorted(n for region in layout.regions(d) for n in whole[region.slices].ravel().tolist())
        for d in range(layout.mesh.size)
    ]


def plain_numbers(held: list[meshes.Held], shape: list[int]) -> list[list[int]]:
    return [sorted(meshes.elements(each, shape)) for each in held]


@st.composite
def placements(draw: st.DrawFn, grid: list[int], rank: int) -> list[meshes.Placement]:
    """A placement for each mesh axis, negative tensor axes among them."""
    found: list[meshes.Placement] = []
    for _ in grid:
        kind = draw(st.sampled_from(["copy", "cut", "strided"])) if rank else "copy"
        axis = draw(st.integers(-rank, rank - 1)) if rank else 0
        factor = draw(st.integers(1, 3))
        found.append({"copy": None, "cut": axis, "strided": ("strided", axis, factor)}[kind])
    return found


def in_torch(placement: meshes.Placement) -> layouts.DTensorPlacement:
    if placement is None:
        return layouts.Replicate()
    if isinstance(placement, tuple):
        return layouts.StridedShard(*placement[1:])
    return layouts.Shard(placement)


def dtensor(shape: list[int], grid: list[int], placed: list[meshes.Placement]) -> layouts.Layout:
    return layouts.dtensor(shape, sv.Mesh(tuple(grid)), [in_torch(each) for each in placed])


@given(shapes, grids, st.data())
def test_placements(shape: list[int], grid: list[int], data: st.DataObject) -> None:
    placed = data.draw(placements(grid, len(shape)))
    plain = meshes.by_placements(shape, grid, placed)
    assert numbers(dtensor(shape, grid, placed)) == plain_numbers(plain, shape)
    assert len(meshes.coordinates(grid)) == len(plain)


@given(shapes, grids, st.data())
def test_specs(shape: list[int], grid: list[int], data: st.DataObject) -> None:
    names = ["x", "y", "z"][: len(grid)]
    mesh = dict(zip(names, grid, strict=True))
    free = data.draw(st.permutations(names))
    spec: list[list[str]] = []
    for _ in range(data.draw(st.integers(0, len(shape)))):
        taken = data.draw(st.integers(0, len(free)))
        spec.append(free[:taken])
        free = free[taken:]
    devices = data.draw(st.permutations(range(prod(grid))))
    if data.draw(st.booleans()):
        shape = [extent * prod(grid) for extent in shape]
    fast = sv.Mesh(tuple(grid), tuple(names), tuple(devices))
    try:
        plain = meshes.by_spec(shape, mesh, spec, devices)
    except ValueError:
        with pytest.raises(ShardvarError):
            layouts.named_sharding(shape, fast, [tuple(entry) for entry in spec])
        return
    layout = layouts.named_sharding(shape, fast, [tuple(entry) for entry in spec])
    assert numbers(layout) == plain_numbers(plain, shape)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.data(),
)
def test_fsdp(shape: list[int], grid: tuple[int, int], data: st.DataObject) -> None:
    """FSDP over tensor parallelism along the same axis or another; only rows may be uneven."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    tp_axis = data.draw(st.none() | st.integers(0, len(shape) - 1))
    if axis:
        shape[axis] *= grid[0] * grid[1]
    layout = layouts.fsdp(shape, sv.Mesh(grid, ("dp", "tp")), axis, tp_axis)
    assert numbers(layout) == plain_numbers(meshes.fsdp(shape, grid, axis, tp_axis), shape)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.data(),
)
def test_hsdp(shape: list[int], grid: tuple[int, int, int], data: st.DataObject) -> None:
    """Along the first axis of the mesh devices hold copies of what FSDP and tensor parallelism
    cut."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    tp_axis = data.draw(st.none() | st.integers(0, len(shape) - 1))
    if axis:
        shape[axis] *= grid[1] * grid[2]
    layout = layouts.fsdp(shape, sv.Mesh(grid, ("copies", "dp", "tp")), axis, tp_axis)
    assert numbers(layout) == plain_numbers(meshes.hsdp(shape, grid, axis, tp_axis), shape)


@given(st.lists(shapes.filter(len), min_size=1, max_size=3), st.integers(1, 3), st.booleans())
def test_flat_parameters(parameters: list[list[int]], devices: int, aligned: bool) -> None:
    """FSDP1 and DeepSpeed's stages lay the parameters of a group end to end."""
    step = 4 if aligned else 1
    starts, end = [], 0
    for shape in parameters:
        starts.append(-(-end // step) * step)
        end = starts[-1] + prod(shape)
    length = -(-end // devices)
    mesh = sv.Mesh((devices,))
    fast = layouts.fsdp_flat(parameters, mesh, use_orig_params=aligned, itemsize=4)
    for shape, start, layout in zip(parameters, starts, fast, strict=True):
        assert numbers(layout) == meshes.flat(prod(shape), start, length, devices)
    for shape, layout in zip(parameters, layouts.deepspeed(parameters, mesh, 3), strict=True):
        alone = meshes.flat(prod(shape), 0, -(-prod(shape) // devices), devices)
        assert numbers(layout) == alone


@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=2),
    st.integers(1, 3),
    st.sampled_from([None, "column", "row", "vocabulary"]),
    st.booleans(),
)
def test_megatron(shape: list[int], ranks: int, parallel: Any, gated: bool) -> None:
    gated = gated and parallel == "column"
    mesh = sv.Mesh((ranks,), ("tp",))
    try:
        plain = meshes.megatron(shape, ranks, parallel, gated)
    except ValueError:
        with pytest.raises(ShardvarError):
            layouts.megatron(shape, mesh, parallel, gated=gated)
        return
    layout = layouts.megatron(shape, mesh, parallel, gated=gated)
    assert numbers(layout) == plain_numbers(plain, shape)


@given(st.integers(0, 3000), st.integers(1, 4), st.integers(1, 128))
def test_padded_vocabularies(size: int, ranks: int, multiple: int) -> None:
    fast = layouts.padded_vocabulary(size, ranks, multiple)
    assert fast == meshes.padded_vocabulary(size, ranks, multiple)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=2), st.integers(1, 5))
def test_parameter_servers(shape: list[int], servers: int) -> None:
    """R-PSS-1 (RFC 000): "may be created as `ShardedVariable`, depending on some user-supplied
    partitioner"."""
    layout = parameter_servers(shape, sv.Mesh((servers,)))
    assert numbers(layout) == plain_numbers(meshes.parameter_servers(shape, servers), shape)


DTYPES = "uint8 int64 float16 bfloat16 float32 float64 complex128".split()


@given(shapes, grids, st.sampled_from(DTYPES), st.data())
def test_moves(shape: list[int], grid: list[int], dtype: str, data: st.DataObject) -> None:
    """R-MOVE-1 (RFC 002): "keep communication between machines small": nothing moves that need
    not, and every bit arrives."""
    placed = [data.draw(placements(grid, len(shape))) for _ in range(2)]
    before, after = (meshes.by_placements(shape, grid, each) for each in placed)
    source, target = (dtensor(shape, grid, each) for each in placed)
    plan = layouts.plan_redistribution(source, target)
    lacking = redistribution.must_receive(shape, before, after)
    assert plan.received().tolist() == [len(each) for each in lacking]
    value: Array = data.draw(bits(np.dtype(dtype), shape))
    held = meshes.parts(value, before)
    assert redistribution.gathered(shape, before, held).tobytes() == value.tobytes()
    plain = redistribution.redistribute(shape, before, after, held)
    flat = value.ravel()
    arrays = [
        [
            flat[np.arange(prod(shape)).reshape(shape)[region.slices]]
            for region in source.regions(device)
        ]
        for device in range(source.mesh.size)
    ]
    came = sv.redistribute(arrays, source, target)
    for device, made in enumerate(came):
        found = np.zeros_like(flat)
        for region, array in zip(target.regions(device), made, strict=True):
            place: Any = (*region.slices, ...)
            found.reshape(shape)[place] = array
        must = np.zeros_like(flat)
        must[meshes.elements(after[device], shape)] = plain[device].ravel()
        assert found.tobytes() == must.tobytes()


@given(
    st.sampled_from(sorted(redistribution.REDUCTIONS)),
    st.sampled_from(["int32", "uint8", "float16", "bfloat16", "float32", "float64"]),
    st.integers(1, 3),
    st.data(),
)
def test_reductions(op: str, dtype: str, terms: int, data: st.DataObject) -> None:
    """Terms are combined in the order of their numbers, in their dtype."""
    kind = np.dtype(dtype)
    is_whole = kind.kind in "iu"
    if (op == "avg" and is_whole) or (op in ("band", "bor", "bxor") and not is_whole):
        return
    arrays = [data.draw(bits(kind, (3,))) for _ in range(terms)]
    mesh, whole = sv.Mesh((terms,)), layouts.Replicate()
    if op in ("sum", "avg", "min", "max") and terms > 1:
        source = layouts.dtensor((3,), mesh, [layouts.Partial(op)])
        target = layouts.dtensor((3,), mesh, [whole])
        with np.errstate(all="ignore"):
            came = sv.redistribute(arrays, source, target, reduce=op)
            plain = redistribution.reduced(arrays, op)
        assert all(np.array_equal(each[0], plain, equal_nan=not is_whole) for each in came)
        assert came[0][0].dtype == plain.dtype
