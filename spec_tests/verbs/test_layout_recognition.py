"""Layouts are recognized from their regions: what a rule gives is found again, and nothing else
is."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import UnknownKey
from shardvar.layout.meshes import (
    Layout,
    Replicate,
    Shard,
    StridedShard,
    dtensor,
    fsdp,
    parameter_servers,
)
from shardvar.layout.meshes.layout import Mesh
from shardvar.layout.partition import columns_of
from shardvar.verbs.holders import recognize


def find_again(layout: Layout) -> Layout | None:
    """What is recognized of the distinct regions of a layout, in another order."""
    return recognize(
        layout.shape, *columns_of(sorted(stored(layout), reverse=True), len(layout.shape))
    )


def stored(layout: Layout) -> set[sv.Region]:
    return {region for device in range(layout.mesh.size) for region in layout.regions(device)}


def test_chunk_on_every_axis_is_found_again() -> None:
    """Equal to the layout itself where each device holds something."""
    for shape, mesh in product([(7, 5), (4, 6), (9, 9)], [(1, 1), (2, 1), (1, 3), (2, 3), (3, 2)]):
        layout = dtensor(shape, Mesh(mesh), [Shard(0), Shard(1)])
        if all(layout.regions(device) for device in range(layout.mesh.size)):
            assert find_again(layout) == layout


def test_what_is_found_has_exactly_the_regions() -> None:
    """Also where devices are empty, replicate, or a smaller mesh has the same regions."""
    for rows, count in product(range(1, 20), range(1, 8)):
        for layout in (
            dtensor((rows, 2), Mesh((count,)), [Shard(0)]),
            parameter_servers((rows, 2), Mesh((count,))),
        ):
            found = find_again(layout)
            assert found is not None
            assert stored(found) == stored(layout)


@pytest.mark.parametrize(
    ("layout", "rule"),
    [
        (parameter_servers((13, 4), Mesh((5,))), "RFC 000"),
        (fsdp((13, 4), Mesh((2, 3), ("dp", "tp")), tp_dim=0), "FSDP2"),
        *((dtensor(shape, Mesh((1,)), [Replicate()]), "") for shape in ((), (3, 4))),
    ],
)
def test_a_layout_is_found_where_no_plainer_rule_is(layout: Layout, rule: str) -> None:
    """Parameter servers where div is not chunk; and 13 rows on (dp 2, tp 3) are 5 5 3, and then 3 2 3 2 2
    1: neither. Whole tensors are on one device."""
    found = find_again(layout)
    assert found == layout and rule in found.rule
    empty = recognize((0, 4), *columns_of([sv.Region.whole((0, 4))], 2))
    assert empty == dtensor((0, 4), Mesh((1,)), [Replicate()])


def test_strides_are_not_a_layout_of_one_region_each() -> None:
    found = find_again(dtensor((12,), Mesh((2,)), [StridedShard(0, 3)]))
    assert found is not None and found.mesh.size == 6


def test_a_grid_by_div_is_found() -> None:
    """What ``sv.save(partition=[5, 3])`` stores."""
    parts = sv.Partition.from_counts((13, 4), (5, 3)).parts
    found = recognize((13, 4), *columns_of(parts, 2))
    assert found is not None and found.mesh.shape == (5, 3) and "partition" in found.rule
    assert [found.regions(device) for device in range(15)] == [(part,) for part in parts]


@pytest.mark.parametrize(
    "regions",
    [
        [((0, 0), (1, 4)), ((1, 0), (3, 4))],
        [((0, 0), (4, 2)), ((0, 2), (2, 2)), ((2, 2), (2, 2))],
        [((0, 0), (2, 4))],
        [((0, 0), (2, 4)), ((0, 0), (2, 4))],
        [((0, 0), (2, 2)), ((2, 2), (2, 2)), ((0, 0), (2, 2)), ((2, 2), (2, 2))],
        [((0, 0), (3, 4)), ((1, 0), (3, 4))],
        [],
    ],
)
def test_other_regions_are_not_recognized(
    regions: list[tuple[tuple[int, int], tuple[int, int]]],
) -> None:
    """Sizes of no rule, no grid, holes, copies and overlaps."""
    offset, extent = (np.array([row[i] for row in regions], int).reshape(-1, 2) for i in (0, 1))
    assert recognize((4, 4), offset, extent) is None


def test_a_reader_names_the_layout_of_a_key(tmp_path: Path) -> None:
    tensors = {"t": np.arange(52.0).reshape(13, 4), "s": np.float32(1), "odd": np.zeros((13, 4))}
    cuts = {"t": 5, "odd": sv.PartitionSpec(splits=[[1, 8, 4]])}
    sv.save(tmp_path / "m", tensors, partition=cuts)
    with sv.open_checkpoint(tmp_path / "m") as reader:
        assert reader.layout("t") == parameter_servers((13, 4), Mesh((5,)))
        assert reader.layout("s") == dtensor((), Mesh((1,)), [Replicate()])
        assert reader.layout("odd") is None
        with pytest.raises(UnknownKey):
            reader.layout("nonesuch")
