"""A job of Ray Train whose worker is killed, and that goes on with another number of workers.

`python -m spec_tests.helpers.ray_job FOLDER`: two workers train to step 4, and one is killed once after step 2; then
one worker trains to step 6. FOLDER/losses has the step, the loss, and the number of workers.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def train(given: dict[str, Any]) -> None:
    import ray.train
    import torch

    from shardvar.torch.ray import report_checkpoint, restore_checkpoint

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0}
    is_resumed, context = restore_checkpoint(state), ray.train.get_context()
    for step in range(state["step"] + 1, given["last"] + 1):
        loss = model(torch.ones(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state["step"] = step
        if not context.get_world_rank():
            with open(f"{given['folder']}/losses", "a") as file:
                told = [step, loss.item(), context.get_world_size()]
                file.write(json.dumps(told) + "\n")
        report_checkpoint({"loss": loss.item()}, state, name=f"step-{step}")
        if step == given["killed"] and context.get_world_rank() and not is_resumed:
            os.kill(os.getpid(), signal.SIGKILL)


def run(folder: Path) -> None:
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=80_000_000)
    for workers, last, killed in [(2, 4, 2), (1, 6, 0)]:
        kept = CheckpointConfig(num_to_keep=2)
        failures = FailureConfig(max_failures=1)
        result = TorchTrainer(
            train,
            train_loop_config={"folder": str(folder), "last": last, "killed": killed},
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(
                name="run",
                storage_path=str(folder),
                failure_config=failures,
                checkpoint_config=kept,
            ),
        ).fit()
    print(result.checkpoint.path)
    ray.shutdown()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
