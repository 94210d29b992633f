"""Checkpoints of Ray Train, which all workers write together into the storage of the run.

Ray copies nothing, and reads nothing: it knows where a checkpoint is, removes it by its ``CheckpointConfig``,
and gives it to the workers of the next attempt, or of the next run of the name.
"""

import os
from collections.abc import Mapping
from typing import Any, cast

import ray.train
from ray.train import Checkpoint, CheckpointUploadMode

from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.torch.training_states import load_state, save_state
from shardvar.verbs.reports import WriteReport

__all__ = ["report_checkpoint", "restore_checkpoint"]

_SCHEMES = {"local": "", "s3": "s3://", "gcs": "gs://"}
"""The beginning of a path by the kind of Ray's file system."""


def report_checkpoint(
    metrics: Mapping[str, Any], state: Mapping[str, Any], *, name: str, **options: Any
) -> WriteReport:
    """Save the state, and report it to Ray with metrics; every worker calls this.

    Parameters
    ----------
    metrics : mapping of str to Any
        As in ``ray.train.report``.
    state : mapping of str to Any
        The state, as ``shardvar.torch.save`` takes it.
    name : str
        The name of the checkpoint in the storage of the run, such as ``"step-7"``.
    **options : Any
        More arguments of ``shardvar.torch.save``, but ``background``: Ray gets the path of what is there.

    Returns
    -------
    WriteReport
        The report of this worker's share.

    Raises
    ------
    ArgumentError
        If ``background`` is given.
    UnsupportedError
        If the storage is neither a disk nor S3 or Google Cloud Storage.
    ShardvarError
        What ``shardvar.torch.save`` raises.

    Examples
    --------
    ``report_checkpoint({"loss": loss.item()}, {"model": model, "optim": optimizer, "step": 7}, name="step-7")``
    """
    if options.get("background"):
        raise ArgumentError("Ray gets the path of a finished checkpoint.", "Leave out background.")
    context = ray.train.get_context()
    storage = context.get_storage()
    folder = os.path.join(storage.experiment_fs_path, name)
    path = os.path.join(_path(storage.storage_filesystem, folder), "")
    saved = cast("WriteReport", save_state(path, state, run=name, **options))
    is_first = context.get_world_rank() == 0
    checkpoint = Checkpoint(folder, storage.storage_filesystem) if is_first else None
    ray.train.report(
        dict(metrics),
        checkpoint=checkpoint,
        checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
    )
    return saved


def restore_checkpoint(state: dict[str, Any], **options: Any) -> bool:
    """Load the checkpoint that Ray gives this attempt; every worker calls this, on any number of them.

    Parameters
    ----------
    state : dict
        The state, as ``shardvar.torch.load`` fills it.
    **options : Any
        More arguments of ``shardvar.torch.load``.

    Returns
    -------
    bool
        False if there is none: the training begins.

    Raises
    ------
    UnsupportedError
        If it is neither on a disk nor in S3 or Google Cloud Storage.
    ShardvarError
        What ``shardvar.torch.load`` raises.

    Examples
    --------
    ``restore_checkpoint({"model": model, "optim": optimizer, "step": 0})``
    """
    found = ray.train.get_checkpoint()
    if found is not None:
        load_state(_path(found.filesystem, found.path), state, **options)
    return found is not None


def _path(system: Any, path: str) -> str:
    if system.type_name not in _SCHEMES:
        cause = f"The storage of the run is of the kind {system.type_name!r}."
        raise UnsupportedError(cause, "Give a storage_path on a disk, or of s3:// or gs://.")
    return _SCHEMES[system.type_name] + path
