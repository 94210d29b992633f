"""Checkpoints of Ray Train, which all workers write together into the storage of the run.

Ray copies nothing, and reads nothing: it gets the place of each checkpoint, removes it by its ``CheckpointConfig``,
and gives the newest one that it knows to the workers of the next attempt, or of the next run of the name. It
would remove a folder that it knows twice while the second one is still needed, so it gets each step once.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, cast

import ray.train
from ray.train import Checkpoint, CheckpointUploadMode

from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.layout.region import read_integer
from shardvar.torch.training_states import load_state, save_state
from shardvar.verbs.reports import WriteReport

__all__ = ["report_checkpoint", "restore_checkpoint"]

_SCHEMES = {"local": "", "s3": "s3://", "gcs": "gs://"}
"""The beginning of a path, by the kind of Ray's file system."""


def report_checkpoint(
    metrics: Mapping[str, Any], state: Mapping[str, Any], *, step: int, **options: Any
) -> WriteReport:
    """Save the state in the folder ``step-NUMBER``, and report it to Ray with metrics; every worker calls this.

    Parameters
    ----------
    metrics : mapping of str to Any
        As in ``ray.train.report``.
    state : mapping of str to Any
        The state, as ``shardvar.torch.save`` takes it.
    step : int
        The number of the step. A step that is saved again replaces the first one.
    **options : Any
        More arguments of ``shardvar.torch.save``, but ``background`` and ``run``: Ray gets the place of a
        checkpoint that is whole.

    Returns
    -------
    WriteReport
        The report of this worker's share.

    Raises
    ------
    ArgumentError
        If ``step`` is negative, or ``background`` is given.
    UnsupportedError
        If the storage is neither a disk nor S3 or Google Cloud Storage, or Ray does not find there what was
        saved.
    ShardvarError
        What ``shardvar.torch.save`` raises.

    Examples
    --------
    ``report_checkpoint({"loss": loss.item()}, {"model": model, "optim": optimizer, "step": 7}, step=7)``
    """
    if read_integer(step, "step") < 0:
        raise ArgumentError(f"Step {step} is negative.", "Give an integer >= 0.")
    if options.get("background"):
        raise ArgumentError("Ray gets the place of a finished checkpoint.", "Leave out background.")
    storage = ray.train.get_context().get_storage()
    system, name = storage.storage_filesystem, f"step-{step}"
    folder = os.path.join(storage.experiment_fs_path, name)
    path = _path_of(system, folder)
    report = cast("WriteReport", save_state(path, state, run=name, **options))
    if not system.get_file_info(folder).type:  # not found
        cause = f"Ray does not find {path}, which was saved: its storage has another endpoint."
        raise UnsupportedError(cause, "Give both the endpoint, in the environment.")
    last = ray.train.get_checkpoint()
    known = re.search(r"(?<=/step-)\d+$", last.path if last else "")
    is_new = known is None or int(known[0]) < step
    ray.train.report(
        dict(metrics),
        checkpoint=Checkpoint(folder, system) if is_new else None,
        checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
    )
    return report


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
        load_state(_path_of(found.filesystem, found.path), state, **options)
    return found is not None


def _path_of(system: Any, folder: str) -> str:
    """Return the path of the checkpoint in a folder."""
    if system.type_name not in _SCHEMES:
        cause = f"The storage of the run is of the kind {system.type_name!r}."
        raise UnsupportedError(cause, "Give a storage_path on a disk, or of s3:// or gs://.")
    return os.path.join(_SCHEMES[system.type_name] + folder, "")
