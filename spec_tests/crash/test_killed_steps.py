"""Jobs of several processes that are killed at any time, and start again on other numbers of
processes: nothing that was saved is lost, and all processes resume from the same whole step."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

import shardvar as sv
from spec_tests.helpers.step_jobs import end_job, run_job, start_job
from spec_tests.helpers.thoroughness import EXHAUSTIVE

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
