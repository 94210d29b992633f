"""The fence of ``save_shards``: no checkpoint mixes attempts, and no process returns what the others
do not get.

By a search of all interleavings of a model, whose defects must be noticed, and by the real code in
many orders. And what it costs in a bucket.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from threading import Semaphore
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    IncompleteCheckpoint,
    InconsistentTensor,
    OverlappingSlices,
    StorageError,
)
from shardvar.planning.index import Metadata
from shardvar.storage.requests import Head
from shardvar.verbs.locate import find_target
from shardvar.verbs.together import fence
from shardvar.verbs.together.run import END, Run, SaveOptions, find_run
from shardvar.verbs.together.shares import save_with_objects
from spec_tests.helpers.memory_bucket import CountingBucket, MemoryBucket, in_bucket
from spec_tests.helpers.share_model import DEFECTS, search
from spec_tests.helpers.share_stage import (
    Stage,
    StagedBucket,
    on_stage,
    saves_of,
    tensors_of,
    violation,
)
from spec_tests.helpers.shared_saves import demo_share, save_one
from spec_tests.helpers.step_jobs import together as together_of
from spec_tests.helpers.thoroughness import EXHAUSTIVE

# --- All interleavings of the model

CASES: list[dict[str, Any]] = [
    {"count": 2},
    {"count": 2, "same": True},
    {"count": 2, "deaths": 1},
    {"count": 3, "jobs": 1, "deaths": 1},
]
LONG_CASES: list[dict[str, Any]] = [
    {"count": 2, "jobs": 3},
    {"count": 2, "jobs": 3, "same": True},
    {"count": 3},
    {"count": 3, "same": True},
    {"count": 3, "deaths": 1},
]


@pytest.mark.parametrize("case", CASES + LONG_CASES * EXHAUSTIVE)
def test_no_interleaving_of_the_model_mixes_attempts_or_outcomes(case: dict[str, Any]) -> None:
    number, found = search(**case)
    assert not found and number > 1000


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_search_finds_each_rule_that_the_model_leaves_out(defect: str) -> None:
    assert search(2, defect=defect)[1]


# --- Many interleavings of the real code

NUMBER = 2000 if EXHAUSTIVE else 10


@pytest.mark.parametrize("same", [False, True], ids=["other values", "same values"])
@pytest.mark.parametrize("count", [2, 3])
def test_a_job_that_is_killed_and_starts_again_gets_one_attempt_or_an_error(
    count: int, same: bool
) -> None:
    """Killed at any step, and started again under the same name, in any order of steps."""
    for seed in range(NUMBER):
        assert violation(Random(seed), count, same=same) == "", seed


@pytest.mark.parametrize("stale", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("how", ["left", "gave up"])
def test_stale_shares_of_any_processes_are_not_committed(stale: tuple[int, ...], how: str) -> None:
    """They are of a job with other values: whether it would have committed later, or has waited in
    vain."""
    bucket = StagedBucket()
    with on_stage(bucket):
        old = saves_of(1, 3, **({"commit": False} if how == "left" else {}))
        bucket.stage.play([old[each] for each in stale], lambda _n: 0, 10_000)
        if stale == (0, 1, 2) and how == "gave up":
            return  # they have committed
        outcomes, _ = bucket.stage.play(saves_of(2, 3), Random(1).randrange, 10_000)
        assert outcomes == ["done"] * 3
        found = sv.load("s3://bucket/run/ck")
    assert {int(value) for array in found.values() for value in array.ravel()} == {2}


def together(saves: list[Callable[[], Any]], choose: Callable[[int], int]) -> list[str]:
    bucket = StagedBucket()
    with on_stage(bucket):
        return bucket.stage.play(saves, choose, 10_000)[0]


@pytest.mark.parametrize("attempt", [None, "a"])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_process_that_fails_before_it_has_a_share_ends_the_attempt_for_all(
    failing: int, attempt: str | None
) -> None:
    """At once, in any order. Without an attempt that the caller names, all may save again."""
    both = {"w": [sv.LocalShard(np.zeros((4, 3)), (row, 0), (6, 3)) for row in range(2)]}
    options: dict[str, Any] = {"timeout": 100_000, "attempt": attempt}
    for seed in range(5 if not EXHAUSTIVE else 100):
        told: list[str] = []

        def again(save: Callable[[], Any], next_save: Callable[[], Any]) -> None:
            with pytest.raises(OverlappingSlices) as raised:
                save()
            told.append(raised.value.cause)  # noqa: B023 - of this round
            if attempt is None:
                next_save()

        pairs = zip(
            saves_of(1, 3, held={failing: both}, **options), saves_of(2, 3, **options), strict=True
        )
        saves = [partial(again, *pair) for pair in pairs]
        assert together(saves, Random(seed).randrange) == ["done"] * 3, seed
        assert len([each for each in told if each.startswith(f"process {failing}: ")]) == 2


def test_a_process_that_fails_before_any_other_has_begun_raises_its_error_in_time() -> None:
    bad: Any = {7: 1}
    (outcome,) = together(saves_of(1, 3, held={1: bad})[1:2], Random(0).randrange)
    assert outcome == "ArgumentError: The key 7 is a int. Keys are strings."


def test_processes_that_are_alive_after_an_error_may_save_again_in_any_order() -> None:
    """Process 1 sees the call of the attempt that failed first, and must not answer it again. The
    error of the merge reaches every process."""

    def again(save: Callable[[], Any], next_save: Callable[[], Any]) -> None:
        with pytest.raises(InconsistentTensor, match="^The slice .*process 1"):
            save()
        next_save()

    other = {**tensors_of(1, 1, 3), "x": np.full(4, 9)}
    for seed in range(10 if not EXHAUSTIVE else 200):
        first = saves_of(1, 3, held={1: other}, timeout=1000)
        second = saves_of(2, 3, timeout=1000)
        saves = [partial(again, *pair) for pair in zip(first, second, strict=True)]
        draw = Random(seed).choices
        outcomes = together(saves, lambda number, draw=draw: max(draw(range(number), k=3)))  # type: ignore[misc]
        assert outcomes == ["done"] * 3, seed


def test_processes_that_wait_follow_process_0_when_it_starts_again() -> None:
    """Also one that finds the attempt ended by another, which has seen the new call first."""
    restarts = 0
    for seed in range(20 if not EXHAUSTIVE else 500):
        bucket, random = StagedBucket(), Random(seed)
        saves = saves_of(1, 3, timeout=1000)

        def again(stage: Stage = bucket.stage, save: Callable[[], Any] = saves[0]) -> None:
            while not stage.actors[0].outcome:
                stage.step()
            if stage.actors[0].is_dead:
                save()

        with on_stage(bucket):
            death = random.randrange(5, 60), 0
            outcomes, _ = bucket.stage.play([*saves, again], random.randrange, 100_000, death)
            # Process 0 is alone if it died after the commit.
            assert outcomes[1:3] == ["done"] * 2, (seed, outcomes)
        restarts += outcomes[3] == "done" and outcomes[0] == "dead"
    assert restarts > 5


def test_of_two_processes_with_one_number_nobody_returns() -> None:
    for seed in range(5 if not EXHAUSTIVE else 100):
        saves = [*saves_of(1, 2), saves_of(2, 2)[1]]
        outcomes = together(saves, Random(seed).randrange)
        named = [each for each in outcomes if "Process 1 of the run 'r'" in each]
        assert "done" not in outcomes[:1] or outcomes.count("done") == 2, outcomes
        assert named, outcomes


def test_processes_that_disagree_on_their_number_all_get_an_error() -> None:
    for seed in range(3):
        outcomes = together([saves_of(1, 3)[0], saves_of(1, 2)[1]], Random(seed).randrange)
        assert all("is one of 3, not 2" in each or "did not save" in each for each in outcomes)


# --- Attempts that the caller names


def test_shares_of_another_attempt_are_not_seen(tmp_path: Path) -> None:
    path, run = tmp_path / "ck", {"num_processes": 2, "run": "1"}
    first, second = ([demo_share(seed, process, 2) for process in range(2)] for seed in (1, 2))
    save_one(path, first, 0, attempt="a")
    for process in (1, 0):
        save_one(path, second, process, attempt="b")
    with pytest.raises(IncompleteCheckpoint, match="Process 1 of 2 did not save"):
        sv.commit_shards(path, attempt="a", **run)
    for _ in range(2):
        sv.commit_shards(path, attempt="b", **run)
    assert sv.load(path)["step"] == 2
    assert len(os.listdir(tmp_path)) == 3
    with pytest.raises(IncompleteCheckpoint):
        sv.commit_shards(path, attempt="a", **run)
    for attempt, words in (("", "The attempt is empty"), (7, "attempts are strings")):
        with pytest.raises(ArgumentError, match=words):
            sv.commit_shards(path, attempt=attempt, **run)  # type: ignore[arg-type]


def test_processes_that_know_their_attempt_wait_and_commit_in_any_order() -> None:
    for seed in range(5):
        bucket = StagedBucket()
        with on_stage(bucket):
            bucket.stage.play(saves_of(1, 3, attempt="a"), Random(seed).randrange, 20 + seed)
            outcomes, _ = bucket.stage.play(
                saves_of(2, 3, attempt="b"), Random(seed).randrange, 10_000
            )
            assert outcomes == ["done"] * 3
            assert int(sv.load("s3://bucket/run/ck")["x"][0]) == 2


# --- Cost


@pytest.mark.parametrize("form", ["shardvar", "torch"])
@pytest.mark.parametrize("count", [4, *[64] * EXHAUSTIVE])
def test_the_requests_of_a_save_grow_with_the_processes_and_no_data_pass_through_one(
    form: str, count: int
) -> None:
    """At most ten requests a process and some for the commit, no copy, each replica written once."""
    bucket, url = CountingBucket(), f"s3://bucket/run/{form}"
    table = np.random.default_rng(1).standard_normal((count, 20_000))
    replica = np.arange(30_000.0)
    shares: list[dict[str, Any]] = [
        {"w": sv.LocalShard(table[row : row + 1], (row, 0), table.shape), "x": replica}
        for row in range(count)
    ]
    options: dict[str, Any] = {"format": form, "timeout": 120, "commit": True}
    others, committer = {f"process {each}" for each in range(1, count)}, [0]

    def save(process: int) -> Any:
        threading.current_thread().name = f"process {process}"
        return save_one(url, shares, process, **options)

    def noted(key: str, head: Head, start: int, nbytes: int) -> memoryview:
        committer[0] += 0 if threading.current_thread().name in others else nbytes
        return MemoryBucket.read(bucket, key, head, start, nbytes)

    bucket.read = noted  # type: ignore[method-assign]
    with in_bucket(bucket):
        for _ in range(2):  # a new checkpoint, and one in its place
            bucket.counts.clear()
            committer[0] = 0
            assert not [each for each in together_of(count, save) if isinstance(each, Exception)]
            assert bucket.counts["copy"] == 0
            assert bucket.counts.total() <= 10 * count + 8, bucket.counts
            nbytes = table.nbytes + replica.nbytes
            assert committer[0] <= nbytes / 100
            stored = sum(map(len, bucket.files.values()))
            assert nbytes <= stored <= nbytes * 1.01 + 1000 * count
        assert np.array_equal(sv.load(url)["w"], table)
        assert not sv.verify(url).damages


def test_replicas_that_process_0_holds_are_compared_though_not_written(tmp_path: Path) -> None:
    shares = [{"x": np.zeros(1000)}, {"x": np.ones(1000)}]
    for process in range(2):
        save_one(tmp_path / "ck", shares, process)
    assert [each.stat().st_size for each in tmp_path.glob("*data*")] == [8000]
    with pytest.raises(InconsistentTensor, match="other values in process 1 than in process 0"):
        sv.commit_shards(tmp_path / "ck", num_processes=2, run="1")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"class": "commit", "class": "commit"}', "1", ""])
def test_an_end_that_is_damaged_is_an_error_of_ours(text: str, tmp_path: Path) -> None:
    run = Run(find_target(tmp_path / "model", None, "shardvar"), "7", 2)
    run.target.storage.create_once(run.mark("0" * 32, END), text.encode())
    assert isinstance(fence.read_end(run, "0" * 32), StorageError)


# --- A job that has failed in a save, and starts again under the name of the run

TABLE = np.arange(12.0)


class Group(dict[str, str]):
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


def save_rows(path: Path, process: int, count: int, group: Group, timeout: float) -> None:
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
        save_rows(tmp_path / "ck", 0, before, Group(), 0.01)
    group = Group()
    with ThreadPoolExecutor(count) as pool:
        others = [
            pool.submit(save_rows, tmp_path / "ck", process, count, group, 30)
            for process in range(1, count)
        ]
        for _ in others:
            group.questions.acquire(timeout=5)
        save_rows(tmp_path / "ck", 0, count, group, 30)
        assert [each.result() for each in others]
    assert (sv.load(tmp_path / "ck")["table"] == TABLE).all() and sv.verify(tmp_path / "ck").ok
    assert len([*tmp_path.iterdir()]) == 1 + count


def test_a_process_that_is_late_is_told_the_error_of_its_own_job(tmp_path: Path) -> None:
    group = Group()
    for process, timeout in ((0, 0.01), (1, 3600)):
        with pytest.raises(IncompleteCheckpoint, match="Process 1 of 2 did not save"):
            save_rows(tmp_path / "ck", process, 2, group, timeout)
