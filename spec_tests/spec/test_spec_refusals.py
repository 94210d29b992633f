"""What the plain rules refuse, and the words of their judgements."""

import numpy as np
import pytest

from shardvar.spec.partitions import coverage
from shardvar.spec.variables import assign


def test_parts_outside_of_a_shape_are_told_from_holes_and_overlaps() -> None:
    for parts, word in (
        ([((0,), (2,)), ((2,), (3,))], "tiled"),
        ([((0,), (2,)), ((3,), (2,))], "hole"),
        ([((0,), (3,)), ((2,), (3,))], "overlap"),
        ([((0,), (2,)), ((2,), (4,))], "outside"),
        ([((-1,), (6,))], "outside"),
        ([((0,), (5,)), ((6,), (0,))], "outside"),
        ([((0,), (5,)), ((5,), (0,))], "tiled"),
    ):
        assert coverage([5], parts) == word, parts


@pytest.mark.parametrize("part", [((0,), (2,)), ((0, 0, 0), (2, 2, 1)), ((0, 0), (2,))])
def test_a_part_of_another_rank_is_refused(part: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="zip"):
        coverage([2, 2], [part])


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), ()])
def test_a_value_of_another_shape_is_not_assigned(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        assign([np.zeros(2), np.zeros(1)], np.ones(shape))
