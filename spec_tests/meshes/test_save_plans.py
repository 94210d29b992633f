"""Plans of checkpoints: laws of what ranks write and read. What torch's planners say is among the
peers' tests."""

from itertools import product
from math import prod

import numpy as np
import pytest

from shardvar.errors import ArgumentError, OutOfRange
from shardvar.layout.meshes.mesh import Mesh
from shardvar.layout.region import Region
from shardvar.layouts import (
    ReadItem,
    Replicate,
    SavedTensor,
    Shard,
    StridedShard,
    WriteItem,
    dcp_load_plan,
    dcp_save_plan,
    dtensor,
    local_shapes_and_offsets,
    torchsnapshot_shards,
    torchsnapshot_tensor,
)
from spec_tests.helpers.layout_tables import Case, cases, each_row
from spec_tests.meshes.test_dtensor_layouts import KINDS

KEEPS = [case for case in cases("dtensor") if "compute_local_shape_and_global_offset" in case]


@each_row(KEEPS)
def test_shapes_and_offsets_are_those_that_torch_said(case: Case) -> None:
    """Of empty and strided shards too."""
    placements = [
        KINDS[each["kind"]](**{name: value for name, value in each.items() if name != "kind"})
        for each in case["layout"]["placements"]
    ]
    shapes, offsets = local_shapes_and_offsets(
        case["shape"], Mesh(case["mesh"]["shape"]), placements
    )
    said = case["compute_local_shape_and_global_offset"]
    assert shapes.tolist() == [each["local_shape"] for each in said]
    assert offsets.tolist() == [each["global_offset"] for each in said]


@pytest.mark.parametrize("lowest", [False, True])
def test_every_element_is_written_once_and_read_where_it_is_held(lowest: bool) -> None:
    """For all placements of small meshes: the written regions tile, and what a rank reads is what
    it holds."""
    shape = (5, 3)
    for mesh in (Mesh((3,)), Mesh((2, 2)), Mesh((4, 2))):
        kinds = list(product((Replicate(), Shard(0), Shard(1)), repeat=mesh.rank))
        for source, target in product(kinds, kinds):
            plan = dcp_save_plan(
                {"t": SavedTensor(shape, source)}, mesh, dedup_save_to_lowest_rank=lowest
            )
            layout = dtensor(shape, mesh, source)
            stored = np.zeros(shape, np.int64)
            for rank, items in enumerate(plan):
                for item in items:
                    assert isinstance(item, WriteItem)
                    stored[item.region.slices] += 1
                    assert not item.region.size or item.region in layout.regions(rank)
            assert (stored == 1).all()
            saved = [item.region for items in plan for item in items]
            shapes, offsets = local_shapes_and_offsets(shape, mesh, target)
            for rank in range(mesh.size):
                region = Region(offsets[rank].tolist(), shapes[rank].tolist())
                got = np.zeros(region.shape, np.int64)
                for item in dcp_load_plan(saved, region):
                    assert isinstance(item, ReadItem)
                    part = Region(item.dest_offsets, item.lengths)
                    got[part.slices] += 1
                    inside = Region(item.storage_offsets, item.lengths)
                    assert Region((0, 0), saved[item.saved].shape).covers(inside)
                    assert [
                        a + b for a, b in zip(saved[item.saved].offset, inside.offset, strict=True)
                    ] == [a + b for a, b in zip(region.offset, part.offset, strict=True)]
                assert (got == 1).all()


def test_the_lowest_rank_writes_if_asked_and_else_the_one_that_was_given_least() -> None:
    whole = SavedTensor((4,), (Replicate(),))
    model = dict.fromkeys("abc", whole)
    ranks = [[item.key for item in items] for items in dcp_save_plan(model, Mesh((2,)))]
    assert ranks == [["a", "c"], ["b"]]
    assert [
        len(each) for each in dcp_save_plan(model, Mesh((2,)), dedup_save_to_lowest_rank=True)
    ] == [3, 0]
    # What was written counts by bytes.
    model = {
        name: SavedTensor((size,), (Replicate(),), 1)
        for name, size in (("a", 9), ("b", 1), ("c", 1))
    }
    assert [[item.key for item in items] for items in dcp_save_plan(model, Mesh((2,)))] == [
        ["a"],
        ["b", "c"],
    ]
    # Half of t is 4 bytes and s 5, and yet u goes to the rank that has s.
    model = {
        "t": SavedTensor((8,), (Shard(0),), 1),
        "s": SavedTensor((5,), (Replicate(),), 1),
        "u": whole,
    }
    assert [[item.key for item in items] for items in dcp_save_plan(model, Mesh((2,)))] == [
        ["t"],
        ["t", "s", "u"],
    ]
    # The shards of t weigh as much as all of it, and an empty tensor one byte.
    model = {
        "e": SavedTensor((0,), (Replicate(),)),
        "t": SavedTensor((8,), (Shard(0),), 1),
        "b": whole,
    }
    assert [[item.key for item in items] for items in dcp_save_plan(model, Mesh((2,)))] == [
        ["e", "t"],
        ["t", "b"],
    ]


def test_pieces_of_torchsnapshot_tile_and_are_as_small_as_asked() -> None:
    """All but single rows, which it does not cut."""
    for rows, columns, most in product(range(1, 9), range(1, 4), range(1, 40)):
        region = Region((2, 1), (rows, columns))
        for dim in (0, 1, -1):
            parts = torchsnapshot_shards(region, dim, 1, most)
            assert sum(part.size for part in parts) == region.size
            assert all(part.size <= most or part.shape[dim] == 1 for part in parts)
            assert all(region.covers(part) for part in parts)
        parts = torchsnapshot_tensor((rows, columns), 1, most)
        assert [part.offset[0] for part in parts] == [
            sum(each.shape[0] for each in parts[:n]) for n in range(len(parts))
        ]
        assert sum(prod(part.shape) for part in parts) == rows * columns
    assert [part.shape for part in torchsnapshot_tensor(())] == [(1,)]


def test_bad_input_is_refused() -> None:
    for call, error in (
        (lambda: torchsnapshot_shards(Region((0,), (0,))), ArgumentError),
        (lambda: torchsnapshot_shards(Region((0,), (2,)), 1), OutOfRange),
        (lambda: torchsnapshot_shards(Region((0,), (2,)), 0, 0), ArgumentError),
        (lambda: torchsnapshot_tensor((2,), 4, 0), ArgumentError),
        (lambda: torchsnapshot_tensor((0, 2)), ArgumentError),
        (lambda: dcp_load_plan([Region((0,), (2,))], Region((0, 0), (1, 1))), ArgumentError),
        (lambda: dcp_save_plan({"t": SavedTensor((4,), (Shard(1),))}, Mesh((2,))), OutOfRange),
        (lambda: dcp_save_plan({"t": SavedTensor((4,), ())}, Mesh((2,))), ArgumentError),
        (lambda: local_shapes_and_offsets((4,), Mesh((2,)), [StridedShard(0, 0)]), ArgumentError),
    ):
        with pytest.raises(error) as caught:
            call()
        assert caught.value.remedy
