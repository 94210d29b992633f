"""The proof of tilings: a flaw is found exactly where some element does not lie in one region, and
it is one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardvar.layout import Region
from shardvar.layout.region import find_flaw
from spec_tests.helpers.hypothesis_strategies import regions, tilings


@st.composite
def changed_tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Region]]:
    """A shape with elements, and a tiling of it of which regions may be lost, doubled and added."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    parts: list[Region | None] = list(draw(tilings(shape, 6)))
    for change in draw(st.lists(st.sampled_from(["lose", "double", "add"]), max_size=3)):
        if change == "lose" and parts:
            parts.pop(draw(st.integers(0, len(parts) - 1)))
        elif change == "double" and parts:
            parts.append(draw(st.sampled_from(parts)))
        elif change == "add":
            parts.append(draw(regions(len(shape), 5)).intersect(Region.whole(shape)))
    return shape, [part for part in parts if part is not None and part.size]


def marks_of(shape: tuple[int, ...], parts: list[Region]) -> np.ndarray:
    """The definition: the number of regions that hold each element."""
    marks = np.zeros(shape, int)
    for part in parts:
        marks[part.slices] += 1
    return marks


@given(changed_tilings())
def test_a_flaw_is_found_exactly_where_marking_every_element_finds_one(
    case: tuple[tuple[int, ...], list[Region]],
) -> None:
    """Its cell lies in exactly the regions that it names, wholly, and these are not one."""
    shape, parts = case
    columns = [
        np.array([getattr(part, name) for part in parts], np.int64) for name in ("offset", "shape")
    ]
    offset, extent = (column.reshape(len(parts), len(shape)) for column in columns)
    flaw = find_flaw(offset, extent, shape)
    marks = marks_of(shape, parts)
    assert (flaw is None) == bool((marks == 1).all())
    if flaw is not None:
        assert flaw.cell.size
        assert len(flaw.rows) != 1
        assert (marks[flaw.cell.slices] == len(flaw.rows)).all()
        assert all(parts[row].covers(flaw.cell) for row in flaw.rows)


def test_one_element_among_millions_is_found() -> None:
    """A grid of 40,000 regions, of which one lost its last element to the region of another."""
    index = np.stack(np.meshgrid(np.arange(200), np.arange(200), indexing="ij"), axis=-1).reshape(
        -1, 2
    )
    offset, shape = index * 5, np.full(index.shape, 5)
    assert find_flaw(offset, shape, (1000, 1000)) is None
    shape[777] = 4, 5
    flaw = find_flaw(offset, shape, (1000, 1000))
    assert flaw is not None
    assert (flaw.cell, flaw.rows) == (Region((19, 885), (1, 5)), ())
    shape[777] = 6, 5
    flaw = find_flaw(offset, shape, (1005, 1000))
    assert flaw is not None
    assert flaw.rows == (777, 977)


def test_a_shape_without_elements_has_no_flaw() -> None:
    assert find_flaw(np.zeros((0, 2), np.int64), np.zeros((0, 2), np.int64), (0, 4)) is None
