"""The cores that a process may use, and the threads and the memory that follow from them."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardvar.engine import pieces
from shardvar.engine.evidence import Evidence
from shardvar.engine.pieces import Reading
from shardvar.engine.pool import (
    BLOCK_NBYTES,
    BUFFERS_NBYTES,
    MOST_WORKERS,
    PEAK_BLOCKS,
    WORKERS,
    worker_count,
)
from shardvar.storage.concurrency import usable_cores
from shardvar.verbs.writing import PEAK_NBYTES

V2 = {"proc/self/cgroup": "0::/jobs/mine\n"}
FIVE = (("quota", "500000"), ("period", "100000"))
V1 = {"proc/self/cgroup": "9:name=systemd:/\n4:cpu,cpuacct:/jobs\n0::/\n"}


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 64 cores, of which the process has 16."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 16),
        (V2, 16),
        (V2 | {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        (V2 | {"sys/fs/cgroup/jobs/mine/cpu.max": "400000 100000\n"}, 4),
        (V2 | {"sys/fs/cgroup/jobs/mine/cpu.max": "150000 100000\n"}, 2),
        (V2 | {"sys/fs/cgroup/jobs/mine/cpu.max": "1000 100000\n"}, 1),
        (V2 | {"sys/fs/cgroup/jobs/mine/cpu.max": "6400000 100000\n"}, 16),
        (V2 | {"sys/fs/cgroup/jobs/mine/cpu.max": "800000 100000", "sys/fs/cgroup/jobs/cpu.max": "300000 100000"}, 3),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "3::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 16),
        ({"proc/self/cgroup": "0:memory:/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 16),
        (V1 | {f"sys/fs/cgroup/cpu/jobs/cpu.cfs_{name}_us": text for name, text in FIVE}, 5),
        (V1 | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 16),
        (V2 | {"sys/fs/cgroup/jobs/mine/cpu.max": "0 0"}, 16),
        (V2 | {"sys/fs/cgroup/jobs/mine/cpu.max": "what is this \xff"}, 16),
        ({"proc/self/cgroup": "0::/../../etc\n:::\n\n7"}, 16),
    ],
)  # fmt: skip
def test_the_least_of_affinity_and_quotas_counts(
    files: dict[str, str], cores: int, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="latin-1")
    assert usable_cores(str(tmp_path)) == cores


def test_without_affinity_the_cores_of_the_machine_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert usable_cores(str(tmp_path)) == 64


def test_memory_is_bounded_whatever_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/performance.md: at most eight blocks of 4 MiB for each of at most 12 threads, and at
    most 192 MiB."""
    counts = [worker_count(cores) for cores in range(1, 5000)]
    assert min(counts) == 2
    assert counts == sorted(counts)
    assert max(counts) == MOST_WORKERS
    assert all(counts[cores - 1] == cores for cores in range(2, MOST_WORKERS))
    assert BUFFERS_NBYTES == 192 << 20
    assert min(WORKERS * PEAK_BLOCKS * BLOCK_NBYTES, BUFFERS_NBYTES) == PEAK_NBYTES
    monkeypatch.setattr(pieces, "WORKERS", MOST_WORKERS)
    reading = Reading(Evidence(SimpleNamespace(traits=None), None))  # type: ignore[arg-type]
    for blocks in range(1, PEAK_BLOCKS + 1):
        threads = reading.threads(blocks * BLOCK_NBYTES)
        assert threads * blocks * BLOCK_NBYTES <= BUFFERS_NBYTES
        assert threads == MOST_WORKERS or (threads + 1) * blocks * BLOCK_NBYTES > BUFFERS_NBYTES
