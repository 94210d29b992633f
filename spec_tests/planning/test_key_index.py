"""Tables of contents: one key is found without the others, a wrong one is told which it may have
been, and tied keys and shared bytes are seen by their places."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import CheckpointError, UnknownKey
from shardvar.layout import Region
from shardvar.limits import MAX_PAYLOAD_EXPANSION
from shardvar.planning import index
from shardvar.planning.index import (
    PART,
    EntryTable,
    Metadata,
    RunChecksums,
    ScannedFaults,
    TableIndex,
    concatenate_entries,
    find_shared,
    find_ties,
    of_rows,
    of_tensors,
    rename_tensors,
    take_tensors,
    unknown_key,
)
from shardvar.planning.slices import SliceTable, TensorTable
from shardvar.records import replace
from spec_tests.helpers.hypothesis_strategies import shapes, slice_tables, table_of


def entries_of(slices: SliceTable, run_nbytes: int = 0) -> EntryTable:
    """Entries with columns that tell rows apart; with runs, whose checksums tell their places, and
    digests."""
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
        np.arange(32 * count, dtype=np.uint8).reshape(count, 32) if run_nbytes else None,
    )


def rows_of(entries: EntryTable) -> list[tuple[Any, ...]]:
    rows = []
    for row in range(len(entries)):
        entry = entries.entry(row, ["a", "b", "c"])
        nbytes = int(entries.slices.nbytes[row])
        runs = entries.runs.of(row, nbytes).tolist() if entries.runs else None
        digest = None if entries.digests is None else bytes(entries.digests[row])
        assert entries.place(row) == (int(entries.file[row]), entry.start)
        rows.append((entry, bool(entries.plain[row]), runs, digest))
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
    with pytest.raises(UnknownKey):
        index.find("no such key at all, whatever is drawn")


@given(slice_tables(), st.sampled_from([0, 1, 16]), st.data())
def test_entries_cut_in_pieces_are_put_together_again(
    slices: SliceTable, run: int, data: st.DataObject
) -> None:
    """Runs are kept if every piece has them, digests if any has; the others are zeros."""
    entries = entries_of(slices, run)
    at = sorted(data.draw(st.lists(st.integers(0, len(slices)), max_size=3)))
    pieces = [
        entries.take(np.arange(a, b)) for a, b in zip([0, *at], [*at, len(slices)], strict=True)
    ]
    kept = [data.draw(st.tuples(st.booleans(), st.booleans())) for _ in pieces]
    given = [
        replace(piece, runs=piece.runs if runs else None, digests=piece.digests if of else None)
        for piece, (runs, of) in zip(pieces, kept, strict=True)
    ]
    has_runs, has_digests = all(runs for runs, _ in kept), run and any(of for _, of in kept)
    assert rows_of(concatenate_entries(given)) == [
        (entry, plain, runs if has_runs else None, (digest if of else bytes(32)) if has_digests else None)
        for piece, (_, of) in zip(pieces, kept, strict=True)
        for entry, plain, runs, digest in rows_of(piece)
    ]  # fmt: skip


@given(slice_tables(), st.data())
def test_some_tensors_have_their_entries_and_no_others(
    slices: SliceTable, data: st.DataObject
) -> None:
    """In the order in which tensors are asked for; without a look if all are, as they are."""
    entries, keys = entries_of(slices, 16), list(slices.tensors.keys)
    everything = rows_of(entries)
    every = list(range(len(keys)))
    chosen = data.draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    rows = [np.flatnonzero(slices.tensor == tensor) for tensor in chosen]
    found = of_tensors(entries, np.array(chosen, np.int64))
    if chosen == every:
        assert found is entries
    else:
        assert rows_of(found) == [everything[row] for some in rows for row in some]
        assert list(found.slices.tensors.keys) == [keys[tensor] for tensor in chosen]
    turned = [some[::-1] for some in rows]
    found = of_rows(entries, chosen, turned)
    assert rows_of(found) == [everything[row] for some in turned for row in some]
    assert list(found.slices.tensors.keys) == [keys[tensor] for tensor in chosen]
    taken = take_tensors(entries, {keys[tensor] for tensor in chosen})
    assert rows_of(taken) == rows_of(of_tensors(entries, np.array(sorted(chosen), np.int64)))
    assert (taken is entries) == (len(chosen) == len(every))
    renamed = rename_tensors(entries, lambda key: f"{key}'")
    assert list(renamed.slices.tensors.keys) == [f"{key}'" for key in keys]
    assert rows_of(rename_tensors(renamed, lambda key: key[:-1])) == everything


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_the_runs_around_a_range_are_the_fewest_that_hold_it(
    run: int, start: int, stop: int, nbytes: int
) -> None:
    start, stop, nbytes = sorted((start, stop, nbytes))
    first, last = RunChecksums(run, np.zeros(0, np.uint32), np.zeros(0, np.int64)).around(
        start, stop, nbytes
    )
    assert first == max(edge for edge in range(0, start + 1, run))
    assert last == min(*(edge for edge in range(0, stop + run, run) if edge >= stop), nbytes)


@st.composite
def places(draw: st.DrawFn, few: int, extents: int) -> EntryTable:
    """Entries of which some begin at the same bytes: whole tensors, and halves in any order."""
    rows = [
        (f"t{number}", draw(st.sampled_from(["float32", "int32"])), draw(shapes(2, extents)))
        for number in range(draw(st.integers(0, 6)))
    ]
    tensors, regions = TensorTable.of(rows), list[tuple[int, Region]]()
    for tensor, (_, _, shape) in enumerate(rows):
        parts = [Region.whole(shape)]
        if shape and draw(st.booleans()):
            half, rest = (shape[0] // 2, *shape[1:]), (shape[0] - shape[0] // 2, *shape[1:])
            parts = [
                Region((0,) * len(shape), half),
                Region((half[0],) + (0,) * (len(shape) - 1), rest),
            ]
        regions += [(tensor, part) for part in parts]
    slices = table_of(tensors, draw(st.permutations(regions)))
    column = st.lists(st.integers(0, few), min_size=len(slices), max_size=len(slices))
    file, start = (np.array(draw(column), np.int64) for _ in range(2))
    return EntryTable.without_checksums(slices, 4 * start, file // 2, np.array(draw(column)) < 2)


@given(places(2, 2))
def test_tied_keys_have_the_places_of_an_earlier_key(entries: EntryTable) -> None:
    """Each of its slices lies byte for byte where the slice of the same region lies."""
    slices, kinds = entries.slices, dict[object, list[str]]()
    for tensor, key in enumerate(slices.tensors.keys):
        rows = [row for row in range(len(slices)) if slices.tensor[row] == tensor]
        rows.sort(key=lambda row: slices.region(row).offset)
        if entries.plain[rows].all() and slices.nbytes[rows].any():
            held = tuple((entries.place(row), slices.region(row)) for row in rows)
            kinds.setdefault((slices.tensors.fact(tensor), held), []).append(key)
    assert find_ties(entries) == {key: first for first, *others in kinds.values() for key in others}
    assert slices.tensors.facts() == {
        key: slices.tensors.fact(tensor) for tensor, key in enumerate(slices.tensors.keys)
    }


def test_half_as_many_keys_are_tied_as_may_share_bytes() -> None:
    tensors = TensorTable.of([(f"t{n}", "int8", (2,)) for n in range(MAX_PAYLOAD_EXPANSION)])
    entries = EntryTable.without_checksums(tensors.whole(), np.zeros(len(tensors), np.int64))
    assert find_ties(entries) == {f"t{n}": "t0" for n in range(1, MAX_PAYLOAD_EXPANSION // 2)}


@given(places(8, 9), st.lists(st.integers(0, 12), min_size=5, max_size=5), st.integers(0, 200))
def test_payloads_that_share_too_many_bytes_are_named_and_the_others_are_apart(
    entries: EntryTable, file_nbytes: list[int], free: int
) -> None:
    """Nothing is named if all files together have few bytes beyond those that they may have."""
    nbytes = entries.slices.nbytes
    beyond = [
        max(int(nbytes[entries.file == file].sum()) - MAX_PAYLOAD_EXPANSION * own, 0)
        for file, own in enumerate(file_nbytes)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_FREE_NBYTES", free)
        shared = find_shared(entries, np.array(file_nbytes))
    suspects = [
        row
        for row in range(len(entries))
        if sum(beyond) > free and beyond[entries.file[row]] and nbytes[row]
    ]
    meeting = [
        (a, b)
        for a, b in combinations(suspects, 2)
        if entries.file[a] == entries.file[b]
        and max(entries.start[[a, b]]) < min((entries.start + nbytes)[[a, b]])
    ]
    assert {*np.flatnonzero(shared)} <= {row for pair in meeting for row in pair}
    assert all(shared[a] or shared[b] for a, b in meeting)


@pytest.mark.parametrize("more", [0, 1])
def test_payloads_have_a_mebibyte_beyond_their_files(more: int) -> None:
    tensors = TensorTable.of(
        [(f"t{n}", "int8", (extent,)) for n, extent in enumerate((1 << 20, 16 + more))]
    )
    entries = EntryTable.without_checksums(tensors.whole(), np.zeros(2, np.int64))
    assert find_shared(entries, np.array([1])).tolist() == [bool(more)] * 2


def test_a_fault_is_found_by_its_key_and_all_by_one_scan() -> None:
    faults: dict[str, Any] = {"a": CheckpointError("bad"), "b": CheckpointError("worse")}
    scans = list[int]()
    lazy = ScannedFaults(faults.get, lambda: (scans.append(1), faults)[1])
    assert lazy["a"] is faults["a"] and "c" not in lazy and not scans
    with pytest.raises(KeyError, match="c"):
        _ = lazy["c"]
    assert dict(lazy.items()) == faults and len(scans) == 1
    assert [*lazy] == ["a", "b"] and len(lazy) == 2 and [*lazy.values()] == [*faults.values()]


def test_metadata_tell_a_part_and_digests() -> None:
    """Digests that are read when they are asked for are there, however many they are."""
    lazy: Any = ScannedFaults(lambda key: None, dict)
    found = [
        Metadata(),
        Metadata(user={PART: "0 of 2"}),
        Metadata(digests={"t": "00"}),
        Metadata(digests=lazy),
    ]
    assert [(each.is_part, each.has_digests) for each in found] == [
        (False, False), (True, False), (False, True), (False, True)
    ]  # fmt: skip


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
