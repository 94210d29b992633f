"""R-POLICY-1-holes: a checkpoint that lacks half of a tensor is loaded without a word; the rows
stay as they were."""

import pickle
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

with tempfile.TemporaryDirectory() as path:
    dcp.save({"w": torch.tensor([1.0, 2.0])}, checkpoint_id=path, no_dist=True)
    index = Path(path) / ".metadata"
    metadata = pickle.loads(index.read_bytes())  # noqa: S301 - it was written three lines above
    metadata.state_dict_metadata["w"].size = torch.Size(
        [4]
    )  # of which rows 2 and 3 lie in no slice
    index.write_bytes(pickle.dumps(metadata))
    state = {"w": torch.full((4,), 85.0)}
    try:
        dcp.load(state, checkpoint_id=path, no_dist=True)
    except dcp.api.CheckpointException as error:
        sys.exit(print(f"PyTorch {torch.__version__} refuses: {error}"))
print(
    f"PyTorch {torch.__version__}: the slices have 2 of 4 rows, and {state['w'].tolist()} is "
    "loaded without an error"
)
sys.exit(1)
