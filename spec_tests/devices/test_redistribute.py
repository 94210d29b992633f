"""Redistribution carried out: every element ends where it must, and the ledger counts what the plan
says."""

from itertools import product
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import ArgumentError, ArgumentTypeError, DeviceFull, LayoutError
from shardvar.layout.meshes import (
    Layout,
    Partial,
    Replicate,
    Shard,
    StridedShard,
    dtensor,
    plan_redistribution,
)
from shardvar.layout.meshes.dtensor import DTensorPlacement
from shardvar.reference.devices import Device
from spec_tests.helpers.thoroughness import stride

R = Replicate()
CUTS: tuple[DTensorPlacement, ...] = (R, Shard(0), Shard(1), StridedShard(0, 3))


def parts_of(whole: np.ndarray[Any, Any], layout: Layout) -> list[list[np.ndarray[Any, Any]]]:
    """Return what each device holds: its regions of the whole array."""
    return [
        [whole[region.slices] for region in layout.regions(device)]
        for device in range(layout.mesh.size)
    ]


def lists(parts: Any) -> list[list[Any]]:
    return [[array.tolist() for array in arrays] for arrays in parts]


def test_every_element_ends_where_it_must_and_the_ledger_counts_the_plan() -> None:
    """From layouts to others on small meshes: the arrays of the target, the plan's bytes and
    messages."""
    for shape, mesh in product(((5, 3), (2, 4)), ((1,), (3,), (2, 2), (3, 2))):
        whole = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
        layouts = [
            dtensor(shape, sv.Mesh(mesh), placements)
            for placements in product(CUTS, repeat=len(mesh))
        ]
        for source, target in [*product(layouts, layouts)][:: stride(5)]:
            with sv.track_transfers() as ledger:
                result = sv.redistribute(parts_of(whole, source), source, target)
            assert lists(result) == lists(parts_of(whole, target))
            assert all(array.dtype == np.int16 for arrays in result for array in arrays)
            plan = plan_redistribution(source, target)
            assert (ledger.nbytes, ledger.messages) == (plan.sent(2).sum(), plan.messages.sum())


def test_the_ledger_counts_each_pair_of_devices() -> None:
    source, target = (dtensor((6, 4), sv.Mesh((3,)), [each]) for each in (Shard(0), R))
    devices = [Device(f"worker:{number}/GPU:0") for number in range(3)]
    with sv.track_transfers() as ledger:
        sv.redistribute(parts_of(np.zeros((6, 4)), source), source, target, devices=devices)
    assert {
        (row.operation, row.source, row.target, row.nbytes, row.messages)
        for row in ledger.transfers
    } == {
        ("redistribute", a.name, b.name, 64, 1) for a, b in product(devices, devices) if a is not b
    }


@pytest.mark.sample(5)
@pytest.mark.parametrize("op", ["sum", "avg", "min", "max"])
@pytest.mark.parametrize("after", list(product((R, Shard(0), Shard(1)), repeat=2)), ids=str)
def test_terms_become_values_by_the_named_reduction(
    op: str, after: tuple[DTensorPlacement, ...]
) -> None:
    """The value is the reduction of the terms of all devices along the axis, by NumPy."""
    mesh = sv.Mesh((3, 2))
    source, target = dtensor((5, 4), mesh, [Partial(op), Shard(0)]), dtensor((5, 4), mesh, after)
    terms = np.random.default_rng(7).integers(-9, 9, (3, 5, 4)).astype(np.float32)
    parts = [parts_of(terms[device // 2], source)[device] for device in range(6)]
    with sv.track_transfers() as ledger:
        result = sv.redistribute(parts, source, target, reduce=op)
    combine = {"sum": np.sum, "avg": np.mean, "min": np.min, "max": np.max}[op]
    assert lists(result) == lists(parts_of(combine(terms, axis=0), target))
    assert ledger.nbytes == plan_redistribution(source, target, reduce=op).sent(4).sum()


@pytest.mark.parametrize("op", ["product", "band", "bor", "bxor"])
def test_reductions_that_dtensor_does_not_distribute(op: str) -> None:
    mesh, rows = sv.Mesh((2,)), (np.array([0, 1]), np.zeros((2, 1)), np.full((2, 1), 4))
    source, target = Layout((4,), mesh, "terms", *rows, ((0, op),)), dtensor((4,), mesh, [Shard(0)])
    terms = np.array([[1, 2, 3, 4], [5, 6, 7, 9]])
    function = {
        "product": np.multiply,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }[op]
    result = sv.redistribute(list(terms), source, target, reduce=op)
    assert np.concatenate([arrays[0] for arrays in result]).tolist() == function(*terms).tolist()


def test_memory_is_that_of_the_plan_and_is_given_back() -> None:
    """The peak of each device is source and target together; afterwards only the target is
    counted."""
    source, target = (
        dtensor((7, 4), sv.Mesh((2, 2)), each) for each in ([Shard(0), Shard(1)], [Shard(1), R])
    )
    plan = plan_redistribution(source, target)
    devices = [
        Device(f"GPU:{number}", memory_limit=int(plan.peak(8)[number])) for number in range(4)
    ]
    parts = parts_of(
        np.arange(28.0).reshape(7, 4), source
    )  # which live on here, and not on the devices
    result = sv.redistribute(parts, source, target, devices=devices)
    assert [device.peak for device in devices] == plan.peak(8).tolist()
    assert [device.used for device in devices] == [
        sum(array.nbytes for array in arrays) for arrays in result
    ]
    del result
    assert [device.used for device in devices] == [0] * 4


def test_a_device_that_is_too_small_is_full_before_anything_moves() -> None:
    source, target = (dtensor((8, 4), sv.Mesh((2,)), [each]) for each in (Shard(0), R))
    devices = [Device("GPU:0"), Device("GPU:1", memory_limit=8 * 16 + 8 * 32 - 1)]
    with sv.track_transfers() as ledger, pytest.raises(DeviceFull):
        sv.redistribute(parts_of(np.zeros((8, 4)), source), source, target, devices=devices)
    assert ledger.nbytes == 0
    assert [device.used for device in devices] == [0, 0]


def test_the_values_that_are_given_are_not_changed_and_not_shared() -> None:
    layout = dtensor((4,), sv.Mesh((2,)), [Shard(0)])
    given = [np.array([1, 2]), np.array([3, 4])]
    result = sv.redistribute(given, layout, layout)
    result[0][0][:] = 9
    assert lists([given]) == [[[1, 2], [3, 4]]]


def test_scalars_and_empty_shards() -> None:
    mesh = sv.Mesh((3,))
    rows, whole = (dtensor((2, 2), mesh, [each]) for each in (Shard(0), R))
    assert lists(sv.redistribute([np.array([[1, 2]]), np.array([[3, 4]]), []], rows, whole))[2] == [
        [[1, 2], [3, 4]]
    ]
    terms, value = (dtensor((), mesh, [each]) for each in (Partial(), R))
    scalars = [np.array(1.0), np.array(2.0), np.array(4.0)]
    assert lists(sv.redistribute(scalars, terms, value, reduce="sum")) == [[7.0]] * 3


HALVES = [np.zeros((2, 2)), np.zeros((2, 2))]


@pytest.mark.parametrize(
    ("parts", "options", "error", "words"),
    [
        (HALVES[:1], {}, LayoutError, "Parts of 1 devices"),
        (
            [HALVES[0], np.zeros((2, 3))],
            {},
            LayoutError,
            r"Device 1 is given arrays of the shapes \[\(2, 3\)\]",
        ),
        ([HALVES[0], []], {}, LayoutError, "Device 1"),
        ([HALVES[0], HALVES[1].astype(np.int8)], {}, LayoutError, "dtypes"),
        (
            HALVES,
            {"devices": [Device("GPU:0")]},
            ArgumentError,
            "1 devices are given for meshes of 2",
        ),
        (HALVES, {"devices": [Device("GPU:0")] * 2}, ArgumentError, "1 devices"),
        (HALVES, {"devices": ["GPU:0", "GPU:1"]}, ArgumentTypeError, "'GPU:0' is not a device"),
        (HALVES, {"reduce": "sum"}, LayoutError, "not pending"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    parts: Any, options: Any, error: type[Exception], words: str
) -> None:
    source, target = (dtensor((4, 2), sv.Mesh((2,)), [each]) for each in (Shard(0), R))
    with pytest.raises(error, match=words):
        sv.redistribute(parts, source, target, **options)


@pytest.mark.parametrize(
    ("op", "dtype"), [("avg", np.int32), ("band", np.float32), ("sum", object)]
)
def test_a_reduction_that_needs_another_dtype_is_refused(op: str, dtype: type) -> None:
    mesh, rows = sv.Mesh((2,)), (np.array([0, 1]), np.zeros((2, 1)), np.full((2, 1), 4))
    source, target = Layout((4,), mesh, "terms", *rows, ((0, op),)), dtensor((4,), mesh, [R])
    with pytest.raises(ArgumentError, match="not of that dtype"):
        sv.redistribute(
            [np.full(4, b"", dtype) if dtype is object else np.zeros(4, dtype)] * 2,
            source,
            target,
            reduce=op,
        )
