"""A note on the checkpoints of a folder that a command did not use, with the command that shows
them."""

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress

from shardvar.cli.output import count, folded, printable, short_path
from shardvar.errors import ShardvarError

_MOST_NAMED = 3
"""The names in a note; it counts the others."""


def notes_about(arguments: Namespace) -> list[str]:
    """Return a note for each folder among the arguments that holds checkpoints which its path does
    not mean; none with ``--latest``, which chooses one of several."""
    notes = []
    for folder in [] if getattr(arguments, "latest", False) else dict.fromkeys(_folders(arguments)):
        with suppress(ShardvarError):  # the command itself says what is wrong
            if text := _text(folder):
                notes.append(f"note: {text}")
    return notes


def num_lines(notes: Sequence[str]) -> int:
    """Return the lines that notes take on a terminal."""
    return sum(len(folded(each)) for each in notes)


def _folders(arguments: Namespace) -> Iterator[str]:
    """Yield the paths among the arguments that are local folders."""
    for name in ("path", "a", "b", "source"):
        given = getattr(arguments, name, [])
        for path in [given] if isinstance(given, str) else given:
            if os.path.isdir(path):
                yield path


def _text(folder: str) -> str:
    """Return the sentence about a folder; empty if its path means all that is in it."""
    # Not above: paths of files do without it.
    from shardvar.verbs.omissions import find_omissions

    passed = find_omissions(folder)
    if not passed:
        return ""
    paths = [os.path.relpath(path, folder) for path in passed.folders]
    parts = []
    if passed.files:
        parts.append(_named(passed.files))
    if paths:
        parts.append(f"{count(len(paths), 'checkpoint')} in folders ({_named(paths)})")
    if passed.links:
        parts.append(f"links out of it that are not followed ({_named(passed.links)})")
    first = [*passed.files, *paths, *passed.links][0]
    shown = short_path(os.path.normpath(os.path.join(folder, first)))
    whole = "; ".join(parts)
    return f"{short_path(folder)} also contains {whole}. See one: `shardvar inspect {shown}`"


def _named(names: Sequence[str]) -> str:
    """Return the first few names, and the number of the others."""
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(map(printable, names[:_MOST_NAMED])) + more
