"""The laws of a well-formed index, held against a twin that marks every element."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import IncompleteCheckpoint, OutOfBounds, OverlappingSlices
from shardvar.layout import Region
from shardvar.layout.region import subtract_all
from shardvar.planning import index
from shardvar.planning.index import find_faults
from shardvar.planning.slices import SliceTable, TensorTable
from spec_tests.helpers.hypothesis_strategies import (
    named_regions,
    regions,
    shapes,
    table_of,
    tilings,
)


def twin(slices: SliceTable) -> dict[str, type[Exception]]:
    """The definition: mark the elements that each slice holds, and look."""
    found: dict[str, type[Exception]] = {}
    for tensor, key in enumerate(slices.tensors.keys):
        rows = [row for row in range(len(slices)) if slices.tensor[row] == tensor]
        shape = slices.tensors.shape(tensor)
        marks = np.zeros(shape, int)
        for row in rows:
            region = slices.region(row)
            if any(stop > extent for stop, extent in zip(region.stop, shape, strict=True)):
                found[key] = OutOfBounds
                break
            marks[region.slices] += 1
        if not rows or key in found:
            continue
        if (marks > 1).any():
            found[key] = OverlappingSlices
        elif (marks == 0).any():
            found[key] = IncompleteCheckpoint
    return found


@st.composite
def damaged_tables(draw: st.DrawFn) -> SliceTable:
    """Tables of tilings with slices lost, doubled, moved and put in from elsewhere."""
    tensors = TensorTable.of(
        [(f"t{n}", "int8", draw(shapes(3, 4))) for n in range(draw(st.integers(1, 4)))]
    )
    rows = []
    for tensor in range(len(tensors)):
        shape = tensors.shape(tensor)
        parts = draw(tilings(shape, 4))
        for _ in range(draw(st.integers(0, 2))):
            damage = draw(st.sampled_from(["lose", "double", "add"]))
            if damage == "lose" and parts:
                parts.pop()
            elif damage == "double" and parts:
                parts.append(draw(st.sampled_from(parts)))
            elif damage == "add":
                parts.append(draw(regions(len(shape), 2)))
        rows.extend((tensor, part) for part in parts)
    return table_of(tensors, draw(st.permutations(rows)))


@given(damaged_tables())
def test_the_faults_are_those_that_marking_every_element_finds(slices: SliceTable) -> None:
    """And the missing regions that are named are the ones that no slice holds."""
    faults = find_faults(slices)
    assert {key: type(error) for key, error in faults.items()} == twin(slices)
    for key, error in faults.items():
        if isinstance(error, IncompleteCheckpoint) and "more regions" not in error.cause:
            tensor = list(slices.tensors.keys).index(key)
            marks = np.ones(slices.tensors.shape(tensor), int)
            for row in np.flatnonzero(slices.tensor == tensor).tolist():
                marks[slices.region(row).slices] = 0
            for index in named_regions(error.cause):
                marks[index] -= 1
            assert (marks == 0).all(), "exactly the holes are named"


@given(damaged_tables())
def test_many_slices_have_the_same_faults_as_few(slices: SliceTable) -> None:
    """The same keys are at fault, with an error that is true: of a hole and an overlap, either may
    be named. Every tensor that is cut along several axes is treated as one of many slices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_SEARCHED", 0)
        expected, found = twin(slices), find_faults(slices)
    assert found.keys() == expected.keys()
    for key, error in found.items():
        tensor = list(slices.tensors.keys).index(key)
        if type(error) is not expected[key]:
            assert (type(error), expected[key]) == (IncompleteCheckpoint, OverlappingSlices)
            stored = [
                slices.region(row) for row in range(len(slices)) if slices.tensor[row] == tensor
            ]
            assert subtract_all(Region.whole(slices.tensors.shape(tensor)), stored)


@given(damaged_tables(), st.sampled_from([0, 64]))
def test_every_error_names_its_key_and_two_slices_that_meet_or_the_first_outside(
    slices: SliceTable, searched: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_SEARCHED", searched)
        faults = find_faults(slices)
        held = find_faults(slices, is_part=True)
    keys = list(slices.tensors.keys)
    assert list(faults) == [key for key in keys if key in faults] and held.keys() <= faults.keys()
    for key, error in faults.items():
        assert (key in held) == (not isinstance(error, IncompleteCheckpoint)) or searched == 0
        shape, own = slices.tensors.shape(keys.index(key)), slices.tensor == keys.index(key)
        parts = [slices.region(row) for row in np.flatnonzero(own).tolist()]
        if isinstance(error, OutOfBounds):
            far = next(part for part in parts if any(map(int.__gt__, part.stop, shape)))
            causes = {f"The slice {far} of {key!r} reaches out of the shape {shape}."}
        elif isinstance(error, OverlappingSlices):
            causes = {
                f"The slices {a} and {b} of {key!r} overlap in {common}."
                for a, b in permutations(parts, 2)
                if (common := a.intersect(b))
            }
        else:
            causes = {error.cause} if error.cause.startswith(f"{key!r} lacks [") else set()
        assert error.cause in causes and error.remedy


def of(shape: tuple[int, ...], *parts: tuple[tuple[int, ...], tuple[int, ...]]) -> SliceTable:
    """Slices of one tensor, beside another one of higher rank that is whole."""
    tensors = TensorTable.of([("w/b", "float32", shape), ("cube", "int8", (2, 2, 2))])
    return table_of(
        tensors, [(1, Region.whole((2, 2, 2))), *((0, Region(*part)) for part in parts)]
    )


def test_each_fault_in_words() -> None:
    """Padding of the columns is not part of a region, whatever other tensors the index has."""
    out = find_faults(of((13,), ((0,), (10,)), ((10,), (4,))))["w/b"]
    assert out.cause == "The slice [10:14] of 'w/b' reaches out of the shape (13,)."
    over = find_faults(of((13,), ((0,), (10,)), ((9,), (4,))))["w/b"]
    assert over.cause == "The slices [0:10] and [9:13] of 'w/b' overlap in [9:10]."
    hole = find_faults(of((13,), ((0,), (10,)), ((12,), (1,))))["w/b"]
    assert hole.cause == "'w/b' lacks [10:12]."
    scalar = find_faults(of((), ((), ()), ((), ())))["w/b"]
    assert scalar.cause == "The slices [] and [] of 'w/b' overlap in []."


def test_many_holes_are_counted() -> None:
    error = find_faults(of((40,), *(((2 * n,), (1,)) for n in range(20))))["w/b"]
    assert error.cause.startswith("'w/b' lacks [1:2], [3:4], ")
    assert error.cause.endswith(" and 12 more regions.")


@pytest.mark.parametrize(
    ("count", "words"), [(1024, "[{0}:{1}]"), (1025, "some of the {1} elements of [0:{1}]")]
)
def test_a_hole_among_1024_slices_is_named(count: int, words: str) -> None:
    error = find_faults(of((count + 1,), *(((row,), (1,)) for row in range(count))))["w/b"]
    assert error.cause == f"'w/b' lacks {words.format(count, count + 1)}."


def test_all_tensors_share_one_budget_of_slices_that_are_subtracted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An index with a hole in every tensor is reported in bounded time: the first holes are named,
    the others not."""
    monkeypatch.setattr(index, "_SUBTRACTED", 4)
    tensors = TensorTable.of([(f"t{number}", "int8", (6,)) for number in range(3)])
    held = [(tensor, Region((start,), (2,))) for tensor in range(3) for start in (0, 4)]
    causes = [error.cause for error in find_faults(table_of(tensors, held)).values()]
    unnamed = "'t2' lacks some of the 6 elements of [0:6]."
    assert causes == ["'t0' lacks [2:4].", "'t1' lacks [2:4].", unnamed]


@pytest.mark.parametrize(
    ("full", "offset", "shape", "kind"),
    [
        ((2**62,), (2**62 - 1,), (2**62,), OutOfBounds),
        ((4,), (2**63 - 1,), (2**62,), OutOfBounds),
        ((4,), (-(2**63),), (2,), OutOfBounds),
        ((4,), (-1,), (2,), OutOfBounds),
        ((2**62,) * 2, (-(2**63), 2**63 - 1), (0, 0), OutOfBounds),
        ((2**62,) * 64, (0,) * 64, (1,) * 64, IncompleteCheckpoint),
        # The product of its other extents is beyond any float, and infinity times zero is no number.
        ((2**62,) * 20 + (0,), (0,) * 21, (2**62,) * 20 + (0,), None),
    ],
)
def test_numbers_beyond_64_bits_have_their_fault_without_a_warning(
    full: tuple[int, ...],
    offset: tuple[int, ...],
    shape: tuple[int, ...],
    kind: type[Exception] | None,
) -> None:
    """An index may claim anything that 64 bits hold."""
    tensors = TensorTable.of([("t", "int8", full)])
    row = np.array([0])
    faults = find_faults(SliceTable(tensors, row, np.array([offset]), np.array([shape]), row))
    assert [type(each) for each in faults.values()] == ([kind] if kind else [])
    assert len(str(faults)) < 100_000


def test_a_tensor_without_a_slice_is_not_looked_at() -> None:
    """A table for one key may carry the tensors of the others along."""
    tensors = TensorTable.of([("t", "int8", (4,)), ("u", "int8", (4,))])
    assert find_faults(table_of(tensors, [(1, Region((0,), (4,)))])) == {}
