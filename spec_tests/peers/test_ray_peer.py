"""Ray Train: a worker that is killed, and another number of workers, with the losses of one that trains alone.

`pip install "ray[train]"` into the environment of `make peers`: it is not in it, since it takes 400 MB.
"""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

import shardvar as sv
from spec_tests.helpers.programs import ENVIRONMENT, command_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def test_workers_resume_after_one_was_killed_and_on_another_number_of_them(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    environment = ENVIRONMENT | {"RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": "/tmp"}
    command = command_of("helpers.ray_job", tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [*map(json.loads, (tmp_path / "losses").read_text().splitlines())]
    assert [(step, count) for step, _, count in told][-2:] == [(5, 1), (6, 1)]
    assert {step for step, _, count in told if count == 2} == {1, 2, 3, 4}
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    expected = {}
    for step in range(1, 7):
        loss = model(torch.ones(8, 4)).square().mean()
        expected[step] = pytest.approx(loss.item(), rel=1e-6)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(loss == expected[step] for step, loss, _ in told)
    # Ray keeps two, and has the place of the last one.
    newest = done.stdout.splitlines()[-1]
    assert newest.endswith("/step-6") and sv.load(newest)["model.weight"].shape == (1, 4)
    kept = {each.name for each in Path(newest).parent.glob("step-*")}
    assert kept == {"step-5", "step-6"}
