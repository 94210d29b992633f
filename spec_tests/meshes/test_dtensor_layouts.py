"""DTensor's layouts: every case that torch 2.13 recorded, and the laws of placements on all small
meshes."""

from typing import Any

import pytest

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.meshes import Layout, Partial, Replicate, Shard, StridedShard, dtensor
from shardvar.layout.meshes.layout import Mesh
from shardvar.spec.meshes import by_placements, elements
from spec_tests.helpers.layout_tables import (
    Case,
    cases,
    each_row,
    held,
    local_positions,
    placements_of,
    recorded,
)


def layout_of(case: Case) -> Layout:
    return dtensor(case["shape"], Mesh(case["mesh"]["shape"]), placements_of(case["layout"]))


@each_row(cases("dtensor"))
def test_a_device_holds_what_it_holds_in_torch(case: Case) -> None:
    """Regions in the order of the device, groups of equal devices, and pending reductions."""
    layout = layout_of(case)
    assert held(layout) == recorded(case)
    assert [list(group) for group in layout.replicas] == case["replicas"]
    assert list(layout.pending) == [(each["axis"], each["op"]) for each in case["pending"]]


@each_row(cases("dtensor", refused=True))
def test_what_torch_refuses_is_refused(case: Case) -> None:
    with pytest.raises(ArgumentError) as caught:
        layout_of(case)
    assert caught.value.remedy


def test_the_regions_of_a_device_come_in_the_order_of_its_local_tensor() -> None:
    """Along each axis: a device that holds rows 0, 1, 4 keeps them in that order, also where they
    were cut twice."""
    layout = dtensor((12,), Mesh((2, 2)), [StridedShard(0, 3), StridedShard(0, 2)])
    plain = by_placements([12], [2, 2], [("strided", 0, 3), ("strided", 0, 2)])
    assert [local_positions(layout, device) for device in range(4)] == [
        elements(each, [12]) for each in plain
    ]


def test_two_spellings_of_one_layout_are_equal_and_hash_alike() -> None:
    """Negative dims, strides of one range, meshes of other shapes, and shards over axes of one
    device."""
    one = dtensor((8, 4), Mesh((4,)), [Shard(0)])
    for other in (
        dtensor((8, 4), Mesh((4,)), [Shard(-2)]),
        dtensor((8, 4), Mesh((4,), ("x",)), [StridedShard(0, 1)]),
        dtensor((8, 4), Mesh((2, 2)), [Shard(0), Shard(0)]),
        dtensor((8, 4), Mesh((4, 1)), [Shard(0), Replicate()]),
        dtensor((8, 4), Mesh((4, 1)), [Shard(0), Partial()]),
    ):
        assert one == other
        assert hash(one) == hash(other)


def test_layouts_that_differ_are_not_equal() -> None:
    mesh = Mesh((2, 2))
    different = [
        dtensor((4, 4), mesh, [Replicate(), Replicate()]),
        dtensor((4, 4), mesh, [Partial("sum"), Replicate()]),
        dtensor((4, 4), mesh, [Replicate(), Partial("sum")]),
        dtensor((4, 4), mesh, [Partial("max"), Replicate()]),
        dtensor((4, 4), mesh, [Shard(0), Replicate()]),
        dtensor((4, 4), mesh, [Shard(0), Shard(0)]),
        dtensor((4, 4), mesh, [StridedShard(0, 2), Shard(0)]),
        dtensor((4, 4), Mesh((2,)), [Replicate()]),
        dtensor((0, 4), mesh, [Replicate(), Replicate()]),
        dtensor((0, 5), mesh, [Replicate(), Replicate()]),
    ]
    assert len(set(different)) == len(different)
    assert different[0] != "a layout"


def test_a_factor_far_above_the_extent_costs_no_more_than_the_extent() -> None:
    for factor in (1000, 1001, 10**15, 10**30):
        layout = dtensor((1000,), Mesh((64,)), [StridedShard(0, factor)])
        assert held(layout)[0] == [((0,), (1000,))]
        assert len(layout.device) == 1


@pytest.mark.parametrize(
    ("placements", "error"),
    [
        (Shard(0), ArgumentTypeError),
        (["S(0)"], ArgumentTypeError),
        ([Shard("0")], ArgumentTypeError),  # type: ignore[arg-type]  # the subject of the test
        ([StridedShard(0, 1.5)], ArgumentTypeError),  # type: ignore[arg-type]  # the subject of the test
        ([StridedShard(2, 2)], OutOfRange),
        ([Partial("mean")], ArgumentError),
        ([Partial(["sum"])], ArgumentError),  # type: ignore[arg-type]  # the subject of the test
        ([], ArgumentError),
    ],
)
def test_bad_placements_are_refused(placements: Any, error: type[ArgumentError]) -> None:
    with pytest.raises(error):
        dtensor((4, 4), Mesh((2,)), placements)


def test_an_extent_that_no_tensor_has_is_refused() -> None:
    assert held(dtensor((2**62,), Mesh((2,)), [Shard(0)]))[1] == [((2**61,), (2**61,))]
    with pytest.raises(ArgumentError, match="At most"):
        dtensor((2**62 + 1,), Mesh((2,)), [Shard(0)])


def test_the_failure_of_a_table_names_the_row() -> None:
    def fails_in_the_second(case: Case) -> None:
        assert case["id"] == "first"

    with pytest.raises(AssertionError) as caught:
        each_row([{"id": "first"}, {"id": "second"}])(fails_in_the_second)()
    assert caught.value.__notes__[0] == "This was the row second."
