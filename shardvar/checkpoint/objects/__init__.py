"""Objects to files and back: the state of variables under the names by which a root object reaches them."""

from shardvar.checkpoint.objects.background import PendingSave
from shardvar.checkpoint.objects.checkpoint import Checkpoint
from shardvar.checkpoint.objects.manager import CheckpointManager
from shardvar.checkpoint.objects.numbered import latest_checkpoint
from shardvar.checkpoint.objects.status import RestoreStatus

__all__ = ["Checkpoint", "CheckpointManager", "PendingSave", "RestoreStatus", "latest_checkpoint"]
