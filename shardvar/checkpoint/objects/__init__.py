"""Checkpoints of objects: the state of variables under the names by which a root object reaches them."""

from shardvar.checkpoint.objects.checkpoint import Checkpoint
from shardvar.checkpoint.objects.manager import CheckpointManager
from shardvar.checkpoint.objects.series import latest_checkpoint
from shardvar.checkpoint.objects.status import RestoreStatus
from shardvar.checkpoint.objects.turn import PendingSave

__all__ = ["Checkpoint", "CheckpointManager", "PendingSave", "RestoreStatus", "latest_checkpoint"]
