"""Frameworks of trainers: a job that is killed resumes with the losses of one that was not."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

from spec_tests.helpers.programs import ENVIRONMENT, command_of
from spec_tests.helpers.trainer_jobs import KILLED

LAST = 9


def losses(framework: str, folder: Path, last: int, most: int, count: int = 1) -> dict[int, float]:
    folder.mkdir(exist_ok=True)
    command = command_of("helpers.trainer_jobs", framework, folder, last, most)
    if count > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        command = [command[0], *launcher, *command[1:]]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=500)
    assert (done.returncode != 0) == (last == KILLED), done.stderr[-3000:]
    return dict(map(json.loads, (folder / "losses").read_text().splitlines()))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("framework", "count"),
    [
        ("lightning", 2),
        ("lightning", 1),
        ("transformers", 1),
        ("transformers", 2),
        ("accelerate", 2),
    ],
)
def test_a_killed_job_resumes_with_the_losses_of_one_that_was_not(
    framework: str, count: int, tmp_path: Path
) -> None:
    """On one process, also after a job of ``count``."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    expected = losses(framework, tmp_path / "whole", LAST, count)
    assert sorted(expected) == [*range(1, LAST + 1)]
    losses(framework, tmp_path / "killed", KILLED, count, count)
    # The step that was not saved is made again.
    assert losses(framework, tmp_path / "killed", LAST, count) == pytest.approx(expected, rel=1e-6)


def test_a_trainer_that_loads_models_in_another_way_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from shardvar.errors import UnsupportedError
    from shardvar.torch.transformers import TrainerSteps

    with pytest.raises(UnsupportedError, match="has no _load_from_checkpoint"):
        TrainerSteps(tmp_path, every=1).train(object())
