"""What a manager has begun and not finished: the names whose files the next save removes, if it did not come to that.

    check     the names that a save will leave without a checkpoint: its own, should it fail, and those that must go
    note      the file ``checkpoint.unfinished`` has them, before anything else is written or removed
    save      the checkpoint, and then the state file, which no longer names those that go
    remove    the files of those that go, each index first, and then the note

Whatever the state file names is a checkpoint, noted or not. So a crash at any step leaves the old checkpoints or the
new ones, and a note by which the next save removes the rest. The note has the form of a state file: its newest
checkpoint is the one that was the newest when it was written. Where the state file has another one by now, which is
none of the noted either, somebody else has been saving here, and the note is void: no file of another's is removed.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

from shardvar.checkpoint.locate import Found
from shardvar.checkpoint.objects.state_file import STATE_FILE, SeriesState, read_state, write_state
from shardvar.errors import ShardvarError, StorageError
from shardvar.formats.files import take_away
from shardvar.formats.table import all_formats
from shardvar.storage.protocol import Storage

NOTE = f"{STATE_FILE}.unfinished"
"""The name of the file."""

_LOG = logging.getLogger("shardvar.checkpoint")


def read_note(storage: Storage, state: SeriesState | None) -> list[str]:
    """The names that are noted and are no checkpoints, in a directory that is in that state."""
    note = read_state(storage, NOTE)
    newest = "" if state is None else state.newest
    if note is None or newest not in (note.newest, *note.kept):
        return []
    return [name for name in note.kept if state is None or name not in (newest, *state.kept)]


def write_note(storage: Storage, state: SeriesState | None, names: Sequence[str]) -> None:
    """Note the names, in a directory that is in that state; without any, remove the note."""
    if names:
        write_state(storage, SeriesState("" if state is None else state.newest, tuple(names)), NOTE)
    else:
        with suppress(StorageError):  # a note that stays is void, or says what is true
            # Forced, as an index goes: were the note gone from the disk before what it names, that would stay for ever.
            take_away(storage, [(NOTE, f"{NOTE}.tmp")], {f"{NOTE}.tmp"}.intersection)


def remove_checkpoints(series: Found, names: Iterable[str]) -> list[str]:
    """Remove the checkpoints of these names, and what writers left of them; those that could not be are returned.

    That the disk refuses is logged and not raised: what was to be saved is there.
    """
    left = []
    for name in names:
        try:
            target = _standing(series, name)
            with target.storage.lock(target.stem):
                target.format.remove(target.storage, target.name)
        except ShardvarError as error:
            _LOG.warning("%s could not be removed: %s", name, error)
            left.append(name)
    return left


def _standing(series: Found, name: str) -> Found:
    """The checkpoint of a name: in the format of the series, or in the only other one where it stands there."""
    formats = [form for form in all_formats() if form.locate(series.storage, name)]
    if len(formats) != 1 or series.format.name in [form.name for form in formats]:
        formats = [series.format]
    return Found(formats[0], series.storage, name)
