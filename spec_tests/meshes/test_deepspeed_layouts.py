"""Layouts of DeepSpeed's ZeRO, beside its documented rule carried out on arrays of element
numbers."""

from itertools import product
from math import prod

import numpy as np
import pytest

from shardvar.errors import ArgumentError
from shardvar.layout.meshes import deepspeed
from shardvar.layout.meshes.layout import Mesh
from spec_tests.helpers.layout_tables import local_positions

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


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_stage_three_cuts_each_parameter(ranks: int) -> None:
    for shape in {shape for shapes in SHAPES for shape in shapes}:
        count = prod(shape)
        padded = np.pad(np.arange(count), (0, -count % ranks), constant_values=-1).reshape(
            ranks, -1
        )
        [layout] = deepspeed([shape], Mesh((ranks,)), 3)
        for rank in range(ranks):
            assert local_positions(layout, rank) == [
                number for number in padded[rank].tolist() if number >= 0
            ]


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
