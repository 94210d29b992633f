"""The face for training loops in PyTorch; importing it imports torch (extra ``torch``).

``StorageReader`` gives ``torch.distributed.checkpoint.load`` every checkpoint that shardvar reads, and
``StorageWriter`` gives ``torch.distributed.checkpoint.save`` commits that are whole, and checksums.
``save`` and ``load`` need neither of them, and no messages between processes. ``sv.SavedSteps`` saves
the steps of a training loop with them.
"""

try:
    import torch.distributed.checkpoint  # noqa: F401
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "torch":
        raise
    from shardvar.extras import missing_extra

    raise missing_extra("shardvar.torch needs PyTorch, which is not installed.", "torch") from None

from shardvar.torch.storage import StorageReader, StorageWriter
from shardvar.torch.training_states import gather_over_group as gather
from shardvar.torch.training_states import load_state as load
from shardvar.torch.training_states import processes
from shardvar.torch.training_states import save_state as save
from shardvar.verbs.training.states import LoadReport

__all__ = ["LoadReport", "StorageReader", "StorageWriter", "gather", "load", "processes", "save"]
