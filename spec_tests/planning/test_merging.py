"""The slices of several processes become one checkpoint: replicas once, and every element held."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import IncompleteCheckpoint, InconsistentTensor, OverlappingSlices
from shardvar.layout import Region
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import check_share, merge_entries, name_processes
from shardvar.planning.slices import SliceTable, TensorTable
from shardvar.records import replace
from spec_tests.helpers.hypothesis_strategies import slice_tables, table_of
from spec_tests.planning.test_key_index import entries_of, rows_of


@given(slice_tables(), st.integers(1, 4), st.booleans(), st.data())
def test_each_region_is_that_of_the_lowest_process_that_has_it(
    slices: SliceTable, count: int, differ: bool, data: st.DataObject
) -> None:
    """Slices keep the order of the processes, and of each process; unequal replicas are refused,
    unless the first counts."""
    first = {(slices.key(row), slices.region(row)): row for row in reversed(range(len(slices)))}
    slices = slices.take(np.array(sorted(first.values()), np.int64))
    entries, everything = entries_of(slices), rows_of(entries_of(slices))
    holders = [
        data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True)) for _ in everything
    ]
    rows = data.draw(st.permutations(range(len(slices))))
    held = [[row for row in rows if process in holders[row]] for process in range(count)]
    tables = [entries.take(np.array(some, np.int64)) for some in held]
    expected = [
        everything[row] for n, some in enumerate(held) for row in some if n == min(holders[row])
    ]
    assert rows_of(merge_entries(tables, "equal", is_part=False)) == expected
    tables[-1] = replace(tables[-1], checksum=tables[-1].checksum + 1000)
    if any(count - 1 in some and len(some) > 1 for some in holders):
        with pytest.raises(InconsistentTensor, match=f"other values in process {count - 1} than"):
            merge_entries(tables, "equal", is_part=False)
    merged = merge_entries(tables, "first", is_part=False)
    assert [entry.slice for entry, *_ in rows_of(merged)] == [entry.slice for entry, *_ in expected]
    last = [entry.checksum >= 999 for entry, *_ in rows_of(merged) if entry.checksum is not None]
    assert sum(last) == sum(some == [count - 1] for some in holders)


def rows(tensors: TensorTable, *parts: tuple[int, int, int]) -> EntryTable:
    """Entries of (tensor, first row, number of rows)."""
    slices = table_of(
        tensors, [(tensor, Region((start,), (extent,))) for tensor, start, extent in parts]
    )
    return EntryTable.without_checksums(slices, np.zeros(len(parts), np.int64))


def test_each_disagreement_of_processes_in_words() -> None:
    """The first tensor is named with all processes that hold it; holes are no fault of a part."""
    two = TensorTable.of([("a", "int8", (6,)), ("b", "int8", (4,))])
    tables = [
        rows(two, (0, 0, 2), (1, 0, 4)),
        rows(two),
        rows(two, (0, 4, 2)),
        rows(two, (0, 0, 2)),
    ]
    with pytest.raises(IncompleteCheckpoint) as hole:
        merge_entries(tables, "equal", is_part=False)
    assert hole.value.cause == "'a' lacks [2:4]. It is held by processes 0 and 2."
    assert len(merge_entries(tables, "equal", is_part=True)) == 3
    tables[2] = rows(two, (0, 1, 5), (1, 3, 1))
    with pytest.raises(OverlappingSlices) as over:
        merge_entries(tables, "first", is_part=False)
    assert over.value.cause == (
        "The slices [0:2] and [1:6] of 'a' overlap in [1:2]. It is held by processes 0 and 2. 1 more "
        "tensors are at fault."
    )
    other = TensorTable.of([("b", "int8", (5,))])
    with pytest.raises(InconsistentTensor) as caught:
        merge_entries([*tables[:2], rows(other, (0, 0, 5))], "first", is_part=True)
    assert caught.value.cause == "'b' is int8[4] in process 0 and int8[5] in process 2."
    texts = TensorTable.of([("s", "string", (1,))])
    with pytest.raises(InconsistentTensor) as caught:
        longer = replace(rows(texts, (0, 0, 1)).slices, nbytes=np.array([8]))
        merge_entries(
            [rows(texts, (0, 0, 1)), replace(rows(texts, (0, 0, 1)), slices=longer)],
            "equal",
            is_part=True,
        )
    assert (
        caught.value.cause
        == "The slice [0:1] of 's' has other values in process 1 than in process 0."
    )


def test_a_share_may_have_holes_and_replicas_and_no_other_slices_that_meet() -> None:
    one = TensorTable.of([("a", "int8", (6,))])
    check_share(replace(rows(one, (0, 0, 2), (0, 0, 2), (0, 4, 1)), checksum=np.arange(3)), 5)
    with pytest.raises(
        OverlappingSlices, match=r"overlap in \[1:2\]. It is held by process 5\. Comp"
    ):
        check_share(rows(one, (0, 0, 2), (0, 1, 2)), 5)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "process 0"),
        (2, "processes 0 and 1"),
        (8, "processes 0, 1, 2, 3, 4, 5, 6 and 7"),
        (9, "processes 0, 1, 2, 3, 4, 5, 6, 7 and 1 more"),
    ],
)
def test_eight_processes_are_named(count: int, text: str) -> None:
    assert name_processes(range(count)) == text
