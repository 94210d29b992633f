"""sv.SavedSteps(shared=False): parts of steps on the disk of each process, and steps in a place that all share.

A disk is a folder that only one process knows. Processes are threads, which agree in ``durable``, or through
``gather``.
"""

import shutil
import threading
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    StorageError,
    UnsupportedError,
)
from spec_tests.helpers.damage import flip_values
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.step_jobs import ROWS, Divided, table, together
from spec_tests.helpers.thoroughness import is_due

LATE = 60.0


def bias(seed: int) -> Any:
    return np.full(500, seed)


class Trained(Divided):
    """Functions for processes that hold rows of a table, and each the whole bias."""

    def save(self, path: str, state: int, *, run: str, **options: Any) -> Any:
        start, stop = self.rows
        whole = table(state)
        mine = {
            "table": sv.LocalShard(whole[start:stop], (start, 0), whole.shape),
            "bias": bias(state),
        }
        names = {"process": self.process, "num_processes": self.count, "run": run}
        return sv.save_shards(path, mine, **names, **{"timeout": LATE} | options)

    def load(self, path: str) -> int:
        """Return the seed of a state, all of whose values are its own."""
        start, stop = self.rows
        with sv.open_checkpoint(path) as reader:
            rows, same = reader.read_many([("table", np.s_[start:stop]), ("bias", None)], "full")
        seed = int(same[0])
        assert np.array_equal(rows, table(seed)[start:stop]) and np.array_equal(same, bias(seed))
        return seed


class Meeting:
    """``gather`` for threads."""

    def __init__(self, count: int) -> None:
        self._told: dict[int, list[int]] = {}
        self.barrier = threading.Barrier(count, timeout=LATE)

    def functions(self, process: int, count: int) -> Any:
        using: Any = Trained(process, count)
        using.gather = partial(self._gather, process)
        return using

    def _gather(self, process: int, mine: list[int], timeout: float) -> list[list[int]]:
        self._told[process] = mine
        self.barrier.wait()
        told = [self._told[each] for each in sorted(self._told)]
        self.barrier.wait()
        return told


@dataclass
class Cluster:
    """Nodes with a process each, and a bucket."""

    place: Path
    bucket: MemoryBucket = field(default_factory=MemoryBucket)
    keep_last: int = 2

    def disk(self, process: int) -> Path:
        return self.place / f"node-{process}"

    def part(self, process: int, number: int) -> Path:
        return self.disk(process) / f"process-{process}" / f"step-{number}"

    def steps(self, process: int, count: int, **options: Any) -> sv.SavedSteps:
        rules = {"using": Trained(process, count), "timeout": LATE, "shared": False}
        durable = sv.SavedSteps("s3://bucket/run", keep_last=2)
        rules |= {"durable": durable, "keep_last": self.keep_last} | options
        return sv.SavedSteps(self.disk(process), **rules)

    def job(self, count: int, saves: dict[int, int], *, carry: bool = True) -> list[Any]:
        """Restore, and save steps, each a state of a seed; return what each process restores, and from where."""

        def work(process: int) -> Any:
            steps = self.steps(process, count)
            found = steps.restore()
            for number, seed in saves.items():
                steps.save(number, seed)
                if carry:
                    steps.wait()
            return None if found is None else (found.number, found.loaded, self.tier(found.path))

        with in_bucket(self.bucket):
            return together(count, work)

    def tier(self, path: str) -> str:
        return "durable" if path.startswith("s3:") else "disk"

    def copies(self) -> list[int]:
        with in_bucket(self.bucket):
            return [each.number for each in sv.SavedSteps("s3://bucket/run").steps()]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardvar.verbs.together.run._BUCKET_SECONDS", (0.01, 0.02, 0.05, 1.5))


def test_each_process_resumes_from_its_disk_and_a_lost_one_from_the_copy(tmp_path: Path) -> None:
    nodes = Cluster(tmp_path)
    assert nodes.job(3, {1: 10, 2: 20, 3: 30}) == [None] * 3
    assert nodes.copies() == [2, 3]
    for process in range(3):
        parts = sorted(nodes.part(process, 0).parent.glob("*.svindex"))
        assert [each.name for each in parts] == ["step-2.svindex", "step-3.svindex"]
    shutil.rmtree(nodes.disk(1))
    places = ["disk", "durable", "disk"]
    assert nodes.job(3, {4: 40}) == [(3, 30, place) for place in places]
    # The copy is a checkpoint as any other.
    with in_bucket(nodes.bucket):
        whole = sv.load("s3://bucket/run/step-4")
        assert np.array_equal(whole["table"], table(40)) and np.array_equal(whole["bias"], bias(40))
        assert sv.verify("s3://bucket/run/step-4").ok
    # Another number of processes.
    assert nodes.job(2, {5: 50}) == [(4, 40, "durable")] * 2
    assert nodes.job(3, {}) == [(5, 50, "durable")] * 3
    with in_bucket(nodes.bucket):
        chosen = together(3, lambda process: nodes.steps(process, 3).restore(step=4))
    assert [(each.number, each.loaded) for each in chosen] == [(4, 40)] * 3


def test_a_step_whose_copy_was_not_finished_is_on_the_disks(tmp_path: Path) -> None:
    nodes = Cluster(tmp_path)
    nodes.job(2, {1: 10})

    def refuse(_: str) -> None:
        raise StorageError("The server does not answer.", "Wait.")

    count = [0]

    def later(what: str) -> None:
        count[0] += 1
        if count[0] > 6:
            refuse(what)

    def work(process: int) -> Any:
        steps = nodes.steps(process, 2, timeout=2.0)
        steps.restore()
        nodes.bucket.gate = later
        steps.save(2, 20)
        steps.wait()

    with in_bucket(nodes.bucket):
        failed = together(2, work)
    assert all(isinstance(each, StorageError | IncompleteCheckpoint) for each in failed)
    nodes.bucket.gate = lambda _: None
    assert nodes.copies() == [1]
    assert nodes.job(2, {}) == [(2, 20, "disk")] * 2
    assert nodes.job(1, {}) == [(1, 10, "durable")]
    assert nodes.job(2, {3: 30}) == [(2, 20, "disk")] * 2
    assert nodes.copies() == [1, 3]


def test_a_step_on_some_disks_only_is_passed_over_and_saved_again(tmp_path: Path) -> None:
    nodes = Cluster(tmp_path, keep_last=1)
    nodes.job(2, {1: 10})
    with in_bucket(nodes.bucket):  # process 1 is killed before it saves
        only = lambda process: nodes.steps(process, 2, timeout=1.0)  # noqa: E731
        begun = together(2, lambda process: (steps := only(process), steps.restore())[0])
        begun[0].save(9, 90)
        with pytest.raises(IncompleteCheckpoint, match="did not save within"):
            begun[0].wait()
    assert nodes.part(0, 9).with_suffix(".svindex").exists()
    # Process 0 has removed its part of the step that has a copy.
    assert nodes.job(2, {2: 20}) == [(1, 10, "durable"), (1, 10, "disk")]
    assert nodes.job(2, {9: 91}) == [(2, 20, "disk")] * 2
    assert nodes.job(2, {}) == [(9, 91, "disk")] * 2
    assert nodes.copies() == [2, 9]


def test_parts_stay_until_a_copy_is_as_new(tmp_path: Path) -> None:
    """Another process may have no newer one."""
    nodes = Cluster(tmp_path, keep_last=1)
    is_open, meeting = threading.Event(), Meeting(2)
    nodes.bucket.gate = lambda _: is_open.wait(LATE)

    def work(process: int) -> Any:
        steps = nodes.steps(process, 2, using=meeting.functions(process, 2))
        steps.restore()
        for number in (1, 2, 3, 4):
            steps.save(number, number)
        kept = [int(each.stem[5:]) for each in nodes.part(process, 0).parent.glob("*.svindex")]
        meeting.barrier.wait()
        is_open.set()
        steps.wait()
        return sorted(kept), [each.number for each in steps.steps()]

    with in_bucket(nodes.bucket):
        told = together(2, work)
    assert [kept for kept, _ in told] == [[1, 2, 3, 4]] * 2
    assert nodes.copies()[-1] == 4
    for process in range(2):
        [last] = nodes.part(process, 0).parent.glob("*.svindex")
        assert last.stem == "step-4"


# All that two disks and the copy can hold of two saves of one step


STATES = [None, "old", "new", "old damaged", "new damaged"]


def test_two_saves_of_a_step_are_never_mixed(tmp_path: Path) -> None:
    """The newest save that each process finds, or the step before, wherever parts are lost or damaged."""
    saves = {}
    for name, seed in [("old", 20), ("new", 21)]:
        nodes = Cluster(tmp_path / name)
        nodes.job(2, {1: 10})
        before = dict(nodes.bucket.files)
        nodes.job(2, {2: seed})
        saves[name] = (
            nodes,
            {key: each for key, each in nodes.bucket.files.items() if key not in before},
        )
    base = saves["new"][0]
    for number, case in enumerate(product(STATES, STATES, [None, "old", "new"])):
        if not is_due(number, 4):
            continue
        nodes = Cluster(tmp_path / "case", MemoryBucket(dict(before)))
        for process, state in enumerate(case[:2]):
            shutil.copytree(base.disk(process), nodes.disk(process))
            [each.unlink() for each in nodes.part(process, 2).parent.glob("step-2.*")]
            if state is not None:
                source = saves[state.split()[0]][0].part(process, 2)
                for file in source.parent.glob("step-2.*"):
                    shutil.copy(file, nodes.part(process, 2).parent)
                if state.endswith("damaged"):
                    flip_values(nodes.part(process, 2))
        if case[2] is not None:
            nodes.bucket.files |= saves[case[2]][1]
        meeting = Meeting(2)

        def work(process: int, nodes: Cluster = nodes, meeting: Meeting = meeting) -> Any:
            found = nodes.steps(process, 2, using=meeting.functions(process, 2)).restore()
            return found.number, found.loaded

        with in_bucket(nodes.bucket):
            told = together(2, work)
        whole = [
            save
            for save in ("new", "old")
            if all(save in (case[process], case[2]) for process in range(2))
        ]
        expected = (2, {"old": 20, "new": 21}[whole[0]]) if whole else (1, 10)
        assert told == [expected] * 2, case
        shutil.rmtree(nodes.place)


def test_the_training_begins_again_only_if_the_first_save_was_not_finished(tmp_path: Path) -> None:
    nodes = Cluster(tmp_path)
    nodes.job(2, {1: 10}, carry=False)
    nodes.bucket.files.clear()
    shutil.rmtree(nodes.disk(1))
    assert nodes.job(2, {1: 11, 2: 20}) == [None] * 2
    nodes.bucket.files.clear()
    shutil.rmtree(nodes.disk(1))
    for error in nodes.job(2, {}):
        assert isinstance(error, CorruptCheckpoint) and "No step of" in str(error)
    with in_bucket(nodes.bucket):
        found = together(2, lambda process: nodes.steps(process, 2).restore(step=2))
    assert all(isinstance(each, CheckpointError) and "step 2" in str(each) for each in found)


def test_parts_are_only_of_the_native_format_and_after_an_agreement(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="durable is not given"):
        sv.SavedSteps(tmp_path, shared=False)
    nodes = Cluster(tmp_path)
    with in_bucket(nodes.bucket):
        steps = nodes.steps(0, 1)
        with pytest.raises(ArgumentError, match="Call restore first"):
            steps.save(1, 10)
        steps.restore()
        for options, text in [
            ({"format": "torch"}, "format='torch'"),
            ({"incremental": True}, "incr"),
        ]:
            with pytest.raises(UnsupportedError, match=text):
                steps.save(1, 10, **options)
    assert not nodes.disk(0).exists() or not [*nodes.disk(0).iterdir()]


def test_a_part_gives_what_it_has_and_no_more(tmp_path: Path) -> None:
    nodes = Cluster(tmp_path)
    nodes.job(2, {1: 10})
    with sv.open_checkpoint(nodes.part(1, 1)) as reader:
        assert np.array_equal(reader.read("table", np.s_[ROWS // 2 :]), table(10)[ROWS // 2 :])
        with pytest.raises(IncompleteCheckpoint, match=r"lacks \[0:1, 0:4\]"):
            reader.read("table", np.s_[:1])
    with pytest.raises(IncompleteCheckpoint):
        sv.load(nodes.part(1, 1))
    # It is no step of a directory that processes share.
    assert sv.SavedSteps(nodes.part(1, 1).parent).steps() == []
