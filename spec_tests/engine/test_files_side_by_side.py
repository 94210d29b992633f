"""Several files of one write: which are written at the same time, and how many bytes a write
has."""

import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.engine.arrays import lower
from shardvar.engine.pool import BLOCK_NBYTES, WORKERS
from shardvar.engine.units import plan_units
from shardvar.planning.plan import plan_copies
from shardvar.planning.policies import BalancedPolicy
from shardvar.planning.slices import TensorTable
from shardvar.storage.posix import LocalWritableFile

TABLE = np.arange(6 * BLOCK_NBYTES // 8, dtype=np.int64).reshape(-1, 8)
"""Of six blocks."""


class Writes:
    """The data writes to the local disk, in order, as pairs of the file's name and the number of
    bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, int]] = []
        write = LocalWritableFile.write

        def record(file: LocalWritableFile, start: int, buffer: memoryview | bytes) -> None:
            self.seen.append((file.name, memoryview(buffer).nbytes))
            write(file, start, buffer)

        monkeypatch.setattr(LocalWritableFile, "write", record)

    @property
    def payloads(self) -> list[tuple[str, int]]:
        """Those of payloads, which are large here; frames and indices are small."""
        return [each for each in self.seen if each[1] >= 1 << 16]

    def turns(self) -> int:
        """The number of times that a write is to another file than the one before it."""
        names = [name for name, _ in self.payloads]
        return sum(name != before for before, name in pairwise(names))


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(monkeypatch)


def test_threads_write_several_files_side_by_side(tmp_path: Path, writes: Writes) -> None:
    """On a local disk, a file begins before the one before it is finished, and every byte
    arrives."""
    tensors = {f"w{number}": TABLE + number for number in range(WORKERS + 2)}
    report = sv.save(tmp_path / "ck", tensors, policy=sv.MaxShardSizePolicy(TABLE.nbytes))
    assert report.num_files == len(tensors)
    assert writes.turns() >= len(tensors)
    loaded = sv.load(tmp_path / "ck")
    assert all(np.array_equal(loaded[key], tensor) for key, tensor in tensors.items())


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    """As it is written, and not at the end."""
    sv.save(tmp_path / "a", {f"w{number}": TABLE + number for number in range(3)})
    done = list[int]()
    policy = BalancedPolicy(3)
    report = sv.reshard(
        tmp_path / "a", tmp_path / "b", partition=2, policy=policy, progress=done.append
    )
    assert sum(done) == report.nbytes and max(done) <= report.nbytes // 3


def test_writes_are_small_where_files_are_read_and_several_written(
    tmp_path: Path, writes: Writes
) -> None:
    """A save, and a file that threads share, are written in blocks; files of a reshard that are
    written side by side in 512 KiB at a time."""
    sv.save(tmp_path / "ck", {"w": TABLE})
    sv.reshard(tmp_path / "ck", tmp_path / "one", partition=2)
    assert {nbytes for _, nbytes in writes.payloads} == {BLOCK_NBYTES}
    writes.seen.clear()
    sv.reshard(tmp_path / "ck", tmp_path / "two", partition=2, policy=BalancedPolicy(2))
    assert {nbytes for _, nbytes in writes.payloads} == {512 << 10}
    assert writes.turns() > 1
    assert np.array_equal(sv.load(tmp_path / "two")["w"], TABLE)


def test_files_of_payloads_that_are_read_in_order_are_written_one_after_the_other(
    tmp_path: Path, writes: Writes
) -> None:
    """A compressed payload that two files need is read from its beginning to its end once."""
    table = np.zeros_like(TABLE)  # packed in a tenth of the time of other numbers
    table[::1000] = 1
    np.savez_compressed(tmp_path / "ck.npz", w=table)
    sv.reshard(
        tmp_path / "ck.npz",
        tmp_path / "out",
        partition=2,
        format="shardvar",
        policy=BalancedPolicy(2),
    )
    assert len({name for name, _ in writes.payloads}) == 2
    assert writes.turns() == 1
    assert np.array_equal(sv.load(tmp_path / "out")["w"], table)


@pytest.mark.parametrize("dtype", ["float32", "string"])
@pytest.mark.parametrize("is_range", [True, False])
def test_planning_one_file_takes_memory_for_its_own_slices_and_not_for_those_of_the_checkpoint(
    dtype: str, is_range: bool
) -> None:
    """There may be as many files as tensors, so that what each file takes for all tensors would be
    their square."""
    slices = TensorTable.of((f"w{row}", dtype, (4, 8)) for row in range(100_000)).whole()
    plan = plan_copies(slices, slices.take(np.arange(40, 44)))
    tracemalloc.start()
    try:
        moves, _ = lower(plan)
        units = list(plan_units(plan.targets, np.arange(4) * 128, np.full(4, is_range), 0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert moves.source.tolist() == [40, 41, 42, 43] and units[0].first == 0
    assert peak < 100_000
