"""Dask's workers as an executor: the same results, and a worker that is killed loses nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli import main
from shardvar.planning.policies import BalancedPolicy

distributed = pytest.importorskip("distributed")

MODEL = {
    f"w{number}": np.random.default_rng(number).standard_normal((300, 200)) for number in range(24)
}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two workers, each a process of its own, and a scheduler on loopback."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as started:
        yield started


@pytest.fixture
def source(tmp_path: Path) -> Path:
    sv.save(tmp_path / "source", MODEL, partition=3)
    return tmp_path / "source"


def test_a_cluster_finds_and_writes_what_one_process_does(
    source: Path, tmp_path: Path, cluster: Any
) -> None:
    with distributed.Client(cluster) as client:
        executor = client.get_executor(pure=False)
        sv.reshard(source, tmp_path / "out", policy=BalancedPolicy(5), executor=executor)
        assert sv.verify(tmp_path / "out", executor=executor) == sv.verify(tmp_path / "out")
        assert sv.digest(tmp_path / "out", executor=executor) == sv.digest(tmp_path / "out")
        assert sv.diff(source, tmp_path / "out", executor=executor).equal


def test_a_worker_that_is_killed_loses_nothing(source: Path, tmp_path: Path, cluster: Any) -> None:
    with distributed.Client(cluster) as client:
        pids = list(client.run(os.getpid).values())
        done: list[int] = []

        def kill_one(nbytes: int) -> None:
            if not done:
                os.kill(pids[0], signal.SIGKILL)
            done.append(nbytes)

        executor = client.get_executor(pure=False)
        report = sv.reshard(
            source,
            tmp_path / "out",
            policy=BalancedPolicy(12),
            executor=executor,
            progress=kill_one,
        )
    assert len(done) == report.num_files == 12
    assert sv.diff(source, tmp_path / "out").equal
    assert not list(tmp_path.glob("*.done"))


def test_the_command_ends_when_the_scheduler_dies(source: Path, tmp_path: Path) -> None:
    """With one clear error, and the files that were finished stay."""
    python, place = sys.executable, tmp_path / "scheduler.json"
    target = [str(source), str(tmp_path / "out"), "--files", "24"]
    start: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    quiet: dict[str, Any] = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    options = ["--port", "0", "--host", "127.0.0.1", "--no-dashboard"]
    module = [python, "-m", "distributed.cli.dask_scheduler", *options]
    scheduler = subprocess.Popen([*module, "--scheduler-file", str(place)], **quiet)
    command = worker = None
    try:
        while not place.exists():
            time.sleep(0.05)
        options = ["--scheduler-file", str(place), "--nthreads", "1", "--no-dashboard"]
        options += ["--local-directory", str(tmp_path)]
        worker = subprocess.Popen([python, "-m", "distributed.cli.dask_worker", *options], **quiet)
        address = json.loads(place.read_text())["address"]
        words = [python, "-m", "shardvar", "reshard", *target, "--dask", address]
        command = subprocess.Popen(words, **start)
        while not list(tmp_path.glob("out.svdata*.done")):
            time.sleep(0.002)
        scheduler.kill()
        _, text = command.communicate(timeout=60)
        assert command.returncode == 3 and "the cluster's scheduler was lost" in text
        assert "Traceback" not in text
    finally:
        for process in (scheduler, command, worker):
            if process is not None:
                process.kill()
                process.wait(30)
    assert sv.reshard(source, tmp_path / "out", policy=BalancedPolicy(24)).reused_files >= 1


def test_the_command_takes_the_address_of_a_scheduler(source: Path, cluster: Any) -> None:
    assert main(["verify", str(source), "--dask", cluster.scheduler_address]) == 0


def test_a_scheduler_that_is_not_there_is_an_error(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardvar.cli.workers._SECONDS", 1)
    assert main(["verify", str(source), "--dask", "tcp://127.0.0.1:1"]) == 3
    assert "The Dask scheduler at 'tcp://127.0.0.1:1' cannot be reached" in capsys.readouterr().err
