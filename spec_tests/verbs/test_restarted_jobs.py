"""A job that has failed in a save, and starts again under the name of the run."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import IncompleteCheckpoint
from shardvar.planning.index import Metadata
from shardvar.verbs.together.run import SaveOptions, find_run
from shardvar.verbs.together.shares import save_with_objects

TABLE = np.arange(12.0)


class _Group(dict[str, str]):
    """The processes of one job, none of which ends."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = Semaphore(0)

    def tell(self, key: str, text: str) -> None:
        self[key] = text

    def told(self, key: str) -> str | None:
        self.questions.release()
        return self.get(key)

    def ended(self, processes: Sequence[int]) -> list[int]:
        return []


def _save(path: Path, process: int, count: int, group: _Group, timeout: float) -> None:
    rows = len(TABLE) // count
    start = process * rows
    shard = sv.LocalShard(TABLE[start : start + rows], offset=(start,), full_shape=TABLE.shape)
    options = SaveOptions(timeout=timeout)
    run = find_run(path, "step-7", count, None, peers=group, options=options)
    save_with_objects(run, process, {"table": shard}, Metadata())


@pytest.mark.parametrize(("before", "count"), [(2, 2), (3, 2), (2, 3)])
def test_a_new_job_is_not_told_the_error_of_the_one_before(
    before: int, count: int, tmp_path: Path
) -> None:
    """Also if its processes look before process 0 begins, and are of another number."""
    with pytest.raises(IncompleteCheckpoint, match="did not save within"):
        _save(tmp_path / "ck", 0, before, _Group(), 0.01)
    group = _Group()
    with ThreadPoolExecutor(count) as pool:
        others = [
            pool.submit(_save, tmp_path / "ck", process, count, group, 30)
            for process in range(1, count)
        ]
        for _ in others:
            group.questions.acquire(timeout=5)
        _save(tmp_path / "ck", 0, count, group, 30)
        assert [each.result() for each in others]
    assert (sv.load(tmp_path / "ck")["table"] == TABLE).all() and sv.verify(tmp_path / "ck").ok
    assert len([*tmp_path.iterdir()]) == 1 + count


def test_a_process_that_is_late_is_told_the_error_of_its_own_job(tmp_path: Path) -> None:
    group = _Group()
    for process, timeout in ((0, 0.01), (1, 3600)):
        with pytest.raises(IncompleteCheckpoint, match="Process 1 of 2 did not save"):
            _save(tmp_path / "ck", process, 2, group, timeout)
