"""The newest of the checkpoints that a folder holds: the one that a file there names, else the one
of the last step.

    checkpoint                           TensorFlow's state file, which ``sv.Checkpoint`` keeps too
    latest_checkpointed_iteration.txt    Megatron's: the number of a step
    latest                               DeepSpeed's: the name of a step's folder
    step-1000, checkpoint-500, 20, ...   names that differ only in their numbers (``steps``)

A checkpoint that was not finished is passed over, and listed with the others.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardvar.errors import AmbiguousPath
from shardvar.formats.table import format_of_name, names_of_target
from shardvar.storage.local import split_place
from shardvar.storage.protocol import Storage
from shardvar.verbs.foreign import kind_of_folder
from shardvar.verbs.locate import Location, Path, below, find_below, find_checkpoint, parts, several
from shardvar.verbs.state_file import STATE_FILE, read_state_file
from shardvar.verbs.steps import differing, in_series

_MEGATRON, _DEEPSPEED = "latest_checkpointed_iteration.txt", "latest"
_POINTER_NBYTES = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of the checkpoints that a folder holds."""

    location: Location
    """The checkpoint."""
    step: str
    """The name that tells it from the others."""
    saved: float | None
    """The time of its last change, in seconds since the Epoch: its index's, or its only file's."""
    is_finished: bool
    """False after an interrupted save: its index is missing, or its folder has a temporary name."""


def newest_checkpoint(path: Path) -> str:
    """Return the path of the newest checkpoint in a folder.

    The state file ``checkpoint`` decides, or Megatron's or DeepSpeed's; without one, the numbers in
    the names do, such as ``step-1000``. Checkpoints that were not finished are passed over. A
    checkpoint of the folder itself, such as the model that a trainer saves at the end, hides no
    folders of steps next to it.

    Parameters
    ----------
    path : path_like
        The folder, or any path that means one checkpoint.

    Raises
    ------
    AmbiguousPath
        If nothing tells which checkpoint is the newest.
    CheckpointNotFound
        If there is no checkpoint.

    See Also
    --------
    latest_checkpoint : Asks only the state file.

    Examples
    --------
    >>> import shardvar as sv, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> for step in (9, 10):
    ...     _ = sv.save(f"{folder}/step-{step}", {"w": [1.0]})
    >>> os.path.basename(sv.newest_checkpoint(folder))
    'step-10'
    """
    found = steps_of(path)
    if len(found) < 2:
        return find_checkpoint(path).path
    chosen = newest_among(path, found)
    if len(chosen) != 1:
        error = several(path, [each.location for each in chosen or found])
        raise AmbiguousPath(
            error.cause, "Nothing tells which one is the newest: give the path of one of them."
        )
    return chosen[0].location.path


def candidates_of(path: Path) -> list[Candidate]:
    """Return the checkpoints that a path may mean, in natural order."""
    found = find_below(path)
    # Of one, the last part counts.
    return _candidates(split_place(path)[0].path if len(found) > 1 else os.curdir, found)


def _candidates(folder: str, found: Sequence[Location]) -> list[Candidate]:
    steps = differing([parts(folder, each) for each in found])
    return [
        Candidate(each, step, _saved(each), _is_finished(each, step))
        for each, step in zip(found, steps, strict=True)
    ]


def steps_of(path: Path) -> list[Candidate]:
    """Return the checkpoints among which the newest is: the ones that a path may mean, or the steps
    next to a single one."""
    found = candidates_of(path)
    storage, name = split_place(path)
    # The folders in a checkpoint that is a folder itself are its arrays.
    own = found[0].location if len(found) == 1 else None
    if name or own is None or own.storage != storage or own.format.capabilities.folder_index:
        return found
    nearby = _candidates(storage.path, below(path))
    return nearby if in_series([each.step for each in nearby]) else found


def newest_among(path: Path, found: Sequence[Candidate]) -> list[Candidate]:
    """Return the newest of some checkpoints; several of one step, none if unknown."""
    finished = [each for each in found if each.is_finished]
    stated = _stated(split_place(path)[0], finished)
    if stated:
        return stated
    series = in_series([each.step for each in finished])
    return [each for each in finished if each.step == series[-1]] if series else []


def _stated(storage: Storage, found: Sequence[Candidate]) -> list[Candidate]:
    """The checkpoints of the step that a file in the folder names, as far as they exist."""
    names = storage.names()
    state = read_state_file(storage, STATE_FILE) if STATE_FILE in names else None
    if state is not None:
        newest = os.path.basename(state.newest)
        return [each for each in found if newest in (each.step, each.location.stem)]
    if _MEGATRON in names:
        number = _pointer(storage, _MEGATRON)
        return [
            each for each in found if _last_number(each.step) == _last_number(number) is not None
        ]
    name = _pointer(storage, _DEEPSPEED) if _DEEPSPEED in names else ""
    return [each for each in found if each.step == name]


def _pointer(storage: Storage, name: str) -> str:
    """The text of a small file."""
    file = storage.open(name)
    try:
        return file.read(0, min(file.size, _POINTER_NBYTES)).decode("utf-8", "replace").strip()
    finally:
        file.close()


def _last_number(text: str) -> int | None:
    numbers = re.findall("[0-9]+", text)
    return int(numbers[-1]) if numbers else None


def _saved(found: Location) -> float | None:
    """The time of the last change of the first existing file that names a checkpoint."""
    for name in names_of_target(found.name, found.format.name):
        status = found.storage.status(name)
        if status is not None:
            return status.changed
    return None


def _is_finished(found: Location, step: str) -> bool:
    """Return False if the checkpoint is named by its index, and that is missing, or its step has a
    temporary name."""
    kind = kind_of_folder([step])
    if kind and kind.is_lost:
        return False
    return format_of_name(found.name) != found.format.name or found.name in found.storage.names()
