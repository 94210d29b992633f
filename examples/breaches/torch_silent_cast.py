"""R-POLICY-3-restore: what is loaded is cast to the dtype of the tensor that is there, and loses
its fractions."""

import sys
import tempfile

import torch
import torch.distributed.checkpoint as dcp

with tempfile.TemporaryDirectory() as path:
    dcp.save({"w": torch.tensor([1.5, 2.5])}, checkpoint_id=path, no_dist=True)
    state = {"w": torch.tensor([0, 0], dtype=torch.int32)}
    try:
        dcp.load(state, checkpoint_id=path, no_dist=True)
    except dcp.api.CheckpointException as error:
        sys.exit(print(f"PyTorch {torch.__version__} refuses: {error}"))
print(
    f"PyTorch {torch.__version__}: [1.5, 2.5] was saved as float32, and {state['w'].tolist()} is "
    "loaded"
)
sys.exit(1)
