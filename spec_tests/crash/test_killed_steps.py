"""Jobs that are killed at any time, and start again, also on other numbers of processes: nothing that
was saved is lost, all processes resume from the same whole step, and nothing stays for ever."""

import errno
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import shardvar as sv
from shardvar.engine.pool import in_this_thread
from shardvar.errors import CheckpointNotFound, ShardvarError
from shardvar.storage import local
from spec_tests.helpers.memory_bucket import Dead, MemoryBucket, in_bucket
from spec_tests.helpers.step_jobs import end_job, run_job, start_job
from spec_tests.helpers.system_calls import Disk, Killed, snapshot
from spec_tests.helpers.thoroughness import EXHAUSTIVE, stride

JOBS = 12 if EXHAUSTIVE else 3
RULES = {"keep_last": 2, "keep_every": 10, "keep_best": 1}


@pytest.mark.parametrize("seed", range(4 if EXHAUSTIVE else 1))
def test_killed_jobs_go_on_from_what_was_saved(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    whole = 0
    for _ in range(JOBS):
        count = draw.choice([2, 3])
        job = start_job(tmp_path, count, {"until": 10_000, "rules": RULES})
        stdout = job[0].stdout
        assert stdout is not None
        lines = [stdout.readline() for _ in range(draw.randint(1, 8))]
        time.sleep(draw.random() * 0.05)
        # One is killed first, and the others some time later.
        for process in draw.sample(job, count):
            os.kill(process.pid, signal.SIGKILL)
            time.sleep(draw.random() * 0.05)
        told = end_job(job)
        told[0] = [*map(json.loads, filter(None, lines)), *told[0]]
        assert not [line for lines in told for line in lines if line[0] == "error"]
        restored = {number for lines in told for what, number in lines if what == "restored"}
        assert len(restored) <= 1
        # A step that one process has seen saved is there; the next one may be, too.
        for number in restored:
            assert (number or 0) >= whole
        saved = [number for lines in told for what, number in lines if what == "saved"]
        whole = max([whole, *saved, *(number or 0 for number in restored)])
        newest = sv.SavedSteps(tmp_path).newest()
        assert (newest.number if newest else 0) in (whole, whole + 1)
        for step in sv.SavedSteps(tmp_path).steps():
            assert sv.verify(step.path).ok
    [first, second] = run_job(tmp_path, 2, until=whole + 3, rules=RULES)
    assert first == second and first[-1] == ["saved", whole + 3]
    kept = [step.number for step in sv.SavedSteps(tmp_path).steps()]
    assert kept[-2:] == [whole + 2, whole + 3]
    others = [number for number in kept[:-2] if number % 10]
    assert len(others) <= 1, "the best"


FORMS: dict[str, dict[str, Any]] = {
    "shardvar": {},
    "incremental": {"incremental": True},
    "torch": {"format": "torch"},
    "zarr": {"format": "zarr"},
    "orbax": {"format": "orbax"},
    "safetensors": {"format": "safetensors", "policy": sv.BalancedPolicy(3)},
    "tensorflow": {"format": "tensorflow"},
    "npz": {"format": "npz"},
}
RUN = "s3://bucket/run"
FAULTS = (Killed, KeyboardInterrupt, lambda: OSError(errno.EIO, os.strerror(errno.EIO)))


def arrays(number: int) -> dict[str, Any]:
    return {"a": np.arange(300.0), "b": np.full(5, number, np.int32), "c/d": np.ones((2, 3))}


def save(directory: str | Path, *numbers: int, form: str, keep_last: int | None = 1) -> None:
    steps = sv.SavedSteps(directory, keep_last=keep_last)
    steps.restore()
    for number in numbers:
        steps.save(number, arrays(number), **FORMS[form])


def kinds(names: Iterable[str]) -> list[str]:
    """Names, without what differs between two writes."""
    return sorted({re.sub("[0-9a-f]{16,}", "", name) for name in names})


@pytest.mark.parametrize("form", FORMS)
def test_a_job_that_stops_at_any_call_leaves_nothing_for_ever(form: str, tmp_path: Path) -> None:
    """The next saves of a job that goes on, of other numbers, remove what it has left, with locks."""

    def run(at: int, number: int) -> tuple[list[str], int]:
        place = tmp_path / "run"
        place.mkdir()
        save(place, 1, 2, form=form, keep_last=None)
        disk = Disk(str(place), at=at, fault=FAULTS[number % 3], after=number % 2 == 0)
        with suppress(Killed, KeyboardInterrupt, ShardvarError), in_this_thread(), disk.meeting():
            save(place, 3, form=form)
        local._close_inherited()  # as if the process were gone
        save(place, 4, 5, form=form)
        [last] = sv.SavedSteps(place).steps()
        assert np.array_equal(sv.load(last.path)["b"], arrays(5)["b"])
        left = kinds(str(path.relative_to(place)) for path in place.rglob("*"))
        shutil.rmtree(place)
        return left, disk.taken

    clean, calls = run(-1, 0)
    for number, at in enumerate(range(0, calls, 1 if EXHAUSTIVE else calls // 6)):
        assert run(at, number)[0] == clean, (at, number)


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", FORMS)
def test_a_removal_in_a_bucket_that_stops_at_any_request_is_finished_by_any_later_job(
    form: str,
) -> None:
    """By the same removal, or by the next save of a job; no claim is broken."""

    def run(at: int, is_loop: bool, after: bool) -> tuple[dict[str, bytes], bool]:
        bucket = MemoryBucket(error=Dead, takes_effect=after)
        with in_bucket(bucket):
            save(RUN, 1, 2, form=form, keep_last=None)
            bucket.fail_at = len(bucket.log) + at
            with suppress(Dead):
                sv.remove(f"{RUN}/step-1")
            was_dead, bucket.is_dead, bucket.fail_at = bucket.is_dead, False, None
            if is_loop:
                save(RUN, 3, form=form)
            else:
                with suppress(CheckpointNotFound):  # if only its last answer was lost
                    sv.remove(f"{RUN}/step-1")
        return bucket.files, was_dead

    for is_loop in (False, True):
        clean, number = run(1000, is_loop, False)[0], 0
        while True:
            found = [run(number, is_loop, after) for after in (False, True)]
            assert all(kinds(files) == kinds(clean) for files, _ in found), number
            if not found[0][1]:
                break
            number += stride(2)
        assert number >= 2


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_step_keeps_its_files(form: str, tmp_path: Path) -> None:
    """What is damaged, cut off, or a folder in the place of a file is not what a killed job left."""
    save(tmp_path / "before", 1, 2, form=form, keep_last=None)
    files = snapshot(tmp_path / "before")
    for number, hurt in enumerate(sorted(name for name in files if name.startswith("step-2"))):
        for kind in ("empty", "cut", "changed", "folder") if EXHAUSTIVE or number < 2 else ("cut",):
            place = tmp_path / f"{number}{kind}"
            shutil.copytree(tmp_path / "before", place)
            (place / hurt).unlink()
            if kind == "folder":
                (place / hurt).mkdir()
            else:
                half = files[hurt][: len(files[hurt]) // 2]
                content = {"empty": b"", "cut": half, "changed": b"\1" + files[hurt][1:]}[kind]
                (place / hurt).write_bytes(content)
            steps = sv.SavedSteps(place, keep_last=1)
            with suppress(ShardvarError):  # as of a file that cannot be opened: nothing is removed
                for each in (3, 4):
                    steps.save(each, arrays(each), **FORMS[form])
            if kind == "folder":
                (place / hurt).rmdir()
            (place / hurt).parent.mkdir(parents=True, exist_ok=True)
            (place / hurt).write_bytes(files[hurt])
            found = snapshot(place)
            is_whole = all(found.get(name) == files[name] for name in files if "step-2" in name)
            # A change that is not seen without reading the bytes leaves a step that may be removed.
            is_removed = not any("step-2" in name for name in {*found} - {hurt})
            assert is_whole or is_removed, (hurt, kind)
            if is_whole:
                assert np.array_equal(sv.load(place / "step-2")["b"], arrays(2)["b"])


def share(path: str, form: str) -> None:
    """Three processes save together, one after the other."""
    about: dict[str, Any] = {"num_processes": 3, "run": "r", "attempt": "1f", "format": form}
    for process in (2, 1, 0):
        mine = {f"t{process}": np.full(4, process)}
        sv.save_shards(path, mine, process=process, commit=False, **about)
    sv.commit_shards(path, **about)


@pytest.mark.parametrize("is_bucket", [False, True])
@pytest.mark.parametrize("form", [*FORMS, "shares", "shares in a folder"])
def test_a_save_of_a_lower_number_goes_on_beside_the_saves_of_another_job(
    form: str, is_bucket: bool, tmp_path: Path
) -> None:
    """Its files look like those of a killed job, and are not removed: not between any two calls."""

    def run(at: int) -> int:
        calls, is_inside = 0, False
        directory = RUN if is_bucket else str(tmp_path / str(at))

        def meet(*_: Any) -> None:
            nonlocal calls, is_inside
            if not is_inside:
                calls, is_inside = calls + 1, True
                if calls == at:
                    sv.SavedSteps(directory, keep_last=50).save(10, arrays(10))
                is_inside = False

        def met(real: Any, name: str) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                if name != "open" or arguments[1] & os.O_CREAT:
                    meet()
                return real(*arguments, **options)

            return call

        with in_bucket(MemoryBucket(gate=meet)), ExitStack() as stack, in_this_thread():
            is_inside = True
            sv.save(f"{directory}/step-9", arrays(9))
            is_inside = False
            for name in () if is_bucket else ("open", "makedirs", "mkdir", "replace", "rename"):
                stack.enter_context(mock.patch.object(os, name, met(getattr(os, name), name)))
            path = f"{directory}/step-3"
            if form.startswith("shares"):
                share(path, "torch" if "folder" in form else "shardvar")
            else:
                options = {key: each for key, each in FORMS[form].items() if key != "incremental"}
                sv.save(path, arrays(3), **options)
            is_inside = True
            found = sv.load(path)
            assert sv.verify(path).ok, at
        expected = {f"t{n}": np.full(4, n) for n in range(3)} if "shares" in form else arrays(3)
        assert all(np.array_equal(found[key], each) for key, each in expected.items()), at
        return calls

    calls = run(0)
    for at in range(1, calls + 1, 1 if EXHAUSTIVE else 1 + calls // 5):
        run(at)
