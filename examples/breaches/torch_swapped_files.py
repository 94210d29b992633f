"""R-DAMAGE-1-swap: two .distcp files that have changed places are loaded without a word, each
tensor as the other."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

with tempfile.TemporaryDirectory() as path:
    writer = dcp.FileSystemWriter(path, single_file_per_rank=False)
    dcp.save(
        {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])}, storage_writer=writer, no_dist=True
    )
    one, other = sorted(Path(path).glob("*.distcp"))
    one.rename(one.with_suffix(".kept"))
    other.rename(one)
    one.with_suffix(".kept").rename(other)
    state = {"a": torch.zeros(1), "b": torch.zeros(1)}
    try:
        dcp.load(state, checkpoint_id=path, no_dist=True)
    except dcp.api.CheckpointException as error:
        sys.exit(print(f"PyTorch {torch.__version__} refuses: {error}"))
print(
    f"PyTorch {torch.__version__}: a = 1 and b = 2 were saved, a = {state['a'].item()}, b = "
    f"{state['b'].item()} loaded"
)
sys.exit(1)
