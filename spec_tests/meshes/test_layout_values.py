"""Meshes and layouts as values: coordinates, columns, replicas, terms, holders, and what their
constructors refuse."""

from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, OutOfRange
from shardvar.layout.meshes import (
    Layout,
    Partial,
    Replicate,
    Shard,
    StridedShard,
    dtensor,
    local_shapes_and_offsets,
    megatron,
    named_sharding,
    parameter_servers,
    plan_redistribution,
    replica_id,
)
from shardvar.layout.meshes.layout import Mesh


def test_devices_are_counted_in_c_order() -> None:
    for shape in [(), (1,), (4,), (2, 3), (2, 1, 3)]:
        mesh = Mesh(shape)
        assert [tuple(row) for row in mesh.coordinates().tolist()] == list(np.ndindex(*shape))
        assert [mesh.coordinate(device) for device in range(mesh.size)] == list(np.ndindex(*shape))
        assert mesh.devices == tuple(range(mesh.size))


def test_an_order_of_devices_moves_their_coordinates() -> None:
    """``devices[i]`` has the coordinate that device ``i`` has without an order."""
    order = (3, 1, 2, 0, 5, 4)
    plain, mesh = Mesh((3, 2)), Mesh((3, 2), devices=order)
    for place, device in enumerate(order):
        assert mesh.coordinate(device) == plain.coordinate(place)
        assert mesh.coordinates()[device].tolist() == plain.coordinates()[place].tolist()


def test_axes_are_found_by_name_and_by_position() -> None:
    mesh = Mesh([2, np.int64(3)], ["dp", "tp"])
    assert (mesh.axis("tp"), mesh.axis(0), mesh.axis(-1)) == (1, 0, 1)
    assert str(mesh) == "(dp=2, tp=3)"
    assert str(Mesh((2, 3))) == "(0=2, 1=3)"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("ab",), ArgumentTypeError),
        ((4,), ArgumentTypeError),
        (((2, 0),), ArgumentError),
        (((2, -1),), ArgumentError),
        (((2, 2), ("x",)), ArgumentError),
        (((2, 2), ("x", "x")), ArgumentError),
        (((2, 2), ("x", 1)), ArgumentTypeError),
        (((2, 2), "xy"), ArgumentTypeError),
        (((2, 2), 2), ArgumentTypeError),
        (((2, 2), None, (0, 1, 2)), ArgumentError),
        (((2, 2), None, (0, 1, 2, 2)), ArgumentError),
        (((2, 2), None, (1, 2, 3, 4)), ArgumentError),
        (((2**40, 2**40),), ArgumentError),
        (((1,) * 65,), ArgumentError),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(arguments: Any, error: type[ArgumentError]) -> None:
    with pytest.raises(error):
        Mesh(*arguments)


def test_what_a_mesh_does_not_have_is_refused() -> None:
    mesh = Mesh((2, 2), ("x", "y"))
    with pytest.raises(ArgumentError, match="no axis 'z'"):
        mesh.axis("z")
    with pytest.raises(ArgumentError, match="no axis None"):
        mesh.axis(None)  # type: ignore[arg-type]  # the subject of the test
    with pytest.raises(OutOfRange):
        mesh.axis(2)
    with pytest.raises(OutOfRange):
        mesh.coordinate(4)
    with pytest.raises(OutOfRange):
        mesh.coordinate(-1)
    with pytest.raises(ArgumentTypeError):
        mesh.coordinate("0")  # type: ignore[arg-type]  # the subject of the test
    with pytest.raises(ArgumentError, match="no axis 'x'"):
        Mesh((2,)).axis("x")


def test_a_column_that_is_given_is_copied_and_read_only() -> None:
    device = np.array([0, 1])
    layout = Layout((2,), Mesh((2,)), "by hand", device, np.array([[0], [1]]), np.array([[1], [1]]))
    device[0] = 1
    assert layout.device.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        layout.offset[0] = 1


def columns(device: Any, offset: Any, extent: Any) -> Layout:
    return Layout(
        (4, 4), Mesh((2,)), "by hand", np.array(device), np.array(offset), np.array(extent)
    )


@pytest.mark.parametrize(
    ("device", "offset", "extent"),
    [
        ([1, 0], [[0, 0], [0, 0]], [[1, 1], [1, 1]]),
        ([2], [[0, 0]], [[1, 1]]),
        ([-1], [[0, 0]], [[1, 1]]),
        ([0], [[0, 0]], [[0, 4]]),
        ([0], [[0, 0]], [[5, 4]]),
        ([0], [[-1, 0]], [[1, 4]]),
        ([0], [[0]], [[1]]),
        ([0], [[0, 0], [1, 0]], [[1, 1], [1, 1]]),
        ([[0]], [[0, 0]], [[1, 1]]),
    ],
)
def test_columns_that_are_not_regions_of_the_tensor_are_refused(
    device: Any, offset: Any, extent: Any
) -> None:
    with pytest.raises(LayoutError):
        columns(device, offset, extent)


@pytest.mark.parametrize(
    "pending", [[(1, "sum")], [(-1, "sum")], [(0, "sum"), (0, "sum")], [(0, "mean")]]
)
def test_pending_names_axes_of_the_mesh_once_and_a_reduction(pending: Any) -> None:
    empty = np.zeros((0, 1), int)
    with pytest.raises(ArgumentError):
        Layout((4,), Mesh((2,)), "by hand", np.zeros(0, int), empty, empty, pending)


def test_the_same_regions_in_another_order_are_not_replicas() -> None:
    layout = columns([0, 0, 1, 1], [[0, 0], [2, 0], [2, 0], [0, 0]], [[1, 4]] * 4)
    assert layout.replicas == ((0,), (1,))


def test_terms_number_the_devices_of_pending_axes() -> None:
    """Devices with the same regions and the same number hold the same values; sums and averages are
    apart."""
    layout = dtensor((4,), Mesh((2, 2, 2)), [Partial("sum"), Replicate(), Partial("avg")])
    assert {op: terms.tolist() for op, terms in layout.terms.items()} == {
        "sum": [0, 0, 0, 0, 1, 1, 1, 1],
        "avg": [0, 1, 0, 1, 0, 1, 0, 1],
    }
    both = dtensor((4,), Mesh((2, 2)), [Partial(), Partial()])
    assert both.terms["sum"].tolist() == [0, 1, 2, 3]
    assert dtensor((4,), Mesh((2, 2)), [Shard(0), Replicate()]).terms == {}


def test_local_and_global_agree() -> None:
    """A device holds an element exactly if it is among the holders of its index."""
    for placements in (
        [Shard(0), Shard(1)],
        [StridedShard(0, 3), Shard(0)],
        [Replicate(), Shard(1)],
    ):
        layout = dtensor((7, 4), Mesh((2, 3)), placements)
        for index in np.ndindex(7, 4):
            expected = [
                device
                for device in range(6)
                if any(region.covers(sv.Region(index, (1, 1))) for region in layout.regions(device))
            ]
            assert layout.holders(index) == tuple(expected)


@pytest.mark.parametrize("index", [(7, 0), (0,), (0, 0, 0), (-1, 0), ()])
def test_an_element_that_is_not_there_has_no_holders_and_a_device_no_regions(
    index: tuple[int, ...],
) -> None:
    with pytest.raises(ArgumentError):
        dtensor((7, 4), Mesh((2,)), [Shard(0)]).holders(index)
    with pytest.raises(OutOfRange):
        dtensor((7, 4), Mesh((2,)), [Shard(0)]).regions(2)


def test_a_layout_says_its_shape_its_mesh_what_is_pending_and_its_rule() -> None:
    layout = dtensor((7, 4), Mesh((2, 2), ("dp", "tp")), [Partial("sum"), Shard(0)])
    assert repr(layout) == (
        "<Layout of (7, 4) on the mesh (dp=2, tp=2), sum pending over axis 0: "
        "DTensor placements, from left to right (torch 2.13)>"
    )


def test_the_text_of_a_layout_lists_groups_and_their_regions() -> None:
    layout = dtensor((5, 4), Mesh((4, 2), ("dp", "tp")), [Shard(0), Partial()])
    assert str(layout).splitlines() == [
        "(5, 4) on the mesh (dp=4, tp=2): DTensor placements, from left to right (torch 2.13)",
        "sum pending over the mesh axis tp: devices along it hold terms",
        "  0, 1  [0:2, 0:4]",
        "  2, 3  [2:4, 0:4]",
        "  4, 5  [4:5, 0:4]",
        "  6, 7  nothing",
    ]


def test_the_text_of_a_large_layout_counts_what_it_leaves_out() -> None:
    assert (
        str(dtensor((64,), Mesh((64,)), [Shard(0)])).splitlines()[-1]
        == "  and 48 more groups of devices"
    )
    assert (
        str(dtensor((4,), Mesh((20,)), [Replicate()]))
        .splitlines()[1]
        .endswith("14, 15 and 4 more  [0:4]")
    )
    assert (
        str(dtensor((64,), Mesh((2,)), [StridedShard(0, 32)]))
        .splitlines()[1]
        .endswith(" and 16 more")
    )
    assert (
        str(dtensor((4,), Mesh((2,)), [Partial("max")]))
        .splitlines()[1]
        .startswith("max pending over the mesh axis 0")
    )


@pytest.mark.parametrize("count", [1, 2])
def test_terms_of_several_devices_have_no_parts_and_those_of_one_are_values(count: int) -> None:
    layout = dtensor((4, 3), Mesh((count, 2)), [Partial(), Shard(0)])
    if count == 1:
        device, offset, shape = layout.distinct_parts()
        assert device.tolist() == [0, 1]
        assert (offset.tolist(), shape.tolist()) == ([[0, 0], [2, 0]], [[2, 3], [2, 3]])
    else:
        with pytest.raises(LayoutError, match="terms"):
            layout.distinct_parts()
    # A tensor without elements exists, though no device holds a region.
    device, offset, shape = dtensor(
        (4, 0), Mesh((count, 2)), [Replicate(), Shard(0)]
    ).distinct_parts()
    assert (device.tolist(), offset.tolist(), shape.tolist()) == ([0], [[0, 0]], [[4, 0]])


@pytest.mark.parametrize("mesh", [None, (2,), 2, "dp"])
def test_what_is_no_mesh_is_refused_by_every_layout(mesh: Any) -> None:
    for call in (
        lambda: dtensor((4,), mesh, [Shard(0)]),
        lambda: local_shapes_and_offsets((4,), mesh, [Shard(0)]),
        lambda: named_sharding((4,), mesh, ()),
        lambda: megatron((4,), mesh),
        lambda: replica_id(mesh, 0),
        lambda: parameter_servers((4,), mesh),
    ):
        with pytest.raises(ArgumentTypeError, match="Mesh"):
            call()


def test_a_redistribution_draws_itself() -> None:
    before, after = (dtensor((6, 4), Mesh((3,)), [each]) for each in (Shard(0), Replicate()))
    html = str(plan_redistribution(before, after)._repr_html_())
    assert "all_gather" in html and "[6, 4]" in html and "48 elements cross" in html
