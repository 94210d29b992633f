"""The benchmarks run, and what they measure is what they say; no test looks at a time."""

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv

pytest.importorskip("benchmarks", reason="the benchmarks stand in the tree, not in the wheel")

from benchmarks import (
    deltas,
    joint,
    layouts,
    lookup,
    partial,
    plan,
    redistribution,
)  # after the skip
from benchmarks.bucket_requests import WRITES, Job
from benchmarks.figures import Figure
from benchmarks.holes import one_tensor, write_holes
from benchmarks.places import Place
from benchmarks.recommenders import Plain, Sharded, draw_batches, initial_values
from benchmarks.setting import Setting
from benchmarks.simulate import NOTICED_SECONDS, Costs, Store, most_useful, predict
from benchmarks.sizes import QUICK
from benchmarks.timing import MOST, Run, compare

SIZES = replace(QUICK, index_entries=300, partial_rows=20_000, plan_slices=100, processes=1)


@pytest.mark.parametrize(("rows", "count", "num_files"), [(1, 1, 1), (5000, 3, 2), (13, 5, 5)])
def test_holes_are_a_checkpoint_of_zeros_with_right_checksums(
    tmp_path: Path, rows: int, count: int, num_files: int
) -> None:
    write_holes(tmp_path / "model", one_tensor(rows, count), num_files)
    assert sv.verify(tmp_path / "model").ok
    assert (sv.load(tmp_path / "model")["table"] == np.zeros((rows, 64), np.float32)).all()
    with sv.open_checkpoint(tmp_path / "model") as reader:
        assert (len(reader.entries()), len(reader.index.files)) == (count, num_files)


def test_the_calls_of_a_comparison_are_interleaved() -> None:
    calls: list[str] = []
    found = compare(
        Run(lambda: calls.append("ours")),
        Run(lambda: calls.append("theirs"), lambda: calls.append("before")),
        60,
    )
    assert found.pairs == MOST
    timed = [call for call in calls if call != "before"][2:]
    assert all({timed[at], timed[at + 1]} == {"ours", "theirs"} for at in range(0, len(timed), 2))
    assert calls.count("before") == calls.count("theirs") == MOST + 1


def test_a_pair_that_takes_too_long_is_the_only_one() -> None:
    """Nothing is as quick as no time at all, so the first pair took too long for it, and counts."""
    calls: list[str] = []
    found = compare(Run(lambda: calls.append("ours")), Run(lambda: calls.append("theirs")), 0)
    assert (found.pairs, calls) == (1, ["ours", "theirs"])


def test_a_figure_is_a_miss_past_its_target_alone() -> None:
    figures = [
        Figure("a", "", "", value, "x", target)
        for value, target in ((1, 1), (1.1, 1), (1, None), (None, 1))
    ]
    assert [figure.verdict for figure in figures] == ["pass", "miss", "", "skipped"]
    assert [Figure.from_json(figure.to_json()) for figure in figures] == figures
    assert Figure("a", "", "", None, "", None, "failed: why", failed=True).verdict == "failed"


def test_what_needs_neither_clock_nor_peer_is_within_its_target(tmp_path: Path) -> None:
    """Bytes and memory are the same on every machine."""
    setting = Setting([Place("disk", tmp_path)], SIZES)
    subjects = (lookup, partial, plan, layouts, redistribution)
    figures = [figure for subject in subjects for figure in subject.measure(setting)]
    assert [figure for figure in figures if figure.verdict == "miss" and figure.unit == "MiB"] == []
    assert all(
        figure.value is not None or figure.note.endswith("is not installed") for figure in figures
    )


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "Adam"])
def test_the_three_servers_train_as_no_server_does_bit_for_bit_and_as_numpy_by_hand(
    optimizer: str,
) -> None:
    """What is timed does the same work; NumPy sums rows that come often in pairs, so it agrees but
    for rounding."""
    first = initial_values(200, 100, 8)
    models = [Sharded(first, optimizer), Sharded(first, optimizer, 0), Plain(first, optimizer)]
    losses = [[model.step(batch) for batch in draw_batches(200, 100, 64, 4)] for model in models]
    assert losses[0] == losses[1] and np.allclose(losses[0], losses[2])
    assert len(models[0].user.embeddings.variables) == 3  # type: ignore[union-attr]
    for name, value in models[0].values().items():
        assert not np.array_equal(value, first[name]), name
        assert np.array_equal(value, models[1].values()[name]), name
        assert np.allclose(value, models[2].values()[name], rtol=0, atol=1e-4), name


def test_a_prediction_is_what_a_queue_of_workers_takes() -> None:
    """Against the recurrence itself, task by task: each begins when it is handed out and a worker
    is free."""
    for count, workers, dispatch in product((1, 2, 3, 7, 20), (1, 2, 3, 8, 30), (0.0, 0.3, 2.0)):
        costs = Costs(task=1.0, byte=0.1, dispatch=dispatch, call=0.5)
        task, begin = 1.0 + 0.1 * 5, list[float]()
        for number in range(count):
            free = begin[number - workers] + task if number >= workers else 0.0
            begin.append(max(number * dispatch, free))
        found = predict(5 * count, 5, workers, costs, Store())
        assert np.isclose(found.seconds, 0.5 + begin[-1] + task)


def test_a_prediction_says_why_more_workers_do_not_help() -> None:
    costs, store = (
        Costs(task=0.1, byte=1e-9, dispatch=1e-4, call=0.0),
        Store(worker=1e9, total=1e10),
    )
    limits = [predict(10**12, 10**9, workers, costs, store).limit for workers in (1, 10, 20, 1000)]
    assert limits == ["workers", "workers", "store", "files"]
    assert predict(10**12, 10**6, 10_000, costs, Store()).limit == "caller"
    best, why = most_useful(10**12, 10**9, costs, store)
    assert why == "store"
    assert best <= 32
    # Never faster than the store, nor than one worker divided by their number.
    for workers in (1, 3, 64, 500):
        found = predict(10**12, 10**9, workers, costs, store).seconds
        assert found >= 2 * 10**12 / store.total
        assert found * workers >= predict(10**12, 10**9, 1, costs, store).seconds * 0.99


BUCKET = Store(
    latency=0.05, worker=1e9, total=1e10, is_bucket=True, reads=5500, writes=3500, copy=1e8
)


def test_a_prediction_of_a_bucket_is_bounded_by_each_of_its_parts() -> None:
    """By what one worker does, the reports to the caller, the requests and the copies."""
    costs = Costs(task=0.01, byte=1e-9, dispatch=1e-4, call=0.1)
    for count, nbytes, workers in product((1, 7, 5000), (10**6, 24 << 20), (1, 4, 1000)):
        job = Job(count, nbytes)
        found = predict(count * nbytes, nbytes, workers, costs, BUCKET)
        rounds = job.rounds_of_file() * -(-count // workers) + job.rounds_of_opening()
        reports = count * job.rounds_of_report / job.reports_at_a_time()
        assert found.seconds >= max(rounds, reports) * BUCKET.latency
        made = job.requests(min(workers, count))
        assert found.seconds >= sum(made[kind] for kind in WRITES) / BUCKET.writes
        renamed = predict(count * nbytes, nbytes, workers, costs, BUCKET, is_renamed=True).seconds
        copies = -(-count // 64) * nbytes / BUCKET.copy
        assert renamed >= found.seconds + copies * 0.999
        lost = predict(count * nbytes, nbytes, workers, costs, BUCKET, lost=2).seconds
        assert lost >= found.seconds + 2 * NOTICED_SECONDS


def test_a_prediction_of_a_bucket_says_which_part_is_the_limit() -> None:
    costs = Costs(task=0.01, byte=1e-9, dispatch=1e-4, call=0.0)

    def limit(workers: int, store: Store = BUCKET, **how: bool) -> str:
        return predict(10**12, 10**8, workers, costs, store, **how).limit  # type: ignore[arg-type]

    assert limit(1) == "workers"
    assert limit(1000) == "caller"
    assert limit(100, replace(BUCKET, latency=1e-5)) == "store"
    assert limit(1000, replace(BUCKET, latency=1e-5, total=1e18, writes=100)) == "requests"
    assert limit(1000, replace(BUCKET, copy=1e6), is_renamed=True) == "commit"


def test_the_rounds_of_a_file_are_its_requests_with_three_parts_at_a_time() -> None:
    for nbytes in (1, 4 << 20, (16 << 20) + 1, 100 << 20):
        one, two = (Job(count, nbytes).requests(1) for count in (1, 2))
        of_file = two - one
        # HEAD, PUT of the journal and HEAD of the copy that a worker opens are no part of the task.
        requests = of_file.total() - Job.rounds_of_report - 1
        parts = of_file["part"]
        assert Job(1, nbytes).rounds_of_file() == requests - parts + -(-parts // 3)


@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.1, 1.0])
def test_steps_of_a_model_change_in_so_many_elements(fraction: float, tmp_path: Path) -> None:
    """And no program can need less than the entropy of the places and of the signs."""
    deltas.write_steps(str(tmp_path), 1 << 20, fraction)
    report = sv.delta(
        tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "d"
    ).tensors
    changed = sum(each.num_changed or 0 for each in report)
    assert changed == pytest.approx(fraction * (1 << 19), rel=0.2)
    found = sum(each.stored_nbytes for each in report)
    assert found >= deltas.least_nbytes(1 << 19, changed / (1 << 19))


def test_a_joint_save_takes_requests_in_proportion_and_looks_that_do_not_grow() -> None:
    """In virtual time: of processes that begin together, each looks for the call twice, and for the end
    after its first pause, or the second, which is twice as long. Process 0 looks more often."""
    for count in (2, 24):
        seconds, requests = joint.simulate(count)
        others = [requests[process] for process in range(1, count)]
        assert max(made.total() for made in others) <= 9
        assert max(made["list"] for made in others) <= 4
        assert sum(requests.values(), Counter()).total() <= 9 * count + 8
        assert seconds < 3 * max(0.5, count / 25) + 1
