"""Numbered checkpoints: their state file, and the note of what a manager has not finished.

Checkpoints are ``ckpt-1``, ``ckpt-2``, and a state file in their directory that names the
newest.

The number of the next one is a variable, so that it is saved and restored with everything else. It
counts checkpoints that are committed: a save that failed is tried again under the same name, and
the files that it left are removed. A number whose checkpoint exists, in any format, is left
out, even if the state file was lost.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointNotFound,
    MissingFile,
    ShardvarError,
    StorageError,
    TargetExists,
    UnsupportedError,
    log_warning,
)
from shardvar.formats.sinks import take_away
from shardvar.formats.table import format_of_name, formats_of, names_of_target, stem_of_name
from shardvar.formats.unfinished import ASIDE
from shardvar.records import frozen
from shardvar.storage.local import split_place
from shardvar.storage.protocol import Storage
from shardvar.verbs.locate import Location, Path, find_checkpoints, find_target
from shardvar.verbs.newest import (
    NUMBER,
    STATE_FILE,
    SeriesState,
    checkpoints_in,
    listed,
    read_state,
    read_state_file,
    remedy_of,
    resolve,
    write_state,
)
from shardvar.verbs.remove import remove_at
from shardvar.verbs.reports import WriteReport

_HOUR = 3600.0
"""Seconds."""


@frozen
class Retention:
    max_to_keep: int | None
    """The number of the newest ones to keep; None for all."""
    every_n_hours: float | None = None
    """The hours after which one more of the others is kept for good; None for none."""

    def __post_init__(self) -> None:
        most: Any = self.max_to_keep
        hours: Any = self.every_n_hours
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most <= 0):
            raise ArgumentError(
                f"max_to_keep={most!r} keeps no checkpoint.",
                "Give a positive integer, or None for all.",
            )
        if hours is not None and (
            isinstance(hours, bool) or not isinstance(hours, int | float) or not hours >= 0
        ):
            raise ArgumentError(
                f"Invalid keep_checkpoint_every_n_hours={hours!r}.",
                "Give a number of hours >= 0, or None.",
            )


def plan_rotation(
    state: SeriesState, newest: str, time: float, keep: Retention
) -> tuple[SeriesState, list[str]]:
    """Return the state after ``newest`` was saved, and the checkpoints to remove, oldest first."""
    # A checkpoint is preserved outside of the state if it was saved at least ``every_n_hours``
    # after the last preserved one. A checkpoint that is saved again is the newest again.
    kept = [
        (name, saved) for name, saved in zip(state.kept, state.times, strict=True) if name != newest
    ]
    kept.append((newest, time))
    preserved, gone = state.preserved, []
    while keep.max_to_keep is not None and len(kept) > keep.max_to_keep:
        # With every_n_hours=1, the last one preserved at 0 s, and checkpoints of 1800 s and 3600 s
        # that are too many: the first is removed (1800 - 3600 < 0), the second is preserved (3600 -
        # 3600 >= 0), and the next hour starts.
        name, saved = kept.pop(0)
        if keep.every_n_hours and saved - keep.every_n_hours * _HOUR >= preserved:
            preserved = saved
        else:
            gone.append(name)
    names, times = zip(*kept, strict=True)
    return SeriesState(newest, names, times, preserved), gone


_NOTE = f"{STATE_FILE}.unfinished"
"""The name of the note."""


def read_note(storage: Storage, state: SeriesState | None) -> list[str]:
    """Return the names in the note that are not checkpoints of the state."""
    note = read_state_file(storage, _NOTE)
    newest = "" if state is None else state.newest
    # Without a note, or with a void one.
    if note is None or newest not in (note.newest, *note.kept):
        return []
    return [name for name in note.kept if state is None or name not in (newest, *state.kept)]


def write_note(storage: Storage, state: SeriesState | None, names: Sequence[str]) -> None:
    if names:
        write_state(
            storage, SeriesState("" if state is None else state.newest, tuple(names)), _NOTE
        )
    else:
        with suppress(StorageError):  # a note that stays is void, or still right
            # This forces the removals before it to the disk, as for an index. If a power cut undid
            # the removal of a checkpoint and not of the note, the checkpoint would stay for ever.
            take_away(storage, [(_NOTE, _NOTE + ASIDE)], {_NOTE + ASIDE}.intersection)


def remove_checkpoints(series: Location, names: Iterable[str]) -> list[str]:
    """Remove checkpoints with all their files; return the names that failed, which are logged."""
    storage, left = series.storage, []
    for name in names:
        try:
            # A checkpoint has the format of the series, or another one with files of it.
            formats = [
                form for form in formats_of(storage.names(), name) if form.locate(storage, name)
            ]
            if len(formats) != 1 or series.format.name in [form.name for form in formats]:
                formats = [series.format]
            remove_at(Location(formats[0], storage, name))
        except ShardvarError as error:
            log_warning(f"{name} could not be removed: {error}")
            left.append(name)
    return left


PlanWrite = Callable[[], Callable[[], WriteReport]]
"""Plans a checkpoint, and returns a function that writes it."""
SaveSteps = Callable[[Location, PlanWrite], WriteReport]
"""``steps(target, plan)`` calls ``plan()`` and its result, and does the work around."""


# Numbers.


def find_series(prefix: Path, format_name: str | None) -> Location:
    """Return the target of a series of checkpoints, to which ``target_of`` adds each number."""
    series = find_target(prefix, format_name, otherwise="shardvar", is_prefix=True)
    check_series(series)
    format_of_ending = format_of_name(os.path.basename(os.fsdecode(prefix)))
    if format_of_ending is not None:
        raise ArgumentError(
            f"{os.fsdecode(prefix)} has the ending of a file, to which no number can be added.",
            f"Leave the ending out, and give format={format_of_ending!r}.",
        )
    return series


def check_series(target: Location) -> None:
    """Raise ``UnsupportedError`` if checkpoints of the target are folders, without numbers."""
    if target.is_folder:
        cause = (
            f"A checkpoint of the format {target.format.name} is a folder, and folders are not "
            "numbered."
        )
        raise UnsupportedError(
            cause, "Write each checkpoint to another path, or choose the format shardvar."
        )


def target_of(series: Location, number: int) -> Location:
    """Return the target of one number; ``ArgumentError`` if a directory has its name."""
    path = os.path.join(series.storage.path, f"{series.name}-{number}")
    return find_target(path, series.format.name, "shardvar", is_prefix=True)


def numbers_in(storage: Storage, name: str) -> list[int]:
    """Return the numbers of a series in a directory, in any built-in format, sorted."""
    head, numbers = f"{name}-", set()
    for file in storage.names():
        form = format_of_name(file) if file.startswith(head) else None
        number = "" if form is None else stem_of_name(file, form).removeprefix(head)
        if NUMBER.fullmatch(number):
            numbers.add(int(number))
    return sorted(numbers)


def next_number(series: Location, count: int, ended: Collection[str] = ()) -> int:
    """Return the first number above ``count`` that no checkpoint has but those ``ended``."""
    taken = set(numbers_in(series.storage, series.name))
    storage, number = series.storage, count
    while True:
        number += 1
        name = f"{series.name}-{number}"
        # Formats of other packages, whose endings are not known here, may have that number too.
        if name in ended or not (
            number in taken
            or any(
                form.locate(storage, name)
                for form in formats_of(storage.names(), name)
                if len(names_of_target(name, form.name)) == 1
            )
        ):
            return number


def record_newest(target: Location, plan: PlanWrite) -> WriteReport:
    """Write a checkpoint, then a state file that names only it, as in TensorFlow."""
    # Check. A state file that cannot be written must be known before the checkpoint is.
    check_state_file(target)
    write = plan()
    # Commit the checkpoint, then its name: the state file never names a checkpoint that does not
    # exist yet.
    report = write()
    write_state(target.storage, SeriesState(target.name, (target.name,)))
    # Remove lock files that killed processes left for lower numbers of the series. A lock that can
    # be taken has no holder, and its file goes when it is released. Higher numbers are not touched:
    # another process may be about to lock one.
    head, _, number = target.stem.rpartition("-")
    pattern = re.compile(rf"\.({re.escape(head)}-({NUMBER.pattern}))\.lock", re.DOTALL)
    with suppress(StorageError):
        for lock in filter(None, map(pattern.fullmatch, target.storage.names())):
            if int(lock[2]) < int(number):
                with suppress(StorageError), target.storage.lock(lock[1]):
                    pass
    return report


def check_state_file(target: Location) -> None:
    """Raise ``TargetExists`` if a directory has the name of the state file."""
    place = os.path.join(target.storage.path, STATE_FILE)
    if os.path.isdir(place):
        raise TargetExists(
            f"{place} is a directory, and the state file needs that name.",
            "Move or rename the directory.",
        )


def newest_of(storage: Storage, directory: str, name: str) -> str | None:
    """Return the path of the newest checkpoint of a directory; None if no state file names one."""
    state = read_state(storage, name)
    while state is not None:
        path = resolve(directory, state.newest)
        if find_checkpoints(path):
            return path
        # Between the two reads a manager may have saved a newer checkpoint and removed this one.
        # Then the state has changed, and the newer one is looked for; a state that stays the same
        # names a checkpoint that is missing.
        before, state = state, read_state(storage, name)
        if state == before:
            there = checkpoints_in(storage)
            raise CheckpointNotFound(
                f"{os.path.join(directory, name)} names {path}, which does not exist; "
                f"{listed(there)}.",
                remedy_of(there),
            )
    return None


def check_is_new(series: Location, ended: Collection[str]) -> None:
    """Raise ``MissingFile`` if there are checkpoints other than those ``ended``, and no state file."""
    numbers = numbers_in(series.storage, series.name)
    there = [
        name for name in (f"{series.name}-{number}" for number in numbers) if name not in ended
    ]
    if there and STATE_FILE not in series.storage.names():
        path = os.path.join(series.storage.path, STATE_FILE)
        raise MissingFile(f"{path} is missing; {listed(there)}.", remedy_of(there))


def latest_checkpoint(directory: Path, latest_filename: str | None = None) -> str | None:
    """Return the path of the newest checkpoint of a directory, from its state file.

    Parameters
    ----------
    directory : path_like
        The directory.
    latest_filename : str, optional
        The name of the state file; TensorFlow's ``checkpoint`` by default.

    Returns
    -------
    str or None
        The path; None without a state file. If numbered checkpoints are there all the same, that is
        logged.

    Raises
    ------
    MalformedCheckpoint
        If the state file cannot be decoded, is empty, or names no newest checkpoint.
    InvalidCheckpoint
        If it names a checkpoint outside of the directory.
    CheckpointNotFound
        If it names a checkpoint that does not exist.
    ArgumentTypeError
        If ``directory`` is not a path.

    See Also
    --------
    newest_checkpoint : Also finds checkpoints without a state file, by their numbers.

    Examples
    --------
    >>> import tempfile
    >>> latest_checkpoint(tempfile.mkdtemp()) is None
    True
    """
    try:
        home = os.fsdecode(directory)
        path = os.path.join(home, latest_filename or STATE_FILE)
    except TypeError:
        raise ArgumentTypeError(
            f"{directory!r} is not a path.", "Give the path of a directory."
        ) from None
    storage, name = split_place(path)
    newest = newest_of(storage, home, name) if name else None
    if newest is None:
        there = [
            each for each in checkpoints_in(storage) if NUMBER.fullmatch(each.rpartition("-")[2])
        ]
        if there:
            log_warning(f"{path} is missing, so there is no newest checkpoint; {listed(there)}.")
    return newest
