"""R-DAMAGE-1-flip, R-DAMAGE-1-zero: a flipped bit of a .distcp file is loaded without a word."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

with tempfile.TemporaryDirectory() as path:
    dcp.save({"w": torch.arange(1.0, 1001.0)}, checkpoint_id=path, no_dist=True)
    file = next(Path(path).glob("*.distcp"))
    data = bytearray(file.read_bytes())
    data[data.index(torch.arange(1.0, 1001.0).numpy().tobytes()) + 3] ^= 0x40
    file.write_bytes(data)
    state = {"w": torch.zeros(1000)}
    try:
        dcp.load(state, checkpoint_id=path, no_dist=True)
    except dcp.api.CheckpointException as error:
        sys.exit(print(f"PyTorch {torch.__version__} refuses: {error}"))
print(
    f"PyTorch {torch.__version__}: 1.0 was saved, one bit was flipped, {state['w'][0].item()} is "
    "loaded"
)
sys.exit(1)
