"""A job of Ray Train whose worker is killed, and that goes on with another number of workers.

`python -m spec_tests.helpers.ray_job FOLDER`: two workers train to step 4, and one is killed once, after step 2;
then one worker trains to step 6. FOLDER/losses has each step with its loss, the number of workers, and the step
with which they began; the last line of the output is the place of the last checkpoint.
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KILLED, LAST = 2, (4, 6)


def losses(last: int, prepare: Callable[..., None]) -> Iterator[tuple[int, float, dict[str, Any]]]:
    """Train a model as one process does, or as `prepare` lets this one; yield each step, its loss, and the state."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
    batch = torch.arange(12.0).reshape(3, 4) / 7
    state: dict[str, Any] = {"model": model, "optimizer": None, "step": 0}
    prepare(state)
    while state["step"] < last:
        loss = model(batch).square().mean()
        loss.backward()
        state["optimizer"].step()
        state["optimizer"].zero_grad()
        state["step"] += 1
        yield state["step"], loss.item(), state


def add_optimizer(state: dict[str, Any]) -> None:
    import torch

    state["optimizer"] = torch.optim.AdamW(state["model"].parameters(), lr=0.1)


def train(given: dict[str, Any]) -> None:
    import ray.train
    from torch.distributed.fsdp import fully_shard

    from shardvar.torch.ray import report_checkpoint, restore_checkpoint

    def prepare(state: dict[str, Any]) -> None:
        fully_shard(state["model"])
        add_optimizer(state)
        restore_checkpoint(state)
        given["first"] = state["step"]

    context, folder = ray.train.get_context(), Path(given["folder"])
    for step, loss, state in losses(given["last"], prepare):
        if not context.get_world_rank():
            with open(folder / "losses", "a") as file:
                found = [step, loss, context.get_world_size(), given["first"]]
                file.write(json.dumps(found) + "\n")
        report_checkpoint({"loss": loss}, state, step=step)
        if step == KILLED and context.get_world_rank() and not (folder / "killed").exists():
            # Ray forgets a report that it has not looked at when a worker dies.
            mode = ray.train.CheckpointConsistencyMode.COMMITTED
            ray.train.get_all_reported_checkpoints(mode, timeout_s=60)
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def run(folder: Path) -> None:
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000)
    for workers, last in zip((2, 1), LAST, strict=True):
        result = TorchTrainer(
            train,
            train_loop_config={"folder": str(folder), "last": last},
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(
                name="run",
                storage_path=str(folder),
                failure_config=FailureConfig(max_failures=1),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
            ),
        ).fit()
    print(result.checkpoint.path)
    ray.shutdown()


SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_worker_register_timeout_seconds": "600",
}
"""Fewer processes, a look at the workers every 0.2 s, and time to start on a busy machine."""

if __name__ == "__main__":
    # Names of sockets are short.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as sessions:
        os.environ |= {**SETTINGS, "RAY_TMPDIR": sessions}
        run(Path(sys.argv[1]))
