"""Each fast way to read payloads gives what the plain one gives: read the whole payload, then cut.

Ranges side by side in one span, long ranges in blocks, parts by the runs that hold them, payloads
that are decoded, arrays in memory, regions alone and interleaved: all against ``plain``, with sizes
so small that each way is taken.
"""

import cProfile
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shardvar as sv
import shardvar.engine
from shardvar.engine import pieces, read
from shardvar.engine.arrays import LazyPayload, MoveTable, strides_of
from shardvar.engine.evidence import Evidence
from shardvar.engine.pieces import Reading, read_moves
from shardvar.engine.pool import WORKERS, bytes_of, run_in_order, word_of
from shardvar.engine.read import RegionTable, read_regions
from shardvar.errors import CorruptCheckpoint
from shardvar.formats.protocol import WrappedSource
from shardvar.layout.region import Region
from shardvar.planning.slices import TensorTable
from shardvar.storage.posix import LocalReadableFile
from shardvar.verbs.save import source_of
from shardvar.wire.crc import CRC32C
from spec_tests.helpers.memory_format import MemoryWriter, checkpoint_of


def set_sizes(patch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Give the constants of these names other values, in every module of the engine that has
    them."""
    patched = set[str]()
    for info in pkgutil.iter_modules(shardvar.engine.__path__, "shardvar.engine."):
        module = import_module(info.name)
        for name in sizes.keys() & vars(module).keys():
            patch.setattr(module, name, sizes[name])
            patched.add(name)
    assert patched == sizes.keys(), "a constant has another name now, and some path is not taken"


@pytest.fixture(params=[(64, 16, 4), (32, 4, 0)], ids=str, scope="module")
def tiny(request: pytest.FixtureRequest) -> Iterator[None]:
    """Blocks, small ranges and gaps of a few bytes."""
    with pytest.MonkeyPatch.context() as patch:
        block, small, gap = request.param
        set_sizes(patch, BLOCK_NBYTES=block, SMALL_NBYTES=small, _GAP_NBYTES=gap)
        yield


def plain(source: Any, row: int) -> bytes:
    """A payload, read whole and in one go."""
    entries = source.index.entries
    payload = bytearray(int(entries.slices.nbytes[row]))
    source.read_into(entries, row, 0, memoryview(payload))
    return bytes(payload)


@st.composite
def sources(draw: st.DrawFn) -> Any:
    """Payloads of 0 to 150 bytes in one file or two, guarded in any way, some coded; or arrays in
    memory."""
    sizes = draw(st.lists(st.integers(0, 150), min_size=1, max_size=5))
    arrays = {
        str(row): (np.arange(size) * (row + 3) % 251).astype(np.uint8)
        for row, size in enumerate(sizes)
    }
    if draw(st.booleans()):
        turned = {key: np.repeat(array.astype(">u2"), 2)[::2] for key, array in arrays.items()}
        return source_of(turned if draw(st.booleans()) else arrays)
    writer = draw(st.sampled_from([MemoryWriter(), MemoryWriter(None), MemoryWriter(CRC32C, 16)]))
    coded = draw(st.sets(st.sampled_from("012"))) if not writer.run_nbytes else set()
    tensors = TensorTable.of([(key, "uint8", array.shape) for key, array in arrays.items()])
    file = np.arange(len(sizes)) % draw(st.integers(1, 2))
    return checkpoint_of(arrays, tensors.whole(), file, writer=writer, coded=coded.__contains__)


@st.composite
def moves_of(draw: st.DrawFn, source: Any) -> MoveTable:
    """Ranges of the payloads, many of them side by side, each to a target that it fills."""
    sizes = source.index.entries.slices.nbytes.tolist()
    rows, starts, nbytes = [], [], []
    for row in draw(st.lists(st.integers(0, len(sizes) - 1), max_size=8)):
        start = draw(st.integers(0, sizes[row]))
        stop = draw(st.one_of(st.just(sizes[row]), st.integers(start, sizes[row])))
        rows.append(row), starts.append(start), nbytes.append(stop - start)
    count = np.arange(len(rows))
    return MoveTable(
        *(np.array(each, np.int64) for each in (rows, starts, count, count * 0, nbytes))
    )


@given(st.data(), st.booleans(), st.booleans())
def test_ranges_are_what_is_cut_from_the_whole_payload(
    tiny: None, data: st.DataObject, by_runs: bool, in_threads: bool
) -> None:
    source = data.draw(sources())
    entries, moves = source.index.entries, data.draw(moves_of(source))
    buffers = {
        target: memoryview(bytearray(nbytes)) for target, nbytes in enumerate(moves.nbytes.tolist())
    }
    told: list[int] = []
    reading = Reading(Evidence(source, entries), told.append, in_threads)
    read_moves(reading, moves, buffers, by_runs=by_runs)
    reading.evidence.check()
    for row, start, target, _, nbytes in zip(
        *(column.tolist() for column in moves.columns()), strict=True
    ):
        assert bytes(buffers[target]) == plain(source, row)[start : start + nbytes]


@given(st.data(), st.booleans())
def test_without_buffers_every_payload_is_compared_and_every_error_kept(
    tiny: None, data: st.DataObject, is_cut_short: bool
) -> None:
    """What ``verify`` does: the rows with an error are those that the plain way finds one of."""
    writer = data.draw(st.sampled_from([MemoryWriter(), MemoryWriter(CRC32C, 16)]))
    sizes = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=6))
    arrays = {
        str(row): (np.arange(size) * 7 % 251).astype(np.uint8) for row, size in enumerate(sizes)
    }
    tensors = TensorTable.of([(key, "uint8", array.shape) for key, array in arrays.items()])
    source = checkpoint_of(arrays, tensors.whole(), np.zeros(len(sizes), np.int64), writer=writer)
    entries = source.index.entries
    for place in data.draw(st.lists(st.integers(8, len(source.files[0]) - 1), max_size=3)):
        source.files[0][place] ^= 0x11
    if is_cut_short:
        del source.files[0][data.draw(st.integers(8, len(source.files[0]) - 1)) :]
    expected = set()
    for row in range(len(entries)):
        try:
            Evidence(source, entries).read_whole(row)
        except sv.errors.CheckpointError:
            expected.add(row)
    evidence = Evidence(source, entries, errors={})
    rows, zeros = np.arange(len(entries)), np.zeros(len(entries), np.int64)
    read_moves(Reading(evidence), MoveTable(rows, zeros, rows, zeros, entries.slices.nbytes), None)
    evidence.check()
    assert evidence.errors is not None and evidence.errors.keys() == expected


def test_parts_that_make_a_payload_are_read_once_and_others_again() -> None:
    """A payload that two files share is compared by its two parts; of half a payload, the other
    half is read for it."""
    arrays = {"a": np.arange(200, dtype=np.uint8)}
    tensors = TensorTable.of([("a", "uint8", (200,))])
    source = checkpoint_of(arrays, tensors.whole(), np.zeros(1, np.int64))
    evidence = Evidence(source, source.index.entries)
    for start in (0, 100):
        evidence.read(0, start, memoryview(bytearray(100)))
    evidence.check()
    assert source.nbytes_read == 200
    half = Evidence(source, source.index.entries)
    half.read(0, 100, memoryview(bytearray(100)))
    half.check()
    assert source.nbytes_read == 200 + 100 + 200
    source.files[0][20] ^= 1
    with pytest.raises(CorruptCheckpoint):
        half.check()


@dataclass(slots=True)
class Counted(WrappedSource):
    """A source that says which ranges were read of it, as (start, bytes)."""

    inner: Any = field()
    reads: list[tuple[int, int]] = field(default_factory=list)

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        self.reads.append((start, len(buffer)))
        self.inner.read_span(file, start, buffer)

    def read_into(self, entries: Any, row: int, start: int, buffer: memoryview) -> None:
        self.reads.append((start, len(buffer)))
        self.inner.read_into(entries, row, start, buffer)


@st.composite
def several_regions(
    draw: st.DrawFn,
) -> tuple[np.dtype[Any], tuple[int, ...], list[tuple[int, Region]]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    ranges = [
        st.integers(0, n - 1).flatmap(lambda a, n=n: st.tuples(st.just(a), st.integers(1, n - a)))
        for n in shape
    ]
    region = st.tuples(*ranges).map(
        lambda pairs: Region((a for a, _ in pairs), (n for _, n in pairs))
    )
    dtype = draw(st.sampled_from(["i1", "i2", "f4", "f8", "c16"]))
    return (
        np.dtype(dtype),
        shape,
        draw(st.lists(st.tuples(st.integers(0, 1), region), min_size=1, max_size=8)),
    )


def wanted_by(entries: Any, regions: list[tuple[int, Region]], outs: list[Any]) -> RegionTable:
    """The regions of entries of one shape, each to its own array."""
    shape, itemsize = entries.slices.shape[:1], outs[0].itemsize
    count = len(regions)
    columns = (
        [row for row, _ in regions],
        [region.offset for _, region in regions],
        [region.shape for _, region in regions],
        strides_of(shape).repeat(count, axis=0) * itemsize,
        [itemsize] * count,
        range(count),
        [0] * count,
        [out.strides for out in outs],
    )
    return RegionTable(*(np.array(column, np.int64) for column in columns))


def read_together(
    source: Any,
    tables: dict[str, Any],
    regions: list[tuple[int, Region]],
    *,
    turned: bool = False,
    by_runs: bool = False,
    in_threads: bool = True,
    **sizes: int,
) -> None:
    """Read regions of tables together, and fail unless they are what NumPy cuts."""
    regions, itemsize = sorted(regions, key=lambda each: each[0]), tables["0"].itemsize
    order: Any = "F" if turned else "C"
    outs = [np.zeros(region.shape, word_of(itemsize), order) for _, region in regions]
    buffers = {number: bytes_of(out.T if turned else out) for number, out in enumerate(outs)}
    told: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, **sizes)
        entries = source.index.entries
        reading = Reading(Evidence(source, entries), told.append, in_threads)
        read_regions(reading, wanted_by(entries, regions, outs), buffers, by_runs=by_runs)
        reading.evidence.check()
    assert sum(told) == sum(out.nbytes for out in outs)
    for (row, region), out in zip(regions, outs, strict=True):
        expected = tables[str(row)][region.slices]
        assert np.ascontiguousarray(out).tobytes() == np.ascontiguousarray(expected).tobytes()


def two_tables(dtype: np.dtype[Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Return two tables of different values."""
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    return {str(row): (numbers * (row + 3) % 251).astype(dtype) for row in (0, 1)}


@given(several_regions(), st.sampled_from([16, 64, 256]), st.sampled_from([1, 32]), st.booleans())
@example((np.dtype("f4"), (8, 8), [(0, Region((0, c), (8, 1))) for c in range(8)]), 64, 1, False)
@example((np.dtype("f4"), (8, 8), [(0, Region((0, 3), (8, 1)))]), 64, 1, False)
def test_regions_read_together_are_the_regions(
    given: Any, block: int, small: int, turned: bool
) -> None:
    dtype, shape, regions = given
    tables = two_tables(dtype, shape)
    counted = Counted(source_of(tables))
    sizes = {"BLOCK_NBYTES": block, "SMALL_NBYTES": small}
    read_together(counted, tables, regions, turned=turned, **sizes)
    assert max(nbytes for _, nbytes in counted.reads) <= max(block, small, dtype.itemsize)


@pytest.mark.parametrize(
    ("shape", "regions", "block", "small", "reads"),
    [
        ((8, 8), [Region((0, 0), (4, 8)), Region((4, 0), (4, 8))], 256, 1, [256]),
        ((4, 400), [Region((0, 0), (4, 8)), Region((0, 8), (4, 8))], 6400, 256, [32] * 8),
    ],
    ids=["all of a block", "64 of 1600 bytes"],
)
def test_a_block_is_read_once_if_much_of_it_is_wanted_and_not_if_little_is(
    shape: tuple[int, int], regions: list[Region], block: int, small: int, reads: list[int]
) -> None:
    tables = two_tables(np.dtype("f4"), shape)
    counted = Counted(source_of({"0": tables["0"]}))
    wanted = [(0, region) for region in regions]
    read_together(counted, tables, wanted, BLOCK_NBYTES=block, SMALL_NBYTES=small)
    assert [nbytes for _, nbytes in counted.reads] == reads


@pytest.fixture
def read_nbytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    reads: list[int] = []
    plain = LocalReadableFile.read_into

    def read_into(self: LocalReadableFile, start: int, buffer: memoryview) -> None:
        reads.append(len(buffer))
        plain(self, start, buffer)

    monkeypatch.setattr(LocalReadableFile, "read_into", read_into)
    return reads


@pytest.mark.sample(4)
@pytest.mark.parametrize("form", ["shardvar", "tensorflow"])
@pytest.mark.parametrize("count", [2, 8, 16])
def test_columns_are_cut_in_a_few_readings_however_many_they_are(
    form: str, count: int, tmp_path: Path, read_nbytes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns lie interleaved: read one after the other, each of them would read all of the
    table."""
    set_sizes(monkeypatch, BLOCK_NBYTES=1 << 20, BATCH_NBYTES=3 << 20)
    table = np.arange(1 << 22, dtype=np.int32).reshape(-1, 64)  # 16 MiB, and each of 16 columns one
    sv.save(tmp_path / "rows", {"w": table}, format=form, partition=3)
    read_nbytes.clear()
    sv.reshard(tmp_path / "rows", tmp_path / "columns", partition=[1, count])
    assert sum(read_nbytes) <= 4 * table.nbytes
    np.testing.assert_array_equal(sv.load(tmp_path / "columns")["w"], table)
    read_nbytes.clear()
    sv.reshard(tmp_path / "columns", tmp_path / "again", partition=5)
    assert sum(read_nbytes) <= 4 * table.nbytes
    assert sv.diff(tmp_path / "rows", tmp_path / "again").equal


def test_a_table_of_many_columns_is_read_once_however_large_it_is(
    tmp_path: Path, read_nbytes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 columns of 16 KiB with batches of a quarter of the table: bands of all columns, not all
    rows of some."""
    set_sizes(monkeypatch, BLOCK_NBYTES=1 << 18, BATCH_NBYTES=1 << 20, SMALL_NBYTES=1 << 14)
    table = np.arange(1 << 20, dtype=np.int32).reshape(-1, 256)
    sv.save(tmp_path / "whole", {"w": table})
    read_nbytes.clear()
    sv.reshard(tmp_path / "whole", tmp_path / "columns", partition=[1, 256])
    assert sum(read_nbytes) <= 1.1 * table.nbytes
    assert sv.verify(tmp_path / "columns").ok
    assert sv.diff(tmp_path / "whole", tmp_path / "columns").equal


@given(st.data())
def test_a_series_of_regions_is_copied_as_its_regions_are(data: st.DataObject) -> None:
    """Columns of a block, some at equal distances, to any disjoint places of two buffers; elements
    of 1 to 16 bytes."""
    rows, size = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 2, 4, 8, 16]))
    cuts = data.draw(st.lists(st.sampled_from([1, 2, 2, 3]), min_size=1, max_size=12))
    order = data.draw(st.permutations(range(len(cuts))))
    width = sum(cuts)
    block = np.random.default_rng(0).integers(0, 256, rows * width * size, np.uint8)
    first, starts, place = np.cumsum(cuts) - cuts, [0] * len(cuts), 0
    for number in order:
        starts[number], place = place, place + rows * cuts[number] * size
    target = np.array(
        data.draw(st.lists(st.integers(0, 1), min_size=len(cuts), max_size=len(cuts)))
    )
    shape = np.array([(rows, cut) for cut in cuts])
    table = RegionTable(
        np.zeros(len(cuts), np.int64),
        np.array([(0, at) for at in first.tolist()]),
        shape,
        np.full((len(cuts), 2), (width * size, size)),
        np.full(len(cuts), size),
        target,
        np.array(starts),
        np.column_stack([shape[:, 1] * size, np.full(len(cuts), size)]),
    )
    buffers = [np.zeros(place, np.uint8) for _ in range(2)]
    table.copy(
        bytes_of(block),
        table.starts(),
        {number: bytes_of(buffer) for number, buffer in enumerate(buffers)},
    )
    expected = np.zeros((2, place), np.uint8)
    elements = block.reshape(rows, width, size)
    for number, (at, cut) in enumerate(zip(first.tolist(), cuts, strict=True)):
        mine = elements[:, at : at + cut].ravel()
        expected[target[number], starts[number] : starts[number] + len(mine)] = mine
    np.testing.assert_array_equal(np.stack(buffers), expected)


@pytest.mark.parametrize("shape", [(256, 1024), (1024, 256)], ids=str)
def test_many_columns_take_no_more_steps_of_python_than_many_rows(
    shape: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Function calls are counted, cutting and joining 256 parts: NumPy moves the elements of a few
    bytes."""
    set_sizes(
        monkeypatch,
        BLOCK_NBYTES=1 << 18,
        BATCH_NBYTES=3 << 18,
        SMALL_NBYTES=1 << 14,
        _GAP_NBYTES=4096,
    )
    # The profiler sees one thread.
    monkeypatch.setattr(
        "shardvar.engine.files.run_all", lambda function, items, *_: run_in_order(function, items)
    )
    sv.save(tmp_path / "whole", {"w": np.arange(1 << 18, dtype=np.int32).reshape(shape)})

    def calls(source: str, target: str, partition: Any) -> int:
        profile = cProfile.Profile()
        profile.runcall(sv.reshard, tmp_path / source, tmp_path / target, partition=partition)
        return sum(each.callcount for each in profile.getstats())

    calls("whole", "warm", 2)
    cut = {
        name: calls("whole", name, cut) for name, cut in (("rows", (256, 1)), ("columns", (1, 256)))
    }
    joined = {name: calls(name, f"{name} joined", 1) for name in cut}
    for counts in (cut, joined):
        assert counts["columns"] < 2 * counts["rows"]
    assert sv.diff(tmp_path / "whole", tmp_path / "columns joined").equal


def test_a_task_that_is_one_of_several_threads_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs its items itself, in their order, so that its buffer is its own; alone, it lets a
    pool run them."""
    source = source_of({"t": np.zeros(3)})
    evidence = Evidence(source, source.index.entries)
    pooled = []
    monkeypatch.setattr(
        pieces, "run_all", lambda function, items, workers: pooled.append((list(items), workers))
    )
    assert Reading(evidence, in_threads=False).run(lambda item: -item, [1, 2, 3], 8) == [-1, -2, -3]
    assert pooled == []
    Reading(evidence).run(abs, [1, 2, 3], 8)
    assert pooled == [([1, 2, 3], max(WORKERS, 4))]


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 54)), min_size=1, max_size=6)


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 3)),
    step=st.integers(0, 4),
    cuts=st.none() | st.sets(st.integers(1, 8)),
    spans=SPANS,
)
def test_a_payload_that_is_made_when_it_is_read_has_the_bytes_of_its_array(
    shape: tuple[int, int], step: int, cuts: set[int] | None, spans: list[tuple[int, int]]
) -> None:
    """A few rows are made at a time, up to the next cut, or the whole where no others can be."""
    array, made = np.arange(shape[0] * shape[1], dtype="i2").reshape(shape), list[range]()

    def make(start: int, stop: int) -> np.ndarray[Any, Any]:
        made.append(range(start, stop))
        return array[start:stop]

    ends = None if cuts is None else sorted(each * 2 * shape[1] for each in cuts if each < shape[0])
    payload = LazyPayload(shape, array.dtype, make, step, ends)
    assert (payload.nbytes, payload.row_nbytes) == (array.nbytes, array.nbytes // shape[0])
    for start, nbytes in spans:
        expected = array.tobytes()[start : start + nbytes]
        buffer = bytearray(len(expected))
        payload.fill(start, memoryview(buffer))
        assert buffer == expected
    for rows in made:
        if step and cuts is not None:
            assert 0 < len(rows) <= step and not cuts & {*rows[1:]}
        else:
            assert rows == range(shape[0])


@given(
    length=st.integers(1, 40),
    width=st.integers(1, 40),
    spans=st.lists(st.tuples(st.integers(0, 39), st.integers(1, 40)), min_size=1, max_size=4),
)
def test_blocks_of_regions_follow_each_other_and_are_of_whole_rows(
    length: int, width: int, spans: list[tuple[int, int]]
) -> None:
    """Blocks that others read meet them without a gap, where a block holds a row."""
    rows = [(at, min(count, length - at)) for at, count in spans if at < length] or [(0, length)]
    one = np.ones(len(rows), np.int64)
    offset = np.array([(at, (at + count) % width) for at, count in rows])
    shape = np.array([(count, 1) for _, count in rows])
    strides = np.array([(2 * width, 2)] * len(rows))
    wanted = RegionTable(0 * one, offset, shape, strides, 2 * one, 0 * one, 0 * one, strides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "BLOCK_NBYTES", 32)
        blocks = list(read._blocks(wanted, width))
    assert blocks[0][0] <= wanted.starts().min() and blocks[-1][1] >= wanted.stops().max()
    assert [begin for begin, _ in blocks[1:]] == [end for _, end in blocks[:-1]]
    assert all(0 < end - begin <= 32 for begin, end in blocks)
    if width <= 16:
        assert all(begin % (2 * width) == end % (2 * width) == 0 for begin, end in blocks)
