"""The overlap search: equal to the quadratic definition, and never quadratic itself. Work is
counted, not timed."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.layout import Region, region
from shardvar.layout.region import find_flaw, find_overlap, overlapping_pairs
from spec_tests.helpers import hypothesis_strategies as strategies

Regions = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


@st.composite
def regions(draw: st.DrawFn, rank: int, max_count: int = 24) -> Regions:
    """Columns of regions in a small space, so that many are identical, touch, straddle or hold each
    other."""
    count, extent = draw(st.integers(0, max_count)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.integers(0, extent, (count, rank)), rng.integers(
        0, draw(st.integers(1, 9)) + 1, (count, rank)
    )


def plain_pairs(a: Regions, b: Regions) -> list[tuple[int, int]]:
    """The definition: every pair is looked at."""
    found = []
    for i, (offset_a, shape_a) in enumerate(zip(*a, strict=True)):
        for j, (offset_b, shape_b) in enumerate(zip(*b, strict=True)):
            low = np.maximum(offset_a, offset_b)
            high = np.minimum(offset_a + shape_a, offset_b + shape_b)
            if (low < high).all():
                found.append((i, j))
    return found


def all_pairs(a: Regions, b: Regions) -> list[tuple[int, int]]:
    return [
        pair
        for i, j in overlapping_pairs(*a, *b)
        for pair in zip(i.tolist(), j.tolist(), strict=True)
    ]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("slack", "batch"), [(8, 1 << 20), (0, 1 << 20), (0, 5), (1, 3)])
@pytest.mark.parametrize("rank", [0, 1, 2, 3, 4])
def test_every_overlapping_pair_is_found_once(
    rank: int, slack: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without slack space is cut as far as it can be; with small batches the candidates come in
    many."""
    monkeypatch.setattr(region, "_SLACK", slack)
    monkeypatch.setattr(region, "_BATCH", batch)

    @given(regions(rank), regions(rank))
    def holds(a: Regions, b: Regions) -> None:
        assert sorted(all_pairs(a, b)) == plain_pairs(a, b)

    holds()


@pytest.mark.parametrize("slack", [8, 0])
def test_a_pair_of_rows_overlaps_exactly_if_one_is_found(
    slack: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region, "_SLACK", slack)

    @given(st.integers(0, 3).flatmap(regions))
    def holds(a: Regions) -> None:
        expected = [(i, j) for i, j in plain_pairs(a, a) if i < j]
        found = find_overlap(*a)
        assert (found in expected) if expected else (found is None)

    holds()


def rows(length: int, count: int, width: int = 4) -> Regions:
    """``count`` row slices of a [length, width] tensor."""
    cuts = np.arange(count + 1) * length // count
    offset = np.stack([cuts[:-1], np.zeros(count, np.int64)], axis=1)
    return offset, np.stack([np.diff(cuts), np.full(count, width)], axis=1)


def grid(*counts: int, extent: int = 5, shift: int = 0) -> Regions:
    """A grid of regions in any number of axes."""
    index = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), axis=-1).reshape(
        -1, len(counts)
    )
    return index * extent + shift, np.full(index.shape, extent)


def bars(count: int) -> Regions:
    """Bars along all three axes, disjoint: any cut along one axis goes through all bars along
    it."""
    side = count * 3
    offsets, extents = [], []
    for axis in range(3):
        first, second = np.divmod(np.arange(count * count), count)
        offset = np.zeros((count * count, 3), np.int64)
        offset[:, (axis + 1) % 3] = first * 3 + axis
        offset[:, (axis + 2) % 3] = second * 3 + (axis + 1) % 3
        extent = np.ones_like(offset)
        extent[:, axis] = side
        offsets.append(offset)
        extents.append(extent)
    return np.concatenate(offsets), np.concatenate(extents)


def arms(count: int) -> Regions:
    """Unit regions along three axes from a common corner: most begin at index 0, whichever axis one
    looks at."""
    offset = np.concatenate(
        [np.arange(1, count)[:, None] * row for row in np.eye(3, dtype=np.int64)]
    )
    return offset, np.ones_like(offset)


def shuffled(regions: Regions) -> Regions:
    order = np.random.default_rng(7).permutation(len(regions[0]))
    return regions[0][order], regions[1][order]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("make_a", "make_b", "factor"),
    [
        (lambda: rows(600_000, 200_000), lambda: rows(600_000, 100_000), 4),
        (lambda: rows(600_000, 200_000), lambda: rows(600_000, 1), 4),
        (lambda: shuffled(rows(600_000, 20_000)), lambda: shuffled(rows(600_000, 70_000)), 4),
        (lambda: grid(200, 200), lambda: grid(200, 200, shift=2), 9),
        (lambda: grid(30, 30, 30), lambda: grid(15, 15, 15, extent=10, shift=3), 9),
        (lambda: shuffled(grid(9, 9, 9, 9)), lambda: shuffled(grid(9, 9, 9, 9, shift=1)), 9),
        (lambda: bars(40), lambda: bars(40), 40),
        (lambda: arms(20_000), lambda: arms(20_000), 9),
        (lambda: shuffled(arms(20_000)), lambda: grid(30, 30, 30, extent=667), 9),
    ],
    ids=[
        "rows",
        "rows-of-one",
        "shuffled-rows",
        "grid",
        "3d-grid",
        "4d-grid",
        "bars",
        "arms",
        "arms-and-grid",
    ],
)
def test_the_search_expands_about_as_many_candidates_as_there_are_regions_and_pairs(
    make_a: Callable[[], Regions],
    make_b: Callable[[], Regions],
    factor: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = make_a(), make_b()
    expanded, looked_at = 0, 0
    expand, candidates = region._expand, region._candidates

    def counting_expand(*ranges):  # type: ignore[no-untyped-def]
        nonlocal expanded
        for i, j in expand(*ranges):
            expanded += len(i)
            yield i, j

    def counting_candidates(regions_a, regions_b, axis):  # type: ignore[no-untyped-def]
        nonlocal looked_at
        looked_at += len(regions_a[0]) + len(regions_b[0])
        return candidates(regions_a, regions_b, axis)

    monkeypatch.setattr(region, "_expand", counting_expand)
    monkeypatch.setattr(region, "_candidates", counting_candidates)
    pairs = sum(len(i) for i, _ in overlapping_pairs(*a, *b))
    size = len(a[0]) + len(b[0])
    assert pairs >= 1
    assert expanded <= factor * (size + pairs)
    assert looked_at <= 5 * factor * (size + pairs)


def test_many_identical_regions_are_expanded_in_bounded_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All pairs of identical regions overlap; nothing is larger than a batch and one row of it."""
    monkeypatch.setattr(region, "_BATCH", 1000)
    same = np.zeros((300, 2), np.int64), np.full((300, 2), 3)
    sizes = [len(i) for i, _ in overlapping_pairs(*same, *same)]
    assert sum(sizes) == 300 * 300
    assert max(sizes) <= 1300


def test_an_overlap_of_many_identical_regions_is_found_in_the_first_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = 0
    expand = region._expand

    def counting(*ranges):  # type: ignore[no-untyped-def]
        nonlocal batches
        for pair in expand(*ranges):
            batches += 1
            yield pair

    monkeypatch.setattr(region, "_expand", counting)
    assert find_overlap(np.zeros((3000, 2), np.int64), np.full((3000, 2), 3)) is not None
    assert batches == 1


@st.composite
def changed_tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Region]]:
    """A shape with elements, and a tiling of it of which regions may be lost, doubled and added."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    parts: list[Region | None] = list(draw(strategies.tilings(shape, 6)))
    for change in draw(st.lists(st.sampled_from(["lose", "double", "add"]), max_size=3)):
        if change == "lose" and parts:
            parts.pop(draw(st.integers(0, len(parts) - 1)))
        elif change == "double" and parts:
            parts.append(draw(st.sampled_from(parts)))
        elif change == "add":
            parts.append(draw(strategies.regions(len(shape), 5)).intersect(Region.whole(shape)))
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
    offset, shape = grid(200, 200)
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
