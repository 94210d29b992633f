"""FSDP's layouts: every case that torch 2.13 recorded, both definitions where torch has two, and
flat parameters."""

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from shardvar.errors import ArgumentError, LayoutError, OutOfRange
from shardvar.layout.meshes import Layout, deepspeed, dtensor, fsdp, fsdp_flat, fsdp_placements
from shardvar.layout.meshes.layout import Mesh
from spec_tests.helpers.layout_tables import (
    Case,
    cases,
    each_row,
    held,
    local_positions,
    placements_of,
    recorded,
)

PER_PARAMETER = ("fsdp2", "hsdp", "fsdp2_tp", "hsdp_tp")
FLAT = ("fsdp1", "fsdp1_no_shard")


def mesh_of(case: Case) -> Mesh:
    return Mesh(case["mesh"]["shape"], case["mesh"]["axes"])


def asked(case: Case) -> dict[str, Any]:
    """Return the arguments of a recorded case."""
    return {name: case["layout"][name] for name in ("fsdp_dim", "tp_dim") if name in case["layout"]}


def by_placements(case: Case) -> Layout:
    given = fsdp_placements(case["shape"], mesh_of(case), **asked(case))
    return dtensor(case["shape"], mesh_of(case), given)


@each_row(cases("fsdp", *PER_PARAMETER))
def test_a_parameter_has_the_placements_and_a_device_the_regions_of_torch(case: Case) -> None:
    """And the two definitions differ exactly where the table says so, by the regions that it
    lists."""
    given = fsdp_placements(case["shape"], mesh_of(case), **asked(case))
    assert list(given) == placements_of(case["layout"])
    shards = fsdp(case["shape"], mesh_of(case), **asked(case))
    assert held(shards) == recorded(case)
    assert [list(group) for group in shards.replicas] == case["replicas"]
    assert (by_placements(case) != shards) == case.get("rule_disagrees", False)
    for device, regions in enumerate(case.get("placement_rule_regions", [])):
        expected = [(tuple(each["offset"]), tuple(each["shape"])) for each in regions]
        assert held(by_placements(case))[device] == expected


@each_row(cases("fsdp", *PER_PARAMETER, refused=True))
def test_what_fully_shard_refuses_is_refused(case: Case) -> None:
    with pytest.raises(LayoutError) as caught:
        fsdp(case["shape"], mesh_of(case), **asked(case))
    assert caught.value.remedy


def test_a_layout_says_which_definition_it_follows() -> None:
    mesh = Mesh((3, 2), ("dp", "tp"))
    assert "shards" in fsdp((7,), mesh, tp_dim=0).rule
    assert "placements" in dtensor((7,), mesh, fsdp_placements((7,), mesh, tp_dim=0)).rule


def test_the_definitions_agree_where_tensor_parallelism_divides_and_for_two_devices() -> None:
    """Among 1 to 40 rows on meshes up to (5, 5), no other pair of sizes agrees always."""
    differ = set()
    for rows, dp, tp in product(range(1, 41), range(2, 6), range(2, 6)):
        mesh = Mesh((dp, tp), ("dp", "tp"))
        if fsdp((rows,), mesh, tp_dim=0) != dtensor(
            (rows,), mesh, fsdp_placements((rows,), mesh, tp_dim=0)
        ):
            assert rows % tp
            differ.add((dp, tp))
    assert differ == {(dp, tp) for dp in range(3, 6) for tp in range(2, 6)}


@each_row(cases("fsdp", *FLAT))
def test_a_device_holds_the_ranges_of_a_flat_parameter(case: Case) -> None:
    """The elements of each parameter that a device holds are the range that torch recorded, in
    order."""
    layouts = fsdp_flat(
        case["tensors"],
        mesh_of(case),
        use_orig_params=case["layout"]["use_orig_params"],
        no_shard=case["group"] == "fsdp1_no_shard",
    )
    for device in case["devices"]:
        for layout, expected in zip(layouts, device["parameters"], strict=True):
            start, stop = (expected["start"], expected["stop"]) if expected else (0, 0)
            assert local_positions(layout, device["device"]) == list(range(start, stop))


@each_row(cases("fsdp", *FLAT, refused=True))
def test_a_scalar_in_a_flat_parameter_is_refused(case: Case) -> None:
    with pytest.raises(ArgumentError, match="scalar"):
        fsdp_flat(case["tensors"], mesh_of(case), use_orig_params=case["layout"]["use_orig_params"])


def test_alignment_counts_bytes() -> None:
    """A second parameter begins at element 16 / itemsize: on one device an element, that is the
    device's number."""
    for itemsize, begin in ((1, 16), (2, 8), (4, 4), (8, 2), (16, 1), (32, 1)):
        first, second = fsdp_flat([(1,), (1,)], Mesh((begin + 1,)), itemsize=itemsize)
        assert (first.holders((0,)), second.holders((0,))) == ((0,), (begin,))


def test_hybrid_shards_replicate_over_the_first_axis() -> None:
    layouts = fsdp_flat([(5, 3)], Mesh((2, 3), ("replicate", "shard")))
    assert layouts[0].replicas == ((0, 3), (1, 4), (2, 5))


@pytest.mark.parametrize(
    ("shape", "mesh", "dims", "error"),
    [
        ((), Mesh((2,)), {}, OutOfRange),
        ((4,), Mesh((2,)), {"fsdp_dim": 1}, OutOfRange),
        ((4,), Mesh((2, 2), ("dp", "tp")), {"tp_dim": 1}, OutOfRange),
        ((4,), Mesh((2,), ("tp",)), {}, ArgumentError),
        ((4,), Mesh((2, 2, 2)), {}, ArgumentError),
        ((4,), Mesh((2, 2), ("tp", "ep")), {}, ArgumentError),
        ((4,), Mesh((2, 2)), {"tp_dim": 0}, ArgumentError),
        ((4, 5), Mesh((2,)), {"fsdp_dim": -1}, LayoutError),
    ],
)
def test_bad_arguments_are_refused(
    shape: Any, mesh: Mesh, dims: Any, error: type[ArgumentError]
) -> None:
    with pytest.raises(error) as caught:
        fsdp(shape, mesh, **dims)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "arguments", [{"mesh": Mesh((2, 2, 2))}, {"mesh": Mesh(())}, {"itemsize": 0}]
)
def test_bad_flat_arguments_are_refused(arguments: Any) -> None:
    with pytest.raises(ArgumentError):
        fsdp_flat([(4,)], **{"mesh": Mesh((2,)), **arguments})


def test_no_parameters_have_no_layouts() -> None:
    assert fsdp_flat([], Mesh((2,))) == ()


SHAPES = [[(5, 3), (3,), (2, 2, 3)], [(1,)], [(7,), (), (4, 2)], [(0, 3), (3,)]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("shapes", SHAPES)
def test_stages_one_and_two_cut_one_padded_buffer(
    shapes: list[tuple[int, ...]], ranks: int
) -> None:
    """Parameters in their order or round robin, -1 for padding to a multiple of 2 * ranks."""
    for stage, turns in product((1, 2), (False, True)):
        order = (
            [n for turn in range(ranks) for n in range(turn, len(shapes), ranks)]
            if turns
            else range(len(shapes))
        )
        flat = [(number, element) for number in order for element in range(prod(shapes[number]))]
        flat += [(-1, -1)] * (-len(flat) % (2 * ranks))
        parts = np.array(flat, int).reshape(ranks, -1, 2)
        layouts = deepspeed(shapes, Mesh((ranks,)), stage, round_robin_gradients=turns)
        for (number, layout), rank in product(enumerate(layouts), range(ranks)):
            mine = parts[rank][parts[rank][:, 0] == number][:, 1].tolist()
            assert local_positions(layout, rank) == mine


def test_an_axis_in_front_replicates_and_others_are_refused() -> None:
    [layout] = deepspeed([(4, 3)], Mesh((2, 3)), 3)
    assert layout.replicas == ((0, 3), (1, 4), (2, 5))
    for stage, mesh, turns in (
        (0, Mesh((2,)), False),
        (3, Mesh((2,)), True),
        (1, Mesh((1, 1, 2)), False),
    ):
        with pytest.raises(ArgumentError) as caught:
            deepspeed([(4,)], mesh, stage, round_robin_gradients=turns)
        assert caught.value.remedy
