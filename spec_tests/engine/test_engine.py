"""The engine: any cut to any other is what NumPy says, on every path, and no byte that was read
goes unverified.

Everything runs twice: with the engine's own sizes, and with blocks of 64 bytes, so that small data
take the paths that are there for large ones: blocks, runs, boxes that are halved, batches that are
full.
"""

import threading
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.engine import units
from shardvar.engine.arrays import lower
from shardvar.engine.evidence import Evidence, ReadTable
from shardvar.engine.pool import WORKERS, in_this_thread, map_ahead, run_all
from shardvar.engine.units import Unit, place_of_unit, plan_units
from shardvar.errors import (
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    StorageError,
)
from shardvar.layout import Region
from shardvar.layout.dtypes import dtype_name
from shardvar.layout.partition import div
from shardvar.planning.index import NO_CHECKSUM
from shardvar.planning.plan import plan_copies
from shardvar.planning.slices import SliceTable, TensorTable
from shardvar.verbs.save import source_of
from shardvar.wire.crc import CRC32C
from spec_tests.engine.test_pieces import set_sizes
from spec_tests.helpers.hypothesis_strategies import (
    NUMBERS,
    arrays,
    cut_tables,
    regions_in,
    same,
    string_arrays,
    table_of,
)
from spec_tests.helpers.memory_format import (
    Array,
    Ints,
    MemorySource,
    MemoryStorage,
    MemoryWriter,
    checkpoint_of,
    load,
    payloads,
    write,
)
from spec_tests.helpers.thoroughness import is_due

TINY = {
    "BLOCK_NBYTES": 64,
    "BATCH_NBYTES": 192,
    "SMALL_NBYTES": 16,
    "_GAP_NBYTES": 4,
    "_DENSE": 2,
    "_BAND_NBYTES": 4,
    "_BAND_COUNT": 2,
}
WRITERS = [MemoryWriter(), MemoryWriter(None), MemoryWriter(CRC32C, 16), MemoryWriter(CRC32C, 64)]


@pytest.fixture(params=["own sizes", "tiny blocks"], autouse=True, scope="module")
def sizes(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tiny blocks":
            set_sizes(patch, **TINY)
        yield


@st.composite
def files_for(draw: st.DrawFn, slices: SliceTable) -> Ints:
    """The file of every slice: several at times, and some without any slice."""
    count = draw(st.integers(1, 3))
    return np.array(
        draw(st.lists(st.integers(0, count - 1), min_size=len(slices), max_size=len(slices))),
        np.int64,
    )


@st.composite
def named_arrays(draw: st.DrawFn) -> dict[str, Array]:
    numbers = arrays(NUMBERS, max_rank=3, max_extent=7)
    return draw(
        st.dictionaries(
            st.sampled_from("abcd"), st.one_of(numbers, numbers, string_arrays()), max_size=3
        )
    )


def tensors_of(named: dict[str, Array]) -> TensorTable:
    return TensorTable.of(
        [(key, dtype_name(array.dtype), array.shape) for key, array in named.items()]
    )


@st.composite
def checkpoints(draw: st.DrawFn) -> tuple[dict[str, Array], MemorySource]:
    """A checkpoint of any tiling in any files, guarded in any way, some payloads coded."""
    named = draw(named_arrays())
    slices = draw(cut_tables(tensors_of(named)))
    slices = slices.take(np.array(draw(st.permutations(range(len(slices)))), np.int64))
    coded = draw(st.sets(st.sampled_from("abcd")))
    writer = draw(st.sampled_from(WRITERS))
    if writer.run_nbytes:
        coded = set()
    source = checkpoint_of(
        named, slices, draw(files_for(slices)), writer=writer, coded=coded.__contains__
    )
    return named, source


@given(checkpoints(), st.data())
def test_loading_any_parts_gives_the_parts(
    checkpoint: tuple[dict[str, Array], MemorySource], data: st.DataObject
) -> None:
    named, source = checkpoint
    tensors = source.index.entries.slices.tensors
    rows = []
    for row, array in enumerate(named.values()):
        anything = (
            st.just(Region.whole(array.shape)) if array.dtype == object else regions_in(array.shape)
        )
        rows.extend((row, region) for region in data.draw(st.lists(anything, max_size=2)))
    found = load(source, table_of(tensors, rows))
    for (row, region), part in zip(rows, found, strict=True):
        assert same(part, np.asarray(list(named.values())[row])[(*region.slices, ...)])


def as_large_as(slices: SliceTable, cut: SliceTable) -> SliceTable:
    """Other slices of the same tensors, with the bytes of strings, which are never cut."""
    sizes = {slices.key(row): int(slices.nbytes[row]) for row in range(len(slices))}
    nbytes = np.array([sizes.get(cut.key(row), 0) for row in range(len(cut))], np.int64)
    return SliceTable.of(cut.tensors, cut.tensor, cut.offset, cut.shape, nbytes)


@given(named_arrays(), st.sampled_from(WRITERS), st.integers(0, 9), st.data())
def test_saving_any_arrays_in_any_slices_loads_back(
    named: dict[str, Array], writer: MemoryWriter, gap: int, data: st.DataObject
) -> None:
    source = source_of(named)
    entries = source.index.entries
    targets = as_large_as(entries.slices, data.draw(cut_tables(tensors_of(named))))
    stored, written, _ = write(
        source, entries, targets, data.draw(files_for(targets)), writer, gap=gap
    )
    assert written.nbytes == targets.nbytes.sum()
    for key, found in zip(named, load(stored), strict=True):
        assert same(found, named[key])


@given(checkpoints(), st.sampled_from(WRITERS), st.integers(0, 9), st.data())
def test_resharding_any_checkpoint_to_any_other_gives_the_arrays(
    checkpoint: tuple[dict[str, Array], MemorySource],
    writer: MemoryWriter,
    gap: int,
    data: st.DataObject,
) -> None:
    named, source = checkpoint
    entries = source.index.entries
    targets = as_large_as(entries.slices, data.draw(cut_tables(entries.slices.tensors)))
    file = data.draw(files_for(targets))
    for key, found in zip(named, load(source), strict=True):
        assert same(found, named[key])
        assert found.flags.writeable and found.flags.c_contiguous
    again, _, first = write(source, entries, targets, file, writer, gap=gap)
    for key, found in zip(named, load(again), strict=True):
        assert same(found, named[key])
    _, _, second = write(source, entries, targets, file, writer, gap=gap)
    assert first.files == second.files, "the same plan writes the same bytes"


@given(checkpoints())
def test_what_the_source_decodes_is_read_in_order(
    checkpoint: tuple[dict[str, Array], MemorySource],
) -> None:
    """Whole payloads, that is; for many formats another order would mean to begin anew each
    time."""
    _, source = checkpoint
    entries = source.index.entries
    coded = entries.take(np.flatnonzero(~entries.plain))
    read_back = load(source, coded.slices)
    assert len(read_back) == len(coded)
    places = {place for place, _ in source.reads}
    for place in places:
        starts = [start for at, start in source.reads if at == place]
        assert starts == sorted(starts) and starts[0] == 0


def table() -> dict[str, Array]:
    """Small data that takes every path: tiny, small and large tensors, slices, strings, a bool,
    bytes of all kinds."""
    rng = np.random.default_rng(5)
    strings = np.empty((2,), object)
    strings[:] = [b"ab\0", b""]
    return {
        "large": rng.integers(0, 255, (12, 10), np.uint8),
        "cut": rng.integers(0, 2**16, (9, 4)).astype(np.uint16),
        "tiny": np.arange(3, dtype=np.float32),
        "flags": rng.integers(0, 2, 21).astype(np.bool),
        "coded": rng.integers(0, 255, (7, 11), np.uint8),
        "names": strings,
        "one": np.float64(3).reshape(()),
    }


def small_checkpoint(writer: MemoryWriter) -> MemorySource:
    named = table()
    tensors = tensors_of(named)
    rows = []
    for row, (key, array) in enumerate(named.items()):
        parts = [Region.whole(array.shape)]
        if key == "cut":
            parts = [Region((0, 0), (5, 2)), Region((0, 2), (5, 2)), Region((5, 0), (4, 4))]
        rows.extend((row, part) for part in parts)
    slices = table_of(tensors, rows)
    coded = (lambda key: key == "coded") if not writer.run_nbytes else (lambda key: False)
    return checkpoint_of(named, slices, np.arange(len(slices)) % 2, writer=writer, coded=coded)


def grids(count_0: int, count_1: int) -> SliceTable:
    """All tensors of ``table`` anew: those of two axes as grids, the others by rows."""
    named = table()
    tensors = tensors_of(named)
    rows = []
    for row, array in enumerate(named.values()):
        parts = [Region.whole(array.shape)]
        if array.ndim and array.dtype != object:
            cuts = [
                np.array_split(np.arange(n), c)
                for n, c in zip(array.shape, (count_0, count_1), strict=False)
            ]
            parts = [
                Region(*zip(*((int(i[0]), len(i)) for i in each), strict=True))
                for each in product(*cuts)
            ]
        rows.extend((row, part) for part in parts)
    slices = table_of(tensors, rows)
    nbytes = np.where(
        [slices.dtype(row) == "string" for row in range(len(slices))], 9, slices.nbytes
    )
    return SliceTable.of(
        tensors, slices.tensor, slices.offset, slices.shape, nbytes.astype(np.int64)
    )


GUARDED = [writer for writer in WRITERS if writer.crc is not None]


GRIDS = {"whole": (1, 1), "rows": (3, 1), "grid": (2, 2), "columns": (1, 3)}


def some_bytes(source: MemorySource, grid: str) -> Iterator[tuple[int, int, int]]:
    """Yield ``payloads``, of which each grid tries another 23rd; ``make crash`` tries all."""
    for number, each in enumerate(list(payloads(source)), list(GRIDS).index(grid)):
        if is_due(number, 23):
            yield each


@pytest.mark.parametrize("writer", GUARDED, ids=str)
@pytest.mark.parametrize("grid", GRIDS)
def test_every_flipped_byte_is_found_in_loading_and_resharding_and_nothing_is_left(
    writer: MemoryWriter, grid: str
) -> None:
    source, targets = small_checkpoint(writer), grids(*GRIDS[grid])
    entries, file = source.index.entries, np.arange(len(targets)) % 2
    load(source, targets)
    for row, number, place in some_bytes(source, grid):
        source.files[number][place] ^= 0x81
        storage = MemoryStorage()
        with pytest.raises(CorruptCheckpoint) as loading:
            load(source, targets)
        with pytest.raises(CorruptCheckpoint) as writing:
            write(source, entries, targets, file, MemoryWriter(None), storage=storage)
        source.files[number][place] ^= 0x81
        for caught in (loading, writing):
            assert repr(entries.slices.key(row)) in str(caught.value)
        assert storage.files == {}
    load(source, targets)


def test_an_error_names_key_region_file_and_bytes() -> None:
    source = small_checkpoint(MemoryWriter())
    entries = source.index.entries
    row = next(row for row in range(len(entries)) if entries.slices.key(row) == "cut")
    source.files[int(entries.file[row])][int(entries.start[row]) + 3] ^= 1
    with pytest.raises(CorruptCheckpoint) as caught:
        load(source)
    start, nbytes = int(entries.start[row]), int(entries.slices.nbytes[row])
    assert caught.value.cause == (
        f"data-{entries.file[row]}: the bytes {start} to {start + nbytes}, which hold [0:5, 0:2] "
        "of 'cut', do not have "
        "the checksum that the index gives."
    )
    assert "verify" in caught.value.remedy
    source = small_checkpoint(MemoryWriter(CRC32C, 16))
    start = int(source.index.entries.start[0])
    source.files[int(source.index.entries.file[0])][start + 40] ^= 1
    with pytest.raises(CorruptCheckpoint, match=f"the bytes {start + 32} to {start + 48}, "):
        load(source)  # of payloads with checksums of runs, the run is named


@pytest.mark.parametrize(
    "part", [np.s_[0:1], np.s_[3:7], np.s_[11:12], np.s_[2:5, 3:4], np.s_[:, 4:6]]
)
def test_of_a_part_only_its_runs_are_read_and_every_one_is_verified(
    part: tuple[slice, ...],
) -> None:
    """A flipped byte within the runs that are touched is found, one outside is none of the part's
    business."""
    named = {"t": np.random.default_rng(1).integers(0, 255, (12, 10), np.uint8)}
    tensors = tensors_of(named)
    source = checkpoint_of(
        named, tensors.whole(), np.zeros(1, np.int64), writer=MemoryWriter(CRC32C, 16)
    )
    index = part if isinstance(part, tuple) else (part, np.s_[:])
    axes = [item.indices(extent) for item, extent in zip(index, (12, 10), strict=True)]
    region = Region((a for a, _, _ in axes), (b - a for a, b, _ in axes))
    targets = table_of(tensors, [(0, region)])
    positions = np.arange(120).reshape(12, 10)[region.slices]
    runs = set((positions // 16).ravel().tolist())
    for _, file, place in list(payloads(source)):
        source.files[file][place] ^= 0x40
        if (place - 8) // 16 in runs:
            with pytest.raises(CorruptCheckpoint, match="'t'"):
                load(source, targets)
        elif region.shape[1] == 10:
            np.testing.assert_array_equal(load(source, targets)[0], named["t"][region.slices])
        source.files[file][place] ^= 0x40


@pytest.mark.parametrize(
    ("start", "count"), [(0, 1), (1, 1), (500, 3), (997, 3), (100, 400), (0, 1000)]
)
def test_a_part_of_rows_reads_its_own_bytes_and_two_runs_more(start: int, count: int) -> None:
    named = {"t": np.arange(16_000, dtype=np.float32).reshape(1000, 16)}
    tensors = tensors_of(named)
    for run_nbytes in (64, 256):
        writer = MemoryWriter(CRC32C, run_nbytes)
        source = checkpoint_of(named, tensors.whole(), np.zeros(1, np.int64), writer=writer)
        found = load(source, table_of(tensors, [(0, Region((start, 0), (count, 16)))]))
        np.testing.assert_array_equal(found[0], named["t"][start : start + count])
        assert source.nbytes_read <= count * 64 + 2 * run_nbytes


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize(
    "failure", [StorageError("The disk is gone."), IncompleteCheckpoint("It ends.")]
)
def test_a_read_that_fails_in_any_thread_is_the_error_and_nothing_is_left(
    after: int, failure: Exception
) -> None:
    source = small_checkpoint(MemoryWriter())
    source.fail_after, source.failure = after, failure
    with pytest.raises(type(failure)) as caught:
        load(source, grids(2, 2))
    assert caught.value is failure
    source.fail_after = after
    storage = MemoryStorage()
    with pytest.raises(type(failure)):
        write(source, source.index.entries, grids(3, 1), np.zeros(len(grids(3, 1)), np.int64), MemoryWriter(),
              storage=storage)  # fmt: skip
    assert storage.files == {}


def test_a_bool_of_a_byte_that_is_none_is_invalid_and_a_damaged_one_corrupt() -> None:
    """NumPy would not survive a bool of 2; where its checksum is wrong, too, the damage is what is
    told."""
    named = {"flags": np.ones(100, np.bool)}
    tensors = tensors_of(named)
    whole = np.zeros(1, np.int64)
    for writer in WRITERS:
        source = checkpoint_of(named, tensors.whole(), whole, writer=writer)
        source.files[0][50] = 2
        for targets in (tensors.whole(), table_of(tensors, [(0, Region((30,), (30,)))])):
            with pytest.raises(
                CorruptCheckpoint if writer.crc else InvalidCheckpoint, match="'flags'"
            ):
                load(source, targets)


@st.composite
def pieces(draw: st.DrawFn, nbytes: int) -> list[tuple[int, int]]:
    """(first byte, size) of pieces of one payload: tiling it or not, repeated, overlapping, in any
    order."""
    cuts = sorted({0, nbytes, *draw(st.lists(st.integers(0, nbytes), max_size=4))})
    tiles = [(a, b - a) for a, b in pairwise(cuts)]
    extra = draw(st.lists(st.integers(0, nbytes - 1).flatmap(
        lambda a: st.tuples(st.just(a), st.integers(1, nbytes - a))), max_size=2))  # fmt: skip
    lost = draw(st.sets(st.integers(0, len(tiles) - 1), max_size=1))
    kept = [tile for n, tile in enumerate(tiles) if n not in lost]
    return draw(st.permutations(kept + extra))


def check(source: MemorySource, pieces: list[tuple[int, int, int, int]]) -> None:
    """Compare pieces that were read of a source, in this order."""
    evidence = Evidence(source, source.index.entries)
    for piece in pieces:
        evidence.add(ReadTable.of([piece]))
    evidence.check()


@given(st.data())
def test_evidence_holds_for_what_is_whole_and_for_nothing_that_is_damaged(
    data: st.DataObject,
) -> None:
    """Pieces in any order, repeated, overlapping, partial, with and without checksums of their
    own."""
    payload = np.random.default_rng(3).integers(0, 255, 150, np.uint8)
    named = {"a": payload, "b": payload[:40]}
    tensors = tensors_of(named)
    writer = data.draw(st.sampled_from(GUARDED))
    source = checkpoint_of(named, tensors.whole(), np.zeros(2, np.int64), writer=writer)
    entries = source.index.entries
    damage = data.draw(st.one_of(st.none(), st.tuples(st.integers(0, 1), st.integers(0, 39))))
    if damage is not None:
        source.files[0][int(entries.start[damage[0]]) + damage[1]] ^= 0x10
    evidence: list[tuple[int, int, int, int]] = []
    for row, nbytes in ((0, 150), (1, 40)):
        for first, size in data.draw(pieces(nbytes)):
            buffer = bytearray(size)
            source.read_into(entries, row, first, memoryview(buffer))
            known = data.draw(st.booleans())
            evidence.append((row, first, size, CRC32C.compute(buffer) if known else NO_CHECKSUM))
    touched = damage is not None and any(
        row == damage[0] and first <= damage[1] < first + size for row, first, size, _ in evidence
    )
    if touched:
        with pytest.raises(CorruptCheckpoint):
            check(source, evidence)
    elif damage is None:
        check(source, evidence)


@pytest.mark.parametrize("first", [0, 5])
def test_wrong_evidence_of_a_whole_file_is_not_believed(first: int) -> None:
    """Pieces that tile a payload and whose checksums do not add up are damage, even if the file is
    right by now."""
    named = {"a": np.arange(100, dtype=np.uint8)}
    source = checkpoint_of(named, tensors_of(named).whole(), np.zeros(1, np.int64))
    payload = bytes(range(100))
    right = [(0, 0, 60, CRC32C.compute(payload[:60])), (0, 60, 40, CRC32C.compute(payload[60:]))]
    check(source, right)
    wrong = [(0, 0, 60, CRC32C.compute(payload[1:61])), right[1]]
    with pytest.raises(CorruptCheckpoint):
        check(source, wrong)


def test_an_entry_without_a_checksum_is_read_to_its_end_all_the_same() -> None:
    """Verifying it finds a file that is too short."""
    named = {"a": np.arange(200, dtype=np.uint8)}
    source = checkpoint_of(
        named, tensors_of(named).whole(), np.zeros(1, np.int64), writer=MemoryWriter(None)
    )
    Evidence(source, source.index.entries).read_whole(0)
    assert source.nbytes_read == 200
    del source.files[0][-1:]
    with pytest.raises(IncompleteCheckpoint):
        Evidence(source, source.index.entries).read_whole(0)


@given(st.data())
def test_a_copy_is_a_run_of_bytes_exactly_if_its_bytes_follow_each_other(
    data: st.DataObject,
) -> None:
    """Lowered against the definition: the positions of the box's elements in both payloads."""
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=3)))
    tensors = TensorTable.of([("t", "float32", shape), ("other", "int8", (2, 2, 2, 2))])
    sources, targets = data.draw(cut_tables(tensors)), data.draw(cut_tables(tensors))
    plan = plan_copies(sources, targets)
    moves, is_run = lower(plan)
    expected = {}
    for copy in map(plan.copy, range(len(plan.copies))):
        ends = []
        for slices, row in ((sources, copy.source), (targets, copy.target)):
            region = slices.region(row)
            order = np.arange(region.size).reshape(region.shape)
            inside = order[copy.region.relative_to(region).slices].ravel()
            ends.append((int(inside[0]), bool((np.diff(inside) == 1).all())))
        expected[copy.source, copy.target] = (
            ends[0][0],
            ends[1][0],
            copy.region.size,
            ends[0][1] and ends[1][1],
        )
    for target in range(len(targets)):
        mine = {key: value for key, value in expected.items() if key[1] == target}
        assert bool(is_run[target]) == all(value[3] for value in mine.values())
        rows = np.flatnonzero(moves.target == target)
        if not is_run[target]:
            assert not len(rows)
            continue
        itemsize = int(targets.nbytes[target]) // max(targets.region(target).size, 1)
        found = {
            (int(moves.source[row]), target): tuple(
                int(column[row])
                for column in (moves.source_start, moves.target_start, moves.nbytes)
            )
            for row in rows
        }
        assert found == {key: tuple(n * itemsize for n in value[:3]) for key, value in mine.items()}
        assert (np.diff(moves.target_start[rows]) > 0).all()


def test_work_comes_back_in_order_and_an_error_stops_what_has_not_begun() -> None:
    assert run_all(lambda n: n * n, range(100)) == [n * n for n in range(100)]
    begun = []

    def fail(n: int) -> None:
        begun.append(n)
        if n == 3:
            raise StorageError("No.")

    with pytest.raises(StorageError):
        run_all(fail, range(10_000))
    assert len(begun) <= 10 * WORKERS


def test_only_a_bounded_number_of_pieces_is_drawn_ahead() -> None:
    """Work is drawn from a generator: a checkpoint of a million blocks is not a list of a
    million."""
    drawn = 0
    finished = 0

    def items() -> Iterator[int]:
        nonlocal drawn
        for n in range(1000):
            drawn += 1
            assert drawn - finished <= 6 * WORKERS
            yield n

    def work(n: int) -> int:
        nonlocal finished
        finished += 1
        return n

    assert len(run_all(work, items())) == 1000


def test_work_ahead_of_its_caller_comes_in_order_with_errors_in_their_places() -> None:
    """At most a thread's worth of items and one more are drawn ahead; a task that is itself a
    thread starts none."""
    drawn = 0

    def items() -> Iterator[int]:
        nonlocal drawn
        while drawn < 100:
            drawn += 1
            yield drawn

    def work(n: int) -> int:
        if n == 50:
            raise StorageError("No.")
        return -n

    found = []
    with pytest.raises(StorageError):
        for result in map_ahead(work, items()):
            found.append(result)
            assert drawn <= len(found) + WORKERS + 1
    assert found == [-n for n in range(1, 50)]
    with in_this_thread():
        threads = list(map_ahead(lambda _: threading.get_ident(), range(3)))
    assert threads == [threading.get_ident()] * 3


def test_a_plan_between_tables_of_different_rank_is_carried_out() -> None:
    """Other tensors, of more axes, widen the columns of one side only."""
    named = {"t": np.arange(24, dtype=np.int16).reshape(4, 6), "cube": np.zeros((2, 2, 2), np.int8)}
    tensors = tensors_of(named)
    sources = table_of(
        tensors,
        [(0, Region((0, 0), (4, 3))), (0, Region((0, 3), (4, 3))), (1, Region.whole((2, 2, 2)))],
    )
    source = checkpoint_of(named, sources, np.zeros(3, np.int64))
    narrow = tensors_of({"t": named["t"]})
    targets = table_of(narrow, [(0, Region((0, 0), (3, 6))), (0, Region((3, 0), (1, 6)))])
    again, _, _ = write(
        source, source.index.entries, targets, np.zeros(2, np.int64), MemoryWriter()
    )
    np.testing.assert_array_equal(load(again)[0], named["t"])
    np.testing.assert_array_equal(load(source, narrow.whole())[0], named["t"])


@given(regions_in((4, 5, 6)).filter(lambda region: region.size > 0), st.data())
def test_a_unit_begins_where_its_first_element_lies_in_the_whole_tensor(
    region: Region, data: st.DataObject
) -> None:
    """By this place units are sorted, so that those whose sources lie side by side are read
    together."""
    targets = table_of(TensorTable.of([("t", "int16", (4, 5, 6))]), [(0, region)])
    first = data.draw(st.integers(0, region.size - 1))
    numbers = np.arange(4 * 5 * 6).reshape(4, 5, 6)[region.slices].ravel()
    assert place_of_unit(targets, Unit(0, 1, 2 * first, 2)) == (0, numbers[first])


@given(st.data(), st.sampled_from([0, 4, 16, 64]))
def test_units_hold_each_byte_of_each_payload_once_and_in_order(
    data: st.DataObject, run: int
) -> None:
    """Whole payloads, blocks and bands; one range of the file each, or the same bytes of every
    target."""
    shape = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 40), st.integers(1, 12)))
    tensors = TensorTable.of([("t", "int16", shape), ("u", "int8", shape)])
    targets = data.draw(cut_tables(tensors))
    start = np.cumsum(targets.nbytes + 3) - targets.nbytes
    is_range = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(targets), max_size=len(targets)))
    )
    reached = np.zeros(len(targets), np.int64)
    for unit in plan_units(targets, start, is_range, run):
        places = unit.places(start)
        for row, place in zip(range(unit.first, unit.last), places.tolist(), strict=True):
            size = unit.share or min(int(targets.nbytes[row]) + min(place, 0), unit.nbytes)
            assert unit.start == reached[row] or (unit.start == 0 and reached[row] == 0)
            assert 0 <= place + unit.start <= place + unit.start + size <= unit.nbytes
            reached[row] += size
        assert unit.nbytes <= max(
            units.BATCH_NBYTES, int(targets.nbytes[unit.first : unit.last].sum())
        )
    assert reached.tolist() == targets.nbytes.tolist()


@pytest.mark.sample(3)
@pytest.mark.parametrize("writer", WRITERS, ids=str)
@pytest.mark.parametrize("counts", [(1, 24), (1, 36), (2, 16), (3, 48)], ids=str)
def test_bands_are_written_with_the_checksums_of_their_payloads(
    writer: MemoryWriter, counts: tuple[int, int]
) -> None:
    """Columns of a table of 3,840 bytes, twenty batches of ``TINY``: cut, loaded, verified, joined
    again."""
    table = {"t": np.arange(40 * 48, dtype=np.int16).reshape(40, 48)}
    tensors = tensors_of(table)
    source = checkpoint_of(table, tensors.whole(), np.zeros(1, np.int64), writer=writer)
    rows, columns = (
        list(div(length, count)) for length, count in zip((40, 48), counts, strict=True)
    )
    cut = [Region((a, c), (b - a, d - c)) for a, b in rows for c, d in columns]
    targets = table_of(tensors, [(0, region) for region in cut])
    units_of_columns = plan_units(
        targets, np.cumsum(targets.nbytes), np.zeros(len(cut), np.bool), writer.run_nbytes
    )
    assert any(unit.share for unit in units_of_columns) == (table["t"].nbytes > units.BATCH_NBYTES)
    stored, _, _ = write(
        source, source.index.entries, targets, np.zeros(len(cut), np.int64), writer, gap=5
    )
    for row in range(len(targets)):
        Evidence(stored, stored.index.entries).read_whole(row)
    assert same(load(stored)[0], table["t"])
    again, _, _ = write(
        stored, stored.index.entries, tensors.whole(), np.zeros(1, np.int64), writer
    )
    assert same(load(again)[0], table["t"])


def test_a_part_of_a_strided_array_is_copied_and_no_more() -> None:
    """Its elements have other places in memory than in the payload, so they are copied; the array
    is never copied."""
    whole = np.arange(1 << 20, dtype=np.float64).reshape(1024, 1024)
    source, expected = source_of({"t": whole.T}), whole.T.tobytes()
    buffer = bytearray(100_001)
    tracemalloc.start()
    source.read_span(0, 4003, memoryview(buffer))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert buffer == expected[4003:104_004]
    assert peak < 4 * len(buffer)
