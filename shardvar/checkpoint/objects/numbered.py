"""Numbered checkpoints: ``ckpt-1``, ``ckpt-2``, and a state file beside them that says which is the newest.

The number of the next one is a variable, so that it is saved and restored with everything else. It counts checkpoints
that are committed: whoever failed to save tries again under the same name, and what was left under it is removed.
"""

import os
from collections.abc import Callable

from shardvar.checkpoint.locate import Found, Path, find_target
from shardvar.checkpoint.objects.state_file import STATE_FILE, SeriesState, newest_of, write_state
from shardvar.checkpoint.reports import WriteReport
from shardvar.errors import ArgumentError, ArgumentTypeError, TargetExists
from shardvar.formats.table import format_of_name
from shardvar.storage.local import split_path

Steps = Callable[[Found, Callable[[], WriteReport]], WriteReport]
"""What is done around the writing of a numbered checkpoint: given where it goes, and the function that writes it."""


def find_series(prefix: Path, format_name: str | None) -> Found:
    """Where numbered checkpoints of this prefix go: the target of which ``numbered`` makes each."""
    series = find_target(prefix, format_name, otherwise="shardvar")
    speaks_of = format_of_name(os.path.basename(os.fsdecode(prefix)))
    if speaks_of is not None:
        raise ArgumentError(
            f"{os.fsdecode(prefix)} has the ending of a file, to which no number can be added.",
            f"Leave the ending out, and give format={speaks_of!r}.",
        )
    return series


def numbered(series: Found, number: int) -> Found:
    """The target of one number; ``ArgumentError`` where a directory is in its place."""
    return find_target(os.path.join(series.storage.path, f"{series.name}-{number}"), series.format.name, "shardvar")


def record_newest(target: Found, write: Callable[[], WriteReport]) -> WriteReport:
    """Write a checkpoint, and then say that it is the newest, as TensorFlow's ``Checkpoint.save`` does: of no other."""
    check_place(target)
    report = write()
    write_state(target.storage, SeriesState(target.name, (target.name,)))
    return report


def check_place(target: Found) -> None:
    """Raise ``TargetExists`` where no state file could be put beside a checkpoint; before anything is written."""
    place = os.path.join(target.storage.path, STATE_FILE)
    if os.path.isdir(place):
        raise TargetExists(
            f"{place} is a directory, and a file of that name is to say which is newest.", "Move it away."
        )


def latest_checkpoint(directory: Path, latest_filename: str | None = None) -> str | None:
    """The path of the newest checkpoint of a directory, as its state file says; None where there is no such file.

    The file is TensorFlow's ``checkpoint``, or has the other name that is given. ``MalformedCheckpoint`` where it
    cannot be decoded; ``InvalidCheckpoint`` where it names a checkpoint outside of the directory;
    ``CheckpointNotFound`` where it names one that is not there.

    >>> import tempfile
    >>> latest_checkpoint(tempfile.mkdtemp()) is None
    True
    """
    try:
        home = os.fsdecode(directory)
        path = os.path.join(home, latest_filename or STATE_FILE)
    except TypeError:
        raise ArgumentTypeError(f"{directory!r} is no path.", "Give the path of a directory.") from None
    storage, name = split_path(path)
    return newest_of(storage, home, name) if name else None
