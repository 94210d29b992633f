"""Reads of remote files, planned by the cost of a request: what is compared is read once, and
requests are few.

The requests are counted at a bucket in memory; how many are under way at a time is held by a
barrier, not by a clock.
"""

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.engine import pieces, read
from shardvar.engine.evidence import Evidence
from shardvar.engine.pieces import Reading, read_units
from shardvar.engine.pool import BLOCK_NBYTES, WORKERS
from shardvar.layout.region import Region
from shardvar.planning.slices import TensorTable
from shardvar.storage import remote
from shardvar.storage.protocol import Traits
from shardvar.storage.remote import AHEAD_NBYTES, TRAITS
from shardvar.storage.requests import Head
from shardvar.wire.crc import CRC32C
from spec_tests.engine.test_pieces import read_together, set_sizes, several_regions, two_tables
from spec_tests.helpers.memory_bucket import Gate, MemoryBucket, in_bucket
from spec_tests.helpers.memory_format import MemoryWriter, checkpoint_of

WRITERS = [MemoryWriter(), MemoryWriter(None), MemoryWriter(CRC32C, 16)]


@given(
    several_regions(),
    st.sampled_from(WRITERS),
    st.sampled_from([16, 64, 256]),
    st.booleans(),
    st.booleans(),
)
@example((np.dtype("f4"), (8, 8), [(0, Region((0, 3), (8, 1)))]), WRITERS[2], 64, False, True)
def test_regions_that_are_compared_at_once_are_the_regions(
    given: Any, writer: MemoryWriter, block: int, turned: bool, in_threads: bool
) -> None:
    """Whatever guards the payloads; no byte of them is read twice, the comparison included."""
    dtype, shape, regions = given
    tables = two_tables(dtype, shape)
    tensors = TensorTable.of([(key, dtype.name, shape) for key in tables])
    source = checkpoint_of(tables, tensors.whole(), np.zeros(2, np.int64), writer=writer)
    options: Any = {"turned": turned, "by_runs": True, "in_threads": in_threads}
    sizes = {"BLOCK_NBYTES": block, "SMALL_NBYTES": 16, "_GAP_NBYTES": 0}
    read_together(source, tables, regions, **options, **sizes)
    assert source.nbytes_read <= sum(table.nbytes + 16 for table in tables.values())


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 99), st.integers(1, 40)), max_size=6),
    st.sampled_from(WRITERS),
    st.sampled_from([16, 32, 64]),
)
def test_units_are_what_checksums_cover_of_the_bytes(
    ranges: list[tuple[int, int, int]], writer: MemoryWriter, block: int
) -> None:
    """Byte by byte: those of each run, each payload, or each range that holds a byte which is
    wanted, each once."""
    sizes = [45, 100, 139]
    arrays = {str(row): np.zeros(nbytes, np.uint8) for row, nbytes in enumerate(sizes)}
    tensors = TensorTable.of([(key, "uint8", array.shape) for key, array in arrays.items()])
    source = checkpoint_of(arrays, tensors.whole(), np.zeros(3, np.int64), writer=writer)
    wanted = [
        (row, min(start, sizes[row] - 1), min(start + nbytes, sizes[row]))
        for row, start, nbytes in ranges
    ]
    rows, starts, stops = (
        (np.array(column, np.int64) for column in zip(*wanted, strict=True))
        if wanted
        else [np.zeros(0, np.int64)] * 3
    )
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, BLOCK_NBYTES=block)
        units = read_units(Evidence(source, source.index.entries), rows, rows, starts, stops)
    step = writer.run_nbytes or (max(sizes) if writer.crc else 1)
    expected = {
        (row, byte)
        for row, start, stop in wanted
        for byte in range(start // step * step, min(-(-stop // step) * step, sizes[row]))
    }
    found = [
        (row, byte)
        for row, start, nbytes in zip(
            units.source.tolist(), units.source_start.tolist(), units.nbytes.tolist(), strict=True
        )
        for byte in range(start, start + nbytes)
    ]
    assert len(found) == len(expected) and set(found) == expected
    assert not len(units) or units.nbytes.max() <= (writer.run_nbytes or block)


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("step", [2, 3, 8])
def test_what_lies_between_long_steps_is_left_out_where_runs_have_checksums(
    monkeypatch: pytest.MonkeyPatch, step: int, is_full: bool
) -> None:
    """Each row is one run here."""
    table = np.arange(64 * 16).astype(np.uint8).reshape(64, 16)
    monkeypatch.setattr(read, "BLOCK_NBYTES", 16)
    tensors = TensorTable.of([("t", "uint8", table.shape)])
    source = checkpoint_of({"t": table}, tensors.whole(), np.zeros(1, np.int64), writer=WRITERS[2])
    wanted = [("t", slice(None, None, step))]
    (found,), _ = read.read_batch(source, wanted, source.index.entries, is_full=is_full)
    assert np.array_equal(found, table[::step])
    assert source.nbytes_read == found.nbytes


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(1, 5)), min_size=1, max_size=9
    )
)
def test_the_gaps_that_are_read_along_are_the_widest_that_are_affordable(
    steps: list[tuple[int, int, int]],
) -> None:
    file = np.sort(np.array([step[0] for step in steps]))
    start = np.cumsum([gap + nbytes for _, gap, nbytes in steps])
    nbytes = np.array([nbytes for _, _, nbytes in steps])
    traits = Traits(small_nbytes=1, gap_nbytes=9, waste_nbytes=20, requests=2)
    gaps = [
        int(start[at + 1] - start[at] - nbytes[at])
        for at in range(len(steps) - 1)
        if file[at] == file[at + 1]
    ]

    def waste(width: int) -> int:
        return sum(gap for gap in gaps if 0 < gap <= width)

    found = pieces.affordable_gap(file, start, nbytes, traits)
    assert waste(found) <= 20 and found <= 9
    assert all(waste(width) > 20 or waste(width) == waste(found) for width in range(found, 10))


# --- Requests to a bucket


@dataclass
class CountedBucket(MemoryBucket):
    """A bucket that says what was read of data files, and can keep answers back until enough
    requests are under way."""

    reads: list[int] = field(default_factory=list)
    barrier: threading.Barrier | None = None
    reading: Gate = field(default_factory=lambda: Gate(0, lambda _: True))
    """Opens once enough requests are under way, and answers none before."""
    now: int = 0
    most: int = 0
    guard: Any = field(default_factory=threading.Lock)

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        if "svdata" not in key and "safetensors" not in key and ".data-" not in key:
            return super().read(key, head, start, nbytes)
        with self.guard:
            self.reads.append(nbytes)
            self.now += 1
            self.most = max(self.most, self.now)
        if self.barrier is not None:
            self.barrier.wait(timeout=60)
        self.reading(key)
        with self.guard:
            self.now -= 1
        return memoryview(self.files[key])[start : start + nbytes]


@pytest.mark.parametrize(
    ("form", "count"),
    [
        ("shardvar", 1),
        ("shardvar", 100),
        ("tensorflow", 1),
        ("tensorflow", 100),
        ("safetensors", None),
    ],
)
def test_a_column_is_read_in_a_few_requests_and_once(form: str, count: int | None) -> None:
    """Of a table of 8 MiB in one slice or a hundred: as many requests as blocks, and each byte
    once."""
    table = np.arange(1 << 21, dtype="<f4").reshape(1 << 11, 1 << 10)
    bucket = CountedBucket()
    url = "s3://bucket/run/model" + (".safetensors" if form == "safetensors" else "")
    with in_bucket(bucket):
        sv.save(url, {"w": table}, partition=count, format=form)
        with sv.open_checkpoint(url) as reader:
            assert reader["w"].shape == table.shape
            bucket.reads.clear()
            assert np.array_equal(reader["w"][:, 3], table[:, 3])
    assert sum(bucket.reads) <= table.nbytes + AHEAD_NBYTES and len(bucket.reads) <= 5


def test_as_many_requests_are_under_way_as_the_storage_bears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixteen small tensors among others that are not wanted: two rounds of eight, and no ninth
    meanwhile."""
    monkeypatch.setattr(remote, "AHEAD_NBYTES", 0)
    monkeypatch.setattr(
        remote, "TRAITS", Traits(small_nbytes=1 << 20, gap_nbytes=99, waste_nbytes=99, requests=8)
    )
    tensors = {f"t{i:02}": np.full(20_000 if i % 2 else 25, i, "<f4") for i in range(32)}
    bucket = CountedBucket()
    options = sv.StorageOptions(requests=8, short_requests=8)
    with in_bucket(bucket), sv.use_storage_options(options):
        sv.save("s3://bucket/run/model", tensors)
        bucket.reads.clear()
        bucket.barrier = threading.Barrier(8)
        found = sv.load("s3://bucket/run/model", sorted(tensors)[::2])
    assert all(np.array_equal(array, tensors[key]) for key, array in found.items())
    assert bucket.reads == [100] * 16 and bucket.most == 8


def test_neighbours_come_with_one_request_and_little_is_wasted() -> None:
    """Sixteen small tensors with 4 KB between each two of them come together; with 400 KB,
    apart."""
    for size, most in ((1000, 1), (100_000, 16)):
        bucket = CountedBucket()
        tensors = {f"t{i:02}": np.full(size if i % 2 else 25, i, "<f4") for i in range(32)}
        with in_bucket(bucket):
            sv.save("s3://bucket/run/model", tensors, policy=sv.MaxShardSizePolicy(1 << 30))
            found = sv.load("s3://bucket/run/model", sorted(tensors)[::2])
        assert all(np.array_equal(array, tensors[key]) for key, array in found.items())
        assert len(bucket.reads) <= most
        assert sum(bucket.reads) <= 16 * 100 + AHEAD_NBYTES + TRAITS.waste_nbytes


def test_the_bytes_under_way_are_bounded() -> None:
    """A few bytes use the most requests, blocks the fewest; on a disk the processors decide."""
    on_disk, in_bucket = (
        Reading(Evidence(SimpleNamespace(traits=traits), None)) for traits in (None, TRAITS)
    )  # type: ignore[arg-type]
    sizes = [1, 1 << 20, BLOCK_NBYTES, 1 << 30]
    assert [on_disk.threads(nbytes) for nbytes in sizes] == [*[max(WORKERS, 4)] * 3, 2]
    assert 64 <= TRAITS.short_requests <= 512
    assert [in_bucket.threads(nbytes) for nbytes in sizes] == [
        TRAITS.short_requests,
        64,
        TRAITS.in_flight_nbytes // BLOCK_NBYTES,
        2,
    ]


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors"])
def test_a_thousand_rows_take_three_round_trips_and_twice_their_bytes(form: str) -> None:
    """Of 250,000 rows of 64 bytes. As many requests are under way as two rounds take, so that each
    waits for the others here. Checksums cover more than that, so none is compared, which is noted;
    on request all are."""
    rng = np.random.default_rng(0)
    table, rows = rng.random((250_000, 16), np.float32), rng.integers(-250_000, 250_000, 1000)
    tensors: dict[str, Any] = {"table": table, "other": np.ones(3)}
    bucket = CountedBucket()
    url = "s3://bucket/run/model" + (".safetensors" if form == "safetensors" else "")
    with in_bucket(bucket):
        partition: Any = {"table": 3} if form != "safetensors" else None
        sv.save(url, tensors, format=form, partition=partition)
        with sv.open_checkpoint(url) as reader:
            assert reader["other"][...].tolist() == [1, 1, 1]
            bucket.reads.clear()
            bucket.reading = Gate(TRAITS.short_requests, lambda _: True)
            found = reader["table"][rows]
            assert np.array_equal(found, table[rows])
            assert -(-len(bucket.reads) // TRAITS.short_requests) <= 2  # and one for the index
            assert sum(bucket.reads) <= 2 * found.nbytes
            guarded = form != "safetensors"
            assert [key for key, _ in reader.unverified] == ["table"] * guarded
            bucket.reads.clear()
            assert np.array_equal(reader.read("table", rows, verify="full"), table[rows])
            assert (sum(bucket.reads) >= 0.9 * table.nbytes) == guarded
            assert sum(bucket.reads) <= 1.1 * table.nbytes


@pytest.mark.parametrize("form", ["shardvar", "safetensors", "tensorflow"])
def test_requests_of_one_batch_share_what_they_need(form: str) -> None:
    """Regions that overlap and repeat come once, and runs that are few are compared."""
    table = np.arange(1 << 18, dtype=np.float32).reshape(1 << 12, 64)
    bucket = CountedBucket()
    url = "s3://bucket/run/model" + (".safetensors" if form == "safetensors" else "")
    with in_bucket(bucket):
        sv.save(url, {"w": table, "b": np.ones(5)}, format=form)
        with sv.open_checkpoint(url) as reader:
            assert reader["w"].shape == table.shape
            bucket.reads.clear()
            wanted: list[Any] = [
                np.s_[:3000],
                np.s_[1000:],
                np.s_[5:4000:1, :],
                1500,
                np.s_[:, 3],
                [7, 9, 7],
            ]
            found = reader.read_many([("w", each) for each in wanted] + [("b", None)] * 3)
            for each, array in zip(wanted, found, strict=False):
                assert np.array_equal(array, table[each])
            assert sum(bucket.reads) <= table.nbytes + AHEAD_NBYTES and len(bucket.reads) <= 4
            assert bool(reader.unverified) == (form == "tensorflow")
