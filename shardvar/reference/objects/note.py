"""The note of what a manager has not finished, and the removal of what it names."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

from shardvar.errors import ShardvarError, StorageError
from shardvar.formats.sinks import take_away
from shardvar.formats.table import formats_of
from shardvar.pictures.words import message
from shardvar.storage.protocol import Storage
from shardvar.verbs.locate import Location
from shardvar.verbs.newest import (
    STATE_FILE,
    SeriesState,
    read_state_file,
    write_state,
)
from shardvar.verbs.remove import remove_at

_NOTE = f"{STATE_FILE}.unfinished"
"""The name of the note."""


_LOG = logging.getLogger("shardvar.checkpoint")


def read_note(storage: Storage, state: SeriesState | None) -> list[str]:
    """Return the names in the note that are not checkpoints of the state."""
    note = read_state_file(storage, _NOTE)
    newest = "" if state is None else state.newest
    # Without a note, or with a void one.
    if note is None or newest not in (
        note.newest,
        *note.kept,
    ):
        return []
    return [name for name in note.kept if state is None or name not in (newest, *state.kept)]


def write_note(storage: Storage, state: SeriesState | None, names: Sequence[str]) -> None:
    """Write a note with these names for a directory of that state, or remove it."""
    if names:
        write_state(
            storage, SeriesState("" if state is None else state.newest, tuple(names)), _NOTE
        )
    else:
        with suppress(StorageError):  # a note that stays is void, or still right
            # This forces the removals before it to the disk, as for an index. If a power cut undid
            # the removal of a checkpoint and not of the note, the checkpoint would stay for ever.
            take_away(storage, [(_NOTE, f"{_NOTE}.tmp")], {f"{_NOTE}.tmp"}.intersection)


def remove_checkpoints(series: Location, names: Iterable[str]) -> list[str]:
    """Remove the checkpoints of these names, and files that writers left of them; return the names
    that failed.

    An error of the disk is logged and not raised, since the new checkpoint is saved.
    """
    left = []
    for name in names:
        try:
            remove_at(_locate(series, name))
        except ShardvarError as error:
            _LOG.warning("%s", message(f"{name} could not be removed: {error}"))
            left.append(name)
    return left


def _locate(series: Location, name: str) -> Location:
    """Return the checkpoint of a name: in the format of the series, or in the only other one that
    has files of it."""
    storage = series.storage
    formats = [form for form in formats_of(storage.names(), name) if form.locate(storage, name)]
    if len(formats) != 1 or series.format.name in [form.name for form in formats]:
        formats = [series.format]
    return Location(formats[0], storage, name)
