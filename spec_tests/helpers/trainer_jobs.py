"""Jobs of frameworks that train a tiny model, are killed, and resume.

`python -m spec_tests.helpers.trainer_jobs FRAMEWORK FOLDER LAST MOST`, perhaps by torchrun: train to step LAST, save
every second step, append the loss of each step to FOLDER/losses, and die by a signal after step KILLED.

The losses are the same on any number of processes up to MOST: if that is more than one, all processes have the same
batches, and seed each step.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

KILLED = 5


def note(folder: Path, step: int, loss: float, last: int) -> None:
    if int(os.environ.get("RANK", "0")):
        return
    with open(folder / "losses", "a") as file:
        file.write(json.dumps([step, loss]) + "\n")
    if last == KILLED == step:
        os.kill(os.getpid(), signal.SIGKILL)


def parts() -> tuple[Any, Any]:
    """Return a model with dropout, and its batches."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    batches = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    return model, batches[:1].repeat(40, 1) if MOST > 1 else batches


def processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def run_lightning(folder: Path, last: int) -> None:
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    from shardvar.torch.lightning import CheckpointIO

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batches = parts()

        def training_step(self, batch: Any, index: int) -> Any:
            torch.manual_seed(self.global_step)
            loss = self.model(batch).square().mean()
            note(folder, self.global_step + 1, loss.item(), last)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(self.batches, batch_size=10)

    saves = ModelCheckpoint(
        folder / "run", every_n_train_steps=2, save_top_k=-1, filename="{step}", save_last=True
    )
    trainer = pl.Trainer(
        max_steps=last, logger=False, plugins=[CheckpointIO()], callbacks=[saves], accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        devices=processes(), strategy="ddp" if processes() > 1 else "auto",
    )  # fmt: skip
    trainer.fit(
        Module(), ckpt_path=folder / "run" / "last.ckpt" if (folder / "run").exists() else None
    )
    assert not any(each.is_file() for each in (folder / "run").iterdir())


def run_transformers(folder: Path, last: int) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    from shardvar.torch.transformers import TrainerSteps

    class Loss(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner, _ = parts()

        def forward(self, x: Any) -> Any:
            return {"loss": self.inner(x).square().mean()}

    class Noting(Trainer):  # type: ignore[misc]
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            if MOST > 1:
                torch.manual_seed(self.state.global_step)
            loss = super().training_step(*args, **kwargs)
            note(folder, self.state.global_step + 1, loss.item(), last)
            return loss

    args = TrainingArguments(
        str(folder / "out"), per_device_train_batch_size=10, max_steps=last, save_strategy="no",
        use_cpu=True, report_to=[], disable_tqdm=True, learning_rate=0.1, lr_scheduler_type="constant_with_warmup",
        warmup_steps=4, logging_steps=1,
    )  # fmt: skip
    data = [{"x": each} for each in parts()[1]]
    trainer = Noting(Loss(), args, train_dataset=data)
    TrainerSteps(folder / "run", every=2, keep_last=2).train(trainer)


def run_accelerate(folder: Path, last: int) -> None:
    import torch
    from accelerate import Accelerator

    import shardvar as sv
    from shardvar.torch.accelerate import PreparedStates

    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
    model, batches = parts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    steps = sv.SavedSteps(folder / "run", using=PreparedStates(accelerator), keep_last=2)
    state = {"step": 0}
    steps.restore(state)
    for step in range(state["step"] + 1, last + 1):
        torch.manual_seed(step)  # the same in all processes
        loss = model(batches).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        note(folder, step, loss.item(), last)
        if step % 2 == 0:
            steps.save(step, {"step": step})


MOST = int(sys.argv[4]) if __name__ == "__main__" else 1
if __name__ == "__main__":
    globals()[f"run_{sys.argv[1]}"](Path(sys.argv[2]), int(sys.argv[3]))
