"""Tables of contents: one key is found without the others, and a wrong one is told which it may
have been."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import UnknownKey
from shardvar.planning.index import (
    NO_CHECKSUM,
    EntryTable,
    RunChecksums,
    TableIndex,
    concatenate_entries,
    unknown_key,
)
from shardvar.planning.slices import SliceTable
from spec_tests.helpers.hypothesis_strategies import slice_tables


def entries_of(slices: SliceTable, run_nbytes: int = 0) -> EntryTable:
    """Entries with columns that tell rows apart; with runs, whose checksums tell their places."""
    count = len(slices)
    runs = None
    if run_nbytes:
        runs_each = -(-slices.nbytes // run_nbytes)
        first = np.cumsum(runs_each) - runs_each
        runs = RunChecksums(run_nbytes, np.arange(int(runs_each.sum()), dtype=np.uint32), first)
    return EntryTable(
        slices,
        np.arange(count) % 3,
        np.arange(count) * 1000,
        np.arange(count) - 1,
        np.arange(count) % 2 == 0,
        runs,
    )


def rows_of(entries: EntryTable) -> list[object]:
    rows = []
    for row in range(len(entries)):
        entry = entries.entry(row, ["a", "b", "c"])
        nbytes = int(entries.slices.nbytes[row])
        runs = entries.runs.of(row, nbytes).tolist() if entries.runs else None
        rows.append((entry, bool(entries.plain[row]), runs))
    return rows


@given(slice_tables(), st.sampled_from([0, 1, 16]))
def test_the_entries_of_a_key_are_those_of_the_whole_table(
    slices: SliceTable, run_nbytes: int
) -> None:
    entries = entries_of(slices, run_nbytes)
    index = TableIndex(entries, ["a", "b", "c"])
    everything = rows_of(entries)
    for tensor, key in enumerate(slices.tensors.keys):
        found = index.find(key)
        assert rows_of(found) == [
            everything[row] for row in np.flatnonzero(slices.tensor == tensor)
        ]
        assert list(found.slices.tensors.keys) == [key], (
            "what is found grows with the key, not with the checkpoint"
        )
    assert [rows_of(table) for table in index.scan()] == [everything]


@given(slice_tables(), st.sampled_from([0, 1, 16]), st.data())
def test_entries_cut_in_pieces_are_put_together_again(
    slices: SliceTable, run: int, data: st.DataObject
) -> None:
    entries = entries_of(slices, run)
    at = sorted(data.draw(st.lists(st.integers(0, len(slices)), max_size=3)))
    pieces = [
        entries.take(np.arange(a, b)) for a, b in zip([0, *at], [*at, len(slices)], strict=True)
    ]
    assert rows_of(concatenate_entries(pieces)) == rows_of(entries)


def test_no_tables_are_an_empty_one() -> None:
    assert len(concatenate_entries([])) == 0


@given(slice_tables())
def test_a_checksum_that_is_not_there_is_none(slices: SliceTable) -> None:
    entries = entries_of(slices)
    for row in range(len(entries)):
        assert (entries.entry(row, "abc").checksum is None) == (
            entries.checksum[row] == NO_CHECKSUM
        )


def test_an_unknown_key_is_told_its_neighbours() -> None:
    error = unknown_key("dense/kernal", ["dense/kernel", "dense/bias", "other"])
    assert isinstance(error, KeyError)
    assert str(error).startswith("There is no tensor 'dense/kernal'. Did you mean 'dense/kernel'")
    layers = [f"layers.{number}.w" for number in range(12)]
    assert (
        unknown_key("layer.3.w", layers).remedy == "Did you mean 'layers.3.w'?"
    )  # the number is meant
    assert (
        unknown_key("row.4", ["row.1", "row.2", "row.3"]).remedy
        == "Did you mean 'row.1', 'row.2' or 'row.3'?"
    )
    assert "inspect" in unknown_key("x", ["completely", "different"]).remedy
    assert "inspect" in unknown_key("x", []).remedy


@given(slice_tables())
def test_a_key_that_is_not_there_is_unknown(slices: SliceTable) -> None:
    with pytest.raises(UnknownKey):
        TableIndex(entries_of(slices), ["a"]).find("no such key at all, whatever is drawn")
