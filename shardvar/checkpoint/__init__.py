"""The verbs: save, load, open, reshard; verify and diff."""

from shardvar.checkpoint.load import load
from shardvar.checkpoint.reader import LazyTensor, Reader, open_checkpoint
from shardvar.checkpoint.reports import WriteReport
from shardvar.checkpoint.reshard import reshard
from shardvar.checkpoint.save import save

__all__ = ["LazyTensor", "Reader", "WriteReport", "load", "open_checkpoint", "reshard", "save"]
