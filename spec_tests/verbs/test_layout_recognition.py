"""Layouts are recognized from their regions: what a rule gives is found again, and nothing else
is."""

from itertools import permutations, product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import shardvar as sv
from shardvar.errors import UnknownKey
from shardvar.layout import div
from shardvar.layout.meshes import Layout, Shard, StridedShard, dtensor, fsdp, parameter_servers
from shardvar.layout.meshes.layout import Mesh
from shardvar.layout.partition import columns_of
from shardvar.verbs.holders import recognize


def distinct(layout: Layout) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the columns of the distinct regions of a layout, in another order."""
    regions = sorted(
        {region for device in range(layout.mesh.size) for region in layout.regions(device)},
        reverse=True,
    )
    return columns_of(regions, len(layout.shape))


def find_again(layout: Layout) -> Layout | None:
    return recognize(layout.shape, *distinct(layout))


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


def test_div_is_parameter_servers_where_it_is_not_chunk() -> None:
    found = find_again(parameter_servers((13, 4), Mesh((5,))))
    assert found == parameter_servers((13, 4), Mesh((5,)))
    assert found is not None
    assert "RFC 000" in found.rule


def test_a_grid_by_div_is_found() -> None:
    """What ``sv.save(partition=[5, 3])`` stores."""
    parts = sv.Partition.from_counts((13, 4), (5, 3)).parts
    found = recognize((13, 4), *columns_of(parts, 2))
    assert found is not None
    assert (found.mesh.shape, [found.regions(device) for device in range(15)]) == (
        (5, 3),
        [(part,) for part in parts],
    )
    assert "partition" in found.rule


def test_tensor_parallelism_under_fsdp_is_found_where_no_plainer_rule_is() -> None:
    """13 rows on (dp 2, tp 3) are 5 5 3, and then 3 2 3 2 2 1: neither chunk nor div."""
    layout = fsdp((13, 4), Mesh((2, 3), ("dp", "tp")), tp_dim=0)
    found = find_again(layout)
    assert found == layout
    assert found is not None
    assert "FSDP2" in found.rule


def test_the_order_of_regions_does_not_matter() -> None:
    rows = [((start, 0), (stop - start, 4)) for start, stop in div(8, 3)]
    for order in permutations(rows):
        offset, extent = (np.array(column) for column in zip(*order, strict=True))
        assert recognize((8, 4), offset, extent) == recognize(
            (8, 4), *map(np.array, zip(*rows, strict=True))
        )


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


def test_strides_are_not_a_layout_of_one_region_each() -> None:
    layout = dtensor((12,), Mesh((2,)), [StridedShard(0, 3)])
    found = find_again(layout)
    assert found is not None
    assert found.mesh.size == 6


def test_whole_tensors_are_on_one_device() -> None:
    for shape in [(), (3, 4), (0, 4)]:
        found = recognize(shape, *columns_of([sv.Region.whole(shape)], len(shape)))
        assert found == dtensor(shape, Mesh((1,)), [sv.layouts.Replicate()])


def test_a_reader_names_the_layout_of_a_key(tmp_path: Path) -> None:
    table = np.arange(52.0).reshape(13, 4)
    sv.save(tmp_path / "m", {"t": table, "s": np.float32(1)}, partition={"t": 5})
    with sv.open_checkpoint(tmp_path / "m") as reader:
        assert reader.layout("t") == parameter_servers((13, 4), Mesh((5,)))
        assert reader.layout("s") == dtensor((), Mesh((1,)), [sv.layouts.Replicate()])
        with pytest.raises(UnknownKey):
            reader.layout("nonesuch")
    sv.save(tmp_path / "odd", {"t": table}, partition=sv.PartitionSpec(splits=[[1, 8, 4]]))
    with sv.open_checkpoint(tmp_path / "odd") as reader:
        assert reader.layout("t") is None
