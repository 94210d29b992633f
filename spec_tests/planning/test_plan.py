"""Plans: the copies are those of the plain definition, and carrying them out by NumPy gives the
right arrays."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import IncompleteCheckpoint, InconsistentTensor, OverlappingSlices, UnknownKey
from shardvar.layout import Region
from shardvar.pictures import drawings
from shardvar.planning.plan import CopyTable, Plan, plan_copies
from shardvar.planning.slices import SliceTable, TensorTable
from spec_tests.helpers.hypothesis_strategies import (
    cut_tables,
    named_regions,
    table_of,
    tensor_tables,
)


@st.composite
def two_cuts(draw: st.DrawFn) -> tuple[SliceTable, SliceTable]:
    """The same tensors cut in two ways, named in different orders; the second has some of them
    only."""
    tensors = draw(tensor_tables())
    wanted = draw(st.permutations(range(len(tensors))))
    wanted = wanted[: draw(st.integers(0, len(wanted)))]
    sources = draw(cut_tables(tensors))
    sources = sources.take(np.array(draw(st.permutations(range(len(sources)))), np.int64))
    return sources, draw(cut_tables(tensors.take(np.array(wanted, np.int64))))


def plain_copies(sources: SliceTable, targets: SliceTable) -> set[tuple[int, int, Region]]:
    """The definition: every source is held against every target."""
    found = set()
    for i in range(len(sources)):
        for j in range(len(targets)):
            if sources.key(i) == targets.key(j):
                common = sources.region(i).intersect(targets.region(j))
                if common is not None:
                    found.add((i, j, common))
    return found


def copies_of(plan: Plan) -> list[tuple[int, int, Region]]:
    return [
        (copy.source, copy.target, copy.region) for copy in map(plan.copy, range(len(plan.copies)))
    ]


@given(two_cuts())
def test_the_copies_are_those_of_the_plain_definition_each_once_and_fill_every_target(
    tables: tuple[SliceTable, SliceTable],
) -> None:
    """In the order of targets and offsets; and a plan is a value."""
    sources, targets = tables
    plan = plan_copies(sources, targets)
    copies = copies_of(plan)
    assert len(copies) == len(set(copies)) and set(copies) == plain_copies(*tables)
    order = [(target, region.offset) for _, target, region in copies]
    assert order == sorted(order) and copies_of(pickle.loads(pickle.dumps(plan))) == copies
    bounds = plan.bounds()
    assert len(bounds) == len(targets) + 1
    for target in range(len(targets)):
        assert (plan.copies.target[bounds[target] : bounds[target + 1]] == target).all()
    tensors = sources.tensors
    full = {
        key: np.arange(np.prod(tensors.shape(n), dtype=int)).reshape(tensors.shape(n)) + 1000 * n
        for n, key in enumerate(tensors.keys)
    }
    payloads = [full[sources.key(row)][sources.region(row).slices] for row in range(len(sources))]
    filled = [np.full(targets.region(row).shape, -1) for row in range(len(targets))]
    for source, target, region in copies:
        piece = payloads[source][region.relative_to(sources.region(source)).slices]
        filled[target][region.relative_to(targets.region(target)).slices] = piece
    for row, array in enumerate(filled):
        np.testing.assert_array_equal(array, full[targets.key(row)][targets.region(row).slices])


@given(two_cuts(), st.data())
def test_a_source_that_is_missing_is_named_and_never_zeros(
    tables: tuple[SliceTable, SliceTable], data: st.DataObject
) -> None:
    sources, targets = tables
    if not len(sources):
        return
    lost = data.draw(st.integers(0, len(sources) - 1))
    region, key = sources.region(lost), sources.key(lost)
    rest = sources.take(np.array([row for row in range(len(sources)) if row != lost], np.int64))
    needs = [
        row
        for row in range(len(targets))
        if targets.key(row) == key and region.intersect(targets.region(row))
    ]
    if not needs:
        plan_copies(rest, targets)
        return
    with pytest.raises(IncompleteCheckpoint) as caught:
        plan_copies(rest, targets)
    assert repr(key) in str(caught.value)
    common = region.intersect(targets.region(needs[0]))
    missing = np.zeros(sources[lost].full_shape, int)
    missing[common.slices if common else ()] += 1
    for index in named_regions(caught.value.cause):
        missing[index] -= 1
    assert not missing.any(), "exactly what is missing is named, in one piece or in several"
    assert (f"{len(needs) - 1} more slices" in str(caught.value)) == (len(needs) > 1)


@given(two_cuts(), st.data())
def test_a_plan_with_a_copy_less_or_a_copy_cut_short_cannot_be_made(
    tables: tuple[SliceTable, SliceTable], data: st.DataObject
) -> None:
    plan = plan_copies(*tables)
    if len(plan.copies):
        lost = data.draw(st.integers(0, len(plan.copies) - 1))
        rows = np.array([row for row in range(len(plan.copies)) if row != lost], np.int64)
        with pytest.raises(IncompleteCheckpoint):
            Plan(plan.sources, plan.targets, plan.copies.take(rows))
        shape = plan.copies.shape.copy()
        if shape.shape[1]:
            shape[lost, 0] = 0
            with pytest.raises(IncompleteCheckpoint):
                Plan(
                    plan.sources,
                    plan.targets,
                    CopyTable(plan.copies.source, plan.copies.target, plan.copies.offset, shape),
                )


def whole(key: str, dtype: str, shape: tuple[int, ...]) -> SliceTable:
    return TensorTable.of([(key, dtype, shape)]).whole()


def test_a_key_that_no_source_has_is_unknown() -> None:
    with pytest.raises(UnknownKey, match="There is no tensor 'kernal'. Did you mean 'kernel'"):
        plan_copies(whole("kernel", "float32", (3,)), whole("kernal", "float32", (3,)))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float64", (3,)), ("float32", (4,)), ("float32", (3, 1)), ("float32", ()), ("string", (3,))],
)
def test_dtypes_and_shapes_are_never_changed_unasked(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InconsistentTensor) as caught:
        plan_copies(whole("k", "float32", (3,)), whole("k", dtype, shape))
    assert caught.value.cause == (
        f"'k' is float32[3] in the checkpoint and {dtype}{list(shape)} in the target."
    )


def test_nothing_is_planned_from_nothing() -> None:
    nothing = TensorTable.of([]).whole()
    assert len(plan_copies(nothing, nothing).copies) == 0
    assert len(plan_copies(whole("k", "int8", (3,)), nothing).copies) == 0


def test_a_tensor_of_more_elements_than_memory_is_planned_in_columns() -> None:
    """2**50 elements in 1024 slices to 1000: a plan touches no byte."""
    tensors = TensorTable.of([("t", "int8", (2**40, 2**10))])

    def rows(count: int) -> SliceTable:
        cuts = np.array([2**40 * n // count for n in range(count + 1)])
        offset = np.stack([cuts[:-1], np.zeros(count, np.int64)], axis=1)
        shape = np.stack([np.diff(cuts), np.full(count, 2**10)], axis=1)
        return SliceTable.of(tensors, np.zeros(count, np.int64), offset, shape)

    plan = plan_copies(rows(1024), rows(1000))
    assert int(np.prod(plan.copies.shape, axis=1).sum()) == 2**50
    assert len(plan.copies) == 1024 + 1000 - 8


@pytest.mark.parametrize("second", [Region((2,), (2,)), Region((0,), (4,)), Region((3,), (1,))])
def test_sources_that_overlap_are_named_as_such_and_not_as_a_hole(second: Region) -> None:
    tensors = TensorTable.of([("w", "float32", (4,))])
    sources = table_of(tensors, [(0, Region((0,), (4,))), (0, second)])
    with pytest.raises(OverlappingSlices, match="'w' hold the same elements"):
        plan_copies(sources, table_of(tensors, [(0, Region((0,), (4,)))]))


@pytest.mark.parametrize("most", [1, 2, 9])
def test_a_drawing_has_the_first_copies_of_a_plan_and_one_more_than_it_shows(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawings, "MOST_MOVES", most)
    monkeypatch.setattr(drawings, "plan_html", lambda *drawn: drawn)
    target = whole("k", "int8", (3,))
    sources = table_of(target.tensors, [(0, Region((start,), (1,))) for start in (2, 0, 1)])
    moves = [
        ((row, f"k[{start}:{start + 1}]", 1), (0, "k[0:3]", 3), f"[{start}:{start + 1}]", 1)
        for start, row in enumerate((1, 2, 0))
    ]
    assert plan_copies(sources, target)._repr_html_() == (3, 1, moves[: most + 1], 3)
